"""Reads by offset and by time, from the page cache and from the disk, and what they find broken."""

import asyncio
import errno
import os
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from mainstem.core import ManualClock
from mainstem.log import LogConfig, OffsetOutOfRange, StorageError, SystemDisk, TopicConfig, housekeeping
from mainstem.log.cleaner import Cleaner
from mainstem.log.disk import SystemFile
from mainstem.log.file_slice import FileSlice
from mainstem.log.reading import READ_SLACK
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import HEADER, decode_header, decode_records, iter_headers, iter_spans
from mainstem.records.record import assemble_batch
from tests.log import cold_disk
from tests.log.support import (
    TOPIC_ID,
    TP,
    CountedList,
    abandon,
    batch,
    drop_from_page_cache,
    joined,
    open_log,
    run,
    sequenced,
    skip_unless_told_of_the_page_cache,
    values,
    with_partition,
)
from tests.support.properties import examples

NOW = 1_700_000_000_000


def test_reads_at_the_edges(tmp_path):
    async def test(partition):
        assert joined(await partition.read(0, 100)) == b""
        await partition.append(batch(*[b"v" * 300] * 4))
        size = partition.size_bytes
        small = await partition.read(2, 10)
        assert len(joined(small)) == size  # the whole batch that holds the offset, also a large one
        assert joined(await partition.read(2, 10, at_least_one=False)) == b""
        assert joined(await partition.read(4, 100)) == b""
        for offset in (-1, 5):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset}, expected 0 to 4"):
                await partition.read(offset, 100)

    run(with_partition(tmp_path, test))


def test_a_batch_larger_than_a_read_is_read_whole(tmp_path):
    async def test(partition):
        await partition.append(batch(b"small"))
        await partition.append(batch(b"v" * 900_000))
        read = await partition.read(1, 1_000)
        assert decode_records(joined(read))[0].value == b"v" * 900_000

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
            assert decode_records(joined(read))[0].value == b"v" * size

    with TemporaryDirectory() as directory:
        run(with_partition(Path(directory), test))


SLACK = 200


