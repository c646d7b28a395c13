import cramjam
import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.core import CorruptData
from mainstem.records.compression import NAMES, compress, decompress
from mainstem.records.errors import CorruptRecords, UnknownCompression, UnpackedTooLarge


@given(st.sampled_from(range(5)), st.binary(max_size=500), st.integers(1, 300))
def test_decompress_gives_what_compress_was_given(codec, data, times):
    assert decompress(codec, compress(codec, data * times)) == data * times


@given(st.sampled_from(range(1, 5)), st.binary(min_size=1, max_size=500), st.integers(1, 300))
def test_no_more_is_unpacked_than_the_limit(codec, data, times):
    data = data * times
    packed = compress(codec, data)
    assert decompress(codec, packed, limit=len(data)) == data
    assert decompress(codec, packed, limit=10 * len(data)) == data
    with pytest.raises(UnpackedTooLarge, match=f"more than {len(data) - 1}"):
        decompress(codec, packed, limit=len(data) - 1)


@given(st.sampled_from(range(1, 5)), st.binary(max_size=100))
def test_random_bytes_raise_only_corrupt_data(codec, data):
    try:
        decompress(codec, data, limit=1000)
    except CorruptData:
        return


@pytest.mark.parametrize("codec", range(1, 5))
def test_the_codec_is_named(codec):
    with pytest.raises(CorruptRecords, match=NAMES[codec]):
        decompress(codec, b"no stream of any codec")


def test_librdkafka_writes_a_bare_snappy_block():
    assert decompress(2, bytes(cramjam.snappy.compress_raw(b"hello " * 50))) == b"hello " * 50


def test_lz4_blocks_are_independent_as_java_demands():
    flags = compress(3, b"hello " * 50)[4]
    assert flags & 0x20


@pytest.mark.parametrize("tail", [b"\x00", b"\x00\x00\x00\x63abc", b"\xff\xff\xff\xff"])
def test_a_snappy_stream_that_is_cut_short(tail):
    with pytest.raises(CorruptRecords, match=r"snappy: byte (16|20): "):
        decompress(2, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + tail)


@pytest.mark.parametrize("call", [compress, decompress])
def test_a_codec_that_kafka_does_not_have(call):
    with pytest.raises(UnknownCompression, match="codec 5"):
        call(5, b"data")
