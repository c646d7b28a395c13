"""Producer ids: handed out one by one, never twice, also after a crash.

They are reserved in blocks: only the end of the block is stored, before any id of it is given out. A crash skips what
is left of the block. The record lies beside the transactions, in partition 0 of `__transaction_state`, under a key of
a version that Kafka's own readers skip::

    key    version int16 (0x4D53) │ "producer_ids"
    value  version int16 (0) │ the first id that is not reserved, int64
"""

from collections.abc import Awaitable, Callable
from typing import Final

from mainstem.broker.fields import Reader, Writer

BLOCK: Final = 1000
_KEY_VERSION: Final = 0x4D53


def encode_key() -> bytes:
    """The record's key."""
    writer = Writer(_KEY_VERSION)
    writer.string("producer_ids")
    return writer.done()


KEY: Final = encode_key()


def encode_reserved(end: int) -> bytes:
    """The record's value: ids below `end` may have been given out."""
    writer = Writer(0)
    writer.int64(end)
    return writer.done()


def decode_reserved(data: bytes) -> int:
    """The first id that is free.

    Raises:
        CorruptCoordinatorRecord: cut short.
    """
    reader = Reader(data)
    reader.int16()
    return reader.int64()


class ProducerIds:
    """The ids that are left of the block reserved last."""

    def __init__(self, first_free: int, reserve: Callable[[int], Awaitable[object]]) -> None:
        """`reserve` stores that ids below its argument are taken; durable when its result is there."""
        self._next = self._end = first_free
        self._reserve = reserve

    async def ready(self) -> None:
        """Make sure that `take` has an id."""
        while self._next >= self._end:
            start, end = self._end, self._end + BLOCK
            await self._reserve(end)
            if self._end == start:  # nobody else was faster; if somebody was, ids from `start` are theirs
                self._next, self._end = start, end

    @property
    def left(self) -> int:
        """How many `take` has before `ready` has to reserve more."""
        return self._end - self._next

    def take(self) -> int:
        """An id that nobody has. `ready` was awaited, or `left` asked, in the same turn of the loop."""
        assert self._next < self._end, "ProducerIds.ready comes first"
        self._next += 1
        return self._next - 1
