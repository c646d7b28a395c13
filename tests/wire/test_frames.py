"""Frames and headers: what stands before every request and answer."""

import contextlib
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.index import api_key_map
from kio.schema.request_header.v1 import RequestHeader as HeaderV1
from kio.schema.request_header.v2 import RequestHeader as HeaderV2
from kio.serial import entity_writer

from mainstem.wire import codec, frames
from mainstem.wire.errors import MalformedFrame
from mainstem.wire.writing import write_varint

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


class Buffer(bytearray):
    """What kio's writers write to."""

    write = bytearray.extend


def test_flexible_versions_are_kios():
    for api_key in api_key_map:
        for version in codec.supported_versions(api_key):
            request = codec.schema(api_key, version, codec.EntityType.request)
            assert frames.is_flexible(api_key, version) is request.__flexible__, (api_key, version)


@given(st.sampled_from(sorted(api_key_map)), st.data(), INT32, st.none() | st.text(max_size=20), st.binary(max_size=20))
def test_reads_the_header_that_kio_writes(api_key, data, correlation_id, client_id, body):
    version = data.draw(st.sampled_from(codec.supported_versions(api_key)))
    kind = HeaderV2 if frames.is_flexible(api_key, version) else HeaderV1
    buffer = Buffer()
    header = kind(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    entity_writer(kind)(buffer, header)
    found = frames.read_header(bytearray(buffer + body))
    assert found == frames.RequestHeader(api_key, version, correlation_id, client_id or "", len(buffer))


def test_tags_of_a_header_are_skipped():
    head = Struct(">hhih").pack(3, 12, 7, 1) + b"c"
    tags = b"\x02" + b"\x00\x01x" + b"\x07\x00"
    assert frames.read_header(head + tags).body == len(head) + len(tags)


@given(st.binary(max_size=60))
def test_random_bytes_are_malformed_or_a_header(noise):
    with contextlib.suppress(MalformedFrame):
        assert frames.read_header(bytearray(noise)).body <= len(noise)


@given(st.sampled_from((0, 1, 3, 18, 36)), st.binary(max_size=60))
def test_random_tags_are_malformed_or_skipped(api_key, noise):
    with contextlib.suppress(MalformedFrame):
        frames.read_header(bytearray(Struct(">hhih").pack(api_key, 32000, 1, 0) + noise))


@given(st.integers(0, 2**32 - 1))
def test_varints_come_back(number):
    buffer = bytearray()
    write_varint(buffer, number)
    assert frames.read_varint(buffer, 0) == (number, len(buffer))


def test_a_varint_has_at_most_five_bytes():
    with pytest.raises(MalformedFrame):
        frames.read_varint(b"\xff" * 10, 0)


def test_an_answer_counts_its_header():
    assert frames.answer_header(3, 8, 5, 10) == Struct(">ii").pack(14, 5)
    assert frames.answer_header(3, 9, 5, 10) == Struct(">ii").pack(15, 5) + b"\0"


def test_g1_the_answer_to_api_versions_has_a_header_without_tags_in_every_version():
    for version in range(5):
        assert frames.answer_header(18, version, 5, 10) == Struct(">ii").pack(14, 5)


def test_a_section_of_too_many_tagged_fields_is_malformed():
    assert frames.skip_tags(b"\x64" + b"\x63\0" * 100, 0) == 201
    with pytest.raises(MalformedFrame, match="101 tagged fields; the limit is 100"):
        frames.skip_tags(b"\x65" + b"\x63\0" * 101, 0)
