"""One streams group: its topology, who is in it and who has which tasks. A state machine without I/O; the clock is
passed in.

It is as a group of the consumer protocol (`consumer.group`), with tasks in the place of partitions: the first member
brings the topology, and the log works out from it and from the topics that there are (`configured`) which tasks there
are, assigns them (`assignor`), and takes each member there step by step (`reconciliation`).

How its state changes and is stored is in `modern.group`. Endpoint epochs, a wish to shut down and the delay of a first
assignment are not stored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from mainstem.broker.groups.config import StreamsGroupConfig
from mainstem.broker.groups.errors import (
    FencedMemberEpoch,
    GroupError,
    GroupFull,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMember,
)
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.group import REBALANCE, SESSION, Change, RecordGroup
from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.modern.records import TargetValue
from mainstem.broker.groups.modern.subscriptions import TopicsView, topics_hash
from mainstem.broker.groups.streams.assignor import TaskMember, assign_sticky
from mainstem.broker.groups.streams.configured import Configured, InvalidTopology, Status, StatusCode, configured
from mainstem.broker.groups.streams.messages import JOIN, Endpoint, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.streams.reconciliation import reconciled
from mainstem.broker.groups.streams.records import (
    CurrentKey,
    CurrentValue,
    Key,
    MemberKey,
    MemberState,
    MemberValue,
    StreamsGroupKey,
    StreamsGroupValue,
    TargetKey,
    TargetMemberKey,
    TargetMemberValue,
    TopologyKey,
    Value,
)
from mainstem.broker.groups.streams.tasks import NO_TASKS, TaskId, Tasks, TaskSet
from mainstem.broker.groups.streams.topology import Topology
from mainstem.core import Clock, TopicPartition
from mainstem.wire.errors import Code

_NEW: Final = StreamsGroupValue(1)
"""A group that nobody has joined."""

_NOTHING: Final = CurrentValue(0, 0)


class StreamsGroup(RecordGroup[Key, Value]):
    """A group and its members."""

    kind = "streams"
    ORDER = (StreamsGroupKey, TopologyKey, MemberKey, TargetKey, TargetMemberKey, CurrentKey)

    def __init__(
        self, group_id: str, clock: Clock, topics: TopicsView, config: Callable[[], StreamsGroupConfig]
    ) -> None:
        """A group without members. `config` gives its settings, as they are at that moment."""
        super().__init__(group_id, clock, topics)
        self.members: dict[str, MemberValue] = {}
        self.endpoint_epoch = 0
        """It grows with every change of the tasks of a member that answers queries."""
        self._config = config
        self._holders: dict[TaskId, dict[str, bool]] = {}
        """Task: the members that have it, or have not yet said that they gave it up; True: as an active one."""
        self._readers: Mapping[str, str] = {}
        """Topic: the subtopology that reads it."""
        self._configured: tuple[int, int, Configured] | None = None
        """(version of the topics, hash of those that it needs, the topology held against them)."""
        self._shut_down_by: str | None = None
        self._assign_from = 0.0
        """Not before then, in monotonic seconds."""

    # --- as clients see it --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """It grows with every change of members, topology, topics and settings."""
        return self._group().epoch

    @property
    def target_epoch(self) -> int:
        """The group's epoch when the target assignment was made."""
        return self._target_of_all().epoch

    @property
    def state_name(self) -> str:
        """As clients are shown it."""
        topology = self.topology
        if not self.members:
            return "Empty"
        if topology is None or topology.epoch != self._group().validated_epoch:
            return "NotReady"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(self.current(member_id).is_reconciled_to(self.target_epoch) for member_id in self.members)
        return "Stable" if settled else "Reconciling"

    @property
    def topology(self) -> Topology | None:
        """As the first member brought it."""
        value = self._values.get(TopologyKey(self.group_id))
        return value if isinstance(value, Topology) else None

    def current(self, member_id: str) -> CurrentValue:
        """The member's epochs and what it has."""
        return self._value(CurrentKey(self.group_id, member_id), _NOTHING)

    def target(self, member_id: str) -> Tasks:
        """What the member is to have in the end."""
        return self._value(TargetMemberKey(self.group_id, member_id), TargetMemberValue(NO_TASKS)).tasks

    def configured(self) -> Configured | None:
        """The topology held against the topics that there are; None: the last heartbeat has not found all it needs."""
        topology = self.topology
        if topology is None or topology.epoch != self._group().validated_epoch:
            return None
        try:
            return self._configure(topology)
        except InvalidTopology:
            return None

    # --- StreamsGroupHeartbeat ----------------------------------------------------------------------------------------

    def heartbeat(self, request: Heartbeat) -> Change[HeartbeatAnswer]:
        """A member joins, or lives; what it is told is durable when the change is.

        1. The member as it says it is. 2. The topology, if it is the first to bring one, held against the topics.
        3. The group's epoch, if anything has changed that tasks are assigned by. 4. The target assignment, if it is of
        an older epoch. 5. The member's step towards it.

        Raises:
            UnknownMember, FencedMemberEpoch, GroupFull, InvalidTopology, GroupError: it is refused.
        """
        with self.changing():
            member_id, is_new, was_empty = request.member_id, not self._values, self.is_empty
            # 1.
            member = self._find(request)
            wanted = _described(member, request)
            changed = member_id not in self.members or wanted != member
            if changed:
                self._put(MemberKey(self.group_id, member_id), wanted)
            # 2.
            topology = self._take_topology(request.topology)
            found = self._configure(topology)
            self._check_reported(found, request.reported)
            # 3.
            self._follow(topology, found, changed=changed)
            # 4.
            if was_empty:
                self._delay()
            status = [_stale(wanted, topology)] if wanted.topology_epoch < topology.epoch else []
            status += self._assign(found)
            # 5.
            before = self.current(member_id)
            after = self._reconcile(member_id, before, request.reported)
            self.set_deadline(member_id, SESSION, self._config().session_timeout_ms)
            if request.shuts_down and self._shut_down_by is None:
                self._shut_down_by = member_id
            moved = request.epoch == JOIN or after.assigned != before.assigned
            return self.change(self._answer(request, found, after, status, moved=moved, is_new=is_new))

    def _answer(
        self,
        request: Heartbeat,
        found: Configured,
        current: CurrentValue,
        status: list[Status],
        *,
        moved: bool,
        is_new: bool,
    ) -> HeartbeatAnswer:
        """What a member is told that has, or has not, `moved` towards its target."""
        tasks = current.assigned.without_epochs()
        if moved and self.members[request.member_id].endpoint is not None:
            self.endpoint_epoch += 1
        endpoints = self._endpoints(found) if self.endpoint_epoch != request.endpoint_epoch else None
        if is_new:
            self.endpoint_epoch = 0  # as in Kafka, where what a new group is told of endpoints counts as nothing
        return HeartbeatAnswer(
            request.member_id,
            current.epoch,
            # Who reports other tasks may not have got an answer. Kafka tells each of them once.
            tasks=tasks if moved or request.reported not in (None, tasks) else None,
            status=(*status, *([] if found.problem is None else [found.problem]), *self._shutdown()),
            endpoint_epoch=self.endpoint_epoch,
            endpoints=endpoints,
            missing=found.missing,
        )

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
        if request.epoch != current.epoch:
            # The answer that raised its epoch may be lost: then it has nothing yet that it was told in it. What it was
            # to give up it has still; Kafka fences it for that.
            lost_an_answer = request.epoch < current.epoch and request.epoch == current.previous_epoch
            reported = request.reported
            if not lost_an_answer or reported is None or not reported.is_within(current.assigned, current.revoking):
                raise FencedMemberEpoch(
                    self.group_id,
                    f"member {request.member_id} is in epoch {current.epoch}, found {request.epoch}: "
                    "it is to join anew",
                )
        return present

    def _take_topology(self, told: Topology | None) -> Topology:
        """The group's topology: who comes first brings it, and later ones bring the same."""
        present = self.topology
        if told is None and present is None:  # its record could not be read
            raise FencedMemberEpoch(self.group_id, "its topology is not known: members are to join anew")
        if told is None or (present is not None and present.epoch > told.epoch):
            assert present is not None
            return present
        if present is not None:
            if not present.is_as(told):
                raise GroupError(Code.invalid_request, self.group_id, "Topology updates are not supported yet.")
            return present
        self._put(TopologyKey(self.group_id), told)
        return told

    def _configure(self, topology: Topology) -> Configured:
        version = self.topics.version
        if self._configured is None or self._configured[0] != version:
            found = configured(topology, self._count)
            self._configured = version, topics_hash(topology.required_topics, self.topics), found
        return self._configured[2]

    def _count(self, topic: str) -> int | None:
        found = self.topics.get(topic)
        return None if found is None else len(found.logs)

    def _check_reported(self, found: Configured, reported: Tasks | None) -> None:
        """Raise GroupError if the member has tasks that there are not."""
        if reported is None or not found.is_ready:
            return
        for tasks in reported.kinds:
            for name, number in each(tasks):
                part = found.subtopologies.get(name)
                if part is None:
                    raise GroupError(
                        Code.invalid_request, self.group_id, f"Subtopology {name} does not exist in the topology."
                    )
                if not 0 <= number < part.tasks:
                    raise GroupError(
                        Code.invalid_request,
                        self.group_id,
                        f"Task {number} for subtopology {name} is invalid. "
                        f"Number of tasks for this subtopology: {part.tasks}",
                    )

    def _follow(self, topology: Topology, found: Configured, *, changed: bool) -> None:
        """Raise the group's epoch if anything that the target assignment is made of has changed."""
        assert self._configured is not None
        value = StreamsGroupValue(
            self.epoch,
            self._configured[1],
            topology.epoch if found.is_ready else -1,
            (("num.standby.replicas", str(self._config().num_standby_replicas)),),
        )
        if changed or value != self._group():
            self._put(StreamsGroupKey(self.group_id), msgspec.structs.replace(value, epoch=self.epoch + 1))

    def _delay(self) -> None:
        """The first of a group waits for others, so that they are assigned their tasks together."""
        now = self._clock.monotonic()
        if now >= self._assign_from:
            self._assign_from = now + self._config().initial_rebalance_delay_ms / 1000

    def _assign(self, found: Configured) -> list[Status]:
        """Make the target assignment anew, unless it is of this epoch or not due yet: then that is told."""
        if self._clock.monotonic() < self._assign_from:
            return [_delayed("initial rebalance delay")]
        last = self._target_of_all()
        if last.epoch >= self.epoch:
            return []
        if self._is_just_made(last.made_ms, self._config().assignment_interval_ms):
            return [_delayed("assignment interval")]
        members = {
            member_id: TaskMember(member.process_id, self.target(member_id))
            for member_id, member in self.members.items()
        }
        made = {}
        if found.is_ready:
            made = assign_sticky(members, found.subtopologies, self._config().num_standby_replicas)
        for member_id in members:
            key, tasks = TargetMemberKey(self.group_id, member_id), made.get(member_id, NO_TASKS)
            if key not in self._values or self.target(member_id) != tasks:
                self._put(key, TargetMemberValue(tasks))
        self._put(TargetKey(self.group_id), TargetValue(self.epoch, self._clock.now_ms()))
        return []

    def _reconcile(self, member_id: str, current: CurrentValue, reported: Tasks | None) -> CurrentValue:
        if current.state is MemberState.UNKNOWN and (reported is None or reported != NO_TASKS):
            raise FencedMemberEpoch(self.group_id, f"the state of member {member_id} is not known: it is to join anew")
        waits = self._clock.monotonic() < self._assign_from
        after = reconciled(
            current,
            target_epoch=self.target_epoch,
            target=NO_TASKS if waits else self.target(member_id),
            is_taken=lambda task, is_active: self._is_taken(task, member_id, is_active=is_active),
            reported=reported,
        )
        if after != current:
            self._put(CurrentKey(self.group_id, member_id), after)
            self._give_time_to_revoke(member_id)
        return after

    def _is_taken(self, task: TaskId, member_id: str, *, is_active: bool) -> bool:
        process_id = self.members[member_id].process_id
        for holder, as_active in self._holders.get(task, {}).items():
            member = self.members.get(holder)
            if member is not None and ((is_active and as_active) or member.process_id == process_id):
                return True
        return False

    def _shutdown(self) -> list[Status]:
        if self._shut_down_by is None:
            return []
        return [
            Status(
                StatusCode.SHUTDOWN_APPLICATION,
                f"Streams group member {self._shut_down_by} encountered a fatal error and requested a shutdown "
                "for the entire application.",
            )
        ]

    def _endpoints(self, found: Configured) -> tuple[Endpoint, ...]:
        """Of every member that has one, with the partitions that its tasks read."""
        told = []
        for member_id, member in self.members.items():
            if member.endpoint is not None:
                tasks = self.current(member_id).assigned.without_epochs()
                active, standby = (self._partitions_of(kind, found) for kind in (tasks.active, tasks.standby))
                told.append(Endpoint(*member.endpoint, active, standby))
        return tuple(told)

    def _partitions_of(self, tasks: TaskSet, found: Configured) -> TaskSet:
        read: dict[str, frozenset[int]] = {}
        for name, numbers in tasks.items():
            part = found.subtopologies.get(name)
            for topic in () if part is None else part.topics_read:
                count = self._count(topic) or 0
                read[topic] = read.get(topic, frozenset()).union(number for number in numbers if number < count)
        return read

    # --- leaving ------------------------------------------------------------------------------------------------------

    def remove(self, member_ids: Iterable[str], *, shuts_down: bool = False) -> Change[None]:
        """Members are gone: they left, or were not heard of in time.

        Raises:
            UnknownMember: one of them is not there.
        """
        with self.changing():
            for member_id in member_ids:
                self.check_known(member_id)
                if shuts_down and self._shut_down_by is None:
                    self._shut_down_by = member_id
                self._put(CurrentKey(self.group_id, member_id), None)
                self._put(TargetMemberKey(self.group_id, member_id), None)
                self._put(MemberKey(self.group_id, member_id), None)
            value = self._group()
            self._put(StreamsGroupKey(self.group_id), msgspec.structs.replace(value, epoch=value.epoch + 1))
            if not self.members:
                self._shut_down_by = None
            return self.change(None)

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _start_session(self, member_id: str) -> None:
        self.set_deadline(member_id, SESSION, self._config().session_timeout_ms)
        self._give_time_to_revoke(member_id)

    def _give_time_to_revoke(self, member_id: str) -> None:
        if self.current(member_id).state is MemberState.UNREVOKED_TASKS:
            self.set_deadline(member_id, REBALANCE, self.members[member_id].rebalance_timeout_ms)
        else:
            self.drop_deadline(member_id, REBALANCE)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def check_commit(self, commit: Commit) -> None:
        """May these offsets be committed by this member?

        Raises:
            UnknownMember, StaleMemberEpoch, IllegalGeneration: no.
        """
        if self._is_no_members(commit):
            return
        epoch = self._known(commit.member_id).epoch
        if not commit.transactional and not commit.knows_epochs:
            raise GroupError(
                Code.unsupported_version, self.group_id, "members of a streams group commit by version 9 or later"
            )
        wrong = IllegalGeneration if commit.transactional else StaleMemberEpoch  # TxnOffsetCommit knows no other
        self._check_commit_epoch(commit, epoch, lambda each: self._since(commit.member_id, each), wrong)

    def _since(self, member_id: str, partition: TopicPartition) -> int | None:
        """The epoch since which the member has the task that reads the partition; None: it has not."""
        current, name = self.current(member_id), self._readers.get(partition.topic, "")
        for held in (current.assigned, current.revoking):
            since = held.active.get(name, {}).get(partition.partition)
            if since is not None:
                return since
        return None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """May this member be told the group's offsets? Whoever names no member and no epoch may.

        Raises:
            UnknownMember, StaleMemberEpoch: no.
        """
        if member_id is None and epoch < 0:
            return
        known = self._known(member_id or "").epoch
        if epoch != known:
            raise StaleMemberEpoch(self.group_id, f"member {member_id} is in epoch {known}, found {epoch}")

    def _known(self, member_id: str) -> CurrentValue:
        self.check_known(member_id)
        return self.current(member_id)

    def expires_offsets_from(self, topic: str, committed_ms: int) -> int | None:
        """From when on (wall clock) the retention of an offset of `topic` counts; None: it does not expire."""
        return None if self.is_subscribed_to(topic) else committed_ms

    def is_subscribed_to(self, topic: str) -> bool:
        """A topic's offsets may not be deleted while members read it."""
        return bool(self.members) and topic in self._readers

    # --- as it is stored ----------------------------------------------------------------------------------------------

    def _group(self) -> StreamsGroupValue:
        return self._value(StreamsGroupKey(self.group_id), _NEW)

    def _target_of_all(self) -> TargetValue:
        return self._value(TargetKey(self.group_id), TargetValue(_NEW.epoch))

    def catch_up(self) -> None:
        """After a start: if the group's own record could not be read, no epoch may come twice all the same."""
        epoch = max(self.target_epoch, *(self.current(member_id).epoch for member_id in self.members), 0)
        if self.epoch < epoch:
            self.put(StreamsGroupKey(self.group_id), StreamsGroupValue(epoch))

    def _after_put(self, key: Key, before: Value | None, value: Value | None) -> None:
        match key:
            case MemberKey():
                if isinstance(value, MemberValue):
                    self.members[key.member_id] = value
                else:
                    self.members.pop(key.member_id, None)
                    for what_for in (SESSION, REBALANCE):
                        self.drop_deadline(key.member_id, what_for)
            case CurrentKey():
                self._hold(key.member_id, before, value)
            case TopologyKey():
                self._configured = None
                self._readers = value.readers() if isinstance(value, Topology) else {}

    def _hold(self, member_id: str, before: Value | None, after: Value | None) -> None:
        for task, _ in _held(before):
            self._holders[task].pop(member_id, None)
            if not self._holders[task]:
                del self._holders[task]
        for task, is_active in _held(after):
            self._holders.setdefault(task, {})[member_id] = is_active


def _held(value: Value | None) -> Iterable[tuple[TaskId, bool]]:
    """The tasks that stand in a record of what a member has."""
    if not isinstance(value, CurrentValue):
        return ()
    return (*value.revoking.ids(), *value.assigned.ids())


def _described(member: MemberValue, request: Heartbeat) -> MemberValue:
    """The member with what is new of it in a heartbeat."""
    return MemberValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if request.endpoint is None else request.endpoint,
        client_tags=member.client_tags if request.client_tags is None else tuple(sorted(request.client_tags)),
    )


def _stale(member: MemberValue, topology: Topology) -> Status:
    return Status(
        StatusCode.STALE_TOPOLOGY,
        f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch {topology.epoch}.",
    )


def _delayed(by: str) -> Status:
    return Status(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {by}.")
