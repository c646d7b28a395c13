import json
import re

import msgspec
import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS
from mainstem.client.progress import Marker, Written
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.core import UserError
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.process.culprit import FailedBatch, Range
from mainstem.process.offsets import read_plan
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.process.versions import Asked, Fixed, is_retired, write_asked, write_fixed
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter


@pytest.fixture(scope="module")
def log(cli_log):
    connection = Connection(cli_log)
    ensure_internal_topics(connection)
    ensure_topic(connection, "orders", 1)
    about = {
        "code": "c0de",
        "output": "totals",
        "inputs": {"o": "orders"},
        "determinism": "exact",
        "reason": "no state",
    }
    write_catalog(connection, {"job:totals": {"versions": {"1": about}, "current": "1"}})
    marker = Marker("totals", "1", "uuid", 4, {"o": {"orders": {0: 0}}}, {}, {"totals": {0: Written(3, 1)}})
    append(connection, COMMITS, [(b"totals@1", msgspec.json.encode(marker))])
    return cli_log


def test_jobs_are_listed_with_batch_and_lag(log):
    result = CliRunner().invoke(group, ["job", "list", "--bootstrap", log])
    assert result.stdout.splitlines()[1].split() == [
        "totals",
        "1",
        "yes",
        "orders",
        "totals",
        "4",
        "0",
        "0",
        "3",
        "exactly",
        "once",
        "0",
        "0",
    ]


def test_what_is_promised_of_rows_that_do_not_wait_is_told_and_they_are_not_counted(log):
    told = "at least once: after a crash or a stop the rows of up to 9 seconds come again"
    about = {"code": "c0de", "output": "urgent", "inputs": {"o": "orders"}, "guarantee": told}
    write_catalog(Connection(log), {"job:urgent": {"versions": {"1": about}, "current": "1"}})
    marker = Marker("urgent", "1", "uuid", 4, {"o": {"orders": {0: 0}}}, ends={"urgent": {0: 3}})
    append(Connection(log), COMMITS, [(b"urgent@1", msgspec.json.encode(marker))])
    shown = CliRunner().invoke(group, ["job", "show", "urgent", "--bootstrap", log]).stdout
    assert told in shown
    assert "not counted" in shown
    (listed,) = [
        line
        for line in CliRunner().invoke(group, ["job", "list", "--bootstrap", log]).stdout.splitlines()
        if "urgent" in line
    ]
    assert "at least once" in listed
    (document,) = json.loads(CliRunner().invoke(group, ["job", "show", "urgent", "--json", "--bootstrap", log]).stdout)
    assert (document["guarantee"], document["rows"]) == (told, None)


def test_a_job_is_shown_with_the_code_it_runs_from(log):
    result = CliRunner().invoke(group, ["job", "show", "totals", "--bootstrap", log])
    for words in ("c0de", "orders as o", "exact: no state"):
        assert words in result.stdout
    document = json.loads(CliRunner().invoke(group, ["job", "show", "totals", "--json", "--bootstrap", log]).stdout)
    assert (document[0]["batch"], document[0]["lag"]) == (4, 0)


def test_a_checkpoint_is_made_anew_for_a_version_without_one(log, tmp_path):
    """A job without state, whose position stands in its marker."""
    connection, data = Connection(log), tmp_path / "data"
    write_fixed(data / "jobs" / "copied@1", Fixed("copied", "1", "c0de", {}, "t", 1, 4))
    command = ["job", "restore", "copied", "--data", str(data), "--bootstrap", log]
    nothing = CliRunner().invoke(group, command)
    assert "job copied@1 has committed nothing" in str(nothing.exception)
    marker = Marker("copied", "1", "c1d", 7, {"orders": {"orders": {0: 5}}})
    append(connection, COMMITS, [(b"copied@1", msgspec.json.encode(marker))])
    result = CliRunner().invoke(group, command)
    assert result.stdout == "job copied@1: restored; it goes on behind batch 7\n"
    checkpoint = data / "jobs" / "copied@1" / "checkpoint"
    assert Checkpoint(checkpoint).query_id() == "c1d"
    assert read_plan(checkpoint, 7).ends == marker.end_offsets
    Checkpoint(checkpoint).check(7)
    again = CliRunner().invoke(group, command)
    assert "found none; those that have one: 1" in str(again.exception)
    named = CliRunner().invoke(group, [*command, "--version", "1", "--json"])
    assert "expected no checkpoint, found one" in str(named.exception)


