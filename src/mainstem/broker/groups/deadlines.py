"""When something is due: most deadlines are put off long before they come."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Monotonic seconds by key.

    Putting a deadline off costs nothing: the heap has its earlier entry, which is looked at when its time has come.
    """

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._entered: dict[K, float] = {}  # key: its entry in the heap that counts
        self._number = 0  # keys need not have an order

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def get(self, key: K) -> float | None:
        """When `key` is due."""
        return self._at.get(key)

    def set(self, key: K, at: float) -> None:
        """`key` is due at `at`, whatever was set before."""
        self._at[key] = at
        entered = self._entered.get(key)
        if entered is None or at < entered:
            self._enter(key, at)

    def discard(self, key: K) -> None:
        """Nothing is due for `key` any more."""
        self._at.pop(key, None)

    def next(self) -> float | None:
        """The earliest."""
        while self._heap:
            at, _, key = self._heap[0]
            due = self._at.get(key)
            if due == at:
                return at
            heapq.heappop(self._heap)
            if self._entered.get(key) == at:
                del self._entered[key]
                if due is not None:
                    self._enter(key, due)
        return None

    def take_due(self, now: float) -> K | None:
        """The first key that is due, which then is not any more; None if nothing is."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._entered[key], self._at[key]
        return key

    def _enter(self, key: K, at: float) -> None:
        self._entered[key] = at
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, key))
