"""Bytes to instances of kio's classes.

Why not kio's own reader: it reserves memory for as many items as an array announces and aborts the process where the
machine does not have it, so eight bytes from anybody would end the broker; and it refuses tagged fields that it does
not know, which newer clients may send (KIP-482). A test holds both readers to the same instances.

A reader is compiled per class when it is first used. Every length is checked against what is there, and nothing but
MalformedFrame is raised.
"""

import datetime
import sys
import threading
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from struct import Struct
from typing import Any, Final, TypeAlias
from uuid import UUID

from mainstem.wire.errors import MalformedFrame
from mainstem.wire.fields import INT16, INT32, INT64, NUMBERS, Buffer, take_apart
from mainstem.wire.frames import MOST_TEXT, read_varint
from mainstem.wire.kafka import ErrorCode

Reader: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]
"""(data, position, end) -> (value, position behind it)."""

MOST_ITEMS: Final = 100_000
"""Items of all arrays of one request together: ten times the partitions that a topic may have. An item may be a single
byte on the wire, and is an object here and one more thing to do, so that bytes alone do not bound what a request costs.
"""


class _Budget(threading.local):
    """How many items the message may still have; an answer, which only tests and tools read, has any number."""

    items = sys.maxsize


_budget: Final = _Budget()

_NO_UUID: Final = bytes(16)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _cut_short(position: int, size: int, end: int) -> MalformedFrame:
    return MalformedFrame(f"byte {position}: {size} bytes or items announced, {end - position} bytes are left")


def read_request(read: Reader, data: Buffer, position: int) -> Any:
    """What `read` finds from `position` on, if that is no more than `MOST_ITEMS`."""
    _budget.items = MOST_ITEMS
    try:
        return read(data, position, len(data))[0]
    finally:
        _budget.items = sys.maxsize


def _spend(items: int, position: int) -> None:
    _budget.items -= items
    if _budget.items < 0:
        raise MalformedFrame(f"byte {position}: more than {MOST_ITEMS} items in one request")


# --- values -----------------------------------------------------------------------------------------------------------


