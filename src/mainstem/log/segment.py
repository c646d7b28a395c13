"""One segment: a file of batches and its look-ups.

``<20-digit base offset>.log`` holds whole batches one after the other, exactly as they went over the wire; offsets
rise, with gaps where compaction took records out. docs/formats/segment.md has the picture.

A segment's numbers (`size`, `next_offset`, indexes) speak of what was *appended*; the writer brings it to the file.
"""

import errno
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from crc32c import crc32c

from mainstem.log.checkpoint import SegmentState
from mainstem.log.disk import Disk, File
from mainstem.log.errors import CorruptSegment
from mainstem.log.index import AbortedTransaction, IndexState, OffsetIndex, TimeIndex, encode_aborted
from mainstem.log.limits import LET_GO
from mainstem.log.metadata import PARTITION_METADATA
from mainstem.log.trust import Trust
from mainstem.records import BatchHeader, CorruptBatch, decode_header
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, HEADER, OFFSET_AND_LENGTH, PREFIX

LOG, INDEX, TIME_INDEX, TXN_INDEX = ".log", ".index", ".timeindex", ".txnindex"
SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

OFFSETS = 2**31
"""How many one segment has room for."""
_SCAN_BYTES = 1 << 20


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def base_offset_of(path: Path) -> int | None:
    """Of a segment's file, by its name; None: it is none, a copy say that somebody has put there."""
    number = path.stem
    is_one = len(number) == len(file_name(0, "")) and number.isascii() and number.isdecimal()
    return int(number) if is_one and path.suffix in SUFFIXES and int(number) < 1 << 63 else None


class BadBatch(CorruptSegment):
    """A segment's batch does not check out; `position` is where it begins."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class IndexWrite(msgspec.Struct, frozen=True):
    """Entries that belong at the end of an index file; where it has none at all, there is to be no file, unless it is
    one that `may_be_empty`.
    """

    segment: "Segment"
    suffix: str
    position: int
    entries: bytes
    may_be_empty: bool = False

    @property
    def path(self) -> Path:
        """Of the file, which may not be there."""
        return self.segment.path_of(self.suffix)

    def write(self, files: "OpenFiles") -> None:
        """Not synced: an index file that does not check out is built anew (blocking).

        Raises:
            FileNotFoundError: the segment is retired.
            OSError: the disk refuses.
        """
        if not self.position and not self.entries and not self.may_be_empty:
            files.unlink_index(self.segment, self.suffix)
            return
        file = files.open_index(self.segment, self.suffix)
        if file.size() != self.position:
            file.truncate(self.position)
        file.write([self.entries], self.position)


class OpenFiles:
    """Opens segments' files when they are used; above `most`, those opened first are let go.

    A file that somebody still reads stays open until that is done: it is closed with its last reference. Of a segment
    that is retired none is opened, since its name may be another one's by then, of the next topic of that name say.
    """

    def __init__(self, disk: Disk, most: int) -> None:
        self.disk = disk
        self._most = most
        self._opened: deque[Segment] = deque()
        self._let_go: weakref.WeakSet[File] = weakref.WeakSet()
        self._lock = threading.Lock()  # the loop, the writer and the readers all ask

    @property
    def may_be_kept(self) -> bool:
        """There is room for a file to stay open for longer than a read: few are that were let go."""
        return len(self._let_go) < LET_GO // 2

    def open(self, segment: "Segment", *, create: bool = False) -> File:
        """The segment's file, opened now unless it is open; from any thread.

        Raises:
            FileNotFoundError: there is none, or the segment is retired.
            OSError: EMFILE, ENFILE or ENOMEM where it cannot be opened for now.
        """
        with self._lock:
            if segment.opened is None:
                _check_not_retired(segment)
                segment.opened = self.disk.open(segment.path, create=create)
                self._opened.append(segment)
            file = segment.opened
            while len(self._opened) > self._most:
                oldest = self._opened.popleft()
                if oldest.opened is not None:
                    self._let_go.add(oldest.opened)
                oldest.opened = None
        return file

    def open_index(self, segment: "Segment", suffix: str) -> File:
        """Its index file with this suffix, made where it is missing; from any thread.

        Raises:
            FileNotFoundError: the segment is retired.
            OSError: the disk refuses.
        """
        with segment.naming:
            _check_not_retired(segment)
            return self.disk.open(segment.path_of(suffix), create=True)

    def unlink_index(self, segment: "Segment", suffix: str) -> None:
        """Remove it, where there is one; from any thread. Raises as `open_index`."""
        with segment.naming:
            _check_not_retired(segment)
            self.disk.unlink(segment.path_of(suffix))

    def retire(self, segments: Collection["Segment"], *, renamed: tuple[Path, Path] | None = None) -> None:
        """Deleted or replaced: once this returns, nobody opens a file by their names any more.

        `renamed` gives these names to others, or takes them away: what is to be renamed and to what, in the same
        moment. Where that fails with OSError, nothing is retired.
        """
        with self._lock, ExitStack() as held:
            for segment in segments:
                held.enter_context(segment.naming)
            if renamed is not None:
                self.disk.rename(*renamed)
            for segment in segments:
                segment.retired = True

    def forget(self, segment: "Segment") -> None:
        """Let go of a retired segment's file: its disk space is free once nobody reads it any more (blocking)."""
        with self._lock:
            file, segment.opened = segment.opened, None
            if file is not None:
                self._opened.remove(segment)
                self._let_go.add(file)
        # Only here, outside the lock, `file` is closed: that takes a while where it was large.

    def let_go(self) -> None:
        """Of all: the log is closed, and what it is made of may be there for long."""
        with self._lock:
            for segment in self._opened:
                segment.opened = None
            self._opened.clear()


