"""The hand-written ShareFetch encoder and kio agree on the bytes."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mainstem.wire import codec, share_fetch
from mainstem.wire.errors import Code
from mainstem.wire.share_fetch import SharedPartition

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

partitions = st.builds(
    SharedPartition,
    INT32,
    st.sampled_from(Code),
    st.sampled_from(Code),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    st.lists(st.binary(min_size=1, max_size=300), max_size=3),
    st.lists(st.tuples(INT64, INT64, st.integers(0, 25)), max_size=3),
)
topics = st.lists(
    st.tuples(st.uuids().filter(lambda each: each.int != 0), st.lists(partitions, max_size=3)), max_size=3
)


def as_message(topics, code, lock_ms):
    def partition(each):
        return {
            "partition_index": each.index,
            "error_code": each.code,
            "acknowledge_error_code": each.acknowledge_code,
            "acknowledge_error_message": each.acknowledge_message,
            "current_leader": {"leader_id": -1, "leader_epoch": -1},
            "records": b"".join(each.records),
            "acquired_records": [
                {"first_offset": first, "last_offset": last, "delivery_count": count}
                for first, last, count in each.acquired
            ],
        }

    return {
        "error_code": code,
        "acquisition_lock_timeout": lock_ms,
        "responses": [
            {"topic_id": topic_id, "partitions": [partition(each) for each in found]} for topic_id, found in topics
        ],
    }


@given(st.integers(1, 2), topics, st.sampled_from(Code), st.integers(0, 2**31 - 1))
def test_encodes_what_the_codec_encodes(version, topics, code, lock_ms):
    body = b"".join(share_fetch.encode(topics, lock_ms=lock_ms, code=code))
    assert body == codec.encode_response(78, version, as_message(topics, code, lock_ms))
    codec.decode_response(78, version, body)


def test_records_are_chunks_of_their_own():
    records = [memoryview(b"batch"), memoryview(b"batches")]
    chunks = share_fetch.encode([(UUID(int=1), [SharedPartition(0, records=records)])], lock_ms=0)
    assert all(any(chunk is each for chunk in chunks) for each in records)
