"""Small batches committed without Spark: what they make of records, and what they leave to Spark."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from mainstem.connect.sinks.delta_small import Columns, NotPlain, commit_small, typed_small
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
NUMBER = record(("number", "int"))
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
        ([(b"k", number(1))], {1: NUMBER, 2: record(("_key", "int"))}, False),
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
