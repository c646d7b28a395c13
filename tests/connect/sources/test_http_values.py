import base64
import contextlib
import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources import http_events, http_values
from mainstem.connect.sources.http_values import Unfit, converter, default_value
from mainstem.registry.schema import parse


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


DECIMAL = logical("bytes", "decimal", precision=6, scale=2)
UUID = "6b1f9d0e-0000-4000-8000-000000000001"


def stored(schema, value):
    """`value` (decoded JSON) written with `schema` and read back by fastavro."""
    parsed = fastavro.parse_schema(schema)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, converter(parse(json.dumps(schema)))(value))
    buffer.seek(0)
    return fastavro.schemaless_reader(buffer, parsed, None)


def record(*fields):
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind, **more} for name, kind, more in fields],
    }


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", 2**31 - 1, 2**31 - 1),
        ("int", 5.0, 5),
        ("long", -(2**63), -(2**63)),
        ("double", 1, 1.0),
        ("float", 0.5, 0.5),
        ("float", 3.4028235e38, 3.4028234663852886e38),
        ("string", "é\u0000", "é\u0000"),
        ("bytes", base64.b64encode(b"\xff\x00").decode(), b"\xff\x00"),
        ({"type": "fixed", "name": "F", "size": 2}, "AAE=", b"\x00\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (logical("string", "uuid"), UUID.upper(), uuid.UUID(UUID)),
        (logical("string", "uuid"), f"urn:uuid:{UUID}", uuid.UUID(UUID)),
        (logical("string", "uuid"), "{" + UUID.replace("-", "") + "}", uuid.UUID(UUID)),
        (DECIMAL, "+.5", Decimal("0.50")),
        (DECIMAL, "5.e1", Decimal("50.00")),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID, uuid.UUID(UUID).bytes),
        (["null", "int"], None, None),
        (["null", "int"], 3, 3),
        (["null", "int"], {"int": 3}, 3),
        (["string", "long"], "x", "x"),
        (["string", "long"], {"long": 4}, 4),
        (["null", logical("string", "uuid"), {"type": "enum", "name": "E", "symbols": ["A"]}], "A", "A"),
        (
            logical("long", "timestamp-micros"),
            "2013-01-01T05:15:00.000001Z",
            datetime(2013, 1, 1, 5, 15, 0, 1, tzinfo=UTC),
        ),
        (logical("long", "timestamp-micros"), "2013-01-01T00:15:00-05:00", datetime(2013, 1, 1, 5, 15, tzinfo=UTC)),
        (
            logical("long", "timestamp-millis"),
            "2013-01-01T05:15:00.001+00:00",
            datetime(2013, 1, 1, 5, 15, 0, 1000, tzinfo=UTC),
        ),
        (logical("long", "timestamp-micros"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (
            ["null", logical("long", "timestamp-micros")],
            "1969-12-31T23:59:59Z",
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        ),
        (logical("long", "local-timestamp-micros"), "2013-01-01T05:15:00", datetime(2013, 1, 1, 5, 15)),
        (logical("long", "timestamp-micros"), 253_402_300_799_999_999, datetime.max.replace(tzinfo=UTC)),
        (logical("long", "timestamp-micros"), "0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        (logical("long", "timestamp-nanos"), "1970-01-01T00:00:01.123456789Z", 1_123_456_789),
        (logical("long", "timestamp-nanos"), "1969-12-31T18:59:59,99999999900-05:00", -1),
        (logical("long", "local-timestamp-nanos"), "19700101T000000.0000001", 100),
        (
            logical("long", "timestamp-micros"),
            "1970-01-01T00:00:00.123000000Z",
            datetime(1970, 1, 1, 0, 0, 0, 123_000, UTC),
        ),
        (logical("int", "time-millis"), "05:15:00.2500000", time(5, 15, 0, 250_000)),
        (logical("int", "date"), "2013-01-02", date(2013, 1, 2)),
        (logical("int", "date"), 2_932_896.0, date.max),
        (logical("int", "time-millis"), "05:15:00.250", time(5, 15, 0, 250_000)),
        (logical("long", "time-micros"), "05:15:00.000001", time(5, 15, 0, 1)),
        (DECIMAL, 12.5, Decimal("12.50")),
        (DECIMAL, "-9999.99", Decimal("-9999.99")),
        (DECIMAL, 7, Decimal("7.00")),
        (DECIMAL, "1.50000", Decimal("1.50")),
        (DECIMAL, "-0e99", Decimal("0.00")),
        (logical("bytes", "decimal", precision=38, scale=0), "1" * 38, Decimal("1" * 38)),
        (["null", DECIMAL], 0.1, Decimal("0.10")),
        (
            record(("a", "int", {}), ("b", ["null", "int"], {}), ("c", "bytes", {"default": "\u00ff"})),
            {"a": 1},
            {"a": 1, "b": None, "c": b"\xff"},
        ),
    ],
)
def test_what_fits(schema, value, expected):
    found = stored(schema, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ("int", True, "/: expected int, found true"),
        ("int", 1.5, "/: expected int, found 1.5"),
        ("int", 2**31, "/: expected int (-2147483648 to 2147483647), found 2147483648"),
        ("int", "3", '/: expected int, found "3"'),
        ("float", 1e39, "/: expected float (at most 3.40282e+38), found 1e+39"),
        ("float", -3.4028235677973366e38, "/: expected float (at most 3.40282e+38), found -3.4028235677973366e+38"),
        ("double", 10**400, "/: expected double (at most"),
        ("string", 3, "/: expected string, found 3"),
        ("bytes", "*", '/: expected bytes in base64, found "*"'),
        ({"type": "fixed", "name": "F", "size": 2}, "AA==", "/: expected 2 bytes in base64, found 1"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", '/: expected one of A, B, found "C"'),
        ({"type": "array", "items": "int"}, [1, "x"], '/1: expected int, found "x"'),
        ({"type": "map", "values": "int"}, {"a/b": "x"}, '/a~1b: expected int, found "x"'),
        (["string", "long"], 1.5, "/: found 1.5, which fits none of string, long (string: /: expected string, found 1.5; long:"),
        ("int", None, "/: expected int, found null"),
        (logical("long", "timestamp-micros"), "2013-01-01T05:15:00", "/: expected a timestamp with its zone (add Z for UTC)"),
        (logical("long", "timestamp-micros"), "yesterday", "/: expected a timestamp (2013-01-01T05:00:00Z)"),
        (logical("long", "timestamp-millis"), "2013-01-01T05:15:00.0001Z", "/: expected whole milliseconds"),
        (logical("long", "timestamp-millis"), "2013-01-01T05:15:00.1230009Z", "/: expected whole milliseconds"),
        (logical("long", "timestamp-micros"), "2013-01-01T05:15:00.1230009Z", "/: expected whole microseconds"),
        (logical("long", "local-timestamp-micros"), "2013-01-01T05:15:00.0000001", "/: expected whole microseconds"),
        (logical("long", "time-micros"), "05:15:00.0000001", "/: expected whole microseconds"),
        (logical("long", "timestamp-nanos"), "2013-01-01T05:15:00.1234567891Z", "/: expected at most nine digits of a second"),
        (logical("long", "timestamp-nanos"), "2013-01-01T05:15:00+05:00:00.1234567", "/: expected at most nine digits of a second"),
        (logical("long", "timestamp-nanos"), "2013-01-01T05:15:00.1Z.1234567", "/: expected a timestamp"),
        (logical("long", "local-timestamp-micros"), "2013-01-01T05:15:00Z", "/: expected a local timestamp, without a zone"),
        (logical("int", "date"), "01/02/2013", "/: expected a date (YYYY-MM-DD)"),
        (logical("int", "date"), 2_932_897, "/: expected int (date) (-719162 to 2932896, in the years 1 to 9999), found 2932897"),
        (logical("int", "date"), 2**40, "/: expected int (date) (-719162 to"),
        (logical("int", "time-millis"), 86_400_000, "/: expected int (time-millis) (0 to 86399999), found 86400000"),
        (logical("long", "time-micros"), -1, "/: expected long (time-micros) (0 to"),
        (logical("long", "timestamp-micros"), 2**63 - 1, "/: expected long (timestamp-micros) (-62135596800000000 to 253402300799999999, in the years 1 to 9999), found 9223372036854775807"),
        (logical("long", "timestamp-micros"), "9999-12-31T23:59:59-05:00", "/: expected long (timestamp-micros) (-62135596800000000 to"),
        (logical("long", "timestamp-millis"), -(2**63), "/: expected long (timestamp-millis) (-62135596800000 to 253402300799999"),
        (logical("long", "timestamp-nanos"), "9999-01-01T00:00:00Z", "/: expected long (timestamp-nanos) (-9223372036854775808 to"),
        (logical("long", "local-timestamp-micros"), 253_402_300_800_000_000, "/: expected long (local-timestamp-micros) (-62135596800000000 to"),
        (logical("long", "time-micros"), "5pm", "/: expected a time (HH:MM:SS)"),
        (DECIMAL, 0.125, "/: expected at most 2 digits after the point, found 0.125"),
        (DECIMAL, 10000, "/: expected at most 6 digits with scale 2, found 10000"),
        (DECIMAL, "NaN", "/: expected bytes (decimal 6,2)"),
        (DECIMAL, "1e999999999", "/: expected at most"),
        (DECIMAL, "1_0", '/: expected bytes (decimal 6,2), found "1_0"'),
        (DECIMAL, " 1", '/: expected bytes (decimal 6,2), found " 1"'),
        (DECIMAL, "\u0663", "/: expected bytes (decimal 6,2)"),
        (logical("string", "uuid"), "no", "/: expected string (uuid)"),
        (logical("string", "uuid"), "+" + UUID[1:], "/: expected string (uuid)"),
        (logical("string", "uuid"), UUID.replace("6b1f", "6_1f"), "/: expected string (uuid)"),
        (record(("a", "int", {})), {}, "/a: the field is missing, and it has no default (int)"),
        (record(("a", "int", {})), {"a": 1, "b": 2}, "/b: unknown field; record R has a"),
        (record(("a", record(("b", "int", {}))["type"] and {"type": "array", "items": "int"}, {})), {"a": [0, None]}, "/a/1: expected int, found null"),
        (record(("a", "int", {})), [1], "/: expected record R, found [1]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_its_place(schema, value, problem):
    with pytest.raises(Unfit) as error:
        converter(parse(json.dumps(schema)))(value)
    assert str(error.value).startswith(problem)
    assert "\n" not in str(error.value)


def read(text):
    """The value of an event's JSON, as the collector reads it."""
    (event,) = http_events.parse({}, text.encode(), 1, 10_000)
    return event.value


BIG = logical("bytes", "decimal", precision=38, scale=10)


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (BIG, "12345678901234567.89", Decimal("12345678901234567.89")),
        (BIG, "-0.0000000001", Decimal("-0.0000000001")),
        (BIG, "1234567890123456789012345678.0123456789", Decimal("1234567890123456789012345678.0123456789")),
        (BIG, "9.5e3", Decimal(9500)),
        (BIG, "0e999", Decimal(0)),
        ("long", "9007199254740993.0", 2**53 + 1),
        ("long", "1e18", 10**18),
        ("long", "-9.223372036854775808E18", -(2**63)),
        ("int", "1.0000000000000000000", 1),
        ("double", "0.30000000000000004", 0.30000000000000004),
        ("double", "1.7976931348623158e308", 1.7976931348623157e308),
        ("double", "1.00000000000000000000001", 1.0),
        ("double", "1e-999999999", 0.0),
        (["long", "double"], "4503599627370497.1", 4503599627370497.0),
    ],
)
def test_a_number_is_taken_as_it_is_written_and_not_as_the_float_nearest_to_it(schema, text, expected):
    found = stored(schema, read(text))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        (BIG, "0.00000000001", "/: expected at most 10 digits after the point, found 1e-11"),
        (BIG, "1e-400", "/: expected at most 10 digits after the point, found 1E-400"),
        (BIG, "1e400", "/: expected at most 38 digits with scale 10, found 1E+400"),
        ("int", "1.0000000000000000001", "/: expected int, found 1.0000000000000000001"),
        ("long", "4503599627370497.1", "/: expected long, found 4503599627370497.1"),
        ("long", "9223372036854775808.0", "/: expected long, found 9223372036854775808.0"),
        ("long", "1e999999999", "/: expected long, found 1E+999999999"),
        ("double", "1e400", "/: expected double (at most 1.79769e+308), found 1E+400"),
        ("double", "-1e999999999999999999999", "/: expected double (at most 1.79769e+308), found -Infinity"),
        (["null", "string"], "1e400", "/: expected string, found 1E+400"),
    ],
)
def test_a_number_that_is_refused_is_told_as_it_is_written(schema, text, problem):
    with pytest.raises(Unfit) as error:
        converter(parse(json.dumps(schema)))(read(text))
    assert str(error.value) == problem


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**27), max_value=10**27, places=10))
def test_a_decimal_keeps_all_of_its_digits_as_a_number(number):
    assert stored(BIG, read(str(number))) == number


