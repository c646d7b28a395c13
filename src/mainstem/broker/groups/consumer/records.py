"""What a group of the consumer protocol keeps in `__consumer_offsets`: Kafka's own records, byte for byte.

How keys and values are built is in `modern.records`; what the records are about, by the version of the key::

    3  group                 the group: its epoch, and the hash of what its topics were when it was last assigned
    5  group │ member        a member: who it is and what it is subscribed to
    6  group                 the target assignment: its epoch and when it was made
    7  group │ member        a member's part of the target assignment
    8  group │ member        a member's current assignment: its epoch, what it has and what it is to give up
    16 group │ expression    the topics that a subscribed regular expression matches

Key 4, the topics in the place of their hash, is older than Kafka 4.1: it is left alone.

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
"""

import enum
from collections.abc import Mapping
from typing import ClassVar, Final, TypeAlias

import msgspec

from mainstem.broker.fields import Reader, Writer
from mainstem.broker.groups.modern.partitions import Owned
from mainstem.broker.groups.modern.records import (
    GroupRecordKey,
    MemberRecordKey,
    TargetMemberValue,
    TargetValue,
    read_owned,
    read_partitions,
    read_target,
    value_reader,
    write_partitions,
    write_target,
)

_CLASSIC: Final = 0  # tag of what a member of the classic protocol has said
_HASH: Final = 0


class MemberState(enum.IntEnum):
    """How far a member is on its way to its part of the target assignment; the numbers are stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions first, and has not yet said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It has given up what it had to; others have not yet given up what it is to get."""
    UNKNOWN = 127


# --- keys -------------------------------------------------------------------------------------------------------------


class ConsumerGroupKey(GroupRecordKey, frozen=True):
    """Of which group."""

    VERSION: ClassVar[int] = 3


class MemberKey(MemberRecordKey, frozen=True):
    """Of which member."""

    VERSION: ClassVar[int] = 5


class TargetKey(GroupRecordKey, frozen=True):
    """Of which group's target assignment."""

    VERSION: ClassVar[int] = 6


class TargetMemberKey(MemberRecordKey, frozen=True):
    """Of whose part of the target assignment."""

    VERSION: ClassVar[int] = 7


class CurrentKey(MemberRecordKey, frozen=True):
    """Of what which member has."""

    VERSION: ClassVar[int] = 8


class RegexKey(GroupRecordKey, frozen=True):
    """Of which expression."""

    expression: str
    VERSION: ClassVar[int] = 16


Key: TypeAlias = ConsumerGroupKey | MemberKey | TargetKey | TargetMemberKey | CurrentKey | RegexKey

KINDS: Final[Mapping[int, type[Key]]] = {
    kind.VERSION: kind for kind in (ConsumerGroupKey, MemberKey, TargetKey, TargetMemberKey, CurrentKey, RegexKey)
}
"""Of keys, by version."""

# --- values -----------------------------------------------------------------------------------------------------------


class ConsumerGroupValue(msgspec.Struct, frozen=True):
    """The group's epoch: it grows with every change of members, subscriptions or topics."""

    epoch: int
    topics_hash: int = 0


class ClassicProtocols(msgspec.Struct, frozen=True):
    """What a member of the classic protocol has said when it joined a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) of each."""


class MemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member: who it is and what it is subscribed to."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str = ""
    """None is kept as "", as in Kafka."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None
    """None: the member uses the consumer protocol."""


class CurrentValue(msgspec.Struct, frozen=True):
    """What a member has now."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Owned
    revoking: Owned
    """What it was told to give up, and has not yet said that it did."""


class RegexValue(msgspec.Struct, frozen=True):
    """The topics that an expression matched, when the topics were of that version."""

    topics: tuple[str, ...]
    version: int
    resolved_ms: int


Value: TypeAlias = ConsumerGroupValue | MemberValue | TargetValue | TargetMemberValue | CurrentValue | RegexValue

# --- to bytes ---------------------------------------------------------------------------------------------------------


def encode_value(value: Value) -> bytes:
    """The record's value, in version 0."""
    writer = Writer(0, flexible=True)
    match value:
        case ConsumerGroupValue():
            writer.int32(value.epoch)
            writer.tags([(_HASH, value.topics_hash.to_bytes(8, "big", signed=True))] if value.topics_hash else ())
        case MemberValue():
            _encode_member(writer, value)
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
            write_partitions(writer, value.revoking)
            writer.tags()
        case RegexValue():
            writer.array(value.topics, writer.string)
            writer.int64(value.version)
            writer.int64(value.resolved_ms)
            writer.tags()
    return writer.done()


def _encode_member(writer: Writer, value: MemberValue) -> None:
    writer.string(value.instance_id)
    writer.string(value.rack_id)
    writer.string(value.client_id)
    writer.string(value.client_host)
    writer.array(value.topics, writer.string)
    writer.string(value.regex)
    writer.int32(value.rebalance_timeout_ms)
    writer.string(value.assignor)
    writer.tags([] if value.classic is None else [(_CLASSIC, _encode_classic(value.classic))])


def _encode_classic(classic: ClassicProtocols) -> bytes:
    writer = Writer(None, flexible=True)
    writer.int8(1)  # it is not null
    writer.int32(classic.session_timeout_ms)

    def protocol(each: tuple[str, bytes]) -> None:
        name, metadata = each
        writer.string(name)
        writer.blob(metadata)
        writer.tags()

    writer.array(classic.protocols, protocol)
    writer.tags()
    return writer.done()


# --- from bytes -------------------------------------------------------------------------------------------------------


def decode_value(key: Key, data: bytes) -> Value:
    """The value that belongs to `key`.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    reader = value_reader(data)
    match key:
        case ConsumerGroupKey():
            epoch = reader.int32()
            found = reader.tags().get(_HASH)
            return ConsumerGroupValue(epoch, 0 if found is None else Reader(found).int64())
        case MemberKey():
            return _decode_member(reader)
        case TargetKey():
            return read_target(reader)
        case TargetMemberKey():
            target = TargetMemberValue(read_partitions(reader))
            reader.tags()
            return target
        case CurrentKey():
            return _decode_current(reader)
        case RegexKey():
            topics = tuple(reader.array(reader.required_string) or ())
            value = RegexValue(topics, reader.int64(), reader.int64())
            reader.tags()
            return value


def _decode_member(reader: Reader) -> MemberValue:
    instance_id, rack_id = reader.string(), reader.string()
    client_id, client_host = reader.required_string(), reader.required_string()
    topics = tuple(reader.array(reader.required_string) or ())
    regex = reader.string() or ""
    rebalance_timeout_ms = reader.int32()
    assignor = reader.string()
    classic = reader.tags().get(_CLASSIC)
    return MemberValue(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=topics,
        regex=regex,
        rebalance_timeout_ms=rebalance_timeout_ms,
        assignor=assignor,
        classic=None if classic is None else _decode_classic(classic),
    )


def _decode_classic(data: bytes) -> ClassicProtocols | None:
    reader = Reader(data)
    reader.flexible = True
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()

    def protocol() -> tuple[str, bytes]:
        name, metadata = reader.required_string(), reader.blob()
        reader.tags()
        return name, metadata

    protocols = tuple(reader.array(protocol) or ())
    reader.tags()
    return ClassicProtocols(session_timeout_ms, protocols)


def _decode_current(reader: Reader) -> CurrentValue:
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    assigned, revoking = read_owned(reader, epoch), read_owned(reader, epoch)
    reader.tags()
    known = state in MemberState.__members__.values()
    return CurrentValue(epoch, previous_epoch, MemberState(state) if known else MemberState.UNKNOWN, assigned, revoking)