@given(
    sizes=st.lists(st.sampled_from([1, 30, 400, 3_000]), min_size=1, max_size=40),
    most=st.integers(0, 20_000),
    committed_only=st.booleans(),
)
@example(sizes=[1, 3_000, 3_000], most=4_270, committed_only=False)
@settings(max_examples=examples(40))
def test_a_read_in_steps_gives_what_fits(sizes, most, committed_only):
    async def test(partition):
        for number, size in enumerate(sizes):
            await partition.append(sequenced(b"v" * size, sequence=number, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        offset = 0
        while offset <= len(sizes):
            read = await partition.read(offset, most, committed_only=committed_only)
            headers = list(iter_headers(joined(read)))
            assert [header.base_offset for header in headers] == list(range(offset, offset + len(headers)))
            assert len(joined(read)) <= most or len(headers) == 1
            assert [each.first_offset for each in read.aborted] == ([0] if committed_only else [])
            offset += len(headers)
            slack = SLACK + 4_000  # of which no further step is made, and the batch that did not fit
            assert headers
            assert len(joined(read)) > most - slack or offset == len(sizes) + 1

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.reading.READ_STEP", 1_000)
        for module in ("reader", "reading"):
            patch.setattr(f"mainstem.log.{module}.READ_SLACK", SLACK)
        patch.setattr("mainstem.log.reader._LONG_STEP", 0)
        run(with_partition(Path(directory), test, topic=TopicConfig(index_interval_bytes=500)))


@given(
    sizes=st.lists(st.sampled_from([1, 30, 400, 3_000]), min_size=1, max_size=60),
    most=st.integers(0, 20_000),
    committed_only=st.booleans(),
    at_least_one=st.booleans(),
    ended=st.booleans(),
    interval=st.sampled_from([0, 500, 5_000]),
)
@settings(max_examples=examples(60))
def test_what_is_sent_from_the_file_is_what_is_read(sizes, most, committed_only, at_least_one, ended, interval):
    """Perhaps less of it, never more, and who goes on gets all of it."""

    async def test(partition):
        for number, size in enumerate(sizes):
            await partition.append(sequenced(b"v" * size, sequence=number, transactional=number >= len(sizes) // 2))
        if ended:
            await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        how = {"committed_only": committed_only, "at_least_one": at_least_one}
        for offset in range(len(sizes)):
            read = await partition.read(offset, most, **how)
            found = await partition.read_to_send(offset, most, enough=0, **how)
            sent = b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in found.pieces)
            assert joined(read).startswith(sent)
            assert bool(sent) == bool(joined(read))
            assert len(sent) == found.size
            assert sent == b"".join(bytes(sent[span.position : span.end]) for span in iter_spans(sent)), "whole batches"
            assert found.is_cut or len(sent) == read.size
            slices.append(any(isinstance(piece, FileSlice) for piece in found.pieces))

    slices = []
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.reader._LEAST_SLICE", 100)
        patch.setattr(SystemFile, "cached_share", lambda *_: 1.0)  # the kernel takes pages back as it likes
        patch.setattr("mainstem.log.reader.READ_SLACK", SLACK)
        run(with_partition(Path(directory), test, topic=TopicConfig(index_interval_bytes=interval)))
    if most > 4_000 and sum(sizes[: len(sizes) // 2 or 1]) > 4_000:
        assert any(slices)


def test_only_what_was_appended_lately_and_is_in_memory_is_sent_from_the_file(tmp_path):
    clock, disk = ManualClock(), cold_disk.ColdDisk()

    async def test(partition):
        disk.share = 1.0
        for _ in range(5):
            await partition.append(batch(b"v" * 30_000))
        assert await _has_slices(partition)
        disk.share = 0.9
        assert not await _has_slices(partition)
        disk.share = 1.0
        clock.advance_ms(301_000)
        assert not await _has_slices(partition)

    run(with_partition(tmp_path, test, disk=disk, clock=clock))

    async def reopened(partition):
        await partition.append(batch(b"v" * 30_000))
        assert not await _has_slices(partition), "what an earlier run has appended is checked"

    run(with_partition(tmp_path, reopened, disk=disk))


def test_nothing_is_sent_from_a_file_where_too_many_stay_open_for_it(tmp_path, monkeypatch):
    async def test(partition):
        for _ in range(5):
            await partition.append(batch(b"v" * 30_000))
        assert await _has_slices(partition)
        monkeypatch.setattr(OpenFiles, "may_be_kept", False)
        assert not await _has_slices(partition)

    disk = cold_disk.ColdDisk()
    disk.share = 1.0
    run(with_partition(tmp_path, test, disk=disk))


async def _compacted(partition):
    partition.config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    partition.roll()
    for segment in partition.segments[:-1]:
        segment.checkpointed_size = segment.size
    cleaner = Cleaner()
    assert await housekeeping.compact(partition, cleaner, most_keys=10)
    cleaner.close()


async def _compacted_by_the_process(partition):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mainstem.log.cleaner.PROCESS_BYTES", 0)
        await _compacted(partition)


async def _deleted(partition):
    await partition.append(batch(b"v"))
    partition.roll()
    await housekeeping.delete_records(partition, partition.log_end_offset)


@pytest.mark.parametrize("goes", [_compacted, _compacted_by_the_process, _deleted])
def test_what_waits_to_be_sent_is_sent_as_it_was_found_whatever_becomes_of_its_segment(tmp_path, monkeypatch, goes):
    monkeypatch.setattr(SystemFile, "cached_share", lambda *_: 1.0)

    async def test(partition):
        for value in range(10):
            await partition.append(batch(bytes([value]) * 30_000, key=b"k"))
        content = joined(await partition.read(0, 1 << 20))
        found = await partition.read_to_send(0, 1 << 20, enough=0, committed_only=False, at_least_one=True)
        (piece,) = found.pieces
        assert isinstance(piece, FileSlice)
        before = partition.segments[0]
        await goes(partition)
        assert before.retired
        del before
        others = [SystemDisk().open(tmp_path / f"other-{number}", create=True) for number in range(30)]
        for other in others:  # a descriptor that was closed is one of theirs
            other.write([b"x" * (1 << 20)], 0)
        assert piece.read() == content
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            sent = piece.send(ours.fileno())
            ours.close()
            assert bool(sent) == (goes is _deleted), "what compaction has read may have come back from the disk"
            assert theirs.recv(1 << 20, socket.MSG_WAITALL) == content[:sent]


def test_a_header_of_which_a_part_has_just_left_the_page_cache_is_not_made_up(tmp_path, monkeypatch):
    """What lacked was taken from the header that was looked at before."""
    monkeypatch.setattr(SystemFile, "cached_share", lambda *_: 1.0)
    read_cached = SystemFile.read_cached

    async def test(partition):
        for _ in range(15):
            await partition.append(batch(b"v" * 30_000))
        content = joined(await partition.read(0, 1 << 20))
        for gone in [each.position for each in iter_spans(content)]:

            def partly(self, buffer, position, gone=gone):
                found = read_cached(self, buffer, position)
                if len(buffer) == HEADER.size and position == gone:
                    buffer[20:] = bytes(3) + (7).to_bytes(4, "big") + bytes(HEADER.size - 27)  # another's last offset
                    return 20
                return found

            for most in (70_000, 200_000, 1 << 20):
                partition.segments[0].trust.floor = 0
                with monkeypatch.context() as patch:
                    patch.setattr(SystemFile, "read_cached", partly)
                    patch.setattr("mainstem.log.reader._MOST_SLICE", 100_000)
                    found = await partition.read_to_send(0, most, enough=0, committed_only=False, at_least_one=True)
                sent = b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in found.pieces)
                assert content.startswith(sent)
                assert sum(each.end - each.position for each in iter_spans(sent)) == len(sent) > 0

    run(with_partition(tmp_path, test))


def test_the_page_that_an_append_brings_back_to_fill_it_is_checked(tmp_path):
    async def test(partition):
        await partition.append(batch(b"v" * 1_000))
        segment = partition.segments[0]
        _flip_on_the_disk(segment, 500, "nothing")
        await partition.append(batch(b"w" * 100_000))
        assert segment.file.cached_share(500, 0) == 1, "it has come back"
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 1 << 20)

    run(with_partition(tmp_path, test))


def test_what_is_appended_while_a_segment_is_gone_through_is_checked_too(tmp_path):
    async def test(partition):
        for _ in range(3):
            await partition.append(batch(b"v" * 1_000_000))
        segment = partition.segments[0]
        gone_through = segment.scan()
        next(gone_through)
        await partition.append(batch(b"v" * 1_000))
        list(gone_through)
        assert segment.trust.floor == segment.size

    run(with_partition(tmp_path, test, topic=TopicConfig(max_message_bytes=2_000_000)))


def test_a_large_batch_that_lies_before_what_is_asked_for_is_not_read(tmp_path, monkeypatch):
    """The index names the batch before: a megabyte was read only to pass over it."""
    sizes = []
    read_cached = SystemFile.read_cached

    def counted(self, buffer, position):
        sizes.append(len(buffer))
        return read_cached(self, buffer, position)

    monkeypatch.setattr(SystemFile, "read_cached", counted)

    async def test(partition):
        for value in range(4):
            await partition.append(batch(*[bytes([value]) * 150_000] * 2))
        for offset in range(3, 8):  # the index does not name the first batch
            sizes.clear()
            (piece,) = (await partition.read(offset, 310_000)).pieces
            assert decode_header(piece).base_offset == offset // 2 * 2
            assert sum(sizes) < 310_000 + READ_SLACK + 100
        assert not (await partition.read(8, 310_000)).pieces

    run(with_partition(tmp_path, test))


@pytest.mark.parametrize("kept", ["nothing", "the start", "all but one page"])
@pytest.mark.parametrize(("most", "to_send"), [(20_000, False), (200_000, True), (1_000_000, True), (1_000_000, False)])
def test_damage_that_a_read_brings_back_unchecked_is_told_by_the_next(tmp_path, kept, most, to_send):
    """The kernel reads ahead, into the page cache, what the first read does not check; the second finds it there."""

    async def test(partition):
        for number in range(1_000):
            await partition.append(batch(b"%06d" % number * 170))
        segment = partition.segments[0]
        _flip_on_the_disk(segment, 700_000, kept)
        with pytest.raises(StorageError, match="bad CRC"):
            await read_all(partition)

    async def read_all(partition):
        offset = 0
        while offset < partition.high_watermark:
            how = {"committed_only": False, "at_least_one": True, "enough": 1}
            found = await (partition.read_to_send if to_send else partition.read)(offset, most, **how)
            data = b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in found.pieces)
            offset += sum(1 for _ in iter_spans(data))

    run(with_partition(tmp_path, test))


def test_a_batch_of_which_a_part_comes_from_the_disk_is_checked_whole(tmp_path):
    async def test(partition):
        await partition.append(batch(os.urandom(3_000_000)))
        _flip_on_the_disk(partition.segments[0], 2_000_000, "the start")
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 1 << 22)

    run(with_partition(tmp_path, test, topic=TopicConfig(max_message_bytes=4_000_000)))


def test_what_a_search_by_time_brings_back_is_checked(tmp_path):
    async def test(partition):
        for number in range(1_000):
            await partition.append(batch(b"%06d" % number * 170, timestamp=number))
        _flip_on_the_disk(partition.segments[0], 700_000, "nothing")
        assert (await partition.offset_for_timestamp(100)).offset == 100
        os.pread(partition.segments[0].file._descriptor, 1 << 21, 0)  # as if the kernel had read more ahead
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 1 << 21)

    run(with_partition(tmp_path, test))


