import contextlib
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.registry.avro import HEADER, MAGIC, BadValue, UnfitRow, decode, encode, key_text, key_values, split

FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "fare",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
                "default": None,
            },
        ],
    }
)
ROW = {"id": 7, "at": datetime(2013, 1, 1, 5, tzinfo=UTC), "fare": Decimal("12.50")}


def test_a_value_names_its_schema_and_comes_back():
    value = encode(258, FLIGHT, ROW)
    assert value[:6] == b"\x00\x00\x00\x01\x02\x0e"
    assert split(value)[0] == 258
    assert decode(value, {258: FLIGHT}.__getitem__) == ROW


def test_a_reader_may_ask_for_its_own_shape():
    reader = '{"type":"record","name":"Flight","fields":[{"name":"id","type":"double"},{"name":"x","type":"int","default":3}]}'
    assert decode(encode(1, FLIGHT, ROW), lambda _: FLIGHT, reader=reader) == {"id": 7.0, "x": 3}


def test_a_row_that_does_not_fit_is_told():
    with pytest.raises(UnfitRow, match="does not fit schema 3"):
        encode(3, FLIGHT, {"id": "seven"})


@given(st.binary(max_size=40))
def test_any_bytes_are_a_row_or_a_bad_value(data):
    with contextlib.suppress(BadValue):
        decode(data, lambda _: FLIGHT)


@given(st.integers(0, 20))
def test_a_value_cut_short_or_with_more_behind_it_is_bad(cut):
    value = encode(1, FLIGHT, ROW)
    with pytest.raises(BadValue):
        decode(value[: min(cut, len(value) - 1)], lambda _: FLIGHT)
    with pytest.raises(BadValue, match="bytes are left over"):
        decode(value + b"\0", lambda _: FLIGHT)


@pytest.mark.parametrize(
    ("value", "alone", "among_others"),
    [
        (date(2013, 1, 1), b"2013-01-01", b'"2013-01-01"'),
        (datetime(2013, 1, 1, 5, tzinfo=UTC), b"2013-01-01 05:00:00+00", b'"2013-01-01 05:00:00+00"'),
        (
            datetime(2013, 1, 1, 0, 0, 0, 120_000, tzinfo=timezone(timedelta(hours=-5))),
            b"2013-01-01 05:00:00.12+00",
            b'"2013-01-01 05:00:00.12+00"',
        ),
        (datetime(13, 1, 1, 5), b"0013-01-01 05:00:00", b'"0013-01-01 05:00:00"'),
        (time(5, 15, 0, 1), b"05:15:00.000001", b'"05:15:00.000001"'),
        (Decimal("1.50"), b"1.50", b'"1.50"'),
        (Decimal("1E+3"), b"1000", b'"1000"'),
        (UUID("6B1F9D0E-0000-4000-8000-000000000001"), b"6b1f9d0e-0000-4000-8000-000000000001", None),
        (b"\xff\x00", b"\\xff00", b'"\\\\xff00"'),
        (5.0, b"5.0", b"5.0"),
    ],
)
def test_a_key_has_one_text_for_each_type(value, alone, among_others):
    """A date had quotes around it, alone too: a replica could delete no row by it."""
    assert key_text({"a": value}, ("a",)) == alone
    if among_others is not None:
        assert key_text({"a": value, "b": 1}, ("a", "b")) == b"[%s,1]" % among_others


KEYS = {
    "string": ("", "x,y", '"', "é\n"),
    "bigint": (0, -5, 2**63 - 1),
    "boolean": (True, False),
    "date": (date(2026, 5, 1), date(1, 1, 1)),
    "timestamp": (datetime(2026, 5, 1, 12, 30, 0, 120_000, UTC), datetime(1, 1, 1, tzinfo=UTC)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_is_read_again_as_what_it_was_made_of(kind):
    for value in KEYS[kind]:
        assert key_values(key_text({"a": value}, ("a",)), [("a", kind)]) == {"a": value}
        assert key_values(key_text({"a": value, "b": 1}, ("a", "b")), [("a", kind), ("b", "int")]) == {
            "a": value,
            "b": 1,
        }


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"x", [("a", "int")]),
        (b"maybe", [("a", "boolean")]),
        (b"[1]", [("a", "int"), ("b", "int")]),
        (b"\xff", [("a", "string")]),
    ],
)
def test_what_is_no_such_key_is_told(data, columns):
    with pytest.raises(BadValue, match=r"^expected a key of a .*, found b'"):
        key_values(data, columns)


