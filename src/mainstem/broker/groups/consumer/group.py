"""One group of the consumer protocol (KIP-848): a state machine. No I/O; the clock is passed in.

Three epochs lead the group to one assignment. The group's epoch grows with every change of members, subscriptions and
topics. The target assignment is made for an epoch of the group and has that number. A member's epoch is that of the
target assignment it has reached; it gets there in the steps of `reconciliation`, one per heartbeat.

How its state changes and is stored is in `modern.group`. What topics looked like is not stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar
from uuid import UUID, uuid4

import msgspec

from mainstem.broker.groups.config import ConsumerGroupConfig
from mainstem.broker.groups.consumer.member import Member
from mainstem.broker.groups.consumer.messages import JOIN, LEAVE_FOR_A_WHILE, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.consumer.reconciliation import reconciled
from mainstem.broker.groups.consumer.records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentKey,
    CurrentValue,
    Key,
    MemberKey,
    MemberState,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetKey,
    TargetMemberKey,
    Value,
)
from mainstem.broker.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupError,
    GroupFull,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.assignors import ASSIGNORS, Subscriber
from mainstem.broker.groups.modern.group import REBALANCE, SESSION, Change, ModernGroup
from mainstem.broker.groups.modern.partitions import Assignment, each, is_subset, without_epochs
from mainstem.broker.groups.modern.records import TargetMemberValue, TargetValue
from mainstem.broker.groups.modern.subscriptions import TopicsView, topics_hash
from mainstem.core import Clock, TopicPartition
from mainstem.wire.errors import Code

T = TypeVar("T")

CLASSIC_JOIN, CLASSIC_SYNC = "join", "sync"
"""What else a member of the classic protocol is given time for: to join again, and to ask for its assignment."""

DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))

_NEW: Final = ConsumerGroupValue(1)
"""A group that nobody has subscribed in; of it alone there is no record, as in Kafka."""


class Resolved(msgspec.Struct, frozen=True):
    """The topics that an expression matches."""

    topics: frozenset[str] | None
    """None: it is refused by now, and stays what it was."""
    version: int
    """Of the topics that it was resolved for."""


class ConsumerGroup(ModernGroup[Key, Value]):
    """A group and its members."""

    kind = "consumer"

    def __init__(
        self, group_id: str, clock: Clock, topics: TopicsView, config: Callable[[], ConsumerGroupConfig]
    ) -> None:
        """A group without members. `config` gives its settings, as they are at that moment."""
        super().__init__(group_id, clock, topics)
        self.epoch = _NEW.epoch
        self.topics_hash = 0
        self.target_epoch = 0
        self.target_made_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, RegexValue] = {}
        self.owners: dict[tuple[UUID, int], str] = {}
        """(topic id, partition): the member that has it, or has not yet said that it gave it up."""
        self.static: dict[str, str] = {}
        """Instance id: member id."""
        self._config = config
        self._subscribed: frozenset[str] | None = None
        self._topics_seen = -1
        self._resolved_at: dict[str, int] = {}

    # --- as clients see it --------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """As clients are shown it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """The one that most members ask for."""
        asked = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return asked.most_common(1)[0][0] if asked else DEFAULT_ASSIGNOR

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """Topics that a member is subscribed to, by name or expression; they need not be there."""
        if self._subscribed is None:
            self._subscribed = frozenset(name for member in self.members.values() for name in self._names_of(member))
        return self._subscribed

    def _names_of(self, member: Member) -> frozenset[str]:
        found = self.regexes.get(member.regex) if member.regex else None
        return member.topics if found is None else member.topics.union(found.topics)

    def topic_ids_of(self, member: Member) -> frozenset[UUID]:
        """Existing topics that the member is subscribed to."""
        found = (self.topics.get(name) for name in self._names_of(member))
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def unresolved(self, regex: str | None) -> set[str]:
        """Expressions of the members, and `regex`, that have not been resolved since topics have last changed."""
        wanted = {member.regex for member in self.members.values() if member.regex} | {regex}
        now = self.topics.version
        return {one for one in wanted if one and (one not in self.regexes or self._resolved_at.get(one) != now)}

    def is_subscribed_by(self, regex: str) -> bool:
        """A member has that expression."""
        return any(member.regex == regex for member in self.members.values())

    # --- ConsumerGroupHeartbeat ---------------------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat, resolved: Mapping[str, Resolved] | None = None) -> Change[HeartbeatAnswer]:
        """A member joins, or lives; what it is told is durable when the change is.
        `resolved` are expressions that `unresolved` has named; of others it counts what they matched before.

        Raises:
            UnknownMember, FencedMemberEpoch, FencedInstance, UnreleasedInstance, GroupFull: it is refused.
        """
        with self.changing():
            self.check_room(request.member_id)
            member = self._find(request)
            wanted = msgspec.structs.replace(
                member,
                instance_id=member.instance_id if request.instance_id is None else request.instance_id,
                rack_id=member.rack_id if request.rack_id is None else request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms
                if request.rebalance_timeout_ms != -1
                else member.rebalance_timeout_ms,
                assignor=member.assignor if request.assignor is None else request.assignor,
                topics=member.topics if request.topics is None else frozenset(request.topics),
                regex=member.regex if request.regex is None else request.regex,
                client_id=request.client_id,
                client_host=request.client_host,
                classic=None,
            )
            after = self.advance(member, wanted, request.reported, resolved or {})
            told = request.is_full or after.assigned != member.assigned
            answer = HeartbeatAnswer(after.member_id, after.epoch, without_epochs(after.assigned) if told else None)
            self.set_deadline(after.member_id, SESSION, self._config().session_timeout_ms)
            return self.change(answer)

    def check_room(self, member_id: str) -> None:
        """Raise GroupFull if the member would be one too many."""
        limit = self._config().max_size
        if len(self.members) >= limit and member_id not in self.members:
            raise GroupFull(self.group_id, f"it has {limit} members, which is its limit")

    def _find(self, request: Heartbeat) -> Member:
        """The member as it is, or a new one; a static member that is back takes its old place."""
        joins = request.epoch == JOIN
        member_id = request.member_id or str(uuid4())
        if request.instance_id is not None:
            return self.find_static(member_id, request.instance_id, request, joins=joins)
        if joins and member_id not in self.members:
            return Member(member_id=member_id)
        member = self.member(member_id)
        self._check_epoch(member, request)
        return member

    def find_static(self, member_id: str, instance_id: str, request: Heartbeat | None, *, joins: bool) -> Member:
        """The member with that instance id; `request` is None for one that speaks the classic protocol."""
        present = self.static_member(instance_id)
        if not joins:
            if present is None:
                raise UnknownMember(self.group_id, f"no member with instance id {instance_id}")
            self._check_instance(present, member_id)
            if request is not None:
                self._check_epoch(present, request)
            return present
        if present is None:
            return self.members.get(member_id, Member(member_id=member_id))
        both_speak_this = request is not None and present.classic is None
        if both_speak_this and present.epoch != LEAVE_FOR_A_WHILE:
            if present.member_id == member_id:  # the answer to its join is lost; Kafka leaves it out for a session
                return present
            raise UnreleasedInstance(
                self.group_id, f"instance id {instance_id} is member {present.member_id}, which has not left"
            )
        return self._replace(present, member_id)

    def _replace(self, old: Member, member_id: str) -> Member:
        """The same member under another id: a static member has been restarted."""
        member = msgspec.structs.replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        target = self.targets.get(old.member_id, {})
        self._remove(old.member_id)
        self._put(MemberKey(self.group_id, member_id), member.described())
        self._put(TargetMemberKey(self.group_id, member_id), TargetMemberValue(target))
        self._put(CurrentKey(self.group_id, member_id), member.current())
        return member

    def _check_epoch(self, member: Member, request: Heartbeat) -> None:
        if request.epoch == JOIN or request.epoch == member.epoch:
            return
        # The answer that raised its epoch may be lost: then it has nothing yet that it was told in it.
        lost_an_answer = request.epoch < member.epoch and request.epoch == member.previous_epoch
        if lost_an_answer and request.reported is not None and is_subset(request.reported, member.assigned):
            return
        raise FencedMemberEpoch(
            self.group_id,
            f"member {member.member_id} is in epoch {member.epoch}, found {request.epoch}: it is to join anew",
        )

    def _check_instance(self, present: Member, member_id: str) -> None:
        if present.member_id != member_id:
            raise FencedInstance(
                self.group_id, f"instance id {present.instance_id} is {present.member_id} now, found {member_id}"
            )

    def advance(
        self, before: Member, wanted: Member, reported: Assignment | None, resolved: Mapping[str, Resolved]
    ) -> Member:
        """Take a member one step on.

        1. The member as it says it is. 2. The group's epoch, if subscriptions or topics have changed. 3. The target
        assignment, if it is of an older epoch. 4. The member's step towards it.
        """
        is_new = before.member_id not in self.members
        subscribes_anew = wanted.topics != before.topics or wanted.regex != before.regex
        if is_new or wanted != before:
            self._put(MemberKey(self.group_id, wanted.member_id), wanted.described())
        self._follow_topics(resolved, changed=subscribes_anew)
        self._assign()
        if before.state is MemberState.UNKNOWN and (reported is None or reported):
            raise FencedMemberEpoch(
                self.group_id, f"the state of member {before.member_id} is not known: it is to join anew"
            )
        after = reconciled(
            wanted,
            target_epoch=self.target_epoch,
            target=self.targets.get(wanted.member_id, {}),
            subscribed=self.topic_ids_of(wanted),
            is_owned=lambda topic_id, partition: (topic_id, partition) in self.owners,
            reported=reported,
            subscription_changed=subscribes_anew,
        )
        if after.current() != before.current() or is_new:
            self._put(CurrentKey(self.group_id, after.member_id), after.current())
            self._give_time_to_revoke(after)
        return after

    def _give_time_to_revoke(self, member: Member) -> None:
        # One of the classic protocol is given time to join and to sync.
        if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            self.set_deadline(member.member_id, REBALANCE, member.rebalance_timeout_ms)
        else:
            self.drop_deadline(member.member_id, REBALANCE)

    def resolve(self, resolved: Mapping[str, Resolved]) -> Change[None]:
        """Raise the group's epoch if its members' expressions match other topics now; whoever comes next has the target
        assignment made anew.
        """
        with self.changing():
            self._follow_topics(resolved, changed=False)
            return self.change(None)

    def follow_topics(self) -> Change[None]:
        """Make the target assignment anew if topics or members have changed since it was made."""
        with self.changing():
            self._follow_topics({}, changed=False)
            self._assign()
            return self.change(None)

    def _follow_topics(self, resolved: Mapping[str, Resolved], *, changed: bool) -> None:
        """Raise the group's epoch if anything that the target assignment is made of has changed."""
        for regex, found in resolved.items():
            known = self.regexes.get(regex)
            # Somebody's who was refused, or has gone meanwhile; or who waited for it, and a later one was told first.
            if not self.is_subscribed_by(regex) or found.version < self._resolved_at.get(regex, -1):
                continue
            self._resolved_at[regex] = found.version
            if found.topics is not None and (known is None or frozenset(known.topics) != found.topics):
                names = tuple(sorted(found.topics))
                self._put(RegexKey(self.group_id, regex), RegexValue(names, found.version, self._clock.now_ms()))
                changed = True
        if changed:
            self._forget_regexes()
        if not changed and self._topics_seen == self.topics.version:
            return
        self._topics_seen = self.topics.version
        found_hash = topics_hash(self.subscribed_topics, self.topics)
        if changed or found_hash != self.topics_hash:
            self._put(ConsumerGroupKey(self.group_id), ConsumerGroupValue(self.epoch + 1, found_hash))

    def _forget_regexes(self) -> None:
        """Expressions that nobody is subscribed to any more."""
        used = {member.regex for member in self.members.values()}
        for regex in self.regexes.keys() - used:
            self._put(RegexKey(self.group_id, regex), None)

    def _assign(self) -> None:
        """Make the target assignment anew, unless it is of this epoch or was made just now."""
        if self.target_epoch >= self.epoch:
            return
        if self._is_just_made(self.target_made_ms, self._config().assignment_interval_ms):
            return
        there = [topic for name in self.subscribed_topics if (topic := self.topics.get(name)) is not None]
        counts = {topic.topic_id: len(topic.logs) for topic in there}
        subscribers = {
            member_id: Subscriber(self.topic_ids_of(member), member.instance_id, self.targets.get(member_id, {}))
            for member_id, member in self.members.items()
        }
        made = ASSIGNORS[self.assignor](subscribers, counts)
        for member_id in self.members:
            target = made.get(member_id, {})
            if member_id not in self.targets or self.targets[member_id] != target:
                self._put(TargetMemberKey(self.group_id, member_id), TargetMemberValue(target))
        self._put(TargetKey(self.group_id), TargetValue(self.epoch, self._clock.now_ms()))

    # --- leaving ------------------------------------------------------------------------------------------------------

    def leaving(self, request: Heartbeat) -> Member:
        """The member that a heartbeat with a negative epoch speaks of.

        Raises:
            UnknownMember, FencedInstance: there is none.
        """
        if request.instance_id is None:
            return self.member(request.member_id)
        member = self.static_member(request.instance_id)
        if member is None:
            raise UnknownMember(self.group_id, f"no member with instance id {request.instance_id}")
        self._check_instance(member, request.member_id)
        return member

    def leave_for_a_while(self, member: Member) -> Change[HeartbeatAnswer]:
        """A static member is restarted: it keeps its place and its partitions until its session is over."""
        with self.changing():
            kept = {topic_id: dict.fromkeys(found, 0) for topic_id, found in member.assigned.items()}
            away = msgspec.structs.replace(member, epoch=LEAVE_FOR_A_WHILE, assigned=kept, revoking={})
            self._put(CurrentKey(self.group_id, member.member_id), away.current())
            self.drop_deadline(member.member_id, REBALANCE)
            return self.change(HeartbeatAnswer(member.member_id, LEAVE_FOR_A_WHILE))

    def remove(self, member_ids: Iterable[str], answer: T) -> Change[T]:
        """Members are gone: they left, or were not heard of in time."""
        with self.changing():
            for member_id in member_ids:
                self._remove(member_id)
            self._follow_topics({}, changed=True)
            return self.change(answer)

    def _remove(self, member_id: str) -> None:
        self._put(CurrentKey(self.group_id, member_id), None)
        self._put(TargetMemberKey(self.group_id, member_id), None)
        self._put(MemberKey(self.group_id, member_id), None)

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _start_session(self, member_id: str) -> None:
        member = self.members[member_id]
        timeout_ms = self._config().session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        self.set_deadline(member_id, SESSION, timeout_ms)
        self._give_time_to_revoke(member)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def check_commit(self, commit: Commit) -> None:
        """May these offsets be committed by this member?

        Raises:
            UnknownMember, StaleMemberEpoch, IllegalGeneration: no.
        """
        if self._is_no_members(commit):
            return
        member = self.member(commit.member_id)
        if not commit.transactional and member.classic is None and not commit.knows_epochs:
            raise GroupError(
                Code.unsupported_version, self.group_id, "members of the consumer protocol commit by version 9 or later"
            )
        wrong = IllegalGeneration if commit.transactional else _wrong_epoch(member)  # TxnOffsetCommit knows no other
        self._check_commit_epoch(commit, member.epoch, lambda each: self._since(member, each), wrong)

    def _since(self, member: Member, partition: TopicPartition) -> int | None:
        """The epoch since which the member has the partition; None: it has not."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return None
        for owned in (member.assigned, member.revoking):
            since = owned.get(topic.topic_id, {}).get(partition.partition)
            if since is not None:
                return since
        return None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """May this member be told the group's offsets? Whoever names no member and no epoch may.

        Raises:
            UnknownMember, StaleMemberEpoch, IllegalGeneration: no.
        """
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            wrong = _wrong_epoch(member)
            raise wrong(self.group_id, f"member {member.member_id} is in epoch {member.epoch}, found {epoch}")

    def expires_offsets_from(self, topic: str, committed_ms: int) -> int | None:
        """From when on (wall clock) the retention of an offset of `topic` counts; None: it does not expire."""
        return None if topic in self.subscribed_topics else committed_ms

    def is_subscribed_to(self, topic: str) -> bool:
        """A topic's offsets may not be deleted while a member reads it."""
        return topic in self.subscribed_topics

    # --- members ------------------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        """The member of that id.

        Raises:
            UnknownMember: there is none.
        """
        self.check_known(member_id)
        return self.members[member_id]

    def waits_for_others(self, member: Member) -> bool:
        """True if somebody else still has a partition that the member is to have."""
        target = self.targets.get(member.member_id, {})
        return any(
            (topic_id, partition) in self.owners and partition not in member.assigned.get(topic_id, {})
            for topic_id, partition in each(target)
        )

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member of that instance id, if there is one."""
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    # --- as it is stored ----------------------------------------------------------------------------------------------

    def keys(self) -> list[Key]:
        """Of every record of the group; what others are about comes last, so that they are never without it."""
        group_id = self.group_id
        return [
            *(CurrentKey(group_id, member_id) for member_id in self.members),
            *(TargetMemberKey(group_id, member_id) for member_id in self.targets),
            TargetKey(group_id),
            *(MemberKey(group_id, member_id) for member_id in self.members),
            *(RegexKey(group_id, regex) for regex in self.regexes),
            ConsumerGroupKey(group_id),
        ]

    def catch_up(self) -> None:
        """After a start: if the group's own record could not be read, no epoch may come twice all the same."""
        epoch = max(self.target_epoch, *(member.epoch for member in self.members.values()), 0)
        if self.epoch < epoch:
            self.put(ConsumerGroupKey(self.group_id), ConsumerGroupValue(epoch))

    def _forget_what_topics_were(self) -> None:
        self._topics_seen = -1
        self._resolved_at.clear()

    def get(self, key: Key) -> Value | None:
        """The record as it is now."""
        match key:
            case ConsumerGroupKey():
                value = ConsumerGroupValue(self.epoch, self.topics_hash)
                return None if value == _NEW else value
            case MemberKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.described()
            case TargetKey():
                return TargetValue(self.target_epoch, self.target_made_ms) if self.target_epoch else None
            case TargetMemberKey():
                target = self.targets.get(key.member_id)
                return None if target is None else TargetMemberValue(target)
            case CurrentKey():
                member = self.members.get(key.member_id)
                return None if member is None or member.current() == _NOTHING else member.current()
            case RegexKey():
                return self.regexes.get(key.expression)

    def put(self, key: Key, value: Value | None) -> None:
        """Take over one record, as a start reads it. A member's own record comes before that of what it has."""
        match key, value:
            case ConsumerGroupKey(), _:
                value = value if isinstance(value, ConsumerGroupValue) else _NEW
                self.epoch, self.topics_hash = value.epoch, value.topics_hash
            case TargetKey(), _:
                value = value if isinstance(value, TargetValue) else TargetValue(0)
                self.target_epoch, self.target_made_ms = value.epoch, value.made_ms
            case TargetMemberKey(), TargetMemberValue():
                self.targets[key.member_id] = value.partitions
            case TargetMemberKey(), _:
                self.targets.pop(key.member_id, None)
            case MemberKey(), _:
                self._put_member(key.member_id, value if isinstance(value, MemberValue) else None)
            case CurrentKey(), _:
                self._put_current(key.member_id, value if isinstance(value, CurrentValue) else _NOTHING)
            case RegexKey(), RegexValue():
                self.regexes[key.expression] = value
                self._subscribed = None
            case RegexKey(), _:
                self.regexes.pop(key.expression, None)
                self._resolved_at.pop(key.expression, None)
                self._subscribed = None

    def _put_member(self, member_id: str, value: MemberValue | None) -> None:
        self._subscribed = None
        before = self.members.get(member_id)
        if before is not None and before.instance_id is not None and self.static.get(before.instance_id) == member_id:
            del self.static[before.instance_id]
        if value is None:
            self._put_current(member_id, _NOTHING)
            self.members.pop(member_id, None)
            for what_for in (SESSION, REBALANCE, CLASSIC_JOIN, CLASSIC_SYNC):
                self.drop_deadline(member_id, what_for)
            return
        member = Member(member_id=member_id) if before is None else before
        self.members[member_id] = member.with_described(value)
        if value.instance_id is not None:
            self.static[value.instance_id] = member_id

    def _put_current(self, member_id: str, value: CurrentValue) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        for owned in (member.assigned, member.revoking):
            for partition in each(owned):
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        for owned in (value.assigned, value.revoking):
            for partition in each(owned):
                self.owners[partition] = member_id
        self.members[member_id] = member.with_current(value)


_NOTHING: Final = CurrentValue(0, 0, MemberState.STABLE, {}, {})


def _wrong_epoch(member: Member) -> type[StaleMemberEpoch] | type[IllegalGeneration]:
    """What a member is told whose epoch is not the one that it names: what its protocol knows."""
    return StaleMemberEpoch if member.classic is None else IllegalGeneration
