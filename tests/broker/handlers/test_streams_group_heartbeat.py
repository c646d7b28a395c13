import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.streams_groups import HEARTBEAT, NO_TASKS, a_part, a_topic, joins, lives, tasks_of
from tests.support.streams_groups import a_topology as topology_of
from tests.support.waiting import wait_until


def a_topology(*sources, **fields):
    return topology_of(a_part("0", *sources, **fields))


@pytest.fixture
def beat(raw, topic):
    group = f"group-{uuid.uuid4().hex[:12]}"

    def call(member_id="m", epoch=0, **fields):
        request = lives(group, member_id, epoch) if epoch else joins(group, member_id, a_topology(topic))
        return raw.call(HEARTBEAT, 0, **{**request, **fields})

    return call


def test_a_member_joins_lives_and_leaves(beat):
    joined = beat()
    assert (joined.error_code, joined.member_id, joined.member_epoch, tasks_of(joined.active_tasks)) == (
        Code.none,
        "m",
        2,
        {"0": [0]},
    )
    assert (joined.standby_tasks, joined.warmup_tasks, joined.status) == ((), (), ())
    assert joined.heartbeat_interval.total_seconds() == 5
    again = beat(epoch=2)
    assert (again.error_code, again.member_epoch, again.active_tasks) == (Code.none, 2, None)
    left = beat(epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch, left.active_tasks) == (Code.none, "m", -1, None)
    assert left.heartbeat_interval.total_seconds() == 0
    assert beat(epoch=1).error_code == Code.unknown_member_id


def test_topics_that_are_missing_are_made(beat, raw, topic):
    changelog = a_topic(f"{topic}-changelog", topic_configs=[{"key": "cleanup.policy", "value": "compact"}])
    answer = beat(topology=a_topology(topic, state_changelog_topics=[changelog]))
    (status,) = answer.status
    assert (status.status_code, status.status_detail) == (3, f"Internal topics are missing: {topic}-changelog")
    assert answer.active_tasks == ()
    wait_until(lambda: beat(epoch=2).status == (), "the topic is made")
    (made,) = raw.call(3, 12, topics=[{"topic_id": None, "name": f"{topic}-changelog"}]).topics
    assert len(made.partitions) == 1
    asked = {"resource_type": 2, "resource_name": made.name, "configuration_keys": ["cleanup.policy"]}
    (found,) = raw.call(32, 4, resources=[asked]).results[0].configs
    assert found.value == "compact"


def test_why_a_topic_cannot_be_made_is_told(beat, topic):
    changelog = a_topic(f"{topic}-changelog", replication_factor=3)
    beat(topology=a_topology(topic, state_changelog_topics=[changelog]))

    def detail():
        return beat(epoch=2).status[0].status_detail

    wait_until(lambda: "Creation failed" in detail(), "it has failed")
    assert detail() == (
        f"Internal topics are missing: {topic}-changelog; Creation failed: {topic}-changelog "
        "(Unable to replicate the partition 3 time(s): there is one node)."
    )


def test_endpoints_are_told_to_who_does_not_know_them(beat, topic):
    answer = beat(user_endpoint={"host": "here", "port": 65_535})
    (found,) = answer.partitions_by_user_endpoint
    assert (found.user_endpoint.host, found.user_endpoint.port) == ("here", 65_535)
    assert [(each.topic, each.partitions) for each in found.active_partitions] == [(topic, (0,))]
    assert beat(epoch=2, endpoint_information_epoch=0).partitions_by_user_endpoint is None


OWN_COUNT = {"state_changelog_topics": [a_topic("c", partitions=1)]}


@pytest.mark.parametrize(
    ("epoch", "fields", "code", "message"),
    [
        (0, {"instance_id": "i"}, Code.invalid_request, "Static membership is not yet supported."),
        (0, {"task_offsets": []}, Code.invalid_request, "TaskOffsets are not supported yet."),
        (0, {"task_end_offsets": []}, Code.invalid_request, "TaskEndOffsets are not supported yet."),
        (
            1,
            {**NO_TASKS, "warmup_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
            Code.invalid_request,
            "WarmupTasks are not supported yet.",
        ),
        (
            0,
            {"topology": a_topology(source_topic_regex=["a.*"])},
            Code.invalid_request,
            "Regular expressions for source topics are not supported yet.",
        ),
        (0, {"member_id": ""}, Code.invalid_request, "MemberId can't be empty."),
        (0, {"group_id": ""}, Code.invalid_request, "GroupId can't be empty."),
        (0, {"group_id": " "}, Code.invalid_request, "GroupId can't be empty."),
        (0, {"rack_id": ""}, Code.invalid_request, "RackId can't be empty."),
        (0, {"rebalance_timeout": -1}, Code.invalid_request, "RebalanceTimeoutMs must be provided in first request."),
        (0, {"active_tasks": None}, Code.invalid_request, "ActiveTasks must be empty when (re-)joining."),
        (0, {"topology": None}, Code.invalid_request, "Topology must be non-null when (re-)joining."),
        (-2, {}, Code.invalid_request, "InstanceId can't be null."),
        (-3, {}, Code.invalid_request, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (1, {"active_tasks": []}, Code.invalid_request, "If one task-type is non-null, all must be non-null."),
        (1, {"topology": a_topology("a")}, Code.invalid_request, "Topology can only be provided when (re-)joining."),
        (
            0,
            {"topology": a_topology("a", **OWN_COUNT)},
            Code.streams_invalid_topology,
            "Changelog topic c must have an undefined partition count, but it is set to 1.",
        ),
        (
            0,
            {"topology": a_topology("a", "__consumer_offsets")},
            Code.streams_invalid_topology,
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
        ),
        (
            0,
            {"topology": a_topology("a b", "..")},
            Code.streams_invalid_topology,
            "Topic names a b,.. are not valid topic names.",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(beat, epoch, fields, code, message):
    answer = beat(epoch=epoch, **fields)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert (answer.active_tasks, answer.status, answer.partitions_by_user_endpoint) == (None, (), None)


def test_what_the_group_refuses_is_told(beat, topic):
    assert beat(epoch=1).error_code == Code.group_id_not_found
    beat()
    assert beat(epoch=7).error_code == Code.fenced_member_epoch
    assert beat("n", 1).error_code == Code.unknown_member_id
    other = beat("n", topology=a_topology(topic, repartition_sink_topics=["r"]))
    assert (other.error_code, other.error_message.endswith("Topology updates are not supported yet.")) == (
        Code.invalid_request,
        True,
    )
