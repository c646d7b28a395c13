"""A column's value: PostgreSQL's text <-> Avro's bytes, exact in both directions.

| PostgreSQL                    | Avro                                                | not representable             |
|-------------------------------|-----------------------------------------------------|-------------------------------|
| smallint, integer             | int                                                 |                               |
| bigint, oid                   | long                                                |                               |
| real, double precision        | float, double                                       |                               |
| boolean                       | boolean                                             |                               |
| numeric(p,s), 0 <= s <= p <= 38 | bytes, decimal(p,s)                               | NaN                           |
| numeric otherwise             | string: its text                                    |                               |
| date                          | int, date                                           | infinity                      |
| time                          | long, time-micros                                   | 24:00:00                      |
| timestamp                     | long, local-timestamp-micros                        | infinity, after 294247-01-10  |
| timestamptz                   | long, timestamp-micros                              | infinity, after 294247-01-10  |
| uuid                          | string, uuid                                        |                               |
| bytea                         | bytes                                               |                               |
| an array                      | string: JSON; numbers, booleans as such, rest text  | bounds that do not begin at 1 |
| everything else               | string: its text                                    |                               |

Dates and timestamps before the year 1 or after 9999 are kept in the log and in replicas; for Python's readers, jobs and
lakehouse tables such a change cannot be decoded.

A value that the Avro type cannot hold raises `UnsupportedValue`, which names the repair: a setting that keeps the
column as text. Nothing is rounded, and nothing becomes null in silence.

The server's text is turned into Avro without a Python value in between, since that is where the time goes; a test holds
the result to what fastavro writes.
"""

import json
import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache, partial
from struct import Struct
from typing import Any

import msgspec

from mainstem.core import UserError

SESSION_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
}
"""What the session must be set to for the texts to be as they are expected here."""

Encoder = Callable[[bytes], bytes]
"""The server's text -> Avro's bytes, without the index of a union."""
Decoder = Callable[[Any], str]
"""What fastavro reads where logical types are stripped (int, bytes, str …) -> a text that the server understands."""

MAX_DECIMAL_DIGITS = 38  # what Spark and Delta hold
DAY_US = 86_400_000_000
_LAST_LONG = (1 << 63) - 1
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS = 146_097
_ISO_DATE_LENGTH = 10
_PLUS, _LETTER_C = ord("+"), ord("C")
_FRACTION = (0, 100_000, 10_000, 1_000, 100, 10, 1)  # microseconds of the last digit
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_VECTORS = (22, 30)  # int2vector and oidvector: arrays in the catalog, but not in their text
_BOUNDS = re.compile(r"\[-?[0-9]+:")
_BOX = 603  # its array is separated by semicolons
# regclass and its like, aclitem: their texts are names of tables, functions, roles … that another database lacks.
_NAMES = frozenset((24, 1033, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191))


class UnsupportedValue(UserError):
    """A value of the database that the column's Avro type cannot hold."""


class ServerType(msgspec.Struct, frozen=True):
    """A column's type as the database's catalog describes it; domains are resolved to what they are based on."""

    oid: int
    modifier: int
    name: str  # as in CREATE TABLE, e.g. `numeric(10,2)`
    builtin: bool  # another database knows it too
    element: int = 0  # oid of the elements of an array


class ColumnType(msgspec.Struct, frozen=True):
    """How one column travels."""

    avro: str | dict[str, Any]
    encode: Encoder
    server_name: str  # the type that a replica gives the column
    as_json: Callable[[str], Any] = str  # the value's form in a key of several columns


def column_type(server: ServerType, *, as_text: bool = False) -> ColumnType:
    """The Avro type of a column and its encoder."""
    anywhere = server.builtin and not {server.oid, server.element} & _NAMES
    name = server.name if anywhere else "text[]" if server.element else "text"
    if as_text:
        return ColumnType("string", encode_text, name)
    if server.element and server.oid not in _VECTORS and server.element != _BOX:
        return ColumnType("string", partial(_encode_array, _ELEMENTS.get(server.element, str)), name)
    if server.oid == NUMERIC:
        return _numeric(server, name)
    known = _TYPES.get(server.oid)
    if known is None:
        return ColumnType("string", encode_text, name)
    avro, encode, as_json = known
    return ColumnType(avro, encode, name, as_json)


def decoder(avro: str | dict[str, Any], server_name: str = "") -> Decoder:
    """How a value of Avro type `avro`, read without its logical type, becomes the server's text."""
    logical = avro.get("logicalType", "") if isinstance(avro, dict) else ""
    kind = avro["type"] if isinstance(avro, dict) else avro
    if logical == "decimal":
        assert isinstance(avro, dict)
        return partial(_decimal_text, avro.get("scale", 0))
    if logical in _DECODERS:
        return _DECODERS[logical]
    if kind == "string" and server_name.endswith("[]"):
        return _array_text
    return _DECODERS.get(kind, str)


# ---------------------------------------------------------------------------------------------- integers and lengths


