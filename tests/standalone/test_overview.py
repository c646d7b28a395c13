import msgspec
import pytest

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS, SOURCES
from mainstem.client.progress import Marker, Read, Written
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import delete, ensure_internal_topics, ensure_topic
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sources.file_lines import FilePosition
from mainstem.core import UserError
from mainstem.core.locks import DirectoryLock
from mainstem.core.task import TaskState
from mainstem.process.versions import Asked, Fixed, write_asked, write_fixed
from mainstem.standalone.overview import job_state, job_states, lag_of, overview, tasks_of
from mainstem.standalone.state import UpState, save
from mainstem.standalone.supervisor import ChildState
from mainstem.standalone.tasks import TasksWriter
from tests.support.counting import counted


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        connection = Connection(log.bootstrap)
        assert job_states(connection) == []
        ensure_internal_topics(connection)
        ensure_topic(connection, "orders", 1)
        yield connection


def test_lag_counts_the_offsets_to_the_end():
    assert lag_of({"t": {0: 3, 1: 9}}, {"t": {0: 10, 1: 9}, "u": {0: 5}}) == 7


def test_a_source_of_a_file_is_so_many_bytes_behind(connection, tmp_path):
    file = tmp_path / "a.log"
    file.write_bytes(b"one\ntwo\n")
    (tmp_path / "mainstem.toml").write_text('[sources.lines]\ntype = "file"\npath = "a.log"\ntopic = "t"\n')
    writer = TransactionalWriter(connection, "lines")
    writer.open()
    writer.begin()
    writer.commit(msgspec.to_builtins(FilePosition(file.stat().st_ino, 4)))
    writer.close()

    def behind():
        return [source.behind_bytes for source in overview(tmp_path, connection).sources]

    assert behind() == [None]  # no project is up here: another one may have a source of that name
    with DirectoryLock(tmp_path):
        save(tmp_path, UpState(1, str(tmp_path), connection.bootstrap, "http://127.0.0.1:1", 0.0))
        assert behind() == [4]
        file.rename(tmp_path / "a.log.1")
        assert behind() == [None]
        file.write_bytes(b"three\n")
        assert behind() == [None]
        (tmp_path / "mainstem.toml").write_text("no settings")
        assert behind() == [None]
    append(connection, SOURCES, [(b"lines", None)])


def test_a_topic_that_was_deleted_is_left_out(connection, tmp_path):
    """`mainstem status` and `job list` once ended for ever with "no such topic"."""
    ensure_topic(connection, "gone", 1)
    append(connection, "gone", [(None, b"v")] * 3)
    inputs = {"g": "gone", "o": "orders"}
    about = {"code": "c0de", "output": "left", "inputs": inputs, "determinism": "exact", "reason": ""}
    write_catalog(connection, {"job:left": {"versions": {"1": about}, "current": "1"}})
    marker = Marker("left", "1", "uuid", 0, {"g": {"gone": {0: 1}}}, {}, {})
    append(connection, COMMITS, [(b"left@1", msgspec.json.encode(marker))])
    write_reports(connection, [Report(reader="lake", topic="gone", partition=0, end=1, rows=1)])
    seen = overview(tmp_path, connection)
    assert ([j.lag for j in seen.jobs], [r.lag for r in seen.readers]) == ([2], [2])
    delete(connection, ["gone"])
    seen = overview(tmp_path, connection)
    assert ([j.lag for j in seen.jobs], seen.readers) == ([0], [])
    write_catalog(connection, {"job:left": None})


def test_what_all_jobs_and_readers_read_is_asked_for_together(connection, tmp_path, monkeypatch):
    """With 2,000 topics `mainstem status` took minutes: each cost two requests, one of them for all topics."""
    calls = counted(monkeypatch)
    asked = []
    for count in (1, 8):
        names = [f"read-{number}" for number in range(count)]
        for name in names:
            ensure_topic(connection, name, 1)
        inputs = {f"i{number}": name for number, name in enumerate(names)}
        about = {"code": "c0de", "output": "all", "inputs": inputs, "determinism": "exact", "reason": ""}
        write_catalog(connection, {"job:all": {"versions": {"1": about}, "current": "1"}})
        write_reports(
            connection, [Report(reader="lake-of-many", topic=name, partition=0, end=0, rows=0) for name in names]
        )
        calls.clear()
        seen = overview(tmp_path, connection)
        assert sum(reader.reader == "lake-of-many" for reader in seen.readers) == count
        asked.append(sorted(calls))
    assert asked[0] == asked[1]
    delete(connection, [f"read-{number}" for number in range(8)])
    write_catalog(connection, {"job:all": None})


