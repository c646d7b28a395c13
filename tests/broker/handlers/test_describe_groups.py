"""DescribeGroups: who is in a group and what it does."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_sync_group import a_member


@pytest.mark.parametrize("version", range(7))
def test_every_version(raw, version):
    group = uuid.uuid4().hex
    member = a_member(raw, group)
    raw.call(
        14,
        0,
        group_id=group,
        generation_id=1,
        member_id=member,
        assignments=[{"member_id": member, "assignment": b"x"}],
    )
    operations = {"include_authorized_operations": True} if version >= 3 else {}
    found, missing = raw.call(15, version, groups=[group, "nowhere"], **operations).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (one,) = found.members
    assert (one.member_id, one.client_id, one.client_host) == (member, "raw", "/127.0.0.1")
    assert (one.member_metadata, one.member_assignment) == (b"m", b"x")
    assert missing.group_state == "Dead"
    assert missing.error_code is (Code.group_id_not_found if version >= 6 else Code.none)
    if version >= 3:
        assert found.authorized_operations == 3400


def test_without_being_asked_no_operations_are_told(raw):
    (missing,) = raw.call(15, 3, groups=["nowhere"]).groups
    assert missing.authorized_operations == -(2**31)


def test_what_is_asked_for_many_times_is_told_once(raw):
    assert [each.group_id for each in raw.call(15, 5, groups=["b", "a", "b"]).groups] == ["b", "a"]
