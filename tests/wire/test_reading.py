"""Bytes to kio's instances: nothing but MalformedFrame is raised. See test_codec for kio as the judge."""

import datetime

import pytest

from mainstem.wire import codec
from mainstem.wire.errors import MalformedFrame


def test_null_where_a_value_is_required():
    with pytest.raises(MalformedFrame, match="null"):
        codec.decode_request(12, 0, b"\xff\xff" + bytes(20))  # group id
    with pytest.raises(MalformedFrame, match="null"):
        codec.decode_request(21, 0, b"\xff\xff\xff\xff" + bytes(20))  # topics


def test_text_that_is_not_utf8():
    with pytest.raises(MalformedFrame, match="UTF-8"):
        codec.decode_request(12, 0, b"\0\2\xff\xfe" + bytes(20))


def test_a_tagged_field_must_be_as_long_as_it_says():
    body = codec.encode_request(1, 12, {"cluster_id": "abc"})
    at = body.index(b"\x04abc") - 1
    assert body[at] == 4
    body[at : at + 1] = b"\x05"
    with pytest.raises(MalformedFrame):
        codec.decode_request(1, 12, body + b"\0")


def test_a_missing_tagged_field_has_its_default():
    assert codec.decode_request(1, 12, codec.encode_request(1, 12, {})).cluster_id is None


def test_times_and_durations():
    body = codec.encode_response(38, 3, {"issue_timestamp": 5, "expiry_timestamp": None, "throttle_time": 7})
    answer = codec.decode_response(38, 3, body)
    assert answer.issue_timestamp == datetime.datetime.fromtimestamp(0.005, datetime.UTC)
    assert answer.throttle_time == datetime.timedelta(milliseconds=7)


def test_a_time_beyond_the_calendar():
    body = codec.encode_response(38, 3, {"issue_timestamp": 2**62})
    with pytest.raises(MalformedFrame, match="is no time"):
        codec.decode_response(38, 3, body)
