"""A segment's file that may be damaged: which of its batches are the log's, and what their offsets have to be.

No CRC covers an offset. Where compaction has left no gaps, it is what most of the batches behind say of it; elsewhere
what the batches before and behind leave room for.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from mainstem.log.salvage import find_batches, whole_batch
from mainstem.log.segment import Segment
from mainstem.records import BatchHeader

_RUN = 32
"""So many whole batches in a row are not asked whether others contradict them."""
_WITNESSES = 4
"""So many of those behind a batch are asked what its offset is."""


class DamagedSegment(NamedTuple):
    """The file, and what is known of it; its methods read it (blocking)."""

    segment: Segment
    size: int
    """In bytes."""
    following: int | None
    """Where the next segment begins; None for the last one."""
    end: int
    """No batch in it ends behind this offset."""
    known: Segment | None
    """The segment as it was before it was damaged."""
    is_new: bool = False
    """Written since the checkpoint, so that nothing of it was compacted."""

    @property
    def is_dense(self) -> bool:
        """Each batch begins where the one before it ends."""
        return self.is_new if self.known is None else self.known.is_dense

    @property
    def _has_all_bytes(self) -> bool:
        return self.is_dense and (self.known is None or self.size >= self.known.size)

    def limit(self, position: int) -> int:
        """No batch that begins there ends behind this offset."""
        known = self.known
        return self.end if known is None or position >= known.size else min(self.end, known.next_offset)

    def fits(self, position: int, header: BatchHeader, expected: int) -> bool:
        """Whether it may be the batch at offset `expected`, or the first behind it."""
        if header.next_offset > self.limit(position):
            return False
        return header.base_offset == expected if self.is_dense else header.base_offset >= expected

    def is_contradicted(self, header: BatchHeader, position: int, following: BatchHeader, expected: int) -> bool:
        """Whether the batch that follows, at `position`, fits at `expected` too, and not behind it. Where there are no
        gaps, what is wrong with that one is found when it comes to it.
        """
        if self.is_dense or self.fits(position, following, header.next_offset):
            return False
        return self.fits(position, following, expected)

    def whole_batch(self, position: int) -> BatchHeader | None:
        """The batch that begins there, if it checks out."""
        return whole_batch(self.segment.file, self.segment.base_offset, position, self.size)

    def whole_batches(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Those from `position` on, with their positions."""
        if position < self.size:
            yield from find_batches(self.segment.file, self.segment.base_offset, position, self.size)

    def by_what_follows(self, position: int, header: BatchHeader, least: int) -> BatchHeader:
        """The batch there with the offset that most say of those that follow it without a gap, the end of the segment,
        as it was known, among them; where as many say one as the other, the later ones count. None counts that says
        less than `least`, or more than there is room for.
        """
        length, limit = header.next_offset - header.base_offset, self.limit(position)
        votes, found, count = [header.base_offset], header, 0
        for _ in range(_WITNESSES):
            count += found.last_offset - found.base_offset + 1
            position += found.size
            if self.known is not None and position == self.known.size:
                votes += [self.known.next_offset - count] * 2
                break
            behind = self.whole_batch(position)
            if behind is None:
                break
            found = behind
            votes.append(found.base_offset - count)
        possible = [vote for vote in reversed(votes) if least <= vote <= limit - length]
        offset = Counter(possible).most_common(1)[0][0] if possible else header.base_offset
        return msgspec.structs.replace(header, base_offset=offset, last_offset=offset + length - 1)

    def is_last(self, position: int, header: BatchHeader, expected: int) -> bool:
        """Whether the batch there, behind one that ends at `expected`, fills the room up to the next segment, which
        begins where this one ends.
        """
        if position + header.size < self.size or self.following is None:
            return False
        return self.is_dense and is_between(expected, header, self.following)

    def next_whole(self, position: int, expected: int) -> tuple[int, BatchHeader] | None:
        """The first batch from `position` on whose offsets fit in at `expected` or behind, and its position. Of two
        that contradict each other it is the one that more follow without a gap, or else the later: bytes of another
        segment may be in between, or in somebody's records.
        """
        best, most = None, 0
        for run in self._runs(position):
            first = self._first_that_fits(run, position, expected)
            if first is not None and (best is None or first[1].base_offset < best[1].next_offset):
                if len(run) >= most:
                    best, most = first, len(run)
            elif first is not None:
                break
            if len(run) == _RUN:
                break
        return best

    def _runs(self, position: int) -> Iterator[list[tuple[int, BatchHeader]]]:
        """The whole batches from `position` on, those together that follow each other without a gap, `_RUN` at most."""
        run: list[tuple[int, BatchHeader]] = []
        for at, header in self.whole_batches(position):
            if run and (len(run) == _RUN or at != run[-1][0] + run[-1][1].size):
                yield run
                run = []
            run.append((at, header))
        if run:
            yield run

    def _first_that_fits(
        self, run: Sequence[tuple[int, BatchHeader]], position: int, expected: int
    ) -> tuple[int, BatchHeader] | None:
        """Of batches that follow each other without a gap; of two that contradict each other the later one."""
        best = None
        for (at, found), behind in zip_longest(run, run[1:]):
            header = self.by_what_follows(at, found, expected) if self.is_dense else found
            is_confirmed = behind is not None and behind[1].base_offset == header.next_offset
            if at == position and header.base_offset != expected and self._has_all_bytes and not is_confirmed:
                continue  # none is missing that could have had the offsets in between
            if expected <= header.base_offset and header.next_offset <= self.limit(at):
                if best is not None and header.base_offset >= best[1].next_offset:
                    break
                best = at, header
        return best


def is_between(expected: int, header: BatchHeader, next_offset: int) -> bool:
    """Whether the batch fills the room between two others, whatever offset it says."""
    return expected + header.last_offset_delta + 1 == next_offset
