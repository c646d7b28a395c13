"""What a streams group keeps in `__consumer_offsets`: Kafka's own records, byte for byte.

How keys and values are built is in `modern.records`; what the records are about, by the version of the key::

    17 group                 the group: its epoch, what its topics were, and what its last assignment was made with
    19 group │ member        a member: who it is
    20 group                 the target assignment: its epoch and when it was made
    21 group │ member        a member's part of the target assignment
    22 group │ member        a member's current assignment: its epoch, what it has and what it is to give up
    23 group                 the topology

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, TypeAlias, TypeVar

import msgspec

from mainstem.broker.fields import Reader, Writer
from mainstem.broker.groups.modern.records import (
    GroupRecordKey,
    MemberRecordKey,
    TargetValue,
    read_epochs,
    read_target,
    value_reader,
    write_epochs,
    write_target,
)
from mainstem.broker.groups.streams.tasks import HOLDS_NOTHING, HeldTasks, TaskEpochs, Tasks, TaskSet
from mainstem.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology

T = TypeVar("T")

_VALIDATED: Final = 0
_SETTINGS: Final = 1


class MemberState(enum.IntEnum):
    """How far a member is on its way to its part of the target assignment; the numbers are stored."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """It has to give up tasks first, and has not yet said that it did."""
    UNRELEASED_TASKS = 3
    """It has given up what it had to; others have not yet given up what it is to get."""
    UNKNOWN = 127


# --- keys -------------------------------------------------------------------------------------------------------------


class StreamsGroupKey(GroupRecordKey, frozen=True):
    """Of which group."""

    VERSION: ClassVar[int] = 17


class MemberKey(MemberRecordKey, frozen=True):
    """Of which member."""

    VERSION: ClassVar[int] = 19


class TargetKey(GroupRecordKey, frozen=True):
    """Of which group's target assignment."""

    VERSION: ClassVar[int] = 20


class TargetMemberKey(MemberRecordKey, frozen=True):
    """Of whose part of the target assignment."""

    VERSION: ClassVar[int] = 21


class CurrentKey(MemberRecordKey, frozen=True):
    """Of what which member has."""

    VERSION: ClassVar[int] = 22


class TopologyKey(GroupRecordKey, frozen=True):
    """Of which group's topology."""

    VERSION: ClassVar[int] = 23


Key: TypeAlias = StreamsGroupKey | MemberKey | TargetKey | TargetMemberKey | CurrentKey | TopologyKey

KINDS: Final[Mapping[int, type[Key]]] = {
    kind.VERSION: kind for kind in (StreamsGroupKey, MemberKey, TargetKey, TargetMemberKey, CurrentKey, TopologyKey)
}
"""Of keys, by version."""

# --- values -----------------------------------------------------------------------------------------------------------


class StreamsGroupValue(msgspec.Struct, frozen=True):
    """The group's epoch: it grows with every change of members, topology, topics or settings."""

    epoch: int
    topics_hash: int = 0
    validated_epoch: int = -1
    """The epoch of the topology when all its topics were there as they have to be; -1: they were not."""
    settings: tuple[tuple[str, str], ...] | None = None
    """What decides the assignment beside the members, by Kafka's names."""


class MemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member: who it is."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    """(host, port) at which the application answers queries."""
    client_tags: tuple[tuple[str, str], ...] = ()


class TargetMemberValue(msgspec.Struct, frozen=True):
    """What a member is to have in the end."""

    tasks: Tasks


class CurrentValue(msgspec.Struct, frozen=True):
    """What a member has now."""

    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: HeldTasks = HOLDS_NOTHING
    revoking: HeldTasks = HOLDS_NOTHING
    """What it was told to give up, and has not yet said that it did."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """True if it has what the target assignment of `epoch` gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch


Value: TypeAlias = StreamsGroupValue | MemberValue | TargetValue | TargetMemberValue | CurrentValue | Topology

# --- to bytes ---------------------------------------------------------------------------------------------------------


