"""Groups of one of the newer protocols at work: what they change is stored before anybody is told.

Memory changes when records are queued. An answer waits until they are durable, and one that needs no record for those
that were queued before it: a member never hears of an epoch that a crash could take back.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainstem.broker.answers import then
from mainstem.broker.groups.errors import GroupError, UnknownGroup
from mainstem.broker.groups.membership import Entry
from mainstem.broker.groups.modern.group import Change, K, ModernGroup, V
from mainstem.broker.groups.modern.storing import Storing, is_refused
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator
    from mainstem.broker.server import Broker

G = TypeVar("G", bound=ModernGroup[Any, Any])
T = TypeVar("T")

log = get_logger()


class ModernGroups(ABC, Generic[G, K, V]):
    """All groups of one protocol, with their kinds of keys and values; they are among the coordinator's groups."""

    def __init__(self, coordinator: "GroupCoordinator", broker: "Broker", kind: type[G]) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self._clock = broker.clock
        self._kind = kind
        self._storing = Storing(coordinator)

    @property
    def kind(self) -> str:
        """Of its groups, as ListGroups names it."""
        return self._kind.kind

    @abstractmethod
    def _new(self, group_id: str) -> G:
        """A group without members, which is not among the coordinator's yet."""

    def get(self, group_id: str) -> G | None:
        """The group, if it is there and of this protocol."""
        group = self._coordinator.groups.get(group_id)
        return group if isinstance(group, self._kind) else None

    def known(self, group_id: str) -> G:
        """The group.

        Raises:
            UnknownGroup: it is not there, or of another protocol.
        """
        group = self._coordinator.groups.get(group_id)
        if group is None:
            raise UnknownGroup(group_id, f"no such {self._kind.kind} group")
        if not isinstance(group, self._kind):
            raise UnknownGroup(group_id, f"it is a {group.kind} group, not a {self._kind.kind} group")
        return group

    def check_open(self, group_id: str) -> None:
        """Raise GroupError if nothing can be promised: the broker stops, or what the group has could not be read."""
        if self._coordinator.is_closed:
            raise GroupError(Code.coordinator_not_available, group_id, "the broker stops")
        self._coordinator.storage.check_read(group_id)

    async def settled(self, group_id: str) -> None:
        """Return when all that the group has in memory is durable.

        Raises:
            CoordinatorUnavailable: it never will be, or what the group has could not be read.
        """
        self._coordinator.storage.check_read(group_id)
        await self._storing.settled(group_id)

    def expire(self, group: G) -> None:
        """Remove members that were not heard of in time."""
        overdue = group.overdue()
        if overdue:
            log.info("members_expired", group=group.group_id, members=overdue)
            self._remove_late(group, overdue)
        self._coordinator.schedule(group)

    @abstractmethod
    def _remove_late(self, group: G, member_ids: Sequence[str]) -> None:
        """Members are gone that were not heard of in time."""

    def restore(self, records: Sequence[tuple[K, V]]) -> None:
        """The groups as they were stored, each key once. Members have a session's time to be heard of."""
        groups: dict[str, G] = {}
        for key, value in sorted(records, key=lambda record: record[0].VERSION):
            if key.group not in groups:
                groups[key.group] = self._new(key.group)
            groups[key.group].put(key, value)
        for group_id, group in groups.items():
            group.catch_up()
            group.start_sessions()
            self._coordinator.groups[group_id] = group

    def _take(self, group: G, change: Change[T], before: Sequence[Entry] = ()) -> "asyncio.Future[T]":
        """Store a change of the group, which may be a new one, after `before`; done when it is durable."""
        stored = self._storing.store(group.group_id, [*before, *change.entries])
        if is_refused(stored):
            change.take_back()
            return then(stored, lambda _: change.answer)
        if change.entries:
            self._coordinator.groups[group.group_id] = group
        self._coordinator.schedule(group)
        return self._done(change.answer) if stored.done() else then(stored, lambda _: change.answer)

    def _done(self, answer: T) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self._broker.loop.create_future()
        done.set_result(answer)
        return done
