"""Members that speak the classic protocol in a group of the consumer protocol: while a service is being upgraded.

JoinGroup is a heartbeat that says what the member has; SyncGroup tells it what it is to have; Heartbeat sends it back
to JoinGroup whenever something has changed for it. It leads nothing: the log assigns. Its generation is its member
epoch.
"""

from collections.abc import Mapping
from uuid import uuid4

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord
from mainstem.broker.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from mainstem.broker.groups.consumer.group import CLASSIC_JOIN, CLASSIC_SYNC, ConsumerGroup
from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.records import ClassicProtocols, MemberState
from mainstem.broker.groups.embedded import Subscription, read_subscription, write_assignment
from mainstem.broker.groups.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    UnknownMember,
)
from mainstem.broker.groups.membership import time_to_join
from mainstem.broker.groups.modern.group import SESSION, Change
from mainstem.broker.groups.modern.partitions import Assignment, Owned
from mainstem.broker.groups.modern.subscriptions import TopicsView
from mainstem.wire.errors import Code


def join(group: ConsumerGroup, request: JoinRequest) -> Change[JoinAnswer]:
    """A member of the classic protocol enters, or comes back to be told what has changed.

    Raises:
        GroupFull, InconsistentProtocol, UnknownMember, FencedInstance: it is refused.
    """
    subscription = read_protocols(group, request)
    if request.member_id_required and not request.member_id and request.instance_id is None:
        return Change([], JoinAnswer(error=Code.member_id_required, member_id=str(uuid4())), lambda: None)
    member_id = request.member_id or str(uuid4())
    with group.changing():
        group.check_room(member_id)
        before = _find(group, member_id, request)
        wanted = described(before, request, subscription)
        after = group.advance(before, wanted, by_id(subscription.owned, group.topics), {})
        group.drop_deadline(after.member_id, CLASSIC_JOIN)
        group.set_deadline(after.member_id, SESSION, request.session_timeout_ms)
        group.set_deadline(
            after.member_id, CLASSIC_SYNC, time_to_join(request.rebalance_timeout_ms, request.session_timeout_ms)
        )
        return group.change(joined(after))


