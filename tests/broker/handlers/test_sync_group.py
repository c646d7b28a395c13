"""SyncGroup: the assignment comes back as the leader sent it."""

import uuid

import pytest

from mainstem.wire.errors import Code


def a_member(raw, group):
    asked = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    return raw.call(11, 3, **asked).member_id


@pytest.mark.parametrize("version", range(6))
def test_every_version_gives_the_assignment(raw, version):
    group = uuid.uuid4().hex
    member = a_member(raw, group)
    asked = {"group_id": group, "generation_id": 1, "member_id": member}
    if version >= 5:
        asked |= {"protocol_type": "consumer", "protocol_name": "range"}
    answer = raw.call(14, version, **asked, assignments=[{"member_id": member, "assignment": b"all"}])
    assert (answer.error_code, answer.assignment) == (Code.none, b"all")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def test_version_5_must_name_the_protocol(raw):
    group = uuid.uuid4().hex
    member = a_member(raw, group)
    answer = raw.call(14, 5, group_id=group, generation_id=1, member_id=member)
    assert answer.error_code is Code.inconsistent_group_protocol