def encode_value(value: Value) -> bytes:
    """The record's value, in version 0."""
    writer = Writer(0, flexible=True)
    match value:
        case StreamsGroupValue():
            _encode_group(writer, value)
        case MemberValue():
            _encode_member(writer, value)
        case TargetValue():
            write_target(writer, value)
        case TargetMemberValue():
            for tasks in value.tasks.kinds:
                _encode_tasks(writer, tasks)
            writer.tags()
        case CurrentValue():
            writer.int32(value.epoch)
            writer.int32(value.previous_epoch)
            writer.int8(value.state)
            for held in (value.assigned, value.revoking):
                _encode_active(writer, held.active)
                _encode_tasks(writer, held.standby)
                _encode_tasks(writer, held.warmup)
            writer.tags()
        case Topology():
            writer.int32(value.epoch)
            writer.array(value.subtopologies, lambda each: _encode_subtopology(writer, each))
            writer.tags()
    return writer.done()


def _encode_group(writer: Writer, value: StreamsGroupValue) -> None:
    writer.int32(value.epoch)
    writer.int64(value.topics_hash)
    tags = []
    if value.validated_epoch != -1:
        tags.append((_VALIDATED, value.validated_epoch.to_bytes(4, "big", signed=True)))
    if value.settings is not None:
        inside = Writer(None, flexible=True)
        _encode_pairs(inside, value.settings)
        tags.append((_SETTINGS, inside.done()))
    writer.tags(tags)


def _encode_member(writer: Writer, value: MemberValue) -> None:
    writer.string(value.instance_id)
    writer.string(value.rack_id)
    writer.string(value.client_id)
    writer.string(value.client_host)
    writer.int32(value.rebalance_timeout_ms)
    writer.int32(value.topology_epoch)
    writer.string(value.process_id)
    if value.endpoint is None:
        writer.int8(-1)
    else:
        host, port = value.endpoint
        writer.int8(1)  # it is not null
        writer.string(host)
        writer.uint16(port)
        writer.tags()
    _encode_pairs(writer, value.client_tags)
    writer.tags()


def _encode_pairs(writer: Writer, pairs: Sequence[tuple[str, str]]) -> None:
    def pair(each: tuple[str, str]) -> None:
        for text in each:
            writer.string(text)
        writer.tags()

    writer.array(pairs, pair)


def _encode_tasks(writer: Writer, tasks: TaskSet) -> None:
    def subtopology(name: str) -> None:
        writer.string(name)
        writer.array(sorted(tasks[name]), writer.int32)
        writer.tags()

    writer.array(sorted(tasks), subtopology)


def _encode_active(writer: Writer, tasks: TaskEpochs) -> None:
    def subtopology(name: str) -> None:
        numbers = sorted(tasks[name])
        writer.string(name)
        writer.array(numbers, writer.int32)
        write_epochs(writer, [tasks[name][number] for number in numbers])

    writer.array(sorted(tasks), subtopology)


def _encode_subtopology(writer: Writer, each: Subtopology) -> None:
    writer.string(each.subtopology_id)
    writer.array(each.source_topics, writer.string)
    writer.array(each.source_topic_regexes, writer.string)
    writer.array(each.changelog_topics, lambda topic: _encode_topic(writer, topic))
    writer.array(each.repartition_sink_topics, writer.string)
    writer.array(each.repartition_source_topics, lambda topic: _encode_topic(writer, topic))

    def group(one: CopartitionGroup) -> None:
        for places in (one.source_topics, one.source_topic_regexes, one.repartition_source_topics):
            writer.array(places, writer.int16)
        writer.tags()

    writer.array(each.copartition_groups, group)
    writer.tags()


def _encode_topic(writer: Writer, topic: InternalTopic) -> None:
    writer.string(topic.name)
    writer.int32(topic.partitions)
    writer.int16(topic.replication_factor)
    _encode_pairs(writer, topic.configs)
    writer.tags()


# --- from bytes -------------------------------------------------------------------------------------------------------


