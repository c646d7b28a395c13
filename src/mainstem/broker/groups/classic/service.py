"""Groups of the classic protocol at work: what they change is stored before anybody is told.

The rules are in `group`, which does no I/O. A group of the consumer protocol takes members of this one, too: what they
ask goes through `consumer.service`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mainstem.broker.answers import resolve
from mainstem.broker.groups.classic.group import ClassicGroup, Step
from mainstem.broker.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from mainstem.broker.groups.config import ClassicGroupConfig
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.errors import CoordinatorUnavailable, GroupError, UnknownMember
from mainstem.broker.groups.records import GroupKey, GroupValue
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator
    from mainstem.broker.server import Broker

log = get_logger()


class ClassicGroups:
    """All groups of the classic protocol; they are among the coordinator's groups."""

    def __init__(self, coordinator: "GroupCoordinator", broker: "Broker") -> None:
        config = broker.config
        self.config = ClassicGroupConfig(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
        )
        self._coordinator = coordinator
        self._clock = broker.clock
        self._loop = broker.loop

    def new(self, group_id: str) -> ClassicGroup:
        """A group without members, which is not among the coordinator's yet."""
        return ClassicGroup(group_id, self._clock, self.config)

    def restore(self, group_id: str, value: GroupValue) -> None:
        """The group as it was stored."""
        self._coordinator.groups[group_id] = ClassicGroup.restore(group_id, value, self._clock, self.config)

    def join(self, group_id: str, request: JoinRequest) -> "asyncio.Future[JoinAnswer]":
        """A member enters the group; answered when the next generation is complete."""
        future: asyncio.Future[JoinAnswer] = self._loop.create_future()
        config, coordinator = self.config, self._coordinator
        if not group_id:
            future.set_result(JoinAnswer(error=Code.invalid_group_id, member_id=request.member_id))
        elif not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            future.set_result(JoinAnswer(error=Code.invalid_session_timeout, member_id=request.member_id))
        elif coordinator.is_closed or not coordinator.storage.is_read(group_id):
            future.set_result(JoinAnswer(error=Code.coordinator_not_available, member_id=request.member_id))
        elif coordinator.consumer.has_members(group_id):
            return coordinator.consumer.join(group_id, request)
        elif request.member_id and not isinstance(coordinator.groups.get(group_id), ClassicGroup):
            future.set_result(JoinAnswer(error=Code.unknown_member_id, member_id=request.member_id))
        else:
            try:
                group = self._group_for(group_id)
            except GroupError as error:
                future.set_result(JoinAnswer(error=error.code, member_id=request.member_id))
            else:
                self._take(group, group.join(request, lambda answer: resolve(future, answer)))
        return future

    def sync(self, group_id: str, request: SyncRequest) -> "asyncio.Future[SyncAnswer]":
        """A member's part of the assignment; answered when the leader's assignment is durable."""
        future: asyncio.Future[SyncAnswer] = self._loop.create_future()
        coordinator = self._coordinator
        group = coordinator.groups.get(group_id)
        if not group_id or coordinator.is_closed or not coordinator.storage.is_read(group_id):
            code = Code.coordinator_not_available if group_id else Code.invalid_group_id
            future.set_result(SyncAnswer(error=code))
        elif isinstance(group, ConsumerGroup):
            return coordinator.consumer.sync(group, request)
        elif not isinstance(group, ClassicGroup):
            future.set_result(SyncAnswer(error=Code.unknown_member_id))
        else:
            self._take(group, group.sync(request, lambda answer: resolve(future, answer)))
        return future

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """The member lives.

        Raises:
            GroupError: it is not a member (any more), or is to join again.
        """
        group = self._known(group_id)
        if isinstance(group, ConsumerGroup):
            self._coordinator.consumer.classic_heartbeat(group, member_id, instance_id, generation)
        else:
            group.heartbeat(member_id, instance_id, generation)

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> "asyncio.Future[list[Code]]":
        """(member id, instance id) of each who leaves; a code for each, once what changed is durable."""
        group = self._known(group_id)
        if isinstance(group, ConsumerGroup):
            return self._coordinator.consumer.leave(group, members)
        codes, step = group.leave(members)
        future: asyncio.Future[list[Code]] = self._loop.create_future()
        self._take(group, step, lambda: resolve(future, codes))
        return future

    def expire(self, group: ClassicGroup) -> None:
        """Do what is due."""
        self._take(group, group.expire())

    def abandon(self, group: ClassicGroup, code: Code = Code.coordinator_not_available) -> None:
        """Tell whoever waits in the group that nothing comes of it."""
        _answer(group.abandon(code))

    def rebalance(self, group: ClassicGroup) -> None:
        """Its members are to join again."""
        _answer(group.rebalance())

    def _known(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        if not group_id:
            raise GroupError(Code.invalid_group_id, group_id, "a group id is not empty")
        if self._coordinator.is_closed:
            raise CoordinatorUnavailable(group_id, "stopping")
        self._coordinator.storage.check_read(group_id)
        group = self._coordinator.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise UnknownMember(group_id, "no such group")
        return group

    def _group_for(self, group_id: str) -> ClassicGroup:
        """The group, for somebody who joins: of another protocol there is an empty one at most.

        Raises:
            GroupError: the group has members of a protocol that this one does not mix with, or nothing can be stored.
        """
        group = self._coordinator.group(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if not isinstance(group, ConsumerGroup | StreamsGroup) or not group.is_empty:
            raise GroupError(Code.inconsistent_group_protocol, group_id, f"it is a group of the {group.kind} protocol")
        forgotten = self._coordinator.storage.store(group_id, group.tombstones())
        if forgotten.done() and (error := forgotten.exception()) is not None:
            raise CoordinatorUnavailable(group_id, error)
        classic = self._coordinator.groups[group_id] = self.new(group_id)
        return classic

    def _take(self, group: ClassicGroup, step: Step, finally_: Callable[[], None] | None = None) -> None:
        """Store a step's record, give its answers, go on when the record is durable.

        Answers that need the record wait in the group for `after_stored`; those in the step do not.
        """
        stored = None
        if step.record is not None:
            stored = self._coordinator.storage.store(group.group_id, [(GroupKey(group.group_id), step.record)])
        _answer(step)
        if stored is None:
            if finally_ is not None:
                finally_()
        else:
            stored.add_done_callback(lambda future: self._on_stored(group, step, future, finally_))
        if stored is None or step.after_stored is None:  # what follows sets the deadlines that count
            self._coordinator.schedule(group)

    def _on_stored(
        self, group: ClassicGroup, step: Step, future: "asyncio.Future[int]", finally_: Callable[[], None] | None
    ) -> None:
        if future.cancelled() or future.exception() is not None:
            error = CoordinatorUnavailable(group.group_id, "") if future.cancelled() else future.exception()
            log.error("group_not_stored", group=group.group_id, reason=str(error))
            self.abandon(group, error.code if isinstance(error, GroupError) else Code.coordinator_not_available)
            self._coordinator.schedule(group)
        elif step.after_stored is not None:
            self._take(group, step.after_stored())
        if finally_ is not None:
            finally_()


def _answer(step: Step) -> None:
    for answer in step.answers:
        answer()
