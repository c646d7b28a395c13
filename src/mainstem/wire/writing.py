"""Dicts to bytes: kio's classes say which fields a version has and how they look, no instance of them is built.

A writer is compiled per class when it is first used; it appends to one bytearray. Fields of the message that the
version does not have are left out, those that it has and the message does not get Kafka's default.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from struct import Struct
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.wire.fields import INT16, INT32, INT64, NUMBERS, take_apart

Writer: TypeAlias = Callable[[bytearray, Any], None]
Known: TypeAlias = Callable[[str, str], bool]
"""(path of a struct, name of a field) -> any version of the message has it."""

strict = False
"""Whether a field that no version has is looked for: that takes loading all versions, so tests set it, nobody else."""

_NO_UUID: Final = bytes(16)
_LONGEST_STRING: Final = 2**15 - 1  # bytes


class Encoded(msgspec.Struct):
    """Items of an array that are written already; stands in an answer for one of its own arrays."""

    count: int = 0
    data: bytearray = msgspec.field(default_factory=bytearray)
    position: int = -1
    """Where they belong, once their number is written: they are not copied there."""

    def __len__(self) -> int:
        return self.count


# --- values -----------------------------------------------------------------------------------------------------------


def write_varint(buffer: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


def write_length(buffer: bytearray, count: int, flexible: bool) -> None:
    """Append the length of an array: a varint of one more where the version is flexible."""
    if flexible:
        write_varint(buffer, count + 1)
    else:
        buffer += INT32.pack(count)


def _number(kind: Struct) -> Writer:
    pack = kind.pack

    def write(buffer: bytearray, value: Any) -> None:
        buffer += pack(value)

    return write


_WRITE_INT16: Final = _number(INT16)
_WRITE_INT32: Final = _number(INT32)
_WRITE_INT64: Final = _number(INT64)


def _write_bool(buffer: bytearray, value: Any) -> None:
    buffer.append(1 if value else 0)


def _write_uuid(buffer: bytearray, value: UUID | None) -> None:
    buffer += _NO_UUID if value is None else value.bytes


def _milliseconds(write: Writer) -> Writer:
    def write_duration(buffer: bytearray, value: int | datetime.timedelta) -> None:
        write(buffer, value if isinstance(value, int) else round(value.total_seconds() * 1000))

    return write_duration


def _write_timestamp(buffer: bytearray, value: int | datetime.datetime | None) -> None:
    if isinstance(value, datetime.datetime):
        value = round(value.timestamp() * 1000)
    _WRITE_INT64(buffer, -1 if value is None else value)


def _write_compact_string(buffer: bytearray, value: str | None) -> None:
    if value is None:
        buffer.append(0)
        return
    data = value.encode()
    write_varint(buffer, len(data) + 1)
    buffer += data


def _write_string(buffer: bytearray, value: str | None) -> None:
    if value is None:
        _WRITE_INT16(buffer, -1)
        return
    data = value.encode()
    _WRITE_INT16(buffer, len(data))
    buffer += data


def cut_message(text: str | None) -> str | None:
    """An error's text, of no more bytes than a string has room for before flexible versions.

    One that quotes a client's name with escapes may have more, and the answer could not be written.
    """
    if text is None or len(text) <= _LONGEST_STRING // 4:
        return text
    return text.encode()[:_LONGEST_STRING].decode(errors="ignore")


def _message(write: Writer) -> Writer:
    return lambda buffer, value: write(buffer, cut_message(value))


def _write_compact_bytes(buffer: bytearray, value: bytes | None) -> None:
    if value is None:
        buffer.append(0)
        return
    write_varint(buffer, len(value) + 1)
    buffer += value


def _write_bytes(buffer: bytearray, value: bytes | None) -> None:
    if value is None:
        _WRITE_INT32(buffer, -1)
        return
    _WRITE_INT32(buffer, len(value))
    buffer += value


_PLAIN: Final[dict[str, tuple[Writer, Any]]] = {  # the writer and what a missing field means
    **{name: (_number(kind), 0) for name, kind in NUMBERS.items()},
    "bool": (_write_bool, False),
    "error_code": (_WRITE_INT16, 0),
    "uuid": (_write_uuid, None),
    "timedelta_i32": (_milliseconds(_WRITE_INT32), 0),
    "timedelta_i64": (_milliseconds(_WRITE_INT64), 0),
    "datetime_i64": (_write_timestamp, None),
}


# --- structs and arrays -----------------------------------------------------------------------------------------------


def _array(write: Writer, flexible: bool) -> Writer:
    def write_array(buffer: bytearray, values: Sequence[Any] | Encoded | None) -> None:
        if flexible:
            write_varint(buffer, 0 if values is None else len(values) + 1)
        else:
            _WRITE_INT32(buffer, -1 if values is None else len(values))
        if isinstance(values, Encoded):
            values.position = len(buffer)
            return
        for value in values or ():
            write(buffer, value)

    return write_array


def _nullable(write: Writer) -> Writer:
    def write_nullable(buffer: bytearray, value: Any) -> None:  # KIP-893: one byte says whether a struct follows
        if value is None:
            buffer.append(0xFF)
            return
        buffer.append(1)
        write(buffer, value)

    return write_nullable


def _field_writer(field: Field[Any], flexible: bool, known: Known, path: str) -> tuple[Writer, Any]:
    """The writer of one field, and the value to write where the message has none."""
    item, is_array, optional = take_apart(field.type)
    default: Any
    if isinstance(item, type) and is_dataclass(item):
        write = struct_writer(item, known, f"{path}{field.name}.")
        write = _nullable(write) if optional and not is_array and "tag" not in field.metadata else write
        default = None if optional else {}
    else:
        kind = field.metadata["kafka_type"]
        if kind == "string":
            write, default = (_write_compact_string if flexible else _write_string), ("" if not optional else None)
            write = _message(write) if field.name == "error_message" else write
        elif kind in ("bytes", "records"):
            write, default = (_write_compact_bytes if flexible else _write_bytes), (b"" if not optional else None)
        else:
            write, default = _PLAIN[kind]
    if is_array:
        write, default = _array(write, flexible), ()
    if field.default is not MISSING and not is_dataclass(field.default):
        default = field.default
    return write, default


def struct_writer(kind: type[Any], known: Known, path: str = "") -> Writer:
    """The writer of a kio class.

    Where `strict` is set it raises TypeError for a field that `known` says no version has: a slip of the pen, not an
    older client.
    """
    flexible: bool = kind.__flexible__
    plain: list[tuple[str, Writer, Any]] = []
    tagged: list[tuple[int, str, Writer, bytes]] = []
    for field in fields(kind):
        write, default = _field_writer(field, flexible, known, path)
        if "tag" in field.metadata:
            usual = bytearray()
            write(usual, default)
            tagged.append((field.metadata["tag"], field.name, write, bytes(usual)))
        else:
            plain.append((field.name, write, default))
    tagged.sort(key=lambda entry: entry[0])
    here = {field.name for field in fields(kind)}

    def write_struct(buffer: bytearray, message: Mapping[str, Any]) -> None:
        get = message.get
        for name, write, default in plain:
            write(buffer, get(name, default))
        if flexible:
            if tagged:
                _write_tags(buffer, [entry for entry in tagged if entry[1] in message], message)
            else:
                buffer.append(0)
        if strict and not message.keys() <= here:
            for name in message.keys() - here:
                if not known(path, name):
                    raise TypeError(f"{kind.__name__} has no field {path}{name} in any version")

    return write_struct


def _write_tags(buffer: bytearray, tags: list[tuple[int, str, Writer, bytes]], message: Mapping[str, Any]) -> None:
    """The tagged fields that differ from their defaults."""
    count, section = 0, bytearray()
    for tag, name, write, usual in tags:
        value = bytearray()
        write(value, message[name])
        if value != usual:
            count += 1
            write_varint(section, tag)
            write_varint(section, len(value))
            section += value
    write_varint(buffer, count)
    buffer += section
