"""How records leave: deleted, expired; test_compaction.py has what later ones of their key replace."""

import asyncio
import errno
import threading
from uuid import UUID

import pytest

from mainstem.core import ManualClock
from mainstem.log import LogConfig, OffsetOutOfRange, StorageError, TopicConfig, housekeeping
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, batch, open_log, read_all, run, values, with_partition

NOW = 1_700_000_000_000


def test_deleted_records_are_gone_for_good_and_their_segments_too(tmp_path):
    async def test(partition):
        for _ in range(6):
            await partition.append(batch(b"v" * 300))
        assert await housekeeping.delete_records(partition, 3) == 3
        assert await housekeeping.delete_records(partition, 1) == 3
        assert [segment.base_offset for segment in partition.segments] == [2, 4]
        assert not (partition.directory / f"{0:020d}.log").exists()
        with pytest.raises(OffsetOutOfRange):
            await partition.read(2, 100)
        with pytest.raises(OffsetOutOfRange):
            await housekeeping.delete_records(partition, 7)
        assert await housekeeping.delete_records(partition, -1) == 6

    async def again(partition):
        assert (partition.log_start_offset, partition.log_end_offset) == (6, 6)
        assert await read_all(partition) == []

    topic = TopicConfig(segment_bytes=800)
    run(with_partition(tmp_path, test, topic=topic))
    run(with_partition(tmp_path, again, topic=topic))


def test_retention_lets_the_old_go_and_the_log_goes_on(tmp_path):
    clock = ManualClock()

    async def test(partition):
        for _ in range(3):
            await partition.append(batch(b"v" * 300, timestamp=clock.now_ms()))
            clock.advance_ms(1_000)
        assert await housekeeping.enforce_retention(partition) == 0
        clock.advance_ms(600)
        assert await housekeeping.enforce_retention(partition) > 0
        assert partition.log_start_offset == 2
        clock.advance_ms(5_000)
        await housekeeping.enforce_retention(partition)
        assert (partition.log_start_offset, partition.log_end_offset, partition.size_bytes) == (3, 3, 0)
        assert (await partition.append(batch(b"new", timestamp=clock.now_ms()))).base_offset == 3
        assert await values(partition) == [b"new"]

    topic = TopicConfig(segment_bytes=800, retention_ms=2_500)
    run(with_partition(tmp_path, test, topic=topic, clock=clock))


def test_the_file_of_records_that_were_deleted_goes_when_it_is_old(tmp_path):
    async def test(partition):
        await partition.append(batch(b"v" * 300, timestamp=partition.shared.clock.now_ms()))
        await housekeeping.delete_records(partition, 1)
        partition.shared.clock.advance_ms(5_000)
        assert await housekeeping.enforce_retention(partition) > 0
        assert [segment.base_offset for segment in partition.segments] == [1]

    run(with_partition(tmp_path, test, topic=TopicConfig(retention_ms=2_500), clock=ManualClock()))


def test_files_that_stayed_because_the_disk_was_full_go_with_the_next_try(tmp_path):
    """The log start had moved, so the same request had nothing to do any more."""
    clock, disk = ManualClock(), SimulatedDisk(tmp_path)

    async def test(partition):
        for _ in range(3):
            await partition.append(batch(b"v" * 300, timestamp=clock.now_ms()))
        clock.advance_ms(5_000)
        disk.refuse("create", errno.ENOSPC, ".log")
        with pytest.raises(StorageError, match="No space left"):
            await housekeeping.enforce_retention(partition)
        assert partition.log_start_offset == 3
        assert disk.exists(partition.directory / f"{0:020d}.log")
        assert await housekeeping.enforce_retention(partition) > 600
        assert not disk.exists(partition.directory / f"{0:020d}.log")
        assert (await partition.append(batch(b"new", timestamp=clock.now_ms()))).base_offset == 3
        assert await values(partition) == [b"new"]

    topic = TopicConfig(segment_bytes=800, retention_ms=2_500)
    run(with_partition(tmp_path, test, topic=topic, clock=clock, disk=disk))


