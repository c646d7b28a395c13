"""Kafka's primitive fields, as the coordinators' own records have them (`__consumer_offsets`, `__transaction_state`,
`__share_group_state`).

These messages are internal to Kafka's brokers, so kio does not have them; their keys and values start with an int16
version, and from some version on they are *flexible*: compact lengths, and tagged fields at the end of every struct.
"""

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import TypeVar
from uuid import UUID

from mainstem.core import CorruptData
from mainstem.wire.fields import INT8, INT16, INT32, INT64, UINT16

T = TypeVar("T")


class CorruptCoordinatorRecord(CorruptData):
    """A key or value of a coordinator's topic is not what its version says."""


class LaterVersion(CorruptCoordinatorRecord):
    """A value of a version that is not known yet: a later program wrote it."""


class Writer:
    """Fields appended to a buffer."""

    def __init__(self, version: int | None, *, flexible: bool = False) -> None:
        """With the version of a key or value in front; None: the inside of a tagged field, which has none."""
        self.flexible = flexible
        self._buffer = bytearray() if version is None else bytearray(INT16.pack(version))

    def done(self) -> bytes:
        return bytes(self._buffer)

    def int8(self, value: int) -> None:
        self._buffer += INT8.pack(value)

    def int16(self, value: int) -> None:
        self._buffer += INT16.pack(value)

    def uint16(self, value: int) -> None:
        self._buffer += UINT16.pack(value)

    def int32(self, value: int) -> None:
        self._buffer += INT32.pack(value)

    def int64(self, value: int) -> None:
        self._buffer += INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self._buffer += value.bytes

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)

    def string(self, value: str | None) -> None:
        data = None if value is None else value.encode()
        if self.flexible:
            self._compact(data)
            return
        self.int16(-1 if data is None else len(data))
        self._buffer += data or b""

    def blob(self, value: bytes) -> None:
        if self.flexible:
            self._compact(value)
            return
        self.int32(len(value))
        self._buffer += value

    def array(self, items: Sequence[T] | None, write: Callable[[T], None]) -> None:
        length = -1 if items is None else len(items)
        if self.flexible:
            self.varint(length + 1)
        else:
            self.int32(length)
        for item in items or ():
            write(item)

    def tags(self, fields: Sequence[tuple[int, bytes]] = ()) -> None:
        """The tagged fields at the end of a flexible struct, in the order of their tags; nothing in older versions."""
        if not self.flexible:
            return
        self.varint(len(fields))
        for tag, data in fields:
            self.varint(tag)
            self.varint(len(data))
            self._buffer += data

    def _compact(self, data: bytes | None) -> None:
        self.varint(0 if data is None else len(data) + 1)
        self._buffer += data or b""


class Reader:
    """Fields taken from a buffer, in order.

    Every method raises CorruptCoordinatorRecord where the data ends too early or does not decode.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def int8(self) -> int:
        return self._number(INT8)

    def int16(self) -> int:
        return self._number(INT16)

    def uint16(self) -> int:
        return self._number(UINT16)

    def int32(self) -> int:
        return self._number(INT32)

    def int64(self) -> int:
        return self._number(INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise CorruptCoordinatorRecord(f"byte {self._position}: a length has at most five bytes")

    def string(self) -> str | None:
        length = self.varint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        data = self._take(length)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise CorruptCoordinatorRecord(f"byte {self._position}: not UTF-8: {data[:40]!r}") from None

    def required_string(self) -> str:
        value = self.string()
        if value is None:
            raise CorruptCoordinatorRecord(f"byte {self._position}: null where a string is required")
        return value

    def blob(self) -> bytes:
        return self._take(max(0, self.varint() - 1 if self.flexible else self.int32()))

    def array(self, read: Callable[[], T]) -> list[T] | None:
        length = self.varint() - 1 if self.flexible else self.int32()
        if length < 0:
            return None
        if length > len(self._data) - self._position:
            raise CorruptCoordinatorRecord(f"byte {self._position}: {length} items in fewer bytes")
        return [read() for _ in range(length)]

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible struct; none in older versions."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self._take(self.varint())
        return found

    def _number(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._data, self._position)
        except error:
            raise CorruptCoordinatorRecord(
                f"byte {self._position}: a number of {kind.size} bytes, found {len(self._data) - self._position}"
            ) from None
        self._position += kind.size
        return int(value)

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise CorruptCoordinatorRecord(
                f"byte {self._position}: {length} bytes announced, found {len(self._data) - self._position}"
            )
        data = self._data[self._position : end]
        self._position = end
        return data
