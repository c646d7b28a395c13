"""DeleteShareGroupOffsets: what a group has read is forgotten."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_alter_share_group_offsets import alter
from tests.broker.handlers.test_describe_share_group_offsets import described


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def delete(raw, group, *topics):
    return raw.call(92, 0, group_id=group, topics=[{"topic_name": name} for name in topics])


def codes(answer):
    assert answer.error_code == Code.none
    return {each.topic_name: each.error_code for each in answer.responses}


def test_topics_are_forgotten(raw, topic, group):
    alter(raw, group, (topic, [(0, 1)]))
    answer = delete(raw, group, topic, "nothing", topic)
    assert codes(answer) == {topic: Code.none, "nothing": Code.unknown_topic_or_partition}
    assert [each.topic_id is None for each in answer.responses] == [False, True]
    assert described(raw, group) == {}
    assert described(raw, group, [(topic, [0])]) == {topic: [(0, -1, -1)]}
    assert codes(delete(raw, group, topic)) == {topic: Code.unknown_topic_or_partition}
    assert codes(delete(raw, group)) == {}
    assert raw.call(77, 1, group_ids=[group]).groups[0].group_state == "Empty"


def test_a_group_that_reads_is_left_alone(raw, topic, group):
    alter(raw, group, (topic, [(0, 1)]))
    raw.call(76, 1, group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=[topic])
    for asked in (topic, "nothing"):
        answer = delete(raw, group, asked)
        assert (answer.error_code, answer.responses) == (Code.non_empty_group, ())
    assert described(raw, group) == {topic: [(0, 1, -1)]}


def test_groups_that_are_none(raw, topic, group):
    assert delete(raw, group, topic).error_code == Code.group_id_not_found
    assert delete(raw, "", topic).error_code == Code.invalid_group_id
    offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    raw.call(8, 8, group_id=group, topics=offsets)
    assert delete(raw, group, topic).error_code == Code.group_id_not_found


def test_a_group_that_is_deleted_has_forgotten_all(raw, topic, group):
    alter(raw, group, (topic, [(0, 1)]))
    assert raw.call(42, 2, groups_names=[group]).results[0].error_code == Code.none
    assert described(raw, group, [(topic, [0])]) == {topic: [(0, -1, -1)]}
