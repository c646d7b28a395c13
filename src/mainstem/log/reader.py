"""Reading a partition's segments, on the event loop: by offset, and by time.

What is in the page cache is read at once, in steps between which others have their turn; the rest in threads. What a
segment holds is gone through by `reading`. A segment may be deleted or compacted while it is read: then the place is
looked up anew.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from mainstem.core import Clock, CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log.cold import ColdReads
from mainstem.log.config import TopicConfig
from mainstem.log.disk import File
from mainstem.log.epochs import LeaderEpochs
from mainstem.log.errors import OffsetOutOfRange, StorageError
from mainstem.log.file_slice import FileSlice
from mainstem.log.index import AbortedTransaction
from mainstem.log.look_ups import LookUps
from mainstem.log.reading import (
    READ_SLACK,
    READ_STEP,
    OffsetAndTimestamp,
    Part,
    Place,
    check,
    find_latest,
    find_timestamp,
    latest_of_batch,
    next_batches,
    step,
    whole_range,
)
from mainstem.log.segment import Segment
from mainstem.log.segments import SegmentList, aborted_between
from mainstem.log.threads import FileThreads
from mainstem.records import HEADER, Span, decode_span

log = get_logger()

Piece = bytes | memoryview | FileSlice

_WANTING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
_READ_MOST = 16 * 2**20  # bytes of one read, whatever was asked; the reader comes back for more
_MOSTLY_CACHED = 0.5  # where so much is, the rest is read through the page cache
_LONG_STEP = 2**18  # bytes after which others have their turn
_LEAST_SLICE = 2**16  # bytes; less is as well read
_MOST_SLICE = READ_STEP - READ_SLACK  # what a socket does not take is read at once


class _Found(msgspec.Struct, frozen=True, gc=False):
    """As `Batches`, in memory of their own or as a part of the file."""

    piece: Piece
    next_offset: int
    after: Place
    is_full: bool


class _Replaced(Exception):
    """The segment was deleted or compacted while it was read or searched."""


class _NotCached(Exception):
    """Not all of it is in the page cache; `mostly`: most of it is not."""

    def __init__(self, *, mostly: bool) -> None:
        super().__init__()
        self.mostly = mostly


class Owner(Protocol):
    """What a reader asks of its partition."""

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    changed: bool
    epochs: LeaderEpochs

    @property
    def config(self) -> TopicConfig: ...

    def check_usable(self) -> None:
        """Raise why the partition is offline, if it is."""
        ...

    def found_damage(self, segment: Segment, error: Exception) -> StorageError:
        """Take the partition offline; the error that says so."""
        ...


class Reader:
    """Finds batches and records in the segments of one partition."""

    def __init__(
        self,
        segments: SegmentList,
        owner: Owner,
        threads: FileThreads,
        cold: ColdReads,
        look_ups: LookUps,
        clock: Clock,
    ) -> None:
        self._segments = segments
        self._owner = owner
        self._threads = threads
        self._cold = cold
        self._look_ups = look_ups
        self._clock = clock

    # -- by offset ----------------------------------------------------------------------------------------------------

    async def read(
        self,
        offset: int,
        limit: int,
        max_bytes: int,
        enough: int,
        *,
        at_least_one: bool,
        with_aborted: bool,
        slices: bool = False,
    ) -> tuple[list[Piece], tuple[AbortedTransaction, ...], bool]:
        """Whole batches from the one that holds `offset` on, none that begins at `limit`; what was aborted of them; and
        whether more may be there, which was not read. They come in the pieces in which they were read, each of whole
        batches.

        At most `max_bytes` of them, with `at_least_one` the first one whatever its size. What has to come from the disk
        is not waited for once there are `enough` bytes. With `slices` large pieces that this process has appended
        lately, and that are in the page cache, are not read; and those that come from the disk are views of memory
        that is used again when they are gone.

        Raises:
            OffsetOutOfRange: what begins at `offset` was deleted meanwhile.
            StorageError: the partition is offline, or damage has just taken it there;
                the machine is short of something.
        """
        segment = self._segments.holding(offset)
        # A segment that begins where nobody may read yet may have no file.
        while segment is not None and max(offset, segment.base_offset) < limit and (max_bytes > 0 or at_least_one):
            # Of the segments as they are now, as what is read will be: they may be deleted or compacted meanwhile.
            segments = self._segments.beginning_at(offset) if with_aborted else []
            try:
                records, next_offset, fits = await self._read_segment(
                    segment, offset, limit, max_bytes, enough, at_least_one=at_least_one, slices=slices
                )
            except _Replaced:
                self._owner.check_usable()  # the whole partition may be gone: there is no other segment then
                segment = self._segments.holding(offset)
            else:
                if records or not fits:
                    return records, aborted_between(segments, offset, next_offset), next_offset < limit
                # Nothing at or after the offset here: compaction took it out, or a repair; the next segment goes on.
                segment = self._segments.after(segment)
            if offset < self._owner.log_start_offset:
                raise OffsetOutOfRange(
                    f"{self._owner.topic_partition}: offset {offset}, expected {self._owner.log_start_offset} or later:"
                    " it was deleted while it was read"
                )
        return [], (), segment is not None and max(offset, segment.base_offset) < limit

    async def _read_segment(
        self,
        segment: Segment,
        offset: int,
        limit: int,
        max_bytes: int,
        enough: int,
        *,
        at_least_one: bool,
        slices: bool,
    ) -> tuple[list[Piece], int, bool]:
        """Batches of one segment, in steps between which others have their turn; the offset behind them, and False
        where the next one does not fit.
        """
        parts: list[Piece] = []
        left, most, have = max_bytes, _READ_MOST, 0
        end = self._segments.readable_end(segment)
        try:
            place = await self._find(segment, offset, end)
            while place is not None and not (parts and segment.retired):
                found = await self._next(
                    segment,
                    place,
                    offset,
                    limit,
                    min(left, most) if parts else left,
                    at_least_one=at_least_one and not parts,
                    slices=slices,
                    waits=not parts or have < enough,
                )
                if found is None:
                    break
                if not found.piece:
                    return parts, offset, False
                parts.append(found.piece)
                size = len(found.piece)
                have, left, most = have + size, left - size, most - size
                place, offset = found.after, found.next_offset
                if not found.is_full or min(left, most) <= READ_SLACK:
                    break
                if size >= _LONG_STEP and isinstance(found.piece, bytes):
                    await asyncio.sleep(0)
        except (OSError, CorruptData) as error:
            raise self._reason(segment, error) from error
        return parts, offset, True

    async def _find(self, segment: Segment, offset: int, end: int) -> Place | None:
        """Where to begin to read for an offset; None: nothing of the segment may be read, and it may have no file: it
        was just begun, or emptied.
        """
        # As now, as `end` is: what is deleted meanwhile takes its epochs along.
        known = self._owner.epochs.known
        if not segment.indexed:
            await self._load_indexes(segment)
        self._look_ups.used(segment)
        indexed_offset, start = segment.offset_index.lookup(offset)
        if start >= end:
            return None
        place = Place(
            start,
            segment.base_offset,
            indexed_offset,
            end,
            segment.is_dense,
            segment.next_offset,
            True,
            known,
        )
        if 0 <= indexed_offset < offset and end - start > READ_SLACK:
            return self._behind_indexed(segment, place)
        return place

    async def _next(
        self,
        segment: Segment,
        place: Place,
        offset: int,
        limit: int,
        most: int,
        *,
        at_least_one: bool,
        slices: bool,
        waits: bool,
    ) -> "_Found | None":
        """The next batches: a part of the file, or read from the page cache, or from the disk. None: the segment has no
        more, or they come from the disk and are not waited for.
        """
        is_known = self._is_known(segment, place, most)
        if slices and is_known and (sliced := self._slice(segment, place, offset, limit, most)) is not None:
            return sliced
        place = msgspec.structs.replace(place, verify=not is_known)
        try:
            cached = partial(self._read_cached, segment.file)
            found = next_batches(cached, place, offset, limit, most, at_least_one=at_least_one)
            data: bytes | memoryview = b"" if found is None else bytes(found.data)  # the buffer is everybody's
        except _NotCached as missing:
            segment.trust.end(segment.size)  # the system may read more from the disk than is checked
            if not waits and not self._cold.has_ready(segment, offset, most):
                return None
            place = msgspec.structs.replace(place, verify=True)
            found = await self._cold.read(
                segment, place, offset, limit, most, at_least_one=at_least_one, around=missing.mostly
            )
            segment.trust.end(segment.size)  # as above, of what was appended meanwhile
            data = b"" if found is None else found.data if slices else bytes(found.data)
        return None if found is None else _Found(data, found.next_offset, found.after, found.is_full)

    def _behind_indexed(self, segment: Segment, place: Place) -> Place:
        """The place behind the batch that the index names, where its header is in memory: to read a megabyte only to
        pass over it takes as long as to read what was asked for.
        """
        if segment.file.cached_share(HEADER.size, place.start) != 1:
            return place
        span = self._header(segment, place.start)
        if span is None or span.last_offset != place.indexed_offset or span.end > place.end:
            return place  # whoever reads it whole says what is wrong
        return msgspec.structs.replace(place, start=span.end, next_offset=span.last_offset + 1, indexed_offset=-1)

    def _header(self, segment: Segment, position: int) -> Span | None:
        """Of the batch there, where it is in the page cache; None: it is not, or it can be none."""
        buffer = self._threads.buffer(HEADER.size)
        if segment.file.read_cached(buffer, position) != HEADER.size:
            segment.trust.end(segment.size)  # it was a moment ago; to look for it makes the system read it, and more
            return None
        return decode_span(buffer, position)

    def _is_known(self, segment: Segment, place: Place, most: int) -> bool:
        """What is read next was appended lately, and has not left the page cache: where the system tells."""
        trusted = place.start >= segment.trust.begins(segment.size, self._clock.monotonic())
        return trusted and segment.file.cached_share(step(place, most), place.start) == 1

    def _slice(self, segment: Segment, place: Place, offset: int, limit: int, most: int) -> "_Found | None":
        """The next batches where they need not be read; None: they have to be.

        They are known to be right, and no more is looked at than what is: else the system might read ahead of it.
        """
        if not segment.file_may_be_kept:
            return None
        most = min(most, _MOST_SLICE)
        known_end = place.start + step(place, most)
        index = segment.offset_index

        def header(position: int) -> Span | None:
            is_known = place.start <= position <= known_end - HEADER.size
            span = self._header(segment, position) if is_known else None
            return span if span is not None and span.end <= known_end else None

        def named(position: int) -> int:
            return min(index.lookup_position(position), index.lookup(limit)[1])

        found = whole_range(header, named, place, offset, limit, most)
        if found is None or found[1] - found[0] < _LEAST_SLICE or segment.trust.floor > place.start:
            return None
        begin, end, first_offset, next_offset = found
        part = Part(memoryview(b""), first_offset, place.dense, place.end_offset, epochs=place.epochs)
        taken = FileSlice(segment.file, begin, end - begin, segment.trust, self._clock, partial(check, part=part))
        after = msgspec.structs.replace(place, start=end, next_offset=next_offset, indexed_offset=-1)
        return _Found(taken, next_offset, after, is_full=next_offset < limit)

    def _read_cached(self, file: File, position: int, size: int) -> memoryview:
        """From the page cache, on the loop."""
        share = file.cached_share(size, position)
        if share is not None and share < 1:
            raise _NotCached(mostly=share < _MOSTLY_CACHED)
        buffer = self._threads.buffer(size)
        if file.read_cached(buffer, position) != size:
            raise _NotCached(mostly=False)  # it was a moment ago, or the system does not tell
        return buffer

    async def _load_indexes(self, segment: Segment) -> None:
        """Bring the look-ups of a segment into memory; in doubt, build them anew."""
        while not segment.indexed:
            unloaded = segment.unloaded
            entries = await self._threads.run(segment.read_indexes, unloaded)
            rebuilt = entries is None
            if entries is None:
                partition = str(self._owner.topic_partition)
                log.warning("index_rebuilt", partition=partition, base_offset=segment.base_offset)
                entries = await self._threads.run(segment.rebuild_indexes, self._owner.config.indexed_bytes)
            # Another reader may have been faster, and more entries may have left for the files since.
            if not segment.indexed and segment.unloaded == unloaded:
                segment.fill_indexes(entries, rebuilt=rebuilt)
                self._owner.changed = self._owner.changed or rebuilt

    def _reason(self, segment: Segment, error: Exception) -> Exception:
        """What the error means; only damage takes the partition offline, not a lack of memory or descriptors."""
        if segment.retired:
            return _Replaced()
        if isinstance(error, OSError) and error.errno in _WANTING:
            return StorageError(f"{segment.path}: {error}", hint="the machine or the process is short of it: try again")
        return self._owner.found_damage(segment, error)

    # -- by time ------------------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record below the high watermark whose timestamp (ms) is at least `timestamp`."""

        async def look_up() -> OffsetAndTimestamp | None:
            for segment in tuple(self._segments):
                if segment.max_timestamp < timestamp:
                    continue
                found = await self._search(segment, partial(self._find_timestamp, segment, timestamp))
                if found is not None:
                    return found
            return None

        return await self._in_current_segments(look_up)

    async def latest_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record below the high watermark that has the latest timestamp of all."""

        async def look_up() -> OffsetAndTimestamp | None:
            best: OffsetAndTimestamp | None = None
            latest_of = self._segments.readable_latest_of
            # What a segment has may lie before the log start offset: then it gives less than it seems to have.
            for segment in sorted(self._segments, key=lambda s: (-latest_of(s)[0], s.base_offset)):
                if best and (latest_of(segment)[0], -segment.base_offset) < (best.timestamp, -best.offset):
                    break
                found = await self._search(segment, partial(self._find_latest, segment))
                if found and (best is None or (found.timestamp, -found.offset) > (best.timestamp, -best.offset)):
                    best = found
            return best

        return await self._in_current_segments(look_up)

    async def _in_current_segments(
        self, look_up: Callable[[], Awaitable[OffsetAndTimestamp | None]]
    ) -> OffsetAndTimestamp | None:
        """Look up anew where a segment was deleted or compacted while it was searched."""
        while True:
            self._owner.check_usable()
            with suppress(_Replaced):
                return await look_up()

    async def _find_timestamp(self, segment: Segment, timestamp: int) -> OffsetAndTimestamp | None:
        if not segment.indexed:
            await self._load_indexes(segment)
        self._look_ups.used(segment)
        start = segment.position_of(segment.time_index.lookup(timestamp))
        end, low, high = self._segments.readable_end(segment), self._owner.log_start_offset, self._owner.high_watermark
        return await self._threads.run(find_timestamp, segment, start, end, timestamp, low, high)

    async def _find_latest(self, segment: Segment) -> OffsetAndTimestamp | None:
        if not segment.indexed:
            await self._load_indexes(segment)
        self._look_ups.used(segment)
        latest = self._segments.readable_latest_of(segment)
        start = segment.position_of(latest[1])
        end, low, high = self._segments.readable_end(segment), self._owner.log_start_offset, self._owner.high_watermark
        found = await self._threads.run(latest_of_batch, segment, start, end, latest, low, high)
        return found or await self._threads.run(find_latest, segment, end, low, high)

    async def _search(
        self, segment: Segment, search: Callable[[], Awaitable[OffsetAndTimestamp | None]]
    ) -> OffsetAndTimestamp | None:
        try:
            return await search()
        except (OSError, CorruptData) as error:
            raise self._reason(segment, error) from error
