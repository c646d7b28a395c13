"""DescribeShareGroupOffsets: what is kept of share partitions."""

import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def set_offsets(raw, group, topic, **offsets):
    partitions = [{"partition_index": int(number[1:]), "start_offset": offset} for number, offset in offsets.items()]
    return raw.call(91, 0, group_id=group, topics=[{"topic_name": topic, "partitions": partitions}])


def described(raw, group, topics=None, *, version=1):
    """What is told of each partition, by topic: (partition, offset, lag)."""
    asked = None if topics is None else [{"topic_name": name, "partitions": numbers} for name, numbers in topics]
    (found,) = raw.call(90, version, groups=[{"group_id": group, "topics": asked}]).groups
    assert (found.group_id, found.error_code) == (group, Code.none)
    return {
        topic.topic_name: [
            (each.partition_index, each.start_offset, getattr(each, "lag", None)) for each in topic.partitions
        ]
        for topic in found.topics
    }


@pytest.mark.parametrize("version", [0, 1])
def test_all_that_a_group_has_state_of(raw, topic, group, version):
    for value in (b"a", b"b", b"c"):
        raw.produce(topic, value)
    assert described(raw, group) == {}
    set_offsets(raw, group, topic, p0=1)
    assert described(raw, group, version=version) == {topic: [(0, 1, 2 if version else None)]}
    set_offsets(raw, group, topic, p0=7)
    assert described(raw, group) == {topic: [(0, 7, -4)]}
    set_offsets(raw, group, topic, p0=-1)
    assert described(raw, group) == {topic: [(0, -1, -1)]}


def test_what_it_has_no_state_of(raw, topic, group):
    asked = [(topic, [0, 5, -1]), ("nothing", [0]), (topic, [0, 7])]
    expected = {topic: [(number, -1, -1) for number in (0, 5, -1, 7)], "nothing": [(0, -1, -1)]}
    assert described(raw, group, asked) == expected
    assert described(raw, "", asked) == expected
    assert described(raw, group, []) == {}
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    raw.call(8, 8, group_id=group, member_id="", generation_id_or_member_epoch=-1, topics=topics)
    assert described(raw, group, asked) == expected
    assert described(raw, group) == {}


def test_a_partition_that_was_not_read_yet(raw, topic, group):
    raw.call(76, 1, group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=[topic])
    assert described(raw, group) == {topic: [(0, -1, -1)]}


def test_of_a_topic_that_is_gone_nothing_is_told(raw, topic, group):
    set_offsets(raw, group, topic, p0=1)
    raw.call(20, 5, topic_names=[topic], timeout=30_000)
    assert described(raw, group) == {}
    raw.create_topic(topic)
    assert described(raw, group) == {}
    assert described(raw, group, [(topic, [0])]) == {topic: [(0, -1, -1)]}


def test_a_group_that_is_asked_for_many_times_is_told_once(raw, topic, group):
    set_offsets(raw, group, topic, p0=1)
    (found,) = raw.call(90, 1, groups=1_000 * [{"group_id": group, "topics": None}]).groups
    assert found.group_id == group
