import contextlib

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from mainstem.core import CorruptData
from mainstem.records import CorruptRecords, Record, build_batch, decode_header, decode_records
from mainstem.records.record import (
    assemble_batch,
    encode_record,
    iter_keys,
    iter_record_spans,
    read_varint,
    record_bytes,
    varint,
)

content = st.none() | st.binary(max_size=60)
headers = st.lists(st.tuples(st.text(max_size=8), content), max_size=3).map(tuple)
records = st.lists(
    st.builds(Record, st.just(0), st.integers(-1, 2**45), content, content, headers), min_size=1, max_size=6
)
codecs = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])


@given(records, st.integers(0, 2**40), codecs)
def test_decode_gives_what_build_was_given(given_records, base_offset, compression):
    data = build_batch(given_records, base_offset=base_offset, compression=compression)
    expected = [Record(base_offset + n, r.timestamp, r.key, r.value, r.headers) for n, r in enumerate(given_records)]
    assert decode_records(data) == expected
    header = decode_header(data)
    assert header.max_timestamp == max(r.timestamp for r in given_records)
    assert header.count == len(given_records)


@given(records, st.integers(0, 2**40), codecs, st.sampled_from([0, 100, 9_000]))
def test_keys_are_those_of_the_records(given_records, base_offset, compression, longer):
    """Also where lengths take three bytes."""
    given_records = [*given_records, Record(0, 0, b"k" * longer, b"v" * longer), Record(0, 2**44, None, None)]
    data = build_batch(given_records, base_offset=base_offset, compression=compression)
    header = decode_header(data)
    unpacked = record_bytes(header, data)
    found = list(iter_keys(header, unpacked))
    assert [each[:2] for each in found] == list(iter_record_spans(header, unpacked))
    expected = [(base_offset + n, r.key, r.value is not None) for n, r in enumerate(given_records)]
    assert [each[2:] for each in found] == expected


@given(st.binary(max_size=80), st.integers(0, 4), st.integers(0, 3))
def test_keys_of_anything_raise_only_corrupt_data(payload, count, last_delta):
    header = decode_header(build_batch([Record(0, 1, b"k", b"v")]))
    changed = msgspec.structs.replace(header, count=count, last_offset=last_delta)
    with contextlib.suppress(CorruptRecords):
        for start, end, offset, key, _ in iter_keys(changed, payload):
            assert 0 <= start < end <= len(payload)
            assert 0 <= offset <= last_delta
            assert key is None or key in payload[start:end]


def test_one_timestamp_for_all():
    data = build_batch([Record(0, 1, b"a", None), Record(0, 2, b"b", None)], timestamp=77)
    assert [record.timestamp for record in decode_records(data)] == [77, 77]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_of_every_size(number):
    data = varint(number)
    assert read_varint(b"\xff" + data, 1) == (number, 1 + len(data))
    assert len(data) <= 10


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11, b"\xff" * 9 + b"\x02"])
def test_a_varint_that_does_not_end(data):
    with pytest.raises(CorruptRecords, match="varint"):
        read_varint(data, 0)


@given(st.binary(max_size=80), codecs, st.integers(0, 4))
def test_a_right_crc_around_anything_raises_only_corrupt_data(payload, compression, count):
    header = decode_header(build_batch([Record(0, 1, b"k", b"v")], compression=compression))
    changed = type(header)(**{f: getattr(header, f) for f in header.__struct_fields__} | {"count": count})
    try:
        found = decode_records(assemble_batch(changed, payload))
    except CorruptData:
        return
    assert len(found) == count


def test_more_or_fewer_records_than_the_header_says():
    one = build_batch([Record(0, 1, b"k", b"v")])
    header = decode_header(one)
    for count, message in ((0, "bytes follow the last of 0 records"), (2, "varint is cut short")):
        changed = type(header)(**{f: getattr(header, f) for f in header.__struct_fields__} | {"count": count})
        with pytest.raises(CorruptRecords, match=message):
            decode_records(assemble_batch(changed, one[61:]))


@pytest.mark.parametrize(
    ("timestamp_delta", "offset_delta"), [(2**63 - 1, 0), (-(2**63), 0), (0, 1), (0, -1), (0, 2**40)]
)
def test_a_record_beyond_its_batch_is_corrupt(timestamp_delta, offset_delta):
    """An offset or a time that no answer can hold left the request without one."""
    header = decode_header(build_batch([Record(0, 1_700_000_000_000, b"k", b"v")]))
    record = encode_record(Record(0, 0, b"k", b"v"), timestamp_delta, offset_delta)
    with pytest.raises(CorruptRecords, match="offset 0: "):
        decode_records(assemble_batch(header, record))


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
