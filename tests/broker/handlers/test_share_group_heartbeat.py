import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.fixture
def beat(raw, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"

    def call(member_id="m", epoch=0, **fields):
        request = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
        names = None if epoch else [topic]
        return raw.call(76, 1, **{**request, "subscribed_topic_names": names, **fields})

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
    assert left.heartbeat_interval.total_seconds() == 0
    assert beat(epoch=1).error_code == Code.unknown_member_id


def test_two_members_read_one_partition(beat):
    (first,), (second,) = (beat(each).assignment.topic_partitions for each in ("a", "b"))
    assert first == second


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_id": " "}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"member_id": "m" * 37}, "MemberId can't be longer than 36 characters."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(beat, fields, message):
    answer = beat(**fields)
    assert (answer.error_code, answer.error_message) == (Code.invalid_request, message)
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)


def test_what_the_group_refuses_is_told(beat, raw):
    assert beat(epoch=1).error_code == Code.group_id_not_found
    beat()
    assert beat(epoch=7).error_code == Code.fenced_member_epoch
    assert beat("n", 1).error_code == Code.unknown_member_id


def test_a_group_of_another_protocol_is_refused(beat, raw, topic):
    full = {"member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [topic]}
    group = f"group-{uuid.uuid4().hex[:12]}"
    assert raw.call(68, 1, group_id=group, member_id="m", **full).error_code == Code.none
    assert beat(group_id=group).error_code == Code.group_id_not_found
    assert beat(group_id=group[:-1] + "x").error_code == Code.none
    assert raw.call(68, 1, group_id=group[:-1] + "x", member_id="m", **full).error_code == Code.group_id_not_found
