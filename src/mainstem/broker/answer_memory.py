"""The memory that answers hold, of all connections together, until their clients have taken them.

There are two budgets. A fetch asks before it reads. Where its budget is used up it gets no room, and its answer is the
first batch alone: each answer goes out, so nobody waits for anybody, and what is held beyond the budget is one batch
per connection at most. A client that has taken nothing of its answer for `PATIENCE_SECONDS` is cut off, but only where
the room is wanted: a consumer that works for minutes on what it has is no fault.

How large other answers are, nobody knows before they are made, so they are of a budget without patience: where it is
used up, clients are cut off at once until the rest fits, first those of the address that holds most, and of these who
has taken nothing for longest; never who is just answered.

Neither is the budget of requests: who does not read must not keep others from writing.
"""

from collections import Counter
from typing import Final, Protocol

import msgspec

from mainstem.core import Clock

PATIENCE_SECONDS: Final = 30.0
_SECONDS_BETWEEN_LOOKS: Final = 1.0
_FREED: Final = 8  # this part of the budget is freed at once, not a byte each time


class Taker(Protocol):
    """A connection."""

    @property
    def client_host(self) -> str:
        """The address that it comes from."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """What it was sent and its client has not taken yet."""
        ...

    def abort(self) -> None:
        """End at once, whatever was not sent, and leave."""
        ...


class _Answers(msgspec.Struct):
    """What a connection holds."""

    size: int
    since: float  # its client has taken nothing
    unsent: int


class AnswerMemory:
    """A budget, and who has which part of it. No I/O."""

    def __init__(self, limit: int, clock: Clock, *, patience: float = PATIENCE_SECONDS) -> None:
        self.limit = limit
        self.held = 0
        self._clock = clock
        self._patience = patience
        self._answers: dict[Taker, _Answers] = {}
        self._next_look = 0.0

    @property
    def has_room(self) -> bool:
        """The budget is not used up."""
        return self.held < self.limit

    def reserve(self, size: int) -> int:
        """Take up to `size` bytes, as far as there is room; how many it are, which the caller gives back."""
        granted = min(size, max(self.limit - self.held, 0))
        if granted < size:
            self._cut_off(None)
        self.held += granted
        return granted

    def take(self, size: int) -> None:
        """So many bytes have been read."""
        self.held += size
        if self.held > self.limit:
            self._cut_off(None)

    def give(self, size: int) -> None:
        """So many are free again."""
        self.held -= size

    def hold(self, taker: Taker, size: int) -> None:
        """So many bytes are an answer to it."""
        self.held += size
        if (answers := self._answers.get(taker)) is None:
            self._answers[taker] = _Answers(size, self._clock.monotonic(), taker.unsent_bytes + size)
        else:
            answers.size += size
        if self.held > self.limit:
            self._cut_off(taker)

    def let_go(self, taker: Taker, size: int) -> None:
        """Its client has taken so many of them."""
        self.held -= size
        answers = self._answers[taker]
        answers.size -= size
        answers.since = self._clock.monotonic()
        if not answers.size:
            del self._answers[taker]

    def leave(self, taker: Taker) -> None:
        """It sends no more."""
        if (answers := self._answers.pop(taker, None)) is not None:
            self.held -= answers.size

    def _cut_off(self, latest: Taker | None) -> None:
        """Those who take nothing, or nothing any more."""
        now = self._clock.monotonic()
        if now < self._next_look:
            return
        if self._patience:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
        by_address: Counter[str] = Counter()
        for taker, answers in self._answers.items():
            unsent = taker.unsent_bytes
            if unsent < answers.unsent:
                answers.since = now
            answers.unsent = unsent
            by_address[taker.client_host] += answers.size
        slow = [
            (-by_address[taker.client_host], answers.since, number, taker)
            for number, (taker, answers) in enumerate(self._answers.items())
            if taker is not latest and now - answers.since >= self._patience
        ]
        for *_, taker in sorted(slow):
            taker.abort()
            if self.held < self.limit - self.limit // _FREED:
                return
