"""Keys whose bytes sort as their values do, so that an ordered store can be read by the leading columns of a key.

    key        = value*                         one value after the other
    value      = type (1 byte) body             no body begins as another one whole: a key is never the start of another

    01 null    02 false    03 true
    10 int     80+n and n bytes; below zero 7f-n and the n bytes of the negated value, inverted
    11 float   8 bytes of IEEE 754, sign inverted, below zero all inverted; -0.0 is 0.0, NaN is above all else
    12 decimal 01 below zero, 02 zero, 03 above; exponent as an int, digits + 1, 00; below zero all inverted
    20 text    UTF-8 and 00 01; a zero byte in it is 00 ff
    21 bytes   likewise
    30 date    days since 0001-01-01, as an int
    31 time    microseconds since midnight, as an int
    32 time stamp without a zone, 33 with one (as UTC): microseconds since 1970, as an int
    40 UUID    16 bytes

Values of one type sort as Python sorts them; of two types, by the type's byte. A decimal is kept without the zeros at
its end: it comes back equal, not with the same number of digits.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any
from uuid import UUID

from mainstem.serve.errors import BadQuery

_DOUBLE = Struct(">d")
_LONG = Struct(">Q")
_SIGN = 1 << 63
_INVERTED = bytes(255 - each for each in range(256))
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 127  # bytes of an int
_NAN = _LONG.unpack(_DOUBLE.pack(math.nan))[0]


def encode_key(values: Sequence[Any]) -> bytes:
    """The bytes of a key, or of its leading columns.

    Raises:
        BadQuery: a value of a type that is no key's, as a list, or that is too large.
    """
    try:
        return b"".join([_ENCODE[type(value)](value) for value in values])
    except (KeyError, OverflowError, ValueError) as error:
        wrong = next((value for value in values if type(value) not in _ENCODE), values)
        found = f"found {type(wrong).__name__} {str(wrong)[:40]!r}"
        raise BadQuery(f"key: expected texts, numbers, times, bytes, UUIDs or null, {found}") from error


def decode_key(data: bytes) -> tuple[Any, ...]:
    """The other way.

    Raises:
        ValueError: no key that `encode_key` made.
    """
    values, position = [], 0
    try:
        while position < len(data):
            value, position = _DECODE[data[position]](data, position + 1)
            values.append(value)
    except (LookupError, ArithmeticError, ValueError) as error:
        raise ValueError(f"no key: {data[:40].hex()}") from error
    return tuple(values)


def _integer(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    if size > _LONGEST:
        raise OverflowError(f"{size} bytes")
    if value >= 0:
        return bytes((0x80 + size,)) + value.to_bytes(size, "big")
    return bytes((0x7F - size,)) + (-value).to_bytes(size, "big").translate(_INVERTED)


def _read_integer(data: bytes, position: int) -> tuple[int, int]:
    first = data[position]
    size = first - 0x80 if first >= 0x80 else 0x7F - first
    body = data[position + 1 : position + 1 + size]
    if len(body) != size:
        raise ValueError("cut short")
    value = int.from_bytes(body, "big") if first >= 0x80 else -int.from_bytes(body.translate(_INVERTED), "big")
    return value, position + 1 + size


def _float(value: float) -> bytes:
    (bits,) = _LONG.unpack(_DOUBLE.pack(value + 0.0))  # -0.0 + 0.0 is 0.0
    if value != value:
        bits = _NAN
    return b"\x11" + _LONG.pack(bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    if len(data) < position + 8:
        raise ValueError("cut short")
    (bits,) = _LONG.unpack_from(data, position)
    value: float = _DOUBLE.unpack(_LONG.pack(bits ^ _SIGN if bits & _SIGN else bits ^ (2 * _SIGN - 1)))[0]
    return value, position + 8


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):  # NaN or infinite, which Avro has none of
        raise OverflowError(value)
    text = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not text:
        return b"\x12\x02"
    body = _integer(value.adjusted()) + bytes(int(digit) + 1 for digit in text) + b"\0"
    return b"\x12\x01" + body.translate(_INVERTED) if sign else b"\x12\x03" + body


def _read_decimal(data: bytes, position: int) -> tuple[Decimal, int]:
    sign = data[position]
    if sign == 2:
        return Decimal(0), position + 1
    rest = data[position + 1 :] if sign == 3 else data[position + 1 :].translate(_INVERTED)
    adjusted, start = _read_integer(rest, 0)
    end = rest.index(0, start)
    digits = tuple(each - 1 for each in rest[start:end])
    return Decimal((int(sign == 1), digits, adjusted - len(digits) + 1)), position + 1 + end + 1


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff") + b"\0\x01"


def _read_escaped(data: bytes, position: int) -> tuple[bytes, int]:
    end = data.index(b"\0\x01", position)
    return data[position:end].replace(b"\0\xff", b"\0"), end + 2


def _datetime(value: datetime) -> bytes:
    if value.tzinfo is None:
        return b"\x32" + _integer((value - _EPOCH) // _MICROSECOND)
    return b"\x33" + _integer((value.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND)


def _time(value: time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return b"\x31" + _integer(seconds * 1_000_000 + value.microsecond)


_ENCODE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x01",
    bool: lambda value: b"\x03" if value else b"\x02",
    int: lambda value: b"\x10" + _integer(value),
    float: _float,
    Decimal: _decimal,
    str: lambda value: b"\x20" + _escaped(value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: b"\x21" + _escaped(value),
    date: lambda value: b"\x30" + _integer(value.toordinal()),
    time: _time,
    datetime: _datetime,
    UUID: lambda value: b"\x40" + value.bytes,
}


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    text, end = _read_escaped(data, position)
    return text.decode("utf-8", "surrogatepass"), end


def _read_date(data: bytes, position: int) -> tuple[date, int]:
    days, end = _read_integer(data, position)
    return date.fromordinal(days), end


def _read_time(data: bytes, position: int) -> tuple[time, int]:
    microseconds, end = _read_integer(data, position)
    return (_EPOCH + microseconds * _MICROSECOND).time(), end


def _read_naive(data: bytes, position: int) -> tuple[datetime, int]:
    microseconds, end = _read_integer(data, position)
    return _EPOCH + microseconds * _MICROSECOND, end


def _read_aware(data: bytes, position: int) -> tuple[datetime, int]:
    value, end = _read_naive(data, position)
    return value.replace(tzinfo=UTC), end


def _read_uuid(data: bytes, position: int) -> tuple[UUID, int]:
    return UUID(bytes=data[position : position + 16]), position + 16


_DECODE: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0x01: lambda _, position: (None, position),
    0x02: lambda _, position: (False, position),
    0x03: lambda _, position: (True, position),
    0x10: _read_integer,
    0x11: _read_float,
    0x12: _read_decimal,
    0x20: _read_text,
    0x21: _read_escaped,
    0x30: _read_date,
    0x31: _read_time,
    0x32: _read_naive,
    0x33: _read_aware,
    0x40: _read_uuid,
}
