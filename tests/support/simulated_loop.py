"""An event loop without sockets, whose time is the test's."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from mainstem.core import ManualClock


class Timer:
    """A call at a time."""

    def __init__(self, at: float, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.at, self.arguments = at, arguments
        self.call: Callable[..., object] | None = call

    def when(self) -> float:
        """In the loop's time."""
        return self.at

    def cancel(self) -> None:
        """It is not called any more."""
        self.call = None


class Loop:
    """What connections ask of an event loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        """For the next turn."""
        self._later: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """In seconds."""
        return self.clock.monotonic()

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """In the next turn."""
        self.soon.append((call, arguments))

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: Any) -> Timer:
        """When so much time has passed."""
        timer = Timer(self.time() + seconds, call, arguments)
        heapq.heappush(self._later, (timer.at, next(self._numbers), timer))
        return timer

    def turn(self) -> None:
        """What was for the next one; what that calls soon is for the one after it."""
        for _ in range(len(self.soon)):
            call, arguments = self.soon.popleft()
            call(*arguments)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due is called, each in its time."""
        until = self.time() + seconds
        while self._later and self._later[0][0] <= until:
            at, _, timer = heapq.heappop(self._later)
            self.clock.advance_ms(max(0, round((at - self.time()) * 1000)))
            if timer.call is not None:
                timer.call(*timer.arguments)
            while self.soon:
                self.turn()
        self.clock.advance_ms(max(0, round((until - self.time()) * 1000)))
