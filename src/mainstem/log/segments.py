"""A partition's segments in the order of their offsets, how far they may be read; no I/O, but for what is undone."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

from mainstem.log.config import TopicConfig
from mainstem.log.index import MARKER_OFFSET, AbortedTransaction
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import BatchHeader

_INT32_MAX = 2**31 - 1  # what a look-up has room for


def aborted_between(segments: Iterable[Segment], offset: int, end: int) -> tuple[AbortedTransaction, ...]:
    """Aborted transactions that touch offsets from `offset` on, below `end`; `segments` begin with what holds `offset`.

    They are in the order of their markers, not of their first offsets: one may begin before many others and end after
    them. How far that goes the last stable offset tells: what was still open at a marker begins there or later.
    """
    found = []
    for segment in segments:
        aborted = segment.aborted
        for place in range(bisect_left(aborted, offset, key=MARKER_OFFSET), len(aborted)):
            transaction = aborted[place]
            if transaction.first_offset < end:
                found.append(transaction)
            if transaction.last_stable_offset >= end:
                return tuple(found)
    return tuple(found)


class SegmentList(Sequence[Segment]):
    """The segments, of which the last one is active; on the event loop, or in the thread of the recovery before that.

    A segment that leaves is retired: nobody opens its file again, and who reads it notices.
    """

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self.directory = directory
        self.files = files
        self.changed = False
        """Files came or went since the last checkpoint."""
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._sealed_bytes = 0  # of all but the active one: readers that wait ask for the sum again and again
        self._readable = (0, 0)  # base offset of the segment that the high watermark is in, its position there
        self._readable_latest = (-1, 0)  # the latest timestamp before that position, and its offset

    @overload
    def __getitem__(self, place: int) -> Segment: ...
    @overload
    def __getitem__(self, place: slice) -> list[Segment]: ...
    def __getitem__(self, place: int | slice) -> Segment | list[Segment]:
        return self._segments[place]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    # -- where something is -------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        """The one that takes appends."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Of all batches, those that are not written yet too."""
        return self._sealed_bytes + (self._segments[-1].size if self._segments else 0)

    def holding(self, offset: int) -> Segment | None:
        """The last segment that begins at or before `offset`, or the first one."""
        return self._segments[self._place(offset)] if self._segments else None

    def after(self, segment: Segment) -> Segment | None:
        """The one that goes on behind `segment`, which may have left meanwhile."""
        place = bisect_right(self._base_offsets, segment.base_offset)
        return self._segments[place] if place < len(self._segments) else None

    def beginning_at(self, offset: int) -> list[Segment]:
        """The one that holds `offset`, and all behind it, as they are now."""
        return self._segments[self._place(offset) :]

    def _place(self, offset: int) -> int:
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    # -- how far it may be read ---------------------------------------------------------------------------------------

    @property
    def readable_latest(self) -> tuple[int, int]:
        """The latest timestamp before the high watermark in the segment that it is in, its batch's last offset."""
        return self._readable_latest

    def readable_latest_of(self, segment: Segment) -> tuple[int, int]:
        """The same of any segment."""
        return self._readable_latest if segment.base_offset == self._readable[0] else segment.latest

    def readable_end(self, segment: Segment) -> int:
        """The bytes of the segment that are below the high watermark."""
        base_offset, position = self._readable
        if segment.base_offset == base_offset:
            return position
        return segment.size if segment.base_offset < base_offset else 0

    def advance(self, segment: Segment, position: int, latest: tuple[int, int]) -> None:
        """The high watermark is at `position` of `segment`; `latest` is what `Segment.latest` was there."""
        self._readable = (segment.base_offset, position)
        self._readable_latest = latest

    # -- what comes and goes ------------------------------------------------------------------------------------------

    def add(self, base_offset: int) -> Segment:
        """A new active segment; its file comes into being with its first write."""
        segment = Segment(self.directory, base_offset, self.files)
        self.put(segment)
        self.changed = True
        return segment

    def roll(self, log_end_offset: int) -> Segment:
        """Seal the active segment and begin the next one; an active one that is empty is that already."""
        active = self.active
        if active.size == 0:
            return active
        active.seal()
        return self.add(log_end_offset)

    def with_room(self, header: BatchHeader, base_offset: int, config: TopicConfig) -> Segment:
        """The segment that takes a batch at `base_offset`: the active one, or a new one where that is full or old."""
        active = self._segments[-1]
        if active.size == 0:
            return active
        full = active.size + header.size > config.segment_bytes
        far = base_offset + header.last_offset - header.base_offset - active.base_offset > _INT32_MAX
        age = header.max_timestamp - active.first_append_ms if active.first_append_ms >= 0 else 0
        if full or far or age > config.segment_ms:
            return self.roll(base_offset)
        return active

    def put(self, segment: Segment) -> None:
        """The segment that the checkpoint names next."""
        self._sealed_bytes = self.size_bytes
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def cut(self, high_watermark: int) -> list[Segment]:
        """Forget what was appended at the high watermark and after it; the segments that have left, their files too."""
        gone: list[Segment] = []
        while self._segments[-1].base_offset > high_watermark:
            self._base_offsets.pop()
            segment = self._segments.pop()
            self._sealed_bytes -= self.active.size
            self.files.retire([segment])
            gone.append(segment)
            self.files.forget(segment)
            with suppress(OSError):  # its name would say that the log ends there
                self.files.disk.unlink(segment.path)
        # One that begins at the high watermark stays, empty: what is before it is sealed, and compacted perhaps.
        base_offset, position = self._readable
        if self.active.base_offset != base_offset:
            position = 0
        self.active.cut(position, high_watermark, self._readable_latest)
        return gone

    def drop_before(self, log_start_offset: int) -> list[Segment]:
        """Forget the segments wholly before it, never the active one; their files are the caller's to delete."""
        count = bisect_right(self._base_offsets, log_start_offset, 1) - 1 if self._segments else 0
        dropped = self._leave(0, count)
        if dropped and self._readable[0] < self._base_offsets[0]:
            self._readable, self._readable_latest = (self._base_offsets[0], 0), (-1, 0)
        return dropped

    def replace(self, segment: Segment, base_offsets: list[int]) -> list[Segment]:
        """Put a compacted segment in the place of the neighbours with these base offsets, which leave."""
        start = self._base_offsets.index(base_offsets[0])
        if self._readable[0] in base_offsets:
            self.advance(segment, segment.size, segment.latest)
        return self._leave(start, start + len(base_offsets), segment)

    def _leave(self, start: int, end: int, *instead: Segment) -> list[Segment]:
        leaving = self._segments[start:end]
        self.files.retire(leaving)
        self.changed = self.changed or bool(leaving)
        self._segments[start:end] = instead
        self._base_offsets[start:end] = [segment.base_offset for segment in instead]
        self._sealed_bytes = sum(segment.size for segment in self._segments[:-1])
        return leaving
