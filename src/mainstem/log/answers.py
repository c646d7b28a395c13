"""Who waits for an append: its future resolves when the high watermark has passed it."""

import asyncio
from collections import deque
from collections.abc import Iterator

import msgspec

from mainstem.log.errors import StorageError
from mainstem.log.producers import Producer

ProducersBefore = tuple[tuple[int, Producer | None], ...]
"""Producer ids, and what was remembered of them before an append."""


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """Where an append went."""

    base_offset: int
    last_offset: int
    """Included."""
    log_append_time_ms: int
    """-1 where the producer's timestamps are kept (`CreateTime`)."""
    log_start_offset: int
    duplicate: bool = False
    """The batch was appended before; these are the offsets it got then."""


class _Pending(msgspec.Struct, frozen=True):
    """An append that is not acknowledged yet, and how to undo it."""

    future: "asyncio.Future[AppendResult]"
    result: AppendResult
    producers_before: ProducersBefore = ()

    def resolve(self) -> None:
        if not self.future.done():  # a caller that is gone has cancelled it
            self.future.set_result(self.result)


class Answers:
    """The appends of one partition that are not acknowledged, in offset order, and repetitions of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[_Pending] = deque()
        self._repeated: list[_Pending] = []

    def add(self, result: AppendResult, producers_before: ProducersBefore) -> "asyncio.Future[AppendResult]":
        """Promise `result`, which comes behind all that were promised before."""
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        self._pending.append(_Pending(future, result, producers_before))
        return future

    def repeat(self, result: AppendResult, high_watermark: int) -> "asyncio.Future[AppendResult]":
        """Promise `result` a second time; at once where the high watermark has passed it."""
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        if result.last_offset < high_watermark:
            future.set_result(result)
        else:
            self._repeated.append(_Pending(future, result))
        return future

    def give(self, high_watermark: int) -> None:
        """Acknowledge what is below the high watermark."""
        while self._pending and self._pending[0].result.last_offset < high_watermark:
            self._pending.popleft().resolve()
        if self._repeated:
            for repeated in self._repeated:
                if repeated.result.last_offset < high_watermark:
                    repeated.resolve()
            self._repeated = [each for each in self._repeated if each.result.last_offset >= high_watermark]

    def fail(self, error: StorageError) -> None:
        """Tell everybody; how the appends are undone is still known, since that may yet have to happen."""
        waiting = [*self._pending, *self._repeated]
        self._repeated.clear()
        for pending in waiting:
            if not pending.future.done():
                pending.future.set_exception(error)

    def producers_before(self) -> Iterator[tuple[int, Producer | None]]:
        """What each unacknowledged append found, the latest one first: put back in this order, it undoes them all."""
        for pending in reversed(self._pending):
            yield from pending.producers_before

    def forget(self) -> None:
        """Nothing waits any more: it was told, and is undone or never will be."""
        self._pending.clear()
