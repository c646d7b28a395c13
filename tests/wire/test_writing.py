"""Dicts to bytes. See test_codec for kio as the judge."""

import datetime
import subprocess
import sys
from uuid import UUID

import pytest

from mainstem.wire import codec, writing
from mainstem.wire.errors import Code


def test_fields_of_other_versions_are_left_out():
    topic = {"name": "t", "topic_id": UUID(int=1)}
    old = codec.decode_response(3, 1, codec.encode_response(3, 1, {"topics": [topic], "cluster_id": "c"}))
    assert not hasattr(old, "cluster_id")
    new = codec.decode_response(3, 12, codec.encode_response(3, 12, {"topics": [topic], "cluster_id": "c"}))
    assert new.cluster_id == "c"
    assert new.topics[0].topic_id == UUID(int=1)


def test_a_field_that_no_version_has_is_a_slip_of_the_pen(monkeypatch):
    monkeypatch.setattr(writing, "strict", True)
    with pytest.raises(TypeError, match=r"no field topics\.leader in any version"):
        codec.encode_response(3, 12, {"topics": [{"leader": 1}]})


def test_other_versions_are_not_loaded_to_look_for_a_field():
    """Start-up is part of the product: the first answer to Metadata loads one version, not fourteen."""
    code = (
        "import sys; from mainstem.wire import codec; codec.encode_response(3, 12, {'cluster_authorized_operations': 1});"
        "print(sorted(m.split('.')[3] for m in sys.modules if m.startswith('kio.schema.metadata.v') and m[-1].isdigit()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['v12']\n"


def test_durations_and_codes_may_be_numbers():
    body = codec.encode_response(18, 1, {"throttle_time": 5, "error_code": 35})
    answer = codec.decode_response(18, 1, body)
    assert answer.throttle_time == datetime.timedelta(milliseconds=5)
    assert answer.error_code is Code.unsupported_version


def test_tagged_fields_with_their_default_are_not_written():
    plain = codec.encode_response(0, 10, {})
    assert codec.encode_response(0, 10, {"node_endpoints": []}) == plain
    assert codec.encode_response(0, 10, {"node_endpoints": [{"node_id": 1}]}) != plain


@pytest.mark.parametrize("version", [2, 7])
@pytest.mark.parametrize("text", ["\\x00" * 9000, "\u20ac" * 11000])
def test_an_errors_text_is_cut_to_what_a_string_has_room_for(version, text):
    """One that quoted a name of many control characters broke the connection, the other topics created."""
    answer = {"topics": [{"name": "t", "error_code": Code.invalid_topic_exception, "error_message": text}]}
    (topic,) = codec.decode_response(19, version, codec.encode_response(19, version, answer)).topics
    assert text.startswith(topic.error_message)
    assert 32_764 < len(topic.error_message.encode()) <= 32_767
    short = {"topics": [{"name": "t", "error_message": text[: 32_767 // 4]}]}
    (topic,) = codec.decode_response(19, version, codec.encode_response(19, version, short)).topics
    assert topic.error_message == text[: 32_767 // 4]