def read_protocols(group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """What a member that joins is subscribed to, by the first of its protocols.

    Raises:
        InconsistentProtocol: its type is not `consumer`, it has no protocol that all classic members have, or what it
            says cannot be read.
    """
    names = {protocol.name for protocol in request.protocols}
    others = [member.classic for member in group.members.values() if member.classic is not None]
    shared = {name for name in names if all(name in {known for known, _ in classic.protocols} for classic in others)}
    if request.protocol_type != "consumer" or not shared:
        raise InconsistentProtocol(
            group.group_id,
            f"expected type 'consumer' and a protocol of all {len(others)} classic members, "
            f"found {request.protocol_type!r} with {sorted(names)}",
        )
    try:
        return read_subscription(request.protocols[0].metadata)
    except CorruptCoordinatorRecord as error:
        raise InconsistentProtocol(group.group_id, f"the subscription cannot be read: {error}") from None


def _find(group: ConsumerGroup, member_id: str, request: JoinRequest) -> Member:
    if request.instance_id is not None:
        return group.find_static(member_id, request.instance_id, None, joins=not request.member_id)
    return group.members.get(member_id, Member(member_id=member_id))


def described(before: Member, request: JoinRequest, subscription: Subscription) -> Member:
    """The member as it says it is."""
    return msgspec.structs.replace(
        before,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id if subscription.rack_id is not None else before.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocols(
            request.session_timeout_ms, tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        ),
    )


def joined(member: Member) -> JoinAnswer:
    """The answer to JoinGroup: everybody is a follower."""
    assert member.classic is not None
    return JoinAnswer(
        member_id=member.member_id,
        generation=member.epoch,
        protocol_type="consumer",
        protocol=member.classic.protocols[0][0],
    )


def sync(group: ConsumerGroup, request: SyncRequest) -> SyncAnswer:
    """What the member is to have.

    Raises:
        UnknownMember, FencedInstance, IllegalGeneration, InconsistentProtocol: it is refused.
        RebalanceInProgress: there is something newer: it is to join again.
    """
    member, classic = _classic_member(group, request.member_id, request.instance_id, request.generation)
    name, metadata = classic.protocols[0]
    if request.protocol_type not in (None, "consumer"):
        raise InconsistentProtocol(group.group_id, f"protocol type 'consumer', found {request.protocol_type!r}")
    if request.protocol not in (None, name):
        raise InconsistentProtocol(group.group_id, f"protocol {name!r}, found {request.protocol!r}")
    if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _give_time_to_join(group, member, classic)
        raise RebalanceInProgress(group.group_id, f"member {member.member_id} is to join again")
    group.drop_deadline(member.member_id, CLASSIC_SYNC)
    group.set_deadline(member.member_id, SESSION, classic.session_timeout_ms)
    return SyncAnswer(
        protocol_type=request.protocol_type,
        protocol=request.protocol,
        assignment=embedded(member.assigned, metadata, group.topics),
    )


def heartbeat(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> None:
    """The member lives.

    Raises:
        UnknownMember, FencedInstance, IllegalGeneration: it does not belong to the group (any more).
        RebalanceInProgress: it lives, and is to join again: there is a new target, or it has to give something up, or
            what it waits for is free.
    """
    member, classic = _classic_member(group, member_id, instance_id, generation)
    group.set_deadline(member_id, SESSION, classic.session_timeout_ms)
    waits = member.state is MemberState.UNRELEASED_PARTITIONS
    if (
        member.epoch < group.target_epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (waits and not group.waits_for_others(member))
    ):
        _give_time_to_join(group, member, classic)
        raise RebalanceInProgress(group.group_id, f"member {member_id} is to join again")


def _give_time_to_join(group: ConsumerGroup, member: Member, classic: ClassicProtocols) -> None:
    milliseconds = time_to_join(member.rebalance_timeout_ms, classic.session_timeout_ms)
    group.set_deadline(member.member_id, CLASSIC_JOIN, milliseconds, if_absent=True)


def leaving(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    """The member that LeaveGroup names, of whichever protocol; a static one also by its instance id alone.

    Raises:
        UnknownMember, FencedInstance: there is none.
    """
    if instance_id is not None and not member_id:
        member = group.static_member(instance_id)
        if member is None:
            raise UnknownMember(group.group_id, f"no member with instance id {instance_id}")
        return member
    return _member(group, member_id, instance_id)


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is None:
        return group.member(member_id)
    member = group.static_member(instance_id)
    if member is None:
        raise UnknownMember(group.group_id, f"no member with instance id {instance_id}")
    if member.member_id != member_id:
        raise FencedInstance(group.group_id, f"instance id {instance_id} is {member.member_id} now, found {member_id}")
    return member


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicProtocols]:
    member = _member(group, member_id, instance_id)
    if member.classic is None:
        raise UnknownMember(group.group_id, f"member {member_id} does not use the classic protocol")
    if member.epoch != generation:
        raise IllegalGeneration(group.group_id, f"generation {member.epoch}, found {generation}")
    return member, member.classic


def by_id(partitions: Mapping[str, frozenset[int]], topics: TopicsView) -> Assignment:
    """Partitions by topic id; those of topics that are gone are left out."""
    return {topic.topic_id: found for name, found in partitions.items() if (topic := topics.get(name)) is not None}


def embedded(owned: Owned, metadata: bytes, topics: TopicsView) -> bytes:
    """An assignment as the classic protocol's members read it, in the version of their subscription."""
    names = {
        topic.name: frozenset(found)
        for topic_id, found in owned.items()
        if (topic := topics.get_by_id(topic_id)) is not None
    }
    try:
        version = read_subscription(metadata).version
    except CorruptCoordinatorRecord:
        version = 0
    return write_assignment(version, names)
