"""DeleteRecords: the log start offset moves up and never down."""

import pytest

from mainstem.wire.errors import Code


def delete(raw, topic, offset, *, version=2, partition=0):
    asked = [{"partition_index": partition, "offset": offset}]
    return raw.call(21, version, topics=[{"name": topic, "partitions": asked}], timeout=1000).topics[0].partitions[0]


def earliest(raw, topic):
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}]
    return raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset


@pytest.mark.parametrize("version", range(3))
def test_every_version_deletes(raw, topic, version):
    for _ in range(5):
        raw.produce(topic, b"x")
    found = delete(raw, topic, 3, version=version)
    assert (found.error_code, found.low_watermark) == (Code.none, 3)
    assert earliest(raw, topic) == 3
    assert delete(raw, topic, 1, version=version).low_watermark == 3
    assert delete(raw, topic, -1, version=version).low_watermark == 5


def test_many_partitions_of_many_topics_at_once(raw, topic):
    raw.call(19, 2, topics=[
        {"name": f"{topic}-{name}", "num_partitions": 3, "replication_factor": 1} for name in "ab"], timeout=9000)  # fmt: skip
    asked = [
        {"name": f"{topic}-{name}", "partitions": [{"partition_index": n, "offset": 0} for n in numbers]}
        for name, numbers in (("a", (0, 2, 9)), ("missing", (0,)), ("b", (1,)), ("a", (1, 1)))
    ]
    found = raw.call(21, 2, topics=asked, timeout=1000).topics
    told = [[(each.partition_index, each.error_code) for each in topic.partitions] for topic in found]
    unknown = Code.unknown_topic_or_partition
    assert told == [
        [(0, Code.none), (2, Code.none), (9, unknown)],
        [(0, unknown)],
        [(1, Code.none)],
        [(1, Code.none), (1, Code.none)],
    ]


def test_errors(raw, topic):
    assert delete(raw, topic, 9).error_code is Code.offset_out_of_range
    assert delete(raw, topic, 0, partition=9).error_code is Code.unknown_topic_or_partition


def test_a_topic_that_is_only_compacted_refuses(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]}])  # fmt: skip
    raw.produce(topic, b"x")
    assert delete(raw, topic, 1).error_code is Code.policy_violation


def test_an_internal_topic_refuses(raw):
    assert delete(raw, "__consumer_offsets", 0).error_code is Code.invalid_topic_exception


def test_a_topic_without_a_policy_lets_records_go_on_request(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": ""}]}])  # fmt: skip
    raw.produce(topic, b"x")
    assert delete(raw, topic, 1).error_code is Code.none
