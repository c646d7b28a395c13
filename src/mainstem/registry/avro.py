"""Values in Confluent's wire format.

    byte 0      1..4             5 ..
    0x00        schema id        the value, Avro binary
                int32, big endian

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import MAX_PREC, Context, Decimal
from functools import lru_cache
from struct import Struct
from typing import Any
from uuid import UUID

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from mainstem.core.errors import CorruptData, UserError
from mainstem.registry import bounds
from mainstem.registry import schema as schemas
from mainstem.registry.errors import InvalidSchema

HEADER = Struct(">bI")
MAGIC = 0
# What reading ends in; fastavro's own error for a schema that cannot be resolved is a ValueError.
UNREADABLE = (ValueError, TypeError, EOFError, LookupError, ArithmeticError, RecursionError, MemoryError)
_EXACT = Context(prec=MAX_PREC)
_TIMES = (("int", "time-millis"), ("long", "time-micros"))


class BadValue(CorruptData):
    """The bytes are not a value in Confluent's wire format, or do not fit the schema they name."""


class UnfitRow(UserError):
    """A row does not fit the schema it should be written with; `column` is where, if that is known."""

    def __init__(self, message: str, *, column: str = "") -> None:
        super().__init__(message)
        self.column = column


def _decimal(data: bytes, writer: Mapping[str, Any], _: Any = None) -> Decimal:
    """Unlike fastavro's own, which rounds a number of too many digits and says nothing."""
    if not data:  # fastavro reads 0, and Java nothing: tables and jobs would have other rows than Python
        raise ValueError("expected the bytes of a decimal, found none")
    number, precision = int.from_bytes(data, "big", signed=True), writer["precision"]
    if abs(number) >= 10**precision:
        raise ValueError(f"expected a decimal of at most {precision} digits, found more")
    return Decimal(number).scaleb(-writer.get("scale", 0), _EXACT)


def _time(logical: str, read: Callable[..., Any]) -> Callable[..., Any]:
    """Unlike fastavro's own, which makes some time of the day of a negative number."""
    numbers = schemas.span(logical)

    def checked(number: int, *others: Any) -> Any:
        if number not in numbers:
            raise ValueError(f"expected {logical} of {numbers[0]} to {numbers[-1]}, found {number}")
        return read(number, *others)

    return checked


_READERS: dict[str, Callable[..., Any]] = fastavro.read.LOGICAL_READERS
_READERS |= {"bytes-decimal": _decimal, "fixed-decimal": _decimal}
_READERS |= {f"{kind}-{name}": _time(name, _READERS[f"{kind}-{name}"]) for kind, name in _TIMES}


def compiled(text: str) -> Any:
    """The schema as fastavro wants it; it may not use types of others."""
    return _compiled(text)[0]


@lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[Any, dict[str, Any], bool]:
    """`compiled`, its named types, and whether a value has to be walked through before it is read."""
    names: dict[str, Any] = {}
    tree = schemas.load(text)
    try:
        schema = fastavro.parse_schema(tree, named_schemas=names)
    except UnknownType:
        others = schemas.fallbacks(text)
        if not others:
            raise
        # Each has to be there when it is used, and to be the type itself when a value is read.
        names = dict.fromkeys(others)
        schema = fastavro.parse_schema(tree, named_schemas=names)
        names |= {other: names[name] for other, name in others.items()}
    return schema, names, bounds.needs_walk(schema, names)


def encode(schema_id: int, schema: str, row: Any) -> bytes:
    """`row` (a mapping for a record; times as datetime, decimals as Decimal) as a value that names its schema.

    Raises:
        UnfitRow: the row does not fit the schema.
    """
    buffer = io.BytesIO()
    buffer.write(HEADER.pack(MAGIC, schema_id))
    try:
        fastavro.schemaless_writer(buffer, compiled(schema), row)
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise UnfitRow(f"the row does not fit schema {schema_id}: {error}") from error
    return buffer.getvalue()


def split(value: bytes) -> tuple[int, bytes]:
    """The schema id that `value` names, and its Avro bytes.

    Raises:
        BadValue: shorter than its header, or another first byte.
    """
    if len(value) < HEADER.size or value[0] != MAGIC:
        start = value[: HEADER.size].hex() or "nothing"
        raise BadValue(f"expected 00 and a schema id of 4 bytes, found {start} ({len(value)} bytes)")
    return int.from_bytes(value[1:5], "big"), value[HEADER.size :]