def test_a_recursive_record():
    schema = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "N"], "default": None}],
    }
    assert stored(schema, {"v": 1, "next": {"v": 2}}) == {"v": 1, "next": {"v": 2, "next": None}}
    with pytest.raises(Unfit) as error:
        stored(schema, {"v": 1, "next": {"v": 2, "next": {"v": "x"}}})
    assert error.value.pointer == "/next/next/v"


def condition(name, *more):
    terms = {"type": "array", "items": ["string", *more]}
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": "terms", "type": terms}, {"name": "op", "type": name_of_op(name)}],
    }


def name_of_op(name):
    return {"type": "enum", "name": f"{name}Op", "symbols": [name.upper()]}


@pytest.mark.parametrize("op", ["OR", "NEITHER"])
def test_a_deep_event_of_a_recursive_union_is_converted_once_however_many_branches_begin_as_it_does(op, monkeypatch):
    """Each level fits `And` up to its `op`: to convert its terms anew for `Or` is to convert the last 2^40 times."""
    schema = parse(json.dumps(condition("And", "And", condition("Or", "And", "Or"))))
    calls = []
    plain = http_values._plain

    def counted(node):
        convert = plain(node)
        return lambda value: (calls.append(node.kind), convert(value))[1]

    monkeypatch.setattr(http_values, "_plain", counted)
    convert = converter(schema)
    event = {"terms": ["x"], "op": op}
    for _ in range(40):
        event = {"terms": [event], "op": "OR"}
    event["op"] = "AND"
    if op == "OR":
        assert convert(event)["terms"][0][0] == "Or"
    else:
        with pytest.raises(Unfit) as error:
            convert(event)
        assert len(str(error.value)) < 2000
        assert str(error.value).startswith("/terms/0: found {")
    assert len(calls) < 10 * 40


