"""One step of a recovery at a time; whole starts are in test_recovery.py."""

import asyncio

from mainstem.core import ManualClock
from mainstem.log import SystemDisk, TopicConfig, replay
from mainstem.log.cold import ColdReads
from mainstem.log.compaction import Replacement
from mainstem.log.partition import PartitionLog, Shared
from mainstem.log.segment import OpenFiles
from mainstem.log.threads import FileThreads
from mainstem.log.writer import Writer
from mainstem.records import iter_headers
from tests.log.support import TOPIC_ID, TP, batch, run, sequenced, with_partition


def replayed(tmp_path, steps):
    """What `steps` make of a partition that nobody else has."""

    async def story():
        loop, threads = asyncio.get_running_loop(), FileThreads(1)
        files = OpenFiles(SystemDisk(), 10)
        shared = Shared(ManualClock(), files, threads, ColdReads(threads), Writer(loop, None, None, None), loop)
        partition = PartitionLog(TP, TOPIC_ID, tmp_path, shared)
        steps(partition)
        threads.close()

    run(story())


def at(offset: int, data: bytes):
    return bytes(offset.to_bytes(8, "big") + data[8:])


def count(partition, data: bytes) -> None:
    position = 0
    for header in iter_headers(data):
        replay.count_in(partition, header, memoryview(data)[position : position + header.size], append_ms=7)
        position += header.size


def test_batches_lead_to_offsets_epochs_and_producers(tmp_path):
    data = at(0, sequenced(b"a", b"b", sequence=0)) + at(2, batch(b"c"))

    def steps(partition):
        replay.active_segment(partition, 0)
        count(partition, data)
        assert (partition.log_end_offset, partition.size_bytes) == (3, len(data))
        assert (partition.producer(1).last_sequence, partition.producer(1).last_append_ms) == (1, 7)
        partition.start(bump_epoch=True)
        assert (partition.high_watermark, partition.leader_epoch) == (3, 1)

    replayed(tmp_path, steps)


def test_a_segment_is_active_from_its_base_offset_on(tmp_path):
    def steps(partition):
        first = replay.active_segment(partition, 0)
        assert replay.active_segment(partition, 0) is first
        count(partition, at(0, batch(b"v")))
        second = replay.active_segment(partition, 1)
        assert list(partition.segments) == [first, second]
        assert partition.segments.changed

    replayed(tmp_path, steps)


def test_what_a_deleted_batch_meant_for_its_producer(tmp_path):
    data = at(4, sequenced(b"a", b"b", sequence=7, transactional=True))

    def steps(partition):
        (header,) = iter_headers(data)
        replay.count_producer(partition, header, memoryview(data), append_ms=7)
        assert partition.producer(1).last_sequence == 8
        assert dict(partition.open_transactions) == {1: 4}
        assert partition.log_end_offset == 0
        replay.forget_producers(partition)
        assert partition.producer(1) is None
        assert dict(partition.open_transactions) == {}

    replayed(tmp_path, steps)


def test_the_log_start_never_goes_back(tmp_path):
    def steps(partition):
        replay.move_log_start(partition, 5)
        replay.move_log_start(partition, 3)
        assert partition.log_start_offset == 5

    replayed(tmp_path, steps)


def test_an_exchange(tmp_path):
    def steps(partition):
        for offset in range(3):
            replay.active_segment(partition, offset)
            count(partition, at(offset, batch(b"v")))
        first, second, third = partition.segments
        replay.exchange(partition, Replacement(first.state(), [0, 1]))
        assert [segment.base_offset for segment in partition.segments] == [0, 2]
        assert [segment.retired for segment in (first, second, third)] == [True, True, False]

    replayed(tmp_path, steps)


def test_what_the_checkpoint_says_is_restored(tmp_path):
    async def write(partition):
        await partition.append(sequenced(b"a", sequence=0, transactional=True))
        state = partition.state()

        def steps(other):
            replay.restore(other, state)
            assert other.state() == state
            assert dict(other.open_transactions) == {1: 0}
            assert not other.changed

        return state, steps

    _, steps = run(with_partition(tmp_path / "log", write, topic=TopicConfig()))
    replayed(tmp_path, steps)
