"""Waiting for positions: whoever waits is woken by what was applied, never by the clock.

For each partition a heap of the offsets that are waited for: what is applied wakes those that it reaches, and nobody
else is looked at. All of it belongs to one event loop.
"""

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Mapping

from mainstem.client.basis import furthest, reaches
from mainstem.client.progress import NextOffsets
from mainstem.core import Retriable

_Heap = list[tuple[int, int, "asyncio.Future[None]"]]  # offset, number, who waits


class Overtaken(Retriable):
    """What was waited for is not asked any more: another index answers, and is to be waited for."""


class Waits:
    """The position that something has reached, and those who wait for it to go on."""

    def __init__(self) -> None:
        self.position: NextOffsets = {}
        self._waiting: dict[tuple[str, int], _Heap] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """How many wait."""
        return sum(not waiter.done() for heap in self._waiting.values() for _, _, waiter in heap)

    async def reached(self, wanted: NextOffsets) -> None:
        """Return when `position` is at or beyond `wanted`; the caller bounds the time."""
        for topic, partitions in wanted.items():
            for partition, offset in partitions.items():
                while self.position.get(topic, {}).get(partition, 0) < offset:
                    await self._wait(topic, partition, offset)

    def advance(self, position: NextOffsets) -> None:
        """It has come so far; partitions that are not named stay where they are."""
        self.position = furthest(self.position, position)
        for topic, partitions in position.items():
            for partition, offset in partitions.items():
                self._wake(topic, partition, offset)

    def begin_again(self, position: NextOffsets) -> None:
        """It is lost, or replaced by another that is so far. Those who wait go on waiting."""
        self.position = {}
        self.advance(position)

    def overtake(self) -> None:
        """Wake all who wait: they get `Overtaken`."""
        for heap in self._waiting.values():
            _end([waiter for *_, waiter in heap])
        self._waiting.clear()

    async def _wait(self, topic: str, partition: int, offset: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heap = self._waiting.setdefault((topic, partition), [])
        heapq.heappush(heap, (offset, next(self._numbers), waiter))
        if len(heap) > 1000 and sum(each.done() for *_, each in heap) > len(heap) // 2:  # they have given up
            heap[:] = [each for each in heap if not each[2].done()]
            heapq.heapify(heap)
        try:
            await waiter
        finally:
            # A partition that there is none of never wakes anybody: nothing is left of those who gave up on it.
            while heap and heap[0][2].done():
                heapq.heappop(heap)
            if not heap and self._waiting.get((topic, partition)) is heap:
                del self._waiting[topic, partition]

    def _wake(self, topic: str, partition: int, reached: int) -> None:
        heap = self._waiting.get((topic, partition), [])
        while heap and heap[0][0] <= reached:
            _, _, waiter = heapq.heappop(heap)
            if not waiter.done():
                waiter.set_result(None)


class Changes:
    """A state that changes now and then; whoever waits looks at it after each change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def next(self) -> None:
        """Return after the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def tell(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def overtake(self) -> None:
        """Wake all who wait: they get `Overtaken`."""
        _end(self._waiting)


def _end(waiting: Iterable["asyncio.Future[None]"]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_exception(Overtaken("another index answers now", hint="ask again"))


def missing(position: NextOffsets, wanted: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, list[int]]]:
    """Where `position` is behind `wanted`: topic -> partition -> [reached, wanted]."""
    return {
        topic: {
            partition: [position.get(topic, {}).get(partition, 0), offset]
            for partition, offset in each.items()
            if position.get(topic, {}).get(partition, 0) < offset
        }
        for topic, each in wanted.items()
        if not reaches(position.get(topic, {}), each)
    }
