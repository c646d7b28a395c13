"""The doors of a partition; histories of many calls are in test_partition_model.py."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from crc32c import crc32c
from hypothesis import given, settings

from mainstem.core import ManualClock
from mainstem.log import (
    BatchTooLarge,
    InvalidRecord,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageError,
    SystemDisk,
    TopicConfig,
    validation,
)
from mainstem.log.disk import SystemFile
from mainstem.log.threads import FileThreads
from mainstem.records import CorruptBatch, CorruptRecords, decode_header, decode_records, iter_headers
from mainstem.records.record import assemble_batch
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, batch, open_log, read_all, run, values, with_partition
from tests.support.properties import examples

NOW = 1_700_000_000_000


def sequenced(*content, sequence, transactional=False, epoch=0, producer_id=1):
    return batch(
        *content, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


def test_offsets_and_epoch_are_assigned_and_the_rest_stays_byte_for_byte(tmp_path):
    data = batch(b"a", b"b", compression="snappy", base_offset=99)

    async def test(partition):
        await partition.append(batch(b"first"))
        result = await partition.append(memoryview(data))
        assert (result.base_offset, result.last_offset, result.log_append_time_ms) == (1, 2, -1)
        read = await partition.read(1, 1_000)
        assert read.records[16:] == data[16:]
        header = next(iter_headers(read.records))
        assert (header.base_offset, header.leader_epoch) == (1, partition.leader_epoch)

    run(with_partition(tmp_path, test))


def test_several_batches_at_once(tmp_path):
    async def test(partition):
        result = await partition.append(batch(b"a") + batch(b"b", b"c"))
        assert (result.base_offset, result.last_offset) == (0, 2)
        assert await values(partition) == [b"a", b"b", b"c"]

    run(with_partition(tmp_path, test))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (b"no batch", CorruptBatch),
        (batch(b"good") + batch(b"good")[:-1], CorruptBatch),
        (batch(b"good") + batch(b"v" * 2_000), BatchTooLarge),
        (sequenced(b"1", sequence=0) + sequenced(b"3", sequence=2), OutOfOrderSequence),
    ],
)
def test_a_refused_append_changes_nothing(tmp_path, data, error):
    async def test(partition):
        with pytest.raises(error):
            partition.append(data)
        assert (partition.log_end_offset, partition.producers(), partition.size_bytes) == (0, [], 0)
        assert (await partition.append(batch(b"next"))).base_offset == 0

    run(with_partition(tmp_path, test, topic=TopicConfig(max_message_bytes=1_000)))


def test_a_repeated_batch_gives_the_first_ones_offsets_when_those_are_durable(tmp_path):
    async def test(partition):
        await partition.append(batch(b"other"))
        first = partition.append(sequenced(b"a", b"b", sequence=0))
        again = partition.append(sequenced(b"a", b"b", sequence=0))
        assert not again.done()
        assert (await again).base_offset == (await first).base_offset == 1
        assert (again.result().duplicate, first.result().duplicate) == (True, False)
        later = partition.append(sequenced(b"a", b"b", sequence=0))
        assert later.done()
        assert await values(partition) == [b"other", b"a", b"b"]

    run(with_partition(tmp_path, test))


def test_a_retry_after_a_restart_is_a_repetition_too(tmp_path):
    async def write(partition):
        for n in range(7):
            await partition.append(sequenced(b"%d" % n, sequence=n))

    async def retry(partition):
        for n in range(2, 7):
            result = await partition.append(sequenced(b"%d" % n, sequence=n))
            assert (result.base_offset, result.duplicate) == (n, True)
        with pytest.raises(OutOfOrderSequence):
            partition.append(sequenced(b"1", sequence=1))

    run(with_partition(tmp_path, write))
    run(with_partition(tmp_path, retry))


def test_verify_is_asked_about_new_transactional_batches_only(tmp_path):
    asked = []

    async def test(partition):
        await partition.append(batch(b"plain"), verify=asked.append)
        await partition.append(sequenced(b"t", sequence=0, transactional=True), verify=asked.append)
        await partition.append(sequenced(b"t", sequence=0, transactional=True), verify=asked.append)
        assert [header.base_sequence for header in asked] == [0]

        def refuse(header):
            raise PermissionError("not in a transaction")

        with pytest.raises(PermissionError):
            partition.append(sequenced(b"u", sequence=1, transactional=True), verify=refuse)
        assert partition.log_end_offset == 2

    run(with_partition(tmp_path, test))


def test_readers_of_committed_records_wait_for_the_marker(tmp_path):
    async def test(partition):
        await partition.append(sequenced(b"open", sequence=0, transactional=True))
        await partition.append(batch(b"plain"))
        assert dict(partition.open_transactions) == {1: 0}
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
        assert (await partition.read(0, 1_000, committed_only=True)).records == b""
        future = partition.append_marker(1, 0, commit=True, coordinator_epoch=3)
        assert partition.last_stable_offset == 0  # the marker is not durable yet
        assert (await future).base_offset == 2
        assert partition.last_stable_offset == 3
        assert await values(partition, committed_only=True) == [b"open", b"plain"]

    run(with_partition(tmp_path, test))


def test_aborted_transactions_are_named_to_those_whom_they_touch(tmp_path):
    async def test(partition):
        await partition.append(sequenced(b"a", sequence=0, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        await partition.append(batch(b"b"))
        await partition.append(sequenced(b"c", sequence=1, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        whole = await partition.read(0, 10_000, committed_only=True)
        assert [(a.producer_id, a.first_offset) for a in whole.aborted] == [(1, 0), (1, 3)]
        assert (await partition.read(2, 1, committed_only=True)).aborted == ()
        assert (await partition.read(0, 10_000)).aborted == ()
        assert await values(partition, committed_only=True) == [b"b"]
        assert await values(partition) == [b"a", b"b", b"c"]

    run(with_partition(tmp_path, test))
    run(with_partition(tmp_path, lambda p: _committed(p, [b"b"])))


async def _committed(partition, expected):
    assert await values(partition, committed_only=True) == expected


def test_reads_at_the_edges(tmp_path):
    async def test(partition):
        assert (await partition.read(0, 100)).records == b""
        await partition.append(batch(*[b"v" * 300] * 4))
        size = partition.size_bytes
        small = await partition.read(2, 10)
        assert len(small.records) == size  # the whole batch that holds the offset, also a large one
        assert (await partition.read(2, 10, at_least_one=False)).records == b""
        assert (await partition.read(4, 100)).records == b""
        for offset in (-1, 5):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset}, expected 0 to 4"):
                await partition.read(offset, 100)

    run(with_partition(tmp_path, test))


def test_a_batch_larger_than_a_read_is_read_whole(tmp_path):
    async def test(partition):
        await partition.append(batch(b"small"))
        await partition.append(batch(b"v" * 900_000))
        read = await partition.read(1, 1_000)
        assert decode_records(read.records)[0].value == b"v" * 900_000

    run(with_partition(tmp_path, test))


@given(
    sizes=st.lists(st.sampled_from([10, 5_000, 70_000, 300_000]), min_size=1, max_size=8), most=st.integers(0, 200_000)
)
@settings(max_examples=examples(25))
def test_large_batches_that_the_index_names_are_found(sizes, most):
    """A batch that was only partly within the first read was expected to begin where the segment does."""

    async def test(partition):
        for size in sizes:
            await partition.append(batch(b"v" * size))
        for offset, size in enumerate(sizes):
            read = await partition.read(offset, most)
            assert decode_records(read.records)[0].value == b"v" * size

    with TemporaryDirectory() as directory:
        run(with_partition(Path(directory), test))


@given(
    sizes=st.lists(st.sampled_from([1, 30, 400, 3_000]), min_size=1, max_size=40),
    most=st.integers(0, 20_000),
    committed_only=st.booleans(),
)
@settings(max_examples=examples(40))
def test_a_read_in_steps_gives_what_fits(sizes, most, committed_only):
    async def test(partition):
        for number, size in enumerate(sizes):
            await partition.append(sequenced(b"v" * size, sequence=number, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        offset = 0
        while offset <= len(sizes):
            read = await partition.read(offset, most, committed_only=committed_only)
            headers = list(iter_headers(read.records))
            assert [header.base_offset for header in headers] == list(range(offset, offset + len(headers)))
            assert len(read.records) <= most or len(headers) == 1
            assert [each.first_offset for each in read.aborted] == ([0] if committed_only else [])
            offset += len(headers)
            slack = SLACK + 4_000  # of which no further step is made, and the batch that did not fit
            assert headers
            assert len(read.records) > most - slack or offset == len(sizes) + 1

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.partition._READ_STEP", 1_000)
        patch.setattr("mainstem.log.partition.READ_SLACK", SLACK)
        patch.setattr("mainstem.log.partition._LONG_STEP", 0)
        run(with_partition(Path(directory), test, topic=TopicConfig(index_interval_bytes=500)))


SLACK = 200


def test_others_have_their_turn_while_much_is_read(tmp_path):
    """16 MB of small batches were gone through at once: nobody else was served for 0.2 s and more."""

    async def test(partition):
        appends = [partition.append(batch(b"v" * 1_000)) for _ in range(5_000)]
        await asyncio.gather(*appends)
        turns = 0

        def count():
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        read = await partition.read(0, 2**24)
        assert turns >= 4
        assert len(read.records) == partition.size_bytes

    run(with_partition(tmp_path, test))


class ColdDisk(SystemDisk):
    """Nothing is in the page cache."""

    def __init__(self):
        self.readers = set()

    def open(self, path, *, create=False):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        return ColdFile(path, descriptor, self.readers)


class ColdFile(SystemFile):
    def __init__(self, path, descriptor, readers):
        super().__init__(path, descriptor)
        self._nowait = False
        self.readers = readers

    def read(self, size, position):
        self.readers.add(threading.get_ident())
        return super().read(size, position)


def test_what_is_not_in_the_page_cache_is_read_in_a_thread(tmp_path):
    async def test(partition):
        await asyncio.gather(*(partition.append(batch(b"%d" % n)) for n in range(20)))
        assert await values(partition) == [b"%d" % n for n in range(20)]
        assert disk.readers
        assert threading.get_ident() not in disk.readers

    disk = ColdDisk()
    run(with_partition(tmp_path, test, disk=disk))


@pytest.mark.parametrize("how", ["cut", "gone"])
@pytest.mark.parametrize("cold", [False, True])
def test_a_segment_that_lost_bytes_meanwhile_is_damage(tmp_path, how, cold):
    """A read that came back short was tried again for ever; a missing file was made anew, empty."""

    async def test(partition):
        for _ in range(5):
            await partition.append(batch(b"v" * 200))
        path = partition.segments[0].path
        if how == "cut":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size - 50)
        else:
            path.unlink()
            partition.segments[0].opened = None
        async with asyncio.timeout(10):
            with pytest.raises(StorageError, match=r"were written|No such file"):
                await partition.read(4, 1_000)
        assert partition.error is not None
        assert path.exists() == (how == "cut")

    run(with_partition(tmp_path, test, disk=ColdDisk() if cold else SystemDisk()))


def test_segments_roll_by_size_and_by_the_records_time(tmp_path):
    clock = ManualClock()

    async def test(partition):
        for _ in range(4):
            await partition.append(batch(b"v" * 300))
        assert [segment.base_offset for segment in partition.segments] == [0, 2]
        clock.advance_ms(5_000)
        await partition.append(batch(b"later", timestamp=clock.now_ms()))
        assert [segment.base_offset for segment in partition.segments] == [0, 2, 4]
        assert len(await values(partition)) == 5
        assert max(p.name for p in partition.directory.glob("*.log")) == f"{4:020d}.log"

    run(with_partition(tmp_path, test, topic=TopicConfig(segment_bytes=800, segment_ms=1_000), clock=clock))


def test_lookups_by_time(tmp_path):
    clock = ManualClock()
    times = [NOW + 10 * n for n in range(30)]

    async def check(partition):
        found = await partition.offset_for_timestamp(NOW + 95)
        assert (found.offset, found.timestamp) == (10, NOW + 100)
        assert (await partition.offset_for_timestamp(0)).offset == 0
        assert await partition.offset_for_timestamp(NOW + 1_000) is None
        assert (await partition.latest_timestamp()).offset == 29
        await partition.delete_records(12)
        assert (await partition.offset_for_timestamp(0)).offset == 12

    async def test(partition):
        assert await partition.latest_timestamp() is None
        for time in times:
            await partition.append(batch(b"v" * 100, timestamp=time))
        await check(partition)

    topic = TopicConfig(segment_bytes=1_000, index_interval_bytes=200)
    run(with_partition(tmp_path, test, topic=topic, clock=clock))


def garbage(timestamp: int) -> bytes:
    """A batch whose CRC is right and whose records are none."""
    header = decode_header(batch(b"a", timestamp=timestamp))
    return assemble_batch(header, b"garbage")


def test_a_batch_that_only_its_writer_understands_is_no_damage(tmp_path):
    """One client's broken batch took the partition offline at the next look-up by time, or at a compaction."""
    clock = ManualClock()

    async def test(partition):
        await partition.append(batch(b"1", key=b"k", timestamp=NOW + 5))
        await partition.append(garbage(NOW + 10))
        await partition.append(batch(b"2", key=b"k", timestamp=NOW + 20))
        await partition.append(garbage(NOW + 30))
        assert (await partition.offset_for_timestamp(NOW + 6)).offset == 2
        assert await partition.offset_for_timestamp(NOW + 25) is None
        assert (await partition.latest_timestamp()).offset == 2
        partition.config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        partition.roll()
        cleaner = FileThreads(1)
        segment = partition.segments[0]
        segment.checkpointed_size = segment.size
        assert await partition.compact(cleaner, threading.Event(), most_keys=10)
        cleaner.close()
        result = await partition.read(0, 10_000)
        assert [header.base_offset for header in iter_headers(result.records)] == [1, 2, 3]
        assert (await partition.append(batch(b"3"))).base_offset == 4

    run(with_partition(tmp_path, test, clock=clock))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_or_memory_is_no_damage(tmp_path, error):
    """Every error of a read took the partition offline until the next start."""

    class Wanting(SystemDisk):
        wanting = False

        def open(self, path, *, create=False):
            if self.wanting and path.suffix == ".log":
                raise OSError(error, os.strerror(error))
            return super().open(path, create=create)

    disk = Wanting()

    async def test(partition):
        await partition.append(batch(b"v"))
        partition.segments[0].opened = None
        disk.wanting = True
        for look in (partition.read(0, 100), partition.offset_for_timestamp(0), partition.latest_timestamp()):
            with pytest.raises(StorageError, match=os.strerror(error)):
                await look
        disk.wanting = False
        assert partition.error is None
        assert await values(partition) == [b"v"]

    run(with_partition(tmp_path, test, disk=disk))


