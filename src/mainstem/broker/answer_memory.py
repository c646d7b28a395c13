"""The memory that answers hold, of all connections together: what a fetch has read, until its client has taken it.

A fetch asks before it reads. Where the budget is used up it gets no room, and its answer is the first batch alone: each
answer goes out, so nobody waits for anybody, and what is held beyond the budget is one batch per connection at most.
A client that has taken nothing of its answer for `PATIENCE_SECONDS` is cut off, but only where the room is wanted: a
consumer that works for minutes on what it has is no fault.

It is another budget than that of requests: who does not read must not keep others from writing.
"""

from typing import Final, Protocol

from mainstem.core import Clock

PATIENCE_SECONDS: Final = 30.0
_SECONDS_BETWEEN_LOOKS: Final = 1.0


class Taker(Protocol):
    """A connection."""

    @property
    def unsent_bytes(self) -> int:
        """What its client has not taken yet."""
        ...

    def abort(self) -> None:
        """End at once, whatever was not sent."""
        ...


class AnswerMemory:
    """The budget, and who keeps it. No I/O."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self.held = 0
        self._clock = clock
        self._slow: dict[Taker, tuple[float, int]] = {}  # since when so many bytes are unsent
        self._next_look = 0.0

    @property
    def has_room(self) -> bool:
        """The budget is not used up."""
        return self.held < self.limit

    def take(self, size: int) -> None:
        """So many bytes have been read, or are an answer."""
        self.held += size
        if self.held > self.limit:
            self._cut_off_the_slow()

    def give(self, size: int) -> None:
        """So many are free again."""
        self.held -= size

    def reserve(self, size: int) -> int:
        """Take up to `size` bytes, as far as there is room; how many it are, which the caller gives back."""
        granted = min(size, max(self.limit - self.held, 0))
        if granted < size:
            self._cut_off_the_slow()
        self.held += granted
        return granted

    def stopped(self, taker: Taker) -> None:
        """The client does not take what it is sent."""
        self._slow[taker] = (self._clock.monotonic(), taker.unsent_bytes)

    def goes_on(self, taker: Taker) -> None:
        """It has taken it, or is gone."""
        self._slow.pop(taker, None)

    def _cut_off_the_slow(self) -> None:
        now = self._clock.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        for taker, (since, unsent) in list(self._slow.items()):
            if taker.unsent_bytes < unsent:
                self._slow[taker] = (now, taker.unsent_bytes)
            elif now - since >= PATIENCE_SECONDS:
                taker.abort()
