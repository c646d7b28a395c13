"""The hand-written Produce codec and kio read and write the same bytes."""

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.wire import codec, produce
from mainstem.wire.errors import Code, MalformedFrame
from mainstem.wire.produce import PartitionRecords, PartitionResult, ProduceRequest, TopicRecords
from mainstem.wire.reading import MOST_ITEMS

VERSIONS = st.integers(3, 13)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
IDS = st.uuids().filter(lambda each: each.int != 0)

partitions = st.lists(
    st.builds(lambda i, r: {"index": i, "records": r}, INT32, st.none() | st.binary(max_size=200)), max_size=4
)
topics = st.lists(
    st.builds(lambda n, i, p: {"name": n, "topic_id": i, "partition_data": p}, NAMES, IDS, partitions), max_size=3
)
requests = st.builds(
    lambda t, a, ms, topics: {"transactional_id": t, "acks": a, "timeout": ms, "topic_data": topics},
    st.none() | NAMES,
    INT16,
    INT32,
    topics,
)
results = st.builds(
    PartitionResult,
    INT32,
    st.sampled_from(Code),
    INT64,
    st.integers(-1, 10**12),
    INT64,
    st.none() | NAMES,
    st.lists(st.tuples(INT32, NAMES), max_size=3).map(tuple),
)
answers = st.lists(
    st.tuples(
        st.builds(TopicRecords, NAMES, IDS.map(lambda each: each.bytes), st.just([])), st.lists(results, max_size=4)
    ),
    max_size=3,
)


def plain(request: ProduceRequest, version: int) -> dict:
    """What was decoded, with kio's names."""
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            ({"topic_id": UUID(bytes=topic.topic_id)} if version >= 13 else {"name": topic.name})
            | {
                "partition_data": [
                    {"index": each.index, "records": None if each.records is None else bytes(each.records)}
                    for each in topic.partitions
                ]
            }
            for topic in request.topics
        ],
    }


@given(VERSIONS, requests, st.binary(max_size=9))
def test_decodes_what_kio_decodes(version, message, head):
    body = codec.encode_request(0, version, message)
    by_kio = codec.decode_request(0, version, body)
    by_hand = produce.decode(version, bytearray(head) + body, len(head))
    assert plain(by_hand, version) == {
        "transactional_id": by_kio.transactional_id,
        "acks": by_kio.acks,
        "timeout": message["timeout"],
        "topic_data": [
            ({"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name})
            | {"partition_data": [{"index": each.index, "records": each.records} for each in topic.partition_data]}
            for topic in by_kio.topic_data
        ],
    }


@given(VERSIONS, answers)
def test_encodes_what_the_codec_encodes(version, answer):
    message = {
        "responses": [
            {
                "name": topic.name,
                "topic_id": UUID(bytes=topic.topic_id),
                "partition_responses": [
                    {
                        "index": each.index,
                        "error_code": each.code,
                        "base_offset": each.base_offset,
                        "log_append_time": each.log_append_time_ms,
                        "log_start_offset": each.log_start_offset,
                        "record_errors": [
                            {"batch_index": number, "batch_index_error_message": why} for number, why in each.records
                        ],
                        "error_message": each.message,
                    }
                    for each in partitions
                ],
            }
            for topic, partitions in answer
        ]
    }
    encoded = produce.encode(version, answer)
    assert encoded == codec.encode_response(0, version, message)
    codec.decode_response(0, version, encoded)


@given(VERSIONS, requests, st.data())
def test_a_cut_request_is_malformed_and_nothing_else(version, message, data):
    body = codec.encode_request(0, version, message)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedFrame):
        produce.decode(version, bytearray(body[:cut]), 0)


@given(VERSIONS, st.binary(max_size=200))
def test_random_bytes_are_malformed_or_a_request(version, noise):
    with contextlib.suppress(MalformedFrame):
        produce.decode(version, bytearray(noise), 0)


@given(st.none() | NAMES, INT16, INT32, IDS, st.integers(-1, 3), st.integers(0, 300), st.data())
def test_one_partition_is_decoded_as_kio_decodes_it(transactional_id, acks, timeout, topic_id, index, size, data):
    """The short cut for the usual request, and what is nearly one."""
    message = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"topic_id": topic_id, "partition_data": [{"index": index, "records": b"r" * size}]}],
    }
    body = codec.encode_request(0, 13, message)
    decoded = produce.decode(13, bytearray(body), 0)
    assert decoded.transactional_id == transactional_id
    assert plain(decoded, 13) == message
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(MalformedFrame):
        produce.decode(13, bytearray(body[:cut]), 0)


def test_records_are_a_writable_view_of_the_frame():
    body = codec.encode_request(
        0, 9, {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
    )
    frame = bytearray(body)
    records = produce.decode(9, frame, 0).topics[0].partitions[0].records
    records[0:1] = b"X"
    assert b"Xbc" in frame


def test_structs_are_what_handlers_build():
    result = (TopicRecords("", UUID(int=7).bytes, [PartitionRecords(0, None)]), [PartitionResult(0)])
    assert codec.decode_response(0, 13, produce.encode(13, [result])).responses[0].topic_id == UUID(int=7)


@pytest.mark.parametrize("version", [8, 9, 13])
def test_a_request_has_a_limit_of_topics_and_partitions(version):
    half = {"name": "t", "topic_id": UUID(int=1), "partition_data": [{"index": 0, "records": None}] * (MOST_ITEMS // 2)}
    message = {"acks": -1, "timeout": 1, "topic_data": [half, half]}
    body = codec.encode_request(0, version, message)
    with pytest.raises(MalformedFrame, match="more than 100000 items in one request"):
        produce.decode(version, body, 0)


@pytest.mark.parametrize("version", [3, 8])
@pytest.mark.parametrize("partitions", [-1, -(2**31)])
def test_a_negative_number_of_partitions_gives_no_room_for_others(version, partitions):
    """It was added to the items of the request, so that one of -2^31 let any number of others in."""
    many = MOST_ITEMS + 1
    body = struct.pack(">hhii", -1, 1, 1, 2) + struct.pack(">h1si", 1, b"a", partitions)
    body += struct.pack(">h1si", 1, b"b", many) + struct.pack(">ii", 0, -1) * many
    with pytest.raises(MalformedFrame, match="byte 19: null where an array is required"):
        produce.decode(version, bytearray(body), 0)
    with pytest.raises(MalformedFrame):
        codec.decode_request(0, version, body)


@pytest.mark.parametrize("version", [3, 9])
def test_a_request_whose_topics_are_null_is_malformed(version):
    null, nothing = (b"\0", b"\0") if version == 9 else (struct.pack(">i", -1), b"")
    head = (b"\0" if version == 9 else struct.pack(">h", -1)) + struct.pack(">hi", 1, 1)
    with pytest.raises(MalformedFrame, match="null where an array is required"):
        produce.decode(version, bytearray(head + null + nothing), 0)
    with pytest.raises(MalformedFrame):
        codec.decode_request(0, version, head + null + nothing)


@pytest.mark.parametrize("version", [8, 9])
def test_a_partitions_message_is_cut_to_what_a_string_has_room_for(version):
    results = [(TopicRecords("t", b"", []), [PartitionResult(0, Code.invalid_record, message="m" * 40_000)])]
    answer = codec.decode_response(0, version, produce.encode(version, results))
    assert answer.responses[0].partition_responses[0].error_message == "m" * 32_767
