import pytest

from mainstem import embedded
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.core import UserError
from mainstem.core.task import TaskState
from mainstem.dash.operations import GivenUp, Going
from mainstem.dash.web import Changed, UnknownJob
from mainstem.process.cutover import Overtaken
from mainstem.standalone import dashboard_commands as module
from mainstem.standalone.command_process import CommandFailed
from mainstem.standalone.dashboard_commands import DashboardCommands
from mainstem.standalone.moved_views import MovedView
from tests.support.ports import free_port
from tests.support.versions import write_read, write_versions


@pytest.fixture
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        write_versions(connection, "sums")
        write_read(connection, "sums", "1", 7)
        yield connection


@pytest.fixture
def commands(connection, tmp_path):
    return DashboardCommands(tmp_path, tmp_path / "data", connection)


def test_readers_are_moved_and_back(commands, connection):
    write_read(connection, "sums", "2", 9)
    assert [(each.version, each.ready) for each in commands.versions("sums")] == [("1", True), ("2", True)]
    told = []
    done = commands.run("cutover", "sums", {"version": "2"}, Going(told.append))
    assert done.lines == ["version 2 is current, which writes topic sums.v2; version 1 goes on"]
    assert done.basis.startswith("ms1.")
    assert told == ["readers are moved; views follow"]
    with pytest.raises(UserError, match="is current already"):
        commands.run("cutover", "sums", {"version": "2"}, Going(told.append))
    write_read(connection, "sums", "1", 9)
    commands.check("revert", "sums", {"version": "1"})
    back = commands.run("revert", "sums", {"version": "1"}, Going(told.append))
    with pytest.raises(Changed, match="expected that a revert leads to version 1, found version 2"):
        commands.check("revert", "sums", {"version": "1"})
    with pytest.raises(Overtaken):
        commands.run("revert", "sums", {"version": "1"}, Going(told.append))
    commands.check("cutover", "sums", {"version": "1"})
    assert back.lines == ["version 1 is current, which writes topic sums; version 2 goes on"]


def test_a_version_that_is_not_ready_is_waited_for_until_somebody_gives_up(commands):
    told = []
    going = Going(lambda line: (told.append(line), going.give_up()))
    with pytest.raises(GivenUp):
        commands.run("cutover", "sums", {"version": "2"}, going)
    assert told == ["job sums@2 has 7 offsets to go"]
    assert [each.current for each in commands.versions("sums")] == [True, False]


def test_a_version_that_fails_meanwhile_ends_it(commands, monkeypatch):
    failed = [TaskState("job sums@2", "failed", 1, "no such column: x")]
    looks = iter([[], [], failed])
    monkeypatch.setattr(module, "tasks_of", lambda _: next(looks))
    with pytest.raises(UserError, match="sums@2 has failed: no such column: x"):
        commands.run("cutover", "sums", {"version": "2"}, Going(print))


def test_views_that_nobody_waits_for_follow_all_the_same(commands, connection, monkeypatch):
    write_read(connection, "sums", "2", 9)
    views = iter([[MovedView("lake", "/views/sums", "sums.v2", False)], GivenUp("no")])

    def wait(*_, **__):
        found = next(views)
        if isinstance(found, GivenUp):
            raise found
        return found

    monkeypatch.setattr(module, "wait_for_views", wait)
    done = commands.run("cutover", "sums", {"version": "2"}, Going(print))
    assert done.lines[1:] == ["/views/sums leads to sums.v2 once that is there"]
    write_read(connection, "sums", "1", 9)
    assert commands.run("revert", "sums", {"version": "1"}, Going(print)).lines[1:] == [
        "views follow by themselves: nobody waited for them any more"
    ]


def test_who_gives_up_after_readers_were_moved_is_not_told_that_nothing_is_changed(commands, connection, monkeypatch):
    """Beside "version 2 is current" it said: "it was given up; nothing is changed"."""
    write_read(connection, "sums", "2", 9)
    going = Going(lambda _: going.give_up())

    def wait(*_, pause, **__):
        pause(0)

    monkeypatch.setattr(module, "wait_for_views", wait)
    assert commands.run("cutover", "sums", {"version": "2"}, going).lines == [
        "version 2 is current, which writes topic sums.v2; version 1 goes on",
        "views follow by themselves: nobody waited for them any more",
    ]


def test_a_job_is_known_once_it_has_started_or_waits_for_that(commands, monkeypatch):
    assert [commands.knows(job) for job in ("sums", "none")] == [True, False]
    with pytest.raises(UnknownJob, match=r"^job none: no such job runs"):
        commands.versions("none")
    monkeypatch.setattr(module, "tasks_of", lambda _: [TaskState("job none@1", "waiting", 1, "")])
    assert commands.knows("none")


def test_nodes_that_do_not_answer_are_told(commands, connection):
    write_read(connection, "sums", "2", 9)
    views = {"totals": {"kind": "key-value", "topics": ["sums"]}}
    write_catalog(connection, {"node:answers": {"address": f"127.0.0.1:{free_port()}", "views": views}})
    done = commands.run("cutover", "sums", {"version": "2"}, Going(print))
    assert "view totals of node answers has not moved yet: it does not answer" in done.lines[1]


def test_what_a_comparison_says_is_for_the_page(commands, monkeypatch):
    asked = []

    def run_command(words, **_):
        asked.append(words)
        return '{"equal": 7}'

    monkeypatch.setattr(module, "run_command", run_command)
    assert commands.run("diff", "sums", {"left": "1", "right": "2"}, Going(print)).result == '{"equal": 7}'
    assert asked[0][-4:] == ["--", "sums", "1", "2"]


def test_reprocess_says_what_the_command_says(commands, tmp_path):
    """It is a process of its own; here it fails, since nothing was started from this directory."""
    (tmp_path / "mainstem.toml").write_text('[project]\nname = "shop"\n')
    with pytest.raises(CommandFailed, match=r"expected jobs that were started from there, found none"):
        commands.run("reprocess", "--help", {"anyway": "yes"}, Going(print))
