import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.serve import BadQuery
from mainstem.serve.keys import decode_key, encode_key

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-11)), timezone(timedelta(hours=5, minutes=45))])
SAFE = {"min_value": datetime(2, 1, 1), "max_value": datetime(9998, 1, 1)}
COLUMNS = {
    "bool": st.booleans(),
    "int": st.integers() | st.integers(-300, 300),
    "float": st.floats(allow_nan=False),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-10, 10, places=2),
    "text": st.text() | st.text("a\0\x01\xff", max_size=4),
    "bytes": st.binary() | st.binary(max_size=3) | st.lists(st.sampled_from([b"\0", b"\x01", b"\xff"])).map(b"".join),
    "date": st.dates(),
    "time": st.times(),
    "naive": st.datetimes(),
    "aware": st.datetimes(**SAFE, timezones=ZONES),
    "uuid": st.uuids(),
}


@st.composite
def two_keys(draw):
    """Two keys with the same types of columns, that often begin alike."""
    columns = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    one = tuple(draw(COLUMNS[column]) for column in columns)
    same = draw(st.integers(0, len(columns)))
    return one, one[:same] + tuple(draw(COLUMNS[column]) for column in columns[same:])


@given(two_keys())
@example(((0.0,), (-0.0,)))
@example((("a",), ("a\0",)))
@example(((Decimal("1.0"),), (Decimal(1),)))
@example(((Decimal("-1.5"),), (Decimal("-1.55"),)))
@example(((-256,), (-255,)))
def test_bytes_sort_as_the_values_do(keys):
    one, other = keys
    a, b = encode_key(one), encode_key(other)
    assert (a < b, a == b) == (one < other, one == other)


@given(two_keys())
def test_a_key_comes_back_and_begins_no_other(keys):
    one, other = keys
    assert decode_key(encode_key(one)) == one
    if one != other:
        assert not encode_key(other).startswith(encode_key(one))
    assert encode_key(one).startswith(encode_key(one[:1]))


def test_null_is_below_all_else_and_nan_above_all_numbers():
    values = [None, False, -math.inf, 0.0, math.inf, math.nan]
    assert sorted(values, key=lambda value: encode_key([value])) == values
    assert encode_key([math.nan]) == encode_key([-math.nan])
    assert math.isnan(decode_key(encode_key([math.nan]))[0])


@given(st.binary())
def test_any_bytes_are_a_key_or_refused(data):
    try:
        key = decode_key(data)
    except ValueError:
        return
    assert isinstance(key, tuple)


@given(st.one_of(*COLUMNS.values()), st.data())
def test_a_key_that_was_cut_is_refused(value, data):
    whole = encode_key([value])
    cut = data.draw(st.integers(1, len(whole)))
    if cut < len(whole):
        with pytest.raises(ValueError):
            decode_key(whole[:cut])


@pytest.mark.parametrize("value", [[1], {"a": 1}, Decimal("NaN"), 1 << 2000])
def test_what_cannot_be_a_key_is_refused(value):
    with pytest.raises(BadQuery, match="key: expected"):
        encode_key((1, value))


def test_bytes_of_each_type():
    """They are on disks: a change of them is a change of the index's format."""
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    values = [None, True, 300, -1, 1.5, Decimal("-12.30"), "a\0", b"", date(2026, 1, 2), time(0, 0, 1), moment]
    assert [encode_key([value]).hex() for value in [*values, moment.replace(tzinfo=None), UUID(int=1)]] == [
        "01",
        "03",
        "1082012c",
        "107efe",
        "11bff8000000000000",
        "12017efefdfcfbff",
        "20" + "6100ff0001",
        "210001",
        "30830b4922",
        "31830f4240",
        "33830f4240",
        "32830f4240",
        "40" + "00" * 15 + "01",
    ]
