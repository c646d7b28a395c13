"""The hand-written Fetch encoder and kio agree on the bytes."""

from hypothesis import given
from hypothesis import strategies as st

from mainstem.wire import codec, fetch
from mainstem.wire.errors import Code
from mainstem.wire.fetch import FetchedPartition, FetchedTopic

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(0, 2**31 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)

partitions = st.builds(
    FetchedPartition,
    INT32,
    st.sampled_from(Code),
    INT64,
    INT64,
    INT64,
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=3).map(tuple),
    st.lists(st.binary(min_size=1, max_size=300), max_size=3),
    st.none() | st.tuples(EPOCHS, INT64),
    st.none() | st.tuples(EPOCHS, EPOCHS),
)
topics = st.lists(
    st.builds(FetchedTopic, NAMES, st.uuids().filter(lambda each: each.int != 0), st.lists(partitions, max_size=3)),
    max_size=3,
)


def as_message(topics, code, session_id, version):
    def partition(each):
        fields = {
            "partition_index": each.index,
            "error_code": each.code,
            "high_watermark": each.high_watermark,
            "last_stable_offset": each.last_stable_offset,
            "log_start_offset": each.log_start_offset,
            "aborted_transactions": each.aborted
            if each.aborted is None
            else [{"producer_id": p, "first_offset": o} for p, o in each.aborted],
            "records": b"".join(each.records),
        }
        if version >= 12 and each.diverging_epoch is not None:
            fields["diverging_epoch"] = dict(zip(("epoch", "end_offset"), each.diverging_epoch, strict=True))
        if version >= 12 and each.current_leader is not None:
            fields["current_leader"] = dict(zip(("leader_id", "leader_epoch"), each.current_leader, strict=True))
        return fields

    return {
        "error_code": code,
        "session_id": session_id,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [partition(each) for each in topic.partitions],
            }
            for topic in topics
        ],
    }


@given(st.integers(4, 18), topics, st.sampled_from(Code), INT32)
def test_encodes_what_the_codec_encodes(version, topics, code, session_id):
    body = b"".join(fetch.encode(version, topics, code=code, session_id=session_id))
    assert body == codec.encode_response(1, version, as_message(topics, code, session_id, version))
    codec.decode_response(1, version, body)


def test_records_are_chunks_of_their_own():
    records = [memoryview(b"batch"), memoryview(b"batches")]
    chunks = fetch.encode(12, [FetchedTopic("t", None, [FetchedPartition(0, records=records)])])
    assert all(any(chunk is each for chunk in chunks) for each in records)
