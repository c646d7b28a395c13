"""Could one process, that never fails, have given these answers in some order that fits their times?

Wing and Gong's search with Lowe's memory of what was tried, as in porcupine (https://github.com/anishathalye/porcupine).
A call without an answer may have been carried out at any time after it began, or never.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import NamedTuple

from examples.arithmetic.operations import Arithmetic
from mainstem.replicate import Refused


class Call(NamedTuple):
    """What a client asked for, and what it was told; `answer` None: nothing, or not in time."""

    op: str
    answer: str | None
    began: float
    ended: float = math.inf

    @property
    def variable(self) -> str:
        return self.op.rstrip("?").split("=")[0].rstrip("+-*/ ")


Step = Callable[[Hashable, str], tuple[str, Hashable]]
"""The answer to an operation in a state, and the state after it."""


def variables_are_linearizable(history: Iterable[Call]) -> str:
    """Each variable by itself, since no operation has two; the first that is not, or ""."""
    calls = defaultdict(list)
    for call in history:
        calls[call.variable].append(call)
    return next((variable for variable, each in calls.items() if not linearizable(each, arithmetic, Fraction())), "")


def arithmetic(state: Hashable, op: str) -> tuple[str, Hashable]:
    """One variable of the service."""
    assert isinstance(state, Fraction)
    service = Arithmetic()
    variable = Call(op, None, 0.0).variable
    service.load({variable: str(state)})
    if op.endswith("?"):
        return service.query(variable), state
    try:
        answer, changes = service.execute(op)
    except Refused as error:
        return str(error), state
    return answer, Fraction(changes[variable])


class _Event:
    """A call's begin or end in the list of what happened; an event that is taken out leaves its neighbours linked."""

    __slots__ = ("call", "end", "next", "number", "previous")

    def __init__(self, number: int, call: Call, end: "_Event | None") -> None:
        self.number, self.call, self.end = number, call, end  # `end` of a begin; None in an end
        self.previous: _Event | None = None
        self.next: _Event | None = None

    def take_out(self) -> None:
        for each in (self, self.end):
            assert each is not None
            assert each.previous is not None
            each.previous.next = each.next
            if each.next is not None:
                each.next.previous = each.previous

    def put_back(self) -> None:
        for each in (self.end, self):
            assert each is not None
            assert each.previous is not None
            each.previous.next = each
            if each.next is not None:
                each.next.previous = each


def linearizable(calls: list[Call], step: Step, first: Hashable) -> bool:
    """Whether some order that fits the times explains all answers, from the state `first` on."""
    head = _linked(calls)
    state, done = first, 0
    tried: set[tuple[int, Hashable]] = set()
    way: list[tuple[_Event, Hashable]] = []
    event = head.next
    while head.next is not None:
        if event is not None and event.end is not None:  # it may be the next to be carried out
            answer, after = step(state, event.call.op)
            key = (done | 1 << event.number, after)
            if event.call.answer in (None, answer) and key not in tried:
                tried.add(key)
                way.append((event, state))
                state, done = after, key[0]
                event.take_out()
                event = head.next
            else:
                event = event.next
        else:  # the end of one that nothing has explained: take another way
            if not way:
                return False
            event, state = way.pop()
            done &= ~(1 << event.number)
            event.put_back()
            event = event.next
    return True


def _linked(calls: list[Call]) -> _Event:
    events: list[tuple[float, int, _Event]] = []
    for number, call in enumerate(calls):
        end = _Event(number, call, None)
        ended = math.inf if call.answer is None else call.ended
        events += [(call.began, 0, _Event(number, call, end)), (ended, 1, end)]
    head = last = _Event(-1, Call("", None, 0.0), None)
    for _, _, event in sorted(events, key=lambda each: each[:2]):
        last.next, event.previous = event, last
        last = event
    return head
