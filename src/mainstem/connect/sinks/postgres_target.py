# ruff: noqa: S608 - the names in these statements are quoted by `quoted`; values travel by COPY or as parameters
"""The tables of a replica: created from the schema of the changes, and brought to the state after whole transactions.

Within one target transaction only the last state of each key counts, since nobody can see the others. It is gathered
per table and written in two statements: rows by COPY into a temporary table and from there over the old ones by key,
deletes in the same way. A truncate deletes the rows: PostgreSQL's TRUNCATE is not transactional for readers that took
their snapshot before.
"""

import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fastavro
import msgspec
import psycopg2

from mainstem.client.compacted import NOT_OURS
from mainstem.connect.sinks.postgres_order import Change
from mainstem.connect.sources.postgres_catalog import quoted
from mainstem.connect.sources.postgres_types import decoder
from mainstem.core import CorruptData, UserError
from mainstem.registry.schema import is_change

FLUSH_ROWS = 50_000  # more keys than these are not kept in memory
FLUSH_BYTES = 32 << 20  # nor more bytes of their records
_SERVER_TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "bytes": "bytea",
    "string": "text",
    "date": "date",
    "time-micros": "time without time zone",
    "timestamp-micros": "timestamp with time zone",
    "local-timestamp-micros": "timestamp without time zone",
    "uuid": "uuid",
}
_COPY_COLUMN = re.compile(r"^COPY \w+, line \d+, column (.+?): ", re.MULTILINE)
_stages = itertools.count()  # what a connection writes through: temporary tables, one for each table
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class NotEmpty(UserError):
    """A table that the replica should fill has rows that did not come from it."""


class ValueRefused(UserError):
    """A value of the source that the type of the replica's column does not take."""


class TargetColumn(msgspec.Struct, frozen=True):
    """A column of the replica: its name, its type, what older rows have in it, and how its values become text."""

    name: str
    field: str
    server_type: str
    missing: str | None
    text: Callable[[Any], str]


class TargetShape(msgspec.Struct, frozen=True):
    """What a schema of changes says about its table."""

    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    reader: Any  # the parsed schema without logical types: values come as they are on the wire

    def decode(self, payload: bytes) -> dict[str, Any]:
        """The change record in Avro's plain values."""
        found = fastavro.schemaless_reader(io.BytesIO(payload), self.reader, None)
        assert isinstance(found, dict)
        return found

    def texts(self, row: dict[str, Any]) -> list[str | None]:
        """The row as the server's texts, in the order of the columns."""
        return [None if (value := row[c.field]) is None else c.text(value) for c in self.columns]


def shape_of(schema: str) -> TargetShape:
    """The columns of the table whose change records have this schema.

    Raises:
        CorruptData: it is not the schema of change records.
    """
    if not is_change(schema):
        raise CorruptData(f"expected a schema of change records, found {schema[:100]}")
    tree = json.loads(schema)
    (row,) = [kind for field in tree["fields"] if field["name"] == "before" for kind in field["type"] if kind != "null"]
    columns = tuple(_column(field) for field in row["fields"])
    names = {column.field: column.name for column in columns}
    key = tuple(names[field] for field in tree["key"])
    return TargetShape(columns, key, fastavro.parse_schema(_plain(tree)))


def _column(field: dict[str, Any]) -> TargetColumn:
    avro = field["type"]
    if isinstance(avro, list):
        (avro,) = [kind for kind in avro if kind != "null"]
    server = field.get("postgres") or _server_type(avro)
    return TargetColumn(
        field.get("column", field["name"]), field["name"], server, field.get("missing"), decoder(avro, server)
    )


def _server_type(avro: Any) -> str:
    if isinstance(avro, dict):
        if avro.get("logicalType") == "decimal":
            return f"numeric({avro['precision']},{avro.get('scale', 0)})"
        return _SERVER_TYPES.get(avro.get("logicalType", ""), _SERVER_TYPES.get(avro["type"], "text"))
    return _SERVER_TYPES.get(avro, "text")


