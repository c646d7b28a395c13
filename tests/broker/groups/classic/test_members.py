import pytest

from mainstem.broker.groups.classic.members import Member, Members
from mainstem.broker.groups.classic.messages import JoinRequest, Protocol
from mainstem.broker.groups.errors import FencedInstance, UnknownMember


def _member(member_id, *protocols, instance_id=None, rebalance_timeout_ms=60_000):
    request = JoinRequest(
        member_id=member_id,
        instance_id=instance_id,
        client_id="client",
        client_host="/127.0.0.1",
        protocol_type="consumer",
        protocols=tuple(Protocol(name, b"of " + name.encode()) for name in protocols or ("range",)),
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=10_000,
    )
    return Member(member_id, request)


def _members(*given):
    members = Members("g")
    for member in given:
        members.add(member)
    return members


def test_they_are_a_mapping_in_the_order_in_which_they_came():
    members = _members(_member("b"), _member("a"))
    assert list(members) == [member.member_id for member in members.values()] == ["b", "a"]
    assert ("a" in members, len(members), members.get("c")) == (True, 2, None)


def test_who_takes_a_static_members_place_over_leads_and_fences_it():
    members = _members(_member("i-1", instance_id="i"), _member("b"))
    members.leader, members["i-1"].assignment = "i-1", b"all"
    old = members.take_over(_member("i-2", instance_id="i"))
    assert (old.member_id, members.leader, members["i-2"].assignment) == ("i-1", "i-2", b"all")
    with pytest.raises(FencedInstance, match=r"i-2 now, found i-1"):
        members.check("i-1", "i")
    with pytest.raises(UnknownMember):
        members.check("i-1", None)
    members.remove("i-1")
    assert members.holder("i") == "i-2", "its place is another's by now"
    members.remove("i-2")
    assert (members.holder("i"), members.leader) == (None, "b")
    with pytest.raises(UnknownMember, match="instance id i"):
        members.check("i-2", "i")


def test_only_who_takes_part_leads():
    members = _members(_member("a"), _member("b"))
    members.leader = "a"
    assert not members.elect_leader()
    members["b"].join_reply = lambda _: None
    assert members.elect_leader()
    assert members.leader == "b"


def test_the_protocol_is_one_that_all_know_and_most_want():
    members = _members(_member("a", "mine", "x", "y"), _member("b", "y", "x"), _member("c", "y", "x", "theirs"))
    assert members.common_protocols() == {"x", "y"}
    assert members.vote() == "y"
    assert members["a"].stored("x", b"part").subscription == b"of x"


def test_subscriptions_that_cannot_be_read_are_unknown():
    assert _members(_member("a")).subscriptions("range") is None
    assert _members().subscriptions("range") == frozenset()


def test_the_longest_rebalance_timeout_counts_and_none_is_as_long_as_a_session():
    assert _members().rebalance_timeout_ms() == 0
    assert _members(_member("a", rebalance_timeout_ms=0)).rebalance_timeout_ms() == 10_000
    assert _members(_member("a", rebalance_timeout_ms=-1), _member("b")).rebalance_timeout_ms() == 60_000
