"""One table as it travels: the Avro schema of its change records, and rows turned into their bytes.

    value     00 | schema id i32 | Avro of Change
    Change    op | before: null or Row | after: null or Row | position | transaction: null or {id, total_order}
              | committed_at

Columns of the key are required, all others may be null: an update or delete under replica identity DEFAULT carries the
old key alone, and a column added later was not there before. What the database knows beyond that stays in attributes
of each field: `postgres` (its type), `column` (its name, where Avro does not allow it as a field's name) and `missing`
(the text that older rows have in a column that was added with a default: the database does not send those rows again).

Rules for change: fields are only added, with a default; the registry's compatibility check holds us to it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from mainstem.connect.sources.postgres_pgoutput import Relation, Row
from mainstem.connect.sources.postgres_types import (
    ColumnType,
    ServerType,
    UnsupportedValue,
    column_type,
    encode_bytes,
    encode_long,
    encode_text,
)
from mainstem.core import UserError

OPERATIONS = "rcudt"  # snapshot, create, update, delete, truncate
TRUNCATE_KEY = b"\0truncate"
"""The key of a truncate record. No row has it, since PostgreSQL allows no NUL in text; compaction keeps the last one,
which every older row precedes."""
SNAPSHOT_ID = "snapshot:"
"""How the id of a transaction begins that is a snapshot; its LSN follows."""

_NULL, _NOT_NULL = b"\x00", b"\x02"
_NAME = re.compile(r"[^A-Za-z0-9_]")


class NoKey(UserError):
    """A table without a primary key: its rows cannot be told apart in a changelog."""


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """What all records of one source transaction share, encoded once."""

    id: str
    position: int
    committed_at_us: int

    def prefix(self) -> bytes:
        """What follows `after`, up to the total order."""
        return encode_long(self.position) + _NOT_NULL + encode_bytes(self.id.encode())

    def suffix(self) -> bytes:
        return encode_long(self.committed_at_us)


class Table(msgspec.Struct, frozen=True):
    """The shape of one table between two of its schema changes."""

    topic: str
    relation: Relation
    types: tuple[ColumnType, ...]
    key: tuple[int, ...]  # the columns of the key: their places in a row, in the key's order
    schema: str

    @property
    def name(self) -> str:
        return f"{self.relation.namespace}.{self.relation.name}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self.relation.columns[place].name for place in self.key)

    def with_schema_id(self, schema_id: int) -> "TableEncoder":
        return TableEncoder(self, schema_id)


def describe_table(
    source: str,
    topic: str,
    relation: Relation,
    server_types: Sequence[ServerType],
    primary_key: Sequence[str],
    *,
    as_text: frozenset[str] = frozenset(),
    missing: Mapping[str, str] | None = None,
) -> Table:
    """The table's schema and how its columns travel.

    Args:
        source: the name of the source, which the schema's namespace begins with.
        topic: where its records go.
        relation: names and places of the columns.
        server_types: their types, in the same order.
        primary_key: names of the key's columns, in order.
        as_text: names of columns that are kept as text (setting `as_text`).
        missing: what a column that was added has in the rows that were there before, where it is not null.

    Raises:
        NoKey: there is no primary key.
    """
    places = {column.name: place for place, column in enumerate(relation.columns)}
    if not primary_key or not places.keys() >= set(primary_key):
        raise NoKey(
            f"table {relation.namespace}.{relation.name}: expected a primary key, found none in its replicated columns",
            hint="add a primary key, or leave the table out of `tables` in the source's settings",
        )
    types = tuple(
        column_type(server, as_text=column.name in as_text)
        for column, server in zip(relation.columns, server_types, strict=True)
    )
    key = tuple(places[name] for name in primary_key)
    namespace = f"{avro_name(source)}.{avro_name(topic.removeprefix(source + '.'))}"
    schema = _schema(namespace, [column.name for column in relation.columns], types, key, missing or {})
    return Table(topic, relation, types, key, json.dumps(schema, separators=(",", ":")))


def avro_name(name: str) -> str:
    """`name` with every character that Avro does not allow replaced by an underscore."""
    name = _NAME.sub("_", name)
    return f"_{name}" if not name or name[0].isdigit() else name


def field_names(columns: Sequence[str]) -> list[str]:
    """Avro's names of the columns, in their order; two that become equal stay apart."""
    names: list[str] = []
    for column in columns:
        name = avro_name(column)
        while name in names:
            name += "_"
        names.append(name)
    return names


