"""The tables, written by Spark or without its writer, are read back by delta-rs; that both ways are one, Spark reads too."""

import contextlib
import shutil
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError, TableNotFoundError

from mainstem.audit.books import Verdict
from mainstem.audit.report import audit
from mainstem.client.append import append
from mainstem.client.catalog import entries, read_catalog, write_catalog
from mainstem.client.internal import SCHEMAS
from mainstem.client.reports import Report, read_reports
from mainstem.client.topics import admin, delete, ensure_internal_topics, ensure_topic, list_topics
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sinks import delta
from mainstem.connect.sinks.delta import (
    Lakehouse,
    LakehouseConfig,
    compile_settings,
    is_change,
    one_line,
    reports_of,
)
from mainstem.connect.sinks.delta_log import PartitionBooks, TableCommit
from mainstem.core import TopicPartition
from mainstem.core.clock import ManualClock
from mainstem.records.fingerprint import fingerprint
from mainstem.registry import avro
from tests.connect.sinks.test_delta_small import ALL, KINDS

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


def test_a_change_record_is_told_by_its_attribute():
    assert is_change(PLANE)
    assert not is_change(FLIGHT)
    assert not is_change('"string"')


def test_an_error_of_spark_is_told_in_one_line():
    assert one_line(ValueError("\n[DELTA_X] no such column\n at org.apache…")) == "[DELTA_X] no such column"
    assert one_line(ValueError()) == "ValueError"
    wrapped = "An error occurred while calling o4.sql.\n: org.apache.spark.SparkException: disk full\n\tat org…"
    assert one_line(ValueError(wrapped)) == "org.apache.spark.SparkException: disk full"


def test_plans_are_compiled_for_large_batches_only():
    assert compile_settings(50_000)["spark.sql.codegen.wholeStage"] == "false"
    assert compile_settings(50_001) == {
        "spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"
    }  # fmt: skip


def test_a_tables_statement_covers_all_from_offset_0():
    books = PartitionBooks(next=7, rows=4, tombstones=1, quarantined=1, hash=5)
    assert reports_of(TableCommit("t", {0: PartitionBooks(), 1: books}), "lake") == [
        Report(reader="lake", topic="t", partition=1, end=7, rows=4, tombstones=1, quarantined=1, hash=5)
    ]


class Fixture:
    def __init__(self, spark, connection, directory: Path):
        self.spark, self.connection, self.directory = spark, connection, directory
        self.clock = ManualClock()
        self.tables, self.checkpoint = directory / "tables", directory / "checkpoint"
        ensure_internal_topics(connection)
        schemas = {1: FLIGHT, 2: FLIGHT_2, 3: PLANE, 4: LONG_FLIGHT, 5: TEXT_FLIGHT, 6: PLANE_2, 7: ALL}
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


@pytest.fixture
def lake(spark, log_connection, tmp_path):
    fixture = Fixture(spark, log_connection, tmp_path)
    yield fixture
    fixture.lakehouse.stop()


@pytest.mark.spark
def test_the_same_tables_come_with_sparks_writer_and_without(lake, monkeypatch):
    write_catalog(lake.connection, {"topic:planes": {"kind": "changelog", "key": ["tailnum"]}})
    for topic in ("kinds", "planes"):
        ensure_topic(lake.connection, topic, 1)
    row = {name: value for name, (_, value) in KINDS.items()}
    lake.send("kinds", [(b"a", row), (None, row | {"maybe": 5, "data": b""}), (b"", None)], 7)
    lake.send("planes", [plane("c", "N1"), plane("c", "N2"), plane("u", "N2", 7), plane("d", "N1"), (b"N3", None)], 3)
    lake.run()
    lake.wait(lambda: {("lakehouse", "kinds", 3), ("lakehouse", "planes", 5)} <= lake.said())
    lake.send("planes", [plane("d", "N2"), plane("c", "N4", 1)], 3)
    lake.wait(lambda: ("lakehouse", "planes", 7) in lake.said())
    lake.lakehouse.stop()
    monkeypatch.setattr(delta, "COLLECTED_RECORDS", 0)
    other = lake.lakehouse = lake.make("other")
    other.start()
    lake.wait(lambda: {("other", "kinds", 3), ("other", "planes", 7)} <= lake.said())
    for topic in ("kinds", "planes"):
        mine, theirs = (DeltaTable(str(place / topic)) for place in (lake.tables, lake.directory / "other" / "tables"))
        assert ["delta-rs" in each.history()[0]["engineInfo"] for each in (mine, theirs)] == [True, False]
        assert mine.schema() == theirs.schema()
        for read in (lambda table: table.to_pyarrow_table().to_pylist(), read_by(lake.spark)):
            assert sorted(map(repr, read(mine))) == sorted(map(repr, read(theirs)))


