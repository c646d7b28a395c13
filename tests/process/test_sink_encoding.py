import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.transaction import frame
from mainstem.process.sink_encoding import LONGEST, TooLong, encode
from mainstem.records import decode_records

data = st.none() | st.binary(max_size=300)
header = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)}), max_size=3
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def decoded(batches):
    """The records of encoded batches, read by the log's own decoder."""
    rows = []
    for batch in batches:
        found = decode_records(frame(batch.records, batch.count, 7, 1, 2, 3))
        assert [record.offset for record in found] == list(range(batch.count))
        rows += [(record.key, record.value, tuple(record.headers)) for record in found]
    return rows


@given(st.lists(st.tuples(data, data, header), max_size=40), st.integers(1, 2000), st.integers(0, 3))
def test_what_is_encoded_is_what_the_log_decodes(rows, batch_bytes, sliced):
    keys, values = (pa.array([row[column] for row in rows], pa.binary()) for column in (0, 1))
    headers = pa.array([row[2] for row in rows], HEADERS)
    rows, keys, values, headers = rows[sliced:], keys[sliced:], values[sliced:], headers[sliced:]
    expected = [(key, value, tuple((h["key"], h["value"]) for h in header)) for key, value, header in rows]
    assert decoded(encode(keys, values, headers, batch_bytes=batch_bytes)) == expected
    plain = [(key, value, ()) for key, value, _ in rows]
    assert decoded(encode(keys, values, batch_bytes=batch_bytes)) == plain


def test_a_null_list_of_headers_is_none():
    headers = pa.array([None, [{"key": "h", "value": b"1"}], None], HEADERS)
    nothing = pa.array([None] * 3, pa.binary())
    assert [row[2] for row in decoded(encode(nothing, nothing, headers))] == [(), (("h", b"1"),), ()]


def test_batches_stay_near_their_size():
    values = pa.array([b"x" * 100] * 10_000, pa.binary())
    sizes = [len(batch.records) for batch in encode(values, values)]
    assert sum(sizes) > 2_000_000
    assert max(sizes) <= 256 * 1024
    assert min(sizes[:-1]) > 200 * 1024


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST * 2])
def test_what_is_too_long_for_the_tables_is_told_before_anything_is_given_out(size):
    values = pa.array([b"a", b"x" * size], pa.binary())
    with pytest.raises(TooLong):
        next(encode(values, values))