def decode_value(key: Key, data: bytes) -> Value:
    """The value that belongs to `key`.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    reader = value_reader(data)
    value: Value
    match key:
        case StreamsGroupKey():
            return _decode_group(reader)
        case MemberKey():
            value = _decode_member(reader)
        case TargetKey():
            return read_target(reader)
        case TargetMemberKey():
            value = TargetMemberValue(Tasks(*(_decode_tasks(reader) for _ in range(3))))
        case CurrentKey():
            value = _decode_current(reader)
        case TopologyKey():
            value = Topology(reader.int32(), _tuple(reader, lambda: _decode_subtopology(reader)))
    reader.tags()
    return value


def _tuple(reader: Reader, read: Callable[[], T]) -> tuple[T, ...]:
    return tuple(reader.array(read) or ())


def _decode_group(reader: Reader) -> StreamsGroupValue:
    epoch, topics_hash = reader.int32(), reader.int64()
    tags = reader.tags()
    validated = Reader(tags[_VALIDATED]).int32() if _VALIDATED in tags else -1
    settings = None
    if _SETTINGS in tags:
        inside = Reader(tags[_SETTINGS])
        inside.flexible = True
        found = inside.array(lambda: _decode_pair(inside))
        settings = None if found is None else tuple(found)
    return StreamsGroupValue(epoch, topics_hash, validated, settings)


def _decode_pair(reader: Reader) -> tuple[str, str]:
    pair = reader.required_string(), reader.required_string()
    reader.tags()
    return pair


def _decode_member(reader: Reader) -> MemberValue:
    return MemberValue(
        instance_id=reader.string(),
        rack_id=reader.string(),
        client_id=reader.required_string(),
        client_host=reader.required_string(),
        rebalance_timeout_ms=reader.int32(),
        topology_epoch=reader.int32(),
        process_id=reader.required_string(),
        endpoint=_decode_endpoint(reader),
        client_tags=_tuple(reader, lambda: _decode_pair(reader)),
    )


def _decode_endpoint(reader: Reader) -> tuple[str, int] | None:
    if reader.int8() < 0:
        return None
    endpoint = reader.required_string(), reader.uint16()
    reader.tags()
    return endpoint


def _decode_tasks(reader: Reader) -> TaskSet:
    found: dict[str, frozenset[int]] = {}

    def subtopology() -> None:
        name = reader.required_string()
        found[name] = frozenset(reader.array(reader.int32) or ())
        reader.tags()

    reader.array(subtopology)
    return found


def _decode_current(reader: Reader) -> CurrentValue:
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    assigned, revoking = (
        HeldTasks(_decode_active(reader, epoch), _decode_tasks(reader), _decode_tasks(reader)) for _ in range(2)
    )
    known = state in MemberState.__members__.values()
    return CurrentValue(epoch, previous_epoch, MemberState(state) if known else MemberState.UNKNOWN, assigned, revoking)


def _decode_active(reader: Reader, epoch: int) -> TaskEpochs:
    found: dict[str, dict[int, int]] = {}

    def subtopology() -> None:
        name, numbers = reader.required_string(), reader.array(reader.int32) or []
        found[name] = read_epochs(reader, numbers, epoch)

    reader.array(subtopology)
    return found


def _decode_subtopology(reader: Reader) -> Subtopology:
    subtopology = Subtopology(
        subtopology_id=reader.required_string(),
        source_topics=_tuple(reader, reader.required_string),
        source_topic_regexes=_tuple(reader, reader.required_string),
        changelog_topics=_tuple(reader, lambda: _decode_topic(reader)),
        repartition_sink_topics=_tuple(reader, reader.required_string),
        repartition_source_topics=_tuple(reader, lambda: _decode_topic(reader)),
        copartition_groups=_tuple(reader, lambda: _decode_copartition_group(reader)),
    )
    reader.tags()
    return subtopology


def _decode_topic(reader: Reader) -> InternalTopic:
    topic = InternalTopic(
        reader.required_string(), reader.int32(), reader.int16(), _tuple(reader, lambda: _decode_pair(reader))
    )
    reader.tags()
    return topic


def _decode_copartition_group(reader: Reader) -> CopartitionGroup:
    group = CopartitionGroup(*(_tuple(reader, reader.int16) for _ in range(3)))
    reader.tags()
    return group