def read_by(spark):
    return lambda table: spark.read.format("delta").load(table.table_uri).collect()


@pytest.mark.spark
@pytest.mark.parametrize("collected", [0, delta.COLLECTED_RECORDS])
def test_topics_become_tables_and_stay_exact_through_lost_checkpoints(lake, monkeypatch, collected):
    monkeypatch.setattr(delta, "COLLECTED_RECORDS", collected)
    ensure_topic(lake.connection, "flights", 2)
    sent = lake.send(
        "flights", [(b"a", {"number": 1, "origin": "JFK", "at": 0}), (b"b", {"number": 2, "origin": None, "at": 1})]
    )
    query = lake.run()
    lake.wait_for("flights", [(1, "JFK"), (2, None)], "number", "origin")

    # a new topic while the query runs, of a changelog: the rows as they are now
    ensure_topic(lake.connection, "fleet.planes", 1, {"cleanup.policy": "compact"})
    write_catalog(lake.connection, {"topic:fleet.planes": {"kind": "changelog", "key": ["tailnum"]}})
    n1, n2 = {"tailnum": "N1", "seats": 100}, {"tailnum": "N2", "seats": None}
    lake.send(
        "fleet.planes",
        [(b"N1", {"op": "r", "before": None, "after": n1}), (b"N2", {"op": "c", "before": None, "after": n2})],
        3,
    )
    lake.wait_for("fleet.planes", [("N1", 100), ("N2", None)], "tailnum", "seats")
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
    lake.wait_for("fleet.planes", [("N1", 108)], "tailnum", "seats")

    # the checkpoint is lost, a column is added, and something that is no Avro arrives
    query.stop()
    shutil.rmtree(lake.checkpoint)
    sent += lake.send("flights", [(b"c", {"number": 3, "origin": "LGA", "at": 2, "gate": "A1"})], 2)
    far = avro.encode(
        1, FLIGHT.replace('"logicalType": "timestamp-micros"', '"doc": ""'), flight(4) | {"at": 2**63 - 1}
    )
    sent += lake.send("flights", [(b"d", b"\0\0\0\0\x01\xff\xff\xff"), (b"e", b"not avro"), (b"f", far), (b"g", HIGH)])
    query = lake.run()
    lake.wait_for("flights", [(1, None), (2, None), (3, "A1")], "number", "gate")
    lake.wait_for(
        "_quarantine",
        [("flights", value) for value in (b"not avro", b"\0\0\0\0\x01\xff\xff\xff", far, HIGH)],
        "topic",
        "value",
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
    lake.wait_for("fleet.planes", [("N3",)], "tailnum")
    query.stop()

    # the books: what was sent is what the reader says it saw
    said = lake.statements()
    flights = [s for (topic, _), s in said.items() if topic == "flights"]
    assert sum(s.rows for s in flights) == 3
    assert sum(s.quarantined for s in flights) == 4
    assert sum(s.hash for s in flights) % 2**64 == sum(fingerprint(key, value) for key, value in sent) % 2**64


def flight(number, origin="JFK"):
    return {"number": number, "origin": origin, "at": 0}


def plane(op, tailnum, seats=1):
    row = {"tailnum": tailnum, "seats": seats}
    return tailnum.encode(), {"op": op, "before": None, "after": None if op == "d" else row}


@pytest.mark.spark
def test_the_books_of_a_batch_that_changes_no_row_are_kept(lake):
    """Delta leaves out a commit without files unless told otherwise, and the books in its metadata with it."""
    ensure_topic(lake.connection, "flights", 1)
    ensure_topic(lake.connection, "planes", 1)
    write_catalog(lake.connection, {"topic:flights": {"subject": "flights-value"}})
    lake.send("flights", [(b"a", flight(1))])
    lake.send("planes", [plane("c", "N1")], 3)
    lake.run()
    lake.wait_for("flights", [(1,)], "number")
    lake.wait_for("planes", [("N1",)], "tailnum")
    lake.send("flights", [(b"b", b"not avro")])
    lake.send("planes", [plane("c", "N2"), plane("d", "N2"), (b"N2", None)], 3)
    lake.wait(
        lambda: {topic: said.end for (topic, _), said in lake.statements().items()} == {"flights": 2, "planes": 4}
    )
    lake.lakehouse.stop()
    before = lake.statements()

    lake.run()
    commits = lake.lakehouse._commits.values()
    assert {said.topic: said for commit in commits for said in reports_of(commit, "lakehouse")} == {
        topic: statement for (topic, _), statement in before.items()
    }
    lake.send("flights", [(b"c", flight(3))])
    lake.wait_for("flights", [(1,), (3,)], "number")
    lake.lakehouse.stop()
    assert lake.statements()["flights", 0].quarantined == 1
    assert lake.rows("planes", "tailnum") == [("N1",)]


@pytest.mark.spark
def test_what_one_table_cannot_take_holds_up_that_table_only(lake):
    ensure_topic(lake.connection, "flights", 1)
    ensure_topic(lake.connection, "other", 1)
    lake.send("flights", [(b"a", flight(1))])
    lake.send("other", [(b"a", flight(1))])
    lake.run()
    lake.wait_for("other", [(1,)], "number")
    lake.wait_for("flights", [(1,)], "number")

    # the registry allows a wider number: the column becomes wider, and takes the narrower ones too
    lake.send("flights", [(b"b", flight(2**40))], 4)
    lake.wait_for("flights", [(1,), (2**40,)], "number")
    lake.send("flights", [(b"c", flight(3))], 1)
    lake.wait_for("flights", [(1,), (3,), (2**40,)], "number")

    # a number that becomes a text does not fit: this table waits, the other one goes on
    lake.send("flights", [(b"d", flight("four"))], 5)
    lake.wait(lambda: "flights" in lake.lakehouse.held)
    assert "column number: expected bigint, found string" in lake.lakehouse.held["flights"]
    sink, table = lake.lakehouse.states
    assert (sink.name, sink.state) == ("sink lakehouse", "running")
    assert (table.name, table.state) == ("sink lakehouse: table flights", "failed")
    assert (table.error, bool(table.hint)) == (lake.lakehouse.held["flights"], True)
    lake.send("other", [(b"b", flight(2))])
    lake.wait_for("other", [(1,), (2,)], "number")
    assert lake.rows("flights", "number") == [(1,), (2**40,), (3,)]

    # a topic that is deleted fails the query, which starts again without it
    query = lake.lakehouse.query
    delete(lake.connection, ["other"])
    ensure_topic(lake.connection, "third", 1)
    lake.send("third", [(b"a", flight(1))])
    lake.wait_for("third", [(1,)], "number")
    assert lake.lakehouse.query is not query

    # made anew under its name, it is another topic: its table is not continued with it
    ensure_topic(lake.connection, "other", 1)
    lake.send("other", [(b"a", flight(7)), (b"b", flight(8)), (b"c", flight(9))])
    lake.wait(lambda: "the table is of topic" in lake.lakehouse.held.get("other", ""))
    assert ("sink lakehouse: table other", "failed") in [(each.name, each.state) for each in lake.lakehouse.states]
    shutil.rmtree(lake.tables / "other")
    lake.wait_for("other", [(7,), (8,), (9,)], "number")
    lake.wait(lambda: ("sink lakehouse: table other", "running") in [(e.name, e.state) for e in lake.lakehouse.states])

    # bytes of a commit that are no UTF-8: they kept the whole sink, and its driver, from starting
    lake.lakehouse.stop()
    commit = max((lake.tables / "third" / "_delta_log").glob("*.json"))
    commit.write_bytes(commit.read_bytes().replace(b"mainstem", b"main\xff\xfetem"))
    lake.run()
    assert f"{commit}: expected a commit" in lake.lakehouse.held["third"]
    (third,) = [each for each in lake.lakehouse.states if each.name.endswith("third")]
    assert "filled anew" in third.hint
    lake.send("other", [(b"d", flight(10))])
    lake.wait_for("other", [(7,), (8,), (9,), (10,)], "number")


@pytest.mark.spark
def test_an_update_by_an_older_schema_has_no_value_of_a_newer_one(lake):
    """A column that the schemas of a batch lack kept its value, so that the table depended on how batches are cut."""
    ensure_topic(lake.connection, "planes", 1)

    def newer(tailnum, seats, engine):
        key, row = plane("u", tailnum, seats)
        row["after"]["engine"] = engine
        return key, row

    lake.send("planes", [newer("N1", 1, "x"), newer("N2", 1, "x"), newer("N3", 1, "x")], 6)
    lake.run()
    lake.wait_for("planes", [("N1", 1, "x"), ("N2", 1, "x"), ("N3", 1, "x")], "tailnum", "seats", "engine")
    for seats in (2, 3):  # the second in the shape that the table took last
        lake.send("planes", [plane("u", "N1", seats)], 3)
        rows = [("N1", seats, None), ("N2", 1, "x"), ("N3", 1, "x")]
        lake.wait_for("planes", rows, "tailnum", "seats", "engine")
    lake.send("planes", [plane("u", "N2", 4), (b"N3", None)], 3)
    lake.send("planes", [newer("N1", 4, "y")], 6)
    lake.wait_for("planes", [("N1", 4, "y"), ("N2", 4, None)], "tailnum", "seats", "engine")


@pytest.mark.spark
def test_files_are_few_however_many_commits_there_were(lake, monkeypatch):
    """A stream had a new small file for every batch, and a changelog kept every file that was ever rewritten."""
    monkeypatch.setattr(delta, "CARE", {"OPTIMIZE": 4, "VACUUM": 4})
    assert {zlib.crc32(topic) % 4 for topic in (b"flights.all", b"planes.eu")} == {0}  # both have their turn at the 4th
    for topic in ("flights.all", "planes.eu"):
        ensure_topic(lake.connection, topic, 1)
    lake.run()
    for number in range(1, 4):
        lake.send("flights.all", [(b"a", flight(number))])
        lake.send("planes.eu", [plane("u", "N1", number), plane("c", f"N{number + 1}")], 3)
        lake.wait_for("flights.all", [(n,) for n in range(1, number + 1)], "number")
        lake.wait_for(
            "planes.eu", [("N1", number), *((f"N{n + 1}", 1) for n in range(1, number + 1))], "tailnum", "seats"
        )
    assert len(lake.files("flights.all")) == 3
    for topic in ("flights.all", "planes.eu"):  # so that a test need not wait for a week
        retention = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
        lake.spark.sql(f"ALTER TABLE delta.`{lake.tables / topic}` SET TBLPROPERTIES ({retention})")
    lake.lakehouse.stop()
    lake.run()  # the commits are counted on

    lake.send("flights.all", [(b"a", flight(4))])
    lake.send("planes.eu", [plane("u", "N1", 4)], 3)
    lake.wait(lambda: {("lakehouse", "flights.all", 4), ("lakehouse", "planes.eu", 7)} <= lake.said())
    lake.lakehouse.stop()
    for topic in ("flights.all", "planes.eu"):
        assert lake.files(topic) == {file.name for file in (lake.tables / topic).glob("*.parquet")}
        assert len(lake.files(topic)) == 1
    before = lake.statements()

    # OPTIMIZE and VACUUM have committed since: the positions are still found, and nothing is read twice
    lake.run()
    assert {topic: commit.positions for topic, commit in lake.lakehouse._commits.items()} == {
        topic: {TopicPartition(topic, 0): before[topic, 0].end} for topic in ("flights.all", "planes.eu")
    }
    lake.send("flights.all", [(b"a", flight(5))])
    lake.send("planes.eu", [plane("d", "N1"), (b"N1", None)], 3)
    lake.wait_for("flights.all", [(n,) for n in range(1, 6)], "number")
    lake.wait_for("planes.eu", [(f"N{n}",) for n in range(2, 5)], "tailnum")
    lake.lakehouse.stop()
    lines = [line for line in audit(lake.connection, ["flights.all", "planes.eu"]) if line.tier == "reader"]
    assert [line.verdict for line in lines] == [Verdict.BALANCED] * 2


@pytest.mark.spark
def test_two_sinks_and_topics_of_nearly_one_name_do_not_meet(lake):
    """`order-items` and `order_items` shared a view, with all sinks, and swapped their rows; all sinks were one reader."""
    topics = ["order-items", "order_items"]
    for topic in topics:
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [plane("c", f"{topic} 0")], 3)
    lake.run()
    copy = lake.make("copy")
    copy.start()
    try:
        for turn in range(3):  # the first makes the tables, the others merge
            for topic in topics:
                lake.wait_for(topic, [(f"{topic} {n}",) for n in range(turn + 1)], "tailnum")
                lake.send(topic, [plane("c", f"{topic} {turn + 1}")], 3)
        for topic in topics:
            lake.wait_for(topic, [(f"{topic} {n}",) for n in range(4)], "tailnum")
        lake.wait(
            lambda: all((reader, topic, 4) in lake.said() for reader in ("lakehouse", "copy") for topic in topics)
        )
        assert (lake.lakehouse.held, copy.held) == ({}, {})
    finally:
        copy.stop()
    lake.lakehouse.stop()
    lake.tables = lake.directory / "copy" / "tables"
    for topic in topics:
        assert lake.rows(topic, "tailnum") == [(f"{topic} {n}",) for n in range(4)]
    sinks = entries(read_catalog(lake.connection), "sink")
    assert sinks.keys() >= {"lakehouse", "copy"}
    lines = [line for line in audit(lake.connection, topics) if line.tier == "reader"]
    assert {(line.partition.topic, line.name) for line in lines} == {
        (topic, reader) for topic in topics for reader in ("lakehouse", "copy")
    }
    assert {line.verdict for line in lines} == {Verdict.BALANCED}