def _check_not_retired(segment: "Segment") -> None:
    if segment.retired:
        raise FileNotFoundError(f"{segment.path}: deleted or replaced")


class Segment:
    """A file of batches from `base_offset` on."""

    def __init__(self, directory: Path, base_offset: int, files: OpenFiles, state: SegmentState | None = None) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.path = directory / file_name(base_offset, LOG)
        self.opened: File | None = None
        self.retired = False
        """Deleted or replaced, as `OpenFiles.retire` says."""
        self.naming = threading.Lock()
        """Its own, since a checkpoint makes thousands of index files: nobody else is to wait behind them."""
        self.unsaved = False
        """Written since the last checkpoint."""
        self.name_synced = state is not None and state.size > 0  # an empty one may have no file yet
        """Its file's name is known to survive a crash of the machine: a sync of its bytes is enough."""
        self.checkpointed_size = -1
        """Its size in the last checkpoint: compaction takes no segment that the journal still speaks of."""
        self._files = files
        self._syncing = threading.Lock()
        self._sync_failed = False
        self._state = state
        self._saved_as = state
        """In the last checkpoint: the look-ups that it counts are in their files, unless that failed."""
        self._offsets_checked = state is None
        self.size = state.size if state else 0
        self.next_offset = state.next_offset if state else base_offset
        self.max_timestamp = state.max_timestamp if state else -1
        self.max_timestamp_offset = state.max_timestamp_offset if state else base_offset
        self.first_append_ms = state.first_append_ms if state else -1
        """Timestamp of the first batch: rolling by time counts from it."""
        self.unindexed_bytes = state.unindexed_bytes if state else 0
        self.offset_index = OffsetIndex(base_offset, state.offset_index if state else None)
        self.time_index = (
            TimeIndex(base_offset, state.time_index, state.time_index_last) if state else TimeIndex(base_offset)
        )
        self.aborted = list(state.aborted) if state else []
        self.offsets_crc = state.offsets_crc if state else 0
        """After compaction, which leaves gaps: CRC-32C of all batches' offsets, lengths and epochs. Else 0."""
        self.trust = Trust(self.size)
        self.writeback_position = self.size
        """`writeback` has begun to bring what is below to the disk."""
        self._stored_size = self.size  # bytes that the index files cover
        self._indexed = state is None

    def __repr__(self) -> str:
        return f"Segment({self.path}, size={self.size}, next_offset={self.next_offset})"

    def path_of(self, suffix: str) -> Path:
        """Of its file with this suffix, which may not be there."""
        return self.directory / file_name(self.base_offset, suffix)

    @property
    def file(self) -> File:
        """The open file; one that is missing is damage, not empty. Keep it while it is used."""
        return self.opened or self._files.open(self)

    def file_to_write(self, position: int) -> File:
        """The open file; the first write makes it."""
        return self.opened or self._files.open(self, create=position == 0)

    @property
    def file_may_be_kept(self) -> bool:
        """For as long as a client takes to receive what is in it."""
        return self._files.may_be_kept

    @property
    def indexed(self) -> bool:
        """The look-ups are in memory."""
        return self._indexed

    @property
    def latest(self) -> tuple[int, int]:
        """The latest timestamp, and the offset of the batch that has it."""
        return self.max_timestamp, self.max_timestamp_offset

    @property
    def is_dense(self) -> bool:
        """Each batch begins at the offset where the one before it ends."""
        return self.offsets_crc == 0

    def state(self) -> SegmentState:
        """What the checkpoint keeps of it."""
        if self._state is None:
            self._state = SegmentState(
                self.base_offset,
                self.size,
                self.next_offset,
                self.max_timestamp,
                self.max_timestamp_offset,
                self.first_append_ms,
                self.unindexed_bytes,
                self.offset_index.state(),
                self.time_index.state(),
                self.time_index.last,
                list(self.aborted),
                self.offsets_crc,
            )
        return self._state

    def sync(self, file: File) -> None:
        """Bring the bytes of the segment's file, which is open, to the disk (blocking).

        Whoever comes after a sync that failed is told so, too: the kernel has told it once, and would give the writer's
        next sync, or a checkpoint's, success without the pages.
        """
        with self._syncing:
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync has failed", str(self.path))
            try:
                file.sync()
            except OSError:
                self._sync_failed = True
                raise

    def sync_name(self) -> None:
        """Make the file's name survive a crash of the machine, the new partition's directory too (blocking).

        A sync of the file does not: its bytes are on the disk then, and nothing may lead to them.

        Raises:
            OSError: EMFILE or ENFILE where a directory could not be opened for now; else its sync has failed.
        """
        if not self.name_synced:
            with suppress(FileNotFoundError):  # else a power cut leaves bytes in a directory that is nobody's
                self._files.disk.open(self.directory / PARTITION_METADATA).sync()
            self._files.disk.sync_directory(self.directory)
            self._files.disk.sync_directory(self.directory.parent)
            self.name_synced = True

    def unlink(self) -> None:
        """Delete its files (blocking); somebody who reads it still can."""
        try:
            for suffix in SUFFIXES:
                self._files.disk.unlink(self.path_of(suffix))
        finally:  # its space is not held by us
            self._files.forget(self)

    def is_saved(self, state: SegmentState) -> None:
        """A checkpoint says `state` of it."""
        self.checkpointed_size = state.size
        self._saved_as = state

    # -- append -------------------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, index_interval_bytes: int) -> int:
        """Count in a batch whose offsets are assigned; the position where it is to be written."""
        return self.count_in(header.last_offset, header.size, header.max_timestamp, index_interval_bytes)

    def count_in(self, last_offset: int, size: int, max_timestamp: int, index_interval_bytes: int) -> int:
        """`append` for a batch whose header still has the producer's offsets."""
        position = self.size
        self.unsaved = True
        if position == 0:
            self.first_append_ms = max_timestamp
        if self.unindexed_bytes > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.unindexed_bytes = 0
        self.unindexed_bytes += size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        self.size = position + size
        self.next_offset = last_offset + 1
        self._state = None
        return position

    def take_over(self, state: SegmentState, offset_entries: bytes, time_entries: bytes) -> None:
        """Be what another process has written; its look-ups are in memory."""
        self.size, self.next_offset = state.size, state.next_offset
        self.max_timestamp, self.max_timestamp_offset = state.max_timestamp, state.max_timestamp_offset
        self.first_append_ms, self.unindexed_bytes = state.first_append_ms, state.unindexed_bytes
        self.offset_index.replace(offset_entries)
        self.time_index.replace(time_entries)
        self.aborted, self.offsets_crc = list(state.aborted), state.offsets_crc
        self.trust.end(state.size)
        self.unsaved = True
        self._state = None

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Remember it in the segment that has its marker: `cut` forgets it with that."""
        self.aborted.append(transaction)
        self._state = None

    def cut(self, position: int, next_offset: int, latest: tuple[int, int]) -> None:
        """Forget what was appended at `position` and after it; `latest` is what it was before that."""
        self.size = position
        self.trust.end(position)  # what is left of the page that is cut may have come back from the disk
        self.writeback_position = min(self.writeback_position, position)
        self.next_offset = next_offset
        self.max_timestamp, self.max_timestamp_offset = latest if position else (-1, self.base_offset)
        self.offset_index.truncate(position)
        self.time_index.truncate(next_offset)
        while self.aborted and self.aborted[-1].last_offset >= next_offset:
            self.aborted.pop()
        self._state = None

    def seal(self) -> None:
        """Complete the time index: nothing is appended any more."""
        if self.size:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._state = None
            self.unsaved = True  # the entry has to reach its file, or the next start reads all of the segment for it

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`; the look-ups must be in memory."""
        return self.offset_index.lookup(offset)[1]

    @property
    def look_up_bytes(self) -> int:
        """In memory."""
        return len(self.offset_index.data) + len(self.time_index.data)

    @property
    def unloaded(self) -> tuple[IndexState, IndexState]:
        """How much of the look-ups by offset and by time is only in their files."""
        return self.offset_index.unloaded_state(), self.time_index.unloaded_state()

    def unload_indexes(self) -> None:
        """Leave what the last checkpoint counts of the look-ups to their files; what came since stays in memory."""
        state = self._saved_as
        if state is None or (state.offset_index, state.time_index) == self.unloaded:
            return
        if self.offset_index.is_stored(state.offset_index) and self.time_index.is_stored(state.time_index):
            self.offset_index.unload(state.offset_index)
            self.time_index.unload(state.time_index)
            self.time_index.before = state.time_index_last
            self._stored_size = state.size
            self._indexed = False

    def read_indexes(self, unloaded: tuple[IndexState, IndexState]) -> tuple[bytes, bytes] | None:
        """So much of the index files (blocking); None where they are missing or not what the checkpoint says.

        `unloaded` is what the property of that name said on the loop: more may leave for the files meanwhile.

        Raises:
            BadBatch: a compacted segment's offsets are not what compaction wrote.
        """
        if self.offsets_crc and not self._offsets_checked:
            self._check_offsets()
            self._offsets_checked = True
        offsets, times = self._read_index(INDEX, unloaded[0]), self._read_index(TIME_INDEX, unloaded[1])
        return None if offsets is None or times is None else (offsets, times)

    def _read_index(self, suffix: str, expected: IndexState) -> bytes | None:
        if not expected.length:
            return b""
        try:
            data = self._files.disk.read_file(self.path_of(suffix))[: expected.length]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EIO):  # nor does one that cannot be read do any harm
                return None
            raise
        found = OffsetIndex(self.base_offset)
        found.load(data)
        return data if found.state() == expected else None

    def _check_offsets(self) -> None:
        """Compare every batch's offset with what compaction wrote; no CRC of theirs covers it.

        Where nothing was compacted each batch begins where the one before it ends, which every read checks.
        """
        found = 0
        for _, _, batch in self.scan(0, self._stored_size):
            found = crc32c(batch[: PREFIX.size], found)
        if (found or 1) != self.offsets_crc:
            raise BadBatch(f"{self.path}: the offsets of its batches are not those that compaction wrote", 0)

    def rebuild_indexes(self, index_interval_bytes: int) -> tuple[bytes, bytes]:
        """The entries for what the index files cover, from the batches themselves (blocking).

        Raises:
            BadBatch: a batch does not check out.
        """
        other = Segment(self.directory, self.base_offset, self._files)
        for _, header, _ in self.scan(0, self._stored_size):
            other.append(header, index_interval_bytes)
        other.seal()
        return bytes(other.offset_index.data), bytes(other.time_index.data)

    def fill_indexes(self, entries: tuple[bytes, bytes], *, rebuilt: bool) -> None:
        """Put what `read_indexes` or `rebuild_indexes` gave before what was added since."""
        for index, data in zip((self.offset_index, self.time_index), entries, strict=True):
            if rebuilt:
                index.replace(data)
            else:
                index.load(data)
        self._indexed = True
        if rebuilt:
            self._state = None
            self.unsaved = True

    def index_writes(self, state: SegmentState) -> list[IndexWrite]:
        """What brings the look-ups up to `state` to their files; not synced, since they can be rebuilt."""
        # Thousands of small segments have no entries: no file either. Where compaction wrote the segment, or left
        # nothing of it, there may be a file of what it replaced, which speaks of batches that are gone: that goes.
        replaced = not state.size or state.offsets_crc != 0
        # Kafka's tools look for both or neither of these.
        both = max(state.time_index.length, state.offset_index.length) > 0
        writes = []
        for suffix, index, length in (
            (INDEX, self.offset_index, state.offset_index.length),
            (TIME_INDEX, self.time_index, state.time_index.length),
        ):
            position, entries = index.save(length)
            if entries or (not position and (replaced or both)):
                writes.append(IndexWrite(self, suffix, position, entries, may_be_empty=both))
        if state.aborted or replaced:
            writes.append(IndexWrite(self, TXN_INDEX, 0, encode_aborted(state.aborted)))
        return writes

    # -- scan ---------------------------------------------------------------------------------------------------------

    def scan(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Every batch in [start, end), checked: (position, header, bytes). Blocking.

        Raises:
            BadBatch: at the first batch that does not check out; `position` says where.
        """
        end = self.size if end is None else end
        if start >= end:  # nothing was appended: there may be no file
            return
        position, file = start, self.file
        window, window_start = b"", start
        while position < end:
            at = position - window_start
            if len(window) - at < HEADER.size:
                window, window_start, at = self._read(file, min(_SCAN_BYTES, end - position), position), position, 0
            need = _batch_size(window, at)
            if need > len(window) - at and HEADER.size <= need <= end - position:
                size = min(max(need, _SCAN_BYTES), end - position)
                window, window_start, at = self._read(file, size, position), position, 0
            try:
                header = decode_header(window, at)
            except CorruptBatch as error:
                raise BadBatch(f"{self.path}: position {position}: {error}", position) from None
            if not self.base_offset <= header.base_offset <= header.last_offset < self.base_offset + OFFSETS:
                raise BadBatch(
                    f"{self.path}: position {position}: offset {header.base_offset}, expected {self.base_offset} or up to"
                    f" {OFFSETS - 1} more",
                    position,
                )
            yield position, header, memoryview(window)[at : at + header.size]
            position += header.size

    def _read(self, file: File, size: int, position: int) -> bytes:
        data = file.read(size, position)
        self.trust.end(self.size)  # what the system reads ahead of it, nobody checks
        return data


def _batch_size(window: bytes, at: int) -> int:
    if len(window) - at < OFFSET_AND_LENGTH.size:
        return 0
    length: int = OFFSET_AND_LENGTH.unpack_from(window, at)[1]
    return length + BEFORE_LENGTH_COUNTS
