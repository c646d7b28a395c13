import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:12]}"


def beat(raw, group, topic, member_id, **fields):
    request = {"group_id": group, "member_id": member_id, "member_epoch": 0, "subscribed_topic_names": [topic]}
    return raw.call(76, 1, **{**request, **fields})


def describe(raw, *groups, **fields):
    return raw.call(77, 1, group_ids=list(groups), **fields).groups


def test_a_group_with_what_its_members_read(raw, topic, group):
    beat(raw, group, topic, "a", rack_id="r")
    beat(raw, group, topic, "b")
    (found,) = describe(raw, group, group, include_authorized_operations=True)
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        Code.none,
        "Stable",
        3,
        3,
        "simple",
    )
    assert found.authorized_operations > 0
    a, b = found.members
    assert (a.member_id, a.rack_id, a.member_epoch, a.client_id) == ("a", "r", 2, "raw")
    assert (b.member_id, b.rack_id, b.member_epoch, b.subscribed_topic_names) == ("b", None, 3, (topic,))
    (has,) = a.assignment.topic_partitions
    assert (has.topic_name, has.partitions) == (topic, (0,))
    assert a.assignment == b.assignment


def test_a_group_without_members(raw, topic, group):
    beat(raw, group, topic, "a")
    beat(raw, group, topic, "a", member_epoch=-1)
    (found,) = describe(raw, group)
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.members) == ("Empty", 3, 2, ())


def test_a_topic_that_is_gone_has_no_name(raw, topic, group):
    beat(raw, group, topic, "a")
    raw.call(20, 5, topic_names=[topic], timeout=30_000)
    (found,) = describe(raw, group)
    assert found.members[0].subscribed_topic_names == (topic,)
    assert found.members[0].assignment.topic_partitions == ()


def test_other_apis_know_the_group_as_a_share_group(raw, topic, group):
    beat(raw, group, topic, "a")
    listed = {each.group_id: each for each in raw.call(16, 5, types_filter=["Share"], states_filter=["stable"]).groups}
    assert (listed[group].group_type, listed[group].group_state, listed[group].protocol_type) == (
        "share",
        "Stable",
        "share",
    )
    assert group not in {each.group_id for each in raw.call(16, 5, types_filter=["classic", "consumer"]).groups}
    (found,) = raw.call(15, 6, groups=[group]).groups
    assert (found.error_code, found.error_message) == (
        Code.group_id_not_found,
        f"Group {group} is not a classic group.",
    )
    (found,) = raw.call(69, 1, group_ids=[group]).groups
    assert (found.error_code, found.error_message) == (
        Code.group_id_not_found,
        f"Group {group} is not a consumer group.",
    )
