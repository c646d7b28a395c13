import hypothesis.strategies as st
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given

from mainstem.core import CorruptData
from mainstem.records import (
    CorruptBatch,
    Record,
    build_batch,
    decode_header,
    decode_records,
    iter_headers,
    iter_spans,
    set_append_time,
)
from mainstem.records.batch import HEADER, MAX_SEQUENCE

offsets = st.integers(0, 2**62)


def batch(count: int = 2, **fields) -> bytes:
    return build_batch([Record(0, 1_000 + n, b"key", b"value") for n in range(count)], **fields)


def test_every_field_of_the_header_is_decoded():
    data = batch(
        3, base_offset=40, leader_epoch=2, producer_id=9, producer_epoch=1, base_sequence=5, transactional=True,
        compression="zstd",
    )  # fmt: skip
    header = decode_header(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.size, header.count, header.leader_epoch) == (len(data), 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 1, 5, 7)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_002)
    assert header.is_transactional
    assert not header.is_control
    assert header.compression == 4


def test_aiokafka_reads_what_we_write_and_we_read_what_it_writes():
    ours = DefaultRecordBatch(batch(2, base_offset=7))
    assert ours.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in ours] == [
        (7, 1_000, b"key", b"value"), (8, 1_001, b"key", b"value"),
    ]  # fmt: skip
    builder = DefaultRecordBatchBuilder(2, 0, 1, 77, 3, 12, 1 << 20)
    for n in range(3):
        builder.append(n, 500 + n, b"k", b"v%d" % n, [("h", b"x")])
    theirs = bytes(builder.build())
    header = decode_header(theirs)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (77, 3, 12, 3)
    assert decode_records(theirs)[2] == Record(2, 502, b"k", b"v2", (("h", b"x"),))


def test_sequences_start_again_at_zero():
    assert decode_header(batch(3, producer_id=1, producer_epoch=0, base_sequence=MAX_SEQUENCE - 1)).last_sequence == 0
    assert decode_header(batch(3)).last_sequence == -1


def test_append_time_replaces_the_records_times():
    data = bytearray(batch(2))
    set_append_time(data, 99_000)
    header = decode_header(data)
    assert header.has_append_time
    assert header.max_timestamp == 99_000
    assert [record.timestamp for record in decode_records(data)] == [99_000, 99_000]


@given(st.lists(st.integers(1, 5), max_size=5), st.data())
def test_batches_one_after_the_other(counts, data):
    offset, whole = 0, b""
    for count in counts:
        whole += batch(count, base_offset=offset)
        offset += count
    headers = list(iter_headers(whole))
    assert [header.count for header in headers] == counts
    cut = data.draw(st.integers(0, len(whole)))
    spans = list(iter_spans(whole[:cut]))
    ends = [sum(h.size for h in headers[: n + 1]) for n in range(len(headers))]
    assert [span.end for span in spans] == [end for end in ends if end <= cut]
    assert [(s.base_offset, s.last_offset) for s in spans] == [
        (h.base_offset, h.last_offset) for h in headers[: len(spans)]
    ]
    if cut not in (0, *ends):
        with pytest.raises(CorruptBatch):
            list(iter_headers(whole[:cut]))


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_is_found(byte, bit):
    data = bytearray(batch(2, leader_epoch=0))
    data[byte % len(data)] ^= 1 << bit
    if byte % len(data) < 8 or 12 <= byte % len(data) < 16:
        return  # offset and epoch are the log's; it checks them otherwise
    with pytest.raises(CorruptBatch):
        list(iter_headers(data))


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_corrupt_data(data):
    for read in (lambda: list(iter_headers(data)), lambda: decode_records(data)):
        try:
            read()
        except CorruptData:
            continue
    assert all(span.end <= len(data) for span in iter_spans(data))


@pytest.mark.parametrize(("position", "number"), [(8, 20), (8, 2**31 - 1), (16, 1)])
def test_a_bad_length_or_magic_names_the_place(position, number):
    data = bytearray(batch())
    data[position : position + (1 if position == 16 else 4)] = number.to_bytes(1 if position == 16 else 4, "big")
    with pytest.raises(CorruptBatch, match="byte 0: "):
        decode_header(data)
    with pytest.raises(CorruptBatch, match=f"byte 3: a batch header is {HEADER.size} bytes, found 2"):
        decode_header(bytes(5), 3)
