"""What compaction keeps and what it lets go, case by case; histories are in test_compaction_model.py."""

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import structlog

from mainstem.core import ManualClock
from mainstem.log import (
    AbortedTransaction,
    LogConfig,
    LogDirectory,
    StorageError,
    SystemDisk,
    TopicConfig,
    compaction,
    housekeeping,
)
from mainstem.log.cleaner import Cleaner
from mainstem.log.compaction import cleanable, dirty_ratio
from mainstem.log.reading import OffsetAndTimestamp
from mainstem.log.segment import SUFFIXES
from mainstem.records import Record, decode_header, decode_records, iter_headers
from mainstem.records.record import assemble_batch, encode_record
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import CONFIG, TOPIC_ID, TP, abandon, batch, joined, open_log, read_all, run

COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0, "delete_retention_ms": 10_000}


class Topic:
    """A compacted partition, and short words for what happens to it."""

    def __init__(self, path: Path, *, keys: int = 1_000, **settings) -> None:
        self.path, self.clock = path, ManualClock()
        self.log_config = msgspec.structs.replace(CONFIG, compaction_keys=keys)
        self.config = TopicConfig(**(COMPACT | settings))
        self.sequences: dict[int, int] = {}

    async def __aenter__(self):
        self.log = await open_log(self.path, config=self.log_config, clock=self.clock)
        self.partition = await self.log.create_partition(TP, TOPIC_ID, self.config)
        return self

    async def __aexit__(self, *_):
        await self.log.close()

    async def put(self, key: bytes, value: bytes | None, *, producer: int = -1, transactional=False) -> None:
        fields = {}
        if producer >= 0:
            sequence = self.sequences.get(producer, 0)
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": sequence,
                "transactional": transactional,
            }
            self.sequences[producer] = sequence + 1
        await self.partition.append(batch(value, key=key, timestamp=self.clock.now_ms(), **fields))

    async def end(self, producer: int, *, commit: bool) -> None:
        await self.partition.append_marker(producer, 0, commit=commit, coordinator_epoch=0)

    async def compact(self) -> None:
        self.partition.roll()
        await self.log.housekeep()

    async def records(self) -> list[tuple[int, bytes, bytes | None]]:
        return [(r.offset, r.key, r.value) for r in await read_all(self.partition, committed_only=True)]

    async def headers(self):
        result = await self.partition.read(self.partition.log_start_offset, 1 << 20)
        return list(iter_headers(joined(result)))


