"""Spark and Python agree on every byte of keys and values, both ways."""

import json
import re
from datetime import UTC, date, datetime, time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from mainstem.client.catalog import TopicEntry
from mainstem.connect.sources.http_topics import Encoder
from mainstem.registry import avro
from mainstem.registry.errors import NotFound
from mainstem.registry.records import SchemaValue
from mainstem.registry.schema import canonical, parse
from mainstem.registry.spark import (
    LATER_ID,
    UNKNOWN_ID,
    TopicSchema,
    UnfitType,
    avro_schema,
    decode_values,
    encode_values,
    if_within,
    key_bytes,
    later_id,
    row_type,
    topic_schema,
    unknown_id,
    with_id,
    with_sentinel,
)
from tests.support.properties import examples

pytestmark = pytest.mark.spark

V1 = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tail", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)
V2 = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "gate", "type": "string", "default": "none"},
            {"name": "tail", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
)
AT = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


def kafka_rows(spark, values):
    return spark.createDataFrame([(bytearray(v) if v is not None else None,) for v in values], "value binary")


def test_rows_of_two_writers_come_in_the_readers_shape_and_bad_ones_are_told(spark):
    schema = TopicSchema("flights", V2, 8, {7: V1, 8: V2})
    values = [
        avro.encode(7, V1, {"id": 1, "tail": "N1", "at": AT}),
        avro.encode(8, V2, {"id": 2, "tail": None, "gate": "B2", "at": AT}),
        None,
        b"",
        b"\1" + avro.encode(7, V1, {"id": 1, "tail": "N1", "at": AT})[1:],
        avro.encode(7, V1, {"id": 1, "tail": "N1", "at": AT})[:9],
        b"\0\0\0\0\7",
    ]
    rows = decode_values(kafka_rows(spark, values), schema).select("_status", "_row").collect()

    assert [row._status for row in rows] == ["row", "row", "tombstone", "bad", "bad", "bad", "bad"]
    assert rows[0]._row.asDict() == {"id": 1, "gate": "none", "tail": "N1", "at": AT.replace(tzinfo=None)}
    assert rows[1]._row.asDict() == {"id": 2, "gate": "B2", "tail": None, "at": AT.replace(tzinfo=None)}
    assert [row._row for row in rows[2:]] == [None] * 5


def test_a_row_of_nulls_is_a_row(spark):
    schema = '{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"]}]}'
    rows = decode_values(
        kafka_rows(spark, [avro.encode(1, schema, {"a": None})]), TopicSchema("t", schema, 1, {1: schema})
    )
    assert [(row._status, row._row.a) for row in rows.select("_status", "_row").collect()] == [("row", None)]