def test_a_version_is_retired(log, tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    jobs = (
        'from mainstem.process import stream, topic\no = topic("orders")\n@stream(to="t")\ndef sums(o):\n    return o\n'
    )
    (project / "jobs.py").write_text(jobs)
    (project / "mainstem.toml").write_text("")
    write_fixed(data / "jobs" / "sums@1", Fixed("sums", "1", "c0de", {}, "t", 1, 4))
    write_catalog(Connection(log), {"job:sums": {"versions": {"1": {}}, "current": "1"}})
    ensure_topic(Connection(log), "t", 1)
    save(data, UpState(1, str(project), log, "http://127.0.0.1:1", 0.0))
    command = ["job", "retire", "sums", "1", "--data", str(data), "--bootstrap", log]
    refused = CliRunner().invoke(group, command)
    assert isinstance(refused.exception, UserError)
    assert str(project / "mainstem.toml") in str(refused.exception)  # of the data directory, not of the current one
    assert refused.output == ""  # and nobody was asked
    (project / "mainstem.toml").write_text('[jobs.sums]\nversion = "2"\n')
    for answer, ended in [("n\n", SystemExit), ("", UserError)]:
        asked = CliRunner().invoke(group, command, input=answer)
        assert asked.stderr.startswith("stop job sums@1, which writes topic t, for good? [y/N]")
        assert (asked.exit_code, type(asked.exception)) == (1, ended)
        assert not is_retired(data, "sums", "1")
    result = CliRunner().invoke(group, command, input="y\n")
    assert result.stdout == "job sums@1: retired; topic t stays, and gets nothing more from it\n"
    again = CliRunner().invoke(group, [*command, "--yes", "--json"])
    assert json.loads(again.stdout) == {"job": "sums", "version": "1", "output": "t"}
    assert read_catalog(Connection(log))["job:sums"] == {"versions": {}, "current": "", "retired": {"1": {}}}
    shown = CliRunner().invoke(group, ["job", "show", "sums", "--bootstrap", log])
    assert isinstance(shown.exception, UserError)


def test_a_job_that_never_ran_is_misuse(log):
    result = CliRunner().invoke(group, ["job", "show", "nothing", "--bootstrap", log])
    assert isinstance(result.exception, UserError)


def test_a_job_that_waits_for_its_first_start_is_shown(log, tmp_path):
    """It was in no list, and `job show` said that no such job has run."""
    idle = TaskState("job later@1", "idle", error="topic crm.customers has no schema yet")
    TasksWriter(tmp_path, 7, "spark-c0de").save([TaskState("job totals@1"), idle])
    with DirectoryLock(tmp_path):
        save(tmp_path, UpState(1, "p", log, "http://127.0.0.1:1", 0.0, [ChildState("spark", "running", 7)]))
        listed = CliRunner().invoke(group, ["job", "list", "--data", str(tmp_path)]).stdout
        shown = CliRunner().invoke(group, ["job", "show", "later", "--data", str(tmp_path)]).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["later", "totals", "urgent"]
    assert " ".join(listed.splitlines()[1].split()).endswith("idle topic crm.customers has no schema yet")
    assert listed.splitlines()[2].endswith("running")
    assert "idle: topic crm.customers has no schema yet" in shown


RANGES = (Range("o", "orders", 0, 5, 9), Range("o", "orders", 1, 2, 3))
ROW = 'orders 0:7 {"id": 7, "cents": null}'


@pytest.mark.parametrize("row", [ROW, ""], ids=["without state", "with state, which tells no row"])
def test_of_a_batch_that_failed_its_offsets_are_shown_and_the_row_where_it_is_known(log, tmp_path, row):
    batch = FailedBatch(3, RANGES, row)
    task = TaskState("job broken@1", "waiting", 2, "jobs.py:4: ValueError: no cents", details=batch.told())
    TasksWriter(tmp_path, 7, "spark-c0de").save([task])
    command = ["job", "show", "broken", "--data", str(tmp_path)]
    with DirectoryLock(tmp_path):
        save(tmp_path, UpState(1, "p", log, "http://127.0.0.1:1", 0.0, [ChildState("spark", "running", 7)]))
        shown = CliRunner().invoke(group, command).stdout
        (document,) = json.loads(CliRunner().invoke(group, [*command, "--json"]).stdout)
    lines = [tuple(re.split("  +", line, maxsplit=1)) for line in shown.splitlines()]
    failed = {"failed batch": "3", "failed offsets": "orders 0: 5 to 9, orders 1: 2 to 3"}
    failed |= {"failed row": row} if row else {}
    assert [line for line in lines if line[0].startswith("failed")] == list(failed.items())
    assert ("state", "waiting: jobs.py:4: ValueError: no cents") in lines
    assert document["failure"] == {name.removeprefix("failed "): text for name, text in failed.items()}


def test_of_a_version_that_never_started_no_topic_stays(log, tmp_path):
    """There was none, and it was said to stay."""
    for version in "23":
        asked = Asked("copy", version, "c0de", f"shop.copy.v{version}", 0)
        write_asked(tmp_path / "jobs" / f"copy@{version}", asked)
    command = ["job", "retire", "copy", "--data", str(tmp_path), "--bootstrap", log, "--yes"]
    result = CliRunner().invoke(group, [*command, "2"])
    assert result.stdout == "job copy@2: retired; topic shop.copy.v2 was never made, or is gone\n"
    found = json.loads(CliRunner().invoke(group, [*command, "3", "--json"]).stdout)
    assert found == {"job": "copy", "version": "3", "output": None}