def test_damage_found_by_a_lookup_by_time_is_told(tmp_path):
    """The look-ups of a segment from before the start were loaded outside any guard."""

    async def fill(partition):
        for n in range(20):
            await partition.append(batch(b"v" * 100, timestamp=NOW + n))

    async def look(partition):
        path = partition.segments[0].path
        data = bytearray(path.read_bytes())
        data[30] ^= 1
        path.write_bytes(data)
        for index in partition.directory.glob("*index"):
            index.unlink()
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.offset_for_timestamp(NOW + 3)
        assert partition.error is not None

    topic = TopicConfig(index_interval_bytes=200)
    run(with_partition(tmp_path, fill, topic=topic))
    run(with_partition(tmp_path, look, topic=topic))


def test_a_batch_that_cannot_be_put_in_the_topics_form_changes_nothing(tmp_path):
    async def test(partition):
        with pytest.raises(CorruptRecords):
            partition.append(batch(b"good") + bad_lz4())
        assert (partition.log_end_offset, partition.size_bytes) == (0, 0)
        assert (await partition.append(batch(b"next"))).base_offset == 0

    def bad_lz4():
        data = bytearray(batch(b"v"))
        data[22] |= 3
        data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
        return bytes(data)

    run(with_partition(tmp_path, test, topic=TopicConfig(compression_type="zstd")))


