"""A row as bytes that come back equal: MessagePack, and what it has no type for in extensions.

    extension 1   a value as `serve/keys.py` writes it: date, time, time stamp without a zone, UUID, int beyond 64 bits
    extension 2   a Decimal, as its text

A time stamp with a zone is MessagePack's own, in UTC.
"""

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from mainstem.serve.errors import BadQuery
from mainstem.serve.keys import decode_key, encode_key

UNPACKABLE = (BadQuery, RecursionError, UnicodeEncodeError)
"""What packing ends in where a number is too large, a value nested too deep, or a text no text."""

_AS_KEY, _AS_DECIMAL = 1, 2
_PLAIN = frozenset((str, int, float, bool, type(None), bytes))
_PLAIN_OR_TIME = _PLAIN | {datetime}
_KEYS = frozenset((date, time, UUID))


def pack(*values: Any) -> bytes:
    """`values`, and what is in them, as one piece of bytes."""
    return _encoder.encode([packed(value) if type(value) is dict else _value(value) for value in values])


def packed(value: Any) -> msgspec.Raw:
    """One value of those for `pack`, for rows that are packed more than once."""
    try:
        return msgspec.Raw(_encoder.encode(_fast(value)))
    except OverflowError:  # an int beyond 64 bits, which it would take long to look for in every row
        return msgspec.Raw(_encoder.encode(_value(value)))


def unpack(data: bytes) -> list[Any]:
    """The values that were packed.

    Raises:
        ValueError: these are no such bytes.
    """
    values: list[Any] = _decoder.decode(data)
    return values


def _fast(value: Any) -> Any:
    """As `_value`; most rows need no look at every value."""
    if type(value) is not dict:
        return _value(value)
    kinds = set(map(type, value.values()))
    if kinds <= _PLAIN or (kinds <= _PLAIN_OR_TIME and all(map(_is_plain, value.values()))):
        return value
    return _dict(value)


def _is_plain(value: Any) -> bool:
    return type(value) is not datetime or value.tzinfo is not None


def _dict(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(each) for name, each in row.items()}


def _value(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return _dict(value)
    if kind is list:
        return [_value(each) for each in value]
    if kind is Decimal:
        return msgspec.msgpack.Ext(_AS_DECIMAL, str(value).encode())
    if kind in _KEYS or (kind is datetime and value.tzinfo is None) or (kind is int and not -(2**63) <= value < 2**64):
        return msgspec.msgpack.Ext(_AS_KEY, encode_key((value,)))
    return value


def _extension(code: int, data: memoryview) -> Any:
    if code == _AS_KEY:
        (value,) = decode_key(bytes(data))
        return value
    if code == _AS_DECIMAL:
        return Decimal(str(data, "ascii"))
    raise ValueError(f"expected an extension of 1 or 2, found {code}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_extension)
