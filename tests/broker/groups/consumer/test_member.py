from uuid import uuid4

from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.records import ClassicProtocols, MemberState

T = uuid4()


def test_a_member_is_what_is_stored_of_it():
    member = Member(
        member_id="m",
        instance_id="i",
        rack_id="r",
        client_id="c",
        client_host="/h",
        topics=frozenset(("u", "t")),
        regex="x",
        rebalance_timeout_ms=5,
        assignor="range",
        classic=ClassicProtocols(6, (("range", b"x"),)),
        epoch=3,
        previous_epoch=2,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={T: {0: 1}},
        revoking={T: {1: 2}},
    )
    assert member.described().topics == ("t", "u")
    assert Member(member_id="m").with_described(member.described()).with_current(member.current()) == member


def test_a_step_makes_the_epoch_the_previous_one():
    member = Member(member_id="m", epoch=3).moved(4, MemberState.STABLE, {}, {})
    assert (member.epoch, member.previous_epoch) == (4, 3)
    assert member.is_reconciled_to(4)
    assert not member.is_reconciled_to(5)
    assert not member.moved(4, MemberState.UNRELEASED_PARTITIONS, {}, {}).is_reconciled_to(4)
