"""One consumer group of the classic protocol: a state machine. No I/O; the clock is passed in.

A rebalance goes through three states. PREPARING_REBALANCE: every member joins again, until all have, or until the
longest rebalance timeout has passed (who has not come back by then is removed). COMPLETING_REBALANCE: the leader, one
of the members, is given everybody's subscriptions and sends the assignment. STABLE: everybody has its part.

JoinGroup and SyncGroup are answered later, together: the caller hands in a `Reply` and gets it back, with its answer,
in the `Step` of whatever call decided it. A step may also hold a record: the caller stores it and, when it is durable,
calls `Step.after_stored`, which leads to one more step. Deadlines are the group's own: `next_deadline` says when
`expire` has something to do.

What a member was told holds after a crash: a generation is stored before anybody hears of it, with the assignments of
the one before, which members may have still; and who has left is gone. Kafka stores neither: there the first SyncGroup
after a crash ends a consumer's session, and a member that has left holds the rebalance up until its session ends.

The protocol type (`consumer`, `connect`, …) and the protocols' bytes are the members' affair; only for `consumer` the
subscribed topics are read, since offsets of subscribed topics neither expire nor may be deleted.
"""

import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from mainstem.broker.groups.classic.members import Member, Members
from mainstem.broker.groups.classic.messages import (
    JoinAnswer,
    JoinReply,
    JoinRequest,
    Protocol,
    SyncAnswer,
    SyncReply,
    SyncRequest,
)
from mainstem.broker.groups.config import ClassicGroupConfig
from mainstem.broker.groups.errors import (
    GroupError,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    UnknownGroup,
    UnknownMember,
)
from mainstem.broker.groups.membership import Commit, Group
from mainstem.broker.groups.records import GroupKey, GroupValue
from mainstem.core import Clock
from mainstem.wire.errors import Code
from mainstem.wire.frames import MOST_TEXT

T = TypeVar("T")


