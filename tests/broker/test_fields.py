import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, Reader, Writer


@given(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=300),
    st.binary(max_size=300),
    st.none() | st.lists(st.integers(-(2**31), 2**31 - 1)),
    st.dictionaries(st.integers(0, 200), st.binary(max_size=200)),
)
def test_what_is_written_is_read(flexible, number, text, data, numbers, tags):
    writer = Writer(7, flexible=flexible)
    writer.int64(number)
    writer.string(text)
    writer.blob(data)
    writer.array(numbers, writer.int32)
    writer.tags(sorted(tags.items()))
    reader = Reader(writer.done())
    assert reader.int16() == 7
    reader.flexible = flexible
    assert (reader.int64(), reader.string(), reader.blob()) == (number, text, data)
    assert reader.array(reader.int32) == numbers
    assert reader.tags() == (tags if flexible else {})


@given(st.booleans(), st.binary(max_size=60))
def test_random_bytes_raise_only_corrupt_data(flexible, data):
    reader = Reader(data)
    reader.flexible = flexible
    with contextlib.suppress(CorruptCoordinatorRecord):
        reader.int16()
        reader.string()
        reader.blob()
        reader.array(reader.required_string)
        reader.tags()


def test_a_required_string_is_not_null():
    writer = Writer(0)
    writer.string(None)
    reader = Reader(writer.done())
    reader.int16()
    with pytest.raises(CorruptCoordinatorRecord, match="null where a string is required"):
        reader.required_string()