def _plain(schema: Any) -> Any:
    """The schema without logical types: the values then come as the wire has them, exact and without detours."""
    if isinstance(schema, dict):
        return {
            name: _plain(value) for name, value in schema.items() if name not in ("logicalType", "precision", "scale")
        }
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


def key_texts(key: bytes, columns: int) -> list[str]:
    """The texts of the key's columns, from a record's key.

    Raises:
        CorruptData: it is no such key: a tombstone of somebody else may have any.
    """
    try:
        values = json.loads(key) if columns > 1 else [key.decode()]
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != columns:
        raise CorruptData(f"expected a key of {columns} columns, found {key!r:.200}", hint=NOT_OURS)
    return [_BOOLEANS[value] if isinstance(value, bool) else str(value) for value in values]


_BOOLEANS = {True: "t", False: "f"}


class TargetTable:
    """One table of the replica, in the transaction that its connection is in.

    Attributes:
        lost_by: why rows were lost: a key that older rows have nothing in. A truncate, or a new snapshot, makes it
            good; until then the transaction must not be committed.
    """

    def __init__(self, schema: str, name: str) -> None:
        self.schema, self.name = schema, name
        self.lost_by = ""
        self._pending: dict[bytes, list[str | None] | None] = {}
        self._partial: dict[bytes, tuple[list[str | None], frozenset[str]]] = {}
        self._taken_bytes = 0  # since the last flush
        self._shape: TargetShape | None = None
        self._shape_id = -1
        self._certain = False  # all that is in the table came in this shape or an earlier one
        # A number, since the server cuts names at 63 bytes: two tables, or two shapes of one, could share a name.
        self._stage = quoted("pg_temp", f"mainstem_stage_{next(_stages)}")
        self._exists = False
        self._empty = False  # nothing but new keys can come: no need to look for old ones

    @property
    def _table(self) -> str:
        return quoted(self.schema, self.name)

    @property
    def schema_id(self) -> int | None:
        """The schema that the table was last prepared for."""
        return self._shape_id if self._shape is not None else None

    def missing(self, cursor: Any, shape: TargetShape) -> str:
        """Whether somebody has dropped the table or columns of it: what, or empty. The replica itself drops none."""
        present = self._present_columns(cursor)
        gone = [column.name for column in shape.columns if column.name not in present]
        if not gone:
            return ""
        where = f"table {self.schema}.{self.name} of the replica"
        return f"{where} has lost {', '.join(gone)}" if present else f"{where} is not there any more"

    def resume(self, cursor: Any, schema_id: int, shape: TargetShape, *, certain: bool) -> None:
        """Go on with the table as an earlier run left it:
        in the shape of this schema or, unless `certain`, of a later one.
        """
        self._shape = shape
        self.prepare(cursor, schema_id, shape, may_have_rows=True)
        self._certain = certain

    def prepare(self, cursor: Any, schema_id: int, shape: TargetShape, *, may_have_rows: bool) -> None:
        """Create the table, or bring it from the schema of the last call to this one;
        nothing happens where it is the same.

        Raises:
            NotEmpty: it exists with rows, and the replica has never written to it.
        """
        if schema_id == self._shape_id:
            return
        if self._shape is not None:
            self.flush(cursor)
        present = self._present_columns(cursor)
        if not present:
            self._create(cursor, shape)
        else:
            if not self._exists and not may_have_rows and self._has_rows(cursor):
                raise NotEmpty(
                    f"table {self.schema}.{self.name} of the replica: expected no rows before the first load, found some",
                    hint="empty it, or give the sink another `schema`",
                )
            self._alter(cursor, shape, present)
        self._exists, self._shape, self._shape_id, self._certain = True, shape, schema_id, True
        cursor.execute(f"DROP TABLE IF EXISTS {self._stage}")
        cursor.execute(
            f"CREATE TEMPORARY TABLE {self._stage} ON COMMIT DELETE ROWS AS "
            f"SELECT {self._column_list()} FROM {self._table} WITH NO DATA"
        )

    def apply(self, cursor: Any, change: Change) -> None:
        """Take one change; it is written by `flush`."""
        operation = change.operation
        if operation in ("c", "u", "r"):
            assert change.row is not None
            if change.unchanged:
                self._apply_partial(change, change.row)
            else:
                self._pending[change.key] = change.row
                self._partial.pop(change.key, None)
            self._empty = self._empty and operation != "u"
        elif operation == "t":
            self.clear(cursor)
        elif self._shape is not None:  # a delete, or a tombstone, whose delete record may have been compacted away
            self._pending[change.key] = None
            self._partial.pop(change.key, None)
            self._empty = False
        self._taken_bytes += change.size
        if len(self._pending) >= FLUSH_ROWS or self._taken_bytes >= FLUSH_BYTES:
            self.flush(cursor)

    def clear(self, cursor: Any) -> None:
        """Delete every row."""
        self._pending.clear()
        self._partial.clear()
        self._taken_bytes = 0
        self.lost_by = ""
        if self._exists or self._present_columns(cursor):
            cursor.execute(f"DELETE FROM {self._table}")
            self._empty = True

    def flush(self, cursor: Any) -> None:
        """Write what was taken; it is visible to others when the transaction commits."""
        if not self._pending and not self._partial:
            return
        try:
            self._write_pending(cursor)
        except psycopg2.Error as error:
            found = _COPY_COLUMN.search(error.diag.context or "")
            if found is None:
                raise
            raise ValueRefused(
                f"table {self.schema}.{self.name} of the replica, column {found.group(1)}: {str(error).splitlines()[0]}",
                hint="give the column the type text in the replica's database, where it takes any value; make the table where there is none",
            ) from error

    def _write_pending(self, cursor: Any) -> None:
        assert self._shape is not None
        gone = [key for key, row in self._pending.items() if row is None]
        rows = [row for row in self._pending.values() if row is not None]
        if gone:
            self._delete(cursor, self._key_texts(gone, len(self._shape.key)))
        if rows:
            self._upsert(cursor, rows)
        for row, unchanged in self._partial.values():
            self._upsert_partial(cursor, row, unchanged)
        self._pending.clear()
        self._partial.clear()
        self._taken_bytes = 0

    def _key_texts(self, keys: Iterable[bytes], columns: int) -> list[list[str]]:
        try:
            return [key_texts(key, columns) for key in keys]
        except CorruptData as error:
            raise CorruptData(f"table {self.schema}.{self.name} of the replica: {error}", hint=error.hint) from error

    def committed(self) -> None:
        """The transaction has ended: whether the table is empty is no longer known."""
        self._empty = False

    def _apply_partial(self, change: Change, row: list[str | None]) -> None:
        """An update whose source did not know some columns:
        they come from the row taken before, or stay as they are.
        """
        assert self._shape is not None
        known = self._pending.get(change.key)
        unknown = frozenset(change.unchanged)
        if known is not None:
            merged = [k if c.field in unknown else r for c, k, r in zip(self._shape.columns, known, row, strict=True)]
            self._pending[change.key] = merged
            return
        earlier = self._partial.get(change.key)
        if earlier is not None:
            old, old_unknown = earlier
            row = [o if c.field in unknown else r for c, o, r in zip(self._shape.columns, old, row, strict=True)]
            unknown &= old_unknown
        self._partial[change.key] = (row, unknown)

    def _present_columns(self, cursor: Any) -> dict[str, str]:
        cursor.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s "
            "AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped",
            (self.schema, self.name),
        )
        return dict(cursor.fetchall())

    def _has_rows(self, cursor: Any) -> bool:
        cursor.execute(f"SELECT EXISTS (SELECT FROM {self._table})")
        return bool(cursor.fetchone()[0])

    def _create(self, cursor: Any, shape: TargetShape) -> None:
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.schema)}")
        columns = [f"{quoted(column.name)} {column.server_type}" for column in shape.columns]
        key = ", ".join(quoted(name) for name in shape.key)
        cursor.execute(f"CREATE TABLE {self._table} ({', '.join(columns)}, PRIMARY KEY ({key}))")
        self._empty = True

    def _alter(self, cursor: Any, shape: TargetShape, present: dict[str, str]) -> None:
        """Columns are added, and change their type where the schema does; none is ever dropped, only made null. The
        primary key is that of the schema.

        A type that differs for another reason is somebody's choice, or that of a later schema: a cast could cut values.
        """
        before = {column.name: column for column in self._shape.columns} if self._shape else {}
        for column in shape.columns:
            name, kind, known = quoted(column.name), column.server_type, before.get(column.name)
            value = "NULL" if column.missing is None else _literal(column.missing)
            if column.name not in present:
                cursor.execute(f"ALTER TABLE {self._table} ADD COLUMN {name} {kind} DEFAULT {value}")
                cursor.execute(f"ALTER TABLE {self._table} ALTER COLUMN {name} DROP DEFAULT")  # it was for older rows
            elif self._certain and _is_another(known, column):
                if kind == present[column.name]:
                    cursor.execute(f"UPDATE {self._table} SET {name} = {value}")
                else:
                    cursor.execute(f"ALTER TABLE {self._table} ALTER COLUMN {name} TYPE {kind} USING {value}::{kind}")
            elif known is not None and kind not in (present[column.name], known.server_type):
                self._convert(cursor, column)
        if self._shape is not None and set(self._shape.key) != set(shape.key):
            self._change_key(cursor, self._shape, shape, present)
        for name in before.keys() & present.keys() - {column.name for column in shape.columns}:
            cursor.execute(f"UPDATE {self._table} SET {quoted(name)} = NULL WHERE {quoted(name)} IS NOT NULL")

    def _convert(self, cursor: Any, column: TargetColumn) -> None:
        """Another type of a column. Values that have no cast to it the source has written anew, by an expression that
        no record tells of (ALTER … USING): only a snapshot that came since has them.
        """
        name, kind = quoted(column.name), column.server_type
        alter = f"ALTER TABLE {self._table} ALTER COLUMN {name} TYPE {kind} USING "
        cursor.execute("SAVEPOINT before_the_cast")
        try:
            cursor.execute(f"{alter}{name}::{kind}")
        except (psycopg2.DataError, psycopg2.errors.CannotCoerce):
            cursor.execute("ROLLBACK TO SAVEPOINT before_the_cast")
            self.lost_by = (
                f"column {column.name} of table {self.schema}.{self.name} is now {kind}, and the log does not say what "
                "all older rows have in it"
            )
            cursor.execute(f"DELETE FROM {self._table}")
            cursor.execute(f"{alter}NULL::{kind}")
        cursor.execute("RELEASE SAVEPOINT before_the_cast")

    def _change_key(self, cursor: Any, before: TargetShape, shape: TargetShape, present: dict[str, str]) -> None:
        """1. fill renamed columns, 2. delete the rows where the new key does not tell them apart,
        3. change the primary key.

        The rows are those of the source before the next change, and so have the new key, unless the source has written
        them anew for it: no record tells of that.
        """
        for old, new in _renamed(before, shape):
            if old in present:
                cursor.execute(f"UPDATE {self._table} SET {quoted(new)} = {quoted(old)}")
        names = [quoted(name) for name in shape.key]
        key = ", ".join(names)
        cursor.execute(
            f"SELECT EXISTS (SELECT FROM {self._table} GROUP BY {key} "
            f"HAVING count(*) > 1 OR {' OR '.join(f'{name} IS NULL' for name in names)})"
        )
        if cursor.fetchone()[0]:
            self.lost_by = (
                f"the key of table {self.schema}.{self.name} is now ({', '.join(shape.key)}), and the log does not say "
                "what all older rows have in it"
            )
            cursor.execute(f"DELETE FROM {self._table}")
        self._empty = False  # a row may come again by its new key
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", (self._table,)
        )
        for (constraint,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {self._table} DROP CONSTRAINT {quoted(constraint)}")
        cursor.execute(f"ALTER TABLE {self._table} ADD PRIMARY KEY ({key})")
        for name in (name for name in before.key if name in present and name not in shape.key):
            cursor.execute(f"ALTER TABLE {self._table} ALTER COLUMN {quoted(name)} DROP NOT NULL")

    def _column_list(self, alias: str = "") -> str:
        assert self._shape is not None
        return ", ".join(alias + quoted(column.name) for column in self._shape.columns)

    def _upsert(self, cursor: Any, rows: Sequence[list[str | None]]) -> None:
        columns = self._column_list()
        if self._empty:
            cursor.copy_expert(f"COPY {self._table} ({columns}) FROM STDIN", _copy_file(rows))
            return
        self._fill_stage(cursor, columns, rows)
        self._insert_stage(cursor, columns, frozenset())

    def _upsert_partial(self, cursor: Any, row: list[str | None], unchanged: frozenset[str]) -> None:
        columns = self._column_list()
        self._fill_stage(cursor, columns, [row])
        self._insert_stage(cursor, columns, unchanged)

    def _fill_stage(self, cursor: Any, columns: str, rows: Iterable[Sequence[str | None]]) -> None:
        cursor.execute(f"DELETE FROM {self._stage}")
        cursor.copy_expert(f"COPY {self._stage} ({columns}) FROM STDIN", _copy_file(rows))

    def _insert_stage(self, cursor: Any, columns: str, unchanged: frozenset[str]) -> None:
        assert self._shape is not None
        key = set(self._shape.key)
        changed = [c.name for c in self._shape.columns if c.name not in key and c.field not in unchanged]
        update = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in changed)
        cursor.execute(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM {self._stage} "
            f"ON CONFLICT ({', '.join(quoted(name) for name in self._shape.key)}) "
            + (f"DO UPDATE SET {update}" if changed else "DO NOTHING")
        )

    def _delete(self, cursor: Any, keys: Sequence[Sequence[str]]) -> None:
        assert self._shape is not None
        self._fill_stage(cursor, ", ".join(quoted(name) for name in self._shape.key), keys)
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self._shape.key)
        cursor.execute(f"DELETE FROM {self._table} t USING {self._stage} s WHERE {same}")