def test_deleted_records_are_gone_for_good_and_their_segments_too(tmp_path):
    async def test(partition):
        for _ in range(6):
            await partition.append(batch(b"v" * 300))
        assert await partition.delete_records(3) == 3
        assert await partition.delete_records(1) == 3
        assert [segment.base_offset for segment in partition.segments] == [2, 4]
        assert not (partition.directory / f"{0:020d}.log").exists()
        with pytest.raises(OffsetOutOfRange):
            await partition.read(2, 100)
        with pytest.raises(OffsetOutOfRange):
            await partition.delete_records(7)
        assert await partition.delete_records(-1) == 6

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
        assert await partition.enforce_retention() == 0
        clock.advance_ms(600)
        assert await partition.enforce_retention() > 0
        assert partition.log_start_offset == 2
        clock.advance_ms(5_000)
        await partition.enforce_retention()
        assert (partition.log_start_offset, partition.log_end_offset, partition.size_bytes) == (3, 3, 0)
        assert (await partition.append(batch(b"new", timestamp=clock.now_ms()))).base_offset == 3
        assert await values(partition) == [b"new"]

    topic = TopicConfig(segment_bytes=800, retention_ms=2_500)
    run(with_partition(tmp_path, test, topic=topic, clock=clock))


def test_listeners_hear_of_the_partitions_end_and_can_leave(tmp_path):
    calls = []

    async def test(partition):
        first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
        partition.add_listener(first)
        partition.add_listener(second)
        await partition.append(batch(b"v"))
        partition.remove_listener(first)
        partition.remove_listener(first)
        assert calls == ["first", "second"]

    run(with_partition(tmp_path, test))
    assert calls == ["first", "second", "second"]