def test_where_the_system_does_not_tell_what_is_in_memory_everything_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(SystemFile, "cached_share", lambda *_: None)

    async def test(partition):
        for _ in range(5):
            await partition.append(batch(b"v" * 30_000))
        assert not await _has_slices(partition)
        with partition.segments[0].path.open("r+b") as file:
            file.seek(40_000)
            file.write(b"x")
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 1 << 20)

    run(with_partition(tmp_path, test))


def test_what_was_appended_is_sent_from_the_file_until_it_has_left_the_page_cache(tmp_path):
    """As the system tells it."""

    async def test(partition):
        for _ in range(5):
            await partition.append(batch(b"v" * 30_000))
        file = partition.segments[0].file
        skip_unless_told_of_the_page_cache(file)
        assert await _has_slices(partition)
        file.sync()
        drop_from_page_cache(file, 100_000)
        assert not await _has_slices(partition), "it came from the disk"
        os.pread(file._descriptor, 1 << 20, 0)
        assert not await _has_slices(partition), "it has come back from there"
        for _ in range(5):
            await partition.append(batch(b"v" * 30_000))
        assert await _has_slices(partition, 5)

    run(with_partition(tmp_path, test))


def _flip(segment, position):
    with segment.path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def _flip_on_the_disk(segment, position, kept):
    """One bit, unseen by the process; `kept` is what the page cache still has of the segment."""
    descriptor = segment.file._descriptor
    _flip(segment, position)
    drop_from_page_cache(segment.file, segment.size)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    page = position // 4_096 * 4_096
    if kept == "the start":
        os.pread(descriptor, position - 100_000, 0)
    elif kept == "all but one page":
        os.pread(descriptor, page, 0)
        os.pread(descriptor, segment.size, page + 4_096)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)


