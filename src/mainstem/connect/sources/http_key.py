"""From a converted row to its record's key: the bytes that any other writer of the same row gives it.

Not from the JSON as it came: there `5` and `5.0`, or one moment in two zones, are two texts of one value, and would be
two keys. The row holds what fastavro writes; `key_text` wants what it reads,
so the columns of the key are turned around.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_PREC, Context, Decimal
from struct import Struct
from typing import Any, Final

from mainstem.core.errors import UserError
from mainstem.registry import avro
from mainstem.registry.schema import AvroType

Read = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=MAX_PREC)
_FLOAT = Struct("<f")
_UNIT_US: Final = {"millis": 1000, "micros": 1}


class UnfitKey(UserError):
    """A column of the key has a type that has no text."""


def key_reader(schema: AvroType, columns: tuple[str, ...]) -> Callable[[Mapping[str, Any]], bytes]:
    """A function from a row, as `converter(schema)` gives it, to its key; it raises UnfitRow where a column is null.

    Raises:
        UnfitKey: a column is a record, an array or a map.
    """
    types = {field.name: field.type for field in schema.fields}
    reads = {column: _read(column, types[column]) for column in columns}
    return lambda row: avro.key_text({column: read(row[column]) for column, read in reads.items()}, columns)


def _read(column: str, node: AvroType) -> Read:
    """From what fastavro writes to what it reads."""
    match node.kind:
        case "union":
            return _union(column, node)
        case "record" | "array" | "map":
            raise UnfitKey(
                f"the key column {column!r} is {node}: a key is made of texts, numbers, truth values, times and bytes",
                hint="name other columns as the topic's key",
            )
        case "float":
            return lambda value: _FLOAT.unpack(_FLOAT.pack(value))[0]
    what, _, unit = node.logical.rpartition("-")
    if node.logical == "date":
        return lambda days: date.fromordinal(days + _EPOCH_DAY)
    if node.logical == "decimal":
        return _decimal(node.scale)
    if unit in _UNIT_US:
        return _moment(what, _UNIT_US[unit])
    return lambda value: value  # nanoseconds too: readers get the number


def _union(column: str, node: AvroType) -> Read:
    reads = {branch.name or branch.kind: _read(column, branch) for branch in node.branches}
    only = next((read for label, read in reads.items() if label != "null"), None)

    def read(value: Any) -> Any:
        if value is None or only is None:
            return None
        if type(value) is tuple:  # the type's name and the value
            return reads[value[0]](value[1])
        return only(value)

    return read


def _moment(what: str, unit_us: int) -> Read:
    if what == "time":
        return lambda number: (_LOCAL_EPOCH + timedelta(microseconds=number * unit_us)).time()
    epoch = _EPOCH if what == "timestamp" else _LOCAL_EPOCH
    return lambda number: epoch + timedelta(microseconds=number * unit_us)


def _decimal(scale: int) -> Read:
    def read(value: Any) -> Decimal:
        if isinstance(value, bytes):  # a default
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _EXACT)
        return value.quantize(Decimal((0, (1,), -scale)), context=_EXACT)  # type: ignore[no-any-return]

    return read
