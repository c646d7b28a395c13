"""A plain consumer of the spliced topic: it has what the current version wrote, through cutovers and back."""

import threading
import time

import msgspec
import pytest

import mainstem
from mainstem.audit.report import audit
from mainstem.client.catalog import read_catalog, topic_entries, with_cutover, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import Fenced
from mainstem.client.reader import RangeReader
from mainstem.client.splices import At, Pending, source_name
from mainstem.client.topics import delete, describe_config, ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.client.writer import TransactionalWriter, read_source
from mainstem.core import TopicPartition
from mainstem.log import LogConfig
from mainstem.process import splice as module
from mainstem.process.splice import NotSpliced, Splice, position_of, splices_of
from tests.support.splices import FILLER, compact, ends, move, place, records, table, write, write_job

NUMBERS = iter(range(1000))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.01)


@pytest.fixture(scope="module")
def tidy():
    """A log that looks for what may be compacted all the time."""
    with mainstem.embedded(log=LogConfig(housekeeping_interval_ms=20)) as log:
        yield Connection(log.bootstrap)


@pytest.fixture
def job():
    return f"spliced{next(NUMBERS)}"


class Running:
    """A splice in a thread of its own. `until` it stands somewhere."""

    def __init__(self, connection, job):
        self.connection, self.name, self.stop, self.idle = connection, f"{job}.all", threading.Event(), []
        self.splice = Splice(self.name, job, connection)
        self.splice.on_idle = lambda what, _: self.idle.append(what)
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.splice.run(self.stop)
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def until(self, done):
        for _ in range(3000):
            if done(position_of(self.connection, self.name)):
                return
            assert self.error is None, self.error
            self.stop.wait(0.01)
        raise TimeoutError(position_of(self.connection, self.name))

    def follow(self, version, topic):
        """Until it has passed on all of a topic, as that of a version."""
        wanted = ends(self.connection, topic)[topic]
        self.until(lambda at: place(at) == (version, topic, wanted))