def _schema(
    namespace: str, names: list[str], types: Sequence[ColumnType], key: tuple[int, ...], missing: Mapping[str, str]
) -> dict[str, Any]:
    fields = []
    for place, (name, field_name, kind) in enumerate(zip(names, field_names(names), types, strict=True)):
        field: dict[str, Any] = {"name": field_name, "type": kind.avro}
        if place not in key:
            field |= {"type": ["null", kind.avro], "default": None}
        field["postgres"] = kind.server_name
        if field_name != name:
            field["column"] = name
        if name in missing:
            field["missing"] = missing[name]
        fields.append(field)
    transaction = {
        "type": "record",
        "name": "Transaction",
        "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
    }
    return {
        "type": "record",
        "name": "Change",
        "namespace": namespace,
        "mainstem": "change",
        "key": [fields[place]["name"] for place in key],
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": fields}], "default": None},
            {"name": "after", "type": ["null", "Row"], "default": None},
            {"name": "position", "type": "long"},
            {"name": "transaction", "type": ["null", transaction], "default": None},
            {"name": "committed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }


def key_of(schema: str) -> tuple[str, ...]:
    """The columns of the key, in order, as a table's schema has them."""
    change = json.loads(schema)
    row = next(field for field in change["fields"] if field["name"] == "before")["type"][1]
    columns = {field["name"]: field.get("column", field["name"]) for field in row["fields"]}
    return tuple(columns[name] for name in change["key"])


def changed_columns(before: str, after: str) -> list[str]:
    """What became of columns between two schemas of a table, one text each: another type, or new in the key."""
    old, new = _columns_of(before), _columns_of(after)
    changed = [f"{name} ({old[name]} -> {kind})" for name, kind in new.items() if old.get(name, kind) != kind]
    return changed + [f"{name} (new in the key)" for name in key_of(after) if name not in old]


def _columns_of(schema: str) -> dict[str, str]:
    """The columns of a table's schema with their Avro types, as people read them."""
    change = json.loads(schema)
    row = next(field for field in change["fields"] if field["name"] == "before")["type"][1]
    found = {}
    for field in row["fields"]:
        kind = field["type"][1] if isinstance(field["type"], list) else field["type"]
        if isinstance(kind, dict):
            name = kind.get("logicalType", kind["type"])
            kind = f"decimal({kind['precision']},{kind['scale']})" if name == "decimal" else name
        found[field.get("column", field["name"])] = kind
    return found


TRANSACTIONS_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Transaction",
        "namespace": "mainstem",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "status", "type": "string", "doc": "BEGIN or END"},
            {"name": "position", "type": "long"},
            {"name": "event_count", "type": ["null", "long"], "default": None, "doc": "null in BEGIN: not known yet"},
            {
                "name": "tables",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "TableCount",
                        "fields": [{"name": "topic", "type": "string"}, {"name": "event_count", "type": "long"}],
                    },
                },
                "default": [],
            },
            {"name": "committed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    },
    separators=(",", ":"),
)


def encode_begin(schema_id: int, transaction: Transaction) -> bytes:
    return _transaction_record(schema_id, transaction, b"BEGIN", _NULL, _NULL)


def encode_end(schema_id: int, transaction: Transaction, counts: Mapping[str, int]) -> bytes:
    """The end of a transaction: how many change records (tombstones not counted) each topic has of it."""
    items = b"".join(encode_bytes(topic.encode()) + encode_long(count) for topic, count in counts.items())
    tables = (encode_long(len(counts)) + items if counts else b"") + _NULL
    return _transaction_record(schema_id, transaction, b"END", _NOT_NULL + encode_long(sum(counts.values())), tables)


def _transaction_record(schema_id: int, transaction: Transaction, status: bytes, count: bytes, tables: bytes) -> bytes:
    head = b"\0" + schema_id.to_bytes(4, "big") + encode_bytes(transaction.id.encode()) + encode_bytes(status)
    return head + encode_long(transaction.position) + count + tables + transaction.suffix()