def encode_long(number: int) -> bytes:
    """Avro's int and long: zig-zag, then seven bits per byte, the lowest first: -1 is 01, 64 is 80 01."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    if number < 0x1000_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21))
    out = bytearray()
    if number >= 1 << 49:  # a time in microseconds: without the loop it takes a third
        out += bytes((
            number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21 & 0x7F | 0x80,
            number >> 28 & 0x7F | 0x80, number >> 35 & 0x7F | 0x80, number >> 42 & 0x7F | 0x80,
        ))  # fmt: skip
        number >>= 49
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_LENGTHS = tuple(encode_long(length) for length in range(512))


def encode_bytes(data: bytes) -> bytes:
    """Avro's bytes: the length, then the bytes."""
    length = len(data)
    return (_LENGTHS[length] if length < len(_LENGTHS) else encode_long(length)) + data


encode_text = encode_bytes  # a string is the bytes of its UTF-8, which is what the server sends


_SMALL_INTEGERS = {b"%d" % number: encode_long(number) for number in range(-1_000, 10_000)}


def _encode_integer(text: bytes) -> bytes:
    return _SMALL_INTEGERS.get(text) or encode_long(int(text))


# -------------------------------------------------------------------------------------------------- the other scalars


def _encode_boolean(text: bytes) -> bytes:
    return b"\x01" if text == b"t" else b"\x00"


def _encode_float(text: bytes) -> bytes:
    return _FLOAT.pack(float(text))


def _encode_double(text: bytes) -> bytes:
    return _DOUBLE.pack(float(text))


def _encode_bytea(text: bytes) -> bytes:
    return encode_bytes(bytes.fromhex(text[2:].decode()))


@lru_cache(maxsize=16_384)
def _encode_decimal(text: bytes) -> bytes:
    """The server prints every digit of the scale, so the number without its point is the unscaled value."""
    if text == b"NaN":
        raise _unsupported(text, "a decimal")
    unscaled = int(text.replace(b".", b""))
    return encode_bytes(unscaled.to_bytes((unscaled.bit_length() + 8) >> 3, "big", signed=True))


def _decimal_text(scale: int, data: bytes) -> str:
    unscaled = int.from_bytes(data, "big", signed=True)
    if not scale:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _numeric(server: ServerType, name: str) -> ColumnType:
    """Typed where precision and scale are declared; the modifier holds both (a scale may be negative since 15)."""
    modifier = server.modifier - 4
    precision, scale = modifier >> 16 & 0xFFFF, (modifier & 0x7FF ^ 1024) - 1024
    if server.modifier < 0 or not 0 <= scale <= precision <= MAX_DECIMAL_DIGITS:
        return ColumnType("string", encode_text, name)
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return ColumnType(avro, _encode_decimal, name)


# ------------------------------------------------------------------------------------------------------ date and time


@lru_cache(maxsize=65_536)
def _days(text: bytes) -> int:
    """Days since 1970-01-01 of `2024-02-29`, `12024-02-29` or `0044-03-15 BC`: the Gregorian calendar without end."""
    if len(text) == _ISO_DATE_LENGTH:
        return date.fromisoformat(text.decode()).toordinal() - _EPOCH_ORDINAL
    if text.endswith(b"infinity"):
        raise _unsupported(text, "a date")
    year, month, day = map(int, text.removesuffix(b" BC").split(b"-"))
    if text.endswith(b" BC"):
        year = 1 - year
    cycles, year_of_cycle = divmod(year - 2000, 400)  # the calendar repeats after 400 years
    ordinal = date(2000 + year_of_cycle, month, day).toordinal() + cycles * _DAYS_OF_400_YEARS
    return ordinal - _EPOCH_ORDINAL


@lru_cache(maxsize=16_384)
def _date_text(days: int) -> str:
    cycles, rest = divmod(days + _EPOCH_ORDINAL - date(2000, 1, 1).toordinal(), _DAYS_OF_400_YEARS)
    day = date.fromordinal(date(2000, 1, 1).toordinal() + rest)
    year = day.year + 400 * cycles
    return f"{year:04d}-{day:%m-%d}" if year > 0 else f"{1 - year:04d}-{day:%m-%d} BC"


@lru_cache(maxsize=65_536)
def _encode_date(text: bytes) -> bytes:
    return encode_long(_days(text))


def _time_us(text: bytes) -> int:
    """Microseconds since midnight of `12:34:56.5`."""
    if text.startswith(b"24"):
        raise _unsupported(text, "a time: the last one is 23:59:59.999999")
    fraction = text[9:]
    microseconds = int(fraction) * _FRACTION[len(fraction)] if fraction else 0
    return (int(text[:2]) * 3600 + int(text[3:5]) * 60 + int(text[6:8])) * 1_000_000 + microseconds


