"""Hold what Mainstem made against the truth, all columns, types and rows, and print the result as a table."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import httpx
import psycopg2
import pyarrow as pa
from deltalake import DeltaTable
from truth import Want, columns_of

from mainstem.client.connection import Connection
from mainstem.registry.reader import TypedReader, TypedRecord

Row = dict[str, Any]

TIME = pa.timestamp("us", tz="UTC")
PLACE = {"_key": pa.string(), "_partition": pa.int32(), "_offset": pa.int64(), "_timestamp": TIME}
"""Where the record of a row lies: each table has these columns after its own."""
PLACE_COLUMNS = [
    ("_key", "VARCHAR"), ("_partition", "INTEGER"), ("_offset", "BIGINT"), ("_timestamp", "TIMESTAMP WITH TIME ZONE"),
]  # fmt: skip

AVRO = {
    "int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(),
    "bytes": pa.binary(),
}  # fmt: skip
POSTGRES = {"integer": pa.int32(), "double precision": pa.float64(), "text": pa.string()}
AT_ONCE = 10_000  # rows that are Python objects at the same time


class Line(NamedTuple):
    """One line of the final table: what a stage took in, gave out, and should have given."""

    stage: str
    name: str
    took: int | None  # of a table of the database: rows that were loaded and changed; None where nothing goes in
    gave: int
    truth: int
    equal: bool
    note: str = ""


def compare(stage: str, name: str, took: int | None, found: pa.Table, want: Want) -> Line:
    """Equal means: the same columns in the same order, of the same types, and the same rows, each as often."""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("found", found)
        db.register("want", want.rows)
        columns = columns_of(db, "found")
        if columns != want.columns:
            note = _other_columns(columns, want.columns)
            return Line(stage, name, took, found.num_rows, want.rows.num_rows, False, note)
        db.execute(f"CREATE VIEW known AS SELECT {want.known} FROM found")
        note = _other_rows(db)
    return Line(stage, name, took, found.num_rows, want.rows.num_rows, not note, note)


def _other_columns(found: list[tuple[str, str]], want: list[tuple[str, str]]) -> str:
    missing = ", ".join(f"{name} {kind}" for name, kind in want if (name, kind) not in found)
    extra = ", ".join(f"{name} {kind}" for name, kind in found if (name, kind) not in want)
    if not missing and not extra:
        return f"columns in another order: {', '.join(name for name, _ in found)}"
    return f"columns missing: {missing or 'none'}; extra: {extra or 'none'}"


def _other_rows(db: duckdb.DuckDBPyConnection) -> str:
    """What is in only one of the tables `known` and `want`; numbers are compared to nine places."""
    columns = ", ".join(
        f'round("{name}", 9) AS "{name}"' if kind == "DOUBLE" else f'"{name}"' for name, kind in columns_of(db, "known")
    )
    db.execute(
        f"CREATE TABLE other AS SELECT {columns}, sum(side) AS times FROM "
        f"(SELECT *, 1 AS side FROM known UNION ALL BY NAME SELECT *, -1 AS side FROM want) GROUP BY ALL HAVING sum(side) <> 0"
    )
    said = []
    for what, sign in (("missing", "<"), ("extra", ">")):
        count = db.execute(f"SELECT sum(abs(times))::BIGINT FROM other WHERE times {sign} 0").fetchone()
        if count is not None and count[0]:
            example = db.execute(f"SELECT * EXCLUDE times FROM other WHERE times {sign} 0 LIMIT 1").fetchone()
            said.append(f"{what} {count[0]}, e.g. {example}")
    return "; ".join(said)


def compare_topic_and_table(name: str, took: int, topic: pa.Table, table: pa.Table, want: Want) -> list[Line]:
    """A topic and its Delta table: both hold the truth, and each row of the table says where its record lies."""
    want = want._replace(columns=want.columns + PLACE_COLUMNS)
    first = compare("topic", name, took, topic, want)
    second = compare("table", name, first.gave, table, want)
    if second.equal:
        everything = ", ".join(f'"{column}"' for column, _ in want.columns)
        placed = compare("table", name, first.gave, table, Want(want.columns, topic, everything))
        second = second._replace(equal=placed.equal, note=placed.note)
    return [first, second]


def topic_table(connection: Connection, registry: httpx.Client, topic: str) -> pa.Table:
    """The rows of a topic and where they lie, in the types that its schema states.

    Of a stream, every committed record; of change records, the row after the last change of each key.
    """
    answer = registry.get(f"/subjects/{topic}-value/versions/latest").raise_for_status().json()
    assert answer["version"] == 1, f"{topic}: expected one schema, found version {answer['version']}"
    fields = {field["name"]: field["type"] for field in json.loads(answer["schema"])["fields"]}
    changes = "after" in fields
    if changes:  # `before` and `after` are of one type, which the first of them defines
        fields = {field["name"]: field["type"] for field in fields["before"][1]["fields"]}
    schema = pa.schema({name: arrow_type(kind) for name, kind in fields.items()} | PLACE)
    return in_pieces(last_rows(connection, topic) if changes else all_rows(connection, topic), schema)


def arrow_type(avro: Any) -> pa.DataType:
    """The Arrow type of an Avro type: of those that the demo's topics have."""
    if isinstance(avro, list):
        (avro,) = (each for each in avro if each != "null")
    if isinstance(avro, str):
        return AVRO[avro]
    if avro["type"] == "array":
        return pa.list_(arrow_type(avro["items"]))
    if avro["type"] == "record":
        return pa.struct({field["name"]: arrow_type(field["type"]) for field in avro["fields"]})
    return TIME if avro.get("logicalType") == "timestamp-micros" else AVRO[avro["type"]]


