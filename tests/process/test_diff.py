"""Where two versions can be compared as they are, where not, and what the answer says of a difference's cause."""

import json
import time
from contextlib import contextmanager

import msgspec
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from mainstem.client.append import append
from mainstem.client.catalog import read_catalog, write_catalog
from mainstem.client.internal import COMMITS, job_key
from mainstem.client.progress import Marker, Read
from mainstem.client.transaction import SharedTransaction
from mainstem.core import TopicPartition, UserError
from mainstem.core.locks import DirectoryLock
from mainstem.process import diff as module
from mainstem.process import readiness
from mainstem.process.analysis import LATE_ROWS, ROWS_BETWEEN
from mainstem.process.cutover import NotReached, Waiting
from mainstem.process.diff import Diff, NotComparable, diff
from mainstem.process.landing import NotLanded
from mainstem.process.planting import Stand
from mainstem.process.versions import Fixed, write_fixed
from tests.support.versions import write_versions

NUMBERS = iter(range(1000))


@pytest.fixture
def job(log_connection):
    """A job with two versions, which read one topic and have written tables."""
    name = f"diffed{next(NUMBERS)}"
    write_versions(log_connection, name)
    kind = {"kind": "changelog", "key": ["k"]}
    write_catalog(log_connection, {f"topic:{name}": kind, f"topic:{name}.v2": kind})
    return name


def write_rows(connection, job, left, right):
    for topic, rows in ((job, left), (f"{job}.v2", right)):
        append(connection, topic, [(key.encode(), json.dumps(row).encode()) for key, row in rows.items()])


def stand(
    connection,
    data,
    job,
    version,
    position,
    *,
    closed=0,
    watermark=None,
    late=0,
    event_time=0,
    end=None,
    source="orders",
    rows=None,
):
    """A version has read up to a position in its batch 7, as the log and Spark's files say."""
    count = position if rows is None else rows
    read = {"o": {source: {0: Read(end=position, rows=count - late, late=late, hash=count * 11)}}}
    output = job if version == "1" else f"{job}.v{version}"
    ends = {} if end is None else {output: {0: end}}
    marker = Marker(
        job, version, "uuid", 7, {"o": {source: {0: position}}}, read=read, event_time=event_time, ends=ends
    )
    append(connection, COMMITS, [(job_key(job, version).encode(), msgspec.json.encode(marker))])
    for name, text in (
        ("offsets", f'{{"batchWatermarkMs":{closed}}}\n{{"{source}":{{"0":{position}}}}}'),
        ("commits", json.dumps({"nextBatchWatermarkMs": closed if watermark is None else watermark})),
    ):
        path = data / "jobs" / job_key(job, version) / "checkpoint" / name / "7"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"v1\n{text}")


def test_what_is_at_one_position_and_idle_is_compared_as_it_is(log_connection, tmp_path, job):
    write_rows(log_connection, job, {"a": {"n": 1}, "b": {"n": 2}}, {"a": {"n": 1}, "b": {"n": 3}, "c": {"n": 4}})
    for version in "12":
        stand(log_connection, tmp_path, job, version, 5, closed=40)
    found = diff(log_connection, tmp_path, job, "1", "2")
    assert isinstance(found, Diff)
    assert (found.at, found.exact, found.why) == ({"orders": {0: 5}}, True, "")
    assert (found.left.output, found.right.ends, found.right.batch) == (job, {0: 3}, 7)
    assert (found.equal, found.added, found.removed, found.changed) == (1, 1, 0, 1)
    assert diff(log_connection, tmp_path, job, "2", "1", limit=0).removed == 1


def test_each_topic_that_a_job_writes_can_be_compared(log_connection, tmp_path, job):
    state = f"{job}.state"
    write_versions(log_connection, job, also=[state])
    kind = {"kind": "changelog", "key": ["k"]}
    write_catalog(log_connection, {f"topic:{topic}": kind for topic in (state, f"{state}.v2")})
    write_rows(log_connection, job, {"a": {"n": 1}}, {"a": {"n": 1}})
    for topic, number in ((state, 5), (f"{state}.v2", 6)):
        append(log_connection, topic, [(b"a", json.dumps({"n": number}).encode())])
    for version in "12":
        stand(log_connection, tmp_path, job, version, 5, closed=40)
    assert diff(log_connection, tmp_path, job, "1", "2").equal == 1
    found = diff(log_connection, tmp_path, job, "1", "2", topic=state)
    assert (found.left.output, found.right.output, found.equal, found.changed) == (state, f"{state}.v2", 0, 1)
    with pytest.raises(UserError, match=f"job {job}@1: expected one of the topics {job}, {state}, found other$"):
        diff(log_connection, tmp_path, job, "1", "2", topic="other")


