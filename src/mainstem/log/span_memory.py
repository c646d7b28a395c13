"""Memory for spans of files, used again when nobody has any part of it any more.

Memory that is new costs more than a read into it does; so does a copy that would make a span free at once.
"""

import mmap
from collections import deque
from functools import cache
from typing import Any, Final

_MOST: Final = 32  # the six that are read ahead for have three each; others are on their way to clients
_FOR_READS: Final = 8  # of these; what is found is copied where no more are left


class SpanMemory:
    """Pieces of one size. Taken in one thread; they come back from any."""

    def __init__(self, head: int, size: int) -> None:
        """`head` bytes, a multiple of a page, before `size` others."""
        self.head = head
        self._size = head + size
        self._there: deque[mmap.mmap | None] = deque([None] * _MOST)  # None: it was not made yet, or let go of

    def take(self) -> memoryview:
        """A piece, which comes back when the last view of it is gone; beyond a number of them one that does not."""
        if not self._there:
            return memoryview(mmap.mmap(-1, self._size))
        memory = self._there.pop()
        if memory is None:
            try:
                memory = mmap.mmap(-1, self._size)
            except OSError:
                self._there.append(None)
                raise
        loan = _loan_type(self._size).from_buffer(memory)
        loan.memory, loan.owner = memory, self._there
        return memoryview(loan).cast("B")

    @property
    def is_scarce(self) -> bool:
        """Who wants to keep a part for long is to copy it."""
        return len(self._there) < _FOR_READS

    @property
    def is_whole(self) -> bool:
        """Nobody has any."""
        return len(self._there) == _MOST

    def trim(self) -> None:
        """Let go of what nobody has; in the thread that takes."""
        for _ in range(len(self._there)):
            self._there.popleft()
            self._there.append(None)


@cache
def _loan_type(size: int) -> Any:
    """Of an object that all views of a piece of memory keep, and that gives it back at its end."""
    from ctypes import Array, c_ubyte  # 4 ms, which a start does not need

    def give_back(self: Any) -> None:
        self.owner.append(self.memory)

    return type("Loan", (Array,), {"_type_": c_ubyte, "_length_": size, "__del__": give_back})
