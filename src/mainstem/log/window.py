"""A part of a file in memory, read around the page cache: for who reads it in order, in a thread.

Such reads begin and end at multiples of 4 KB, on the disk and in memory. Blocks at multiples of their own size come
faster than others, and memory is used again: its first touch costs more than a read. So spans of blocks are read, the
next ones while the last one is gone through. What is found in a span is sent from where it lies; only what is left of
it is copied, in front of the next one.
"""

import mmap
from collections import deque
from concurrent.futures import Executor, Future
from typing import Final

import msgspec

from mainstem.log.disk import File
from mainstem.log.reading import READ_STEP
from mainstem.log.span_memory import SpanMemory

BLOCK: Final = 2**19
"""The disk has time for a sync of the journal between two of them: no more than one is read at a time."""

_SPAN: Final = 3  # blocks: with what is left of the one before, however little that is, more than `READ_STEP`
_AHEAD: Final = 2  # spans: the disk is not to wait for who goes through them

_PAGE: Final = 4096


class _Span(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a file from `start` on, a multiple of a page, behind the head of `memory`."""

    start: int
    size: int
    memory: memoryview
    found: "Future[int]"
    """How many were there."""

    def count(self, until: int) -> int:
        """How many may be looked at: none from the position `until` on.

        Raises:
            OSError: of the file. It is a new one: the future's own, raised here, would hold this span, which holds it.
        """
        error = self.found.exception()
        if error is not None:
            raise type(error)(*error.args)
        return min(self.found.result(), until - self.start)


def span_memory() -> SpanMemory:
    """For windows; in front of a span there is room for the rest of another."""
    return SpanMemory(-(-READ_STEP // _PAGE) * _PAGE, _SPAN * BLOCK)


class Window:
    """Used by one reader at a time."""

    def __init__(self, blocks: Executor, spans: SpanMemory, *, ahead: bool) -> None:
        """`blocks` reads them into memory of `spans`; with `ahead` those, too, that come next."""
        self._blocks = blocks
        self._spans = spans
        self._reads_ahead = ahead
        self._file: File | None = None
        self._begin = self._end = 0  # what of the file is there
        self._memory = memoryview(b"")  # from `_begin` on
        self._ahead: deque[_Span] = deque()

    def read(self, file: File, size: int, position: int, until: int) -> memoryview:
        """`size` bytes from `position` on, fewer only at the end of the file. Nothing from `until` on is looked at: it
        may still change.

        Raises:
            OSError: of the file.
        """
        if file is not self._file:
            self._ahead.clear()  # they are the other file's
        if file is not self._file or not self._begin <= position <= self._end:
            self._file, self._begin, self._end, self._memory = file, position, position, memoryview(b"")
        wanted = min(position + size, until)
        if wanted > self._end:
            self._read_on(file, position, wanted, until)
        return self._memory[position - self._begin : max(position, min(wanted, self._end)) - self._begin]

    def forget(self) -> None:
        """Let go of the file: one that was deleted keeps its place on the disk while somebody has it open."""
        self._file = None
        self._memory = memoryview(b"")
        self._ahead.clear()

    def _read_on(self, file: File, position: int, wanted: int, until: int) -> None:
        """So that there is what comes from `position` on, up to `wanted`."""
        head = self._spans.head
        span = self._next(file, wanted, until)
        count = span.count(until)
        rest = self._memory[position - self._begin : max(position, span.start) - self._begin]
        if len(rest) <= head and (span.start + count >= wanted or count < span.size):
            memory = span.memory[head - len(rest) :]
            memory[: len(rest)] = rest
            self._memory, self._begin, self._end = memory, span.start - len(rest), span.start + count
            return
        # A batch that is larger than a span.
        memory = memoryview(mmap.mmap(-1, len(rest) + wanted - span.start + len(span.memory)))
        memory[: len(rest)] = rest
        self._memory, self._begin, self._end = memory, span.start - len(rest), span.start
        while True:
            at = self._end - self._begin
            memory[at : at + count] = span.memory[head : head + count]
            self._end += count
            if self._end >= wanted or count < span.size:
                return
            span = self._next(file, wanted, until)
            count = span.count(until)

    def _next(self, file: File, wanted: int, until: int) -> _Span:
        """What comes at the end of what there is; what was read ahead, if it is that."""
        start = self._end - self._end % _PAGE  # the rest of a page is read again
        while self._ahead and self._ahead[0].start != start:
            self._ahead.popleft()
        if self._ahead:
            span = self._ahead.popleft()
        else:
            whole = until if self._reads_ahead else -(-wanted // BLOCK) * BLOCK
            span = self._begin_span(file, start, min(whole, until, (start // BLOCK + _SPAN) * BLOCK))
        while self._reads_ahead and len(self._ahead) < _AHEAD:
            last = self._ahead[-1] if self._ahead else span
            start = last.start + last.size
            end = min(start + _SPAN * BLOCK, until // BLOCK * BLOCK)
            if start % BLOCK or start >= end:
                break
            self._ahead.append(self._begin_span(file, start, end))
        return span

    def _begin_span(self, file: File, start: int, end: int) -> _Span:
        size = -(-(end - start) // _PAGE) * _PAGE
        memory = self._spans.take()
        into = memory[self._spans.head :][:size]
        return _Span(start, size, memory, self._blocks.submit(file.read_around_cache, into, start, BLOCK))
