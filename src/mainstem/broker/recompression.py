"""The memory of batches that get the compression of their topic, which may be larger than what was sent.

How much they grow is known afterwards. So a few appends are at that at a time, of the addresses that have taken least
time while others waited (start-time fair queueing: Goyal, Vin and Cheng, 1997); then what they have grown by is of the
budget of requests, where that has room for it. Else an append keeps its place until it is durable: at most `PLACES` of
them are beyond the budget.
"""

import asyncio
import time
from collections import OrderedDict
from typing import Final

from mainstem.broker.request_memory import RequestMemory

PLACES: Final = 2
"""Fewer than there are threads for files, which do it."""
_MOST_REMEMBERED: Final = 1_000  # addresses


class Places:
    """Who is at it, and who waits for that. No I/O."""

    def __init__(self, count: int = PLACES) -> None:
        self.free = count
        self._waiting: dict[str, OrderedDict[asyncio.Future[None], None]] = {}  # by address
        self._used: dict[str, float] = {}  # seconds, by address, since somebody began to wait
        self._most = 0.0  # of them, had by who was given a place
        self._usual = 0.0  # seconds that somebody has one

    async def acquire(self, host: str) -> None:
        """Return when there is a place for a client of that address."""
        if self.free:
            self.free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if host not in self._waiting:
            # As if it had been there all the time; new ones come behind those who have had a place but once.
            self._used[host] = max(self._used.get(host, self._most + self._usual), self._most)
            self._waiting[host] = OrderedDict()
        self._waiting[host][turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            elif turn in self._waiting.get(host, ()):
                self._remove(host, turn)
            raise

    def release(self, host: str, seconds: float) -> None:
        """An address has had a place for so long: it is of the one that has had least."""
        self._usual += (seconds - self._usual) / 8
        self._used[host] = self._used.get(host, self._most) + seconds
        if len(self._used) > _MOST_REMEMBERED + len(self._waiting):
            self._used = {each: self._used[each] for each in self._waiting}
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            least = min(self._waiting, key=self._used.__getitem__)
            turn = next(iter(self._waiting[least]))
            self._remove(least, turn)
            if not turn.done():
                self._most = max(self._most, self._used[least])
                turn.set_result(None)
                return
        self._used.clear()
        self._most = 0.0
        self.free += 1

    def _remove(self, host: str, turn: "asyncio.Future[None]") -> None:
        del self._waiting[host][turn]
        if not self._waiting[host]:
            del self._waiting[host]


class Growth:
    """Of one append."""

    __slots__ = ("_has_place", "_host", "_memory", "_places", "_since", "_taken")

    def __init__(self, memory: RequestMemory, places: Places, host: str) -> None:
        self._memory = memory
        self._places = places
        self._host = host
        self._has_place = False
        self._since = 0.0
        self._taken = 0

    @property
    def has_place(self) -> bool:
        """It may be recompressed."""
        return self._has_place

    async def begin(self) -> None:
        """Return when it has its place."""
        await self._places.acquire(self._host)
        self._has_place, self._since = True, time.monotonic()

    def came_to(self, size: int) -> None:
        """It has been, and is larger by `size`."""
        if self._has_place and self._memory.has_room(size, self._host):
            if size:
                self._memory.take(size, self._host)
                self._taken += size
            self._leave()

    def end(self) -> None:
        """Nothing of it is in memory; a second time is fine."""
        if self._taken:
            self._memory.give(self._taken, self._host)
            self._taken = 0
        if self._has_place:
            self._leave()

    def _leave(self) -> None:
        self._has_place = False
        loop, seconds = asyncio.get_running_loop(), time.monotonic() - self._since
        # In two turns, so that the next append of the same request is among those that wait.
        loop.call_soon(loop.call_soon, self._places.release, self._host, seconds)
