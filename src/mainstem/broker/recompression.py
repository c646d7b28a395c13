"""The memory of batches that get the compression of their topic, which may be larger than what was sent.

How much they grow is known afterwards. So as many appends as there are threads for it are at that at a time; then what
they have grown by is of the budget of requests, where that has room for it. Else an append keeps its place until it is
durable: at most `PLACES` of them are beyond the budget.
"""

import asyncio
from typing import Final

from mainstem.broker.request_memory import RequestMemory

PLACES: Final = 4


class Growth:
    """Of one append."""

    __slots__ = ("_has_place", "_host", "_memory", "_places", "_taken")

    def __init__(self, memory: RequestMemory, places: asyncio.Semaphore, host: str) -> None:
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
        await self._places.acquire()
        self._has_place = True

    def came_to(self, size: int) -> None:
        """It has been, and is larger by `size`."""
        self._give()
        if self._has_place and self._memory.has_room(size, self._host):
            self._take(size)
            self._leave()

    def end(self) -> None:
        """Nothing of it is in memory; a second time is fine."""
        self._give()
        if self._has_place:
            self._leave()

    def _take(self, size: int) -> None:
        if size:
            self._memory.take(size, self._host)
            self._taken = size

    def _give(self) -> None:
        if self._taken:
            self._memory.give(self._taken, self._host)
            self._taken = 0

    def _leave(self) -> None:
        self._has_place = False
        self._places.release()
