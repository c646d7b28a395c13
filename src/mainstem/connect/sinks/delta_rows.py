"""Records as the rows of a table, with the types that Delta has: what Spark's writer makes of them, made without it.

Few records are decoded here, more by Spark. What is not plain (a type that Avro and Delta call differently, a record
that does not decode) raises `NotPlain`.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mainstem.connect.sinks.delta_topics import NO_SCHEMA
from mainstem.registry import avro
from mainstem.registry.schema import AvroType, is_change, parse

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = ("_key", "_partition", "_offset", "_timestamp")


class NotPlain(Exception):
    """Spark has to write this; the message says why."""


class Columns:
    """The columns of one schema, as Spark's `from_avro` and Delta would have them; without a schema, the bytes.

    Raises:
        NotPlain: it has a type that is not plain.
    """

    def __init__(self, schema: str | None) -> None:
        import pyarrow as pa

        self.schema = schema
        self.is_change = False
        if schema is None:
            self.fields = [pa.field("value", pa.binary())]
            return
        row = parse(schema)
        self.is_change = is_change(schema)
        if self.is_change:
            of_change = {field.name: field.type for field in row.fields}
            if not of_change.keys() >= {"op", "after"}:
                raise NotPlain(f"{row} is no change record")
            row = _some(of_change["after"])
        if row.kind != "record":
            raise NotPlain(f"{row} is no record")
        self.fields = [pa.field(field.name, _arrow(field.type, set())) for field in row.fields]


def place_fields() -> "list[pa.Field]":
    """The columns that every table has: where a row comes from."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"))
    return [pa.field(name, kind) for name, kind in zip(PLACE, kinds, strict=True)]


def typed_small(records: "pa.Table", columns: Mapping[int, Columns], *, merged: bool) -> "pa.Table":
    """The rows of one topic's records (`partition`, `offset`, `timestamp`, `key`, `value`), in their order.

    With `merged`, the last of each key, and a column `_deleted`. Without, a record with a null value is a row of nulls.

    Raises:
        NotPlain: a record does not decode, has no key, or is a truncation; two schemas give a column two types.
    """
    import pyarrow as pa

    kinds = _kinds(columns, merged=merged)
    rows: dict[Any, dict[str, Any]] = {}
    # As numbers: a producer that gives microseconds for milliseconds is in years that Python has no times of.
    times = records["timestamp"].cast(pa.int64())
    records = records.set_column(records.column_names.index("timestamp"), "timestamp", times)
    for number, record in enumerate(records.to_pylist()):
        row, deleted = _decoded(record["value"], columns)
        key = _text(record["key"])
        if merged and key is None:
            raise NotPlain("a row without a key")
        place = (key, record["partition"], record["offset"], record["timestamp"])
        row = {**row, **dict(zip(PLACE, place, strict=True)), "_deleted": deleted}
        before = rows.get(key) if merged else None
        if before is None or before["_offset"] <= row["_offset"]:
            rows[key if merged else number] = row
    try:
        return pa.Table.from_pylist(list(rows.values()), schema=kinds)
    except (pa.ArrowException, OverflowError) as error:
        raise NotPlain(str(error)) from error


