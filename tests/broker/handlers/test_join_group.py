"""JoinGroup: what of its fields exists in which version."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.support.raw import RawClient


def fields(group, version, member=""):
    asked = {
        "group_id": group,
        "session_timeout": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }
    if version >= 1:
        asked["rebalance_timeout"] = 20_000
    if version >= 8:
        asked["reason"] = "because"
    return asked


@pytest.mark.parametrize("version", range(10))
def test_every_version_makes_a_member(raw, version):
    group = uuid.uuid4().hex
    answer = raw.call(11, version, **fields(group, version))
    if version >= 4:
        assert answer.error_code is Code.member_id_required
        answer = raw.call(11, version, **fields(group, version, answer.member_id))
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (Code.none, 1, "range")
    assert answer.leader == answer.member_id
    assert [(each.member_id, each.metadata) for each in answer.members] == [(answer.member_id, b"m")]
    if version >= 7:
        assert answer.protocol_type == "consumer"


def test_a_refused_join_has_an_empty_protocol_before_version_7(raw):
    answer = raw.call(11, 5, **fields("", 5))
    assert (answer.error_code, answer.protocol_name) == (Code.invalid_group_id, "")
    assert raw.call(11, 9, **fields("", 9)).protocol_name is None


def test_a_join_that_waits_does_not_hold_up_what_follows_it(raw):
    """The answers leave in order, but LeaveGroup ends the join it would otherwise wait for."""
    group = uuid.uuid4().hex
    raw.call(11, 3, **fields(group, 3))
    with raw.another() as other:
        member = other.call(11, 9, **fields(group, 9)).member_id
        other.send(11, 9, **fields(group, 9, member))
        other.send(13, 3, group_id=group, members=[{"member_id": member}])
        assert other.receive(11, 9).error_code is Code.unknown_member_id
        assert other.receive(13, 3).members[0].error_code is Code.none


@pytest.mark.parametrize("version", [3, 5, 9])
def test_a_client_with_as_long_a_name_as_there_is_becomes_a_member(mainstem_log, version):
    """Its member's id is made of its name: that could not be stored, and the group waited for nobody."""
    group = uuid.uuid4().hex
    with RawClient(mainstem_log.bootstrap, client_id="x" * 32_766 + "y") as raw:
        answer = raw.call(11, version, **fields(group, version))
        if version >= 4:
            answer = raw.call(11, version, **fields(group, version, answer.member_id))
    assert (answer.error_code, answer.generation_id) == (Code.none, 1)
    assert answer.members[0].member_id.startswith("x" * 32_730 + "-")