def test_what_has_no_text_is_no_key():
    with pytest.raises(UnfitRow, match="key column 'a': expected a text, a number, a time or bytes, found list"):
        key_text({"a": [1]}, ("a",))


def test_keys_are_text():
    row = {"a": "x y", "b": 7, "c": True, "d": None, "e": "é"}
    assert key_text(row, ("a",)) == b"x y"
    assert key_text(row, ("b",)) == b"7"
    assert key_text(row, ("c",)) == b"true"
    assert key_text(row, ("a", "b", "e")) == b'["x y",7,"\\u00e9"]'
    for columns in (("d",), ("a", "missing")):
        with pytest.raises(UnfitRow, match="is missing or null"):
            key_text(row, columns)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ({"type": "int", "logicalType": "date"}, 2**31 - 1),
        ({"type": "int", "logicalType": "date"}, -719_163),
        ({"type": "int", "logicalType": "time-millis"}, -1),
        ({"type": "long", "logicalType": "time-micros"}, 86_400_000_000),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**63 - 1),
        ({"type": "long", "logicalType": "timestamp-micros"}, 253_402_300_800_000_000),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, -(2**63)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, -62_135_596_800_000_001),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x27\x10"),  # 100.00
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\xff" + bytes(20)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"",
        ),  # Java has no number of no bytes
        ({"type": "string", "logicalType": "uuid"}, "no"),
    ],
)
def test_what_any_client_may_have_written_is_a_bad_value_where_readers_cannot_hold_it(kind, number):
    """A timestamp of the year 294247 stopped a windowed job for good; a decimal of too many digits was rounded."""
    value = encode(1, json.dumps(kind["type"]), number)
    with pytest.raises(BadValue):
        decode(value, lambda _: json.dumps(kind))


def test_a_decimal_of_all_its_digits():
    kind = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4})
    for text in ("-" + "9" * 34 + ".9999", "0.0001", "0"):
        assert decode(encode(1, kind, Decimal(text)), lambda _: kind) == Decimal(text)


def test_a_type_of_no_namespace_that_is_used_inside_of_one_is_found():
    """The registry takes it, as Java does; nothing here could read its values."""
    address = {"type": "record", "name": "Address", "namespace": "", "fields": [{"name": "city", "type": "string"}]}
    fields = [{"name": "a", "type": address}, {"name": "b", "type": {"type": "array", "items": "Address"}}]
    kind = {"type": "record", "name": "shop.Order", "fields": fields}
    row = {"a": {"city": "x"}, "b": [{"city": "y"}]}
    for text in (json.dumps(kind), json.dumps(["null", kind])):
        assert decode(encode(1, text, row), lambda _, text=text: text) == row


def test_a_schema_that_refers_to_another_cannot_be_read_with_and_says_which():
    text = '{"type":"record","name":"C","fields":[{"name":"a","type":"Address"}]}'
    with pytest.raises(BadValue, match=r"^schema 7 cannot be read with: .*unknown type 'Address'"):
        decode(HEADER.pack(MAGIC, 7) + b"\2a", lambda _: text)


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (
            {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
            b"\2" * 100_000 + b"\0",
            "nested more than 500 levels deep",
        ),
        ({"type": "array", "items": "null"}, b"\x80\x9b\xee\2\0", "at most 100050 parts in 5 bytes, found more"),
    ],
)
def test_a_value_without_bounds_ended_the_process_and_is_a_bad_value(kind, payload, message):
    """fastavro descends in C: the first was a SIGSEGV of whoever read it.
    The second made 3,000,000 items of five bytes.
    """
    with pytest.raises(BadValue, match=message):
        decode(HEADER.pack(MAGIC, 1) + payload, lambda _: json.dumps(kind))
