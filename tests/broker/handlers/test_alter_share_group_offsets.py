"""AlterShareGroupOffsets: where a group reads on."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_describe_share_group_offsets import described


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def alter(raw, group, *topics):
    asked = [
        {"topic_name": name, "partitions": [{"partition_index": number, "start_offset": at} for number, at in offsets]}
        for name, offsets in topics
    ]
    return raw.call(91, 0, group_id=group, topics=asked)


def codes(answer):
    return {
        each.topic_name: [(one.partition_index, one.error_code) for one in each.partitions] for each in answer.responses
    }


def test_each_partition_is_answered(raw, topic, group):
    answer = alter(raw, group, (topic, [(0, 1), (1, 1), (-1, 0)]), ("nothing", [(0, 1)]), (topic, [(0, 2)]))
    unknown = Code.unknown_topic_or_partition
    assert answer.error_code == Code.none
    assert codes(answer) == {
        topic: [(0, Code.none), (1, unknown), (-1, unknown), (0, Code.none)],
        "nothing": [(0, unknown)],
    }
    assert [each.topic_id is None for each in answer.responses] == [False, True]
    assert described(raw, group) == {topic: [(0, 2, -2)]}


def test_a_group_that_reads_is_left_alone(raw, topic, group):
    raw.call(76, 1, group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=[topic])
    for asked in ((topic, [(0, 1)]), ("nothing", [(0, 1)])):
        answer = alter(raw, group, asked)
        assert (answer.error_code, answer.responses) == (Code.non_empty_group, ())
    assert described(raw, group) == {topic: [(0, -1, -1)]}


def test_what_makes_no_group(raw, topic, group):
    assert alter(raw, group).error_code == Code.none
    assert codes(alter(raw, group, ("nothing", [(0, 1)]))) == {"nothing": [(0, Code.unknown_topic_or_partition)]}
    assert codes(alter(raw, group, (topic, []))) == {topic: []}
    assert raw.call(77, 1, group_ids=[group]).groups[0].error_code == Code.group_id_not_found
    assert alter(raw, "", (topic, [(0, 1)])).error_code == Code.invalid_group_id


def test_a_group_of_another_protocol_is_refused(raw, topic, group):
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    raw.call(8, 8, group_id=group, member_id="", generation_id_or_member_epoch=-1, topics=topics)
    assert alter(raw, group, (topic, [(0, 1)])).error_code == Code.group_id_not_found
