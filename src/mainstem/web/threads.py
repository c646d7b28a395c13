"""Threads in which what answers HTTP makes the calls that block, and how many may wait for one."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from mainstem.core.errors import Retriable

T = TypeVar("T")


class Overloaded(Retriable):
    """Others ask too much at once."""


class Threads:
    """Where calls of one kind are made: of their own, so that what waits here holds up nobody else in the process, and
    the other way round.

    Args:
        who: the subject of what is told to those who come too late: `the dashboard`.
        count: so many calls at once.
        most_waiting: so many more wait for their turn.
    """

    def __init__(self, who: str, count: int, most_waiting: int) -> None:
        self._who = who
        self._threads = ThreadPoolExecutor(count, who.rpartition(" ")[2])
        self._count, self._most, self._waiting = count, count + most_waiting, 0

    async def call(self, function: Callable[..., T], *arguments: Any, within: float | None = None) -> T:
        """What `function` returns; it waits for its turn, `within` so many seconds (None: for ever).

        Raises:
            Overloaded: too many wait for their turn, or it did not come in time; the rest as it does.
        """
        if self._waiting >= self._most:
            raise Overloaded(f"{self._who} answers {self._waiting} requests already", hint="ask again in a second")
        self._waiting += 1
        turn = _Turn(function, arguments)
        timer: asyncio.TimerHandle | None = None
        try:
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(self._threads, turn)
            if within is not None and self._waiting > self._count:
                timer = loop.call_later(within, turn.give_up, answer)
            return await answer
        except asyncio.CancelledError:
            if not turn.is_given_up:
                raise
            told = f"{self._who} answers {self._waiting} requests, the turn of this one did not come in {within:g} s"
            raise Overloaded(told, hint="ask again in a second") from None
        finally:
            self._waiting -= 1
            if timer is not None:
                timer.cancel()  # until its time it would hold the answer

    def later(self, function: Callable[[], object]) -> None:
        """Call it when a thread is free; nobody waits for it. Not after `close`."""
        with contextlib.suppress(RuntimeError):
            self._threads.submit(function)

    def close(self) -> None:
        """Begin nothing more; what is under way is not waited for here."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Turn(Generic[T]):
    """A call that waits for a thread."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._has_begun = self.is_given_up = False

    def __call__(self) -> T:
        self._has_begun = True
        return self._function(*self._arguments)

    def give_up(self, answer: "asyncio.Future[T]") -> None:
        if not self._has_begun and not answer.done():
            self.is_given_up = True
            answer.cancel()


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function in the loop soon; where that is closed, nobody is interested any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