def test_sources_jobs_and_readers_are_shown_with_their_lag(connection, tmp_path):
    writer = TransactionalWriter(connection, "shop")
    writer.open()
    writer.begin()
    for n in range(10):
        writer.send("orders", None, b"%d" % n, b"v")
    writer.commit({"row": 10})
    writer.close()
    about = {"code": "c0de", "output": "totals", "inputs": {"orders": "orders"}, "determinism": "exact", "reason": ""}
    write_catalog(connection, {"job:totals": {"versions": {"1": about}, "current": "1"}})
    marker = Marker(
        "totals", "1", "uuid", 4, {"orders": {"orders": {0: 6}}}, {},
        {"totals": {0: Written(3, 1)}, "totals.quarantine": {0: Written(1, 1), 1: Written(2, 1)}},
        {"orders": {"orders": {0: Read(end=6, rows=4, late=2)}}},
    )  # fmt: skip
    append(connection, COMMITS, [(b"totals@1", msgspec.json.encode(marker))])
    write_reports(connection, [Report(reader="lakehouse", topic="orders", partition=0, end=8, rows=8)])

    seen = overview(tmp_path, connection)
    assert (seen.up, seen.node) == (False, None)
    assert [(s.source, s.position, s.records) for s in seen.sources] == [("shop", {"row": 10}, 10)]
    assert [(j.job, j.current, j.batch, j.lag, j.rows, j.late) for j in seen.jobs] == [("totals", True, 4, 5, 3, 2)]
    assert [(j.read, j.rejected, j.undecodable) for j in seen.jobs] == [(6, 1, 0)]
    assert [(r.reader, r.topic, r.lag, r.rows) for r in seen.readers] == [
        ("lakehouse", "orders", 3, 8),
        ("totals@1", "orders", 5, 4),
    ]
    with pytest.raises(UserError, match="no such job"):
        job_state(connection, "nothing")


def test_a_version_that_is_asked_for_is_there_before_any_process_speaks_of_it(connection, tmp_path):
    """For half a minute, while its driver started, nothing was seen of what `job reprocess` had said to start."""
    asked = Asked("sums", "2", "c0de", "sums.v2", 0)
    write_asked(tmp_path / "jobs" / "sums@2", asked)
    write_fixed(tmp_path / "jobs" / "sums@1", Fixed("sums", "1", "c0de", {}, "sums", 1, 4))
    assert tasks_of(tmp_path) == [TaskState("job sums@2", "asked for", error="the next `mainstem up` starts it")]
    with DirectoryLock(tmp_path):
        child = ChildState("spark-0de", "starting", 4711)
        save(tmp_path, UpState(1, str(tmp_path), connection.bootstrap, "http://127.0.0.1:1", 0.0, [child]))
        assert tasks_of(tmp_path) == [TaskState("job sums@1", "starting"), TaskState("job sums@2", "starting")]
        said = TaskState("job sums@1", "failed", error="no column")
        TasksWriter(tmp_path, 4711, "spark-0de").save([said])
        assert [(task.name, task.state) for task in tasks_of(tmp_path)] == [
            ("job sums@1", "failed"), ("job sums@2", "starting"),
        ]  # fmt: skip
        assert [(each.version, each.state) for each in job_state(connection, "sums", tasks_of(tmp_path))] == [
            ("1", "failed"), ("2", "starting"),
        ]  # fmt: skip
        (tmp_path / "jobs" / "sums@2" / "asked.json").write_text("torn")  # `up` says so at its next start
        assert tasks_of(tmp_path) == [said]
