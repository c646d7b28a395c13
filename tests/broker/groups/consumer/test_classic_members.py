import pytest

from mainstem.broker.groups.classic.messages import JoinRequest, Protocol, SyncRequest
from mainstem.broker.groups.consumer import classic_members
from mainstem.broker.groups.embedded import Subscription, read_assignment, write_subscription
from mainstem.broker.groups.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from mainstem.wire.errors import Code
from tests.broker.groups.consumer.test_group import Desk


class Classics(Desk):
    """Members of the classic protocol in a group of the consumer protocol."""

    def join(
        self, member_id="", *, instance=None, owned=(), topics=("t",), names=("range",), ask=False, kind="consumer"
    ):
        metadata = write_subscription(Subscription(1, topics, {"t": frozenset(owned)} if owned else {}))
        request = JoinRequest(
            member_id=member_id,
            instance_id=instance,
            client_id="c",
            client_host="/h",
            protocol_type=kind,
            protocols=tuple(Protocol(name, metadata) for name in names),
            rebalance_timeout_ms=30_000,
            session_timeout_ms=10_000,
            member_id_required=ask,
        )
        change = classic_members.join(self.group, request)
        self.log.append(change.entries)
        return change.answer

    def sync(self, member_id, generation, *, instance=None, kind="consumer", protocol="range"):
        request = SyncRequest(
            member_id=member_id, instance_id=instance, generation=generation, protocol_type=kind, protocol=protocol
        )
        answer = classic_members.sync(self.group, request)
        return sorted(read_assignment(answer.assignment).partitions.get("t", ()))

    def heartbeat(self, member_id, generation, instance=None):
        classic_members.heartbeat(self.group, member_id, instance, generation)


def test_a_classic_member_joins_and_is_told_by_sync():
    desk = Classics()
    desk.beat("a")
    answer = desk.join()
    assert (answer.error, answer.generation, answer.protocol, answer.leader, answer.members) == (
        Code.none,
        3,
        "range",
        "",
        (),
    )
    b = answer.member_id
    assert desk.sync(b, 3) == []
    desk.heartbeat(b, 3)
    kept = desk.told(desk.beat("a", 2, reported=(0, 1, 2, 3)))
    desk.heartbeat(b, 3)
    desk.beat("a", 2, reported=kept)
    with pytest.raises(RebalanceInProgress):
        desk.heartbeat(b, 3)
    assert desk.join(b).generation == 3
    assert desk.sync(b, 3) == sorted({0, 1, 2, 3} - set(kept))
    desk.heartbeat(b, 3)


def test_a_classic_member_gives_up_by_joining_without():
    desk = Classics()
    desk.beat("a")
    desk.beat("a", 2, reported=())
    desk.remove("a")
    b = desk.join().member_id
    assert desk.sync(b, 4) == [0, 1, 2, 3]
    desk.beat("a")
    with pytest.raises(RebalanceInProgress):
        desk.heartbeat(b, 4)
    with pytest.raises(RebalanceInProgress):
        desk.sync(b, 4)
    answer = desk.join(b, owned=(0, 1, 2, 3))
    assert answer.generation == 4, "it is to give up first"
    kept = desk.sync(b, 4)
    assert len(kept) == 2
    with pytest.raises(RebalanceInProgress):
        desk.heartbeat(b, 4)
    assert desk.join(b, owned=kept).generation == 5
    assert desk.sync(b, 5) == kept
    assert desk.told(desk.beat("a", 5, reported=None)) == sorted({0, 1, 2, 3} - set(kept))


def test_a_new_member_gets_its_id_first():
    desk = Classics()
    desk.beat("a")
    answer = desk.join(ask=True)
    assert answer.error is Code.member_id_required
    assert answer.member_id
    assert desk.log[-1] == []
    assert desk.join(answer.member_id, ask=True).member_id == answer.member_id