class TableEncoder:
    """Rows of one table -> keys and values; everything that does not depend on the row is made once."""

    def __init__(self, table: Table, schema_id: int) -> None:
        self.table = table
        self.topic = table.topic
        head = b"\0" + schema_id.to_bytes(4, "big")
        self._heads = {operation: head + encode_bytes(operation.encode()) for operation in OPERATIONS}
        required = set(table.key)
        self._encoders: tuple[Callable[[Any], bytes], ...] = tuple(
            kind.encode if place in required else _nullable(kind.encode) for place, kind in enumerate(table.types)
        )
        self.field_names = field_names([column.name for column in table.relation.columns])
        self._key_only = tuple(place in required for place in range(len(table.types)))
        self._key_place = table.key[0] if len(table.key) == 1 else None
        self._key_parts: tuple[tuple[int, Callable[[str], Any]], ...] = tuple(
            (place, table.types[place].as_json) for place in table.key
        )

    def key(self, row: Row) -> bytes:
        """One key column: its text; several: a JSON array of their values."""
        if self._key_place is not None:
            value = row[self._key_place]
            assert isinstance(value, bytes)
            return value
        values = []
        for place, as_json in self._key_parts:
            value = row[place]
            assert isinstance(value, bytes)
            values.append(as_json(value.decode()))
        return json.dumps(values, separators=(",", ":")).encode()

    def row(self, values: Row) -> bytes:
        """The row as Avro's Row.

        Raises:
            UnsupportedValue: a column's type cannot hold its value; the message names table, column and repair.
        """
        try:
            return b"".join(
                [_NULL if v is None else encode(v) for encode, v in zip(self._encoders, values, strict=True)]
            )
        except (UnsupportedValue, ValueError, TypeError, OverflowError) as error:
            raise self._explained(values, error) from error

    def key_row(self, values: Row) -> Row:
        """The row with all columns null that are not part of the key: the server leaves their text out, or may."""
        return [value if kept else None for value, kept in zip(values, self._key_only, strict=True)]

    def change(
        self, operation: str, before: bytes | None, after: bytes | None, prefix: bytes, order: int, suffix: bytes
    ) -> bytes:
        """One change record; `before` and `after` come from `row`, `prefix` and `suffix` from the transaction."""
        old = _NULL if before is None else _NOT_NULL + before
        new = _NULL if after is None else _NOT_NULL + after
        return b"".join((self._heads[operation], old, new, prefix, encode_long(order), suffix))

    def _explained(self, values: Row, error: Exception) -> UserError:
        """The same error with the column that it came from."""
        if len(values) != len(self._encoders):
            return UnsupportedValue(f"table {self.table.name}: {len(values)} values for {len(self._encoders)} columns")
        for column, encode, value in zip(self.table.relation.columns, self._encoders, values, strict=True):
            try:
                _ = value is None or encode(value)
            except (UnsupportedValue, ValueError, TypeError, OverflowError) as found:
                shown = value.decode(errors="replace")[:100] if isinstance(value, bytes) else str(value)
                reason = str(found) if isinstance(found, UnsupportedValue) else f"{shown!r}: {found}"
                return UnsupportedValue(
                    f"table {self.table.name}, column {column.name}: {reason}",
                    hint=f'keep it as text: as_text = ["{self.table.relation.name}.{column.name}"] in the source\'s settings',
                )
        return UnsupportedValue(f"table {self.table.name}: {error}")


def _nullable(encode: Callable[[bytes], bytes]) -> Callable[[Any], bytes]:
    """The encoder of a column that may be null: the union's index comes first."""
    if encode is encode_text:
        return _nullable_text
    if isinstance(encode, _Cached):
        encode = encode.__wrapped__
        return lru_cache(maxsize=16_384)(lambda value: _NOT_NULL + encode(value))
    return lambda value: _NOT_NULL + encode(value)


_Cached = type(lru_cache(len))
_NULLABLE_LENGTHS = tuple(_NOT_NULL + encode_long(length) for length in range(512))


def _nullable_text(text: bytes) -> bytes:
    """The most frequent column without a call in between."""
    length = len(text)
    return (_NULLABLE_LENGTHS[length] if length < len(_NULLABLE_LENGTHS) else _NOT_NULL + encode_long(length)) + text
