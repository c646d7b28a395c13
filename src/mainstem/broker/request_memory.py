"""The memory that requests hold, of all connections together: what has arrived of one, until its answer has left.

A connection asks before it reads on. Where the budget is used up nobody reads, but for one connection whose request has
arrived in part: else parts of requests could fill the budget, and none would ever be whole. The next one's turn comes
when that request has been answered: else one after the other would become whole, and all be held. What a client
announces costs nothing; only what it sends does.
"""

from collections.abc import Callable
from typing import Protocol


class Reader(Protocol):
    """A connection."""

    def look_again(self) -> None:
        """Ask again whether it may read."""
        ...


class RequestMemory:
    """The budget, and who waits for it. No I/O."""

    def __init__(self, limit: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit = limit
        self.held = 0
        self._call_soon = call_soon
        self._waiting: dict[Reader, None] = {}
        self._favourite: Reader | None = None  # reads its request to the end, whatever is held

    def take(self, size: int) -> None:
        """So many bytes have arrived, or have room made for them."""
        self.held += size

    def give(self, size: int) -> None:
        """So many are free again."""
        self.held -= size
        if self._waiting and self.held < self.limit:
            self._wake()

    def admits(self, reader: Reader, *, unfinished: bool, holds: int) -> bool:
        """May it read on? If not, it is told to look again. `unfinished`: a request has arrived in part; `holds`: bytes
        of the budget that are the reader's.
        """
        if self._favourite is reader and not holds:
            self._dismiss()
        if unfinished and self.held >= self.limit and self._favourite is None:
            self._favourite = reader
        if self.held < self.limit or (unfinished and self._favourite is reader):
            self._waiting.pop(reader, None)
            return True
        self._waiting[reader] = None
        return False

    def leave(self, reader: Reader) -> None:
        """The connection is gone, or does not want to read for now."""
        self._waiting.pop(reader, None)
        if self._favourite is reader:
            self._dismiss()

    def _dismiss(self) -> None:
        self._favourite = None
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reader in waiting:
            self._call_soon(reader.look_again)