TIMES = json.dumps(
    {
        "type": "record",
        "name": "Times",
        "fields": [
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "days", "type": {"type": "array", "items": ["null", {"type": "int", "logicalType": "date"}]}},
            {
                "name": "inner",
                "type": {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {
                            "name": "at",
                            "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}},
                        }
                    ],
                },
            },
        ],
    }
)
PLAIN = re.sub(r'\{"type": "(int|long)", "logicalType": [^}]*\}', r'"\1"', TIMES)
LAST = 253_402_300_799_999_999
GOOD = {"at": LAST, "local": -62_135_596_800_000_000, "days": [2_932_896, None], "inner": {"at": {"a": 0}}}
FAR = [
    {"at": 2**63 - 1},
    {"at": LAST + 1},
    {"local": -62_135_596_800_000_001},
    {"days": [0, 2_932_897]},
    {"inner": {"at": {"a": 0, "b": LAST // 1000 + 1}}},
]


def test_a_record_of_a_time_that_no_reader_can_hold_is_bad(spark):
    schema = TopicSchema("t", TIMES, 1, {1: TIMES})
    values = [avro.encode(1, PLAIN, GOOD | more) for more in ({}, {"at": None}, *FAR)]
    rows = kafka_rows(spark, values)
    found = decode_values(rows, schema).select("_status", "_row").collect()
    assert [row._status for row in found] == ["row", "row"] + ["bad"] * len(FAR)
    assert [row._row is None for row in found] == [row._status == "bad" for row in found]

    decoded = from_avro(F.expr("substring(value, 6)"), TIMES, {"mode": "PERMISSIVE"})
    kept = rows.select(if_within(spark, decoded, TIMES).alias("row")).collect()
    assert [row.row is None for row in kept] == [row._status == "bad" for row in found]


class Known:
    """A registry with one subject and one stray id."""

    def __init__(self, versions):
        self.versions = versions

    def schema(self, schema_id):
        found = [each.schema for each in self.versions if each.id == schema_id]
        if not found:
            raise NotFound(f"schema {schema_id}", code=40403)
        return found[0]

    def version(self, subject, number):
        return self.versions[number - 1]

    def latest(self, subject):
        return self.versions[-1]


class Version:
    def __init__(self, number, schema_id, schema):
        self.version, self.id, self.schema = number, schema_id, schema


@pytest.mark.parametrize("kind", ["time-millis", "time-micros"])
def test_a_time_of_day_is_its_number(spark, kind):
    """Spark has a type for the second, and refuses to use it: no job could read a row that had one."""
    day = {"type": "int" if kind == "time-millis" else "long", "logicalType": kind}
    times = {"name": "Times", "type": "record", "fields": [{"name": "x", "type": day}]}
    fields = [("at", ["null", day]), ("all", {"type": "array", "items": times})]
    schema = json.dumps({**times, "name": "Row", "fields": [{"name": name, "type": of} for name, of in fields]})
    topic = TopicSchema("shop.days", schema, 1, {1: schema})
    row = {"at": time(5), "all": [{"x": time(6)}]}
    (read,) = decode_values(kafka_rows(spark, [avro.encode(1, schema, row)]), topic).collect()
    per_hour = 3_600_000 if kind == "time-millis" else 3_600_000_000
    assert (read["_status"], read["_row"]["at"], read["_row"]["all"][0]["x"]) == ("row", 5 * per_hour, 6 * per_hour)
    assert row_type(spark, topic)["at"].dataType == (T.IntegerType() if kind == "time-millis" else T.LongType())
    written = encode_values(
        decode_values(kafka_rows(spark, [avro.encode(1, schema, row)]), topic).select("_row.*"), 1, schema
    )
    assert avro.decode(bytes(written.collect()[0]["value"]), lambda _: schema) == row


def test_an_unknown_id_fails_the_batch_and_is_learned_or_refused(spark):
    registry = Known([Version(1, 7, V1), Version(2, 8, V2)])
    schema = topic_schema(registry, "flights", reader_id=7)
    assert (schema.reader_id, sorted(schema.writers)) == (7, [7, 8])

    only_first = TopicSchema("my.flights-x", V1, 7, {7: V1})
    df = kafka_rows(spark, [avro.encode(8, V2, {"id": 2, "tail": None, "gate": "B2", "at": AT})])
    with pytest.raises(Exception, match=UNKNOWN_ID) as caught:
        decode_values(df, only_first).select("_row").collect()
    assert unknown_id(caught.value) == (8, "my.flights-x")
    assert unknown_id("something else") is None

    (learned,) = decode_values(df, with_id(registry, only_first, 8)).select("_row").collect()
    assert learned._row.id == 2
    (refused,) = decode_values(df, with_id(Known([]), only_first, 8)).select("_status").collect()
    assert refused._status == "bad"


NARROW = '{"type":"record","name":"N","fields":[{"name":"n","type":"int"},{"name":"gate","type":"string"}]}'
WIDE = (
    '{"type":"record","name":"N","fields":[{"name":"n","type":["null","int","long"]},{"name":"gate","type":"string"}]}'
)
SHORT = '{"type":"record","name":"N","fields":[{"name":"n","type":"int"}]}'


def test_a_value_of_a_later_schema_fails_the_batch_where_it_does_not_fit_and_one_of_an_earlier_is_bad(spark):
    """To leave it out would lose it, and a version of a job that reads in the shape of now would not."""
    versions = [
        Version(1, 5, SHORT),
        Version(2, 6, NARROW),
        Version(3, 7, WIDE),
        Version(4, 8, SHORT.replace("N", "M")),
    ]
    schema = topic_schema(Known(versions[:3]), "gates", reader_id=6)
    assert list(schema.later) == [7]
    fits = avro.encode(7, WIDE, {"n": 2, "gate": "A"})
    found = decode_values(kafka_rows(spark, [avro.encode(5, SHORT, {"n": 1}), fits, fits[:-1]]), schema).collect()
    assert [(row._status, row._row and row._row.n) for row in found] == [("bad", None), ("row", 2), ("bad", None)]
    df = kafka_rows(spark, [avro.encode(7, WIDE, {"n": 2**40, "gate": "A"})])
    with pytest.raises(Exception, match=LATER_ID) as caught:
        decode_values(df, schema).select("_row").collect()
    assert later_id(caught.value) == (7, "gates")
    assert unknown_id(caught.value) is None

    learned = with_id(Known(versions), schema, 8)
    assert list(learned.later) == [7, 8]
    assert learned.later[8] == "NAME_MISMATCH at /: expected N, the writer has M"
    assert topic_schema(Known(versions[:3]), "gates").later == {}

    several = json.dumps([json.loads(NARROW), json.loads(SHORT.replace("N", "M"))])
    tree = SHORT.replace('"name":"n","type":"int"', '"name":"m","type":["null","N"],"default":null')
    for text in (several, tree):  # Spark has no type for them, or not that of a record; nothing was written with them
        with_it = topic_schema(Known([*versions[:2], Version(3, 9, text)]), "gates", reader_id=6)
        assert list(with_it.later) == [9]
        narrow = kafka_rows(spark, [avro.encode(6, NARROW, {"n": 1, "gate": "A"})])
        assert decode_values(narrow, with_it).collect()[0]._row.n == 1

    without_its_own = Known([versions[0], Version(2, 7, WIDE)])  # deleted; the id is still known
    without_its_own.schema = Known(versions).schema
    assert list(topic_schema(without_its_own, "gates", reader_id=6).later) == [7]


def test_the_type_of_rows_is_known_without_data(spark):
    schema = TopicSchema("t", V2, 8, {8: V2})
    found = row_type(spark, schema)
    assert found.simpleString() == "struct<id:bigint,gate:string,tail:string,at:timestamp>"
    assert decode_values(kafka_rows(spark, []), schema).schema["_row"].dataType == found
    with pytest.raises(UnfitType, match="expected an Avro record"):
        row_type(spark, TopicSchema("t", '"string"', 1, {1: '"string"'}))


TYPES = (
    "k string, s string, b binary, flag boolean, i int, l long, f float, d double, day date, at timestamp, "
    "local timestamp_ntz, dec decimal(12,3), words array<string>, counts map<string,bigint>, "
    "inner struct<x:int,words:array<struct<y:string>>>"
)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1))
nullable = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
rows = st.tuples(
    st.text(max_size=5), nullable, st.none() | st.binary(max_size=5), st.none() | st.booleans(),
    st.none() | st.integers(-(2**31), 2**31 - 1), st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(width=32, allow_nan=False), st.none() | st.floats(allow_nan=False),
    st.none() | st.dates(date(1970, 1, 1), date(2100, 1, 1)), st.none() | instants, st.none() | instants,
    st.none() | st.decimals(-999999999, 999999999, places=3, allow_nan=False),
    st.none() | st.lists(nullable, max_size=3), st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 99)),
    st.none() | st.tuples(st.none() | st.integers(0, 99), st.none() | st.lists(st.none() | st.tuples(nullable), max_size=2)),
)  # fmt: skip


