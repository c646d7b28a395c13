"""Topic metadata: names, ids, partition counts and settings, and the cluster's id.

It is kept as facts (`broker.facts`): a create, alter or delete is durable when it returns.

Creating a topic: 1. its partitions, 2. the record. Deleting: 1. the record's tombstone, 2. the partitions. A crash in
between leaves partitions that no record names; `load` removes those that are empty, or whose tombstone it finds. Others
are of a topic whose record is lost: it is made again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from mainstem.broker.config import MOST_PARTITIONS, BrokerConfig
from mainstem.broker.errors import (
    InternalTopic,
    InvalidPartitions,
    InvalidTopicName,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from mainstem.broker.facts import METADATA, Facts
from mainstem.broker.topic_settings import check_taken
from mainstem.core import Clock, MainstemError, TopicPartition, is_topic_name
from mainstem.core.logging import get_logger
from mainstem.log import LogDirectory, PartitionLog, StorageError, TopicConfig

_REMOVED_AT_ONCE = 100  # more would hold up the event loop: each is renamed there
_MOST_TOLD = 100

_KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # whatever the defaults are

COORDINATOR_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")

ChangeConfig: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""The settings of a topic, made of those that it has when its turn has come."""

log = get_logger()


class Topic:
    """One topic. `config` holds what was set for it; everything else has its default."""

    __slots__ = ("config", "internal", "logs", "name", "topic_id")

    def __init__(self, name: str, topic_id: UUID, config: dict[str, str], *, internal: bool) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.internal = internal
        self.logs: list[PartitionLog] = []