def decode(value: bytes, schema_of: Callable[[int], str], *, reader: str | None = None) -> Any:
    """The row in `value`; `schema_of` gives the text of a schema id, as `Registry.schema` does.

    With `reader`, the row comes in that schema's shape.

    Raises:
        BadValue: not the wire format, or the bytes end early or do not fit the schema; a date or timestamp is outside
            the years 1 to 9999; nested deeper, or of far more parts, than a reader can hold (`bounds`).
    """
    schema_id, payload = split(value)
    text = schema_of(schema_id)
    try:
        writer, names, unbounded = _compiled(text)
    except (InvalidSchema, SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as error:
        # Another registry took it, or it has references; a name that is not there is a ValueError (UnknownType).
        raise BadValue(f"schema {schema_id} cannot be read with: {type(error).__name__}: {error}") from error
    stream = io.BytesIO(payload)
    try:
        if unbounded:
            bounds.walk(writer, names, payload)
        row = fastavro.schemaless_reader(stream, writer, compiled(reader) if reader is not None else None)
    except UNREADABLE as error:
        raise BadValue(f"schema {schema_id} does not fit the bytes: {type(error).__name__}: {error}") from error
    if stream.tell() != len(payload):
        raise BadValue(f"schema {schema_id}: {len(payload) - stream.tell()} bytes are left over")
    return row


def key_text(row: Mapping[str, Any], columns: tuple[str, ...]) -> bytes:
    """The key of `row`: one column as text, several as a JSON array without spaces; never a schema id.

    `true`, `false` and numbers are written as JSON writes them, all else as PostgreSQL does (docs/formats/events.md),
    so every writer gives the same bytes. Values are as `decode` gives them.

    Raises:
        UnfitRow: a key column is missing or null, or of a type that has no text.
    """
    parts = [_key_part(column, row.get(column)) for column in columns]
    if len(parts) == 1:
        return (parts[0] if isinstance(parts[0], str) else json.dumps(parts[0])).encode()
    return json.dumps(parts, separators=(",", ":")).encode()


def key_values(data: bytes, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The other way: the key columns that a key's bytes stand for.

    Args:
        data: what `key_text` gave.
        columns: of the key, each with its type as Spark calls it.

    Raises:
        BadValue: it is no such key.
    """
    try:
        text = data.decode()
        parts = [text] if len(columns) == 1 else json.loads(text)
        return {name: _READ[kind](part) for (name, kind), part in zip(columns, parts, strict=True)}
    except (ValueError, KeyError, TypeError) as error:
        expected = ", ".join(f"{name} {kind}" for name, kind in columns)
        raise BadValue(f"expected a key of {expected}, found {data[:40]!r}") from error


def _key_part(column: str, value: Any) -> str | float:
    match value:
        case str() | int() | float():  # a truth value is an int
            return value
        case None:
            raise UnfitRow(f"the key column {column!r} is missing or null", column=column)
        case datetime() if value.tzinfo is not None:
            return _trimmed(value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")) + "+00"
        case datetime():
            return _trimmed(value.isoformat(" "))
        case time():
            return _trimmed(value.isoformat())
        case date() | UUID():
            return str(value)
        case Decimal():
            return format(value, "f")
        case bytes():
            return "\\x" + value.hex()
    raise UnfitRow(
        f"the key column {column!r}: expected a text, a number, a time or bytes, found {type(value).__name__}",
        column=column,
    )


def _trimmed(text: str) -> str:
    """Without the zeros at the end of a fraction."""
    return text.rstrip("0") if "." in text else text


def _truth(part: str | bool) -> bool:
    return {"true": True, "false": False}[part] if isinstance(part, str) else part


_READ: Mapping[str, Callable[[Any], Any]] = {
    "string": str, "tinyint": int, "smallint": int, "int": int, "bigint": int, "boolean": _truth,
    "date": date.fromisoformat, "timestamp": datetime.fromisoformat,
}  # fmt: skip
"""From a part of a key to its value, by the types that `registry.spark` takes for keys."""
