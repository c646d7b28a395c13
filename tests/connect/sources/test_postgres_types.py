"""PostgreSQL's text becomes the bytes that fastavro writes for the same value, and comes back as the same text."""

import io
import json
import math
import struct
from datetime import UTC, datetime, time, timedelta
from decimal import Context, Decimal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.postgres_types import (
    NUMERIC,
    ServerType,
    UnsupportedValue,
    array_to_json,
    column_type,
    decoder,
    encode_long,
)

INT, BIGINT, REAL, DOUBLE, BOOL, TEXT = 23, 20, 700, 701, 16, 25
BYTEA, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, UUID = 17, 1082, 1083, 1114, 1184, 2950


def kind(oid, modifier=-1, element=0, name="x"):
    return column_type(ServerType(oid, modifier, name, builtin=True, element=element))


def fast(avro, value) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), value)
    return out.getvalue()


def back(column, data: bytes) -> str:
    """The text that the decoder makes of encoded bytes, read as a replica reads them."""
    avro = column.avro
    plain = {"type": avro["type"]} if isinstance(avro, dict) else avro
    raw = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(plain), None)
    return decoder(avro, column.server_name)(raw)


def check(column, text: str, value) -> None:
    data = column.encode(text.encode())
    assert data == fast(column.avro, value)
    assert back(column, data) == text


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers(number):
    assert encode_long(number) == fast("long", number)
    check(kind(BIGINT), str(number), number)


@given(st.integers(-(2**31), 2**31 - 1))
def test_int(number):
    check(kind(INT), str(number), number)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_text(value):
    check(kind(TEXT), value, value)


@given(st.binary())
def test_bytea(value):
    check(kind(BYTEA), "\\x" + value.hex(), value)


@given(st.booleans())
def test_boolean(value):
    check(kind(BOOL), "t" if value else "f", value)


@given(st.floats())
def test_double_keeps_its_value(value):
    text = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
    data = kind(DOUBLE).encode(text.encode())
    returned = float(back(kind(DOUBLE), data))
    assert returned == value or (math.isnan(returned) and math.isnan(value))


@given(st.floats(width=32, allow_nan=False))
def test_real_keeps_its_value(value):
    data = kind(REAL).encode(repr(value).encode())
    assert struct.unpack("<f", struct.pack("<f", float(back(kind(REAL), data))))[0] == value


@given(st.integers(1, 38), st.data())
def test_numeric_with_precision_is_exact(precision, data):
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    text = f"{Decimal(unscaled).scaleb(-scale, Context(prec=precision)):.{scale}f}"  # the usual context rounds to 28 digits
    column = kind(NUMERIC, (precision << 16 | scale) + 4)
    assert column.avro["logicalType"] == "decimal"
    encoded = column.encode(text.encode())
    if unscaled or not text.startswith("-"):
        assert back(column, encoded) == text
    read = fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(column.avro), None)
    assert read == Decimal(text)


@pytest.mark.parametrize("modifier", [-1, (40 << 16 | 2) + 4, (3 << 16 | 5) + 4, (5 << 16 | (-2 & 0x7FF)) + 4])
def test_numeric_that_no_avro_decimal_holds_is_text(modifier):
    column = kind(NUMERIC, modifier)
    assert column.avro == "string"
    assert back(column, column.encode(b"123456789.123456789")) == "123456789.123456789"


@given(st.dates())
def test_date(day):
    check(kind(DATE), day.isoformat(), day)


@pytest.mark.parametrize(
    ("text", "days"),
    [("0044-03-15 BC", -735_160), ("12024-02-29", 3_672_207), ("0001-01-01", -719_162), ("0001-12-31 BC", -719_163)],
)
def test_dates_beyond_pythons(text, days):
    column = kind(DATE)
    assert column.encode(text.encode()) == encode_long(days)
    assert back(column, encode_long(days)) == text


@given(st.integers(-4_000_000, 100_000_000))
def test_every_date_comes_back(days):
    column = kind(DATE)
    assert column.encode(back(column, encode_long(days)).encode()) == encode_long(days)


def clock(value: time) -> str:
    return value.isoformat().rstrip("0").rstrip(".") if value.microsecond else value.isoformat()


@given(st.times())
def test_time(value):
    data = kind(TIME).encode(clock(value).encode())
    assert data == fast(kind(TIME).avro, value)
    assert time.fromisoformat(back(kind(TIME), data)) == value


