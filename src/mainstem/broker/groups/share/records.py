"""What share groups keep, in Kafka's own records, byte for byte.

Of a group, in `__consumer_offsets`; how keys and values are built is in `modern.records`::

    10 group │ member        a member: who it is and what it is subscribed to
    11 group                 the group: its epoch, and the hash of what its topics were when it was last assigned
    12 group                 the target assignment: its epoch and when it was made
    13 group │ member        a member's part of the target assignment
    14 group │ member        a member's current assignment: its epochs and what it has
    15 group                 for which partitions there is state, or is to be made or deleted

Of a share partition, in `__share_group_state`: the last snapshot, and the updates since, which have its epoch::

    0  group │ topic id │ partition    snapshot
    1  group │ topic id │ partition    update

All updates count, not the last one alone: that topic is never compacted. What is below the oldest snapshot that counts
is deleted.

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
https://github.com/apache/kafka/tree/trunk/share-coordinator/src/main/resources/common/message
"""

from collections.abc import Mapping
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord, Reader, Writer
from mainstem.broker.groups.modern.partitions import Assignment
from mainstem.broker.groups.modern.records import (
    GroupRecordKey,
    MemberRecordKey,
    TargetMemberValue,
    TargetValue,
    read_partitions,
    read_target,
    value_reader,
    write_partitions,
    write_target,
)
from mainstem.broker.groups.share.state import RecordState, StateBatch

_COMPLETE: Final = 0

# --- keys of groups ---------------------------------------------------------------------------------------------------


class MemberKey(MemberRecordKey, frozen=True):
    """Of which member."""

    VERSION: ClassVar[int] = 10


class ShareGroupKey(GroupRecordKey, frozen=True):
    """Of which group."""

    VERSION: ClassVar[int] = 11


class TargetKey(GroupRecordKey, frozen=True):
    """Of which group's target assignment."""

    VERSION: ClassVar[int] = 12


class TargetMemberKey(MemberRecordKey, frozen=True):
    """Of whose part of the target assignment."""

    VERSION: ClassVar[int] = 13


class CurrentKey(MemberRecordKey, frozen=True):
    """Of what which member has."""

    VERSION: ClassVar[int] = 14


class StatePartitionsKey(GroupRecordKey, frozen=True):
    """Of which group's share partitions."""

    VERSION: ClassVar[int] = 15


Key: TypeAlias = MemberKey | ShareGroupKey | TargetKey | TargetMemberKey | CurrentKey | StatePartitionsKey

KINDS: Final[Mapping[int, type[Key]]] = {
    kind.VERSION: kind
    for kind in (MemberKey, ShareGroupKey, TargetKey, TargetMemberKey, CurrentKey, StatePartitionsKey)
}
"""Of the keys of groups, by version."""

# --- values of groups -------------------------------------------------------------------------------------------------


class MemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member: who it is and what it is subscribed to."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()


class ShareGroupValue(msgspec.Struct, frozen=True):
    """The group's epoch: it grows with every change of members, subscriptions or topics."""

    epoch: int
    topics_hash: int = 0


class CurrentValue(msgspec.Struct, frozen=True):
    """What a member has now."""

    epoch: int
    previous_epoch: int
    assigned: Assignment
    state: int = 0
    """Always 0 (stable): a share group's member has nothing to give up first."""


class TopicPartitions(msgspec.Struct, frozen=True):
    """Partitions of a topic. Its name is kept too: it is asked for when the topic is no more."""

    topic_id: UUID
    topic: str
    partitions: tuple[int, ...] = ()


class StatePartitionsValue(msgspec.Struct, frozen=True):
    """For which partitions a group has state."""

    initializing: tuple[TopicPartitions, ...] = ()
    initialized: tuple[TopicPartitions, ...] = ()
    deleting: tuple[tuple[UUID, str], ...] = ()
    """(topic id, topic name) of each."""


Value: TypeAlias = MemberValue | ShareGroupValue | TargetValue | TargetMemberValue | CurrentValue | StatePartitionsValue

# --- of share partitions ----------------------------------------------------------------------------------------------


class PartitionKey(msgspec.Struct, frozen=True):
    """A share partition."""

    group: str
    topic_id: UUID
    partition: int


class SnapshotKey(PartitionKey, frozen=True):
    """Of which share partition the snapshot is."""

    VERSION: ClassVar[int] = 0


class UpdateKey(PartitionKey, frozen=True):
    """Of which share partition the update is."""

    VERSION: ClassVar[int] = 1