def test_a_table_has_what_the_current_version_says(log_connection, job, monkeypatch):
    monkeypatch.setattr(module, "RECORDS_OF_A_TRANSACTION", 2)
    write_job(log_connection, job, "changelog")
    second = f"{job}.v2"
    write(log_connection, job, ("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("e", None))
    write(log_connection, second, ("a", 1), ("b", 2), ("d", 2), ("f", 2), ("g", 2))
    with Running(log_connection, job) as running:
        running.follow("1", job)
        assert records(log_connection, running.name) == records(log_connection, job)
        move(log_connection, job, "2")
        running.follow("2", second)
        assert table(log_connection, running.name) == table(log_connection, second)
        changes = records(log_connection, running.name)[6:]
        assert changes == [("b", 2), ("c", None), ("d", 2), ("f", 2), ("g", 2)]  # what was equal is not written again
        write(log_connection, job, ("b", 9), ("h", 9))  # it goes on
        write(log_connection, second, ("a", 3))
        running.follow("2", second)
        assert table(log_connection, running.name) == table(log_connection, second)
        move(log_connection, job, "1")
        running.follow("1", job)
        assert table(log_connection, running.name) == table(log_connection, job)
    entry = topic_entries(read_catalog(log_connection))[running.name]
    assert (entry.kind, entry.producer) == ("changelog", source_name(running.name))
    assert describe_config(log_connection, running.name)["cleanup.policy"] == "compact"
    assert splices_of(read_catalog(log_connection), job) == [running.name]


class Killed(Exception):
    """Of a splice, by its test."""


def killed(connection, job, step, number):
    """Run a splice until it comes to a step for the so many-th time."""
    left = number

    def trace(name):
        nonlocal left
        left -= name == step
        if left == 0:
            raise Killed

    with pytest.raises(Killed):
        Splice(f"{job}.all", job, connection, trace=trace).run(threading.Event())


def test_a_row_that_consumers_have_and_no_version_has_any_more_is_taken_away(tidy, job):
    """It was passed on, then deleted by the old version, and cleaned: that one, looked at again, did not have it."""
    write_job(tidy, job, "changelog")
    second = f"{job}.v2"
    write(tidy, job, ("gone", 1), ("b", 1))
    with Running(tidy, job) as running:
        running.follow("1", job)
    write(tidy, job, ("gone", None), ("b", 2))
    compact(tidy, job)
    write(tidy, second, ("b", 3))
    move(tidy, job, "2")
    with Running(tidy, job) as running:
        running.follow("2", second)
    assert table(tidy, running.name) == table(tidy, second) == {"b": 3}
    assert [each[1] for each in books(tidy, running.name, job, second)] == ["compacted", "balanced"]


def test_rows_that_differ_are_all_written_where_logs_were_compacted_after_a_kill(tidy, job, monkeypatch):
    """It passed over as many of the rows that were left as it had written before it was killed."""
    monkeypatch.setattr(module, "RECORDS_OF_A_TRANSACTION", 5)
    write_job(tidy, job, "changelog")
    second, name = f"{job}.v2", f"{job}.all"
    write(tidy, job, *((f"k{n}", 1) for n in range(10)))
    write(tidy, second, ("a", 2), ("k9", 2))
    with Running(tidy, job) as running:
        running.follow("1", job)
    move(tidy, job, "2")
    killed(tidy, job, "differed", 2)
    assert position_of(tidy, name).move.written == 5  # of 11
    write(tidy, job, *((f"k{n}", 3) for n in range(5)))  # it goes on
    for topic in (job, name):
        compact(tidy, topic)
    with Running(tidy, job) as running:
        running.follow("2", second)
    found = table(tidy, name)
    assert found == table(tidy, second) == {"a": 2, "k9": 2}
    at, state = position_of(tidy, name), read_source(tidy, source_name(name))
    assert at.told == state.written[name][0]
    assert at.other.count == 12  # with the filler that is no row of it


def test_a_row_of_both_versions_is_not_taken_away_because_the_new_one_has_written_it_anew(tidy, job):
    write_job(tidy, job, "changelog")
    second = f"{job}.v2"
    write(tidy, job, ("a", 1), ("b", 1))
    write(tidy, second, ("a", 1), ("b", 2))
    with Running(tidy, job) as running:
        running.follow("1", job)
    move(tidy, job, "2")
    killed(tidy, job, "differed", 1)
    write(tidy, second, ("a", 3))
    compact(tidy, second)
    with Running(tidy, job) as running:
        running.follow("2", second)
    assert [row for row in records(tidy, running.name) if row[0] != FILLER] == [("a", 1), ("b", 1), ("a", 3), ("b", 2)]


def test_a_stream_has_each_input_once(log_connection, job):
    write_job(log_connection, job, "stream")
    second = f"{job}.v2"
    write(log_connection, job, ("a", 1), ("b", 1))
    with Running(log_connection, job) as running:
        running.follow("1", job)
        write(log_connection, job, ("c", 1))
        write(log_connection, second, ("a", 2), ("b", 2), ("c", 2))
        move(log_connection, job, "2", at_one_position=True)
        write(log_connection, job, ("d", 1))  # after the position: the other one has it, too
        write(log_connection, second, ("d", 2))
        running.follow("2", second)
        move(log_connection, job, "1", at_one_position=True)
        write(log_connection, job, ("e", 1))
        running.follow("1", job)
    assert records(log_connection, running.name) == [("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 1)]
    with Running(log_connection, job) as again:
        move(log_connection, job, "2")  # without a splice in the project nobody waits for one
        again.thread.join(30)
        assert isinstance(again.error, NotSpliced)
        assert "without a position at which both had read the same" in str(again.error)
    assert records(log_connection, running.name)[5:] == []
    move(log_connection, job, "1")  # as the splice says
    write(log_connection, job, ("f", 1))
    with Running(log_connection, job) as back:
        back.follow("1", job)
    assert records(log_connection, running.name)[5:] == [("f", 1)]


def test_a_stream_that_went_on_before_its_cutover_was_written_is_not_passed_on_twice(log_connection, job):
    write_job(log_connection, job, "stream")
    write(log_connection, job, ("a", 1))
    before = {job: {0: 0}, f"{job}.v2": {0: 0}}
    with Running(log_connection, job) as running:
        running.follow("1", job)
        write_catalog(log_connection, with_cutover(read_catalog(log_connection), {job: "2"}, {}, 0, {job: before}))
        running.thread.join(30)
    assert "version 1 went on before its cutover was written" in str(running.error)


def test_marks_of_transactions_and_what_was_aborted_are_not_what_a_stream_went_on_with(log_connection, job):
    """The seam is behind the last record; the splice had gone on to where the topic ended, and stopped for good."""
    write_job(log_connection, job, "stream")
    for key, counts in ((b"a", 1), (b"aborted", 0)):
        transaction = SharedTransaction(log_connection, f"driver-{job}", timeout_ms=20_000)
        transaction.fence()
        with transaction.writer(transaction.begin()) as writer:
            writer.append(TopicPartition(job, 0), [key], [b"1"], None, int(time.time() * 1000))
            found = {partition: each.count for partition, each in writer.finish().items()}
        transaction.commit(found) if counts else transaction.abort()
        transaction.close()
    write(log_connection, f"{job}.v2", ("a", 1), ("b", 2))
    seam = {job: {0: 1}, f"{job}.v2": {0: 1}}
    with Running(log_connection, job) as running:
        running.follow("1", job)
        assert position_of(log_connection, running.name).offsets == {0: 4}
        write_catalog(log_connection, with_cutover(read_catalog(log_connection), {job: "2"}, {}, 0, {job: seam}))
        running.follow("2", f"{job}.v2")
    assert records(log_connection, running.name) == [("a", 1), ("b", 2)]


def test_headers_and_partitions_are_kept(log_connection, job):
    write_job(log_connection, job, "stream")
    ensure_topic(log_connection, f"{job}.all", 1)
    writer = TransactionalWriter(log_connection, f"writer-{job}")
    writer.open()
    writer.begin()
    writer.send(job, 0, None, b"x", [("one", b"1")])
    writer.commit({})
    writer.close()
    with Running(log_connection, job) as running:
        running.follow("1", job)
    reader = RangeReader(log_connection, running.name, deleted="error")
    (message,) = reader.read({}, ends(log_connection, running.name)[running.name])
    reader.close()
    assert (message.key(), message.value(), message.headers()) == (None, b"x", [("one", b"1")])


def test_it_waits_for_the_jobs_first_start(log_connection, job):
    with Running(log_connection, job) as running:
        while not running.idle:
            running.stop.wait(0.01)
        write_job(log_connection, job, "stream")
        write(log_connection, job, ("a", 1))
        running.follow("1", job)
    assert running.idle == [f"job {job} has not started", ""]  # told once


def test_what_cannot_be_spliced_is_told(log_connection, job):
    write_job(log_connection, job, "stream")
    ensure_topic(log_connection, f"{job}.all", 1)
    write(log_connection, f"{job}.all", ("a", 1))
    with pytest.raises(NotSpliced, match="expected one without records"):
        Splice(f"{job}.all", job, log_connection).run(threading.Event())
    with pytest.raises(NotSpliced, match=f"topic {job}.v2: expected that nobody else writes it, found job {job}@2$"):
        Splice(f"{job}.v2", job, log_connection).run(threading.Event())
    at = At("1", f"{job}.gone", {0: 0})
    writer = TransactionalWriter(log_connection, source_name(f"{job}.all"))
    writer.open()
    writer.begin()
    writer.commit(msgspec.to_builtins(at, str_keys=True))
    writer.close()
    with pytest.raises(NotSpliced, match=f"topic {job}.gone: expected one that is passed on, found none"):
        Splice(f"{job}.all", job, log_connection).run(threading.Event())


def test_a_spliced_topic_that_was_deleted_is_one_that_is_written_to(log_connection, job):
    write_job(log_connection, job, "changelog")
    write(log_connection, job, ("a", 1))
    with Running(log_connection, job) as running:
        running.follow("1", job)
    delete(log_connection, [running.name])
    write(log_connection, job, ("b", 1))
    deleted = f"^topic {running.name}: expected one that is written to, found none: it was deleted$"
    with pytest.raises(NotSpliced, match=deleted):
        Splice(running.name, job, log_connection).run(threading.Event())
    write(log_connection, f"{job}.v2", ("a", 2))
    killed_at = At("1", job, {0: 1}, Pending("2", f"{job}.v2", {0: 1}, 0))
    writer = TransactionalWriter(log_connection, source_name(running.name))
    writer.open()
    writer.begin()
    writer.commit(msgspec.to_builtins(killed_at, str_keys=True))
    writer.close()
    with pytest.raises(NotSpliced, match=deleted):
        Splice(running.name, job, log_connection).run(threading.Event())


def test_of_two_processes_that_run_a_splice_the_older_one_ends(log_connection, job):
    write_job(log_connection, job, "stream")
    write(log_connection, job, ("a", 1))
    with Running(log_connection, job) as first:
        first.follow("1", job)
        with Running(log_connection, job) as second:
            second.until(lambda at: at is not None)
            write(log_connection, job, ("b", 1))
            second.follow("1", job)
            first.thread.join(30)
    assert isinstance(first.error, Fenced) or first.error is None
    assert records(log_connection, first.name) == [("a", 1), ("b", 1)]


def books(connection, splice, *topics):
    """What the audit says of a splice: partition, verdict, expected, found and why."""
    lines = [line for line in audit(connection, topics) if line.name == f"splice {splice}"]
    return [(str(line.partition), line.verdict.value, line.expected, line.found, line.detail) for line in lines]


def test_the_books_of_a_stream_balance_through_a_cutover_and_back(log_connection, job):
    """The audit balanced while a splice had passed on 2,030 of 21,000 records: nobody asked it."""
    write_job(log_connection, job, "stream")
    second, name = f"{job}.v2", f"{job}.all"
    write(log_connection, job, ("a", 1), ("b", 1))
    nothing = "it has said nothing yet: 2 records to go"
    assert books(log_connection, name, job) == [(f"{job}-0", "in flight", 0, 0, nothing)]
    with Running(log_connection, job) as running:
        running.follow("1", job)
        assert books(log_connection, name, job, second, name) == [(f"{job}-0", "balanced", 2, 2, "")]
        write(log_connection, second, ("a", 2), ("b", 2))
        move(log_connection, job, "2", at_one_position=True)
        write(log_connection, second, ("c", 2))
        running.follow("2", second)
    write(log_connection, job, ("c", 1))  # it goes on, and nobody passes that on
    write(log_connection, second, ("d", 2), ("e", 2))
    assert books(log_connection, name, job, second, name) == [
        (f"{job}-0", "balanced", 2, 2, "passed on until version 2 was"),
        (f"{second}-0", "in flight", 1, 1, "2 records to go"),
    ]
    move(log_connection, job, "1", at_one_position=True)
    assert books(log_connection, name, second)[0][4] == "2 records to go"
    with Running(log_connection, job) as running:
        running.follow("1", job)
    found = books(log_connection, name, job, second, name)
    assert [each[1:4] for each in found] == [("balanced", 2, 2), ("balanced", 0, 0), ("balanced", 3, 3)]


def test_the_books_of_a_table_have_the_rows_that_differ_beside_what_is_passed_on(log_connection, job, monkeypatch):
    monkeypatch.setattr(module, "RECORDS_OF_A_TRANSACTION", 2)
    write_job(log_connection, job, "changelog")
    second, name = f"{job}.v2", f"{job}.all"
    write(log_connection, job, ("a", 1), ("b", 1), ("c", 1))
    write(log_connection, second, ("a", 2), ("b", 2), ("d", 2))
    with Running(log_connection, job) as running:
        running.follow("1", job)
        move(log_connection, job, "2")
        running.follow("2", second)
        write(log_connection, second, ("e", 2))
        running.follow("2", second)
    assert books(log_connection, name, job, second) == [
        (f"{job}-0", "balanced", 3, 3, "passed on until version 2 was"),
        (f"{second}-0", "balanced", 1, 1, ""),
    ]
    at = position_of(log_connection, name)
    assert at.other.count == 4  # a, b, c and d


def test_the_books_of_a_splice_of_an_earlier_version_begin_where_it_goes_on(log_connection, job):
    write_job(log_connection, job, "stream")
    name = f"{job}.all"
    write(log_connection, job, ("a", 1), ("b", 1))
    with Running(log_connection, job) as running:
        running.follow("1", job)
    writer = TransactionalWriter(log_connection, source_name(name))
    writer.open()
    writer.begin()
    writer.commit({"version": "1", "output": job, "offsets": {"0": 2}, "move": None})  # as it was written before
    writer.close()
    assert books(log_connection, name, job) == [(f"{job}-0", "balanced", 0, 0, "")]
    write(log_connection, job, ("c", 1))
    assert books(log_connection, name, job) == [(f"{job}-0", "in flight", 0, 0, "1 records to go")]
    with Running(log_connection, job) as running:
        running.follow("1", job)
    assert books(log_connection, name, job) == [(f"{job}-0", "balanced", 1, 1, "")]


def test_a_splice_that_does_not_follow_a_cutover_is_in_flight(log_connection, job):
    write_job(log_connection, job, "stream")
    write(log_connection, job, ("a", 1))
    with Running(log_connection, job) as running:
        running.follow("1", job)
    move(log_connection, job, "2", at_one_position=True)
    told = "it has not followed the cutover to version 2"
    assert books(log_connection, f"{job}.all", job) == [(f"{job}-0", "in flight", 1, 1, told)]
