import json
import uuid

from click.testing import CliRunner

from mainstem import embedded
from mainstem.cli.commands import group
from mainstem.cli.status import position
from mainstem.client.connection import Connection
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter
from tests.support.commands import mainstem


def test_a_project_that_is_not_up_is_exit_1(tmp_path):
    (tmp_path / "mainstem.toml").touch()
    result = mainstem("status", "--project", tmp_path)
    assert result.returncode == 1
    assert "not up; `mainstem up" in result.stderr


def test_a_project_that_is_not_up_is_a_document_for_programs(tmp_path):
    (tmp_path / "mainstem.toml").touch()
    done = mainstem("status", "--project", tmp_path, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "up": False,
        "node": None,
        "tasks": [],
        "sources": [],
        "jobs": [],
        "readers": [],
        "views": [],
        "disk": None,
    }


def test_processes_are_shown_where_the_log_does_not_answer(tmp_path):
    with DirectoryLock(tmp_path):
        children = [ChildState("log", "waiting", None, 3, last_error="exit -9: no room")]
        save(tmp_path, UpState(1, "p", "127.0.0.1:1", "http://127.0.0.1:1", 0.0, children))
        done = mainstem("status", "--data", tmp_path)
    assert done.returncode == 1
    assert "exit -9: no room" in done.stdout
    assert "127.0.0.1:1: no log answers" in done.stderr


def test_what_a_process_has_recovered_from_is_not_shown_for_ever(tmp_path):
    with DirectoryLock(tmp_path):
        log = ChildState("log", "running", 4198, 1, ready_line="listening on x", last_error="exit -9 (Killed)")
        spark = ChildState("spark", "starting", 8, 1, ready_line="1 jobs running", last_error="exit 1: no memory")
        save(tmp_path, UpState(1, "p", "127.0.0.1:1", "http://127.0.0.1:1", 0.0, [log, spark]))
        done = mainstem("status", "--data", tmp_path)
    assert done.stdout.splitlines()[0].endswith("ready line, or why it does not run")
    assert "listening on x" in done.stdout
    assert " 4198 " in done.stdout  # it was 4,198, which no kill takes
    assert "exit 1: no memory" in done.stdout
    assert "Killed" not in done.stdout


def test_of_a_log_without_a_project_no_empty_tables_are_shown(tmp_path):
    with embedded() as log:
        arguments = ["status", "--bootstrap", log.bootstrap, "--data", str(tmp_path)]
        people = CliRunner().invoke(group, arguments)
        assert people.stdout == "no source, job, destination or view is known\n"
        ensure_internal_topics(Connection(log.bootstrap))
        ensure_topic(Connection(log.bootstrap), "t", 1)
        write_reports(Connection(log.bootstrap), [Report(reader="lake", topic="t", partition=0, end=0, rows=8)])
        people = CliRunner().invoke(group, arguments)
    assert [line.split()[0] for line in people.stdout.splitlines()] == ["reader", "lake"]


def test_sources_are_shown_where_they_are(cli_log, tmp_path):
    ensure_internal_topics(Connection(cli_log))
    writer = TransactionalWriter(Connection(cli_log), "shop")
    writer.open()
    writer.begin()
    writer.commit({"lsn": 42, "file": {"name": "a.log"}})
    writer.close()
    arguments = ["status", "--bootstrap", cli_log, "--data", str(tmp_path)]
    people = CliRunner().invoke(group, arguments)
    assert people.exit_code == 0
    assert "lsn 42, file name a.log" in people.stdout
    (source,) = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).stdout)["sources"]
    assert source == {
        "behind_bytes": None, "position": {"lsn": 42, "file": {"name": "a.log"}}, "records": 0, "source": "shop",
    }  # fmt: skip


def test_people_see_how_many_records_a_reader_could_not_decode(cli_log, tmp_path):
    """A job leaves them out: its rows were fewer than its topic has, and nothing that people read said why."""
    connection = Connection(cli_log)
    topic = f"visits-{uuid.uuid4().hex[:8]}"
    ensure_topic(connection, topic, 1)
    ensure_internal_topics(connection)
    write_reports(connection, [Report(reader="lake", topic=topic, partition=0, end=0, rows=8, quarantined=4)])
    people = CliRunner().invoke(group, ["status", "--bootstrap", cli_log, "--data", str(tmp_path)])
    (heads,) = (line.split() for line in people.stdout.splitlines() if line.startswith("reader "))
    (found,) = (line.split() for line in people.stdout.splitlines() if topic in line)
    assert dict(zip(heads, found, strict=True))["undecodable"] == "4"


def test_people_see_where_a_source_is_and_not_what_it_remembers():
    file = {"inode": 10150496, "position": 40960, "head_hash": 7, "in_long_line": False, "ended": False, "done": []}
    assert position(file) == "byte 40,960"
    assert position(file | {"ended": True}) == "byte 40,960 of a file that has ended"
    assert (
        position({"state": "streaming", "system": "7", "lsn": 5368709120, "oids": [1]}) == "streaming, lsn 1/40000000"
    )
    assert position({"row": 10, "at": ["a", 1]}) == "row 10, at [a, 1]"
    splice = {"version": "2", "output": "a.v2", "offsets": {"0": 5120, "1": 3}, "move": None, "read": {}, "parts": []}
    assert position(splice) == "version 2, offset 5,123"
    assert position(splice | {"move": {"version": "3"}}) == "version 2, offset 5,123, moves to version 3"
    assert position({"topics": {"flights": "T3a"}}) == ""  # of the collector


def test_what_fails_again_and_again_is_no_for_an_answer_and_what_waits_for_its_input_is_not(cli_log, tmp_path):
    """A job that failed for ever was exit 0, and a table that was held back stood in a log only."""

    def status(*tasks):
        TasksWriter(tmp_path, 7, "spark-c0de").save([TaskState("job sums@1"), *tasks])
        return CliRunner().invoke(group, ["status", "--data", str(tmp_path)])

    idle = TaskState("job totals@1", "idle", error="topic orders has no schema yet")
    table = TaskState("sink lake: table orders", "failed", 1, "no number", "mend it")
    with DirectoryLock(tmp_path):
        spark = ChildState("spark", "running", 7, ready_line="1 jobs running")
        save(tmp_path, UpState(1, "p", cli_log, "http://127.0.0.1:1", 0.0, [spark]))
        well = status(idle)
        assert (well.exit_code, "topic orders has no schema yet" in well.stdout) == (0, True)
        assert status(TaskState("job sums@2", "waiting", 1, "no answer")).exit_code == 0
        assert status(TaskState("job sums@2", "waiting", 3, "no answer")).exit_code == 1
        held = status(table)
        assert (held.exit_code, "no number (mend it)" in held.stdout) == (1, True)
