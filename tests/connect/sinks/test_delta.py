"""The tables are read back by delta-rs, which shares no code with Spark."""

import contextlib
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.internal import AUDIT, SCHEMAS
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.connect.sinks.delta import (
    Lakehouse,
    LakehouseConfig,
    PartitionBooks,
    TableCommit,
    is_change,
    statements_of,
)
from mainstem.records.fingerprint import fingerprint
from mainstem.registry import avro
from mainstem.registry.reader import TypedReader

FLIGHT = """{"type": "record", "name": "Flight", "fields": [{"name": "number", "type": "int"},
  {"name": "origin", "type": ["null", "string"], "default": null},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"""
FLIGHT_2 = FLIGHT.replace(
    '{"name": "at"', '{"name": "gate", "type": ["null", "string"], "default": null}, {"name": "at"'
)
PLANE = """{"type": "record", "name": "Change", "namespace": "fleet.planes", "mainstem": "change", "fields": [
  {"name": "op", "type": "string"},
  {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": [
    {"name": "tailnum", "type": "string"}, {"name": "seats", "type": ["null", "int"]}]}]},
  {"name": "after", "type": ["null", "Row"]}]}"""


def test_a_change_record_is_told_by_its_attribute():
    assert is_change(PLANE)
    assert not is_change(FLIGHT)
    assert not is_change('"string"')


def test_a_tables_statement_covers_all_from_offset_0():
    commit = TableCommit("t", {1: PartitionBooks(next=7, rows=4, tombstones=1, quarantined=1, hash=5)})
    (said,) = statements_of(commit)
    assert (said["from"], said["to"], said["rows"], said["tombstones"], said["hash"]) == (0, 7, 4, 1, 5)


class Fixture:
    def __init__(self, spark, connection, directory: Path):
        self.spark, self.connection, self.directory = spark, connection, directory
        self.tables, self.checkpoint = directory / "tables", directory / "checkpoint"
        ensure_internal_topics(connection)
        schemas = {1: FLIGHT, 2: FLIGHT_2, 3: PLANE}
        self.schemas = schemas
        append(connection, SCHEMAS, [
            (msgspec.json.encode({"keytype": "SCHEMA", "subject": f"s{i}", "version": 1, "magic": 1}),
             msgspec.json.encode({"subject": f"s{i}", "version": 1, "id": i, "schema": text, "deleted": False}))
            for i, text in schemas.items()
        ])  # fmt: skip

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

    def run(self):
        return Lakehouse(
            self.spark,
            self.connection,
            self.tables,
            self.checkpoint,
            LakehouseConfig(path="", every="200 milliseconds"),
        ).start()

    def rows(self, table, *columns):
        found = DeltaTable(str(self.tables / table)).to_pyarrow_table().to_pylist()
        return sorted((tuple(row.get(c) for c in columns) for row in found), key=repr)

    def wait_for(self, table, rows, *columns, query):
        deadline = time.monotonic() + 90
        seen = None
        while time.monotonic() < deadline:
            if query.exception() is not None:
                raise AssertionError(str(query.exception()))
            with contextlib.suppress(TableNotFoundError):  # its first commit is under way
                seen = self.rows(table, *columns)
            if seen == sorted(rows, key=repr):
                return
            time.sleep(0.2)
        raise AssertionError(f"{table}: expected {rows}, found {seen}")


@pytest.fixture
def lake(spark, log_connection, tmp_path):
    yield Fixture(spark, log_connection, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.spark
def test_topics_become_tables_and_stay_exact_through_lost_checkpoints(lake):
    ensure_topic(lake.connection, "flights", 2)
    sent = lake.send(
        "flights", [(b"a", {"number": 1, "origin": "JFK", "at": 0}), (b"b", {"number": 2, "origin": None, "at": 1})]
    )
    query = lake.run()
    lake.wait_for("flights", [(1, "JFK"), (2, None)], "number", "origin", query=query)

    # a new topic while the query runs, of a changelog: the rows as they are now
    ensure_topic(lake.connection, "fleet.planes", 1, {"cleanup.policy": "compact"})
    write_catalog(lake.connection, {"topic:fleet.planes": {"kind": "changelog", "key": ["tailnum"]}})
    n1, n2 = {"tailnum": "N1", "seats": 100}, {"tailnum": "N2", "seats": None}
    lake.send(
        "fleet.planes",
        [(b"N1", {"op": "r", "before": None, "after": n1}), (b"N2", {"op": "c", "before": None, "after": n2})],
        3,
    )
    lake.wait_for("fleet.planes", [("N1", 100), ("N2", None)], "tailnum", "seats", query=query)
    bigger = {"tailnum": "N1", "seats": 108}
    lake.send(
        "fleet.planes",
        [
            (b"N1", {"op": "u", "before": None, "after": bigger}),
            (b"N2", {"op": "d", "before": n2, "after": None}),
            (b"N2", None),
        ],
        3,
    )
    lake.wait_for("fleet.planes", [("N1", 108)], "tailnum", "seats", query=query)

    # the checkpoint is lost, a column is added, and something that is no Avro arrives
    query.stop()
    shutil.rmtree(lake.checkpoint)
    sent += lake.send("flights", [(b"c", {"number": 3, "origin": "LGA", "at": 2, "gate": "A1"})], 2)
    sent += lake.send("flights", [(b"d", b"\0\0\0\0\x01\xff\xff\xff"), (b"e", b"not avro")])
    query = lake.run()
    lake.wait_for("flights", [(1, None), (2, None), (3, "A1")], "number", "gate", query=query)
    lake.wait_for(
        "_quarantine",
        [("flights", b"not avro"), ("flights", b"\0\0\0\0\x01\xff\xff\xff")],
        "topic",
        "value",
        query=query,
    )
    query.stop()
    assert lake.rows("flights", "number") == [(1,), (2,), (3,)]

    # truncated at the source: only what came after it is left
    query = lake.run()
    lake.send(
        "fleet.planes",
        [
            (b"\0truncate", {"op": "t", "before": None, "after": None}),
            (b"N3", {"op": "c", "before": None, "after": {"tailnum": "N3", "seats": 1}}),
        ],
        3,
    )
    lake.wait_for("fleet.planes", [("N3",)], "tailnum", query=query)
    query.stop()

    # the books: what was sent is what the reader says it saw
    said = {}
    with TypedReader(lake.connection, AUDIT) as reader:
        for record in reader:
            said[record.value["topic"], record.value["partition"]] = record.value
    flights = [s for (topic, _), s in said.items() if topic == "flights"]
    assert sum(s["rows"] for s in flights) == 3
    assert sum(s["quarantined"] for s in flights) == 2
    assert sum(s["hash"] for s in flights) % 2**64 == sum(fingerprint(key, value) for key, value in sent) % 2**64