class Topics:
    """All topics, by name and by id. `load` builds it; every change is durable on return."""

    def __init__(self, directory: LogDirectory, config: BrokerConfig, clock: Clock, facts: Facts) -> None:
        self.cluster_id = ""
        self.version = 0
        """Grows whenever a topic is created, deleted or grown."""
        self._internal: set[str] = set()
        self._directory = directory
        self._config = config
        self._clock = clock
        self._by_name: dict[str, Topic] = {}
        self._alike: dict[str, str] = {}  # a name with "_" for each ".": the name itself
        self._by_id: dict[UUID, Topic] = {}
        self._by_id_bytes: dict[bytes, Topic] = {}
        self.facts = facts
        self._kept: dict[str, list[PartitionLog]] = {}  # by topic: its records are there, and no metadata
        self._defaults: TopicConfig | None = None
        self._told_refusals: set[str] = set()
        self._changing = asyncio.Lock()  # one change at a time: names, ids and collisions are checked against the rest

    @classmethod
    async def load(
        cls, directory: LogDirectory, config: BrokerConfig, clock: Clock, facts: Facts, defaults: TopicConfig
    ) -> "Topics":
        """Remove partitions that no record names, give each partition its settings: `defaults` where it has none.

        Not before they are known: housekeeping deletes by the settings that a partition has.
        """
        self = cls(directory, config, clock, facts)
        self._defaults = None if defaults == TopicConfig() else defaults
        deleted = {key.removeprefix("topic:") for key, fact in facts.found.items() if fact is None}
        cluster = facts.found.get("cluster")
        if cluster is None:
            cluster = {"id": directory.metadata.cluster_id}
            await self._put("cluster", cluster)
        self.cluster_id = cluster["id"]
        for key, fact in facts.found.items():
            if key.startswith("topic:") and fact is not None:
                await self._open(key.removeprefix("topic:"), fact)
        await self._look_after_orphans(deleted)
        return self

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Topic | None:
        """The topic of that name, if there is one."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID | None) -> Topic | None:
        """The topic with that id, if there is one."""
        return self._by_id.get(topic_id) if topic_id is not None else None

    def by_name(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def by_id(self, topic_id: UUID | None) -> Topic:
        """The topic with that id.

        Raises:
            UnknownTopicId: there is none.
        """
        topic = self.get_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {topic_id}")
        return topic

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with that id, given as its bytes, if there is one."""
        topic = self._by_id_bytes.get(topic_id)
        return None if topic is None else topic.name

    def partition_by_id(self, topic_id: bytes, partition: int) -> PartitionLog:
        """The log of a partition of the topic with that id, given as its bytes: the produce path.

        Raises:
            UnknownTopicId, UnknownTopicOrPartition: there is none.
        """
        topic = self._by_id_bytes.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with id {UUID(bytes=topic_id)}")
        if not 0 <= partition < len(topic.logs):
            raise UnknownTopicOrPartition(f"there is no partition {partition} of topic {topic.name!r}")
        return topic.logs[partition]

    def partition(self, name: str, partition: int) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        topic = self._by_name.get(name)
        if topic is None or not 0 <= partition < len(topic.logs):
            raise UnknownTopicOrPartition(f"there is no partition {partition} of topic {name!r}")
        return topic.logs[partition]

    def has_kept(self, name: str) -> bool:
        """Records of that topic are there, and the metadata has lost it; `create` takes those of a coordinator's."""
        return name in self._kept

    def check_not_internal(self, name: str) -> None:
        """The coordinators' own topics are for them alone: what they keep in memory must be what is there.

        Raises:
            InternalTopic: it is one.
        """
        if name in self._internal:
            raise InternalTopic(f"topic {name!r} is internal: only the log itself changes it")

    # --- changes -----------------------------------------------------------------------------------------------------

    def check_new(
        self, name: str, partitions: int, config: Mapping[str, str], *, internal: bool = False
    ) -> TopicConfig:
        """Everything that `create` checks, without creating.

        Raises:
            InvalidTopicName, TopicAlreadyExists, InvalidPartitions, InvalidTopicConfig: what the request has wrong.
        """
        if name in self._by_name:
            raise TopicAlreadyExists(f"topic {name!r} already exists")
        if name in self._kept:
            raise TopicAlreadyExists(f"records of a topic {name!r} are there that the metadata does not know")
        self.check_name(name)
        if not internal and ("." in name or "_" in name):
            other = self._alike.get(name.replace(".", "_"))
            if other is not None:
                raise InvalidTopicName(f"topic {name!r} collides with {other!r}: '.' and '_' count as one here")
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise InvalidPartitions(f"topic {name!r}: {partitions} partitions, expected 1 to {MOST_PARTITIONS}")
        return self._checked(config, internal=internal)

    def _checked(
        self, config: Mapping[str, str], *, internal: bool, before: Mapping[str, str] | None = None
    ) -> TopicConfig:
        settings = self.settings_of(config, internal=internal)
        check_taken(config, settings, before=before)
        return settings

    def settings_of(self, config: Mapping[str, str], *, internal: bool = False) -> TopicConfig:
        """What holds for a topic that has these settings of its own.

        Raises:
            InvalidTopicConfig: a setting that does not exist or does not take that value.
        """
        base = None if internal else self._defaults
        return TopicConfig.from_kafka(config, base=base) if config or base is None else base

    def set_defaults(self, defaults: TopicConfig) -> None:
        """What topics have where they have no value of their own; at once.

        The coordinators' topics keep what they have: other settings could make them lose records, or refuse them.
        """
        self._defaults = defaults
        for topic in self._by_name.values():
            if not topic.internal:
                self._configure(topic)

    def _configure(self, topic: Topic) -> None:
        settings = self.settings_of(topic.config, internal=topic.internal)
        for partition_log in topic.logs:
            partition_log.config = settings

    @staticmethod
    def check_name(name: str) -> None:
        """Kafka's rule for names.

        Raises:
            InvalidTopicName: it is broken, or the name is the broker's own.
        """
        if name == METADATA.topic:
            raise InvalidTopicName(f"{name!r} is a name of the log's own")
        if not is_topic_name(name):
            raise InvalidTopicName(f"{name!r} is no topic name: 1 to 249 of a-z A-Z 0-9 . _ -, and not '.' or '..'")

    async def create(self, name: str, partitions: int, config: dict[str, str], *, internal: bool = False) -> Topic:
        """Create a topic.

        Raises:
            InvalidTopicName, TopicAlreadyExists, InvalidPartitions, InvalidTopicConfig: nothing was created.
            StorageError: the disk refused; what was made of it is removed again.
        """
        async with self._changing:
            if internal and (found := self._kept.get(name)) is not None:
                topic = await self._adopt(name, found, partitions, config, internal=True)
                del self._kept[name]
                return topic
            settings = self.check_new(name, partitions, config, internal=internal)
            topic = Topic(name, uuid4(), config, internal=internal)
            topic.logs = await self._create_partitions(topic, partitions, settings)
            self._add(topic)
            self._configure(topic)  # the defaults may have changed meanwhile
        log.info("topic_created", topic=name, partitions=partitions)
        _tell_trust(topic)
        return topic

    async def delete(self, topic: Topic) -> None:
        """Delete a topic and its records."""
        async with self._changing:
            self._check_is_there(topic)
            await self._put(f"topic:{topic.name}", None)
            del self._by_name[topic.name], self._by_id[topic.topic_id], self._by_id_bytes[topic.topic_id.bytes]
            self._alike.pop(topic.name.replace(".", "_"), None)
            self.version += 1
            await self._remove([each.topic_partition for each in topic.logs])
        log.info("topic_deleted", topic=topic.name)

    def check_growth(self, topic: Topic, count: int) -> None:
        """Everything that `add_partitions` checks.

        Raises:
            InvalidPartitions: `count` is not above the present count, or too large.
        """
        present = len(topic.logs)
        if not present < count <= MOST_PARTITIONS:
            raise InvalidPartitions(f"topic {topic.name!r} has {present} partitions, {count} were asked for")
        if topic.name in self._kept:
            raise InvalidPartitions(f"topic {topic.name!r} has more partitions with records than the metadata knows")

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Grow a topic to `count` partitions.

        Raises:
            InvalidPartitions: `count` is not above the present count.
            UnknownTopicOrPartition: it was deleted meanwhile.
            StorageError: the disk refused; the topic is as it was.
        """
        async with self._changing:
            self._check_is_there(topic)
            self.check_growth(topic, count)
            topic.logs += await self._create_partitions(
                topic, count, self.settings_of(topic.config, internal=topic.internal)
            )
            self._configure(topic)  # the defaults may have changed meanwhile
            self.version += 1

    def check_config(self, topic: Topic, config: Mapping[str, str]) -> None:
        """Everything that `set_config` checks, without setting it.

        Raises:
            InvalidTopicConfig: a setting that does not exist or does not take that value.
        """
        self._checked(config, internal=topic.internal, before=topic.config)

    async def set_config(self, topic: Topic, config: Mapping[str, str] | ChangeConfig) -> None:
        """Replace what is set for a topic, by `config` or by what it makes of the present settings; at once.

        Raises:
            InvalidTopicConfig: a setting that does not exist or does not take that value.
            UnknownTopicOrPartition: the topic was deleted meanwhile.
        """
        async with self._changing:
            self._check_is_there(topic)
            after = dict(config(topic.config) if callable(config) else config)
            self._checked(after, internal=topic.internal, before=topic.config)
            await self._put(f"topic:{topic.name}", _fact(topic, config=after))
            topic.config = after
            self._configure(topic)
        _tell_trust(topic)

    def _check_is_there(self, topic: Topic) -> None:
        """Whoever waited for its turn may find the topic deleted: its record must not bring it back."""
        if self._by_id.get(topic.topic_id) is not topic:
            raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")

    # --- the store ---------------------------------------------------------------------------------------------------

    async def _create_partitions(self, topic: Topic, count: int, settings: TopicConfig) -> list[PartitionLog]:
        """Give the topic `count` partitions, and write it down: both, or what was made is removed again."""
        added = [TopicPartition(topic.name, number) for number in range(len(topic.logs), count)]
        await self._remove_leftovers(topic.name, added)
        made = await asyncio.gather(
            *(self._directory.create_partition(each, topic.topic_id, settings) for each in added),
            return_exceptions=True,
        )
        failures = [each for each in made if isinstance(each, BaseException)]
        if not failures:
            try:
                await self._put(f"topic:{topic.name}", _fact(topic, partitions=count))
            except MainstemError as error:  # the disk refuses, or the topic's settings are too large for a record
                failures.append(error)
        if failures:
            await self._remove(added)
            self._tell_refusal(topic.name, failures[0])
            raise failures[0]
        logs = [each for each in made if isinstance(each, PartitionLog)]
        for each in logs:
            each.fail_stop = topic.internal
        return logs

    def _tell_refusal(self, topic: str, error: BaseException) -> None:
        """Once for each reason: clients that want the topic ask again and again."""
        told = f"{topic}: {error}"
        if isinstance(error, StorageError) and told not in self._told_refusals:
            if len(self._told_refusals) >= _MOST_TOLD:
                self._told_refusals.clear()
            self._told_refusals.add(told)
            log.error("topic_not_created", topic=topic, error=str(error), hint=error.hint)

    async def _remove_leftovers(self, name: str, added: list[TopicPartition]) -> None:
        """What a failure has left of a topic of that name, which is not to be there again at the next start.

        Raises:
            StorageError: the disk refuses still.
        """
        doomed = {*added, *(each for each in self._directory.undeleted if each.topic == name)}
        await self._remove(doomed)
        if left := doomed & self._directory.partitions.keys():
            raise StorageError(
                f"{min(left)}: it is deleted, and the disk refuses to remove it", hint="free disk space; then try again"
            )

    async def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that no record names, where they are there; housekeeping tries again what fails."""
        doomed = list(partitions)
        for first in range(0, len(doomed), _REMOVED_AT_ONCE):
            await asyncio.gather(*map(self._remove_one, doomed[first : first + _REMOVED_AT_ONCE]))

    async def _remove_one(self, partition: TopicPartition) -> None:
        if partition not in self._directory.partitions:
            return
        try:
            await self._directory.delete_partition(partition)
        except (StorageError, OSError) as error:
            log.warning("orphan_left", topic=partition.topic, partition=partition.partition, error=str(error))

    async def _put(self, key: str, fact: Any) -> None:
        await self.facts.put({key: fact})

    async def _open(self, name: str, fact: dict[str, Any]) -> None:
        topic = Topic(name, UUID(fact["id"]), fact["config"], internal=fact["internal"])
        settings = self.settings_of(topic.config, internal=topic.internal)
        await self._open_partitions(topic, fact["partitions"], settings)
        self._add(topic)

    async def _open_partitions(self, topic: Topic, count: int, settings: TopicConfig) -> None:
        for number in range(count):
            topic_partition = TopicPartition(topic.name, number)
            partition_log = self._directory.partitions.get(topic_partition)
            if partition_log is None:  # its record was durable, so it was there: somebody removed the directory
                log.error("partition_missing", topic=topic.name, partition=number)
                partition_log = await self._directory.create_partition(topic_partition, topic.topic_id, settings)
            partition_log.config = settings
            partition_log.fail_stop = topic.internal
            topic.logs.append(partition_log)

    def _add(self, topic: Topic) -> None:
        self.version += 1
        self._by_name[topic.name] = topic
        self._alike[topic.name.replace(".", "_")] = topic.name
        if topic.internal:
            self._internal.add(topic.name)
        self._by_id[topic.topic_id] = topic
        self._by_id_bytes[topic.topic_id.bytes] = topic

    async def _look_after_orphans(self, deleted: set[str]) -> None:
        """Remove what a crash left of a creation (empty) or of a deletion (its tombstone is there).

        Records that nobody asked to delete are those of a topic whose metadata was lost, to damage and a repair: it is
        one again, without its settings. Coordinators say what theirs are.
        """
        known = {METADATA} | {each.topic_partition for topic in self._by_name.values() for each in topic.logs}
        orphans: dict[str, list[PartitionLog]] = {}
        for topic_partition in sorted(set(self._directory.partitions) - known):
            orphans.setdefault(topic_partition.topic, []).append(self._directory.partitions[topic_partition])
        for name, found in orphans.items():
            left = [each for each in found if each.error is not None or each.log_end_offset]
            if not left or name in deleted:
                log.warning("orphan_removed", topic=name, partitions=[each.number for each in found])
                await self._remove([each.topic_partition for each in found])
            elif name in self._by_name or len({each.topic_id for each in found}) > 1:
                directories = ", ".join(str(each.directory) for each in found)
                hint = f"restore {METADATA}, or move away what is not the topic's"
                log.error("orphan_kept", topic=name, directories=directories, hint=hint)
                self._kept[name] = found
            elif name in COORDINATOR_TOPICS:
                self._kept[name] = found
            else:
                await self._adopt(name, found, 1, _KEEPS_ALL, internal=False)

    async def _adopt(
        self, name: str, found: list[PartitionLog], partitions: int, config: dict[str, str], *, internal: bool
    ) -> Topic:
        """Make a topic of the partitions that are there, and of `partitions` at least; durable on return."""
        topic = Topic(name, found[0].topic_id, config, internal=internal)
        count = max(partitions, *(each.number + 1 for each in found))
        await self._open_partitions(topic, count, self.settings_of(config, internal=internal))
        await self._put(f"topic:{name}", _fact(topic))
        self._add(topic)
        hint = "set its settings again; until then it keeps all its records" if not internal else ""
        log.warning("topic_adopted", topic=name, partitions=count, settings=config, hint=hint)
        return topic


def _fact(topic: Topic, *, partitions: int | None = None, config: dict[str, str] | None = None) -> dict[str, Any]:
    count = len(topic.logs) if partitions is None else partitions
    settings = topic.config if config is None else config
    return {"id": str(topic.topic_id), "partitions": count, "config": settings, "internal": topic.internal}


def _tell_trust(topic: Topic) -> None:
    """Nobody is to find out by a power cut that this topic promises less than the others."""
    settings = topic.logs[0].config
    if not settings.syncs_every_append:
        log.warning("topic_trusts_page_cache", topic=topic.name, lost=settings.lost_by_power_cut)
