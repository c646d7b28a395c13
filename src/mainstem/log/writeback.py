"""Segments go to the disk while they are written, a piece at a time, so that a checkpoint finds little left to sync.

A checkpoint that has to bring 64 MB at once keeps the disk busy for 30 ms, and the journal's next sync waits behind it,
with all its producers. docs/decisions/log-speed.md has the figures.

It is a hint and promises nothing: what is on the disk only a sync knows.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mainstem.log.round import PartitionWrites
from mainstem.log.segment import Segment
from mainstem.log.threads import FileThreads

PIECE_BYTES: Final = 1 << 20


class Writeback:
    """Of one log directory; on the event loop, with a thread of its own, since the hint may wait for the disk."""

    def __init__(self) -> None:
        self._threads = FileThreads(1)
        self._busy = False

    def written(self, partitions: Iterable[PartitionWrites]) -> None:
        """These are in their files. A segment whose turn does not come now has it with its next batch."""
        if self._busy:
            return
        for each in partitions:
            if not each.writes:
                continue
            last = each.writes[-1]
            segment, end = last.segment, last.position + last.size
            start = segment.writeback_position
            if end - start >= PIECE_BYTES:
                segment.writeback_position = end
                self._busy = True
                self._threads.run(_begin, segment, start, end - start).add_done_callback(self._done)
                return

    def _done(self, _: object) -> None:
        self._busy = False

    def close(self) -> None:
        """Let go of the thread."""
        self._threads.close()


def _begin(segment: Segment, start: int, size: int) -> None:
    with suppress(OSError):  # deleted, or no descriptor; a disk that fails says so to the next sync
        segment.file.begin_writeback(start, size)
