"""A segment's look-ups, in Kafka's formats. An index is a hint: it is rebuilt from the segment when in doubt.

The checkpoint says how long an index file is and what its CRC-32C is; a file that differs is in doubt.

::

    .index      last offset of a batch - base offset (int32) │ its position (int32)                   8 bytes each
    .timeindex  timestamp (int64) │ offset - base offset (int32)                                     12 bytes each
    .txnindex   version (int16, 0) │ producer id (int64) │ first offset (int64) │ last offset (int64)
                │ last stable offset (int64)                                                         34 bytes each

A time index entry (t, o) says: no record up to offset o is later than t. Both rise from entry to entry.
"""

from operator import attrgetter
from struct import Struct
from typing import ClassVar

import msgspec
from crc32c import crc32c


class IndexState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much of an index file counts, and the CRC-32C of that."""

    length: int = 0
    crc: int = 0


class _Index:
    """Entries of a fixed size, in memory as they are in the file.

    After a start the entries that the file holds are left there (`unloaded` bytes of it) until somebody looks
    something up, and later on while memory is short; new ones are added behind them all the same.
    """

    ENTRY: ClassVar[Struct]
    __slots__ = ("_crc", "_crc_length", "_unloaded_crc", "base_offset", "data", "saved", "unloaded")

    def __init__(self, base_offset: int, state: IndexState | None = None) -> None:
        self.base_offset = base_offset
        self.data = bytearray()
        self.unloaded = self.saved = self._crc_length = state.length if state else 0
        self._unloaded_crc = self._crc = state.crc if state else 0

    @property
    def length(self) -> int:
        return self.unloaded + len(self.data)

    def state(self) -> IndexState:
        """Length and CRC of all entries."""
        length = self.unloaded + len(self.data)
        if length != self._crc_length:
            self._crc = crc32c(memoryview(self.data)[self._crc_length - self.unloaded :], self._crc)
            self._crc_length = length
        return IndexState(length, self._crc)

    def unloaded_state(self) -> IndexState:
        """Length and CRC of the entries that are only in the file."""
        return IndexState(self.unloaded, self._unloaded_crc)

    def is_stored(self, state: IndexState) -> bool:
        """The file has all entries up to `state`: those in memory too, after those that are only there."""
        first = memoryview(self.data)[: state.length - self.unloaded]
        whole = self.unloaded + len(first) == state.length <= self.saved
        return whole and crc32c(first, self._unloaded_crc) == state.crc

    def unload(self, state: IndexState) -> None:
        """Leave those that `is_stored` tells of to the file."""
        del self.data[: state.length - self.unloaded]
        self.unloaded, self._unloaded_crc = state.length, state.crc
        if self._crc_length < state.length:  # entries were dropped since: the CRC began anew, with those that leave
            self._crc_length, self._crc = state.length, state.crc

    def load(self, entries: bytes) -> None:
        """Put the entries from the file before those that were added since."""
        self.data = bytearray(entries) + self.data
        self.unloaded = self._unloaded_crc = 0

    def replace(self, entries: bytes) -> None:
        """Put entries that were built anew in place of those in the file, which has to be written again."""
        self.load(entries)
        self.saved = self._crc_length = self._crc = 0

    def save(self, length: int) -> tuple[int, bytes]:
        """Where the file ends, and the entries to write there, so that it has `length` bytes."""
        start, self.saved = self.saved, max(self.saved, length)
        return start, bytes(self.data[start - self.unloaded : length - self.unloaded])

    def _last(self) -> tuple[int, int] | None:
        if not self.data:
            return None
        first, second = self.ENTRY.unpack_from(self.data, len(self.data) - self.ENTRY.size)
        return first, second

    def _drop_last(self) -> None:
        del self.data[-self.ENTRY.size :]
        if self._crc_length > self.length:
            self._crc_length, self._crc = self.unloaded, self._unloaded_crc
        self.saved = min(self.saved, self.length)


class OffsetIndex(_Index):
    """Offset to byte position, sparse: at most one entry per `index.interval.bytes`."""

    ENTRY: ClassVar[Struct] = Struct(">ii")
    __slots__ = ()

    def append(self, last_offset: int, position: int) -> None:
        """Add a batch by its last offset, as Kafka does."""
        self.data += self.ENTRY.pack(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """Last offset and position of a batch at or before the one that holds `offset`; (-1, 0): none is known."""
        found = _floor(self.ENTRY, self.data, offset - self.base_offset)
        return (-1, 0) if found is None else (self.base_offset + found[0], found[1])

    def lookup_position(self, position: int) -> int:
        """Where a batch begins that an entry names: the last one at or before `position`; -1: none is known."""
        found = _floor(self.ENTRY, self.data, position, field=1)
        return -1 if found is None else found[1]

    def truncate(self, position: int) -> None:
        """Forget what points at `position` or after it."""
        while (last := self._last()) is not None and last[1] >= position:
            self._drop_last()


class TimeIndex(_Index):
    """Timestamp to offset, sparse."""

    ENTRY: ClassVar[Struct] = Struct(">qi")
    __slots__ = ("before",)

    def __init__(self, base_offset: int, state: IndexState | None = None, last: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(base_offset, state)
        self.before = last
        """The last entry that is not in memory."""

    @property
    def last(self) -> tuple[int, int]:
        """The last entry: timestamp, offset - base offset."""
        return self._last() or self.before

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless one as late is there."""
        last_timestamp, last_offset = self.last
        if timestamp > last_timestamp and offset - self.base_offset > last_offset:
            self.data += self.ENTRY.pack(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """An offset such that no record before it is as late as `timestamp`."""
        found = _floor(self.ENTRY, self.data, timestamp - 1)
        return self.base_offset + (found[1] if found else 0)

    def truncate(self, offset: int) -> None:
        """Forget what points at `offset` or after it."""
        while (last := self._last()) is not None and last[1] >= offset - self.base_offset:
            self._drop_last()


class AbortedTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction that was aborted.

    Readers of committed records skip the producer's batches from `first_offset` to the marker at `last_offset`.
    """

    producer_id: int
    first_offset: int
    last_offset: int = -1
    last_stable_offset: int = -1


_ABORTED = Struct(">hqqqq")


MARKER_OFFSET = attrgetter("last_offset")
"""By which aborted transactions are in order."""


def encode_aborted(transactions: list[AbortedTransaction]) -> bytes:
    """The content of a `.txnindex` file."""
    return b"".join(
        _ABORTED.pack(0, t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset) for t in transactions
    )


def _floor(entry: Struct, data: bytearray, target: int, field: int = 0) -> tuple[int, int] | None:
    """The last entry whose first field, or the one of that number, is at most `target`; None if there is none."""
    low, high = 0, len(data) // entry.size
    while low < high:
        middle = (low + high) // 2
        if entry.unpack_from(data, middle * entry.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    first, second = entry.unpack_from(data, (low - 1) * entry.size)
    return (first, second)
