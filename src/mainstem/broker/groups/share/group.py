"""One share group: who is in it and who reads which partitions. A state machine without I/O; the clock is passed in.

It is as a group of the consumer protocol (`consumer.group`), but a partition may have many members: nobody has to give
up anything before another gets it, and so a member takes its part of the target assignment at its next heartbeat. How
its state changes and is stored is in `modern.group`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NoReturn
from uuid import UUID

import msgspec

from mainstem.broker.groups.config import ShareGroupConfig
from mainstem.broker.groups.errors import FencedMemberEpoch, GroupFull, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.assignors import Subscriber
from mainstem.broker.groups.modern.group import SESSION, Change, RecordGroup
from mainstem.broker.groups.modern.partitions import Assignment
from mainstem.broker.groups.modern.records import TargetMemberValue, TargetValue
from mainstem.broker.groups.modern.subscriptions import TopicsView, topics_hash
from mainstem.broker.groups.share.assignor import assign_simple
from mainstem.broker.groups.share.records import (
    CurrentKey,
    CurrentValue,
    Key,
    MemberKey,
    MemberValue,
    ShareGroupKey,
    ShareGroupValue,
    StatePartitionsKey,
    StatePartitionsValue,
    TargetKey,
    TargetMemberKey,
    TopicPartitions,
    Value,
)
from mainstem.core import Clock

JOIN: Final = 0
LEAVE: Final = -1


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat. What has not changed since the last one may be left out: None."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """What a member is told."""

    member_id: str
    epoch: int
    assignment: Assignment | None = None
    """All that it reads now; None: as it was told before."""


_NEW: Final = ShareGroupValue(1)
"""A group that nobody has joined."""

_NO_TARGET: Final = TargetValue(1)
"""As Kafka tells it of such a group."""

_NOTHING: Final = CurrentValue(0, 0, {})


class ShareGroup(RecordGroup[Key, Value]):
    """A group and its members. It has no committed offsets: what it has read is the state of its partitions."""

    kind = "share"
    expires = False
    ORDER = (ShareGroupKey, MemberKey, TargetKey, TargetMemberKey, CurrentKey, StatePartitionsKey)

    def __init__(self, group_id: str, clock: Clock, topics: TopicsView, config: Callable[[], ShareGroupConfig]) -> None:
        """A group without members. `config` gives its settings, as they are at that moment."""
        super().__init__(group_id, clock, topics)
        self.members: dict[str, MemberValue] = {}
        self._config = config
        self._topics_seen = -1

    # --- as clients see it --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """It grows with every change of members, subscriptions and topics."""
        return self._group().epoch

    @property
    def target_epoch(self) -> int:
        """The group's epoch when the target assignment was made."""
        return self._target_of_all().epoch

    @property
    def state_name(self) -> str:
        """As clients are shown it."""
        return "Stable" if self.members else "Empty"

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """Topics that a member is subscribed to; they need not be there."""
        return frozenset(name for member in self.members.values() for name in member.topics)

    def current(self, member_id: str) -> CurrentValue:
        """The member's epochs and what it reads."""
        return self._value(CurrentKey(self.group_id, member_id), _NOTHING)

    # --- ShareGroupHeartbeat ------------------------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat) -> Change[HeartbeatAnswer]:
        """A member joins, or lives; what it is told is durable when the change is.

        Raises:
            UnknownMember, FencedMemberEpoch, GroupFull: it is refused.
        """
        with self.changing():
            member_id = request.member_id
            before = self._find(request)
            wanted = MemberValue(
                rack_id=before.rack_id if request.rack_id is None else request.rack_id,
                client_id=request.client_id,
                client_host=request.client_host,
                topics=before.topics if request.topics is None else tuple(sorted(set(request.topics))),
            )
            is_new = member_id not in self.members
            if is_new or wanted != before:
                self._put(MemberKey(self.group_id, member_id), wanted)
            self._follow_topics(changed=is_new or wanted.topics != before.topics)
            self._assign()
            current = self.current(member_id)
            after = current
            if current.epoch != self.target_epoch:
                # Kafka keeps the epoch that it had: a member that loses two answers, one after the other, is fenced.
                known = request.epoch if request.epoch != JOIN else current.epoch
                after = CurrentValue(self.target_epoch, known, self._target(member_id))
                self._put(CurrentKey(self.group_id, member_id), after)
            # One that comes with its epoch before has not been told.
            told = request.topics is not None or request.epoch != current.epoch or after.assigned != current.assigned
            self._start_session(member_id)
            return self.change(HeartbeatAnswer(member_id, after.epoch, after.assigned if told else None))

    def _find(self, request: Heartbeat) -> MemberValue:
        """The member as it is, or a new one."""
        present = self.members.get(request.member_id)
        if request.epoch == JOIN:
            limit = self._config().max_size
            if present is None and len(self.members) >= limit:
                raise GroupFull(self.group_id, f"it has {limit} members, which is its limit")
            return MemberValue() if present is None else present
        if present is None:
            raise UnknownMember(self.group_id, f"no member {request.member_id!r}")
        current = self.current(request.member_id)
        # The answer that raised its epoch may be lost.
        if request.epoch not in (current.epoch, current.previous_epoch):
            raise FencedMemberEpoch(
                self.group_id,
                f"member {request.member_id} is in epoch {current.epoch}, found {request.epoch}: it is to join anew",
            )
        return present

    def remove(self, member_ids: Iterable[str]) -> Change[None]:
        """Members are gone: they left, or were not heard of in time.

        Raises:
            UnknownMember: one of them is not there.
        """
        with self.changing():
            for member_id in member_ids:
                self.check_known(member_id)
                self._put(CurrentKey(self.group_id, member_id), None)
                self._put(TargetMemberKey(self.group_id, member_id), None)
                self._put(MemberKey(self.group_id, member_id), None)
            self._follow_topics(changed=True)
            return self.change(None)

    def _follow_topics(self, *, changed: bool) -> None:
        """Raise the group's epoch if anything that the target assignment is made of has changed."""
        if not changed and self._topics_seen == self.topics.version:
            return
        self._topics_seen = self.topics.version
        found = topics_hash(self.subscribed_topics, self.topics)
        if changed or found != self._group().topics_hash:
            self._put(ShareGroupKey(self.group_id), ShareGroupValue(self.epoch + 1, found))

    def _assign(self) -> None:
        """Make the target assignment anew, unless it is of this epoch or was made just now."""
        last = self._target_of_all()
        if last.epoch >= self.epoch or self._is_just_made(last.made_ms, self._config().assignment_interval_ms):
            return
        there = {topic.topic_id: topic for name in self.subscribed_topics if (topic := self.topics.get(name))}
        ids: dict[str, UUID] = {topic.name: topic_id for topic_id, topic in there.items()}
        subscribers = {
            member_id: Subscriber(
                frozenset(ids[name] for name in member.topics if name in ids), target=self._target(member_id)
            )
            for member_id, member in self.members.items()
        }
        made = assign_simple(subscribers, {topic_id: len(topic.logs) for topic_id, topic in there.items()})
        for member_id, target in made.items():
            key = TargetMemberKey(self.group_id, member_id)
            if key not in self._values or self._target(member_id) != target:
                self._put(key, TargetMemberValue(target))
        self._put(TargetKey(self.group_id), TargetValue(self.epoch, self._clock.now_ms()))
        # From when a partition is assigned on it has state: none of it is read yet. Kafka writes a first state for each
        # and assigns those only for which that is done; here the first fetch does, and until then a partition begins
        # where the group's settings say.
        self._add_state(
            TopicPartitions(topic_id, topic.name, tuple(range(len(topic.logs)))) for topic_id, topic in there.items()
        )

    def _target_of_all(self) -> TargetValue:
        return self._value(TargetKey(self.group_id), _NO_TARGET)

    def _target(self, member_id: str) -> Assignment:
        return self._value(TargetMemberKey(self.group_id, member_id), TargetMemberValue({})).partitions

    def _group(self) -> ShareGroupValue:
        return self._value(ShareGroupKey(self.group_id), _NEW)

    # --- partitions with state ----------------------------------------------------------------------------------------

    @property
    def state_partitions(self) -> StatePartitionsValue:
        """For which partitions there is state."""
        return self._value(StatePartitionsKey(self.group_id), StatePartitionsValue())

    @property
    def topics_with_state(self) -> frozenset[UUID]:
        """Topics of any of whose partitions there is state, or is some left: a deletion can be asked for again."""
        value = self.state_partitions
        ids = (each.topic_id for each in (*value.initializing, *value.initialized))
        return frozenset((*ids, *(topic_id for topic_id, _ in value.deleting)))

    def tracks(self, topic_id: UUID, partition: int) -> bool:
        """Whether there is state of that partition, or may be."""
        return any(
            each.topic_id == topic_id and partition in each.partitions for each in self.state_partitions.initialized
        )

    def set_offsets(self, partitions: Iterable[TopicPartitions]) -> Change[None]:
        """Somebody says where the group reads on: there is state of these partitions.

        Raises:
            GroupNotEmpty: it reads them.
        """
        self.check_empty()
        with self.changing():
            self._add_state(partitions)
            return self.change(None)

    def delete_offsets(self, topic_ids: Collection[UUID]) -> Change[None]:
        """The group is to forget what it has read of these topics: their state is being deleted.

        Raises:
            GroupNotEmpty: it reads them.
        """
        self.check_empty()
        doomed = self.state_of(topic_ids)
        deleting = dict(self.state_partitions.deleting) | {each.topic_id: each.topic for each in doomed}
        return self._keep_state(lambda topic_id: topic_id not in topic_ids, deleting)

    def state_of(self, topic_ids: Collection[UUID]) -> list[TopicPartitions]:
        """For which partitions of these topics there is state, or is to be."""
        value = self.state_partitions
        return [each for each in (*value.initializing, *value.initialized) if each.topic_id in topic_ids]

    def keep_offsets(self, partitions: Iterable[TopicPartitions]) -> Change[None]:
        """These were being deleted, as `delete_offsets` says, and are not."""
        deleting = {topic_id for topic_id, _ in self.state_partitions.deleting}
        with self.changing():
            self._add_state(each for each in partitions if each.topic_id in deleting)
            return self.change(None)

    def offsets_deleted(self, topic_ids: Collection[UUID]) -> Change[None]:
        """The state of these topics is deleted, unless there is a new one by now."""
        deleting = {topic_id: name for topic_id, name in self.state_partitions.deleting if topic_id not in topic_ids}
        return self._keep_state(lambda _: True, deleting)

    def forget_missing_topics(self) -> Change[None]:
        """Topics that are no more have no state."""

        def is_there(topic_id: UUID) -> bool:
            return self.topics.get_by_id(topic_id) is not None

        deleting = {topic_id: name for topic_id, name in self.state_partitions.deleting if is_there(topic_id)}
        return self._keep_state(is_there, deleting)

    def _keep_state(self, keep: Callable[[UUID], bool], deleting: Mapping[UUID, str]) -> Change[None]:
        value = self.state_partitions
        initializing, initialized = (
            tuple(each for each in found if keep(each.topic_id)) for found in (value.initializing, value.initialized)
        )
        with self.changing():
            self._put_state(StatePartitionsValue(initializing, initialized, tuple(deleting.items())))
            return self.change(None)

    def _add_state(self, partitions: Iterable[TopicPartitions]) -> None:
        """It stays when nobody is subscribed to them any more."""
        value = self.state_partitions
        initialized = {each.topic_id: each for each in value.initialized}
        new = {each.topic_id: each for each in partitions}
        for topic_id, each in new.items():
            had = initialized.get(topic_id)
            numbers = {*each.partitions, *(() if had is None else had.partitions)}
            initialized[topic_id] = TopicPartitions(topic_id, each.topic, tuple(sorted(numbers)))
        initializing = tuple(each for each in value.initializing if each.topic_id not in new)
        deleting = tuple(each for each in value.deleting if each[0] not in new)
        self._put_state(StatePartitionsValue(initializing, tuple(initialized.values()), deleting))

    def _put_state(self, value: StatePartitionsValue) -> None:
        if value == self.state_partitions:
            return
        # Of a group that nobody has ever joined it is the only record: that stays, though it says nothing any more.
        needless = value == StatePartitionsValue() and ShareGroupKey(self.group_id) in self._values
        self._put(StatePartitionsKey(self.group_id), None if needless else value)

    # --- offsets, which it has none of --------------------------------------------------------------------------------

    def check_commit(self, commit: Commit) -> None:
        """Nobody may commit offsets.

        Raises:
            UnknownGroup: always.
        """
        self._refuse()

    def check_may_delete_offsets(self) -> None:
        """Raise UnknownGroup."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnknownGroup(self.group_id, "it is a share group: such have no committed offsets")

    def expires_offsets_from(self, topic: str, committed_ms: int) -> int | None:
        """None: what it has never expires."""
        return None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return topic in self.subscribed_topics

    # --- as it is stored ----------------------------------------------------------------------------------------------

    def _after_put(self, key: Key, before: Value | None, value: Value | None) -> None:
        if isinstance(key, MemberKey):
            if isinstance(value, MemberValue):
                self.members[key.member_id] = value
            else:
                self.members.pop(key.member_id, None)
                self.drop_deadline(key.member_id, SESSION)

    def _start_session(self, member_id: str) -> None:
        self.set_deadline(member_id, SESSION, self._config().session_timeout_ms)

    def _forget_what_topics_were(self) -> None:
        self._topics_seen = -1

    def catch_up(self) -> None:
        """After a start: if the group's own record could not be read, no epoch may come twice all the same."""
        epoch = max(self.target_epoch, *(self.current(member_id).epoch for member_id in self.members), 0)
        if self.epoch < epoch:
            self.put(ShareGroupKey(self.group_id), ShareGroupValue(epoch))
