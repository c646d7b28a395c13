import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.streams_groups import DESCRIBE, HEARTBEAT, a_part, a_topic, a_topology, joins, lives
from tests.support.waiting import wait_until


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def beat(raw, group, topology, member_id="m", epoch=0, **fields):
    request = lives(group, member_id, epoch) if epoch else joins(group, member_id, topology)
    return raw.call(HEARTBEAT, 0, **{**request, **fields})


def describe(raw, *groups, **fields):
    return raw.call(DESCRIBE, 0, group_ids=list(groups), **{"include_authorized_operations": False, **fields}).groups


def test_a_group_with_its_topology_and_what_its_members_have(raw, topic, group):
    topology = a_topology(a_part("0", topic, state_changelog_topics=[a_topic(f"{topic}-c")]))
    tags = [{"key": "zone", "value": "z"}]
    beat(raw, group, topology, rack_id="r", client_tags=tags, user_endpoint={"host": "here", "port": 1})
    (found,) = describe(raw, group)
    assert (found.group_state, found.topology.subtopologies[0].state_changelog_topics[0].partitions) == ("NotReady", 0)
    wait_until(lambda: beat(raw, group, topology, epoch=2).status == (), "the topic is made")
    (found,) = describe(raw, group, group, include_authorized_operations=True)
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (
        Code.none,
        "Stable",
        3,
        3,
    )
    assert found.authorized_operations > 0
    (part,) = found.topology.subtopologies
    assert (found.topology.epoch, part.subtopology_id, part.source_topics) == (0, "0", (topic,))
    assert [(each.name, each.partitions) for each in part.state_changelog_topics] == [(f"{topic}-c", 1)]
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.rack_id, member.client_id) == ("m", 3, "r", "raw")
    assert (member.process_id, member.topology_epoch, member.is_classic) == ("m", 0, False)
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("here", 1)
    assert [(each.key, each.value) for each in member.client_tags] == [("zone", "z")]
    (has,) = member.assignment.active_tasks
    assert (has.subtopology_id, has.partitions) == ("0", (0,))
    assert member.target_assignment == member.assignment


def test_a_group_without_members(raw, topic, group):
    beat(raw, group, a_topology(a_part("0", topic)))
    beat(raw, group, None, epoch=-1)
    (found,) = describe(raw, group)
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.members) == ("Empty", 3, 2, ())
    assert found.topology.subtopologies[0].source_topics == (topic,)


def test_other_apis_know_the_group_as_a_streams_group(raw, topic, group):
    beat(raw, group, a_topology(a_part("0", topic)))
    asked = {"types_filter": ["Streams"], "states_filter": ["stable"]}
    listed = {each.group_id: each for each in raw.call(16, 5, **asked).groups}
    assert (listed[group].group_type, listed[group].group_state, listed[group].protocol_type) == (
        "streams",
        "Stable",
        "streams",
    )
    for api, version, kind in ((15, 6, "classic"), (69, 1, "consumer")):
        (found,) = raw.call(api, version, **{"groups" if api == 15 else "group_ids": [group]}).groups
        assert (found.error_code, found.error_message) == (
            Code.group_id_not_found,
            f"Group {group} is not a {kind} group.",
        )
    (refused,) = raw.call(42, 2, groups_names=[group]).results
    assert refused.error_code == Code.non_empty_group