def fitted(decoded: "pa.Table", columns: Mapping[int, Columns], records: int, *, merged: bool) -> "pa.Table":
    """The same of what Spark has decoded of so many records: the schema's columns, PLACE, `_op` and `_deleted`.

    Raises:
        NotPlain: as `typed_small`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = _kinds(columns, merged=merged)
    if decoded.num_rows != records:
        raise NotPlain("a record does not decode")
    if merged and pc.any(pc.equal(decoded["_op"], "t")).as_py():
        raise NotPlain("a truncation")
    if merged and decoded["_key"].null_count:
        raise NotPlain("a row without a key")
    rows = decoded.select(kinds.names)
    try:
        rows.validate(full=True)
        return (_last_of_each_key(rows) if merged else rows).cast(kinds)
    except pa.ArrowException as error:
        raise NotPlain(str(error)) from error


def _last_of_each_key(rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    rows = rows.combine_chunks().sort_by("_offset")
    places = pa.table({"key": rows["_key"], "row": pa.array(range(rows.num_rows))})
    return rows.take(places.group_by("key").aggregate([("row", "max")])["row_max"])


def _kinds(columns: Mapping[int, Columns], *, merged: bool) -> "pa.Schema":
    """The columns of the rows of these schemas.

    Raises:
        NotPlain: two schemas give a column two types, or two columns have one name for Delta.
    """
    import pyarrow as pa

    fields: dict[str, pa.Field] = {}
    for each in columns.values():
        for field in each.fields:
            if fields.setdefault(field.name, field) != field:
                raise NotPlain(f"column {field.name} has two types")
    _check_names(fields.values(), {*PLACE, "_op", "_deleted"})
    return pa.schema([*fields.values(), *place_fields(), *([pa.field("_deleted", pa.bool_())] if merged else [])])


def _check_names(fields: "Iterable[pa.Field]", taken: "Collection[str]" = ()) -> None:
    """Neither Spark nor Delta tells `id` from `ID`.

    Raises:
        NotPlain: two names, here or within a column, differ in case only, or one is taken.
    """
    import pyarrow as pa

    seen = set(taken)
    for field in fields:
        if field.name.lower() in seen:
            raise NotPlain(f"column {field.name}: another has that name, but for its case")
        seen.add(field.name.lower())
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_names(kind.fields)


def _decoded(value: bytes | None, columns: Mapping[int, Columns]) -> tuple[dict[str, Any], bool]:
    """The columns in a value, and whether it deletes its key."""
    if value is None:
        return {}, True
    if NO_SCHEMA in columns:
        return {"value": value}, False
    try:
        schema_id, _ = avro.split(value)
        shape = columns[schema_id]
        row = avro.decode(value, lambda _: shape.schema or "")
    except (avro.BadValue, KeyError, struct.error) as error:
        raise NotPlain(str(error)) from error
    if not shape.is_change:
        return row, False
    if row["op"] == "t":
        raise NotPlain("a truncation")
    return row["after"] or {}, row["op"] == "d"


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError as error:
        raise NotPlain(f"a key: {error}") from error


def _some(kind: AvroType) -> AvroType:
    """The type beside null in a union of two; any other type as it is."""
    if kind.kind != "union":
        return kind
    others = [branch for branch in kind.branches if branch.kind != "null"]
    if len(others) != 1:
        raise NotPlain(f"{kind}")
    return others[0]


_KINDS = {
    ("boolean", ""): "bool_",
    ("int", ""): "int32",
    ("int", "date"): "date32",
    ("long", ""): "int64",
    ("float", ""): "float32",
    ("double", ""): "float64",
    ("bytes", ""): "binary",
    ("string", ""): "string",
    ("enum", ""): "string",
    ("fixed", ""): "binary",
}
_TIMES = {
    ("long", "timestamp-millis"): "UTC",
    ("long", "timestamp-micros"): "UTC",
    ("long", "local-timestamp-millis"): None,
    ("long", "local-timestamp-micros"): None,
}


def _arrow(kind: AvroType, inside: set[int]) -> "pa.DataType":
    """The type as Delta has it, with nulls allowed everywhere."""
    import pyarrow as pa

    kind = _some(kind)
    if id(kind) in inside:
        raise NotPlain(f"{kind} holds itself")
    inside = inside | {id(kind)}
    if (kind.kind, kind.logical) in _TIMES:
        return pa.timestamp("us", _TIMES[kind.kind, kind.logical])
    if (kind.kind, kind.logical) == ("bytes", "decimal") and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.kind == "record":
        return pa.struct([pa.field(field.name, _arrow(field.type, inside)) for field in kind.fields])
    if kind.kind == "array" and kind.items is not None:
        return pa.list_(_arrow(kind.items, inside))
    if (kind.kind, kind.logical) in _KINDS:
        return getattr(pa, _KINDS[kind.kind, kind.logical])()
    raise NotPlain(f"{kind}")