def test_log_append_time(tmp_path):
    clock = ManualClock(NOW + 77)

    async def test(partition):
        result = await partition.append(batch(b"v", timestamp=5))
        assert result.log_append_time_ms == NOW + 77
        assert (await read_all(partition))[0].timestamp == NOW + 77
        again = await partition.append(sequenced(b"p", sequence=0))
        clock.advance_ms(1_000)
        assert (await partition.append(sequenced(b"p", sequence=0))).log_append_time_ms == again.log_append_time_ms

    run(with_partition(tmp_path, test, topic=TopicConfig(message_timestamp_type="LogAppendTime"), clock=clock))


def test_epochs_answer_where_they_ended(tmp_path):
    async def test(partition):
        await partition.append(batch(b"a", b"b"))
        assert partition.end_offset_for_epoch(0) == (0, 2)
        assert partition.end_offset_for_epoch(9) == (-1, -1)

    run(with_partition(tmp_path, test))


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_was_queued_when_a_partition_went_offline_is_not_missed_at_the_next_start(tmp_path, in_flight):
    """The checkpoint counted appends that were refused and never written: the next start took them for lost ones."""

    async def story():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"acknowledged"))
        await log.checkpoint()
        refused = [partition.append(batch(b"refused")) for _ in range(2)]
        if in_flight:
            await asyncio.sleep(0)
            refused.append(partition.append(batch(b"refused")))
        partition._broken(partition.segments[0], OSError(errno.EIO, "once"))
        for each in refused:
            with pytest.raises(StorageError, match="once"):
                await each
        await log.checkpoint()
        await log.close()
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert partition.error is None
        assert await values(partition) == [b"acknowledged"] + len(refused) * [b"refused"]
        await partition.append(batch(b"next"))
        await log.close()

    run(story())


