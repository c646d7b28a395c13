"""The memory of batches that get the compression of their topic, which may be larger than what was sent.

How much they grow is known afterwards. So a few appends are at that at a time, of addresses in turn; then what they
have grown by is of the budget of requests, where that has room for it. Else an append keeps its place until it is
durable: at most `PLACES` of them are beyond the budget.
"""

import asyncio
from collections import deque
from typing import Final

from mainstem.broker.request_memory import RequestMemory

PLACES: Final = 2
"""Fewer than there are threads for files, which do it."""


class Places:
    """Who is at it, and who waits for that. No I/O."""

    def __init__(self, count: int = PLACES) -> None:
        self.free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address, that of the last one last

    async def acquire(self, host: str) -> None:
        """Return when there is a place for a client of that address."""
        if self.free:
            self.free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """A place is free: it is of the next one."""
        for host in list(self._waiting):
            waiting = self._waiting.pop(host)
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    if waiting:
                        self._waiting[host] = waiting
                    turn.set_result(None)
                    return
        self.free += 1


class Growth:
    """Of one append."""

    __slots__ = ("_has_place", "_host", "_memory", "_places", "_taken")

    def __init__(self, memory: RequestMemory, places: Places, host: str) -> None:
        self._memory = memory
        self._places = places
        self._host = host
        self._has_place = False
        self._taken = 0

    @property
    def has_place(self) -> bool:
        """It may be recompressed."""
        return self._has_place

    async def begin(self) -> None:
        """Return when it has its place."""
        await self._places.acquire(self._host)
        self._has_place = True

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
        self._places.release()
