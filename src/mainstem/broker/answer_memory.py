"""The memory that answers hold, of all connections together, until their clients have taken them.

There are two budgets. A fetch asks before it reads. Where its budget is used up it gets no room, and its answer is the
first batch alone: each answer goes out, so nobody waits for anybody, and what is held beyond the budget is one batch
per connection at most. A client that has taken nothing of its answer for `PATIENCE_SECONDS` is cut off, but only where
the room is wanted: a consumer that works for minutes on what it has is no fault.

How large other answers are, nobody knows before they are made. Where the budget for them is used up, an address that
has not taken all of one waits for up to `_LONGEST_WAIT` before its next, and who takes nothing for a second is cut off.
Where twice the budget is held all the same, clients are cut off whatever they do, but for whose first answer has just
been made: first who has taken nothing, of the address that holds most. What is made in one turn of the loop is bounded,
since nobody can take any of it meanwhile, nor is what was cut off free before the next.

An answer of very many items is held from the first of them on (`pieces`). While the budget is used up, only one of
them goes on: addresses take turns, and of an address it is the one that was begun first. Where whole ones hold half of
the budget a turn is over `_LONGEST_WAIT` after the one before it of the same address at the earliest; all wait for that
at the same time. Nobody can take any of it before it is whole, so who waits for it is no more to blame than who takes
what he is sent. But where twice the budget is held it goes before all others, if its address holds most.

Neither is the budget of requests: who does not read must not keep others from writing.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from mainstem.core import Clock

PATIENCE_SECONDS: Final = 30.0
_LITTLE_PATIENCE: Final = 1.0
_LOOKS: Final = 10  # within the patience
_LONGEST_WAIT: Final = 5.0  # half of the shortest time that a member of a group usually has to say that it lives
_SECONDS_BETWEEN_CALLS: Final = 0.1
_PART: Final = 8  # of the budget: is freed at once, not a byte each time; and is what is made in a turn of the loop


class Taker(Protocol):
    """A connection."""

    @property
    def client_host(self) -> str:
        """The address that it comes from."""
        ...

    @property
    def untaken_bytes(self) -> int:
        """What its client has not taken yet of its answers, the system's buffers included."""
        ...

    def ask_again(self) -> None:
        """An answer to it may be made."""
        ...

    def abort(self) -> None:
        """End at once, whatever was not sent, and leave."""
        ...


class _Answers(msgspec.Struct):
    """What a connection holds."""

    size: int
    since: float  # its client has taken nothing
    untaken: int
    has_moved: bool = False
    """It has taken something."""


class _Turn(msgspec.Struct):
    """Of an address, some of whose answers are not whole yet."""

    since: float
    """It waits for its turn."""
    sizes: dict[Taker, int] = {}
    """The oldest first; 0: it has not begun."""


class _Wait(msgspec.Struct):
    since: float
    was_called: bool = False
    """It has been told to ask again, and has not since."""


