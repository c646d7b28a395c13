import math
from contextlib import suppress
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.serve.rows import pack, unpack
from tests.serve.support import NESTED, flight


@given(st.dictionaries(st.text(max_size=5), NESTED, max_size=6))
def test_a_row_comes_back_equal_and_of_the_same_types(row):
    (found,) = unpack(pack(row))
    assert found == row
    assert repr(found) == repr(row)  # 1 is no 1.0 there, and no True


def test_numbers_that_are_none_and_zeros_at_the_end():
    nan, inf, decimal = unpack(pack(math.nan, -math.inf, Decimal("1.500")))
    assert math.isnan(nan)
    assert (inf, str(decimal)) == (-math.inf, "1.500")


def test_a_flight_is_no_longer_than_it_has_to_be():
    assert len(pack(flight(1))) < 280


@given(st.binary(max_size=30))
def test_any_bytes_are_values_or_refused(data):
    with suppress(ValueError):
        unpack(data)


def test_an_extension_of_another_number_is_refused():
    with pytest.raises(ValueError, match="extension"):
        unpack(msgspec.msgpack.encode([msgspec.msgpack.Ext(9, b"")]))
