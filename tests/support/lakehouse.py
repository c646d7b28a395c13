"""A lakehouse over a log, its schemas, and what its tables hold."""

import contextlib
import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
from confluent_kafka import TopicPartition as ConfluentPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError, TableNotFoundError

from mainstem.client.append import append
from mainstem.client.internal import SCHEMAS
from mainstem.client.reports import read_reports
from mainstem.client.topics import admin, ensure_internal_topics, list_topics
from mainstem.connect.sinks.delta import Lakehouse, LakehouseConfig
from mainstem.core.clock import ManualClock
from mainstem.registry import avro

AT = datetime(2013, 1, 1, 5, tzinfo=UTC)
KINDS = {
    "flag": ("boolean", True),
    "small": ("int", -5),
    "large": ("long", 2**40),
    "half": ("float", 0.5),
    "whole": ("double", 0.1),
    "data": ("bytes", b"\x00\xff"),
    "name": ("string", "Zürich"),
    "day": ({"type": "int", "logicalType": "date"}, date(2013, 1, 1)),
    "at": ({"type": "long", "logicalType": "timestamp-micros"}, AT),
    "then": ({"type": "long", "logicalType": "local-timestamp-micros"}, AT.replace(tzinfo=None)),
    "price": ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, Decimal("12.50")),
    "color": ({"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}, "BLUE"),
    "hash": ({"type": "fixed", "name": "Hash", "size": 2}, b"ab"),
    "list": ({"type": "array", "items": "int"}, [1, 2]),
    "place": ({"type": "record", "name": "Place", "fields": [{"name": "x", "type": ["null", "int"]}]}, {"x": None}),
    "maybe": (["null", "long"], None),
}


def record(*fields, name="R", **attributes):
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]} | attributes
    )


ALL = record(*((name, kind) for name, (kind, _) in KINDS.items()))
FLIGHT = """{"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "int"},
  {"name": "origin", "type": ["null", "string"], "default": null},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
LONG_FLIGHT = FLIGHT.replace('"type": "int"', '"type": "long"')
TEXT_FLIGHT = FLIGHT.replace('"type": "int"', '"type": "string"')
FLIGHT_2 = FLIGHT.replace(
    '{"name": "at"', '{"name": "gate", "type": ["null", "string"], "default": null}, {"name": "at"'
)
HIGH = b"\0\xff\xff\xff\xfe no schema"
"""With a schema id that is no int; it failed the batches of all tables."""
PLANE = """{"type": "record", "name": "Change", "namespace": "fleet.planes", "mainstem": "change", "fields": [
  {"name": "op", "type": "string"},
  {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": [
    {"name": "tailnum", "type": "string"}, {"name": "seats", "type": ["null", "int"]}]}]},
  {"name": "after", "type": ["null", "Row"]}]}"""
PLANE_2 = PLANE.replace("]}]}", ']}, {"name": "engine", "type": ["null", "string"], "default": null}]}', 1)
NUMBER = record(("number", "int"))
CHANGE = record(
    ("op", "string"), ("after", ["null", json.loads(record(("seats", "int"), name="Row"))]), mainstem="change"
)


def collected(*rows):
    """Rows (key, value) as a collected batch."""
    columns = {
        "partition": pa.array([0] * len(rows), pa.int32()),
        "offset": pa.array(range(len(rows)), pa.int64()),
        "timestamp": pa.array([AT] * len(rows), pa.timestamp("us", "UTC")),
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
    }
    return pa.table(columns)


def number(n, schema_id=1):
    return avro.encode(schema_id, NUMBER, {"number": n})


def change(op, seats=None):
    return avro.encode(1, CHANGE, {"op": op, "after": None if seats is None else {"seats": seats}})


def register(connection, schemas):
    """Put schemas into the log, by their ids, as the registry does."""
    append(connection, SCHEMAS, [
        (msgspec.json.encode({"keytype": "SCHEMA", "subject": f"s{i}", "version": 1, "magic": 1}),
         msgspec.json.encode({"subject": f"s{i}", "version": 1, "id": i, "schema": text, "deleted": False}))
        for i, text in schemas.items()
    ])  # fmt: skip


class Lake:
    """One sink over a log, its schemas, and what it made of what was sent."""

    def __init__(self, spark, connection, directory: Path):
        self.spark, self.connection, self.directory = spark, connection, directory
        self.clock = ManualClock()
        self.tables, self.checkpoint = directory / "tables", directory / "checkpoint"
        ensure_internal_topics(connection)
        schemas = {1: FLIGHT, 2: FLIGHT_2, 3: PLANE, 4: LONG_FLIGHT, 5: TEXT_FLIGHT, 6: PLANE_2, 7: ALL}
        self.schemas = schemas
        register(connection, schemas)

    def send(self, topic, rows, schema_id=1):
        """Rows are (key, row); a row of None is a tombstone, bytes go out as they are."""
        encoded = [
            (
                key,
                row if row is None or isinstance(row, bytes) else avro.encode(schema_id, self.schemas[schema_id], row),
            )
            for key, row in rows
        ]
        append(self.connection, topic, encoded)
        return encoded

    def make(self, name="lakehouse"):
        config = LakehouseConfig(path="", every="200 milliseconds")
        place = self.directory if name == "lakehouse" else self.directory / name
        tables, checkpoint = place / "tables", place / "checkpoint"
        session = self.spark.newSession()
        return Lakehouse(session, self.connection, tables, checkpoint, config, name=name, clock=self.clock)

    def run(self):
        self.lakehouse = self.make()
        self.lakehouse.start()
        return self.lakehouse

    def delete_before(self, topic, offset):
        client, place = admin(self.connection), ConfluentPartition(topic, 0, offset)
        client.delete_records([place])[place].result(30)

    def reports(self):
        return read_reports(self.connection, list_topics(self.connection))

    def statements(self):
        """What the lakehouse states, by topic and partition."""
        return {(each.topic, each.partition): each for each in self.reports() if each.reader == "lakehouse"}

    def said(self):
        """Reader, topic and position of every statement."""
        return {(each.reader, each.topic, each.end) for each in self.reports()}

    def files(self, table):
        """Names of the files that the newest version of a table has."""
        return {Path(uri).name for uri in DeltaTable(str(self.tables / table)).file_uris()}

    def rows(self, table, *columns):
        try:
            found = DeltaTable(str(self.tables / table)).to_pyarrow_table().to_pylist()
        except DeltaProtocolError:  # a column became wider: delta-rs cannot read that yet
            found = [row.asDict() for row in self.spark.read.format("delta").load(str(self.tables / table)).collect()]
        return sorted((tuple(row.get(c) for c in columns) for row in found), key=repr)

    def wait_for(self, table, rows, *columns):
        deadline = time.monotonic() + 90
        seen = None
        while time.monotonic() < deadline:
            self.clock.advance_ms(500)
            self.lakehouse.step()
            with contextlib.suppress(TableNotFoundError):  # its first commit is under way
                seen = self.rows(table, *columns)
            if seen == sorted(rows, key=repr):
                return
            time.sleep(0.2)
        raise AssertionError(f"{table}: expected {rows}, found {seen}")

    def wait(self, until):
        deadline = time.monotonic() + 90
        while not until():
            assert time.monotonic() < deadline
            self.clock.advance_ms(500)
            self.lakehouse.step()
            time.sleep(0.2)


def flight(number, origin="JFK"):
    return {"number": number, "origin": origin, "at": 0}


def plane(op, tailnum, seats=1):
    row = {"tailnum": tailnum, "seats": seats}
    return tailnum.encode(), {"op": op, "before": None, "after": None if op == "d" else row}