class AnswerMemory:
    """A budget, and who has which part of it. No I/O."""

    def __init__(
        self,
        limit: int,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        *,
        is_asked: bool,
    ) -> None:
        self.limit = limit
        self.held = 0
        self._clock = clock
        self._call_soon = call_soon
        self._call_later = call_later
        self._patience = PATIENCE_SECONDS if is_asked else _LITTLE_PATIENCE
        self._most = math.inf if is_asked else 2 * limit
        self._answers: dict[Taker, _Answers] = {}
        self._held_by: Counter[str] = Counter()  # address
        self._whole_by: Counter[str] = Counter()  # address; without what is being made
        self._whole = 0  # of all of them
        self._turns: dict[str, _Turn] = {}  # address
        self._waiting: dict[Taker, _Wait] = {}  # the oldest first
        self._is_to_call = False
        self._made = 0  # in this turn of the loop
        self._next_look = 0.0

    @property
    def has_room(self) -> bool:
        """The budget is not used up."""
        return self.held < self.limit

    @property
    def turn_is_full(self) -> bool:
        """What is made next is for the next turn of the loop."""
        return self._made > self.limit // _PART

    def _turn_ends(self) -> None:
        self._made = 0

    def may_make(self, taker: Taker) -> bool:
        """An answer to it, whatever its size. If not, it waits, and is told to ask again."""
        if self._may_go_on(taker):
            self._waiting.pop(taker, None)
            return True
        self.wait(taker)
        return False

    def wait(self, taker: Taker) -> None:
        """It is told to ask again when there is room, or it has waited for long."""
        self._waiting.setdefault(taker, _Wait(self._clock.monotonic())).was_called = False
        if not self._is_to_call:
            self._is_to_call = True
            self._call_later(_SECONDS_BETWEEN_CALLS, self._call_who_waits)

    def _may_go_on(self, taker: Taker) -> bool:
        if self.held < self.limit or taker.client_host not in self._whole_by:
            return True
        wait = self._waiting.get(taker)
        return wait is not None and self._clock.monotonic() - wait.since >= _LONGEST_WAIT

    def _call_who_waits(self) -> None:
        if not self.has_room:
            self._cut_off(None)
        for taker, wait in list(self._waiting.items()):
            if wait.was_called:  # it has nothing to ask any more
                del self._waiting[taker]
            elif self._may_go_on(taker):
                wait.was_called = True
                self._call_soon(taker.ask_again)
        self._is_to_call = bool(self._waiting)
        if self._is_to_call:
            self._call_later(_SECONDS_BETWEEN_CALLS, self._call_who_waits)

    def reserve(self, size: int) -> int:
        """Take up to `size` bytes, as far as there is room; how many it are, which the caller gives back."""
        granted = min(size, max(self.limit - self.held, 0))
        if granted < size:
            self._cut_off(None, wanted=size)
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
        self._whole += size
        self._whole_by[taker.client_host] += size
        self._hold(taker, size)

    def _hold(self, taker: Taker, size: int) -> None:
        self.held += size
        self._held_by[taker.client_host] += size
        if not self._made:
            self._call_soon(self._turn_ends)
        self._made += size
        is_first = taker not in self._answers
        if is_first:
            self._answers[taker] = _Answers(size, self._clock.monotonic(), taker.untaken_bytes)
        else:
            self._answers[taker].size += size
        if self.held > self.limit:
            self._cut_off(taker if is_first else None)

    def may_begin(self, taker: Taker) -> bool:
        """An answer to it in pieces. If not, it has its turn behind those of its address that were begun before it."""
        return self.has_room or taker.client_host not in self._turns

    def make(self, taker: Taker, size: int) -> None:
        """So many bytes more have been made of an answer to it that is not whole yet; 0: it is to be begun."""
        sizes = self._turns.setdefault(taker.client_host, _Turn(self._clock.monotonic())).sizes
        sizes[taker] = sizes.get(taker, 0) + size
        if size:
            self._hold(taker, size)

    def may_go_on_making(self, taker: Taker) -> bool:
        """If not, it asks again soon."""
        if self.has_room:
            return True
        self._cut_off(None)
        turn = next(iter(self._turns.values()), None)
        if turn is None or next(iter(turn.sizes)) is not taker:
            return False
        return self._whole < self.limit / 2 or self._clock.monotonic() - turn.since >= _LONGEST_WAIT

    def _made_for(self, taker: Taker) -> int:
        turn = self._turns.get(taker.client_host)
        return 0 if turn is None else turn.sizes.get(taker, 0)

    def end_making(self, taker: Taker) -> None:
        """It is whole, and held as other answers are, or nobody wants it."""
        if size := self._making_no_more(taker):
            self._free(taker, size)

    def _making_no_more(self, taker: Taker) -> int:
        turn = self._turns.get(taker.client_host)
        if turn is None or taker not in turn.sizes:
            return 0
        was_next = next(iter(turn.sizes)) is taker
        size = turn.sizes.pop(taker)
        if was_next or not turn.sizes:
            del self._turns[taker.client_host]
        if was_next and turn.sizes:  # others have their turns before its next one
            turn.since = self._clock.monotonic()
            self._turns[taker.client_host] = turn
        return size

    def let_go(self, taker: Taker, size: int) -> None:
        """Its client has taken so many of them."""
        answers = self._answers[taker]
        answers.since, answers.has_moved = self._clock.monotonic(), True
        self._give_whole(taker, size)
        self._free(taker, size)

    def _free(self, taker: Taker, size: int) -> None:
        self._give(taker, size)
        self._answers[taker].size -= size
        if not self._answers[taker].size:
            del self._answers[taker]

    def leave(self, taker: Taker) -> None:
        """It is sent no more."""
        self._waiting.pop(taker, None)
        made = self._making_no_more(taker)
        if (answers := self._answers.pop(taker, None)) is not None:
            self._give_whole(taker, answers.size - made)
            self._give(taker, answers.size)

    def _give_whole(self, taker: Taker, size: int) -> None:
        self._whole -= size
        _less(self._whole_by, taker, size)

    def _give(self, taker: Taker, size: int) -> None:
        self.held -= size
        _less(self._held_by, taker, size)

    def _cut_off(self, latest: Taker | None, wanted: int = 0) -> None:
        """Those who take nothing, until so much is free; beyond `_most` also others."""
        now, is_too_much = self._clock.monotonic(), self.held > self._most
        if now < self._next_look and not is_too_much:
            return
        self._next_look = now + self._patience / _LOOKS
        for taker, answers in self._answers.items():
            untaken = taker.untaken_bytes
            if untaken < answers.untaken or answers.size == self._made_for(taker):  # or it has nothing to take yet
                answers.since, answers.has_moved = now, True
            answers.untaken = untaken
        most = max(self._held_by.values(), default=0)
        order = [
            (
                now - each.since < self._patience,
                not self._made_for(taker) or self._held_by[taker.client_host] < most,
                each.has_moved,
                -self._held_by[taker.client_host],
                each.since,
                number,
                taker,
            )
            for number, (taker, each) in enumerate(self._answers.items())
            if taker is not latest
        ]
        for goes_on, *_, taker in sorted(order):
            bound = self._most if goes_on else self.limit
            if (goes_on and not is_too_much) or self.held < bound - max(bound / _PART, wanted):
                return
            taker.abort()


def _less(by_address: Counter[str], taker: Taker, size: int) -> None:
    by_address[taker.client_host] -= size
    if not by_address[taker.client_host]:
        del by_address[taker.client_host]
