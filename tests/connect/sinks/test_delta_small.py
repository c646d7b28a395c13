"""Small batches committed without Spark: what they make of records, and what they leave to Spark."""

import json

import deltalake
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from mainstem.client.catalog import write_catalog
from mainstem.client.topics import ensure_topic
from mainstem.connect.sinks import delta_small
from mainstem.connect.sinks.delta_log import TableCommit
from mainstem.connect.sinks.delta_small import Columns, NotPlain, commit_small, typed_small
from mainstem.registry import avro
from tests.support.lakehouse import ALL, AT, KINDS, plane, record

NUMBER = record(("number", "int"))
TWO_IDS = json.loads(record(("id", "int"), ("ID", "int"), name="TwoIds"))
CHANGE = record(
    ("op", "string"), ("after", ["null", json.loads(record(("seats", "int"), name="Row"))]), mainstem="change"
)


def records(*rows):
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


def test_a_row_has_the_values_of_every_plain_type():
    row = {name: value for name, (_, value) in KINDS.items()}
    rows = typed_small(records((b"k", avro.encode(1, ALL, row)), (None, None)), {1: Columns(ALL)}, merged=False)
    first, second = rows.to_pylist()
    assert first == row | {"_key": "k", "_partition": 0, "_offset": 0, "_timestamp": AT}
    assert set(second.values()) == {None, 0, 1, AT}  # a null value of a stream is a row of nulls


def test_of_a_changelog_the_last_record_of_each_key_counts():
    sent = [(b"a", change("c", 1)), (b"b", change("c", 2)), (b"a", change("d")), (b"b", change("u", 3)), (b"c", None)]
    rows = typed_small(records(*sent), {1: Columns(CHANGE)}, merged=True)
    found = [(row["_key"], row["seats"], row["_deleted"]) for row in rows.to_pylist()]
    assert found == [("a", None, True), ("b", 3, False), ("c", None, True)]


@pytest.mark.parametrize(
    "schema",
    [
        record(("x", {"type": "map", "values": "int"})),
        record(("x", ["null", "int", "string"])),
        record(("x", {"type": "string", "logicalType": "uuid"})),
        record(("x", {"type": "int", "logicalType": "time-millis"})),
        record(("x", "null")),
        '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
        '"string"',
        record(("op", "string"), mainstem="change"),
        record(("after", ["null", json.loads(NUMBER)]), name="C", mainstem="change"),
    ],
)
def test_what_avro_and_delta_call_differently_is_left_to_spark(schema):
    with pytest.raises(NotPlain):
        Columns(schema)


@pytest.mark.parametrize(
    ("rows", "columns", "merged"),
    [
        ([(b"k", b"\0\0\0\0\1")], {1: NUMBER}, False),  # cut short
        ([(b"k", number(1, 2))], {1: NUMBER}, False),
        ([(b"k", b"text")], {1: NUMBER}, False),
        ([(b"\xff", number(1))], {1: NUMBER}, False),
        ([(None, number(1))], {1: NUMBER}, True),
        ([(b"k", change("t"))], {1: CHANGE}, True),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("number", "long"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("Number", "int"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("_Key", "int"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("of", TWO_IDS))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("of", {"type": "array", "items": TWO_IDS}))}, False),
    ],
)
def test_what_is_not_plain_is_left_to_spark(rows, columns, merged):
    with pytest.raises(NotPlain):
        typed_small(records(*rows), {number: Columns(schema) for number, schema in columns.items()}, merged=merged)


def test_a_stream_is_appended_with_our_metadata(tmp_path):
    for n in range(2):
        rows = typed_small(records((b"k", number(n))), {1: Columns(NUMBER)}, merged=False)
        commit_small(tmp_path / "t", rows, f"commit {n}", merged=False)
    table = DeltaTable(str(tmp_path / "t"))
    assert sorted(table.to_pyarrow_table()["number"].to_pylist()) == [0, 1]
    assert [each["userMetadata"] for each in table.history()] == ["commit 1", "commit 0"]
    wider = typed_small(
        records((b"k", avro.encode(1, ALL, {n: v for n, (_, v) in KINDS.items()}))), {1: Columns(ALL)}, merged=False
    )
    with pytest.raises(NotPlain, match="other columns"):
        commit_small(tmp_path / "t", wider, "commit 2", merged=False)
    assert DeltaTable(str(tmp_path / "t")).version() == 1


def test_a_changelog_is_merged_by_its_key(tmp_path):
    def send(*sent):
        rows = typed_small(records(*sent), {1: Columns(CHANGE)}, merged=True)
        commit_small(tmp_path / "t", rows, "m", merged=True)

    send((b"a", change("c", 1)), (b"b", change("c", 2)), (b"gone", change("d")))
    send((b"a", change("u", 3)), (b"b", change("d")), (b"c", change("c", 4)), (b"never", change("d")))
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table(columns=["_key", "seats"])
    assert sorted(map(tuple, (row.values() for row in table.to_pylist()))) == [("a", 3), ("c", 4)]
    with pytest.raises(NotPlain):  # Spark records that too: the position moves
        send((b"never", change("d")))
    with pytest.raises(NotPlain, match="without rows"):
        commit_small(
            tmp_path / "u",
            typed_small(records((b"a", change("d"))), {1: Columns(CHANGE)}, merged=True),
            "m",
            merged=True,
        )


def test_a_large_table_is_merged_by_spark(tmp_path, monkeypatch):
    """delta-rs holds all of it in memory."""
    monkeypatch.setattr(delta_small, "MERGED_BYTES", 1000)
    rows = typed_small(records((b"a", change("c", 1))), {1: Columns(CHANGE)}, merged=True)
    commit_small(tmp_path / "t", rows, "m", merged=True)
    with pytest.raises(NotPlain, match="large"):
        commit_small(tmp_path / "t", rows, "m", merged=True)


def test_what_fails_after_the_commit_is_not_written_again(tmp_path, monkeypatch):
    """Whatever it is: delta-rs raises plain exceptions too."""
    rows = typed_small(records((b"k", number(1))), {1: Columns(NUMBER)}, merged=False)
    first, second = (msgspec.json.encode(TableCommit("t", {}, number=n)).decode() for n in (1, 2))
    write = deltalake.write_deltalake

    def write_and_fail(*args, **options):
        write(*args, **options)
        raise Exception("External error")  # noqa: TRY002  as delta-rs does

    monkeypatch.setattr(deltalake, "write_deltalake", write_and_fail)
    commit_small(tmp_path / "t", rows, first, merged=False)
    assert DeltaTable(str(tmp_path / "t")).version() == 0

    def fail(*args, **options):
        raise Exception("External error")  # noqa: TRY002  as delta-rs does

    monkeypatch.setattr(deltalake, "write_deltalake", fail)
    with pytest.raises(NotPlain, match="External error"):
        commit_small(tmp_path / "t", rows, second, merged=False)


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
    monkeypatch.setattr(delta_small, "COLLECTED_RECORDS", 0)
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
