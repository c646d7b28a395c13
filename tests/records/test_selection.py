"""A batch without some of its records."""

import contextlib

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from mainstem.records import CorruptRecords, Record, build_batch, decode_header, decode_records
from mainstem.records.record import assemble_batch, encode_record, record_bytes
from mainstem.records.selection import bare, select

content = st.none() | st.binary(max_size=60) | st.sampled_from([200, 20_000]).map(bytes)
records = st.lists(st.builds(Record, st.just(0), st.integers(-1, 2**45), content, content), min_size=1, max_size=8)


@given(records, st.integers(0, 2**40), st.sampled_from(["none", "zstd"]), st.none() | st.integers(0, 2**46), st.data())
def test_what_stays_keeps_its_bytes_offset_and_time(given_records, base_offset, compression, horizon, data):
    batch = build_batch(given_records, base_offset=base_offset, compression=compression, producer_id=3)
    header = decode_header(batch)
    chosen = data.draw(st.sets(st.integers(0, header.count - 1), min_size=1).map(sorted))
    found = select(header, record_bytes(header, batch), chosen, horizon)
    everything = decode_records(batch)
    assert decode_records(found) == [everything[number] for number in chosen]
    changed = decode_header(found)
    assert changed.max_timestamp == max(everything[number].timestamp for number in chosen)
    assert changed.has_delete_horizon == (horizon is not None)
    for field in ("base_offset", "last_offset", "producer_id", "compression"):
        assert getattr(changed, field) == getattr(header, field)
    if horizon is None and len(chosen) == header.count:
        assert record_bytes(changed, found) == record_bytes(header, batch)


def test_the_time_of_the_append_is_that_of_all():
    header = decode_header(build_batch([Record(0, 1, b"a", b""), Record(0, 2, b"b", b"")]))
    header = msgspec.structs.replace(header, attributes=header.attributes | 8, max_timestamp=99)
    payload = encode_record(Record(0, 0, b"a", b""), 0, 0) + encode_record(Record(0, 0, b"b", b""), 1, 1)
    assert decode_header(select(header, payload, [0])).max_timestamp == 99


@given(st.binary(max_size=80), st.sets(st.integers(0, 4), min_size=1).map(sorted))
def test_of_anything_it_raises_only_corrupt_data(payload, numbers):
    header = msgspec.structs.replace(decode_header(build_batch([Record(0, 1, b"k", b"v")])), count=5, last_offset=4)
    with contextlib.suppress(CorruptRecords):
        select(header, payload, numbers)


def test_a_time_that_is_none():
    header = decode_header(build_batch([Record(0, 1, b"k", b"v")]))
    with pytest.raises(CorruptRecords, match="timestamp"):
        select(header, encode_record(Record(0, 0, b"k", b"v"), 2**62, 0), [0])


def test_of_a_bare_batch_offsets_and_sequence_are_left():
    batch = build_batch(
        [Record(0, 1, b"k", b"v")] * 3, base_offset=5, producer_id=7, base_sequence=2, compression="lz4"
    )
    found = bare(decode_header(batch), memoryview(batch))
    header = decode_header(found)
    assert (header.base_offset, header.last_offset, header.count, header.size) == (5, 7, 0, 61)
    assert (header.producer_id, header.last_sequence, header.compression) == (7, 4, 0)
    assert bare(header, memoryview(found)) is not None
    assert decode_header(assemble_batch(header, b"")) == header