def test_who_does_not_fit_is_refused():
    desk = Classics(max_size=2)
    desk.beat("a")
    with pytest.raises(InconsistentProtocol):
        desk.join(kind="connect")
    with pytest.raises(InconsistentProtocol):
        desk.join(names=())
    b = desk.join(names=("range", "sticky")).member_id
    with pytest.raises(InconsistentProtocol):
        desk.join("x", names=("roundrobin",))
    with pytest.raises(GroupFull):
        desk.join()
    assert desk.join(b, names=("sticky", "range")).protocol == "sticky"


def test_a_subscription_that_cannot_be_read_is_refused():
    desk = Classics()
    desk.beat("a")
    request = JoinRequest(
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=(Protocol("range", b"\0"),),
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        member_id_required=False,
    )
    with pytest.raises(InconsistentProtocol):
        classic_members.join(desk.group, request)


def test_requests_that_do_not_fit_the_member():
    desk = Classics()
    desk.beat("a")
    b = desk.join(instance="i").member_id
    with pytest.raises(UnknownMember):
        desk.heartbeat("a", 2)
    with pytest.raises(UnknownMember):
        desk.heartbeat("x", 2)
    with pytest.raises(UnknownMember):
        desk.heartbeat(b, 3, "other")
    with pytest.raises(FencedInstance):
        desk.heartbeat("x", 3, "i")
    with pytest.raises(IllegalGeneration):
        desk.heartbeat(b, 2, "i")
    with pytest.raises(InconsistentProtocol):
        desk.sync(b, 3, kind="connect")
    with pytest.raises(InconsistentProtocol):
        desk.sync(b, 3, protocol="sticky")
    assert desk.sync(b, 3, kind=None, protocol=None) == []


def test_a_member_that_does_not_join_or_sync_in_time_is_removed():
    desk = Classics()
    desk.beat("a", rebalance_timeout_ms=600_000)
    b = desk.join().member_id
    for _ in range(5):
        assert desk.pass_time(5_000) == []
        desk.heartbeat(b, 3)
        desk.beat("a", 2, reported=None)
    assert desk.pass_time(5_000) == [b], "it has not asked for its assignment"
    b = desk.join().member_id
    desk.sync(b, 5)
    desk.beat("a", 2, topics=("t", "u"), reported=(0, 1, 2, 3), rebalance_timeout_ms=600_000)
    for _ in range(6):
        assert desk.pass_time(5_000) == []
        with pytest.raises(RebalanceInProgress):
            desk.heartbeat(b, 5)
        desk.beat("a", 2, reported=None)
    assert desk.pass_time(5_000) == [b], "it was told to join again"


def test_a_static_member_changes_its_protocol():
    desk = Classics()
    desk.beat("a", instance_id="i")
    desk.beat("b")
    answer = desk.join(instance="i")
    assert answer.member_id != "a"
    assert desk.group.members[answer.member_id].classic is not None
    assert desk.group.static == {"i": answer.member_id}
    with pytest.raises(FencedInstance):
        desk.join("a", instance="i")
    desk.beat("a2", instance_id="i")
    assert set(desk.group.members) == {"a2", "b"}


def test_who_leaves_by_leave_group():
    desk = Classics()
    desk.beat("a")
    b = desk.join(instance="i").member_id
    leaving = classic_members.leaving
    assert [leaving(desk.group, *who).member_id for who in (("a", None), (b, "i"), ("", "i"))] == ["a", b, b]
    for who in (("x", None), ("", "j"), ("x", "j")):
        with pytest.raises(UnknownMember):
            leaving(desk.group, *who)
    with pytest.raises(FencedInstance):
        leaving(desk.group, "x", "i")


def test_an_assignment_is_in_the_version_of_the_subscription_and_leaves_out_topics_that_are_gone():
    desk = Classics()
    desk.beat("a")
    b = desk.join().member_id
    member = desk.group.members[b]
    metadata = member.classic.protocols[0][1]
    owned = {desk.topics.id_of("t"): {0: 1}}
    assert classic_members.embedded(owned, metadata, desk.topics)[:2] == b"\0\1"
    assert classic_members.embedded(owned, b"", desk.topics)[:2] == b"\0\0"
    desk.topics.delete("t")
    assert read_assignment(classic_members.embedded(owned, metadata, desk.topics)).partitions == {}
