import uuid

import pytest

from mainstem.wire.errors import Code

FULL = {"rebalance_timeout": 60_000, "topic_partitions": []}


@pytest.fixture
def beat(raw, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"

    def call(member_id="m", epoch=0, *, version=1, **fields):
        names = {} if epoch else {**FULL, "subscribed_topic_names": [topic]}
        request = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **names, **fields}
        return raw.call(68, version, **request)

    return call


def test_a_member_joins_lives_and_leaves(beat, raw, topic):
    joined = beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (Code.none, "m", 2)
    assert joined.heartbeat_interval.total_seconds() == 5
    (given,) = joined.assignment.topic_partitions
    assert given.partitions == (0,)
    assert given.topic_id == raw.call(3, 12, topics=[{"topic_id": None, "name": topic}]).topics[0].topic_id
    again = beat(epoch=2)
    assert (again.error_code, again.member_epoch, again.assignment) == (Code.none, 2, None)
    left = beat(epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch, left.assignment) == (Code.none, "m", -1, None)
    assert beat(epoch=1).error_code == Code.unknown_member_id


def test_version_0_gives_a_member_its_id(beat):
    assert len(beat("", version=0).member_id) == 36


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"group_id": " "}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(beat, fields, message):
    answer = beat(**fields)
    assert (answer.error_code, answer.error_message) == (Code.invalid_request, message)


def test_what_the_group_refuses_is_told(beat):
    assert beat(epoch=1).error_code == Code.group_id_not_found
    assert beat(server_assignor="mine").error_code == Code.unsupported_assignor
    assert beat(subscribed_topic_regex="(", subscribed_topic_names=None).error_code == Code.invalid_regular_expression
    beat()
    assert beat(epoch=7).error_code == Code.fenced_member_epoch
    beat("s", instance_id="i")
    assert beat("s2", instance_id="i").error_code == Code.unreleased_instance_id
    assert beat("s2", 3, instance_id="i").error_code == Code.fenced_instance_id


def test_an_expression_is_resolved(beat, topic):
    found = beat(subscribed_topic_regex=topic, subscribed_topic_names=None)
    assert [each.partitions for each in found.assignment.topic_partitions] == [(0,)]