def test_a_field_named_as_its_record_is_converted_once(monkeypatch):
    """`{"next": ...}` may be a record `next`, or the label of one: both at each level is 2^40 at the last."""
    schema = {"type": "record", "name": "next", "fields": [{"name": "next", "type": ["null", "next"]}]}
    calls = []
    expected = http_values._expected
    monkeypatch.setattr(http_values, "_expected", lambda *each: (calls.append(1), expected(*each))[1])
    event = 1
    for _ in range(40):
        event = {"next": event}
    with pytest.raises(Unfit) as error:
        converter(parse(json.dumps(schema)))(event)
    assert len(calls) < 10 * 40
    assert len(str(error.value)) < 2000


def test_a_map_in_a_map_under_the_key_of_its_label_is_converted_once(monkeypatch):
    """`{"map": ...}` may be a map with that key, or the label of one: both at each level is 2^60 at the last."""
    schema, event = "int", "misspelt"
    for _ in range(60):
        schema, event = ["null", {"type": "map", "values": schema}], {"map": event}
    calls = []
    expected = http_values._expected
    monkeypatch.setattr(http_values, "_expected", lambda *each: (calls.append(1), expected(*each))[1])
    with pytest.raises(Unfit):
        converter(parse(json.dumps(schema)))(event)
    assert len(calls) < 60 * 60