def all_rows(connection: Connection, topic: str) -> Iterator[Row]:
    with TypedReader(connection, topic) as reader:
        for record in reader:
            yield (record.value or {}) | place_of(record)


def last_rows(connection: Connection, topic: str) -> Iterator[Row]:
    rows: dict[str | None, Row | None] = {}
    with TypedReader(connection, topic) as reader:
        for record in reader:
            after = None if record.value is None else record.value["after"]
            rows[record.key] = None if after is None else after | place_of(record)
    return (row for row in rows.values() if row is not None)


def place_of(record: TypedRecord) -> Row:
    key, partition, offset = record.key, record.partition, record.offset
    return {"_key": key, "_partition": partition, "_offset": offset, "_timestamp": record.timestamp * 1000}


def in_pieces(rows: Iterator[Row], schema: pa.Schema) -> pa.Table:
    """A table of the rows; only some of them are Python objects at the same time."""
    batches = []
    while piece := list(islice(rows, AT_ONCE)):
        batches.append(pa.RecordBatch.from_pylist(piece, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def delta_table(tables: Path, topic: str) -> pa.Table:
    """A Delta table as delta-rs reads it."""
    return DeltaTable(str(tables / topic)).to_pyarrow_table()


def has_rows(tables: Path, topic: str) -> bool:
    """Whether the topic is a Delta table yet, and somebody who reads it sees rows."""
    return DeltaTable.is_deltatable(str(tables / topic)) and delta_table(tables, topic).num_rows > 0


def database_table(dsn: str, table: str) -> pa.Table:
    """A table of a database, in the types that its catalog states."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            )
            schema = pa.schema([(name, POSTGRES[kind]) for name, kind in cursor.fetchall()])
            cursor.execute(f"SELECT * FROM {table}")
            return in_pieces((dict(zip(schema.names, row, strict=True)) for row in cursor), schema)
    finally:
        connection.close()


def print_lines(lines: Iterable[Line]) -> None:
    columns = ("stage", "what", "in", "out", "truth", "equal")
    cells = [
        (line.stage, line.name, *(f"{n:,}" if n is not None else "" for n in line[2:5]), "yes" if line.equal else "NO")
        for line in lines
    ]
    widths = [max(len(row[i]) for row in [columns, *cells]) for i in range(len(columns))]
    for row in [columns, tuple("-" * width for width in widths), *cells]:
        left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
        print("  ".join(left + right), flush=True)