async def _has_slices(partition, offset=0):
    found = await partition.read_to_send(offset, 1 << 20, enough=0, committed_only=False, at_least_one=True)
    data = b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in found.pieces)
    assert data == joined(await partition.read(offset, 1 << 20))
    return any(isinstance(piece, FileSlice) for piece in found.pieces)


def test_damage_of_what_comes_back_from_the_disk_is_found_however_young_it_is(tmp_path):
    disk = cold_disk.ColdDisk()

    async def test(partition):
        await partition.append(batch(b"v" * 3_000))
        _flip(partition.segments[0], 2_000)
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 10_000)

    run(with_partition(tmp_path, test, disk=disk))


def test_damage_of_what_is_old_is_found_though_it_seems_never_to_have_left_the_page_cache(tmp_path):
    """Somebody else, who copies the file, may have brought it back."""
    clock = ManualClock(NOW)

    async def test(partition):
        await partition.append(batch(b"v" * 3_000))
        clock.advance_ms(300_000)
        _flip(partition.segments[0], 2_000)
        with pytest.raises(StorageError, match="bad CRC"):
            await partition.read(0, 10_000)

    run(with_partition(tmp_path, test, clock=clock))


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
        assert len(joined(read)) == partition.size_bytes

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

    def read_around_cache(self, buffer, position, block):
        self.readers.add(threading.get_ident())
        return super().read_around_cache(buffer, position, block)