def test_a_recursive_record_may_be_as_deep_as_python_goes():
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"], "default": None}]}
    event = {}
    for _ in range(250):
        event = {"next": event}
    assert converter(parse(json.dumps(schema)))(event)["next"][0] == "N"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(5_000)]}, "misspelt"),
        (record(*((f"field_{n}", "int", {"default": 0}) for n in range(5_000))), {"misspelt": 1}),
        ([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(5_000)], "misspelt"),
        (record(("x" * 100_000, "int", {})), {"x" * 100_000: "misspelt"}),
        ({"type": "map", "values": "int"}, {"x" * 100_000: "misspelt"}),
    ],
)
def test_a_reason_is_as_long_for_a_schema_of_many_names(schema, value):
    """An enum of 5,000 symbols had reasons of 50 KB, and 10,000 events of a request each have one."""
    with pytest.raises(Unfit) as error:
        converter(parse(json.dumps(schema)))(value)
    assert len(str(error.value)) < 1000


def test_defaults_become_values():
    nested = parse(
        json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "a", "type": {"type": "array", "items": "bytes"}},
                    {"name": "m", "type": {"type": "map", "values": "float"}, "default": {"x": 1}},
                ],
            }
        )
    )
    assert default_value(nested, {"a": ["\u00fe"]}) == {"a": [b"\xfe"], "m": {"x": 1.0}}
    assert default_value(parse('["string","null"]'), "x") == ("string", "x")


