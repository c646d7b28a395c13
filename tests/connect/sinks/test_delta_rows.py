"""What records become as rows of a table, and what is left to Spark."""

import json

import pyarrow as pa
import pytest

from mainstem.connect.sinks.delta_rows import Columns, NotPlain, fitted, place_fields, typed_small
from mainstem.registry import avro
from tests.support.lakehouse import ALL, AT, CHANGE, KINDS, NUMBER, change, collected, number, record

TWO_IDS = json.loads(record(("id", "int"), ("ID", "int"), name="TwoIds"))


def listed(kind):
    row = json.loads(record(("x", kind), name="Of"))
    return record(("of", {"type": "array", "items": row}))


def test_a_row_has_the_values_of_every_plain_type():
    row = {name: value for name, (_, value) in KINDS.items()}
    rows = typed_small(collected((b"k", avro.encode(1, ALL, row)), (None, None)), {1: Columns(ALL)}, merged=False)
    first, second = rows.to_pylist()
    assert first == row | {"_key": "k", "_partition": 0, "_offset": 0, "_timestamp": AT}
    assert set(second.values()) == {None, 0, 1, AT}  # a null value of a stream is a row of nulls


def test_values_without_a_schema_stay_as_they_are():
    rows = typed_small(collected((b"k", b"{}"), (b"k", b""), (None, None)), {-1: Columns(None)}, merged=False)
    assert [row["value"] for row in rows.to_pylist()] == [b"{}", b"", None]


def test_a_time_that_python_has_none_of_is_kept():
    """A record's time is its producer's: microseconds for milliseconds are of the year 55840: all tables stopped."""
    at = pa.array([1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    records = collected((b"k", number(1))).drop_columns("timestamp").append_column("timestamp", at)
    for merged in (False, True):
        rows = typed_small(records, {1: Columns(NUMBER)}, merged=merged)
        assert rows["_timestamp"].combine_chunks() == at


def test_of_a_changelog_the_last_record_of_each_key_counts():
    sent = [(b"a", change("c", 1)), (b"b", change("c", 2)), (b"a", change("d")), (b"b", change("u", 3)), (b"c", None)]
    rows = typed_small(collected(*sent), {1: Columns(CHANGE)}, merged=True)
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
        ([(b"k", number(1))], {1: NUMBER, 2: record(("number", "double"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: listed("long"), 3: listed("double")}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("Number", "int"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("_Key", "int"))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("of", TWO_IDS))}, False),
        ([(b"k", number(1))], {1: NUMBER, 2: record(("of", {"type": "array", "items": TWO_IDS}))}, False),
    ],
)
def test_what_is_not_plain_is_left_to_spark(rows, columns, merged):
    with pytest.raises(NotPlain):
        typed_small(collected(*rows), {number: Columns(schema) for number, schema in columns.items()}, merged=merged)


def decoded(*rows):
    """Rows (key, seats, op, deleted) as Spark gives them."""
    kinds = [
        pa.field("seats", pa.int32()),
        *place_fields(),
        pa.field("_op", pa.string()),
        pa.field("_deleted", pa.bool_()),
    ]
    values = [[seats, key, 0, offset, AT, op, gone] for offset, (key, seats, op, gone) in enumerate(rows)]
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=pa.schema(kinds))


def test_of_what_spark_decoded_the_last_row_of_each_key_counts():
    sent = [
        ("a", 1, "c", False),
        ("b", 2, "c", False),
        ("a", None, "d", True),
        ("b", 3, "u", False),
        ("c", None, None, True),
    ]
    for given in (decoded(*sent), decoded(*sent).take([4, 3, 2, 1, 0])):
        rows = fitted(given, {1: Columns(CHANGE)}, 5, merged=True)
        found = {(row["_key"], row["seats"], row["_deleted"]) for row in rows.to_pylist()}
        assert found == {("a", None, True), ("b", 3, False), ("c", None, True)}
        by_us = typed_small(collected((b"a", change("c", 1))), {1: Columns(CHANGE)}, merged=True)
        assert rows.schema == by_us.schema
    assert fitted(decoded(*sent), {1: Columns(CHANGE)}, 5, merged=False).num_rows == 5


@pytest.mark.parametrize(
    ("rows", "records", "why"),
    [
        ([("a", 1, "c", False)], 2, "decode"),
        ([("a", 1, "c", False), ("t", None, "t", False)], 2, "truncation"),
        ([(None, 1, "c", False)], 1, "key"),
    ],
)
def test_what_spark_decoded_and_is_not_plain_is_left_to_it(rows, records, why):
    with pytest.raises(NotPlain, match=why):
        fitted(decoded(*rows), {1: Columns(CHANGE)}, records, merged=True)


def test_a_text_that_is_none_is_left_to_spark():
    given = decoded(("a", 1, "c", False))
    wrong = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(NotPlain, match="UTF8"):
        fitted(given.set_column(1, given.field("_key"), wrong), {1: Columns(CHANGE)}, 1, merged=False)