def test_the_end_of_a_day_is_no_time_for_readers():
    with pytest.raises(UnsupportedValue, match="24:00:00"):
        kind(TIME).encode(b"24:00:00")


@given(st.datetimes())
def test_timestamp(value):
    text = f"{value.date().isoformat()} {clock(value.time())}"
    since = value - datetime(1970, 1, 1)
    for oid, suffix in ((TIMESTAMP, ""), (TIMESTAMPTZ, "+00")):
        data = kind(oid).encode((text + suffix).encode())
        assert data == encode_long(since // timedelta(microseconds=1))
        returned = back(kind(oid), data)
        assert returned.endswith(suffix)
        assert datetime.fromisoformat(returned.removesuffix("+00")) == value


def test_timestamptz_is_the_moment_that_fastavro_reads():
    column = kind(TIMESTAMPTZ)
    data = column.encode(b"2013-01-01 05:00:00.25+00")
    read = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(column.avro), None)
    assert read == datetime(2013, 1, 1, 5, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize("text", ["0044-03-15 12:00:00.5 BC", "12024-02-29 23:59:59"])
def test_timestamps_beyond_pythons(text):
    column = kind(TIMESTAMP)
    returned = back(column, column.encode(text.encode()))
    assert returned.replace(".500000", ".5") == text


@pytest.mark.parametrize(
    ("oid", "text", "modifier"),
    [
        (DATE, "infinity", -1),
        (TIMESTAMP, "-infinity", -1),
        (TIMESTAMPTZ, "infinity", -1),
        (TIMESTAMP, "294276-12-31 23:59:59.999999", -1),
        (NUMERIC, "NaN", (8 << 16 | 2) + 4),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused_and_kept_as_text_where_asked(oid, text, modifier):
    with pytest.raises(UnsupportedValue, match=text.strip("-")):
        kind(oid, modifier).encode(text.encode())
    column = column_type(ServerType(oid, modifier, "date", builtin=True), as_text=True)
    assert back(column, column.encode(text.encode())) == text


@pytest.mark.parametrize(
    ("text", "element", "expected"),
    [
        ("{}", INT, []),
        ("{1,NULL,-3}", INT, [1, None, -3]),
        ("{{1,2},{3,4}}", INT, [[1, 2], [3, 4]]),
        ('{a,"b c","d\\"e\\\\",NULL,"NULL",""}', TEXT, ["a", "b c", 'd"e\\', None, "NULL", ""]),
        ("{t,f,NULL}", BOOL, [True, False, None]),
        ("{NaN,Infinity,1.5e+300}", DOUBLE, ["NaN", "Infinity", 1.5e300]),
        ('{"[1,2]"}', 3802, ["[1,2]"]),
    ],
)
def test_arrays_are_json(text, element, expected):
    column = kind(1007, element=element, name="x[]")
    data = column.encode(text.encode())
    (value,) = [fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema("string"), None)]
    assert json.loads(value) == expected
    assert array_to_json(back(column, data), {INT: int, BOOL: lambda t: t == "t"}.get(element, str)) is not None


def test_digits_of_numeric_arrays_are_not_rounded():
    column = kind(1231, element=NUMERIC, name="numeric[]")
    text = "{0.1000000000000000000000000000001}"
    data = column.encode(text.encode())
    assert b"0.1000000000000000000000000000001" in data
    assert back(column, data) == '{"0.1000000000000000000000000000001"}'


def test_an_array_with_bounds_of_its_own_is_refused_and_survives_as_text():
    text = "[0:1]={7,8}"
    with pytest.raises(UnsupportedValue):
        kind(1007, element=INT, name="integer[]").encode(text.encode())
    column = column_type(ServerType(1007, -1, "integer[]", builtin=True, element=INT), as_text=True)
    assert back(column, column.encode(text.encode())) == text


def test_a_type_of_the_users_is_text_in_a_replica():
    assert column_type(ServerType(99_999, -1, "mood", builtin=False)).server_name == "text"
    assert column_type(ServerType(99_999, -1, "mood[]", builtin=False, element=99_998)).server_name == "text[]"


@pytest.mark.parametrize(
    ("oid", "array", "name"), [(2205, 2210, "regclass"), (4096, 4097, "regrole"), (1033, 1034, "aclitem")]
)
def test_a_type_whose_texts_are_names_in_its_database_is_text_in_a_replica(oid, array, name):
    assert kind(oid, name=name).server_name == "text"
    assert kind(array, element=oid, name=f"{name}[]").server_name == "text[]"