def test_the_last_record_of_each_key_stays_where_it_was(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3")):
                await topic.put(key, value)
            await topic.compact()
            assert await topic.records() == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
            assert (topic.partition.log_start_offset, topic.partition.log_end_offset) == (0, 5)
            assert topic.partition.cleaned_offset == 5
            result = await topic.partition.read(0, 1)
            assert decode_records(joined(result))[0].offset == 1

    run(test())


def test_only_so_many_keys_are_held_at_a_time(tmp_path):
    async def test():
        async with Topic(tmp_path, keys=2) as topic:
            for key in (b"a", b"b", b"c", b"b", b"a"):
                await topic.put(key, b"v")
            await topic.compact()
            assert topic.partition.cleaned_offset == 2
            for _ in range(3):
                await topic.compact()
            assert topic.partition.cleaned_offset == 5
            assert [offset for offset, *_ in await topic.records()] == [2, 3, 4]

    run(test())


def test_long_keys_are_told_from_each_other(tmp_path):
    """They are held as digests."""
    keys = [b"k" * 14, b"k" * 15, b"k" * 16, b"k" * 5_000, b"k" * 4_999 + b"l"]

    async def test():
        async with Topic(tmp_path) as topic:
            for value in (b"1", b"2"):
                for key in keys:
                    await topic.put(key, value)
            await topic.compact()
            assert [(key, value) for _, key, value in await topic.records()] == [(key, b"2") for key in keys]

    run(test())


def test_a_batch_loses_records_and_keeps_its_offsets(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.partition.append(batch(b"1", b"1", b"1", keys=[b"a", b"b", b"c"], compression="zstd"))
            await topic.put(b"b", b"2")
            await topic.compact()
            first = (await topic.headers())[0]
            assert (first.base_offset, first.last_offset, first.count, first.compression) == (0, 2, 2, 4)
            assert await topic.records() == [(0, b"a", b"1"), (2, b"c", b"1"), (3, b"b", b"2")]

    run(test())


def test_a_tombstone_stays_for_a_while(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"1")
            await topic.put(b"b", b"1")
            time = topic.clock.now_ms()
            await topic.put(b"a", None)
            await topic.compact()
            assert await topic.records() == [(1, b"b", b"1"), (2, b"a", None)]
            assert topic.partition.tombstones_expire_ms == time + 10_000
            assert [r.timestamp for r in await read_all(topic.partition)] == [time, time]
            topic.clock.advance_ms(9_999)
            await topic.log.housekeep()
            assert len(await topic.records()) == 2
            topic.clock.advance_ms(1)
            await topic.log.housekeep()
            assert await topic.records() == [(1, b"b", b"1")]
            assert topic.partition.tombstones_expire_ms == 0

    run(test())


def test_a_tombstone_may_stay_for_ever(tmp_path):
    """`delete.retention.ms` was added to the time now, and the sum had no room in a batch."""

    async def test():
        async with Topic(tmp_path, delete_retention_ms=2**63 - 1) as topic:
            time = topic.clock.now_ms()
            await topic.put(b"a", b"1")
            await topic.put(b"a", None)
            await topic.compact()
            assert topic.partition.tombstones_expire_ms == 2**63 - 1
            topic.clock.advance_ms(10_000_000)
            await topic.put(b"b", b"1")
            await topic.compact()
            assert await topic.records() == [(1, b"a", None), (2, b"b", b"1")]
            assert (await read_all(topic.partition))[0].timestamp == time

    run(test())


def test_of_the_last_batch_the_header_stays_until_there_is_another(tmp_path):
    """Compaction took the tombstone at the end: a reader waited for an offset that nothing led to,
    until the next append.
    """

    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"1")
            await topic.put(b"a", None)
            await topic.compact()
            topic.clock.advance_ms(10_000)
            await topic.log.housekeep()
            assert [(h.base_offset, h.count, h.has_delete_horizon) for h in await topic.headers()] == [(1, 0, False)]
            assert topic.partition.tombstones_expire_ms == 0
            await topic.put(b"b", b"1")
            await topic.compact()
            assert [(h.base_offset, h.count) for h in await topic.headers()] == [(2, 1)]

    run(test())


def test_a_last_marker_stays_until_there_is_another_batch(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"aborted", producer=1, transactional=True)
            await topic.end(1, commit=False)
            topic.partition.expire_producers(-1)
            for _ in range(2):
                await topic.compact()
                topic.clock.advance_ms(10_000)
            assert [(h.base_offset, h.is_control) for h in await topic.headers()] == [(1, True)]
            assert topic.partition.tombstones_expire_ms == 0
            assert [len(segment.aborted) for segment in topic.partition.segments] == [1, 0]
            await topic.put(b"b", b"1")
            await topic.compact()
            assert [h.base_offset for h in await topic.headers()] == [2]
            assert not any(segment.aborted for segment in topic.partition.segments)

    run(test())


def test_an_aborted_record_neither_stays_nor_replaces(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"good")
            await topic.put(b"a", b"aborted", producer=1, transactional=True)
            await topic.end(1, commit=False)
            await topic.put(b"b", b"kept", producer=2, transactional=True)
            await topic.end(2, commit=True)
            await topic.compact()
            assert await topic.records() == [(0, b"a", b"good"), (3, b"b", b"kept")]
            everything = [(r.offset, r.value) for r in await read_all(topic.partition)]
            assert everything == [(0, b"good"), (3, b"kept")]

    run(test())


@pytest.mark.parametrize("begun", ["before", "behind"])
def test_an_aborted_record_behind_the_most_keys_that_are_held_stays_hidden(tmp_path, begun):
    """It is copied as it is, into a file that takes the place of the one whose index named its transaction."""

    async def test():
        async with Topic(tmp_path, keys=2) as topic:
            for key in (b"a", b"a", b"b"):
                await topic.put(key, b"good")
            if begun == "before":
                await topic.put(b"b", b"aborted", producer=1, transactional=True)
            await topic.put(b"c", b"good")
            end = topic.partition.log_end_offset
            await topic.put(b"b", b"aborted", producer=1, transactional=True)
            await topic.end(1, commit=False)
            await topic.put(b"d", b"good")
            before = [record for record in await topic.records() if record[0] > 0]
            assert {value for _, _, value in before} == {b"good"}
            await topic.compact()
            assert topic.partition.cleaned_offset == end - 1
            assert end in [h.base_offset for h in await topic.headers()]
            assert await topic.records() == before
        log = await open_log(tmp_path, clock=topic.clock)
        found = await read_all(log.partitions[TP], committed_only=True)
        assert [(r.offset, r.key, r.value) for r in found] == before
        await log.close()

    run(test())


class Watched:
    """An aborted transaction that counts how often something of it is looked at."""

    looks = 0

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction

    def __getattr__(self, name):
        Watched.looks += 1
        return getattr(self.transaction, name)


class WatchingCleaner(Cleaner):
    def run(self, plan, files):
        return super().run(msgspec.structs.replace(plan, aborted=[Watched(each) for each in plan.aborted]), files)


def test_a_batch_is_not_compared_with_all_aborted_transactions_of_its_producer(tmp_path):
    """It was: twice as many took four times as long."""

    async def test():
        async with Topic(tmp_path) as topic:
            for n in range(200):
                await topic.put(b"%d" % n, b"aborted", producer=1, transactional=True)
                await topic.end(1, commit=False)
                if n % 50 == 0:
                    await topic.put(b"%d" % n, b"kept", producer=1, transactional=True)
                    await topic.end(1, commit=True)
            topic.partition.roll()
            await topic.log.checkpoint()
            cleaner = WatchingCleaner()
            assert await housekeeping.compact(topic.partition, cleaner, most_keys=1_000)
            cleaner.close()
            assert Watched.looks < 200 * 40
            assert [(key, value) for _, key, value in await topic.records()] == [
                (b"%d" % n, b"kept") for n in (0, 50, 100, 150)
            ]

    run(test())


def test_a_marker_goes_when_nothing_of_its_transaction_is_left(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"1", producer=1, transactional=True)
            await topic.end(1, commit=True)
            await topic.put(b"a", b"2", producer=1, transactional=True)
            await topic.end(1, commit=True)
            await topic.compact()
            assert [h.base_offset for h in await topic.headers()] == [1, 2, 3]
            topic.clock.advance_ms(10_000)
            await topic.put(b"other", b"1")
            await topic.compact()
            assert [h.base_offset for h in await topic.headers()] == [2, 3, 4]

    run(test())


def test_an_open_transaction_holds_compaction_back(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"1")
            await topic.put(b"a", b"2")
            topic.partition.roll()
            await topic.put(b"a", b"open", producer=1, transactional=True)
            await topic.put(b"a", b"3")
            await topic.compact()
            assert [r.value for r in await read_all(topic.partition)] == [b"2", b"open", b"3"]
            await topic.end(1, commit=True)
            await topic.compact()
            assert await topic.records() == [(3, b"a", b"3")]

    run(test())


def test_a_producers_last_batch_leaves_its_header(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            await topic.put(b"a", b"1", producer=1)
            await topic.put(b"a", b"2", producer=2)
            await topic.compact()
            bare = (await topic.headers())[0]
            assert (bare.producer_id, bare.last_sequence, bare.count) == (1, 0, 0)
            await topic.put(b"z", b"1", producer=1)
            await topic.compact()
            assert [h.producer_id for h in await topic.headers()] == [2, 1]

    run(test())


def test_a_deleted_key_does_not_come_back_where_a_file_gained_nothing(tmp_path):
    """The first segment lost one small record and gained a longer header for its tombstone: its new file was larger,
    and thrown away. The second one's was used, and the tombstone of the record in the first went in time."""

    async def test():
        async with Topic(tmp_path, segment_bytes=2_100, delete_retention_ms=1_000) as topic:
            names = [b"K", *(b"u%03d" % n for n in range(150)), b"T"]
            await topic.partition.append(batch(b"secret", *[b"x"] * 150, None, keys=names))
            topic.partition.roll()
            await topic.put(b"K", None)
            for _ in range(10):
                await topic.put(b"hot", b"y" * 100)
            await topic.compact()
            for _ in range(2):
                topic.clock.advance_ms(5_000)
                await topic.log.housekeep()
                assert b"K" not in {key for _, key, value in await topic.records() if value is not None}

    run(test())


def test_an_aborted_record_does_not_become_visible_where_a_file_gained_nothing(tmp_path):
    """As above: the marker that hid it went with the second segment, the record stayed in the first."""

    async def test():
        async with Topic(tmp_path, segment_bytes=2_300, delete_retention_ms=1_000) as topic:
            names = [*(b"u%03d" % n for n in range(150)), b"T"]
            await topic.partition.append(batch(*[b"x"] * 150, None, keys=names))
            await topic.put(b"K", b"aborted", producer=1, transactional=True)
            topic.partition.roll()
            await topic.end(1, commit=False)
            for _ in range(10):
                await topic.put(b"hot", b"y" * 100)
            await topic.put(b"other", b"q", producer=1)
            await topic.compact()
            for _ in range(2):
                topic.clock.advance_ms(5_000)
                await topic.log.housekeep()
                assert b"K" not in {key for _, key, _ in await topic.records()}

    run(test())


def test_records_deleted_meanwhile_end_a_pass_and_the_next_one_does_it_all(tmp_path):
    async def test():
        async with Topic(tmp_path, segment_bytes=200) as topic:
            for n in range(4):
                await topic.put(b"a", b"%d" % n)
                topic.partition.roll()
            await topic.log.checkpoint()
            cleaner = Cleaner()
            cleaning = asyncio.ensure_future(housekeeping.compact(topic.partition, cleaner, most_keys=10))
            await asyncio.sleep(0)
            await housekeeping.delete_records(topic.partition, 1)
            assert not await cleaning
            assert topic.partition.cleaned_offset == 0
            assert not list(topic.partition.directory.glob("*.cleaned"))
            await topic.log.housekeep()
            assert (await topic.records(), topic.partition.cleaned_offset) == ([(3, b"a", b"3")], 4)
            cleaner.close()

    run(test())


def test_compaction_goes_on_after_it_left_nothing_of_a_segment(tmp_path):
    """No checkpoint ever covered the empty file, and compaction waited for one from then on."""

    async def test():
        async with Topic(tmp_path, segment_bytes=1_000) as topic:
            for _ in range(4):
                for n in range(60):
                    await topic.put(b"%d" % (n % 3), b"v" * 50)
                await topic.compact()
                await topic.log.housekeep()
                assert topic.partition.cleaned_offset == topic.partition.log_end_offset
                assert len(await topic.records()) == 3
            assert not housekeeping.waits_for_checkpoint(topic.partition)

    run(test())


def test_an_expired_tombstone_is_looked_for_once(tmp_path):
    """Its horizon stayed with the record beside it, and every housekeeping compacted the partition again."""

    async def test():
        async with Topic(tmp_path) as topic:
            await topic.partition.append(batch(b"stays", None, keys=[b"a", b"b"]))
            await topic.compact()
            topic.clock.advance_ms(10_001)
            await topic.log.housekeep()
            assert await topic.records() == [(0, b"a", b"stays")]
            assert topic.partition.tombstones_expire_ms == 0

    run(test())


def test_nothing_is_appended_to_a_compacted_segment(tmp_path):
    """A full disk undid the first append after it, and the compacted segment was the last that held anything."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, disk=disk, clock=clock)
        topic = TopicConfig(**COMPACT)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for n in range(20):
            await partition.append(batch(b"%d" % n, key=b"%d" % (n % 2)))
        partition.roll()
        await log.housekeep()
        disk.refuse("write", 28, ".log")
        with pytest.raises(StorageError, match="nothing was appended"):
            await partition.append(batch(b"full", key=b"a"))
        await partition.append(batch(b"new", key=b"b"))
        assert [segment.is_dense for segment in partition.segments] == [False, True]
        await log.close()
        log = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: most), clock=clock)
        log.partitions[TP].config = topic
        assert [record.value for record in await read_all(log.partitions[TP])] == [b"18", b"19", b"new"]
        await log.close()

    run(test())


def test_a_kill_after_a_segment_became_longer(tmp_path):
    """A delete horizon makes a batch longer: the start took the new file's end for batches that it did not know."""

    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(**COMPACT))
        await partition.append(batch(None, None, keys=[b"a", b"b"]))
        partition.roll()
        await log.checkpoint()
        size = partition.segments[0].size
        await partition.append(batch(b"1", key=b"c"))
        await log.housekeep()
        assert partition.segments[0].size > size
        abandon(log)
        log = await open_log(tmp_path, clock=clock)
        found = await read_all(log.partitions[TP])
        assert [(r.offset, r.key, r.value) for r in found] == [(0, b"a", None), (1, b"b", None), (2, b"c", b"1")]
        await log.close()

    run(test())


def test_compaction_goes_by_a_marker_that_a_power_cut_leaves_where_the_page_cache_is_trusted(tmp_path):
    """One in the page cache alone was lost, and the durable value that its transaction had replaced was gone."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        config = TopicConfig(**COMPACT | {"flush_messages": 1_000})
        partition = await log.create_partition(TP, TOPIC_ID, config)
        await partition.append(batch(b"old", key=b"a"))
        partition.roll()
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        await partition.append(batch(b"new", key=b"a", **fields))
        partition.roll()
        await log.checkpoint()
        await partition.append_marker(1, 0, commit=True, coordinator_epoch=0)
        await partition.append(batch(b"trusting", key=b"b"))
        await log.housekeep()
        assert [record.value for record in await read_all(partition)] == [b"new", b"trusting"]
        abandon(log)
        log = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert [record.value for record in await read_all(log.partitions[TP], committed_only=True)] == [b"new"]
        await log.close()

    run(test())


INDEXED = TopicConfig(**COMPACT, index_interval_bytes=100)


async def with_an_aborted_transaction_about_to_go(path: Path, disk: SimulatedDisk, clock: ManualClock) -> LogDirectory:
    """The next compaction leaves nothing of it, nor of what its segment's index speaks of."""
    log = await open_log(path, disk=disk, clock=clock)
    partition = await log.create_partition(TP, TOPIC_ID, INDEXED)
    await partition.append(batch(b"kept", key=b"a"))
    fields = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    for sequence in range(5):
        await partition.append(batch(b"aborted", key=b"b", base_sequence=sequence, **fields))
    await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
    partition.roll()
    await partition.append(batch(b"last", key=b"c"))
    partition.roll()
    partition.expire_producers(-1)
    await log.housekeep()  # the marker stays for `delete.retention.ms`
    await log.checkpoint()
    clock.advance_ms(20_000)
    first = partition.segments[0]
    assert (len(first.aborted), all(map(disk.exists, map(first.path_of, SUFFIXES)))) == (1, True)
    return log


def index_files(log: LogDirectory, disk: SimulatedDisk) -> set[str]:
    files = disk.list(log.partitions[TP].directory)
    return {path.suffix for path in files if "index" in path.suffix and disk.file_size(path)}


@pytest.mark.parametrize("then", ["checkpoint", "kill", "power cut"])
def test_no_index_file_speaks_of_what_compaction_took(tmp_path, then):
    """Where no aborted transaction was left, the file that named one stayed, and so did an index where its successor
    had no entries: they name a marker and positions that are not there."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        clock = ManualClock()
        log = await with_an_aborted_transaction_about_to_go(tmp_path, disk, clock)
        await log.housekeep()
        assert not any(segment.aborted for segment in log.partitions[TP].segments)
        found = disk
        if then == "checkpoint":
            await log.checkpoint()
        else:
            abandon(log)
            found = disk.after_kill() if then == "kill" else disk.after_power_cut(lambda most: 0)
            log = await open_log(tmp_path, disk=found, clock=clock)
        assert index_files(log, found) <= {".timeindex"}
        assert [record.value for record in await read_all(log.partitions[TP])] == [b"kept", b"last"]
        await log.close()

    run(test())


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_step_leaves_no_index_file_that_speaks_of_what_is_gone(tmp_path, seed):
    async def cut_after(changes: int) -> bool:
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        log = await with_an_aborted_transaction_about_to_go(tmp_path, disk, clock)
        disk.power_off_after(changes)
        with suppress(OSError, StorageError):
            await log.housekeep()
            await log.checkpoint()
        abandon(log)
        is_off, disk = disk.is_off, disk.after_power_cut(adversary(seed))
        log = await open_log(tmp_path, disk=disk, clock=clock)
        partition = log.partitions[TP]
        assert [record.value for record in await read_all(partition, committed_only=True)] == [b"kept", b"last"]
        if not any(segment.aborted for segment in partition.segments):
            assert index_files(log, disk) <= {".timeindex"}
        await log.close()
        return is_off

    changes = 0
    while run(cut_after(changes)):
        changes += 1
    assert changes > 10


@pytest.mark.parametrize("after", ["kill", "power cut"])
def test_a_crash_after_what_was_compacted_was_deleted(tmp_path, after):
    """The start asked for the compacted file, and took the deletion for damage."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(
            TP, TOPIC_ID, TopicConfig(**COMPACT | {"cleanup_policy": "compact,delete"})
        )
        for value in (b"1", b"2", b"3"):
            await partition.append(batch(value, key=b"a"))
        partition.roll()
        await log.housekeep()
        assert not partition.segments[0].is_dense
        await housekeeping.delete_records(partition, 3)
        abandon(log)
        found = disk.after_kill() if after == "kill" else disk.after_power_cut(lambda most: 0)
        log = await open_log(tmp_path, disk=found)
        partition = log.partitions[TP]
        assert partition.error is None
        assert (partition.log_start_offset, partition.log_end_offset) == (3, 3)
        assert (await partition.append(batch(b"4", key=b"a"))).base_offset == 3
        await log.close()

    run(test())