class GroupState(enum.Enum):
    """Kafka's states, with the names that clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, STABLE, DEAD = GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE

TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset((PREPARING, DEAD)),
    PREPARING: frozenset((COMPLETING, EMPTY, DEAD)),
    COMPLETING: frozenset((STABLE, PREPARING, DEAD)),
    STABLE: frozenset((PREPARING, DEAD)),
    DEAD: frozenset(),
}
"""From a state to those that may follow. A group that loses its last member goes through PREPARING to EMPTY."""

LARGE: Final = 200
"""Members: the record of a larger group is not written again for each that leaves, only with the next generation."""

UNASSIGNED: Final = -2
"""Stored as the time of a generation that has no assignment yet. Kafka stores none."""

LEAST_RETRY_MS: Final = 1_000
"""Between two looks whether an absent static member is back, however short its rebalance timeout."""


class Step(msgspec.Struct):
    """What a call on a group has led to: first the answers, then a record to store, then what follows it."""

    answers: list[Callable[[], None]] = msgspec.field(default_factory=list)
    """Each gives one member its answer."""
    record: GroupValue | None = None
    after_stored: "Callable[[], Step] | None" = None


class ClassicGroup(Group):
    """A group and its members. Every method that may lead to answers or a record returns a `Step`."""

    kind = "classic"

    def __init__(self, group_id: str, clock: Clock, config: ClassicGroupConfig) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.members = Members(group_id)
        self.state_since_ms = -1
        """Wall clock; -1 if unknown: offsets of an empty group expire from here on."""
        self.subscribed_topics: frozenset[str] | None = None
        """Of a `consumer` group whose subscriptions could be read; None otherwise."""
        self._clock = clock
        self._config = config
        self._pending: dict[str, float] = {}  # member ids given out, not yet joined with: until when
        self._waiting_for_sync: set[str] = set()
        self._is_told = True  # of the generation: who joined waits until it is stored
        self._is_overtaken = False  # before it was told: the next one has everybody who has come meanwhile
        self._is_assigning = False  # the leader's assignment is on its way to the log
        self._is_keeping = False  # so is a record with other ids of static members
        self._returned: dict[str, tuple[bool, str]] = {}
        """Static members that wait for the next such record: (whether they skip the assignment, who leads)."""
        self._join_deadline: float | None = None
        self._sync_deadline: float | None = None
        self._initial: tuple[int, int] | None = (
            None  # of the first rebalance: (this delay, what is left after it) in ms
        )
        self._member_came = False  # during the first rebalance

    # --- as it is stored ----------------------------------------------------------------------------------------------

    @classmethod
    def restore(cls, group_id: str, value: GroupValue, clock: Clock, config: ClassicGroupConfig) -> "ClassicGroup":
        """The group as it was stored. Its members are given one session timeout to be heard of.

        Without a leader, somebody has left and the others are to join again. Since `UNASSIGNED`, the leader is to bring
        the assignment.
        """
        group = cls(group_id, clock, config)
        group.protocol_type = value.protocol_type or None
        group.generation = value.generation
        group.state_since_ms = max(value.state_since_ms, -1)
        if value.members:
            group.protocol, group.members.leader = value.protocol, value.leader
            is_assigned = value.state_since_ms != UNASSIGNED
            group.state = PREPARING if value.leader is None else STABLE if is_assigned else COMPLETING
        for each in value.members:
            request = JoinRequest(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                protocol_type=value.protocol_type,
                protocols=(Protocol(value.protocol or "", each.subscription),),
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                session_timeout_ms=each.session_timeout_ms,
            )
            member = Member(each.member_id, request)
            member.assignment = each.assignment
            group.members.add(member)
            group._rearm(member)
        group.subscribed_topics = group._read_subscriptions()
        if group.state is PREPARING:
            group._join_deadline = group._in(group.members.rebalance_timeout_ms())
        elif group.state is COMPLETING:
            group._wait_for_sync()
        return group

    def _value(self, assignments: Mapping[str, bytes]) -> GroupValue:
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.members.leader,
            self.state_since_ms,
            tuple(m.stored(self.protocol, assignments.get(m.member_id, b"")) for m in self.members.values()),
        )

    def _given(self) -> dict[str, bytes]:
        """What members were given last."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def _value_without_new(self) -> GroupValue:
        """In the middle of a rebalance: who has not been in a generation yet asks for a new id after a crash."""
        members = (member for member in self.members.values() if not member.is_new)
        stored = tuple(member.stored(self.protocol, member.assignment) for member in members)
        return msgspec.structs.replace(self._value({}), leader=None, members=stored)

    def keys(self) -> list[GroupKey]:
        """Of the one record of a group that somebody has joined."""
        return [] if self.protocol_type is None else [GroupKey(self.group_id)]

    @property
    def state_name(self) -> str:
        """As clients are shown it."""
        return self.state.value

    @property
    def is_empty(self) -> bool:
        """True if it is there and has no members."""
        return self.state is EMPTY

    @property
    def is_expected(self) -> bool:
        """True while somebody has a member id and has not joined with it yet."""
        return bool(self._pending)

    # --- JoinGroup ----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinReply) -> Step:
        """A member enters, or comes back for the next generation."""
        step = Step()
        try:
            self._join(request, reply, step)
        except GroupError as error:
            _answer(step, reply, JoinAnswer(error=error.code, member_id=request.member_id))
        return step

    def _join(self, request: JoinRequest, reply: JoinReply, step: Step) -> None:
        if self.state is DEAD:
            raise GroupError(Code.coordinator_not_available, self.group_id, "deleted just now")
        if not self._has_room_for(request.member_id):
            self._remove(request.member_id)
            _answer(step, reply, JoinAnswer(error=Code.group_max_size_reached))
            return
        self._check_protocols(request)
        if request.member_id in self._pending:
            self._add(request.member_id, request, reply, step)
        elif request.member_id:
            self._join_again(request, reply, step)
        elif request.instance_id is None:
            self._join_dynamic(request, reply, step)
        elif self.members.holder(request.instance_id) is not None:
            self._replace_static(_member_id(request.instance_id), request, reply, step)
        else:
            self._add(_member_id(request.instance_id), request, reply, step)

    def _has_room_for(self, member_id: str) -> bool:
        member, size = self.members.get(member_id), self._config.max_size
        if self.state in (EMPTY, DEAD):
            return True
        if self.state is PREPARING:  # by who is waiting: the group may be larger than a limit that was lowered
            waiting = sum(1 for each in self.members.values() if each.join_reply)
            return (member is not None and member.join_reply is not None) or waiting < size
        return member is not None or len(self.members) < size

    def _check_protocols(self, request: JoinRequest) -> None:
        names = {protocol.name for protocol in request.protocols}
        if not self.members and self.state is EMPTY:
            fits = bool(request.protocol_type and names)
        else:
            fits = request.protocol_type == self.protocol_type and (
                not self.members or bool(names & self.members.common_protocols())
            )
        if not fits:
            raise InconsistentProtocol(
                self.group_id,
                f"protocol type {self.protocol_type!r} with {sorted(self.members.common_protocols())}, "
                f"found {request.protocol_type!r} with {sorted(names)}",
            )

    def _join_dynamic(self, request: JoinRequest, reply: JoinReply, step: Step) -> None:
        member_id = _member_id(request.client_id)
        if not request.member_id_required:
            self._add(member_id, request, reply, step)
            return
        self._pending[member_id] = self._in(request.session_timeout_ms)
        _answer(step, reply, JoinAnswer(error=Code.member_id_required, member_id=member_id))

    def _join_again(self, request: JoinRequest, reply: JoinReply, step: Step) -> None:
        member = self.members.check(request.member_id, request.instance_id)
        if self.state is EMPTY:
            raise UnknownMember(self.group_id, f"member {member.member_id} in an empty group")
        same = member.protocols == request.protocols
        stays = (
            same
            if self.state is COMPLETING
            else same and self.state is STABLE and self.members.leader != member.member_id
        )
        if stays:  # its answer was lost, or a follower asks without need: the generation goes on
            if self._is_told:
                _answer(step, reply, self._joined(member))
            else:
                self._wait_for_join(member, reply, step)
            return
        member.update(request)
        self._wait_for_join(member, reply, step)
        self._rebalance_or_complete(step)

    def _replace_static(self, member_id: str, request: JoinRequest, reply: JoinReply, step: Step) -> None:
        """A static member is back without its id: a restart. It takes its old place; the old process is fenced."""
        told_leader = self.members.leader or ""
        member = Member(member_id, request)
        old = self.members.take_over(member)
        self._answer_join(old, JoinAnswer(error=Code.fenced_instance_id, member_id=old.member_id), step)
        self._answer_sync(old, SyncAnswer(error=Code.fenced_instance_id), step)
        if old.member_id in self._waiting_for_sync:
            self._waiting_for_sync.remove(old.member_id)
            self._waiting_for_sync.add(member.member_id)
        member.join_reply = reply
        self._rearm(member)
        if self.state is STABLE and self.members.vote() == self.protocol:
            self._keep_generation(member, request.may_skip_assignment, told_leader, step)
        elif self.state is COMPLETING:  # the leader may have been told the old id: it would get no assignment
            self._prepare_rebalance(step)
        elif self.state is STABLE:
            self._rebalance_or_complete(step)
        else:
            self._complete_if_all_joined(step)

    def _keep_generation(self, member: Member, may_skip: bool, told_leader: str, step: Step) -> None:
        """The new member id is stored; then the member goes on with the assignment it had. Who comes while a record is
        on its way shares the next one: a few bytes would write the whole group each time.
        """
        self._returned[member.member_id] = (may_skip, told_leader)
        if not self._is_keeping:
            self._store_returned(step)

    def _store_returned(self, step: Step) -> None:
        returned, self._returned = self._returned, {}
        generation = self.generation

        def stored() -> Step:
            after = Step()
            self._is_keeping = False
            if self.generation != generation or self.state is not STABLE:
                self._returned = {}
                return after
            for member_id, (may_skip, told_leader) in returned.items():
                member = self.members.get(member_id)
                if member is not None and member.join_reply:
                    self._answer_returned(member, may_skip, told_leader, after)
            if self._returned:
                self._store_returned(after)
            return after

        self._is_keeping = True
        step.record = self._value(self._given())
        step.after_stored = stored

    def _answer_returned(self, member: Member, may_skip: bool, told_leader: str, step: Step) -> None:
        answer = self._joined(member)
        if may_skip:
            answer = msgspec.structs.replace(answer, skip_assignment=self.members.leader == member.member_id)
        else:  # told that the old id leads, it does not assign: nobody else would take part
            answer = msgspec.structs.replace(answer, leader=told_leader, members=())
        self._answer_join(member, answer, step)

    def _add(self, member_id: str, request: JoinRequest, reply: JoinReply, step: Step) -> None:
        member = Member(member_id, request)
        member.is_new, member.join_reply = True, reply
        if not self.members:
            self.protocol_type = request.protocol_type
        if self.members.leader is None:
            self.members.leader = member_id
        self.members.add(member)
        self._pending.pop(member_id, None)
        if self._initial is not None:
            self._member_came = True
        member.deadline = self._in(self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete(step)

    def _joined(self, member: Member) -> JoinAnswer:
        everybody: tuple[tuple[str, str | None, bytes], ...] = ()
        if self.members.leader == member.member_id:
            everybody = tuple((m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values())
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader or "",
            members=everybody,
        )

    # --- the rebalance ------------------------------------------------------------------------------------------------

    def rebalance(self) -> Step:
        """Have everybody join again, although no member has asked for it."""
        step = Step()
        self._prepare_rebalance(step)
        return step

    def _rebalance_or_complete(self, step: Step) -> None:
        if self.state is PREPARING:
            self._complete_if_all_joined(step)
        else:
            self._prepare_rebalance(step)

    def _prepare_rebalance(self, step: Step) -> None:
        if self.state is COMPLETING and not self._is_told:
            # Nobody has heard of it. One generation for each who comes would write the whole group each time.
            self._is_overtaken = True
            return
        self._begin_rebalance(step)

    def _begin_rebalance(self, step: Step) -> None:
        self._is_assigning = False
        if self.state is COMPLETING:
            for member in self.members.values():
                self._answer_sync(member, SyncAnswer(error=Code.rebalance_in_progress), step)
        self._waiting_for_sync.clear()
        self._sync_deadline = None
        first = self.state is EMPTY
        self._become(PREPARING)
        if not first:
            self._join_deadline = self._in(self.members.rebalance_timeout_ms())
            self._complete_if_all_joined(step)
            return
        delay = self._config.initial_rebalance_delay_ms
        self._initial = (delay, max(self.members.rebalance_timeout_ms() - delay, 0))
        self._member_came = False
        self._join_deadline = self._in(delay)
        if delay == 0:
            self._complete_join(step)

    def _complete_if_all_joined(self, step: Step) -> None:
        everybody = all(member.join_reply for member in self.members.values()) and not self._pending
        if self.state is PREPARING and self._initial is None and everybody:
            self._complete_join(step)

    def _expire_join(self, step: Step) -> None:
        if self._initial is not None and self._member_came and self._initial[1] > 0:
            delay, left = self._initial  # somebody came during the first rebalance: more may be on their way
            self._member_came = False
            delay, left = min(self._config.initial_rebalance_delay_ms, left), max(left - delay, 0)
            self._initial = (delay, left)
            self._join_deadline = self._in(delay)
            return
        self._complete_join(step)

    def _complete_join(self, step: Step) -> None:
        """The next generation: who has not joined is out, except static members, whose session decides."""
        self._join_deadline = self._initial = None
        for member in [m for m in self.members.values() if not m.join_reply and m.instance_id is None]:
            self._remove(member.member_id)
        if self.members and not self.members.elect_leader():  # only static members, and none of them is here
            self._join_deadline = self._in(max(self.members.rebalance_timeout_ms(), LEAST_RETRY_MS))
            return
        self.generation += 1
        self._waiting_for_sync.clear()
        if not self.members:
            self.protocol = self.members.leader = None
            self.subscribed_topics = self._read_subscriptions()
            self._become(EMPTY)
            step.record = self._value({})
            return
        self.protocol = self.members.vote()
        self.subscribed_topics = self._read_subscriptions()
        self._become(COMPLETING)
        self._is_told = False
        generation = self.generation
        step.record = msgspec.structs.replace(self._value(self._given()), state_since_ms=UNASSIGNED)
        step.after_stored = lambda: self._formed(generation)

    def _formed(self, generation: int) -> Step:
        """The generation is durable: everybody is told of it, unless the next rebalance has begun meanwhile."""
        step = Step()
        if self.state is COMPLETING and self.generation == generation:
            self._is_told = True
            if self._is_overtaken:
                self._is_overtaken = False
                self._begin_rebalance(step)
                return step
            for member in self.members.values():
                self._answer_join(member, self._joined(member), step)
                member.is_new = False
                self._rearm(member)
            self._wait_for_sync()
        return step

    def _wait_for_sync(self) -> None:
        self._waiting_for_sync = set(self.members)
        self._sync_deadline = self._in(self.members.rebalance_timeout_ms())

    # --- SyncGroup, Heartbeat, LeaveGroup -----------------------------------------------------------------------------

    def sync(self, request: SyncRequest, reply: SyncReply) -> Step:
        """A member asks for its part; the leader brings everybody's."""
        step = Step()
        try:
            member = self.members.check(request.member_id, request.instance_id)
            self._check_generation(request.generation)
            self._check_same("protocol type", self.protocol_type, request.protocol_type)
            self._check_same("protocol", self.protocol, request.protocol)
            if self.state is PREPARING:
                raise RebalanceInProgress(self.group_id, "the next generation is forming")
        except GroupError as error:
            _answer(step, reply, SyncAnswer(error=error.code))
            return step
        self._waiting_for_sync.discard(request.member_id)
        if not self._waiting_for_sync:
            self._sync_deadline = None
        if self.state is STABLE:
            _answer(step, reply, self._synced(member))
            return step
        self._answer_sync(member, SyncAnswer(error=Code.rebalance_in_progress), step)  # as in `_wait_for_join`
        member.sync_reply = reply
        if self.members.leader == request.member_id:
            if self._is_assigning:  # it asks again: it gets its part with the others
                return step
            complete = {each: request.assignments.get(each, b"") for each in self.members}
            self._is_assigning = True
            step.record = self._value(complete)
            step.after_stored = lambda: self._assigned(request.generation, complete)
        return step

    def _assigned(self, generation: int, assignments: Mapping[str, bytes]) -> Step:
        """The assignment is durable: everybody gets its part, unless the next rebalance has begun meanwhile."""
        step = Step()
        if self.state is COMPLETING and self.generation == generation:
            self._is_assigning = False
            self._become(STABLE)
            for member in self.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                self._answer_sync(member, self._synced(member), step)
        return step

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """The member lives.

        Raises:
            UnknownMember, FencedInstance, IllegalGeneration: it does not belong to the group (any more).
            RebalanceInProgress: it lives, and is to join again.
        """
        member = self.members.check(member_id, instance_id)
        self._check_generation(generation)
        self._rearm(member)
        if self.state is PREPARING:
            raise RebalanceInProgress(self.group_id, "the next generation is forming")

    def leave(self, members: Sequence[tuple[str, str | None]]) -> tuple[list[Code], Step]:
        """(member id, instance id) of each who leaves; an admin names a static member by its instance id alone.

        Returns one code for each, and what follows.
        """
        step = Step()
        before = len(self.members)
        codes = [self._leave(member_id, instance_id, step) for member_id, instance_id in members]
        if Code.none in codes:
            if self.state in (STABLE, COMPLETING) and len(self.members) < before:
                self._prepare_rebalance(step)
            else:
                self._complete_if_all_joined(step)
            if step.record is None and len(self.members) < min(before, LARGE):
                step.record = self._value_without_new()
        return codes, step

    def _leave(self, member_id: str, instance_id: str | None, step: Step) -> Code:
        if not member_id and instance_id is not None:
            member_id = self.members.holder(instance_id) or ""
        if member_id in self._pending:
            del self._pending[member_id]
            return Code.none
        try:
            member = self.members.check(member_id, instance_id)
        except GroupError as error:
            return error.code
        self._dismiss(member, step)
        return Code.none

    # --- the clock ----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `expire` may have something to do next; monotonic seconds."""
        deadlines = [member.deadline for member in self.members.values()]
        deadlines += [*self._pending.values(), self._join_deadline, self._sync_deadline]
        return min((each for each in deadlines if each is not None), default=None)

    def expire(self) -> Step:
        """Do what is due: sessions, member ids never used, joins and syncs that nobody waits for any longer.

        One step may not hold two records, so it stops after the first; `next_deadline` is then in the past.
        """
        step, now = Step(), self._clock.monotonic()
        for member_id in [each for each, deadline in self._pending.items() if deadline <= now]:
            del self._pending[member_id]
            self._complete_if_all_joined(step)
        for member in [m for m in self.members.values() if m.deadline is not None and m.deadline <= now]:
            if step.record is None:
                self._expire_session(member, step)
        if step.record is None and self._join_deadline is not None and self._join_deadline <= now:
            self._expire_join(step)
        if step.record is None and self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            for member_id in list(self._waiting_for_sync):
                self._dismiss(self.members[member_id], step)
            self._prepare_rebalance(step)
        return step

    def _expire_session(self, member: Member, step: Step) -> None:
        if not member.is_new and (member.join_reply or member.sync_reply):
            member.deadline = None  # it waits for us; its session goes on with the answer
            return
        self._dismiss(member, step)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(step)
        else:
            self._complete_if_all_joined(step)

    def abandon(self, code: Code = Code.coordinator_not_available) -> Step:
        """Nothing was stored, or can be: whoever waits is told; by default, to look for the coordinator again."""
        step = Step()
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(error=code, member_id=member.member_id), step)
            self._answer_sync(member, SyncAnswer(error=code), step)
        self._is_keeping = self._is_assigning = self._is_overtaken = False
        self._returned = {}
        if self.state is COMPLETING and not self._is_told:  # nobody will ever be told of this generation
            self._is_told = True
            self._become(PREPARING)
            self._join_deadline = self._in(self.members.rebalance_timeout_ms())
        return step

    # --- offsets ------------------------------------------------------------------------------------------------------

    def check_commit(self, commit: Commit) -> None:
        """May offsets be committed by this member of this generation? A commit is a sign of life.

        Raises:
            UnknownMember, FencedInstance, IllegalGeneration, RebalanceInProgress: no.
        """
        if self.state is DEAD:
            raise GroupError(Code.coordinator_not_available, self.group_id, "deleted just now")
        if commit.generation < 0 and self.state is EMPTY:
            return  # an admin, or a consumer that assigns its partitions itself
        if commit.generation >= 0 or commit.member_id or commit.instance_id is not None:
            member = self.members.check(commit.member_id, commit.instance_id)
            self._check_generation(commit.generation)
            if not commit.transactional:
                self._rearm(member)
        elif not commit.transactional:
            raise UnknownMember(self.group_id, "offsets without a member id while the group has members")
        if not commit.transactional and self.state is COMPLETING:
            raise RebalanceInProgress(self.group_id, "the assignment is not known yet")

    def expires_offsets_from(self, topic: str, committed_ms: int) -> int | None:
        """From when on (wall clock) the retention of an offset of `topic` counts; None: it does not expire."""
        if self.protocol_type is None:
            return committed_ms
        if self.state is EMPTY:
            return self.state_since_ms if self.state_since_ms >= 0 else committed_ms
        if self.state is STABLE and self.subscribed_topics is not None and topic not in self.subscribed_topics:
            return committed_ms
        return None

    def is_subscribed_to(self, topic: str) -> bool:
        """A topic's offsets may not be deleted while the group reads it; unreadable subscriptions mean any topic."""
        if self.subscribed_topics is None:
            return self.protocol_type == "consumer"
        return topic in self.subscribed_topics

    def check_may_delete_offsets(self) -> None:
        """Raise GroupNotEmpty, UnknownGroup unless offsets of single topics may go."""
        if self.state is DEAD:
            raise UnknownGroup(self.group_id)
        if self.state is not EMPTY and self.protocol_type != "consumer":
            raise GroupNotEmpty(self.group_id, f"it is {self.state.value} and of type {self.protocol_type!r}")

    def check_empty(self) -> None:
        """Raise GroupNotEmpty if it has members."""
        if self.state is not EMPTY:
            raise GroupNotEmpty(self.group_id, f"it is {self.state.value} with {len(self.members)} members")

    def delete(self) -> None:
        """The group is gone.

        Raises:
            GroupNotEmpty: it has members.
        """
        self.check_empty()
        self._become(DEAD)

    # --- small steps --------------------------------------------------------------------------------------------------

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(self.group_id, f"generation {self.generation}, found {generation}")

    def _check_same(self, what: str, expected: str | None, found: str | None) -> None:
        if found is not None and expected is not None and found != expected:
            raise InconsistentProtocol(self.group_id, f"{what} {expected!r}, found {found!r}")

    def _dismiss(self, member: Member, step: Step) -> None:
        self._answer_join(member, JoinAnswer(error=Code.unknown_member_id), step)
        self._answer_sync(member, SyncAnswer(error=Code.unknown_member_id), step)
        self._remove(member.member_id)

    def _remove(self, member_id: str) -> None:
        self.members.remove(member_id)
        self._pending.pop(member_id, None)
        self._waiting_for_sync.discard(member_id)

    def _wait_for_join(self, member: Member, reply: JoinReply, step: Step) -> None:
        """One request of a member waits: one that waits already is answered, else nothing behind it on its connection
        ever is.
        """
        self._answer_join(member, JoinAnswer(error=Code.rebalance_in_progress, member_id=member.member_id), step)
        member.join_reply = reply

    def _answer_join(self, member: Member, answer: JoinAnswer, step: Step) -> None:
        if member.join_reply:
            _answer(step, member.join_reply, answer)
            member.join_reply = None
            self._rearm(member)  # its session may have ended while it waited

    def _answer_sync(self, member: Member, answer: SyncAnswer, step: Step) -> None:
        if member.sync_reply:
            _answer(step, member.sync_reply, answer)
            member.sync_reply = None
            self._rearm(member)

    def _rearm(self, member: Member) -> None:
        if not member.is_new:  # until it is answered, a new member has the longer time of a join
            member.deadline = self._in(member.session_timeout_ms)

    def _in(self, milliseconds: int) -> float:
        return self._clock.monotonic() + milliseconds / 1000

    def _become(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_since_ms = self._clock.now_ms()

    def _read_subscriptions(self) -> frozenset[str] | None:
        return self.members.subscriptions(self.protocol) if self.protocol_type == "consumer" else None


def _answer(step: Step, reply: Callable[[T], None], answer: T) -> None:
    step.answers.append(lambda: reply(answer))


def _member_id(name: str) -> str:
    """As Kafka makes it, of the client's name or the member's own; cut where a string has no room for both."""
    number = f"-{uuid.uuid4()}"
    return name.encode()[: MOST_TEXT - len(number)].decode(errors="ignore") + number