def test_what_is_not_in_the_page_cache_is_read_in_a_thread(tmp_path):
    async def test(partition):
        await asyncio.gather(*(partition.append(batch(b"%d" % n)) for n in range(20)))
        assert await values(partition) == [b"%d" % n for n in range(20)]
        assert disk.readers
        assert threading.get_ident() not in disk.readers

    disk = ColdDisk()
    run(with_partition(tmp_path, test, disk=disk))


@given(
    times=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    deleted=st.integers(0, 10),
    late=st.integers(0, 12),
)
@settings(max_examples=examples(25))
def test_the_latest_timestamp_is_found_wherever_it_is(times, deleted, late):
    """In any segment, before the log start offset, or appended and not readable yet."""
    topic = TopicConfig(segment_bytes=400, index_interval_bytes=100)

    async def test(partition):
        for time in times:
            await partition.append(batch(b"v", timestamp=NOW + time))
        start = await housekeeping.delete_records(partition, min(deleted, len(times) - 1))
        unreadable = partition.append(batch(b"v", timestamp=NOW + late))
        found = await partition.latest_timestamp()
        # The append may become readable while this looks.
        expected = [(seen.index(max(seen[start:]), start), NOW + max(seen[start:])) for seen in (times, [*times, late])]
        assert (found.offset, found.timestamp) in expected
        await unreadable

    with TemporaryDirectory() as directory:
        run(with_partition(Path(directory), test, topic=topic))


def test_the_latest_timestamp_costs_no_walk_through_a_segment(tmp_path):
    """A gigabyte was read and checked for each request, in the threads that checkpoints need."""

    async def test(partition):
        for n in range(40):
            await partition.append(batch(b"v" * 4_000, timestamp=NOW + n))
        disk.bytes_read = 0
        assert (await partition.latest_timestamp()).offset == 39
        assert disk.bytes_read < 20_000

    disk = CountingDisk()
    run(with_partition(tmp_path, test, disk=disk))


class CountingDisk(ColdDisk):
    bytes_read = 0

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        read = file.read

        def counted(size, position):
            data = read(size, position)
            self.bytes_read += len(data)
            return data

        file.read = counted
        return file


class HeldBackDisk(ColdDisk):
    """Reads of batches wait for `go`, if `held`."""

    def __init__(self):
        super().__init__()
        self.held = False
        self.waits, self.go = threading.Event(), threading.Event()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        read = file.read

        def held_back(size, position):
            if self.held:
                self.waits.set()
                assert self.go.wait(60)
            return read(size, position)

        file.read = held_back
        return file


