"""A part of a file in memory, read around the page cache: for who reads it in order, in a thread.

Such reads begin and end at multiples of 4 KB, on the disk and in memory. Blocks at multiples of their own size come
faster than others, and memory is used again: its first touch costs more than a read. So blocks are read, the next ones
while the last one is gone through, and what is left of one stays until the next has come.
"""

import mmap
from collections import deque
from concurrent.futures import Executor, Future
from typing import Final

from mainstem.log.disk import File

BLOCK: Final = 2**19
"""The disk has time for a sync of the journal between two of them: no more than one is read at a time."""

_AHEAD: Final = 3

_PAGE: Final = 4096
_KEPT: Final = 2**22  # memory that stays


class Window:
    """Used by one reader at a time."""

    def __init__(self, blocks: Executor, *, ahead: bool) -> None:
        """`blocks` reads them; with `ahead` those, too, that come next."""
        self._blocks = blocks
        self._reads_ahead = ahead
        self._memory = memoryview(b"")
        self._file: File | None = None
        self._begin = self._end = 0  # what of the file is there
        self._at = 0  # in memory
        self._free: list[memoryview] = []
        self._ahead: deque[tuple[int, memoryview, Future[int]]] = deque()

    def read(self, file: File, size: int, position: int, until: int) -> memoryview:
        """`size` bytes from `position` on, fewer only at the end of the file; valid until the next call. Nothing from
        `until` on is looked at: it may still change.

        Raises:
            OSError: of the file.
        """
        if file is not self._file:
            self._ahead.clear()  # they are the other file's
        if file is not self._file or not self._begin <= position <= self._end:
            self._file, self._begin, self._end = file, position, position
        wanted = min(position + size, until)
        if wanted > self._end:
            self._read_on(file, position, min(-(-wanted // BLOCK) * BLOCK, until))
            if self._reads_ahead:
                self._read_ahead(file, until)
        first = self._at + position - self._begin
        return self._memory[first : first + max(0, min(wanted, self._end) - position)]

    def forget(self) -> None:
        """Let go of the file: one that was deleted keeps its place on the disk while somebody has it open."""
        self._file = None
        self._ahead.clear()
        if len(self._memory) > _KEPT:
            self._memory = memoryview(b"")

    def _read_on(self, file: File, position: int, to: int) -> None:
        """So that there is what comes from `position` on, up to `to`."""
        end = self._end - self._end % _PAGE  # the rest of a page is read again
        kept = max(0, end - position)
        before = -(-kept // _PAGE) * _PAGE
        whole = -(-(to - end) // _PAGE) * _PAGE
        memory = self._memory
        if not before + whole <= len(memory) <= max(before + whole, _KEPT):
            memory = memoryview(mmap.mmap(-1, max(before + whole, _KEPT // 2)))  # begins at a page
        if kept:
            first = self._at + position - self._begin
            memory[before - kept : before] = self._memory[first : first + kept]
        self._memory = memory
        self._begin, self._end, self._at = end - kept, end, before - kept
        while self._end < to:
            size = min(BLOCK - self._end % BLOCK, whole - (self._end - end))
            count = self._block(file, memory[before + self._end - end :][:size])
            self._end += count
            if count < size:  # the end of the file
                break
        self._end = min(self._end, to)

    def _block(self, file: File, into: memoryview) -> int:
        """What comes at the end of what there is; from what was read ahead, if it is that."""
        while self._ahead:
            start, buffer, count = self._ahead.popleft()
            found = count.result()
            self._free.append(buffer)
            if start == self._end and len(into) <= found:
                into[:] = buffer[: len(into)]
                return len(into)
        return self._blocks.submit(file.read_around_cache, into, self._end).result()

    def _read_ahead(self, file: File, until: int) -> None:
        while len(self._ahead) < _AHEAD:
            start = self._ahead[-1][0] + BLOCK if self._ahead else self._end
            if start % BLOCK or start + BLOCK > until:
                return
            buffer = self._free.pop() if self._free else memoryview(mmap.mmap(-1, BLOCK))
            self._ahead.append((start, buffer, self._blocks.submit(file.read_around_cache, buffer, start)))
