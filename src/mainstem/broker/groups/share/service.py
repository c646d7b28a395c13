"""Share groups at work: what they change is stored before anybody is told.

The rules are in `group`, which does no I/O.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from mainstem.broker.answers import then
from mainstem.broker.errors import UnknownTopicId
from mainstem.broker.groups.config import ShareGroupConfig
from mainstem.broker.groups.errors import GroupNotEmpty, UnknownGroup
from mainstem.broker.groups.modern.service import ModernGroups
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat, HeartbeatAnswer, ShareGroup
from mainstem.broker.groups.share.partitions import SharePartitions
from mainstem.broker.groups.share.persister import SharePersister
from mainstem.broker.groups.share.records import (
    Key,
    PartitionKey,
    TopicPartitions,
    Value,
)
from mainstem.broker.groups.share.sessions import SessionKey, SessionPartition, ShareSession, ShareSessions
from mainstem.broker.groups.share.state import UNKNOWN, ShareState
from mainstem.core import MainstemError
from mainstem.core.logging import get_logger

if TYPE_CHECKING:
    from mainstem.broker.connection import Connection
    from mainstem.broker.groups.coordinator import GroupCoordinator
    from mainstem.broker.server import Broker

T = TypeVar("T")

log = get_logger()


class ShareGroups(ModernGroups[ShareGroup, Key, Value]):
    """All share groups; they are among the coordinator's groups."""

    def __init__(self, coordinator: "GroupCoordinator", broker: "Broker") -> None:
        super().__init__(coordinator, broker, ShareGroup)
        self.persister: SharePersister
        """What is kept of share partitions; it is there from `open` on."""
        self.partitions = SharePartitions(self, broker)
        self.sessions = ShareSessions(broker.config.group_share_max_share_sessions)
        self._watched: set[int] = set()  # connections with sessions

    async def open(self) -> None:
        """Read what is kept of share partitions, when the groups are known; it is deleted where there is none of them.

        A crash may leave that of a group, of a topic, or of a group's topic, that was just being deleted.
        """
        self.persister = await SharePersister.open(self._broker)
        self.persister.on_replaced = self.partitions.close
        await self.persister.forget(self._is_there)
        await self._forget_lost_records()
        for group in self._all():
            if group.state_partitions.deleting:
                await self._finish_deletion(group, {topic_id for topic_id, _ in group.state_partitions.deleting})

    async def _forget_lost_records(self) -> None:
        """A power cut takes records of topics that trust the page cache: what comes in their place is not done.

        Each unclean end raises leader epochs, whoever opens the directory after it (a start that fails, a repair). What
        lies beyond the log's end in a state of the present epoch was set there by somebody.
        """
        for key, state in self.persister.all():
            for partition in self._broker.topics.by_id(key.topic_id).logs[key.partition : key.partition + 1]:
                end, trusting = partition.log_end_offset, not partition.config.syncs_every_append
                is_older = state.leader_epoch < partition.leader_epoch
                if trusting and partition.error is None and is_older and end < state.end_offset:
                    log.warning("share_state_beyond_log", group=key.group, partition=str(partition), offset=end)
                    await self.persister.set(key, state.below(end, partition.leader_epoch))

    def _state_from(self, key: PartitionKey, offset: int, epoch: int) -> ShareState:
        leader_epoch = self._broker.topics.by_id(key.topic_id).logs[key.partition].leader_epoch
        return ShareState(start_offset=max(offset, UNKNOWN), state_epoch=epoch, leader_epoch=leader_epoch)

    def _is_there(self, key: PartitionKey) -> bool:
        """Whether there is the group, or may be after a repair, and the topic."""
        known = self.get(key.group) is not None or not self._coordinator.storage.is_read(key.group)
        return known and self._broker.topics.get_by_id(key.topic_id) is not None

    def settings(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group, as they are now."""
        return self._coordinator.settings.share(group_id)

    # --- members ------------------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: Heartbeat) -> "asyncio.Future[HeartbeatAnswer]":
        """A member joins, lives or leaves.

        Raises:
            GroupError: it is refused; some errors come with the future.
        """
        self.check_open(group_id)
        if request.epoch == LEAVE:
            group = self.known(group_id)
            change = group.remove([request.member_id])
            return then(self._take(group, change), lambda _: HeartbeatAnswer(request.member_id, LEAVE))
        group = self._joined(group_id) if request.epoch == JOIN else self.known(group_id)
        return self._take(group, group.heartbeat(request))

    def _joined(self, group_id: str) -> ShareGroup:
        """The group, or a new one, which is not among the coordinator's yet."""
        return self.known(group_id) if group_id in self._coordinator.groups else self._new(group_id)

    def _new(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, self._clock, self._broker.topics, lambda: self.settings(group_id))

    def _remove_late(self, group: ShareGroup, member_ids: Sequence[str]) -> None:
        self._take(group, group.remove(member_ids))

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open_session(
        self, key: SessionKey, connection: "Connection", partitions: Iterable[SessionPartition]
    ) -> ShareSession:
        """A new session, which ends with its connection.

        Raises:
            RequestError: SHARE_SESSION_LIMIT_REACHED.
        """
        connection_id = id(connection)
        session = self.sessions.open(key, connection_id, partitions)
        if connection_id not in self._watched:
            self._watched.add(connection_id)
            connection.on_close.add(partial(self._disconnected, connection_id))
        if connection.closed:  # it may have been before
            self._disconnected(connection_id)
        return session

    def close_session(self, key: SessionKey) -> ShareSession:
        """The member's last request has come: what it has is for others.

        Raises:
            RequestError: SHARE_SESSION_NOT_FOUND.
        """
        session = self.sessions.finish(key)
        self._over(session)
        return session

    def _disconnected(self, connection_id: int) -> None:
        self._watched.discard(connection_id)
        for session in self.sessions.disconnected(connection_id):
            self._over(session)

    def _over(self, session: ShareSession) -> None:
        group_id = session.key.group_id
        self.partitions.release(group_id, session.key.member_id)
        if not self.sessions.has_group(group_id):
            self.partitions.close_group(group_id)

    # --- partitions with state ----------------------------------------------------------------------------------------

    async def set_offsets(
        self, group_id: str, offsets: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, MainstemError | None]:
        """Where a group without members reads on, of topics that are there; a group that is not there is made.

        1. The group says of which partitions there is state. 2. The states are set, which is durable on return; for
        each that could not be, the error.

        Raises:
            UnknownGroup: it is no share group.
            GroupNotEmpty: it has members, or one has joined meanwhile.
        """
        self.check_open(group_id)
        group = self._joined(group_id)
        group.check_empty()
        if not offsets:
            return {}
        await self._take(group, group.set_offsets(self._by_topic(offsets)))
        await self._check_unread(group)
        asked = {
            # Of a new state epoch: whoever has joined since the last one has left, too.
            key: self.persister.set(key, self._state_from(key, offset, group.epoch))
            for key, offset in offsets.items()
            if self._is_there(key)
        }
        failed = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
        gone = UnknownTopicId("the topic was deleted meanwhile")
        return {key: _expected(failed.get(key, gone)) for key in offsets}

    def _by_topic(self, keys: Iterable[PartitionKey]) -> list[TopicPartitions]:
        numbers: dict[UUID, list[int]] = {}
        for key in keys:
            numbers.setdefault(key.topic_id, []).append(key.partition)
        topics = self._broker.topics
        return [TopicPartitions(each, topics.by_id(each).name, tuple(found)) for each, found in numbers.items()]

    async def delete_offsets(self, group_id: str, topic_ids: Collection[UUID]) -> None:
        """A group without members forgets what it has read of these topics; durable on return.

        1. The group says that their state is being deleted: if the broker ends then, the next start goes on. 2. The
        states are deleted. 3. The group says that they are.

        Raises:
            UnknownGroup: it is no share group.
            GroupNotEmpty: it has members, or one has joined meanwhile.
        """
        self.check_open(group_id)
        group, topic_ids = self.known(group_id), frozenset(topic_ids)
        self.persister.check_read(group_id)
        doomed = group.state_of(topic_ids)
        await self._take(group, group.delete_offsets(topic_ids))
        try:
            await self._check_unread(group)
        except GroupNotEmpty:
            await self._take(group, group.keep_offsets(doomed))  # else the next start would delete them
            raise
        await self._finish_deletion(group, topic_ids)

    async def _finish_deletion(self, group: ShareGroup, topic_ids: Collection[UUID]) -> None:
        await self.persister.forget(lambda key: key.group != group.group_id or key.topic_id not in topic_ids)
        if self._coordinator.groups.get(group.group_id) is group:  # else it was deleted meanwhile
            await self._take(group, group.offsets_deleted(topic_ids))

    async def _check_unread(self, group: ShareGroup) -> None:
        """Raise UnknownGroup, GroupNotEmpty unless it is still there and without members.

        Not before it is durable that somebody has joined: a crash that took that back would do what was refused.
        """
        if self._coordinator.groups.get(group.group_id) is not group:
            raise UnknownGroup(group.group_id, "it was deleted meanwhile")
        if not group.is_empty:
            await self.settled(group.group_id)
            group.check_empty()

    async def forget_missing_topics(self) -> None:
        """Topics are deleted: so is what is kept of their partitions, durably on return."""
        await asyncio.gather(
            self.persister.forget(self._is_there),
            *(self._take(group, group.forget_missing_topics()) for group in self._all()),
        )

    def forget_group(self, group_id: str) -> "asyncio.Future[None]":
        """The group is deleted: so is what is kept of its share partitions; done when it is durable."""
        return self.persister.forget(lambda key: key.group != group_id)

    def _all(self) -> list[ShareGroup]:
        return [group for group in self._coordinator.groups.values() if isinstance(group, ShareGroup)]


def _expected(error: BaseException | None) -> MainstemError | None:
    if error is None or isinstance(error, MainstemError):
        return error
    raise error
