"""Groups of the consumer protocol at work: what they change is stored before anybody is told.

The rules are in `group`, `classic_members` and `migration`, which do no I/O.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mainstem.broker.answers import then
from mainstem.broker.groups.classic.group import ClassicGroup
from mainstem.broker.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from mainstem.broker.groups.config import ConsumerGroupConfig
from mainstem.broker.groups.consumer import classic_members, migration
from mainstem.broker.groups.consumer.expressions import Expressions
from mainstem.broker.groups.consumer.group import ConsumerGroup, Resolved
from mainstem.broker.groups.consumer.messages import JOIN, LEAVE, LEAVE_FOR_A_WHILE, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.consumer.migration import MigrationPolicy
from mainstem.broker.groups.consumer.records import Key, Value
from mainstem.broker.groups.errors import GroupError, RebalanceInProgress, RecordTooLarge, UnknownGroup
from mainstem.broker.groups.membership import Entry, Group
from mainstem.broker.groups.modern.group import Change
from mainstem.broker.groups.modern.service import ModernGroups
from mainstem.broker.groups.modern.storing import is_refused
from mainstem.broker.groups.records import GroupKey
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator
    from mainstem.broker.server import Broker

T = TypeVar("T")

log = get_logger()


class ConsumerGroups(ModernGroups[ConsumerGroup, Key, Value]):
    """All groups of the consumer protocol; they are among the coordinator's groups."""

    def __init__(self, coordinator: "GroupCoordinator", broker: "Broker") -> None:
        super().__init__(coordinator, broker, ConsumerGroup)
        self._policy = MigrationPolicy(broker.config.group_consumer_migration_policy)
        self._expressions = Expressions(broker, self._settle)
        self._later: dict[tuple[str, str], asyncio.Future[HeartbeatAnswer]] = {}
        """By group and member: the last heartbeat that waits for expressions, or for the one before."""

    def settings(self, group_id: str) -> ConsumerGroupConfig:
        """The settings of a group, as they are now."""
        return self._coordinator.settings.consumer(group_id)

    def has_members(self, group_id: str) -> bool:
        """True if the group is of this protocol and has members: whoever joins has to fit in."""
        group = self.get(group_id)
        return group is not None and not group.is_empty

    # --- the consumer protocol ----------------------------------------------------------------------------------------

    def heartbeat(
        self, group_id: str, request: Heartbeat, *, sees: Callable[[str], bool] = lambda _: True
    ) -> "asyncio.Future[HeartbeatAnswer]":
        """A member joins, lives or leaves. Of the topics that there are, its expressions match those that it `sees`.

        Raises:
            GroupError: it is refused; some errors come with the future.
        """
        self.check_open(group_id)
        before = self._later.get((group_id, request.member_id))
        if before is None and not self._unresolved(group_id, request):
            return self._beat(group_id, request, {})
        return self._beat_later(group_id, request, sees, before)

    def _unresolved(self, group_id: str, request: Heartbeat) -> set[str]:
        """Expressions that are to be matched before the heartbeat is taken."""
        if request.epoch in (LEAVE, LEAVE_FOR_A_WHILE):
            return set()
        present = self.get(group_id)
        new = {request.regex} if request.regex else set()
        return new if present is None else present.unresolved(request.regex)

    def _beat_later(
        self,
        group_id: str,
        request: Heartbeat,
        sees: Callable[[str], bool],
        before: "asyncio.Future[HeartbeatAnswer] | None",
    ) -> "asyncio.Future[HeartbeatAnswer]":
        """Expressions are matched in a thread; what the group is when that is done, or lasts, is what the member finds.

        Of a member, what comes meanwhile waits: if it leaves behind its JOIN, the JOIN would stay.
        """
        who = group_id, request.member_id
        answer: asyncio.Future[HeartbeatAnswer] = self._broker.loop.create_future()

        def answered(_: object) -> None:
            if self._later.get(who) is answer:
                del self._later[who]

        async def run() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                await self._check_new(group_id, request)
                resolved = await self._expressions.resolved(group_id, lambda: self._unresolved(group_id, request), sees)
                answer_of = await self._beat(group_id, request, resolved)
            except Exception as error:  # it is the answer
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(answer_of)

        self._later[who] = answer
        answer.add_done_callback(answered)
        self._broker.spawn(run(), name="resolve expressions")
        return answer

    async def _check_new(self, group_id: str, request: Heartbeat) -> None:
        regex, present = request.regex, self.get(group_id)
        is_known = present is not None and present.is_subscribed_by(regex or "")
        if regex and not is_known and regex in self._unresolved(group_id, request):
            await self._expressions.check(regex)

    def _settle(self, group_id: str, resolved: dict[str, Resolved]) -> None:
        """What the expressions of a group match is known, whether or not a heartbeat waits for it."""
        if (group := self.get(group_id)) is not None and (change := group.resolve(resolved)).entries:
            self._take(group, change)

    def _beat(
        self, group_id: str, request: Heartbeat, resolved: dict[str, Resolved]
    ) -> "asyncio.Future[HeartbeatAnswer]":
        self.check_open(group_id)
        if request.epoch in (LEAVE, LEAVE_FOR_A_WHILE):
            return self._leave(group_id, request)
        present = self._coordinator.groups.get(group_id)
        group, before = self._group_for(group_id, present, joins=request.epoch == JOIN)
        answer = self._take(group, group.heartbeat(request, resolved), before)
        if isinstance(present, ClassicGroup) and self._coordinator.groups.get(group_id) is group:
            self._coordinator.classic.abandon(present, Code.rebalance_in_progress)
        return answer

    def _group_for(self, group_id: str, present: Group | None, *, joins: bool) -> tuple[ConsumerGroup, list[Entry]]:
        """The group that a heartbeat meets, and what is to be stored before the heartbeat's own records."""
        if isinstance(present, ConsumerGroup):
            return present, []
        if not joins or not (present is None or isinstance(present, ClassicGroup)):
            kind = (
                "no such group" if present is None else f"is a {present.kind} group, not one of the consumer protocol"
            )
            raise UnknownGroup(group_id, kind)
        if present is None or present.is_empty:
            return self._new(group_id), [] if present is None else present.tombstones()
        group = migration.upgraded(
            present, self._policy, self._clock, self._broker.topics, lambda: self.settings(group_id)
        )
        log.info("group_upgraded", group=group_id, members=len(group.members))
        return group, [*present.tombstones(), *group.entries()]

    def _new(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._clock, self._broker.topics, lambda: self.settings(group_id))

    def _leave(self, group_id: str, request: Heartbeat) -> "asyncio.Future[HeartbeatAnswer]":
        group = self.known(group_id)
        member = group.leaving(request)
        if request.epoch == LEAVE_FOR_A_WHILE:
            return self._take(group, group.leave_for_a_while(member))
        return self._remove(group, [member.member_id], HeartbeatAnswer(request.member_id, request.epoch))

    def _remove_late(self, group: ConsumerGroup, member_ids: Sequence[str]) -> None:
        self._remove(group, member_ids, None)

    def _remove(self, group: ConsumerGroup, member_ids: Sequence[str], answer: T) -> "asyncio.Future[T]":
        """Members are gone; if those that are left all speak the classic protocol, the group becomes a classic one."""
        if migration.may_downgrade(group, member_ids, self._policy, self._coordinator.classic.config):
            # Who was overdue is so again: each is told once.
            change = Change([], answer, lambda: group.start_sessions(only_missing=True))
            stored = self._downgrade(group, change, member_ids, rebalances=True)
            if not (is_refused(stored) and isinstance(stored.exception(), RecordTooLarge)):
                return then(stored, lambda _: answer)
        return self._take(group, group.remove(member_ids, answer))

    def _downgrade(
        self, group: ConsumerGroup, change: Change[T], gone: Iterable[str], *, rebalances: bool
    ) -> "asyncio.Future[int]":
        """After `change`, and without who is `gone`, it is a classic group; if that is refused, all is as before.

        Done when it is durable.
        """
        classic, value = migration.downgraded(group, set(gone), self._clock, self._coordinator.classic.config)
        group_id = group.group_id
        if rebalances:  # so a start knows it, too: without a leader, members are to join again
            value = msgspec.structs.replace(value, leader=None)
        stored = self._storing.store(group_id, [*change.entries, *group.tombstones(), (GroupKey(group_id), value)])
        if is_refused(stored):
            change.take_back()
        else:
            log.info("group_downgraded", group=group_id, members=len(classic.members))
            self._coordinator.groups[group_id] = classic
            if rebalances:
                self._coordinator.classic.rebalance(classic)
            self._coordinator.schedule(classic)
        return stored

    # --- the classic protocol, in a group of this one -----------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest) -> "asyncio.Future[JoinAnswer]":
        """A member of the classic protocol enters, or comes back to be told what has changed."""

        def refused(error: GroupError) -> JoinAnswer:
            return JoinAnswer(error=error.code, member_id=request.member_id)

        def run() -> "asyncio.Future[JoinAnswer]":
            group = self.known(group_id)
            replaced = group.static_member(request.instance_id)
            change = classic_members.join(group, request)
            all_classic = all(member.classic is not None for member in group.members.values())
            last_of_the_others = replaced is not None and replaced.classic is None and all_classic
            fits = len(group.members) <= self._coordinator.classic.config.max_size
            if not (last_of_the_others and fits and self._policy.downgrades):
                return self._take(group, change)
            settled = all(member.is_reconciled_to(group.epoch) for member in group.members.values())
            return then(self._downgrade(group, change, (), rebalances=not settled), lambda _: change.answer)

        return self._answered(run, refused)

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> "asyncio.Future[SyncAnswer]":
        """What a member of the classic protocol is to have."""

        def run() -> "asyncio.Future[SyncAnswer]":
            try:
                change = Change([], classic_members.sync(group, request), lambda: None)
            except RebalanceInProgress:
                self._coordinator.schedule(group)  # it has so long to join again
                raise
            return self._take(group, change)

        return self._answered(run, lambda error: SyncAnswer(error=error.code))

    def classic_heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> None:
        """A member of the classic protocol lives.

        Raises:
            GroupError: it is not a member (any more), or is to join again.
        """
        if (change := group.follow_topics()).entries:  # where all members are of that protocol nobody else does
            self._take(group, change)
        try:
            classic_members.heartbeat(group, member_id, instance_id, generation)
        finally:
            self._coordinator.schedule(group)

    def leave(self, group: ConsumerGroup, members: Sequence[tuple[str, str | None]]) -> "asyncio.Future[list[Code]]":
        """(member id, instance id) of each who leaves by LeaveGroup; a code for each."""
        codes, found = [], set()
        for member_id, instance_id in members:
            try:
                member = classic_members.leaving(group, member_id, instance_id)
            except GroupError as error:
                codes.append(error.code)
            else:
                codes.append(Code.none)
                found.add(member.member_id)
        if not found:
            return self._done(codes)
        return self._remove(group, sorted(found), codes)

    def _answered(
        self, run: Callable[[], "asyncio.Future[T]"], refused: Callable[[GroupError], T]
    ) -> "asyncio.Future[T]":
        """The answer of `run`, with an error as the answer that says it."""
        answer: asyncio.Future[T] = self._broker.loop.create_future()

        def done(finished: "asyncio.Future[T]") -> None:
            error = None if finished.cancelled() else finished.exception()
            if answer.done():
                return
            if finished.cancelled():
                answer.cancel()
            elif isinstance(error, GroupError):
                answer.set_result(refused(error))
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(finished.result())

        try:
            run().add_done_callback(done)
        except GroupError as error:
            answer.set_result(refused(error))
        return answer