def plain(value):
    """Spark's rows and Python's dicts, timestamps with and without their zone, as the same thing."""
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=30))
def test_rows_survive_the_way_through_avro_and_python_reads_what_spark_wrote(spark, data):
    df = spark.createDataFrame(data, TYPES)
    schema = avro_schema(df.schema, "shop.every-type", required=["k"])
    records = encode_values(df, 77, schema, key=["k"])
    back = decode_values(records, TopicSchema("t", schema, 77, {77: schema}))

    sent, encoded, found = df.collect(), records.collect(), back.select("_row.*").collect()
    assert [plain(row) for row in found] == [plain(row) for row in sent]
    assert [plain(avro.decode(bytes(row.value), lambda _: schema)) for row in encoded] == [plain(row) for row in sent]
    assert [bytes(row.key) for row in encoded] == [row.k.encode() for row in sent]


keys = st.tuples(
    st.text(st.characters(codec="utf-8"), max_size=6), st.integers(-(2**63), 2**63 - 1), st.booleans(),
    st.dates(date(1970, 1, 1), date(2100, 1, 1)), instants,
)  # fmt: skip
NASTY = [
    ('"quoted" \\ slash/', 0, True, date(2020, 2, 29), datetime(2020, 1, 1)),
    ("\n\r\t\b\f\0\x1f\x7f", -1, False, date(1970, 1, 1), datetime(2020, 1, 1, 1, 2, 3, 1)),
    ("é ü € 漢 \U0001f600", 1, True, date(2000, 1, 1), datetime(2020, 1, 1, 1, 2, 3, 100000)),
    ("", 1, True, date(2000, 1, 1), datetime(2020, 1, 1)),
    # What Java's `$` takes for the end of a text has its place before it.
    *(
        (f"abc{end}", 1, True, date(2000, 1, 1), datetime(2020, 1, 1))
        for end in ("\n", "\r", "\r\n", "\x85", "\u2028", "\u2029")
    ),
]