@pytest.mark.parametrize("difference", [{"position": 6}, {"closed": 30}, {"watermark": 50}])
def test_what_is_not_is_compared_only_where_somebody_runs_it(log_connection, tmp_path, job, difference):
    stand(log_connection, tmp_path, job, "1", 5, closed=40)
    stand(log_connection, tmp_path, job, "2", **({"position": 5, "closed": 40} | difference))
    with pytest.raises(NotComparable, match=f"have not read up to one position, and {job}@1 does not run"):
        diff(log_connection, tmp_path, job, "1", "2")
    for version in "12":
        fixed = Fixed(job, version, "c0de", {}, "x", 1, 4)
        write_fixed(tmp_path / "jobs" / job_key(job, version), fixed)
    with DirectoryLock(tmp_path / "spark" / "c0de"):  # a driver, which does not answer
        if "position" in difference:
            with pytest.raises(NotReached, match=f"job {job}@1 has 1 offsets to go; both go on"):
                diff(log_connection, tmp_path, job, "1", "2", waiting=Waiting(timeout_seconds=0))
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "held_at_one_position", refuse)
            with pytest.raises(NotLanded, match=f"{job} 1 2"):
                diff(log_connection, tmp_path, job, "1", "2")


def refuse(_, jobs, **__):
    raise NotLanded(" ".join(f"{job} {' '.join(versions)}" for job, versions in jobs.items()))


def test_what_there_is_not_is_told(log_connection, tmp_path, job):
    with pytest.raises(UserError, match=f"job {job}@3 has never started on this log"):
        diff(log_connection, tmp_path, job, "1", "3")
    with pytest.raises(UserError, match="expected two versions, found 1 twice"):
        diff(log_connection, tmp_path, job, "1", "1")
    write_catalog(log_connection, {f"topic:{job}": {"kind": "stream"}})
    for version in "12":
        stand(log_connection, tmp_path, job, version, 5)
    with pytest.raises(UserError, match="expected two tables or two streams"):
        diff(log_connection, tmp_path, job, "1", "2")


def test_what_a_difference_may_come_from_is_told(log_connection, tmp_path, job):
    def why(**about):
        entry = read_catalog(log_connection)[f"job:{job}"]
        entry["versions"]["2"] |= about
        write_catalog(log_connection, {f"job:{job}": entry})
        found = diff(log_connection, tmp_path, job, "1", "2")
        assert found.exact is not bool(found.why)
        return found.why

    for version in "12":
        stand(log_connection, tmp_path, job, version, 5)
    totals = f"an aggregation: {ROWS_BETWEEN}"
    assert [why(determinism="batch-dependent", reason=each) for each in (totals, f"{totals}; {LATE_ROWS}")] == ["", ""]
    assert why(reason=f"an aggregation: {LATE_ROWS}") == ""  # none was late
    stand(log_connection, tmp_path, job, "2", 5, late=2)
    assert why() == "version 2 is batch-dependent: 2 of the rows that it read came late"
    stand(log_connection, tmp_path, job, "2", 5, event_time=99)
    for version in "12":
        entry = read_catalog(log_connection)[f"job:{job}"]
        entry["versions"][version]["windows_by"] = "at"
        write_catalog(log_connection, {f"job:{job}": entry})
    assert why() == "a heartbeat has closed windows of version 2 that version 1 has open still"
    assert why(windows_by="other") == ""
    assert why(reason="it asks for the time (now)") == "version 2 is batch-dependent: it asks for the time (now)"
    told = "at least once: the rows of up to 5 seconds come again"
    assert why(guarantee=told) == f"version 2 is there {told}"
    assert why(inputs={"o": "orders2"}) == "they read other topics: orders and orders2"


