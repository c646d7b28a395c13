"""What only Spark writes, and what it does beside writing."""

import json
import zlib
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField, StructType

from mainstem.audit.books import Verdict
from mainstem.audit.report import audit
from mainstem.client.topics import ensure_topic
from mainstem.connect.sinks import delta_small, delta_spark
from mainstem.connect.sinks.delta_spark import TableHeld, common_columns, compile_settings
from mainstem.core import TopicPartition
from tests.support.lakehouse import HIGH, PLANE, flight, plane, record, register


def test_plans_are_compiled_for_large_batches_only():
    assert compile_settings(50_000)["spark.sql.codegen.wholeStage"] == "false"
    assert compile_settings(50_001) == {
        "spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"
    }  # fmt: skip


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


def decimal(precision, scale):
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def place(kind, **more):
    fields = [{"name": "x", "type": kind}, *({"name": name, "type": of} for name, of in more.items())]
    return record(("id", "int"), ("value", {"type": "record", "name": "Place", "fields": fields}))


def numbers(kind):
    return record(("id", "int"), ("value", {"type": "array", "items": kind}))


def test_a_column_that_is_there_twice_is_named():
    """Of a field with the name of one of ours; Spark said that a reference is ambiguous."""
    part = SimpleNamespace(schema=StructType([StructField(name, StringType()) for name in ("_Key", "id", "_key")]))
    with pytest.raises(TableHeld, match=r"^t: column _key: expected one of that name, found 2$"):
        common_columns(Path("t"), None, [part])


@pytest.mark.spark
def test_a_value_that_claims_gigabytes_does_not_decode(lake):
    """Java made room for them: out of memory, the JVM ended, and so at every start."""
    lists = record(("numbers", {"type": "array", "items": "long"}))
    register(lake.connection, {20: lists})
    count = bytes.fromhex("80d0acf30e")  # two thousand millions
    origin, numbers = b"\0\0\0\0\x01\x02\x02" + count, b"\0\0\0\0\x14" + count
    for topic, value in {"flights": origin, "lists": numbers}.items():
        ensure_topic(lake.connection, topic, 1)
        lake.send(topic, [(b"a", value)])
    lake.send("flights", [(b"b", flight(1))])
    lake.run()
    lake.wait_for("_quarantine", [("flights", origin), ("lists", numbers)], "topic", "value")
    lake.wait_for("flights", [(1,)], "number")


@pytest.mark.spark
def test_a_time_of_day_is_its_number(lake):
    """As of a column `time` of PostgreSQL: Spark refused its own type for it, and there never was a table."""
    lake.schemas[20] = record(("opens", {"type": "long", "logicalType": "time-micros"}))
    register(lake.connection, lake.schemas)
    ensure_topic(lake.connection, "shops", 1)
    lake.send("shops", [(b"a", {"opens": time(5)})], 20)
    lake.run()
    lake.wait(lambda: ("lakehouse", "shops", 1) in lake.said() or bool(lake.lakehouse.held))
    assert lake.lakehouse.held == {}
    assert lake.rows("shops", "opens") == [(5 * 3_600_000_000,)]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "good", "damaged"),
    [(decimal(4, 2), Decimal("1.25"), b"\0"), (["null", "string"], "x", b"\3")],
    ids=["a decimal of no bytes", "branch -2 of a union"],
)
def test_no_record_is_lost_where_a_small_table_is_left_to_spark(lake, kind, good, damaged):
    """Python read 0 and null, and Java nothing: it was counted as a row, and no table had it."""
    kinds = {20: record(("price", kind)), 21: record(("price", kind), ("name", "string"))}
    lake.schemas |= kinds
    register(lake.connection, kinds)
    ensure_topic(lake.connection, "prices", 1)
    lake.send("prices", [(b"a", {"price": good})], 20)
    lake.run()
    lake.wait(lambda: ("lakehouse", "prices", 1) in lake.said())
    lake.send("prices", [(b"b", b"\0\0\0\0\x15" + damaged + b"\2n")])  # its schema has a column more
    lake.wait(lambda: ("lakehouse", "prices", 2) in lake.said())
    lake.lakehouse.stop()
    assert lake.rows("prices", "price") == [(good,)]
    assert (lake.statements()["prices", 0].rows, lake.statements()["prices", 0].quarantined) == (1, 1)