def test_an_active_segment_that_waits_for_compaction_is_sealed(tmp_path):
    clock = ManualClock()

    async def test(partition):
        housekeeping.roll_if_old(partition)
        await partition.append(batch(b"v", timestamp=clock.now_ms()))
        clock.advance_ms(1_000)
        housekeeping.roll_if_old(partition)
        assert len(partition.segments) == 1
        assert not housekeeping.waits_for_checkpoint(partition)
        clock.advance_ms(1)
        housekeeping.roll_if_old(partition)
        assert [segment.base_offset for segment in partition.segments] == [0, 1]
        assert housekeeping.waits_for_checkpoint(partition)

    topic = TopicConfig(cleanup_policy="compact", max_compaction_lag_ms=1_000)
    run(with_partition(tmp_path, test, topic=topic, clock=clock))


def test_what_the_disk_does_not_remove_is_deleted_all_the_same_and_goes_with_the_next_start(tmp_path):
    """Who had asked for it was told an error of the system's, although it was done."""
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        for _ in range(6):
            await partition.append(batch(b"v" * 300))
        disk.refuse("unlink", errno.EIO, ".log")
        assert await housekeeping.delete_records(partition, 5) == 5
        assert [segment.base_offset for segment in partition.segments] == [4]
        assert disk.exists(partition.directory / f"{0:020d}.log")

    async def again(partition):
        assert (partition.log_start_offset, len(await values(partition))) == (5, 1)
        assert not disk.exists(partition.directory / f"{0:020d}.log")

    topic = TopicConfig(segment_bytes=800)
    run(with_partition(tmp_path, test, topic=topic, disk=disk))
    run(with_partition(tmp_path, again, topic=topic, disk=disk))


def test_a_file_that_goes_late_is_not_the_one_of_the_topic_that_has_its_name_by_then(tmp_path, monkeypatch):
    """Of the topic made anew, the first segment had the path of the one that was on its way out, and went for it."""
    unlink, begun, go_on = housekeeping._unlink, threading.Event(), threading.Event()

    def late(segments):
        begun.set()
        assert go_on.wait(10)
        unlink(segments)

    async def replace(log):
        await log.delete_partition(TP)
        partition = await log.create_partition(TP, UUID(int=8), TopicConfig())
        await partition.append(batch(b"acknowledged"))
        await log.checkpoint()

    async def test():
        log = await open_log(tmp_path, config=LogConfig(read_threads=2))
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=400))
        for _ in range(2):
            await partition.append(batch(b"v" * 300))
        monkeypatch.setattr(housekeeping, "_unlink", late)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(housekeeping.delete_records(partition, 1))
            assert await asyncio.to_thread(begun.wait, 10)
            replacing = tasks.create_task(replace(log))
            await asyncio.wait([replacing], timeout=0.5)  # it is done by then, or waits
            go_on.set()
        await log.close()
        again = await open_log(tmp_path)
        assert await values(again.partitions[TP]) == [b"acknowledged"]
        await again.close()

    run(test())


def test_what_is_to_go_is_said_by_the_settings_of_the_moment_when_it_goes(tmp_path, monkeypatch):
    """It was computed, waited for its turn, and went, although somebody had been told that all stays."""
    clock, unlink, begun, go_on = ManualClock(), housekeeping._unlink, threading.Event(), threading.Event()

    def late(segments):
        begun.set()
        assert go_on.wait(10)
        unlink(segments)

    async def test(partition):
        for _ in range(4):
            await partition.append(batch(b"v" * 300, timestamp=clock.now_ms()))
        monkeypatch.setattr(housekeeping, "_unlink", late)
        clock.advance_ms(5_000)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(housekeeping.delete_records(partition, 1))
            assert await asyncio.to_thread(begun.wait, 10)
            retention = tasks.create_task(housekeeping.enforce_retention(partition))
            await asyncio.sleep(0)
            partition.config = TopicConfig(segment_bytes=400, retention_ms=-1)
            go_on.set()
        assert retention.result() == 0
        assert partition.log_start_offset == 1

    run(with_partition(tmp_path, test, topic=TopicConfig(segment_bytes=400, retention_ms=2_500), clock=clock))