@pytest.mark.spark
def test_a_table_that_misses_what_the_log_no_longer_has_is_held(lake):
    ensure_topic(lake.connection, "flights", 2)
    ensure_topic(lake.connection, "quiet", 1)
    lake.send("flights", [(None, flight(1)), (None, flight(2))])  # to partition 0
    writer = TransactionalWriter(lake.connection, "planner")
    writer.open()
    writer.begin()
    writer.send("quiet", 0, b"a", avro.encode(1, FLIGHT, flight(1)))
    writer.commit({})
    writer.close()
    lake.run()
    lake.wait_for("flights", [(1,), (2,)], "number")
    lake.wait_for("quiet", [(1,)], "number")
    lake.wait(lambda: ("lakehouse", "quiet", 2) in lake.said())
    lake.lakehouse.stop()

    # the lakehouse is down; what it had not read is removed, and of the quiet topic all that it had, the marker too
    lake.send("flights", [(None, flight(3)), (None, flight(4))])
    lake.send("flights", [(None, flight(5))])
    lake.delete_before("flights", 4)
    lake.delete_before("quiet", 2)
    lake.run()
    path = lake.tables / "flights"
    assert lake.lakehouse.held == {
        "flights": f"{path}: the table has flights-0 up to offset 2, and the log starts at offset 4: what lay between was "
        "removed before the table had it"
    }
    append(lake.connection, "quiet", [(b"b", avro.encode(1, FLIGHT, flight(2)))])
    lake.wait_for("quiet", [(1,), (2,)], "number")
    assert lake.rows("flights", "number") == [(1,), (2,)]
    (line,) = [line for line in audit(lake.connection, ["flights"]) if line.name == "lakehouse" and line.missing]
    assert (line.verdict, line.detail) == (Verdict.WRONG, "offsets 2 to 4 were deleted before it read them")

    # a person moves it away, and goes on with what there is
    path.rename(lake.directory / "moved")
    lake.wait_for("flights", [(5,)], "number")
    lake.wait(lambda: ("lakehouse", "flights", 5) in lake.said())
    assert [line for line in audit(lake.connection, ["flights"]) if line.verdict is Verdict.WRONG] == []
