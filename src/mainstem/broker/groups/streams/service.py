"""Streams groups at work: what they change is stored before anybody is told, and their topics are made.

The rules are in `group`, which does no I/O. Topics that a topology needs and that are not there are made beside the
heartbeats, as in Kafka: a member is told that they are missing, and of its tasks when it comes back. What a creation
fails with is told for two heartbeats, and then it is tried again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from mainstem.broker.answers import then
from mainstem.broker.groups.classic.group import ClassicGroup
from mainstem.broker.groups.config import StreamsGroupConfig
from mainstem.broker.groups.membership import Entry
from mainstem.broker.groups.modern.service import ModernGroups
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.broker.groups.streams.messages import JOIN, LEAVE, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.streams.records import Key, Value
from mainstem.broker.groups.streams.topology import InternalTopic
from mainstem.core import MainstemError
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code, RequestError

if TYPE_CHECKING:
    from mainstem.broker.groups.coordinator import GroupCoordinator
    from mainstem.broker.server import Broker

T = TypeVar("T")

log = get_logger()


class StreamsGroups(ModernGroups[StreamsGroup, Key, Value]):
    """All streams groups; they are among the coordinator's groups."""

    def __init__(self, coordinator: "GroupCoordinator", broker: "Broker") -> None:
        super().__init__(coordinator, broker, StreamsGroup)
        self._making: set[str] = set()
        self._failed: dict[str, tuple[str, float]] = {}  # topic: why it could not be made, and until when that is told

    def settings(self, group_id: str) -> StreamsGroupConfig:
        """The settings of a group, as they are now."""
        return self._coordinator.settings.streams(group_id)

    # --- members ------------------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: Heartbeat) -> "asyncio.Future[HeartbeatAnswer]":
        """A member joins, lives or leaves.

        Raises:
            GroupError: it is refused; some errors come with the future.
        """
        self.check_open(group_id)
        if request.epoch == LEAVE:
            group = self.known(group_id)
            change = group.remove([request.member_id], shuts_down=request.shuts_down)
            return then(self._take(group, change), lambda _: HeartbeatAnswer(request.member_id, LEAVE))
        group, before = self._joined(group_id) if request.epoch == JOIN else (self.known(group_id), [])
        return self._take(group, group.heartbeat(request), before)

    def _joined(self, group_id: str) -> tuple[StreamsGroup, list[Entry]]:
        """The group, or a new one, which is not among the coordinator's yet; and what is to be stored before it."""
        present = self._coordinator.groups.get(group_id)
        if present is None:
            return self._new(group_id), []
        if isinstance(present, ClassicGroup) and present.is_empty:
            return self._new(group_id), present.tombstones()
        return self.known(group_id), []

    def _new(self, group_id: str) -> StreamsGroup:
        return StreamsGroup(group_id, self._clock, self._broker.topics, lambda: self.settings(group_id))

    def _remove_late(self, group: StreamsGroup, member_ids: Sequence[str]) -> None:
        self._take(group, group.remove(member_ids))

    # --- topics -------------------------------------------------------------------------------------------------------

    def make_topics(
        self, group_id: str, topics: Sequence[InternalTopic], count: Callable[[int], None]
    ) -> dict[str, str]:
        """Begin to make topics that a topology needs; those that could not be made a moment ago, and why.

        `count` is told of their partitions, and raises where the client's quota has no room for them.
        """
        now = self._clock.monotonic()
        self._failed = {name: failure for name, failure in self._failed.items() if failure[1] > now}
        for topic in topics:
            if topic.name in self._making or topic.name in self._failed:
                continue
            try:
                count(topic.partitions)
            except MainstemError as error:
                self._note_failure(group_id, topic, error)
                continue
            self._making.add(topic.name)
            self._broker.spawn(self._make(group_id, topic), name="make a topic of a streams group")
        return {topic.name: self._failed[topic.name][0] for topic in topics if topic.name in self._failed}

    async def _make(self, group_id: str, topic: InternalTopic) -> None:
        try:
            most = self._broker.config.max_replication_factor
            if not -1 <= topic.replication_factor <= most:
                raise RequestError(
                    Code.invalid_replication_factor,
                    f"Unable to replicate the partition {topic.replication_factor} time(s): there is one node",
                )
            await self._broker.topics.create(topic.name, topic.partitions, dict(topic.configs))
        except MainstemError as error:
            self._note_failure(group_id, topic, error)
        finally:
            self._making.discard(topic.name)

    def _note_failure(self, group_id: str, topic: InternalTopic, error: MainstemError) -> None:
        until = self._clock.monotonic() + 2 * self.settings(group_id).heartbeat_interval_ms / 1000
        self._failed[topic.name] = str(error), until
        log.warning("topic_not_made", group=group_id, topic=topic.name, reason=str(error))