async def with_what_is_read_deleted(path, disk, *, before_offset):
    """What a reader of committed records gets from offset 0, when everything before `before_offset` is deleted while
    the disk has its read; two records of an aborted transaction, its marker and one more record.
    """

    async def test(partition):
        for sequence in range(2):
            await partition.append(sequenced(b"aborted", sequence=sequence, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        partition.roll()
        await partition.append(batch(b"v"))
        disk.held = True
        reading = asyncio.create_task(partition.read(0, 10_000, committed_only=True))
        async with asyncio.timeout(60):
            while not disk.waits.is_set():
                await asyncio.sleep(0.005)
            await housekeeping.delete_records(partition, before_offset)
            disk.go.set()
            return await reading

    config = LogConfig(read_threads=2, sync_threads=1)
    return await with_partition(path, test, disk=disk, config=config)


def test_what_was_aborted_is_told_of_records_that_are_deleted_while_they_are_read(tmp_path):
    """The segment had taken what it knew of aborted transactions with it: their records passed for committed ones."""
    result = run(with_what_is_read_deleted(tmp_path, HeldBackDisk(), before_offset=3))
    assert [header.base_offset for header in iter_headers(joined(result))] == [0, 1, 2]
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in result.aborted] == [(1, 0, 2)]


def test_a_read_looks_at_few_aborted_transactions_that_it_does_not_touch(tmp_path):
    """Each one of committed records looked at all of its segment, also where nothing had been aborted for long."""

    async def test(partition):
        for sequence in range(300):
            partition.append(sequenced(b"aborted", sequence=sequence, transactional=True))
            ended = partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        await ended
        await partition.append(batch(b"v"))
        transactions = partition.segments.active.aborted = CountedList(partition.segments.active.aborted)
        for offset, most, found in ((0, 200, 1), (300, 200, 1), (598, 200, 1), (600, 200, 0)):
            transactions.looks = 0
            result = await partition.read(offset, most, committed_only=True)
            assert [each.first_offset for each in result.aborted] == [offset][:found]
            assert transactions.looks < 20

    run(with_partition(tmp_path, test))


def test_a_reader_does_not_jump_over_what_is_deleted_meanwhile(tmp_path):
    """Its segment was gone when it came to read it, and it got what comes behind: nothing told it what it missed."""

    class Gone(HeldBackDisk):
        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            read = file.read

            def gone(size, position):
                read(size, position)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

            file.read = gone
            return file

    with pytest.raises(OffsetOutOfRange, match="offset 0, expected 3 or later: it was deleted while it was read"):
        run(with_what_is_read_deleted(tmp_path, Gone(), before_offset=3))


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


def test_lookups_by_time(tmp_path):
    clock = ManualClock()
    times = [NOW + 10 * n for n in range(30)]

    async def check(partition):
        found = await partition.offset_for_timestamp(NOW + 95)
        assert (found.offset, found.timestamp) == (10, NOW + 100)
        assert (await partition.offset_for_timestamp(0)).offset == 0
        assert await partition.offset_for_timestamp(NOW + 1_000) is None
        assert (await partition.latest_timestamp()).offset == 29
        await housekeeping.delete_records(partition, 12)
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
        cleaner = Cleaner()
        segment = partition.segments[0]
        segment.checkpointed_size = segment.size
        assert await housekeeping.compact(partition, cleaner, most_keys=10)
        cleaner.close()
        result = await partition.read(0, 10_000)
        assert [header.base_offset for header in iter_headers(joined(result))] == [1, 2, 3]
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


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("most", [0, 100_000, 280_000])
def test_a_batch_that_does_not_fit_is_not_jumped_over(tmp_path, cold, most):
    """At the end of a segment it was taken for a gap that compaction had left, and the next segment was read on."""

    async def test(partition):
        for size in (10, 300_000, 10, 10):
            await partition.append(batch(b"v" * size))
        assert len(partition.segments) > 1
        read = await partition.read(1, most, at_least_one=False)
        assert joined(read) == b""
        assert next(iter_headers(joined(await partition.read(1, most)))).base_offset == 1

    disk = ColdDisk() if cold else SystemDisk()
    run(with_partition(tmp_path, test, topic=TopicConfig(segment_bytes=300_200), disk=disk))


def test_a_read_that_waits_for_look_ups_while_records_are_deleted_finds_no_damage(tmp_path, monkeypatch):
    """It checked what it had begun to read against the epochs that were left, and the partition went offline."""
    begun, go_on, read_indexes = threading.Event(), threading.Event(), Segment.read_indexes

    def late(segment, unloaded):
        begun.set()
        assert go_on.wait(30)
        return read_indexes(segment, unloaded)

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for _ in range(5):
            await partition.append(batch(b"v" * 3_000))
        await log.checkpoint()
        abandon(log)
        log = await open_log(tmp_path, config=LogConfig(read_threads=2))  # an epoch later
        partition = log.partitions[TP]
        for _ in range(5):
            await partition.append(batch(b"w" * 3_000))
        monkeypatch.setattr(Segment, "read_indexes", late)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(partition.read(1, 1 << 20))
            assert await asyncio.to_thread(begun.wait, 30)
            await housekeeping.delete_records(partition, 7)
            go_on.set()
        assert reading.result().pieces
        assert partition.error is None
        await log.close()

    run(test())