def _number(kind: Struct) -> Reader:
    unpack, size = kind.unpack_from, kind.size

    def read(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        if position + size > end:
            raise _cut_short(position, size, end)
        return unpack(data, position)[0], position + size

    return read


_READ_INT16: Final = _number(INT16)
_READ_INT32: Final = _number(INT32)
_READ_INT64: Final = _number(INT64)


def _read_bool(data: Buffer, position: int, end: int) -> tuple[bool, int]:
    if position >= end:
        raise _cut_short(position, 1, end)
    return data[position] != 0, position + 1


def _read_uuid(data: Buffer, position: int, end: int) -> tuple[UUID | None, int]:
    if position + 16 > end:
        raise _cut_short(position, 16, end)
    value = bytes(data[position : position + 16])
    return None if value == _NO_UUID else UUID(bytes=value), position + 16


def _read_code(data: Buffer, position: int, end: int) -> tuple[ErrorCode, int]:
    value, behind = _READ_INT16(data, position, end)
    try:
        return ErrorCode(value), behind
    except ValueError:
        raise MalformedFrame(f"byte {position}: there is no error code {value}") from None


def _duration(read: Reader) -> Reader:
    def read_duration(data: Buffer, position: int, end: int) -> tuple[datetime.timedelta, int]:
        value, behind = read(data, position, end)
        try:
            return datetime.timedelta(milliseconds=value), behind
        except OverflowError:  # more than two million years, either way: the longest there is
            return (datetime.timedelta.max if value > 0 else datetime.timedelta.min), behind

    return read_duration


def _read_time(data: Buffer, position: int, end: int) -> tuple[datetime.datetime | None, int]:
    value, behind = _READ_INT64(data, position, end)
    if value == -1:
        return None, behind
    try:
        return _EPOCH + datetime.timedelta(milliseconds=value), behind
    except OverflowError:
        raise MalformedFrame(f"byte {position}: {value} ms since 1970 is no time") from None


def _sized(flexible: bool, length: Struct, most: int, make: Callable[[Any], Any], optional: bool) -> Reader:
    """A string or bytes: behind a varint of the size + 1 where flexible, else behind the size, -1 for null; at `most`
    so many bytes.
    """

    def read(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        if flexible:
            size, position = read_varint(data, position)
            size -= 1
        else:
            if position + length.size > end:
                raise _cut_short(position, length.size, end)
            (size,) = length.unpack_from(data, position)
            position += length.size
        if size < 0:
            if not optional:
                raise MalformedFrame(f"byte {position}: null where a value is required")
            return None, position
        if size > most:
            raise MalformedFrame(f"byte {position}: {size} bytes, expected {most} at most")
        behind = position + size
        if behind > end:
            raise _cut_short(position, size, end)
        return make(data[position:behind]), behind

    return read


def _text(data: Buffer) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise MalformedFrame(f"not UTF-8: {bytes(data[:40])!r}") from None


_PLAIN: Final[dict[str, Reader]] = {
    **{name: _number(kind) for name, kind in NUMBERS.items()},
    "bool": _read_bool,
    "uuid": _read_uuid,
    "error_code": _read_code,
    "timedelta_i32": _duration(_READ_INT32),
    "timedelta_i64": _duration(_READ_INT64),
    "datetime_i64": _read_time,
}


# --- structs and arrays -----------------------------------------------------------------------------------------------


def _array(item: Reader, flexible: bool, optional: bool) -> Reader:
    def read_array(data: Buffer, position: int, end: int) -> tuple[tuple[Any, ...] | None, int]:
        if flexible:
            count, position = read_varint(data, position)
            count -= 1
        else:
            count, position = _READ_INT32(data, position, end)
        if count < 0:
            if not optional:
                raise MalformedFrame(f"byte {position}: null where an array is required")
            return None, position
        if count > end - position:  # an item has a byte at least
            raise _cut_short(position, count, end)
        _spend(count, position)
        items = []
        for _ in range(count):
            value, position = item(data, position, end)
            items.append(value)
        return tuple(items), position

    return read_array


def _nullable(struct: Reader) -> Reader:
    def read_nullable(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        present, position = _PLAIN["int8"](data, position, end)  # KIP-893: one byte says whether a struct follows
        return struct(data, position, end) if present >= 0 else (None, position)

    return read_nullable


def _field_reader(field: Field[Any], flexible: bool) -> Reader:
    item, is_array, optional = take_apart(field.type)
    in_tag = "tag" in field.metadata
    nullable_item = optional and not is_array and not in_tag
    read: Reader
    if isinstance(item, type) and is_dataclass(item):
        read = struct_reader(item)
        read = _nullable(read) if nullable_item else read
    else:
        kind = field.metadata["kafka_type"]
        if kind == "string":
            read = _sized(flexible, INT16, MOST_TEXT, _text, nullable_item)
        elif kind in ("bytes", "records"):
            read = _sized(flexible, INT32, sys.maxsize, bytes, nullable_item)
        else:
            read = _PLAIN[kind]
    return _array(read, flexible, optional) if is_array else read


def _usual(field: Field[Any]) -> Any:
    """What a tagged field is where the message does not have it."""
    if field.default is not MISSING:
        return field.default
    item, is_array, optional = take_apart(field.type)
    if is_array or optional:
        return () if is_array else None
    if isinstance(item, type) and is_dataclass(item):
        return item(**{each.name: _usual(each) for each in fields(item)})
    return {"string": "", "bytes": b"", "bool": False}.get(field.metadata["kafka_type"], 0)


def struct_reader(kind: type[Any]) -> Reader:
    """The reader of a kio class; compile it once."""
    flexible: bool = kind.__flexible__
    plain = [(field.name, _field_reader(field, flexible)) for field in fields(kind) if "tag" not in field.metadata]
    tagged = {
        field.metadata["tag"]: (field.name, _field_reader(field, flexible), _usual(field))
        for field in fields(kind)
        if "tag" in field.metadata
    }
    defaults = {name: usual for name, _, usual in tagged.values()}

    def read_struct(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, read in plain:
            values[name], position = read(data, position, end)
        if flexible:
            if defaults:
                values.update(defaults)
            if position < end and data[position] == 0:
                return kind(**values), position + 1
            position = _read_tags(tagged, values, data, position, end)
        return kind(**values), position

    return read_struct


def _read_tags(
    tagged: dict[int, tuple[str, Reader, Any]], values: dict[str, Any], data: Buffer, position: int, end: int
) -> int:
    count, position = read_varint(data, position)
    _spend(count, position)
    for _ in range(count):
        tag, position = read_varint(data, position)
        size, position = read_varint(data, position)
        behind = position + size
        if behind > end:
            raise _cut_short(position, size, end)
        if tag in tagged:
            name, read, _ = tagged[tag]
            values[name], found = read(data, position, behind)
            if found != behind:
                raise MalformedFrame(
                    f"byte {position}: tagged field {tag} has {size} bytes, of which not all make sense"
                )
        position = behind
    return position
