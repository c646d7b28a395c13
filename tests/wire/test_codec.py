"""Every message of every version: loaded when asked for, written and read as kio does, and safe against anything."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.wire import codec
from mainstem.wire.codec import EntityType
from mainstem.wire.errors import MalformedFrame
from mainstem.wire.writing import Encoded
from tests.support.properties import examples
from tests.wire.messages import EVERY, as_dict, read_by_kio, values, written_by_kio


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(EVERY), st.data())
def test_writes_and_reads_the_same_bytes_as_kio(which, data):
    for kind, encode, decode in (
        (EntityType.response, codec.encode_response, codec.decode_response),
        (EntityType.request, codec.encode_request, codec.decode_request),
    ):
        entity = data.draw(values(codec.schema(*which, kind)))
        body = encode(*which, as_dict(entity))
        assert body == written_by_kio(entity)
        assert decode(*which, body) == read_by_kio(type(entity), body) == entity


def test_a_message_without_fields_has_kafkas_defaults():
    for which in EVERY:
        codec.decode_response(*which, codec.encode_response(*which, {}))
        codec.decode_request(*which, codec.encode_request(*which, {}))


@settings(max_examples=examples(400))
@given(st.sampled_from(EVERY), st.binary(max_size=80))
def test_random_bytes_are_malformed_or_a_request(which, noise):
    with contextlib.suppress(MalformedFrame):
        codec.decode_request(*which, noise)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(EVERY), st.data())
def test_a_damaged_request_is_malformed_or_another_one(which, data):
    body = codec.encode_request(*which, as_dict(data.draw(values(codec.schema(*which, EntityType.request)))))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body)))
        body[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=5))
    with contextlib.suppress(MalformedFrame):
        codec.decode_request(*which, body)


def test_an_array_that_announces_two_thousand_million_items_is_malformed():
    """Kio's native reader reserves the memory for them first, and aborts the process."""
    with pytest.raises(MalformedFrame):
        codec.decode_request(3, 8, b"\x7f\xff\xff\xff\0\0\0\0")


def test_unknown_tagged_fields_are_skipped():
    """KIP-482: a newer client may send them; kio's native reader refuses them."""
    body = codec.encode_request(3, 12, {"topics": None})
    assert body[-1] == 0
    assert codec.decode_request(3, 12, body[:-1] + b"\x01\x63\x02ab").topics is None


def test_librdkafka_sends_bytes_behind_a_request():
    body = codec.encode_request(3, 13, {"topics": None}) + b"\0\0\0"
    assert codec.decode_request(3, 13, b"head" + body, 4).topics is None


def test_top_level_fields_are_known():
    assert "error_code" in codec.field_names(12, 4)
    assert "error_code" not in codec.field_names(3, 12)


def test_unknown_apis_have_no_versions():
    assert list(codec.supported_versions(999)) == []
    assert list(codec.supported_versions(18)) == [0, 1, 2, 3, 4]


def test_no_message_is_loaded_before_it_is_asked_for():
    code = "import sys, mainstem.wire.codec; print([m for m in sys.modules if m.startswith('kio.schema.metadata')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("version", [1, 4])
def test_an_array_whose_items_are_encoded_one_by_one_has_the_same_bytes(version):
    items = [{"resource_type": 32, "resource_name": f"g{number}", "error_code": number} for number in range(300)]
    encoded = Encoded()
    for item in items:
        codec.encode_item(encoded, 32, version, "results", item)
    assert len(encoded) == len(items)
    whole = codec.encode_response(32, version, {"throttle_time": 5, "results": items})
    assert codec.encode_response(32, version, {"throttle_time": 5, "results": encoded}) == whole
    chunks = codec.encode_chunks(32, version, {"throttle_time": 5, "results": encoded})
    assert b"".join(chunks) == whole
    assert any(each is encoded.data for each in chunks), "it is not copied"