def test_young_records_wait(tmp_path):
    async def test():
        async with Topic(tmp_path, min_compaction_lag_ms=5_000) as topic:
            await topic.put(b"a", b"1")
            await topic.put(b"a", b"2")
            await topic.compact()
            assert len(await topic.records()) == 2
            topic.clock.advance_ms(5_001)
            await topic.compact()
            assert await topic.records() == [(1, b"a", b"2")]

    run(test())


def test_it_waits_until_there_is_enough_to_gain_or_records_are_too_old(tmp_path):
    async def test():
        async with Topic(tmp_path, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=60_000) as topic:
            for n in range(10):
                await topic.put(b"%d" % n, b"1")
            await topic.compact()
            await topic.put(b"0", b"2")
            await topic.put(b"0", b"3")
            await topic.compact()
            assert len(await topic.records()) == 12
            topic.clock.advance_ms(60_001)
            await topic.log.housekeep()
            assert len(await topic.records()) == 10

    run(test())


def test_small_segments_become_one(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for n in range(6):
                await topic.put(b"%d" % (n % 5), b"%d" % n)
                topic.partition.roll()
            await topic.log.housekeep()
            assert [segment.base_offset for segment in topic.partition.segments] == [0, 6]
            assert [key for _, key, _ in await topic.records()] == [b"1", b"2", b"3", b"4", b"0"]
            names = {path.name for path in topic.partition.directory.glob("*.log*")}
            assert names <= {f"{0:020d}.log", f"{6:020d}.log"}

    run(test())


def test_a_compacted_log_opens_again(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for n in range(9):
                await topic.put(b"%d" % (n % 3), b"%d" % n, producer=1)
            await topic.compact()
            before = await topic.records()
        log = await open_log(tmp_path, clock=topic.clock)
        partition = log.partitions[TP]
        assert [(r.offset, r.key, r.value) for r in await read_all(partition)] == before
        assert joined(await partition.read(0, 1)) == joined(await partition.read(6, 1))
        assert (await partition.append(batch(b"9", producer_id=1, producer_epoch=0, base_sequence=9))).base_offset == 9
        await log.close()

    run(test())


def test_compact_and_delete(tmp_path):
    async def test():
        async with Topic(tmp_path, cleanup_policy="compact,delete", retention_ms=1_000) as topic:
            await topic.put(b"a", b"1")
            await topic.put(b"a", b"2")
            await topic.compact()
            assert await topic.records() == [(1, b"a", b"2")]
            topic.clock.advance_ms(1_001)
            await topic.log.housekeep()
            assert await topic.records() == []
            assert topic.partition.log_start_offset == 2

    run(test())


def test_readers_and_writers_go_on_meanwhile(tmp_path):
    async def test():
        async with Topic(tmp_path, segment_bytes=2_000) as topic:
            for n in range(60):
                await topic.put(b"%d" % (n % 7), b"v" * 100)
            done = asyncio.Event()

            async def read():
                while not done.is_set():
                    found = await topic.records()
                    assert {key for _, key, _ in found} == {b"%d" % n for n in range(7)}
                    await asyncio.sleep(0.001)  # the writer's thread needs the interpreter, too

            async def write():
                while not done.is_set():
                    await topic.put(b"0", b"new")

            async with asyncio.TaskGroup() as group:
                group.create_task(read())
                group.create_task(write())
                for _ in range(3):
                    await topic.compact()
                done.set()

    run(test())


def test_damage_takes_the_partition_offline_and_changes_nothing(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for n in range(4):
                await topic.put(b"a", b"%d" % n)
            topic.partition.roll()
            await topic.log.checkpoint()
            path = topic.partition.segments[0].path
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            topic.partition.segments[0].opened = None
            with structlog.testing.capture_logs() as logs:
                await topic.log.housekeep()
            assert [entry["event"] for entry in logs] == ["partition_offline", "housekeeping_skipped"]
            assert f"mainstem log repair --data {tmp_path}" in logs[0]["hint"]
            with pytest.raises(StorageError, match="bad CRC"):
                await topic.records()
            assert path.read_bytes() == data
            assert not list(topic.partition.directory.glob("*.cleaned"))

    run(test())


def test_it_gives_up_when_the_log_is_closed(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for n in range(4):
                await topic.put(b"a", b"%d" % n)
            topic.partition.roll()
            await topic.log.checkpoint()
            cleaner = Cleaner()
            cleaner.stop()
            assert not await housekeeping.compact(topic.partition, cleaner, most_keys=10)
            assert len(await topic.records()) == 4
            assert not list(topic.partition.directory.glob("*.cleaned"))
            cleaner.close()

    run(test())


def test_a_full_disk_costs_nothing_but_the_compaction(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(**COMPACT))
        for n in range(4):
            await partition.append(batch(b"%d" % n, key=b"a"))
        partition.roll()
        disk.refuse("write", 28, ".cleaned")
        await log.housekeep()
        assert len(await read_all(partition)) == 4
        assert not [path for path in disk.list(partition.directory) if path.suffix == ".cleaned"]
        await log.housekeep()
        assert len(await read_all(partition)) == 1
        await log.close()

    run(test())


def test_the_part_that_was_not_cleaned_yet(tmp_path):
    async def test():
        async with Topic(tmp_path) as topic:
            for _ in range(2):
                for _ in range(5):
                    await topic.put(b"a", b"v")
                topic.partition.roll()
            segments = list(topic.partition.segments)
            assert dirty_ratio(segments, 0) == 1.0
            assert dirty_ratio(segments, 5) == 0.5
            assert dirty_ratio([], 0) == 0.0
            assert cleanable(segments, 10, topic.config, 0) == []  # no checkpoint covers them yet
            await topic.log.checkpoint()
            assert [s.base_offset for s in cleanable(segments, 10, topic.config, 0)] == [0, 5]
            assert [s.base_offset for s in cleanable(segments, 7, topic.config, 0)] == [0]

    run(test())


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_of_a_batch_with_many_records_those_stay_that_are_the_last_of_their_key(tmp_path, compression):
    """In batches of which all, some and no records stay, with and without tombstones."""
    rounds = [range(200), range(0, 200, 7), range(190, 200), [3], [3]]

    async def test():
        expected = {}
        async with Topic(tmp_path) as topic:
            offset = 0
            for number, keys in enumerate(rounds):
                values = [None if number == 2 and key % 2 else b"%d" % number for key in keys]
                names = [b"key-%d" % key for key in keys]
                now = topic.clock.now_ms()
                await topic.partition.append(batch(*values, keys=names, timestamp=now, compression=compression))
                expected |= {
                    name: (offset + n, name, value) for n, (name, value) in enumerate(zip(names, values, strict=True))
                }
                offset += len(names)
            await topic.compact()
            assert await topic.records() == sorted(expected.values())
            topic.clock.advance_ms(10_001)
            for _ in range(2):
                await topic.put(b"other", b"v")
                await topic.compact()
            kept = [record for record in await topic.records() if record[1] != b"other"]
            assert kept == sorted(record for record in expected.values() if record[2] is not None)

    run(test())


@pytest.mark.parametrize("what", ["cut short", "a time that is none"])
def test_a_batch_that_holds_something_else_stays_and_replaces_nothing(tmp_path, what):
    """It was appended before the topic was compacted: nobody looked inside."""
    header = decode_header(batch(b"1", b"2", keys=[b"a", b"b"]))
    first = encode_record(Record(0, 0, b"a", b"new"), 2**62 if what == "a time that is none" else 0, 0)
    second = encode_record(Record(0, 0, b"b", b"new"), 0, 1)
    strange = assemble_batch(header, first + (second if what == "a time that is none" else second[:-3]))

    async def test():
        async with Topic(tmp_path, cleanup_policy="delete") as topic:
            await topic.put(b"b", b"old")
            await topic.partition.append(strange)
            await topic.put(b"b", b"newest")
            topic.partition.config = TopicConfig(**COMPACT)
            await topic.compact()
            assert topic.partition.error is None
            found = [(each.base_offset, each.count) for each in await topic.headers()]
            assert found == [(1, 2), (3, 1)]

    run(test())


def test_a_topic_that_is_deleted_while_its_compaction_ends_is_in_no_journal_any_more(tmp_path, monkeypatch):
    """The exchange was written behind the deletion; with a checkpoint between the two no start knew whose it was, and
    the log was refused.
    """
    opened, go_on = threading.Event(), threading.Event()

    def open_slowly(_segment):
        opened.set()
        assert go_on.wait(30)

    async def test():
        topic = Topic(tmp_path)
        topic.log_config = LogConfig()  # with more than one thread
        await topic.__aenter__()
        for n in range(4):
            await topic.put(b"a", b"%d" % n)
        topic.partition.roll()
        await topic.log.checkpoint()
        monkeypatch.setattr(housekeeping, "_open", open_slowly)
        compaction = asyncio.ensure_future(topic.log.housekeep())
        assert await asyncio.to_thread(opened.wait, 30)
        deletion = asyncio.ensure_future(topic.log.delete_partition(TP))
        await asyncio.wait([deletion], timeout=0.2)  # it waits for the exchange, or is done
        await topic.log.checkpoint()
        go_on.set()
        await asyncio.gather(compaction, deletion)
        abandon(topic.log)
        log = await open_log(tmp_path)
        assert not log.partitions
        await log.close()

    run(test())


def test_a_topic_that_is_to_be_compacted_no_longer_keeps_what_a_compaction_under_way_would_take(tmp_path, monkeypatch):
    begun, go_on, compact = threading.Event(), threading.Event(), compaction.run

    def slowly(*given):
        begun.set()
        assert go_on.wait(30)
        return compact(*given)

    async def test():
        async with Topic(tmp_path) as topic:
            for value in (b"1", b"2"):
                await topic.put(b"a", value)
            topic.partition.roll()
            monkeypatch.setattr(compaction, "run", slowly)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(topic.log.housekeep())
                assert await asyncio.to_thread(begun.wait, 30)
                topic.partition.config = TopicConfig()
                go_on.set()
            assert await topic.records() == [(0, b"a", b"1"), (1, b"a", b"2")]
            assert not list(topic.partition.directory.glob("*.cleaned"))

    run(test())


def test_what_a_full_disk_does_not_let_in_place_is_not_left_there(tmp_path, monkeypatch):
    """Its files stayed until the next start."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(**COMPACT, segment_bytes=500))
        for value in range(8):
            await partition.append(batch(b"%d" % value * 100, keys=[b"%d" % (value % 2)]))
        await log.checkpoint()
        compact = log._cleaner.run

        def then_full(*given):
            found = compact(*given)
            found.add_done_callback(lambda _: disk.refuse("write", errno.ENOSPC, "journal"))
            return found

        monkeypatch.setattr(log._cleaner, "run", then_full)
        with pytest.raises(StorageError, match="No space"):
            await housekeeping.compact(partition, log._cleaner, most_keys=1_000)
        assert not [path.name for path in disk.list(partition.directory) if path.name.endswith(".cleaned")]
        monkeypatch.undo()
        assert await housekeeping.compact(partition, log._cleaner, most_keys=1_000)
        await log.close()

    run(test())


def test_nobody_opens_the_compacted_file_as_the_one_that_it_replaces(tmp_path):
    """A look-up read it by positions of the other, and passed over live records."""
    between = []

    class Disk(SystemDisk):
        def rename(self, old, new):
            super().rename(old, new)
            if old.name.endswith(".cleaned"):
                for segment in segments:
                    segment.opened = None  # it was let go, since many others were opened
                    opening = threads.submit(segment._files.open, segment)
                    assert not wait([opening], timeout=0.1).done
                    between.append(opening)

    async def test():
        nonlocal segments
        log = await open_log(tmp_path, disk=Disk())
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(**COMPACT))
        for value in (b"1", b"2"):
            await partition.append(batch(value))
        partition.roll()
        segments = [partition.segments[0]]
        await log.housekeep()
        assert partition.segments[0] not in segments
        with pytest.raises(FileNotFoundError, match="replaced"):
            between[0].result(10)
        await log.close()

    segments = []
    with ThreadPoolExecutor(1) as threads:
        run(test())


def test_the_latest_timestamp_is_not_that_of_a_segment_that_is_gone(tmp_path):
    """It was, where the active one was rolled and nothing has been appended since."""

    async def test():
        async with Topic(tmp_path, segment_ms=1_000) as topic:
            latest = topic.clock.now_ms() + 5_000
            await topic.partition.append(batch(b"late", key=b"a", timestamp=latest))
            topic.partition.roll()
            await topic.put(b"b", b"early")
            topic.clock.advance_ms(3_000)
            await topic.log.housekeep()
            assert len(topic.partition.segments) == 2
            assert await topic.partition.latest_timestamp() == OffsetAndTimestamp(0, latest)

    run(test())
