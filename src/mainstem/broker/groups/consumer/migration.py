"""From one protocol to the other, in place: the members of the group go on with what they have.

Up: the first member of the consumer protocol turns a classic group into one of the consumer protocol. Down: when the
last member of the consumer protocol has left, the others form a classic group again, and rebalance.
"""

import enum
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord
from mainstem.broker.groups.classic.group import ClassicGroup
from mainstem.broker.groups.classic.messages import Protocol
from mainstem.broker.groups.config import ClassicGroupConfig, ConsumerGroupConfig
from mainstem.broker.groups.consumer.classic_members import by_id, embedded
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.records import (
    ClassicProtocols,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from mainstem.broker.groups.embedded import read_assignment, read_subscription
from mainstem.broker.groups.errors import UnknownGroup
from mainstem.broker.groups.modern.partitions import Assignment, assignment_of, each, owned_since
from mainstem.broker.groups.modern.records import TargetMemberValue, TargetValue
from mainstem.broker.groups.modern.subscriptions import TopicsView
from mainstem.broker.groups.records import GroupValue
from mainstem.broker.groups.records import MemberValue as ClassicMemberValue
from mainstem.core import Clock


class MigrationPolicy(enum.Enum):
    """Which way a group with members may go (`group.consumer.migration.policy`)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


TYPE: Final = "consumer"


def upgraded(
    classic: ClassicGroup,
    policy: MigrationPolicy,
    clock: Clock,
    topics: TopicsView,
    config: Callable[[], ConsumerGroupConfig],
) -> ConsumerGroup:
    """A group of the consumer protocol with the members of `classic`, in its generation; not stored yet.

    Raises:
        UnknownGroup: the group is no such group and cannot become one. Clients give up; they would do the same where
            nobody has built this.
    """
    group_id = classic.group_id
    if not policy.upgrades:
        raise UnknownGroup(group_id, "is a classic group, and group.consumer.migration.policy lets none be upgraded")
    if classic.protocol_type != TYPE:
        raise UnknownGroup(group_id, f"is a classic group of type {classic.protocol_type!r}, not {TYPE!r}")
    if len(classic.members) > config().max_size:
        raise UnknownGroup(group_id, f"has {len(classic.members)} members, more than group.consumer.max.size")
    group = ConsumerGroup(group_id, clock, topics, config)
    for each_member, assignment in _read_members(classic, topics):
        group.put(MemberKey(group_id, each_member.member_id), each_member.described())
        group.put(TargetMemberKey(group_id, each_member.member_id), TargetMemberValue(assignment))
        group.put(CurrentKey(group_id, each_member.member_id), each_member.current())
    group.put(TargetKey(group_id), TargetValue(classic.generation))
    # Of which topics the leader knew is not told, or whether it has assigned at all: the next heartbeat looks.
    group.put(ConsumerGroupKey(group_id), ConsumerGroupValue(classic.generation))
    group.start_sessions()
    return group


def _read_members(classic: ClassicGroup, topics: TopicsView) -> list[tuple[Member, Assignment]]:
    """Each with what it has: what it was given last, and what it still had when it joined, if that is nobody else's."""
    found: list[tuple[Member, Assignment]] = []
    still_had: list[Assignment] = []
    taken = set()
    for member in classic.members.values():
        try:
            protocol = classic.protocol or member.protocols[0].name  # nobody has voted before the first generation
            subscription = read_subscription(member.metadata(protocol))
            given = read_assignment(member.assignment)
        except CorruptCoordinatorRecord as error:
            raise UnknownGroup(
                classic.group_id, f"cannot be upgraded: what member {member.member_id} said cannot be read: {error}"
            ) from None
        if given.user_data:
            raise UnknownGroup(
                classic.group_id, "cannot be upgraded: its assignor keeps data of its own, which would be lost"
            )
        assignment = {topic_id: parts for topic_id, parts in by_id(given.partitions, topics).items() if parts}
        for partition in each(assignment):
            if partition in taken:
                raise UnknownGroup(classic.group_id, "cannot be upgraded: a partition is assigned to two members")
            taken.add(partition)
        still_had.append(by_id(subscription.owned, topics))
        found.append(
            (
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    topics=frozenset(subscription.topics),
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    classic=ClassicProtocols(
                        member.session_timeout_ms, tuple((one.name, one.metadata) for one in member.protocols)
                    ),
                    epoch=classic.generation,
                    previous_epoch=classic.generation,
                ),
                assignment,
            )
        )
    upgraded_members: list[tuple[Member, Assignment]] = []
    for (each_member, given_last), had in zip(found, still_had, strict=True):
        kept = [partition for partition in each(had) if partition not in taken]
        taken.update(kept)
        has = assignment_of([*each(given_last), *kept])
        assigned = owned_since(has, classic.generation)
        upgraded_members.append((msgspec.structs.replace(each_member, assigned=assigned), has))
    return upgraded_members


def may_downgrade(
    group: ConsumerGroup, gone: Collection[str], policy: MigrationPolicy, config: ClassicGroupConfig
) -> bool:
    """True if without these members, all others speak the classic protocol, and may form a classic group."""
    left = [member for member_id, member in group.members.items() if member_id not in gone]
    return (
        bool(left)
        and all(member.classic is not None for member in left)
        and policy.downgrades
        and len(left) <= config.max_size
    )


def downgraded(
    group: ConsumerGroup, gone: Collection[str], clock: Clock, config: ClassicGroupConfig
) -> tuple[ClassicGroup, GroupValue]:
    """A classic group of the members without `gone`, in the group's epoch, and what is to be stored of it."""
    left = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
    protocol = _vote(list(left.values()))
    members = tuple(_stored(group, member, protocol) for member in left.values())
    value = GroupValue(TYPE, group.epoch, protocol, next(iter(left)), clock.now_ms(), members)
    classic = ClassicGroup.restore(group.group_id, value, clock, config)
    for member_id, member in left.items():
        assert member.classic is not None
        classic.members[member_id].protocols = tuple(Protocol(name, data) for name, data in member.classic.protocols)
    return classic, value


def _vote(members: list[Member]) -> str:
    """The first protocol of any member that all of them know."""
    names = [[name for name, _ in member.classic.protocols] for member in members if member.classic is not None]
    return next(name for name in names[0] if all(name in others for others in names))


def _stored(group: ConsumerGroup, member: Member, protocol: str) -> ClassicMemberValue:
    assert member.classic is not None
    metadata = dict(member.classic.protocols)[protocol]
    has = owned_since(assignment_of([*each(member.assigned), *each(member.revoking)]), 0)
    return ClassicMemberValue(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        metadata,
        embedded(has, metadata, group.topics),
    )