def _time_text(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def _encode_time(text: bytes) -> bytes:
    return encode_long(_time_us(text))


@lru_cache(maxsize=16_384)
def _second_us(text: bytes) -> int:
    """Microseconds of `2024-02-29 12:34:56`: rows of one time often share the second."""
    return _days(text[:10]) * DAY_US + _time_us(text[11:])


def _encode_timestamp(text: bytes) -> bytes:
    """`2024-02-29 12:34:56.5`, in the session's zone UTC also with `+00`, before our era with ` BC` at the end."""
    if text[10:11] == b" " and text[-1] != _LETTER_C:  # four digits of year, our era
        fraction = text[20:-3] if text[-3] == _PLUS else text[20:]
        second = _second_us(text[:19])
        return encode_long(second + int(fraction) * _FRACTION[len(fraction)] if fraction else second)
    day, _, time = text.partition(b" ")
    if not time:
        raise _unsupported(text, "a timestamp")
    if time.endswith(b" BC"):
        day, time = day + b" BC", time[:-3]
    microseconds = _days(day) * DAY_US + _time_us(time.removesuffix(b"+00"))
    if microseconds > _LAST_LONG:  # the server counts from 2000 and so gets 30 years further
        raise _unsupported(text, "a timestamp")
    return encode_long(microseconds)


def _timestamp_text(zone: str, microseconds: int) -> str:
    days, rest = divmod(microseconds, DAY_US)
    day, _, era = _date_text(days).partition(" ")
    return f"{day} {_time_text(rest)}{zone}{' ' + era if era else ''}"


# ------------------------------------------------------------------------------------------------------------- arrays


def _encode_array(element: Callable[[str], Any], text: bytes) -> bytes:
    return encode_bytes(array_to_json(text.decode(), element).encode())


def array_to_json(text: str, element: Callable[[str], Any] = str) -> str:
    """`{1,NULL,{"a b"}}`: the server's array as a JSON array; `element` gives the JSON value of one element's text."""
    if not text.startswith("{"):
        raise _unsupported(text.encode(), "an array")
    root: list[Any] = []
    stack, position = [root], 0
    while position < len(text):
        sign = text[position]
        if sign == "{":
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif sign == "}":
            stack.pop()
        elif sign == '"':
            value, position = _quoted(text, position + 1)
            stack[-1].append(element(value))
        elif sign != ",":
            end = position
            while text[end] not in ",}":
                end += 1
            word, position = text[position:end], end - 1
            stack[-1].append(None if word == "NULL" else element(word))
        position += 1
    return _dump(root[0])


def _quoted(text: str, position: int) -> tuple[str, int]:
    """The quoted element that begins at `position`, and where its closing quote is."""
    out = []
    while text[position] != '"':
        if text[position] == "\\":
            position += 1
        out.append(text[position])
        position += 1
    return "".join(out), position


class _Literal(str):
    """A number whose digits go into the JSON as they are: no float in between, so that nothing is rounded."""

    __slots__ = ()


def _dump(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_dump, value))}]"
    return str(value) if isinstance(value, _Literal) else json.dumps(value, ensure_ascii=False)


def _number(text: str) -> str:
    """A JSON number, except for what JSON has no number for: NaN and the infinities."""
    return text if text.lstrip("-")[:1] in ("N", "I") else _Literal(text)


def _array_text(text: str) -> str:
    """The server's text of a JSON array."""

    def element(value: Any) -> str:
        if isinstance(value, list):
            return f"{{{','.join(map(element, value))}}}"
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "t" if value else "f"
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'

    if text.startswith("{") or _BOUNDS.match(text):
        return text  # an array that was kept as text
    return element(json.loads(text, parse_float=str, parse_int=str))


# ------------------------------------------------------------------------------------------------------------- tables


def _double_text(number: float) -> str:
    return repr(number)  # float() and PostgreSQL both read nan and inf


def _unsupported(text: bytes, what: str) -> UnsupportedValue:
    return UnsupportedValue(f"the value {text.decode(errors='replace')[:100]} cannot be kept as {what}")


def _boolean_json(text: str) -> bool:
    return text == "t"


NUMERIC = 1700

_TYPES: dict[int, tuple[str | dict[str, Any], Encoder, Callable[[str], Any]]] = {
    16: ("boolean", _encode_boolean, _boolean_json),
    17: ("bytes", _encode_bytea, str),
    20: ("long", _encode_integer, int),
    21: ("int", _encode_integer, int),
    23: ("int", _encode_integer, int),
    26: ("long", _encode_integer, int),
    700: ("float", _encode_float, float),
    701: ("double", _encode_double, float),
    1082: ({"type": "int", "logicalType": "date"}, _encode_date, str),
    1083: ({"type": "long", "logicalType": "time-micros"}, _encode_time, str),
    1114: ({"type": "long", "logicalType": "local-timestamp-micros"}, _encode_timestamp, str),
    1184: ({"type": "long", "logicalType": "timestamp-micros"}, _encode_timestamp, str),
    2950: ({"type": "string", "logicalType": "uuid"}, encode_text, str),
}

_ELEMENTS: dict[int, Callable[[str], Any]] = {
    16: _boolean_json,
    **dict.fromkeys((20, 21, 23, 26, 700, 701, NUMERIC), _number),
}

_DECODERS: dict[str, Decoder] = {
    "boolean": lambda value: "t" if value else "f",
    "bytes": lambda value: "\\x" + value.hex(),
    "float": _double_text,
    "double": _double_text,
    "date": _date_text,
    "time-micros": _time_text,
    "local-timestamp-micros": partial(_timestamp_text, ""),
    "timestamp-micros": partial(_timestamp_text, "+00"),
}
