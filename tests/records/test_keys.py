"""The keys of a batch's records: both ways to them agree, also in what they refuse."""

import contextlib

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from mainstem.records import CorruptRecords, Record, build_batch, decode_header, decode_records
from mainstem.records.keys import Keys, read_keys, read_keys_compiled
from mainstem.records.record import assemble_batch, iter_record_spans, read_varint

content = st.none() | st.binary(max_size=60)
headers = st.lists(st.tuples(st.text(max_size=8), content), max_size=3).map(tuple)
records = st.lists(
    st.builds(Record, st.just(0), st.integers(-1, 2**45), content, content, headers), min_size=1, max_size=6
)
codecs = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])
both = pytest.mark.parametrize("read", [read_keys, read_keys_compiled])


@both
@given(given_records=records, base_offset=st.integers(0, 2**40), compression=codecs)
def test_keys_offsets_and_tombstones(read, given_records, base_offset, compression):
    batch = memoryview(build_batch(given_records, base_offset=base_offset, compression=compression))
    expected = decode_records(batch)
    assert read(decode_header(batch), batch) == Keys(
        [record.key for record in expected],
        [record.offset for record in expected],
        [number for number, record in enumerate(expected) if record.value is None],
    )


@given(st.binary(max_size=80), st.integers(0, 4), st.integers(0, 3))
def test_both_refuse_the_same(payload, count, last_delta):
    header = decode_header(build_batch([Record(0, 1, b"k", b"v")]))
    batch = memoryview(assemble_batch(msgspec.structs.replace(header, count=count, last_offset=last_delta), payload))
    with contextlib.suppress(CorruptRecords):  # a record's attributes are one byte, the compiled parser takes a varint
        spans = list(iter_record_spans(decode_header(batch), payload))
        assume(
            all(
                payload[at] < 0x80 for at in (read_varint(payload, start)[1] for start, _ in spans) if at < len(payload)
            )
        )
    answers: list[Keys | str] = []
    for read in (read_keys, read_keys_compiled):
        try:
            answers.append(read(decode_header(batch), batch))
        except CorruptRecords:
            answers.append("refused")
    assert answers[0] == answers[1]


@both
def test_a_header_that_is_not_text_is_nobodys_business_here(read):
    batch = build_batch([Record(0, 1, b"k", b"v", (("name", b"x"),))]).replace(b"name", b"\xffame")
    header = decode_header(assemble_batch(decode_header(build_batch([Record(0, 1, b"k", b"v")])), batch[61:]))
    assert read(header, memoryview(batch)) == Keys([b"k"], [0], [])


@both
def test_a_record_beyond_its_batch(read):
    header = decode_header(build_batch([Record(0, 1, b"a", b"v"), Record(0, 1, b"b", b"v")]))
    batch = build_batch([Record(0, 1, b"a", b"v"), Record(0, 1, b"b", b"v")])
    short = memoryview(assemble_batch(msgspec.structs.replace(header, last_offset=0), batch[61:]))
    with pytest.raises(CorruptRecords, match="beyond the batch"):
        read(decode_header(short), short)