@pytest.mark.spark
@pytest.mark.parametrize("limit", ["COLLECTED_BYTES", "DECODED_RECORDS"])
def test_null_values_alone_bring_no_column(lake, monkeypatch, limit):
    """Where the catalog names no subject they were taken for bytes: the table was held for a field of that name, or
    had a column of nulls more.
    """
    monkeypatch.setattr(delta_small, limit, 0)  # written by Spark, or only decoded by it
    schemas = {20: record(("value", "int")), 21: record(("number", "int"))}
    lake.schemas |= schemas
    register(lake.connection, schemas)
    for topic in ("values", "numbers"):
        ensure_topic(lake.connection, topic, 1)
    lake.send("values", [(b"a", {"value": 1})], 20)
    lake.send("numbers", [(b"a", {"number": 1})], 21)
    lake.run()
    lake.wait(lambda: {("lakehouse", "values", 1), ("lakehouse", "numbers", 1)} <= lake.said())
    for topic in ("values", "numbers"):
        lake.send(topic, [(b"b", None)])
    lake.wait(
        lambda: {("lakehouse", "values", 2), ("lakehouse", "numbers", 2)} <= lake.said() or bool(lake.lakehouse.held)
    )
    assert lake.lakehouse.held == {}
    assert lake.rows("values", "value") == [(1,), (None,)]
    assert "value" not in DeltaTable(str(lake.tables / "numbers")).to_pyarrow_table().column_names


@pytest.mark.spark
def test_bytes_that_seem_to_name_a_schema_take_no_others_with_them(lake):
    """All that was in one batch with them was set aside, although the topic has no schema."""
    ensure_topic(lake.connection, "texts", 1)
    lake.send("texts", [(b"a", b"one"), (b"b", HIGH), (b"c", b"two")])
    lake.run()
    lake.wait(lambda: ("lakehouse", "texts", 3) in lake.said())
    lake.lakehouse.stop()
    assert lake.rows("texts", "value") == [(b"one",), (b"two",)]
    assert lake.rows("_quarantine", "value") == [(HIGH,)]
    assert (lake.statements()["texts", 0].rows, lake.statements()["texts", 0].quarantined) == (2, 1)


@pytest.mark.spark
def test_a_table_gets_a_column_of_local_times(lake):
    """As of a column `timestamp` that a table of PostgreSQL gets. Delta refused it to any table that had none: held."""
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    row = ("after", ["null", json.loads(record(("id", "int"), name="Row"))])
    more = ("after", ["null", json.loads(record(("id", "int"), ("at", ["null", local]), name="Row"))])
    nested = ("of", json.loads(record(("x", {"type": "array", "items": local}), name="Of")))
    schemas = {20: record(("id", "int")), 21: record(("id", "int"), nested)}
    schemas |= {n: record(("op", "string"), of, mainstem="change") for n, of in ((30, row), (31, more))}
    lake.schemas |= schemas
    register(lake.connection, schemas)
    for topic in ("stream", "changes"):
        ensure_topic(lake.connection, topic, 1)
    lake.send("stream", [(b"1", {"id": 1})], 20)
    lake.send("changes", [(b"1", {"op": "c", "after": {"id": 1}})], 30)
    lake.run()
    lake.wait(lambda: {("lakehouse", "stream", 1), ("lakehouse", "changes", 1)} <= lake.said())
    at = datetime(9999, 12, 31)
    for n in (2, 3):
        lake.send("stream", [(b"%d" % n, {"id": n, "of": {"x": [at]}})], 21)
        lake.send("changes", [(b"%d" % n, {"op": "c", "after": {"id": n, "at": at}})], 31)
        lake.wait(
            lambda n=n: (
                {("lakehouse", "stream", n), ("lakehouse", "changes", n)} <= lake.said() or bool(lake.lakehouse.held)
            )
        )
        assert lake.lakehouse.held == {}
    assert lake.rows("stream", "id", "of") == [(1, None), (2, {"x": [at]}), (3, {"x": [at]})]
    assert lake.rows("changes", "id", "at") == [(1, None), (2, at), (3, at)]


@pytest.mark.spark
def test_times_of_any_year_are_read_by_others(lake, monkeypatch):
    """Spark's own default is a type that others read as nanoseconds of 64 bits, of the years 1677 to 2262."""
    monkeypatch.setattr(delta_small, "COLLECTED_BYTES", 0)  # written by Spark
    ensure_topic(lake.connection, "flights", 1)
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    lake.send("flights", [(b"a", flight(1) | {"at": at}) for at in times])
    lake.run()
    lake.wait_for("flights", [(at,) for at in times], "at")