class SnapshotValue(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete: int = -1
    """Records from the start offset on that are done; -1 (older than Kafka 4.2): it was not counted."""
    created_ms: int = 0
    written_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class UpdateValue(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed since the snapshot with that epoch, and since the updates before."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    """-1: it has not moved."""
    complete: int = -1
    batches: tuple[StateBatch, ...] = ()


StateKey: TypeAlias = SnapshotKey | UpdateKey
StateValue: TypeAlias = SnapshotValue | UpdateValue

# --- to bytes ---------------------------------------------------------------------------------------------------------


def encode_state_key(key: StateKey) -> bytes:
    """The key of a share partition's record."""
    writer = Writer(key.VERSION)
    writer.string(key.group)
    writer.uuid(key.topic_id)
    writer.int32(key.partition)
    return writer.done()


def encode_value(value: Value) -> bytes:
    """The value of a group's record, in version 0."""
    writer = Writer(0, flexible=True)
    match value:
        case MemberValue():
            writer.string(value.rack_id)
            writer.string(value.client_id)
            writer.string(value.client_host)
            writer.array(value.topics, writer.string)
            writer.tags()
        case ShareGroupValue():
            writer.int32(value.epoch)
            writer.int64(value.topics_hash)
            writer.tags()
        case TargetValue():
            write_target(writer, value)
        case TargetMemberValue():
            write_partitions(writer, value.partitions)
            writer.tags()
        case CurrentValue():
            writer.int32(value.epoch)
            writer.int32(value.previous_epoch)
            writer.int8(value.state)
            write_partitions(writer, value.assigned)
            writer.tags()
        case StatePartitionsValue():
            _encode_named(writer, value.initializing)
            _encode_named(writer, value.initialized)

            def topic(each: tuple[UUID, str]) -> None:
                writer.uuid(each[0])
                writer.string(each[1])
                writer.tags()

            writer.array(value.deleting, topic)
            writer.tags()
    return writer.done()


def encode_state(value: StateValue) -> bytes:
    """The value of a share partition's record, in version 0."""
    writer = Writer(0, flexible=True)
    writer.int32(value.snapshot_epoch)
    if isinstance(value, SnapshotValue):
        writer.int32(value.state_epoch)
    writer.int32(value.leader_epoch)
    writer.int64(value.start_offset)
    if isinstance(value, SnapshotValue):
        writer.int64(value.created_ms)
        writer.int64(value.written_ms)

    def batch(each: StateBatch) -> None:
        writer.int64(each.first)
        writer.int64(each.last)
        writer.int8(each.state)
        writer.int16(each.delivery_count)
        writer.tags()

    writer.array(value.batches, batch)
    writer.tags([(_COMPLETE, value.complete.to_bytes(4, "big", signed=True))] if value.complete != -1 else ())
    return writer.done()


def _encode_named(writer: Writer, topics: tuple[TopicPartitions, ...]) -> None:
    def topic(each: TopicPartitions) -> None:
        writer.uuid(each.topic_id)
        writer.string(each.topic)
        writer.array(each.partitions, writer.int32)
        writer.tags()

    writer.array(topics, topic)


# --- from bytes -------------------------------------------------------------------------------------------------------


def decode_state_key(data: bytes) -> StateKey | None:
    """Whose record of a share partition it is; None for a kind that is not known.

    Raises:
        CorruptCoordinatorRecord: the key is cut short.
    """
    reader = Reader(data)
    kinds: Mapping[int, type[SnapshotKey] | type[UpdateKey]] = {0: SnapshotKey, 1: UpdateKey}
    kind = kinds.get(reader.int16())
    return None if kind is None else kind(reader.required_string(), reader.uuid(), reader.int32())


def decode_value(key: Key, data: bytes) -> Value:
    """The value that belongs to a group's `key`.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    reader = value_reader(data)
    value: Value
    match key:
        case MemberKey():
            value = MemberValue(
                rack_id=reader.string(),
                client_id=reader.required_string(),
                client_host=reader.required_string(),
                topics=tuple(reader.array(reader.required_string) or ()),
            )
        case ShareGroupKey():
            value = ShareGroupValue(reader.int32(), reader.int64())
        case TargetKey():
            return read_target(reader)
        case TargetMemberKey():
            value = TargetMemberValue(read_partitions(reader))
        case CurrentKey():
            epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
            value = CurrentValue(epoch, previous_epoch, read_partitions(reader), state)
        case StatePartitionsKey():
            value = StatePartitionsValue(_decode_named(reader), _decode_named(reader), _decode_deleting(reader))
    reader.tags()
    return value


def decode_state(key: StateKey, data: bytes) -> StateValue:
    """The value that belongs to a share partition's `key`.

    Raises:
        CorruptCoordinatorRecord: an unknown version, cut short, or a record in a state that there is not.
    """
    reader = value_reader(data)
    snapshot_epoch = reader.int32()
    state_epoch = reader.int32() if isinstance(key, SnapshotKey) else 0
    leader_epoch, start_offset = reader.int32(), reader.int64()
    created_ms, written_ms = (reader.int64(), reader.int64()) if isinstance(key, SnapshotKey) else (0, 0)

    def batch() -> StateBatch:
        first, last, state, count = reader.int64(), reader.int64(), reader.int8(), reader.int16()
        reader.tags()
        if state not in RecordState.__members__.values() or first > last:
            raise CorruptCoordinatorRecord(f"records {first} to {last} in state {state}: there is none like that")
        return StateBatch(first, last, RecordState(state), count)

    batches = tuple(reader.array(batch) or ())
    found = reader.tags().get(_COMPLETE)
    complete = -1 if found is None else Reader(found).int32()
    if isinstance(key, UpdateKey):
        return UpdateValue(
            snapshot_epoch=snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            complete=complete,
            batches=batches,
        )
    return SnapshotValue(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        complete=complete,
        created_ms=created_ms,
        written_ms=written_ms,
        batches=batches,
    )


def _decode_named(reader: Reader) -> tuple[TopicPartitions, ...]:
    def topic() -> TopicPartitions:
        value = TopicPartitions(reader.uuid(), reader.required_string(), tuple(reader.array(reader.int32) or ()))
        reader.tags()
        return value

    return tuple(reader.array(topic) or ())


def _decode_deleting(reader: Reader) -> tuple[tuple[UUID, str], ...]:
    def topic() -> tuple[UUID, str]:
        value = reader.uuid(), reader.required_string()
        reader.tags()
        return value

    return tuple(reader.array(topic) or ())