@settings(max_examples=examples(3), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(keys, min_size=1, max_size=40))
def test_keys_have_the_same_bytes_as_every_other_writer_gives_them(spark, data):
    data = [*data, *NASTY]
    names = ("s", "n", "flag", "day", "at")
    df = spark.createDataFrame(data, "s string, n long, flag boolean, day date, at timestamp")
    dicts = [dict(zip(names, row, strict=True)) for row in data]
    for row in dicts:
        row["at"] = row["at"].replace(tzinfo=UTC)
    version = SchemaValue("keys-value", 1, 7, avro_schema(df.schema, "keys", required=names))
    for columns in (names, ("s", "n"), *((name,) for name in names)):
        found = [bytes(row.key) for row in df.select(key_bytes(df.schema, columns).alias("key")).collect()]
        assert found == [avro.key_text(row, columns) for row in dicts], columns
        collector = Encoder("keys", TopicEntry(key=columns), version)
        events = (row | {"day": str(row["day"]), "at": row["at"].isoformat()} for row in dicts)
        assert found == [collector.encode(event).key for event in events], columns


def test_a_null_in_the_key_gives_no_key(spark):
    df = spark.createDataFrame([(None, 1)], "a string, b int")
    assert df.select(key_bytes(df.schema, ["a", "b"]).alias("k")).collect()[0].k is None
    assert df.select(key_bytes(df.schema, []).alias("k")).collect()[0].k is None


def test_a_column_may_have_a_primitives_name(spark):
    """Java takes no type of such a name; the job failed after its schema was registered."""
    inner = T.StructType([T.StructField("long", T.StructType([T.StructField("x", T.LongType())]))])
    row = T.StructType([T.StructField("bytes", inner), T.StructField("long", inner)])
    for topic in ("string", "stats", "shop.string"):
        schema = avro_schema(row, topic)
        assert row_type(spark, TopicSchema(topic, schema, 1, {})) == row
        assert parse(canonical(schema)).fields[0].name == "bytes"


def test_what_has_no_exact_form_is_refused(spark):
    df = spark.range(1).selectExpr("1.5D d", "interval 1 day i", "1 `a b`")
    with pytest.raises(UnfitType, match="key column 'd' is double"):
        key_bytes(df.schema, ["d"])
    with pytest.raises(UnfitType, match="'nothing' is not among"):
        key_bytes(df.schema, ["nothing"])
    with pytest.raises(UnfitType, match="column i: interval day has no Avro form"):
        avro_schema(df.select("i").schema, "t")
    with pytest.raises(UnfitType, match="column 'a b'"):
        avro_schema(df.select("a b").schema, "t")


def test_change_records_are_recognised():
    change = json.dumps({"type": "record", "name": "Change", "mainstem": "change", "fields": []})
    assert TopicSchema("t", change, 1, {}).is_change
    assert not TopicSchema("t", V1, 1, {}).is_change


def test_a_schema_of_another_registry_is_no_change_and_no_record():
    protobuf = 'syntax = "proto3"; message Flight {}'
    assert not TopicSchema("t", protobuf, 1, {}).is_change
    with pytest.raises(UnfitType, match="topic t: expected an Avro record as its schema, found syntax"):
        with_sentinel(protobuf, "t")
