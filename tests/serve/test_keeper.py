"""The keeper against a real log: what it reads, how it goes on, what it does with an index that does not fit."""

import shutil
import threading

import msgspec
from confluent_kafka.admin import NewPartitions

from mainstem.client.append import append
from mainstem.client.basis import reaches
from mainstem.client.catalog import TopicEntry
from mainstem.client.partitioner import partition_for
from mainstem.client.topics import admin, delete, ensure_topic
from mainstem.serve import keeper
from mainstem.serve.config import ViewConfig
from mainstem.serve.engines import Engine
from mainstem.serve.errors import IndexUnavailable
from mainstem.serve.index import Applied
from mainstem.serve.keeper import Keeper, Lost, Opened, Reached
from mainstem.serve.key_value import KeyValueIndex
from tests.support.waiting import wait_until


class Kept:
    """A keeper in a thread, and the news that it has told."""

    def __init__(self, fleet, directory, **settings):
        entries = {fleet.planes: TopicEntry("changelog", ("tailnum",))}
        engine = Engine(ViewConfig("key-value", fleet.planes), {fleet.planes: fleet.planes}, entries, "100MB")
        self.news, self.stop = [], threading.Event()
        self.keeper = Keeper("view v@n", engine, fleet.connection, directory, tell=self.news.append, **settings)
        self.thread = threading.Thread(target=self.keeper.run, args=(self.stop,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def opened(self):
        return [each for each in self.news if isinstance(each, Opened)]

    def reached(self, topic):
        positions = [each.position for each in self.news if isinstance(each, Opened | Reached)]
        return positions[-1].get(topic, {}) if positions else {}

    def wait(self, basis):
        ((topic, wanted),) = basis.positions.items()
        wait_until(lambda: wanted.items() <= self.reached(topic).items(), "it is applied")


def rows_of(directory):
    index = KeyValueIndex.open(directory, key_columns=["tailnum"], versions=False)
    found = {each.row["tailnum"]: each.row["seats"] for each in index.scan(limit=1000).rows}
    applied = index.applied
    index.close()
    return found, applied


def test_it_tells_what_is_visible_and_goes_on_where_it_was(fleet, tmp_path):
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1), ("N2", "x", 2)))
    assert isinstance(kept.news[-1], Lost)
    rows, before = rows_of(tmp_path)
    assert rows == {"N1": 1, "N2": 2}
    basis = fleet.write(fleet.planes, ("N1", "x", 11), ("N2", None, None))
    with Kept(fleet, tmp_path) as kept:
        kept.wait(basis)
        assert kept.opened()[0].position == before.position
    rows, applied = rows_of(tmp_path)
    assert rows == {"N1": 11}
    books = applied.reads[fleet.planes].values()
    assert (sum(each.rows for each in books), sum(each.tombstones for each in books)) == (3, 1)


def test_nobody_has_seen_anything_beyond_the_upper_bound(fleet, tmp_path, monkeypatch):
    seen = []
    apply = KeyValueIndex.apply

    def applied(index, changes, to):
        seen.append((kept.keeper.upper, to.records, to.position))
        apply(index, changes, to)

    monkeypatch.setattr(KeyValueIndex, "apply", applied)
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 2)))
    assert seen
    for upper, records, position in seen:
        assert upper == records == {fleet.planes: {p: end for p, end in position[fleet.planes].items() if end}}


def test_large_records_are_applied_in_parts(fleet, tmp_path, monkeypatch):
    """Decoded they take a multiple of their bytes."""
    monkeypatch.setattr(keeper, "_MOST_BYTES", 2000)
    sizes, apply = [], KeyValueIndex.apply

    def applied(index, changes, to):
        sizes.append(len(changes))
        apply(index, changes, to)

    monkeypatch.setattr(KeyValueIndex, "apply", applied)
    basis = fleet.write(fleet.planes, *((f"N{n}", "x" * 500, n) for n in range(100)))
    with Kept(fleet, tmp_path) as kept:
        kept.wait(basis)
    assert max(sizes) == 4
    rows, found = rows_of(tmp_path)
    assert rows == {f"N{n}": n for n in range(100)}
    assert sum(each.rows for each in found.reads[fleet.planes].values()) == 100


def test_a_topic_that_is_not_there_is_waited_for(fleet, tmp_path):
    delete(fleet.connection, [fleet.planes])
    with Kept(fleet, tmp_path) as kept:
        wait_until(lambda: kept.keeper.state.state == "idle", "it waits")
        assert "no such topic" in kept.keeper.state.error
        ensure_topic(fleet.connection, fleet.planes, 2)
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))


def test_partitions_that_are_added_are_followed_at_once_where_somebody_waits_for_them(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 1e9)
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
        add_partitions(fleet.connection, fleet.planes, 4)
        new = in_partition(3, 4)
        basis = fleet.write(fleet.planes, (new, "x", 2))
        assert list(basis.positions[fleet.planes]) == [3]
        assert 3 not in kept.reached(fleet.planes)
        kept.keeper.look = True
        kept.wait(basis)
    assert rows_of(tmp_path)[0] == {"N1": 1, new: 2}


def test_partitions_that_are_added_are_followed_in_time(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 0.0)
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
        add_partitions(fleet.connection, fleet.planes, 4)
        kept.wait(fleet.write(fleet.planes, (in_partition(3, 4), "x", 2)))