def commit_next_batch(connection, job):
    """Version 1 commits its batch 8, as the sink does: a row and the marker at once."""
    read = {"o": {"orders": {0: Read(end=6, rows=6)}}}
    marker = Marker(job, "1", "uuid", 8, {"o": {"orders": {0: 6}}}, read=read, ends={job: {0: 3}})
    transaction = SharedTransaction(connection, f"driver-{job}", timeout_ms=20_000)
    transaction.fence()
    now = int(time.time() * 1000)
    with transaction.writer(transaction.begin()) as writer:
        writer.append(TopicPartition(job, 0), [b"new"], [b'{"n": 9}'], None, now)
        key = job_key(job, "1").encode()
        writer.append(TopicPartition(COMMITS, 0), [key], [msgspec.json.encode(marker)], None, now)
        counts = {partition: each.count for partition, each in writer.finish().items()}
    transaction.commit(counts)
    transaction.close()


@pytest.mark.parametrize("says_ends", [True, False])
def test_a_batch_that_comes_while_outputs_are_asked_for_their_ends_is_no_difference(
    log_connection, tmp_path, job, monkeypatch, says_ends
):
    rows = {"a": {"n": 1}, "b": {"n": 2}}
    write_rows(log_connection, job, rows, rows)
    for version in "12":
        stand(log_connection, tmp_path, job, version, 5, end=2 if says_ends else None)
    real, asked = readiness.stable_offsets, []

    def ends(connection, topics):
        asked.append(topics)
        if len(asked) == 2:  # the first look sees that the versions are there
            commit_next_batch(connection, job)
        return real(connection, topics)

    monkeypatch.setattr(readiness, "stable_offsets", ends)
    if not says_ends:  # as it was before batches did
        with pytest.raises(NotComparable):
            diff(log_connection, tmp_path, job, "1", "2")
        return
    found = diff(log_connection, tmp_path, job, "1", "2")
    assert (found.exact, found.removed, found.equal, found.left.ends) == (True, 0, 2, {0: 2})


@pytest.mark.parametrize("says_ends", [True, False])
def test_a_version_that_is_held_and_goes_on_does_not_add_to_what_is_compared(
    log_connection, tmp_path, job, monkeypatch, says_ends
):
    """Whoever holds it was stopped for minutes between the two questions."""
    rows = {"a": {"n": 1}, "b": {"n": 2}}
    write_rows(log_connection, job, rows, rows)
    for version, watermark in (("1", 0), ("2", 50)):
        stand(log_connection, tmp_path, job, version, 5, watermark=watermark, end=2 if says_ends else None)
        write_fixed(tmp_path / "jobs" / job_key(job, version), Fixed(job, version, "c0de", {}, "x", 1, 4))
    real, is_held = readiness.stable_offsets, []

    @contextmanager
    def hold(data, versions, **_):
        is_held.append(True)
        yield {job: {version: Stand(7, {}, 0, 0, True) for version in "12"}}

    def ends(connection, topics):
        if is_held:
            commit_next_batch(connection, job)
        return real(connection, topics)

    monkeypatch.setattr(module, "held_at_one_position", hold)
    monkeypatch.setattr(readiness, "stable_offsets", ends)
    with DirectoryLock(tmp_path / "spark" / "c0de"):
        if not says_ends:
            with pytest.raises(NotLanded, match=f"job {job}: a version went on while its output was asked for its end"):
                diff(log_connection, tmp_path, job, "1", "2")
            return
        found = diff(log_connection, tmp_path, job, "1", "2")
    assert (found.exact, found.removed, found.equal, found.left.ends) == (True, 0, 2, {0: 2})


def test_records_of_an_input_that_one_version_alone_has_read_are_told(log_connection, tmp_path, job):
    source = f"{job}.orders"
    write_versions(log_connection, job, source=source)
    append(log_connection, source, [(b"k", b"%d" % n) for n in range(5)])
    write_rows(log_connection, job, {"a": {"n": 1}, "b": {"n": 2}}, {"b": {"n": 2}})
    for version, rows in (("1", 5), ("2", 2)):  # the second one has begun behind what is deleted
        stand(log_connection, tmp_path, job, version, 5, source=source, rows=rows)
    client = AdminClient(log_connection.confluent())
    for deleted in client.delete_records([ConfluentPartition(source, 0, 3)]).values():
        deleted.result()
    found = diff(log_connection, tmp_path, job, "1", "2")
    told = f"the first records of topic {source} were deleted: a version that began later has not read them"
    assert (found.exact, found.why) == (False, told)
    stand(log_connection, tmp_path, job, "1", 5, source=source, rows=2)  # it has begun as late
    found = diff(log_connection, tmp_path, job, "1", "2")
    assert (found.exact, found.why) == (True, "")
