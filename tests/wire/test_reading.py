"""Bytes to kio's instances: nothing but MalformedFrame is raised. See test_codec for kio as the judge."""

import datetime
from functools import partial

import pytest

from mainstem.wire import codec, produce
from mainstem.wire.errors import MalformedFrame
from mainstem.wire.frames import MOST_TEXT
from mainstem.wire.reading import MOST_ITEMS


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


def test_a_duration_beyond_the_calendar_is_the_longest_there_is():
    """As a number that Kafka takes: a commit that is to be kept for ever."""
    for number, longest in ((2**63 - 1, datetime.timedelta.max), (-(2**63), datetime.timedelta.min)):
        data = bytearray(codec.encode_request(8, 2, {"group_id": "g", "topics": [], "retention_time": 7}))
        at = data.index((7).to_bytes(8, "big"))
        data[at : at + 8] = number.to_bytes(8, "big", signed=True)
        assert codec.decode_request(8, 2, bytes(data)).retention_time == longest


def test_a_time_beyond_the_calendar():
    body = codec.encode_response(38, 3, {"issue_timestamp": 2**62})
    with pytest.raises(MalformedFrame, match="is no time"):
        codec.decode_response(38, 3, body)


def test_a_request_has_a_limit_of_items_in_all_arrays_together():
    """Two megabytes of empty names became two million objects, and as many deletions on the event loop."""
    names = {"topic_names": [""] * MOST_ITEMS, "timeout": 1}
    for _ in range(2):  # each request has its own
        assert len(codec.decode_request(20, 5, codec.encode_request(20, 5, names)).topic_names) == MOST_ITEMS
    names["topic_names"].append("")
    with pytest.raises(MalformedFrame, match="more than 100000 items in one request"):
        codec.decode_request(20, 5, codec.encode_request(20, 5, names))
    topic = {"name": "t", "partitions": [{"partition_index": 0}] * (MOST_ITEMS // 2)}
    with pytest.raises(MalformedFrame, match="more than 100000 items in one request"):
        codec.decode_request(2, 5, codec.encode_request(2, 5, {"replica_id": -1, "topics": [topic, topic]}))
    answer = codec.encode_response(20, 5, {"responses": [{"name": "t"}] * (MOST_ITEMS + 1)})
    assert len(codec.decode_response(20, 5, answer).responses) == MOST_ITEMS + 1


def test_tagged_fields_count_too():
    body = codec.encode_request(3, 12, {"topics": None})
    assert body[-1] == 0
    with pytest.raises(MalformedFrame, match="more than 100000 items"):
        codec.decode_request(3, 12, body[:-1] + b"\xa1\x8d\x06" + b"\x63\0" * (MOST_ITEMS + 1))


@pytest.mark.parametrize(
    ("api_key", "version", "name"), [(11, 9, "group_id"), (20, 5, "topic_names"), (0, 12, "transactional_id")]
)
def test_a_string_has_no_more_bytes_than_kafkas(api_key, version, name):
    """A group's id of 20 MB stayed in memory when its client had gone. Produce has a decoder of its own."""

    def decoded(text):
        body = codec.encode_request(api_key, version, {name: [text] if name.endswith("s") else text})
        return (produce.decode if api_key == 0 else partial(codec.decode_request, api_key))(version, body, 0)

    longest = "x" * MOST_TEXT
    assert getattr(decoded(longest), name) in (longest, (longest,))
    with pytest.raises(MalformedFrame, match="32768 bytes, expected 32767 at most"):
        decoded(longest + "x")