FAR = {"type": logical("int", "date"), "default": 10**9}


@pytest.mark.parametrize(
    ("kind", "default", "problem"),
    [
        (logical("int", "date"), 10**9, "expected int (date) (-719162 to 2932896, in the years 1 to 9999), found 1000000000"),
        (logical("int", "time-millis"), -1, "expected int (time-millis) (0 to 86399999), found -1"),
        ([logical("long", "timestamp-micros"), "null"], 2**62, "expected long (timestamp-micros) (-62135596800000000 to"),
        (DECIMAL, "", 'expected bytes (decimal 6,2), found ""'),
        (DECIMAL, "\u000f\u0042\u0040", "expected bytes (decimal 6,2), found"),
        (logical("string", "uuid"), "", 'expected string (uuid), found ""'),
        ("float", 1e39, "expected float (at most 3.40282e+38), found 1e+39"),
        ({"type": "record", "name": "In", "fields": [{"name": "d", **FAR}]}, {}, "expected int (date)"),
        ({"type": "map", "values": logical("int", "date")}, {"a": 10**9}, "expected int (date)"),
    ],
)  # fmt: skip
def test_a_default_that_no_reader_can_hold_stands_for_nothing(kind, default, problem):
    """Avro allows it: the event was accepted, and no table, job or reader could have it."""
    schema = record(("a", "int", {}), ("b", kind, {"default": default}))
    with pytest.raises(Unfit) as error:
        stored(schema, {"a": 1})
    assert str(error.value).startswith(f"/b: the field is missing, and no reader can hold its default: {problem}")


def test_a_default_that_no_reader_can_hold_does_not_matter_where_the_field_is_there():
    assert stored(record(("b", FAR["type"], {"default": 10**9})), {"b": 0}) == {"b": date(1970, 1, 1)}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        (logical("int", "date"), -719_162, date.min),
        (DECIMAL, "\u000f\u0042\u003f", Decimal("9999.99")),
        (logical("string", "uuid"), UUID, uuid.UUID(UUID)),
        ("float", 1, 1.0),
    ],
)
def test_any_other_default_stands_for_its_field(kind, default, expected):
    assert stored(record(("b", kind, {"default": default})), {}) == {"b": expected}


SCHEMAS = [
    "int", "string", "bytes", DECIMAL, ["null", "int"], ["string", "long", "boolean"], logical("int", "date"), logical("long", "timestamp-micros"),
    logical("long", "time-micros"), logical("string", "uuid"), {"type": "array", "items": ["null", "double"]}, {"type": "map", "values": "float"},
    record(("a", "int", {}), ("b", ["null", DECIMAL], {"default": None})),
]  # fmt: skip
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.just("2013-01-01")
    | st.just("2013-01-01T00:00:00Z")
    | st.just(UUID),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "int", "string"]), inner, max_size=3)
    ),
)


@given(st.sampled_from(SCHEMAS), json_values)
def test_whatever_is_posted_fits_and_can_be_written_or_is_unfit(schema, value):
    value = msgspec.json.decode(msgspec.json.encode(value)) if not _too_big(value) else value
    with contextlib.suppress(Unfit):
        stored(schema, value)


@given(
    st.sampled_from(["timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"]),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**38), 2**38).map(lambda seconds: seconds * 1_000_000),
)
def test_any_number_that_is_taken_as_a_timestamp_can_be_read(kind, number):
    with contextlib.suppress(Unfit):
        stored(logical("long", kind), number)


def _too_big(value):
    return any(abs(each) >= 2**63 for each in _numbers(value))


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int) else []
