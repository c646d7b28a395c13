"""The doors of a partition; histories of many calls are in test_partition_model.py."""

import asyncio
import errno
import gc
import threading
import weakref

import pytest
from crc32c import crc32c

from mainstem.core import ManualClock
from mainstem.log import BatchTooLarge, InvalidRecord, OutOfOrderSequence, StorageError, TopicConfig, validation
from mainstem.records import CorruptBatch, CorruptRecords, iter_headers
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, batch, joined, open_log, read_all, run, sequenced, values, with_partition

NOW = 1_700_000_000_000


def test_offsets_and_epoch_are_assigned_and_the_rest_stays_byte_for_byte(tmp_path):
    data = batch(b"a", b"b", compression="snappy")

    async def test(partition):
        await partition.append(batch(b"first"))
        result = await partition.append(memoryview(data))
        assert (result.base_offset, result.last_offset, result.log_append_time_ms) == (1, 2, -1)
        read = await partition.read(1, 1_000)
        assert joined(read)[16:] == data[16:]
        header = next(iter_headers(joined(read)))
        assert (header.base_offset, header.leader_epoch) == (1, partition.leader_epoch)

    run(with_partition(tmp_path, test))


def test_several_batches_at_once(tmp_path):
    async def test(partition):
        result = await partition.append(batch(b"a") + batch(b"b", b"c"))
        assert (result.base_offset, result.last_offset) == (0, 2)
        assert await values(partition) == [b"a", b"b", b"c"]

    run(with_partition(tmp_path, test))


def test_a_new_batch_behind_a_repeated_one_is_not_acknowledged_with_it(tmp_path):
    """Both were answered as repeated, and the second was nowhere."""

    async def test(partition):
        first, second = sequenced(b"1", sequence=0), sequenced(b"2", sequence=1)
        await partition.append(first)
        with pytest.raises(InvalidRecord, match="2 batches, expected one"):
            partition.append(first + second)
        assert (await partition.append(second)).base_offset == 1
        assert await values(partition) == [b"1", b"2"]

    run(with_partition(tmp_path, test))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (b"no batch", CorruptBatch),
        (batch(b"good") + batch(b"good")[:-1], CorruptBatch),
        (batch(b"good") + batch(b"v" * 2_000), BatchTooLarge),
        (sequenced(b"1", sequence=0) + sequenced(b"2", sequence=1), InvalidRecord),
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
        assert joined(await partition.read(0, 1_000, committed_only=True)) == b""
        future = partition.append_marker(1, 0, commit=True, coordinator_epoch=3)
        assert partition.last_stable_offset == 0  # the marker is not durable yet
        assert (await future).base_offset == 2
        assert partition.last_stable_offset == 3
        assert await values(partition, committed_only=True) == [b"open", b"plain"]

    run(with_partition(tmp_path, test))


def test_a_transaction_whose_marker_is_not_durable_holds_readers_back_while_what_lies_before_it_is(tmp_path):
    async def test(partition):
        await partition.append(sequenced(b"open", sequence=0, transactional=True))
        plain = partition.append(batch(b"plain"))
        await asyncio.sleep(0)  # its round has begun
        marker = partition.append_marker(1, 0, commit=True, coordinator_epoch=3)
        assert not partition.open_transactions
        await plain
        assert not marker.done()
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
        assert joined(await partition.read(0, 1_000, committed_only=True)) == b""
        await marker
        assert partition.last_stable_offset == 3

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


def test_an_error_that_is_kept_keeps_nothing_of_those_who_meet_it(tmp_path):
    """Each would leave its frames in the traceback: a producer that tries again took 900 MB of memory in a second."""

    class Request:
        pass

    async def test(partition):
        def met(use):
            request = Request()
            met_by.append(weakref.ref(request))
            try:
                use(request)
            except StorageError as error:
                told.append((str(error), error.hint))

        met_by, told = [], []
        with pytest.raises(OSError, match="No such file") as failed:
            (tmp_path / "missing").read_bytes()
        partition.found_damage(partition.segments[0], failed.value)
        gc.disable()
        try:
            met(lambda _: partition.check_usable())
            met(lambda _: partition.check_appendable())
            met(lambda _: partition.append(batch(b"refused")))
        finally:
            gc.enable()
        kept = [partition.error, partition.append_error]
        assert [(each.__traceback__, each.__cause__, each.__context__) for each in kept] == [(None, None, None)] * 2
        assert [each() for each in met_by] == [None] * 3
        assert told == [(str(partition.error), partition.repair_hint)] * 3

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
        partition.found_damage(partition.segments[0], OSError(errno.EIO, "once"))
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
        partition.found_damage(partition.segments[0], OSError(errno.EIO, "once"))
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
    threads, original = [], validation.recompress

    def recompress(*arguments):
        threads.append(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr("mainstem.log.validation.recompress", recompress)

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


def test_many_batches_of_one_append_are_not_taken(tmp_path):
    """A million in a request kept everybody waiting for half a minute, and took 1.4 GB."""

    async def test(partition):
        assert (await partition.append(8 * batch(b"v"))).last_offset == 7
        with pytest.raises(InvalidRecord, match="more than 8 batches at once"):
            partition.append(9 * batch(b"v"))
        cut = 9 * batch(b"v") + b"x"
        with pytest.raises(InvalidRecord, match="more than 8 batches at once"):  # not looked at to the end
            partition.append(cut)
        assert partition.log_end_offset == 8

    run(with_partition(tmp_path, test))


def test_many_batches_of_one_append_are_not_looked_into(tmp_path, monkeypatch):
    """A thousand bytes may take a tenth of a second."""

    async def test(partition):
        assert len(await partition.prepare(8 * batch(b"v", compression="zstd")))
        with pytest.raises(InvalidRecord, match="more than 8 batches at once"):
            await partition.prepare(9 * batch(b"v", compression="zstd"))
        monkeypatch.setattr(validation, "_MOST_RECORDS", 5)
        assert len(await partition.prepare(5 * batch(b"v", compression="zstd")))
        with pytest.raises(BatchTooLarge, match="more than 5 records at once"):
            await partition.prepare(6 * batch(b"v", compression="zstd"))

    run(with_partition(tmp_path, test, topic=TopicConfig(compression_type="gzip")))


def test_what_a_batch_unpacks_to_is_bounded_however_large_batches_may_be(tmp_path):
    """Whoever may create a topic says how large: 12 MB were 384 MB unpacked."""

    async def test(partition):
        large = batch(bytes(70_000_000), compression="zstd")
        with pytest.raises(BatchTooLarge, match="67108864"):
            await partition.prepare(large)

    topic = TopicConfig(compression_type="gzip", max_message_bytes=12_000_000)
    run(with_partition(tmp_path, test, topic=topic))


def test_batches_of_one_append_that_grow_to_much_are_refused(tmp_path):
    """Each is within the limit, a hundred kilobytes of them would be a hundred megabytes."""

    async def test(partition):
        with pytest.raises(BatchTooLarge, match="bytes of batches grow to more than"):
            await partition.prepare(40 * batch(bytes(2**20 - 100), compression="zstd"))

    run(with_partition(tmp_path, test, topic=TopicConfig(compression_type="uncompressed")))
