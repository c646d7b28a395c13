"""Look-ups in memory are bounded, and what leaves comes back as it was."""

import asyncio
import threading
from uuid import UUID

import pytest
import structlog

from mainstem.core import TopicPartition
from mainstem.log import TopicConfig, housekeeping
from mainstem.log.look_ups import LookUps
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import decode_records
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, run

OTHER, OTHER_ID = TopicPartition("others", 0), UUID(int=8)
NOW = 1_700_000_000_000
TOPIC = TopicConfig(segment_bytes=4_000, index_interval_bytes=300)


async def fill(log, topic_partition=TP, *, start: int, count: int) -> None:
    partition = log.partitions[topic_partition]
    for n in range(start, start + count):
        await partition.append(batch(b"%03d" % n + b"v" * 200, timestamp=NOW + n))


async def check(partition, offsets) -> None:
    for offset in offsets:
        read = await partition.read(offset, 1_000)
        assert decode_records(joined(read))[0].value.startswith(b"%03d" % offset)
        assert (await partition.offset_for_timestamp(NOW + offset)).offset == offset


def test_look_ups_leave_for_their_files_and_come_back(tmp_path):
    """All that was ever appended or read stayed in memory: 1.3 GB for a terabyte of batches of 16 KB."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        look_ups = log._shared.look_ups
        look_ups._most = 400
        for start in range(0, 200, 40):
            await fill(log, start=start, count=40)
            await log.checkpoint()
            await check(partition, [start + 39, 0, start + 20, start // 2])
        assert sum(segment.look_up_bytes for segment in partition.segments) == look_ups.size_bytes <= 400
        await check(partition, range(0, 200, 7))
        await fill(log, start=200, count=40)
        await housekeeping.delete_records(partition, 100)
        await check(partition, range(239, 100, -11))
        await log.close()
        log = await open_log(tmp_path)
        log._shared.look_ups._most = 400
        log.partitions[TP].config = TOPIC
        await check(log.partitions[TP], range(100, 240, 9))
        await fill(log, start=240, count=5)
        await check(log.partitions[TP], [244, 100, 243, 242, 150])
        await log.close()

    with structlog.testing.capture_logs() as logs:
        run(test())
    assert "index_rebuilt" not in {entry["event"] for entry in logs}


@pytest.mark.parametrize("killed", [True, False])
def test_look_ups_of_what_is_written_and_not_read_leave_for_their_files(tmp_path, killed):
    """What was added to a segment after its look-ups had left, or after a start, stayed in memory for ever."""

    async def write(log, *, start: int) -> None:
        log._shared.look_ups._most = 0
        for partition in log.partitions.values():
            partition.config = TOPIC
        for number in range(start, start + 40, 5):
            for topic_partition in (TP, OTHER):
                await fill(log, topic_partition, start=number, count=5)
            await log.checkpoint()
        segments = [segment for partition in log.partitions.values() for segment in partition.segments]
        assert sum(segment.look_up_bytes > 0 for segment in segments) <= 1  # the one that was used last
        for topic_partition in (TP, OTHER):
            await fill(log, topic_partition, start=start + 40, count=3)
        if killed:
            abandon(log)
        else:
            await log.close()

    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TOPIC)
        await log.create_partition(OTHER, OTHER_ID, TOPIC)
        await write(log, start=0)
        await write(await open_log(tmp_path), start=43)
        log = await open_log(tmp_path)
        for partition in log.partitions.values():
            await check(partition, range(86))
        await log.close()

    with structlog.testing.capture_logs() as logs:
        run(test())
    assert "index_rebuilt" not in {entry["event"] for entry in logs}


def test_look_ups_that_a_start_without_a_checkpoint_has_built_may_leave(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TOPIC)
        await fill(log, start=0, count=100)
        await log.close()
        (tmp_path / "checkpoint").unlink()
        log = await open_log(tmp_path)
        look_ups, partition = log._shared.look_ups, log.partitions[TP]
        look_ups._most = 40
        await check(partition, [0])
        assert sum(segment.look_up_bytes for segment in partition.segments) == look_ups.size_bytes <= 40
        await check(partition, range(100))
        await log.close()

    with structlog.testing.capture_logs() as logs:
        run(test())
    assert "index_rebuilt" not in {entry["event"] for entry in logs}


def test_more_look_ups_may_leave_while_those_in_the_file_are_read(tmp_path, monkeypatch):
    read_indexes = Segment.read_indexes
    reads, goes_on = threading.Semaphore(0), threading.Event()

    def read_slowly(segment, *args):
        reads.release()
        assert goes_on.wait(60)
        return read_indexes(segment, *args)

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        other = await log.create_partition(OTHER, OTHER_ID, TOPIC)
        log._shared.look_ups._most = 0
        await fill(log, start=0, count=5)
        await log.checkpoint()
        active = partition.segments.active
        log._shared.look_ups.used(other.segments.active)
        assert (active.indexed, active.look_up_bytes) == (False, 0)
        monkeypatch.setattr(Segment, "read_indexes", read_slowly)
        checked = asyncio.ensure_future(check(partition, [4]))
        await asyncio.to_thread(reads.acquire)
        await fill(log, start=5, count=5)
        await log.checkpoint()
        log._shared.look_ups.used(other.segments.active)
        assert (active.indexed, active.look_up_bytes) == (False, 0)
        whole = sum(state.length for state in active.unloaded)
        goes_on.set()
        await checked
        assert active.look_up_bytes == whole
        await check(partition, range(10))
        await fill(log, start=10, count=5)
        await log.close()
        log = await open_log(tmp_path)
        await check(log.partitions[TP], range(15))
        await log.close()

    with structlog.testing.capture_logs() as logs:
        run(test())
    assert "index_rebuilt" not in {entry["event"] for entry in logs}


def test_what_no_checkpoint_has_seen_stays(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        look_ups = log._shared.look_ups
        look_ups._most = 0
        await fill(log, start=0, count=40)
        before = sum(segment.look_up_bytes for segment in partition.segments)
        await check(partition, range(40))
        assert sum(segment.look_up_bytes for segment in partition.segments) == before
        await log.checkpoint()
        await check(partition, range(40))
        in_memory = [segment for segment in partition.segments if segment.look_up_bytes]
        assert in_memory == [segment for segment in partition.segments if segment.indexed] != partition.segments[:]
        await log.close()

    run(test())


def test_those_used_least_lately_leave_first_and_deleted_ones_count_no_more(tmp_path):
    files = OpenFiles(None, 4)
    first, second, third = (Segment(tmp_path, base, files) for base in (0, 10, 20))
    for segment in (first, second, third):
        for n in range(10):
            segment.count_in(segment.base_offset + n, 100, NOW + n, 0)
        segment.index_writes(segment.state())
        segment.is_saved(segment.state())
    size = first.look_up_bytes
    look_ups = LookUps(2 * size)
    for segment in (first, second, first, third):
        look_ups.used(segment)
    assert [segment.indexed for segment in (first, second, third)] == [True, False, True]
    first.retired = True
    look_ups.forget([first])
    look_ups.used(first)  # somebody still reads it
    assert look_ups.size_bytes == size
    fourth = Segment(tmp_path, 30, files)
    for n in range(10):
        fourth.count_in(30 + n, 100, NOW + n, 0)
    look_ups.used(fourth)
    assert look_ups.size_bytes == 2 * size
    assert third.indexed


def test_segments_that_have_left_are_not_remembered(tmp_path):
    """Those whose look-ups took no bytes, 1 KB each, stayed until memory was short; topics that came and went too."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await fill(log, start=0, count=60)
        await log.checkpoint()
        await check(partition, range(0, 60, 5))
        await housekeeping.delete_records(partition, 40)
        await check(partition, [59])
        assert set(log._shared.look_ups._sizes) == set(partition.segments)
        await log.delete_partition(TP)
        assert not log._shared.look_ups._sizes
        assert log._shared.look_ups.size_bytes == 0
        await log.close()

    run(test())


def test_a_segment_too_short_for_look_ups_has_no_files_of_them(tmp_path):
    """A clean end made two empty files for each of thousands of partitions."""

    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await fill(log, start=0, count=10)
        await log.close()
        assert not [*(tmp_path / "orders-0").glob("*index")]
        log = await open_log(tmp_path)
        await check(log.partitions[TP], range(10))
        await fill(log, start=10, count=40)
        await log.close()
        assert len([*(tmp_path / "orders-0").glob("*index")]) == 2
        with structlog.testing.capture_logs() as logs:
            log = await open_log(tmp_path)
            await check(log.partitions[TP], range(50))
        assert not logs
        await log.close()

    run(test())