@pytest.mark.spark
def test_tables_may_lie_in_a_directory_of_any_name(lake):
    """Where it is taken for an address (`[...]`) or for a quote, delta-rs or SQL failed, for all tables."""
    lake.directory = lake.directory / "a[b`c]"
    lake.tables = lake.directory / "tables"
    ensure_topic(lake.connection, "planes", 1)
    lake.send("planes", [plane("c", "N1"), (b"N0", b"not avro")], 3)
    lake.run()
    lake.wait(lambda: lake.said() == {("lakehouse", "planes", 2)})
    lake.send("planes", [plane("u", "N1", 5)], 3)
    lake.wait(lambda: lake.said() == {("lakehouse", "planes", 3)})
    rows = lake.spark.read.format("delta").load(str(lake.tables / "planes")).collect()
    assert [(row["tailnum"], row["seats"]) for row in rows] == [("N1", 5)]


def priced(kind):
    return PLANE.replace('["null", "int"]', json.dumps(["null", kind]))


@pytest.mark.spark
def test_what_is_within_a_value_is_never_rounded_nor_are_decimals(lake):
    """A value that did not fit was: the types were compared by their names only, and Spark's insert casts."""
    kinds = {"places": (place, "int", "double", "string"), "lists": (numbers, "int", "double", "string"),
             "planes": (priced, decimal(10, 2), decimal(12, 3), decimal(12, 5))}  # fmt: skip
    schemas = {
        10 * n + turn: make(kind) for n, (make, *all_) in enumerate(kinds.values(), 1) for turn, kind in enumerate(all_)
    }
    lake.schemas |= schemas
    register(lake.connection, schemas)

    def send(turn, place, numbers, price):
        key = b"%d" % turn
        lake.send("places", [(key, {"id": turn, "value": {"x": place}})], 10 + turn % 3)
        lake.send("lists", [(key, {"id": turn, "value": numbers})], 20 + turn % 3)
        lake.send("planes", [plane("c", f"N{turn}", price)], 30 + turn % 3)

    for topic in kinds:
        ensure_topic(lake.connection, topic, 1)
    send(0, 5, [5], Decimal("1.25"))
    lake.run()
    lake.wait(lambda: len(lake.said()) == 3)
    send(1, 1.5, [1.5, 2.5], Decimal("123456789.346"))
    lake.wait(lambda: {(name, topic, 2) for name in ["lakehouse"] for topic in kinds} <= lake.said())
    send(3, 7, [7], Decimal("2.50"))  # the older schema again
    places, lists = [(0, (5.0,)), (1, (1.5,)), (3, (7.0,))], [(0, [5.0]), (1, [1.5, 2.5]), (3, [7.0])]
    lake.wait_for("places", places, "id", "value")
    lake.wait_for("lists", lists, "id", "value")
    prices = [("N0", Decimal("1.250")), ("N1", Decimal("123456789.346")), ("N3", Decimal("2.500"))]
    lake.wait_for("planes", prices, "tailnum", "seats")
    assert lake.lakehouse.held == {}

    send(2, "far", ["far"], Decimal("2.34567"))
    lake.wait(lambda: lake.lakehouse.held.keys() == kinds.keys())
    assert "column seats: expected decimal(12,3), found decimal(12,5)" in lake.lakehouse.held["planes"]
    assert {state.state for state in lake.lakehouse.states[1:] if state.hint.startswith("remove")} == {"failed"}
    assert lake.rows("places", "id", "value") == places


