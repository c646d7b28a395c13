"""The columns of a topic's rows as SQL has them: what a table is to look like, and which changes it can take.

| Avro | SQL |
|---|---|
| boolean, int, long, float, double | BOOLEAN, INTEGER, BIGINT, FLOAT, DOUBLE |
| string, enum; bytes, fixed | VARCHAR; BLOB |
| decimal, date, time, uuid | DECIMAL (of more than 38 digits: VARCHAR), DATE, TIME, UUID |
| time stamp; local one | TIMESTAMP WITH TIME ZONE; TIMESTAMP. In nanoseconds: BIGINT |
| array, map, record | T[], MAP(VARCHAR, T), STRUCT |
| union with null | the other type |
| any other union, a record without fields or inside of itself | VARCHAR with its JSON |
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from mainstem.core.errors import UserError
from mainstem.registry import schema as schemas
from mainstem.registry.schema import AvroType

_PLAIN = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "enum": "VARCHAR",
    "bytes": "BLOB",
    "fixed": "BLOB",
}
_LOGICAL = {
    "date": "DATE",
    "time-millis": "TIME",
    "time-micros": "TIME",
    "timestamp-millis": "TIMESTAMP WITH TIME ZONE",
    "timestamp-micros": "TIMESTAMP WITH TIME ZONE",
    "local-timestamp-millis": "TIMESTAMP",
    "local-timestamp-micros": "TIMESTAMP",
    "uuid": "UUID",
}
_MOST_DIGITS = 38
_WIDER = {
    "INTEGER": ("BIGINT", "FLOAT", "DOUBLE"),
    "BIGINT": ("FLOAT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
}
"""What a schema may make of a type later, as Avro's readers may."""

PARTITION, OFFSET, KEY = "_partition", "_offset", "_key"
OWN = {PARTITION: "INTEGER", OFFSET: "BIGINT", KEY: "VARCHAR"}
"""Columns that every table has: where a row comes from, and the text of its record's key."""


class TableShape(msgspec.Struct, frozen=True):
    """A topic as a table. A stream keeps every row; a changelog the last one of each key."""

    columns: dict[str, str]  # name -> SQL type
    kind: Literal["stream", "changelog"]
    name: str = ""  # empty: the topic's, with _ for what is no letter, digit or _

    def table(self, topic: str) -> str:
        """The name of the table."""
        return self.name or "".join(each if each.isalnum() or each == "_" else "_" for each in topic)


def check_shapes(shapes: Mapping[str, TableShape]) -> None:
    """Whether these can be tables of one database.

    Raises:
        UserError: two tables, or two columns of one, have names that differ in case at most; or one is that of ours.
    """
    _check_names("tables", [shape.table(topic) for topic, shape in shapes.items()])
    for topic, shape in shapes.items():
        _check_names(f"topic {topic}: columns", [*OWN, *shape.columns])


def _check_names(what: str, names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(name.lower()):
            raise UserError(f"{what} {other} and {name}: in SQL these are one name")
        seen[name.lower()] = name


def columns_of(schema: str) -> dict[str, str]:
    """Name -> SQL type of the rows of an Avro schema's records; of change records, of the rows that they tell of.

    Raises:
        UserError: the schema is none, or not of a record.
    """
    kind = schemas.parse(schema, lenient=True)
    if schemas.is_change(schema):
        after = next((field.type for field in kind.fields if field.name == "after"), kind)
        kind = next((each for each in after.branches if each.kind == "record"), after)
    if kind.kind != "record":
        raise UserError(f"a table is of records, found {kind}")
    return {field.name: sql_type(field.type) for field in kind.fields}


def sql_type(kind: AvroType, above: tuple[int, ...] = ()) -> str:
    """The SQL type of an Avro type; `above`: the records that it is in, by identity."""
    if kind.kind == "union":
        branches = [each for each in kind.branches if each.kind != "null"]
        return sql_type(branches[0], above) if len(branches) == 1 else "VARCHAR"
    if kind.logical == "decimal":
        return f"DECIMAL({kind.precision},{kind.scale})" if kind.precision <= _MOST_DIGITS else "VARCHAR"
    if kind.logical in _LOGICAL and (kind.logical, kind.kind) != ("uuid", "fixed"):  # read as bytes
        return _LOGICAL[kind.logical]
    if kind.kind in ("array", "map") and kind.items is not None:
        items = sql_type(kind.items, above)
        return f"{items}[]" if kind.kind == "array" else f"MAP(VARCHAR, {items})"
    if kind.kind == "record" and kind.fields and id(kind) not in above and not _is_recursive(kind, ()):
        fields = (f"{quoted(each.name)} {sql_type(each.type, (*above, id(kind)))}" for each in kind.fields)
        return f"STRUCT({', '.join(fields)})"
    return _PLAIN.get(kind.kind, "VARCHAR")


def _is_recursive(kind: AvroType, above: tuple[int, ...]) -> bool:
    if id(kind) in above:
        return True
    above = (*above, id(kind)) if kind.kind == "record" else above
    parts = [*(field.type for field in kind.fields), *kind.branches, *([kind.items] if kind.items else [])]
    return any(_is_recursive(part, above) for part in parts)


def wider(one: str, other: str) -> str | None:
    """Of two types the one that holds the values of both; None: neither does."""
    if one == other or one in _WIDER.get(other, ()):
        return one
    return other if other in _WIDER.get(one, ()) else None


def quoted(name: str) -> str:
    """A name for SQL."""
    return '"' + name.replace('"', '""') + '"'
