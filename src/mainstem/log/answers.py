"""Who waits for an append: they are told when the high watermark has passed it."""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from mainstem.core.logging import get_logger
from mainstem.log.errors import StorageError
from mainstem.log.producers import Producer

ProducersBefore = tuple[tuple[int, Producer | None], ...]
"""Producer ids, and what was remembered of them before an append."""


log = get_logger()


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


Told = Callable[[AppendResult, StorageError | None], None]
"""Called on the event loop, once: what an append has led to, or why it has not."""


class _Pending(msgspec.Struct, frozen=True, gc=False):
    """An append that is not acknowledged yet, and how to undo it."""

    told: Told
    result: AppendResult
    producers_before: ProducersBefore = ()

    def tell(self, error: StorageError | None = None) -> None:
        try:
            self.told(self.result, error)
        except Exception:  # others wait as well
            log.exception("append_not_told", offset=self.result.base_offset)


class Answers:
    """The appends of one partition that are not acknowledged, in offset order, and repetitions of them."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._repeated: list[_Pending] = []

    def add(self, result: AppendResult, producers_before: ProducersBefore, told: Told) -> None:
        """Promise `result`, which comes behind all that were promised before."""
        self._pending.append(_Pending(told, result, producers_before))

    def repeat(self, result: AppendResult, high_watermark: int, told: Told) -> None:
        """Promise `result` a second time; at once where the high watermark has passed it."""
        if result.last_offset < high_watermark:
            told(result, None)
        else:
            self._repeated.append(_Pending(told, result))

    def give(self, high_watermark: int) -> None:
        """Acknowledge what is below the high watermark."""
        pending = self._pending
        while pending and pending[0].result.last_offset < high_watermark:
            pending.popleft().tell()
        if self._repeated:
            passed = [each for each in self._repeated if each.result.last_offset < high_watermark]
            self._repeated = [each for each in self._repeated if each.result.last_offset >= high_watermark]
            for repeated in passed:
                repeated.tell()

    def fail(self, error: StorageError) -> None:
        """Tell everybody who was not told; how the appends are undone is still known, since that may have to happen."""
        waiting = [*self._pending, *self._repeated]
        self._repeated.clear()
        self._pending = deque(msgspec.structs.replace(each, told=_nobody) for each in self._pending)
        for pending in waiting:
            pending.tell(error)

    def producers_before(self) -> Iterator[tuple[int, Producer | None]]:
        """What each unacknowledged append found, the latest one first: put back in this order, it undoes them all."""
        for pending in reversed(self._pending):
            yield from pending.producers_before

    def forget(self) -> None:
        """Nothing waits any more: it was told, and is undone or never will be."""
        self._pending.clear()


def _nobody(result: AppendResult, error: StorageError | None) -> None:
    """It was told that it failed; should it be written all the same, nobody waits for that."""
