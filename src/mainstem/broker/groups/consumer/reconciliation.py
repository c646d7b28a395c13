"""From what a member has to what it is to have, one step per heartbeat. Pure: the group stores what comes out.

A partition belongs to a member until the member's own report of what it has shows that it is gone, so nobody else gets
it before; a heartbeat without such a report (null topics) shows nothing. A member first gives up what it has to
(UNREVOKED_PARTITIONS, in its old epoch), then goes to the target's epoch, with what is free of its new partitions, and
gets the others as they become free (UNRELEASED_PARTITIONS).
"""

from collections.abc import Callable, Collection
from uuid import UUID

from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.records import MemberState
from mainstem.broker.groups.modern.partitions import Assignment, Owned, overlap

STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def reconciled(
    member: Member,
    *,
    target_epoch: int,
    target: Assignment,
    subscribed: Collection[UUID],
    is_owned: Callable[[UUID, int], bool],
    reported: Assignment | None,
    subscription_changed: bool,
) -> Member:
    """The member after one step towards its part of the target assignment; itself if there is nothing to do.

    `subscribed` are existing topics that it is subscribed to: of others it has nothing, whatever the target says.
    `is_owned` tells whether a member has a partition, or has not yet said that it gave it up. `reported` is what the
    member says that it has; None: it does not say.
    """

    def step_on() -> Member:
        return _step_on(member, target_epoch, target, subscribed, is_owned, reported)

    if member.state is STABLE:
        if member.epoch != target_epoch:
            return step_on()
        return _without_unsubscribed(member, subscribed, reported) if subscription_changed else member
    if member.state is UNREVOKED and _still_has(reported, member.revoking):
        return _without_unsubscribed(member, subscribed, reported) if subscription_changed else member
    return step_on()


def _still_has(reported: Assignment | None, revoking: Owned) -> bool:
    return reported is None or overlap(reported, revoking)


def _step_on(
    member: Member,
    target_epoch: int,
    target: Assignment,
    subscribed: Collection[UUID],
    is_owned: Callable[[UUID, int], bool],
    reported: Assignment | None,
) -> Member:
    keeps: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    gets: dict[UUID, dict[int, int]] = {}
    unreleased = False
    for topic_id in {**dict.fromkeys(target), **dict.fromkeys(member.assigned)}:
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        has = member.assigned.get(topic_id, {})
        _put(keeps, topic_id, {number: epoch for number, epoch in has.items() if number in wanted})
        _put(revoking, topic_id, {number: epoch for number, epoch in has.items() if number not in wanted})
        missing = [number for number in sorted(wanted) if number not in has]
        given_up = member.revoking.get(topic_id, {})  # by this one, which is to have it after all
        free = [number for number in missing if number in given_up or not is_owned(topic_id, number)]
        unreleased |= len(free) < len(missing)
        _put(gets, topic_id, dict.fromkeys(free, target_epoch))
    if revoking and _still_has(reported, revoking):
        return member.moved(member.epoch, UNREVOKED, keeps, revoking)
    for topic_id, free_ones in gets.items():
        keeps[topic_id] = keeps.get(topic_id, {}) | free_ones
    return member.moved(target_epoch, UNRELEASED if unreleased else STABLE, keeps, {})


def _without_unsubscribed(member: Member, subscribed: Collection[UUID], reported: Assignment | None) -> Member:
    """At once, whatever the target says: what the member is not subscribed to any more is to be given up."""
    if all(topic_id in subscribed for topic_id in member.assigned):
        return member
    keeps = {topic_id: found for topic_id, found in member.assigned.items() if topic_id in subscribed}
    revoking = {topic_id: dict(found) for topic_id, found in member.revoking.items()}
    for topic_id, found in member.assigned.items():
        if topic_id not in subscribed:
            revoking[topic_id] = revoking.get(topic_id, {}) | dict(found)
    if revoking and _still_has(reported, revoking):
        return member.moved(member.epoch, UNREVOKED, keeps, revoking)
    return member.moved(member.epoch, member.state, keeps, member.revoking)


def _put(into: dict[UUID, dict[int, int]], topic_id: UUID, partitions: dict[int, int]) -> None:
    if partitions:
        into[topic_id] = partitions