@pytest.mark.spark
def test_a_batch_with_two_schemas_makes_the_table_that_two_batches_make(lake):
    """Spark's union of their rows went before any look at the types, and rounded: a long with a double is a double."""
    large = 2**53 + 1
    points = {"type": "array", "items": ["null", json.loads(place("int"))["fields"][1]["type"]]}
    more_points = {"type": "array", "items": json.loads(place("double", y="int"))["fields"][1]["type"]}

    def of(kind):
        return record(("id", "int"), ("value", kind))

    sent = {  # the schemas of a topic, each with the value of its record
        "longs": [(of("long"), large), (of("double"), 0.5)],
        "places": [(place("long"), {"x": large}), (place("double"), {"x": 0.5})],
        "prices": [
            (of(decimal(38, 10)), Decimal("1.0123456789")),
            (of(decimal(38, 2)), Decimal("123456789012345678901234567890123456.78")),
        ],
        "numbers": [(of("int"), 1), (of("long"), large)],
        "lists": [(of(points), [{"x": 1}, None]), (of(more_points), [{"x": 1.5, "y": 3}])],
        "maps": [(of({"type": "map", "values": kind}), {"k": value}) for kind, value in (("int", 1), ("double", 0.5))],
        "measures": [(of("double"), 0.5)],
    }
    later = [(of("int"), 2**24 + 1), (of("float"), 0.25)]  # both are doubles, and neither is the other
    ids = {text: n for n, (text, _) in enumerate([each for all_ in [*sent.values(), later] for each in all_], 10)}
    lake.schemas |= {schema_id: text for text, schema_id in ids.items()}
    register(lake.connection, {schema_id: text for text, schema_id in ids.items()})

    def send(topic, records, first=0):
        for n, (text, value) in enumerate(records, first):
            lake.send(topic, [(b"%d" % n, {"id": n, "value": value})], ids[text])

    for topic, records in sent.items():
        ensure_topic(lake.connection, topic, 1)
        send(topic, records)
    lake.run()
    lake.wait(
        lambda: (
            {("lakehouse", topic) for topic in ("numbers", "lists", "maps", "measures")} <= {e[:2] for e in lake.said()}
        )
    )
    send("measures", later, 1)
    lake.wait_for("measures", [(0, 0.5), (1, 2.0**24 + 1), (2, 0.25)], "id", "value")
    assert lake.rows("numbers", "id", "value") == [(0, 1), (1, large)]
    lists = [(0, [{"x": 1.0, "y": None}, None]), (1, [{"x": 1.5, "y": 3}])]
    assert lake.rows("lists", "id", "value") == lists
    assert lake.rows("maps", "id", "value") == [(0, [("k", 1.0)]), (1, [("k", 0.5)])]
    lake.wait(lambda: lake.lakehouse.held.keys() == {"longs", "places", "prices"})
    assert {topic: reason.partition("column value: ")[2] for topic, reason in lake.lakehouse.held.items()} == {
        "longs": "expected bigint, found double",
        "places": "expected struct<x:bigint>, found struct<x:double>",
        "prices": "expected decimal(38,10), found decimal(38,2)",
    }
    assert {state.state for state in lake.lakehouse.states[1:] if "one of these types" in state.hint} == {"failed"}
    assert not any((lake.tables / topic).exists() for topic in lake.lakehouse.held)


@pytest.mark.spark
def test_a_field_within_a_value_comes_and_goes_with_its_schema(lake):
    """Also in the rows of a changelog: what an older schema lacks is null."""
    row = json.loads(place("int"))
    schemas = {}
    for schema_id, make in ((10, place("int")), (11, place("int", y="int")), (12, place("long", y=["null", "string"]))):
        row = json.loads(make) | {"name": "Row"}
        schemas[schema_id] = record(("op", "string"), ("after", ["null", row]), mainstem="change")
    lake.schemas |= schemas
    register(lake.connection, schemas)
    ensure_topic(lake.connection, "places", 1)
    lake.run()

    def send(schema_id, *rows):
        lake.send(
            "places", [(b"%d" % id_, {"op": "u", "after": {"id": id_, "value": v}}) for id_, v in rows], schema_id
        )

    send(10, (0, {"x": 1}))
    lake.wait(lambda: ("lakehouse", "places", 1) in lake.said())
    send(11, (1, {"x": 1, "y": 2}), (2, {"x": 1, "y": 2}))
    lake.wait_for("places", [(0, {"x": 1, "y": None}), (1, {"x": 1, "y": 2}), (2, {"x": 1, "y": 2})], "id", "value")
    send(10, (1, {"x": 3}))
    lake.wait_for("places", [(0, {"x": 1, "y": None}), (1, {"x": 3, "y": None}), (2, {"x": 1, "y": 2})], "id", "value")
    send(12, (2, {"x": 1, "y": "text"}))
    lake.wait(lambda: "found struct<x:bigint,y:string>" in lake.lakehouse.held.get("places", ""))


@pytest.mark.spark
def test_files_are_few_however_many_commits_there_were(lake, monkeypatch):
    """A stream had a new small file for every batch, and a changelog kept every file that was ever rewritten."""
    monkeypatch.setattr(delta_spark, "CARE", {"OPTIMIZE": 4, "VACUUM": 4})
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
    assert {topic: commit.positions for topic, commit in lake.lakehouse._positions.commits.items()} == {
        topic: {TopicPartition(topic, 0): before[topic, 0].end} for topic in ("flights.all", "planes.eu")
    }
    lake.send("flights.all", [(b"a", flight(5))])
    lake.send("planes.eu", [plane("d", "N1"), (b"N1", None)], 3)
    lake.wait_for("flights.all", [(n,) for n in range(1, 6)], "number")
    lake.wait_for("planes.eu", [(f"N{n}",) for n in range(2, 5)], "tailnum")
    lake.lakehouse.stop()
    lines = [line for line in audit(lake.connection, ["flights.all", "planes.eu"]) if line.tier == "reader"]
    assert [line.verdict for line in lines] == [Verdict.BALANCED] * 2
