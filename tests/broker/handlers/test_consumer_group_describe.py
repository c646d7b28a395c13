import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def beat(raw, group, topic, member_id, **fields):
    return raw.call(
        68,
        1,
        group_id=group,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout=60_000,
        topic_partitions=[],
        subscribed_topic_names=[topic],
        **fields,
    )


def describe(raw, *groups, version=1, **fields):
    return raw.call(69, version, group_ids=list(groups), **fields).groups


def test_a_group_with_what_its_members_have_and_are_to_have(raw, topic, group):
    beat(raw, group, topic, "a", instance_id="i", rack_id="r", server_assignor="range")
    beat(raw, group, topic, "b")
    (found,) = describe(raw, group, group, include_authorized_operations=True)
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        Code.none,
        "Reconciling",
        3,
        3,
        "range",
    )
    assert found.authorized_operations > 0
    a, b = found.members
    assert (a.member_id, a.instance_id, a.rack_id, a.member_epoch, a.client_id) == ("a", "i", "r", 2, "raw")
    assert (a.subscribed_topic_names, a.subscribed_topic_regex, a.member_type) == ((topic,), "", 1)
    (has,) = a.assignment.topic_partitions
    assert (has.topic_name, has.partitions) == (topic, (0,))
    assert a.target_assignment == a.assignment
    assert (b.assignment.topic_partitions, b.target_assignment.topic_partitions) == ((), ())


def test_version_0_tells_no_member_types(raw, topic, group):
    beat(raw, group, topic, "a")
    (found,) = describe(raw, group, version=0)
    assert not hasattr(found.members[0], "member_type")


def test_other_apis_know_the_group_as_one_of_the_consumer_protocol(raw, topic, group):
    beat(raw, group, topic, "a")
    listed = {each.group_id: each for each in raw.call(16, 5, types_filter=["consumer"]).groups}
    assert (listed[group].group_type, listed[group].group_state, listed[group].protocol_type) == (
        "consumer",
        "Stable",
        "consumer",
    )
    assert group not in {each.group_id for each in raw.call(16, 5, types_filter=["classic"]).groups}
    (found,) = raw.call(15, 6, groups=[group]).groups
    assert (found.error_code, found.group_state) == (Code.group_id_not_found, "Dead")
    assert found.error_message == f"Group {group} is not a classic group."