def test_a_full_disk_still_undoes_what_was_queued_when_a_partition_went_offline(tmp_path):
    """Its producer would be told later that a batch that is not there was appended before."""

    async def story():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        producer = {"producer_id": 1, "producer_epoch": 0}
        await partition.append(batch(b"acknowledged", base_sequence=0, **producer))
        disk.refuse("write", errno.ENOSPC, ".log")
        refused = partition.append(batch(b"refused", base_sequence=1, **producer))
        partition._broken(partition.segments[0], OSError(errno.EIO, "once"))
        with pytest.raises(StorageError, match="once"):
            await refused
        await log.close()
        log = await open_log(tmp_path, disk=disk)
        partition = log.partitions[TP]
        assert partition.producer(1).last_sequence == 0
        again = await partition.append(batch(b"refused", base_sequence=1, **producer))
        assert not again.duplicate
        assert await values(partition) == [b"acknowledged", b"refused"]
        await log.close()

    run(story())


def test_batches_are_brought_into_the_topics_compression_in_a_thread(tmp_path, monkeypatch):
    threads = []

    def recompress(*arguments):
        threads.append(threading.current_thread())
        return validation.recompress(*arguments)

    monkeypatch.setattr("mainstem.log.partition.recompress", recompress)

    async def test(partition):
        sent = batch(b"v" * 2_000, compression="gzip") + batch(b"w" * 2_000)
        assert partition.takes_long(sent)
        prepared = await partition.prepare(sent)
        assert [header.compression for header in iter_headers(prepared)] == [4, 4]
        assert threading.main_thread() not in threads
        assert not partition.takes_long(prepared)
        await partition.append(prepared, prepared=True)
        assert await values(partition) == [b"v" * 2_000, b"w" * 2_000]

    run(with_partition(tmp_path, test, topic=TopicConfig(compression_type="zstd")))


def test_batches_of_one_append_that_grow_to_much_are_refused(tmp_path):
    """Each is within the limit, a hundred kilobytes of them would be a hundred megabytes."""

    async def test(partition):
        with pytest.raises(BatchTooLarge, match="bytes of batches grow to more than"):
            await partition.prepare(40 * batch(bytes(2**20 - 100), compression="zstd"))

    run(with_partition(tmp_path, test, topic=TopicConfig(compression_type="uncompressed")))