def test_a_topic_that_is_made_anew_while_it_is_followed_is_read_anew(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "_LOOK_SECONDS", 0.0)
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
        delete(fleet.connection, [fleet.planes])
        ensure_topic(fleet.connection, fleet.planes, 2)
        kept.wait(fleet.write(fleet.planes, *[("N1", "x", number) for number in range(5)], ("N2", "x", 9)))
    assert rows_of(tmp_path)[0] == {"N1": 4, "N2": 9}


def add_partitions(connection, topic, count):
    for future in admin(connection).create_partitions([NewPartitions(topic, count)]).values():
        future.result(60)


def in_partition(partition, count):
    return next(name for name in (f"P{n}" for n in range(1000)) if partition_for(name.encode(), count) == partition)


def test_an_index_of_other_topics_or_of_what_the_log_has_not_is_built_anew(fleet, tmp_path):
    basis = fleet.write(fleet.planes, ("N1", "x", 1))
    with Kept(fleet, tmp_path) as kept:
        kept.wait(basis)
    _, applied = rows_of(tmp_path)
    reads = applied.reads[fleet.planes]
    beyond = {p: msgspec.structs.replace(read, end=read.end + 10) for p, read in reads.items()}
    for wrong in (
        Applied("another log", applied.topic_ids, applied.reads),
        Applied(applied.log, {fleet.planes: "another"}, applied.reads),
        Applied(applied.log, applied.topic_ids, {fleet.planes: beyond}),
    ):
        index = KeyValueIndex.open(tmp_path, key_columns=["tailnum"], versions=False)
        index.apply([], wrong)
        index.close()
        with Kept(fleet, tmp_path) as kept:
            kept.wait(basis)
        assert rows_of(tmp_path) == ({"N1": 1}, applied)


def test_a_lost_index_is_restored_from_its_snapshot_and_the_tail(fleet, tmp_path):
    index, snapshots = tmp_path / "index", tmp_path / "snapshots"
    with Kept(fleet, index, snapshots=snapshots, snapshot_every_s=0.2) as kept:
        kept.wait(fleet.write(fleet.planes, *((f"N{n}", "x", n) for n in range(20))))
        wait_until(lambda: list(snapshots.glob("0*/manifest.json")), "a snapshot is there")
    for path in sorted(index.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    index.rmdir()
    basis = fleet.write(fleet.planes, ("N3", "x", 33))
    with Kept(fleet, index, snapshots=snapshots) as kept:
        kept.wait(basis)
        assert sum(kept.opened()[0].position[fleet.planes].values()) > 0  # it did not begin with the log
    assert rows_of(index)[0] == {f"N{n}": n for n in range(20)} | {"N3": 33}


def test_an_error_is_told_and_the_view_goes_on(fleet, tmp_path, monkeypatch):
    failures = [OSError("the disk has gone")]
    apply = KeyValueIndex.apply

    def failing(index, changes, to):
        if failures:
            raise failures.pop()
        apply(index, changes, to)

    monkeypatch.setattr(KeyValueIndex, "apply", failing)
    with Kept(fleet, tmp_path) as kept:
        basis = fleet.write(fleet.planes, ("N1", "x", 1))
        wait_until(lambda: kept.keeper.state.state == "waiting", "it has failed")
        assert kept.keeper.state.error == "OSError: the disk has gone"
        kept.wait(basis)
    assert rows_of(tmp_path)[0] == {"N1": 1}


def test_records_of_an_open_transaction_are_not_applied(fleet, tmp_path):
    from mainstem.client.writer import TransactionalWriter

    writer = TransactionalWriter(fleet.connection, f"s{fleet.planes}")
    writer.open()
    with Kept(fleet, tmp_path) as kept:
        writer.begin()
        writer.send(fleet.planes, 0, b"N9", None)
        writer._flush()
        after = append(fleet.connection, fleet.planes, [(b"N1", None)])
        wait_until(kept.opened, "it is open")
        assert not after.items() & kept.reached(fleet.planes).items() or 0 not in after
        writer.abort()
        wait_until(lambda: after.items() <= kept.reached(fleet.planes).items(), "what follows is applied")
    writer.close()


def test_an_open_transaction_does_not_keep_an_index_from_answering_with_what_was_committed_before(fleet, tmp_path):
    from mainstem.client.writer import TransactionalWriter

    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
    writer = TransactionalWriter(fleet.connection, f"s{fleet.planes}")
    writer.open()
    writer.begin()
    for partition in (0, 1):
        writer.send(fleet.planes, partition, b"N9", None)
    writer._flush()
    for _ in range(2):  # as it was left, and anew
        with Kept(fleet, tmp_path) as kept:
            wait_until(kept.opened, "it is open")
            wait_until(lambda: reaches(kept.reached(fleet.planes), kept.opened()[0].ends[fleet.planes]), "it is ready")
        assert rows_of(tmp_path)[0] == {"N1": 1}
        shutil.rmtree(tmp_path)
    writer.abort()
    writer.close()


def test_an_index_that_has_stopped_is_opened_again_while_nothing_comes(fleet, tmp_path):
    with Kept(fleet, tmp_path) as kept:
        kept.wait(fleet.write(fleet.planes, ("N1", "x", 1)))
        kept.opened()[0].index.failure = IndexUnavailable("it has stopped")
        wait_until(lambda: len(kept.opened()) == 2, "it is opened again")
        assert kept.keeper.state.error == "it has stopped"
