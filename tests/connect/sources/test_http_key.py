import base64
import io
import json
import re
from datetime import UTC, timedelta, timezone

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.catalog import TopicEntry
from mainstem.connect.sources.http_topics import Encoder, NoSchema
from mainstem.connect.sources.postgres_types import decoder
from mainstem.registry import avro
from mainstem.registry.records import SchemaValue


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


DAY, UUID = logical("int", "date"), "6b1f9d0e-0000-4000-8000-000000000001"
MILLIS, MICROS, NANOS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
LOCAL, TIME = logical("long", "local-timestamp-micros"), logical("long", "time-micros")
DECIMAL = logical("bytes", "decimal", precision=9, scale=2)
FIXED = {"type": "fixed", "name": "F", "size": 2}
COLUMNS = {
    "text": "string", "long": "long", "flag": "boolean", "float": "float", "double": "double", "bytes": "bytes",
    "fixed": FIXED, "enum": {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "day": DAY, "millis": MILLIS,
    "micros": MICROS, "nanos": NANOS, "local": LOCAL, "time": TIME, "time_millis": logical("int", "time-millis"),
    "decimal": DECIMAL, "uuid": logical("string", "uuid"), "optional": ["null", DAY], "either": ["null", "string", "long"],
}  # fmt: skip


def encoder(columns, fields):
    kinds = [{"name": name, **(kind if "default" in kind else {"type": kind})} for name, kind in fields.items()]
    schema = json.dumps({"type": "record", "name": "R", "fields": kinds})
    return Encoder("things", TopicEntry(key=tuple(columns)), SchemaValue("things-value", 1, 7, schema)), schema


@pytest.mark.parametrize(
    ("kind", "written", "key"),
    [
        ("long", [5, 5.0], b"5"),
        ("double", [5, 5.0], b"5.0"),
        ("float", [0.1, 0.10000000149011612], b"0.10000000149011612"),
        (logical("string", "uuid"), [UUID, UUID.upper(), UUID.replace("-", "")], UUID.encode()),
        (DAY, ["2013-01-01", "20130101", 15706], b"2013-01-01"),
        (MILLIS, ["2013-01-01T05:00:00Z", 1_357_016_400_000], b"2013-01-01 05:00:00+00"),
        (MICROS, ["2013-01-01T05:00:00.50Z", "2013-01-01T00:00:00.5-05:00"], b"2013-01-01 05:00:00.5+00"),
        (MICROS, [-62_135_596_800_000_000], b"0001-01-01 00:00:00+00"),
        (NANOS, ["1970-01-01T00:00:01Z", 1_000_000_000], b"1000000000"),
        (LOCAL, ["2013-01-01T05:00:00", "2013-01-01 05:00"], b"2013-01-01 05:00:00"),
        (TIME, ["05:15", "05:15:00.000"], b"05:15:00"),
        (DECIMAL, [1.5, "1.50", "15e-1"], b"1.50"),
        (DECIMAL, [1000, "1e3"], b"1000.00"),
        ("bytes", ["/w=="], b"\\xff"),
        (["null", "string"], ["a", {"string": "a"}], b"a"),
        (["null", "string", "long"], ["a", {"string": "a"}], b"a"),
        ([DAY, "null"], ["2013-01-01", {"int": 15706}], b"2013-01-01"),
    ],
)
def test_one_value_has_one_key_however_it_is_written(kind, written, key):
    """The key was made of the JSON: one thing had rows under two keys, in two partitions."""
    alone, _ = encoder(["a"], {"a": kind})
    assert {alone.encode({"a": value}).key for value in written} == {key}


@pytest.mark.parametrize(
    ("kind", "default", "key"),
    [
        ("string", "x", b"x"),
        (DAY, 15706, b"2013-01-01"),
        (DECIMAL, "\u0096", b"-1.06"),
        ([DAY, "null"], 15706, b"2013-01-01"),
    ],
)
def test_a_column_that_is_left_out_has_its_default_as_key(kind, default, key):
    alone, _ = encoder(["a"], {"a": {"type": kind, "default": default}})
    assert alone.encode({}).key == key


@pytest.mark.parametrize("kind", [{"type": "array", "items": "int"}, ["null", {"type": "map", "values": "int"}]])
def test_a_column_without_a_text_is_refused_before_anything_is_written(kind):
    with pytest.raises(NoSchema, match=r"topic 'things': the key column 'a' is .* of int: a key is made of texts"):
        encoder(["a"], {"a": kind})


moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])).filter(
    lambda moment: 1 < moment.year < 9999
)
events = st.fixed_dictionaries(
    {
        "text": st.text(st.characters(codec="utf-8"), max_size=5), "long": st.integers(-(2**63), 2**63 - 1),
        "flag": st.booleans(), "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "bytes": st.binary(max_size=3).map(lambda data: base64.b64encode(data).decode()), "fixed": st.just("AAE="),
        "enum": st.sampled_from("AB"), "day": st.dates().map(str), "micros": moments.map(str),
        "millis": moments.map(lambda moment: str(moment.replace(microsecond=0))), "nanos": st.integers(0, 2**62),
        "local": moments.map(lambda moment: str(moment.replace(tzinfo=None))), "time": st.times().map(str),
        "time_millis": st.integers(0, 86_399_999),
        "decimal": st.decimals(-9_999_999, 9_999_999, places=2).map(str), "uuid": st.uuids().map(str),
        "optional": st.dates().map(str), "either": st.integers(0, 9) | st.text(max_size=2),
    }
)  # fmt: skip


ENCODERS = {columns: encoder(columns, COLUMNS) for columns in (tuple(COLUMNS), *((name,) for name in COLUMNS))}


@given(events)
def test_the_key_is_that_of_the_row_as_readers_have_it(event):
    for columns, (things, schema) in ENCODERS.items():
        encoded = things.encode(event)
        row = avro.decode(encoded.value, lambda _, text=schema: text)
        assert encoded.key == avro.key_text(row, columns)


@given(events)
def test_the_key_is_the_text_that_postgresql_writes(event):
    names = ("text", "long", "bytes", "day", "micros", "local", "time", "decimal", "uuid")
    things, schema = ENCODERS[tuple(COLUMNS)]
    plain = avro.compiled(schema.replace("logicalType", "doc"))
    stored = fastavro.schemaless_reader(io.BytesIO(things.encode(event).value[5:]), plain, None)
    for name in names:
        # A replica's text has six digits or none in its fraction:
        # the server takes both, and writes no zeros at the end.
        text = re.sub(r"(:\d\d\.\d+?)0+(\+00)?$", r"\1\2", decoder(COLUMNS[name])(stored[name]))
        assert ENCODERS[name,][0].encode(event).key.decode() == text