def _is_another(before: TargetColumn | None, column: TargetColumn) -> bool:
    """Whether the source dropped the column of that name and added it again: no row has what it had before.

    It has a value in older rows only since it was added; what goes away again, when the source writes the table anew.
    """
    return before is None or (before.missing is None and column.missing is not None)


def _renamed(before: TargetShape, shape: TargetShape) -> list[tuple[str, str]]:
    """Old and new names of the key's columns that the source has renamed.

    A renamed column keeps its place and type; one that is added in place of another comes after all that were there.
    """
    was, now = ([column.name for column in each.columns] for each in (before, shape))
    gone = [column for column in before.columns if column.name in before.key and column.name not in now]
    new = [column for column in shape.columns if column.name in shape.key and column.name not in was]

    def place(column: TargetColumn, names: list[str]) -> int:
        earlier = names[: names.index(column.name)]
        return sum(name in was and name in now for name in earlier)

    pairs = list(zip(gone, new, strict=False))
    same = all(place(old, was) == place(column, now) and old.server_type == column.server_type for old, column in pairs)
    return [(old.name, column.name) for old, column in pairs] if same and len(gone) == len(new) else []


def _literal(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def copy_line(row: Sequence[str | None]) -> str:
    """One row in COPY's text format, without the end of the line.

    Most rows have nothing to escape, which one look at all values together tells: they are joined by NUL and NULL is a
    lone surrogate, two characters that no text of the server has.
    """
    joined = "\0".join([_NO_VALUE if value is None else value for value in row])
    if _SPECIAL.search(joined):
        joined = joined.translate(_ESCAPES)
    return joined.replace("\0", "\t").replace(_NO_VALUE, "\\N")


_NO_VALUE = "\ud800"
_SPECIAL = re.compile(r"[\\\t\n\r]")


def _copy_file(rows: Iterable[Sequence[str | None]]) -> io.BytesIO:
    return io.BytesIO(("\n".join(map(copy_line, rows)) + "\n").encode())
