"""What a group of the consumer protocol keeps in `__consumer_offsets`: Kafka's own records, byte for byte.

A key is its version, which says what the record is about, and strings (int16 length, UTF-8)::

    3  group                 the group: its epoch, and the hash of what its topics were when it was last assigned
    5  group │ member        a member: who it is and what it is subscribed to
    6  group                 the target assignment: its epoch and when it was made
    7  group │ member        a member's part of the target assignment
    8  group │ member        a member's current assignment: its epoch, what it has and what it is to give up
    16 group │ expression    the topics that a subscribed regular expression matches

Values are flexible (compact lengths, tagged fields) and of version 0 up to now; what later versions add are tags, which
are skipped. A null value is a tombstone. Key 4, the topics in the place of their hash, is older than Kafka 4.1: it is
left alone.

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
"""

import enum
from collections.abc import Mapping
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion, Reader, Writer
from mainstem.broker.groups.modern.partitions import Assignment, Owned

_EPOCHS: Final = 0  # tag of a topic's assignment epochs
_CLASSIC: Final = 0  # tag of what a member of the classic protocol has said
_HASH: Final = 0
_MADE: Final = 0


class MemberState(enum.IntEnum):
    """How far a member is on its way to its part of the target assignment; the numbers are stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions first, and has not yet said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It has given up what it had to; others have not yet given up what it is to get."""
    UNKNOWN = 127


# --- keys -------------------------------------------------------------------------------------------------------------


class ConsumerGroupKey(msgspec.Struct, frozen=True):
    """Of which group."""

    group: str
    VERSION: ClassVar[int] = 3


class MemberKey(msgspec.Struct, frozen=True):
    """Of which member."""

    group: str
    member_id: str
    VERSION: ClassVar[int] = 5


class TargetKey(msgspec.Struct, frozen=True):
    """Of which group's target assignment."""

    group: str
    VERSION: ClassVar[int] = 6


class TargetMemberKey(msgspec.Struct, frozen=True):
    """Of whose part of the target assignment."""

    group: str
    member_id: str
    VERSION: ClassVar[int] = 7


class CurrentKey(msgspec.Struct, frozen=True):
    """Of what which member has."""

    group: str
    member_id: str
    VERSION: ClassVar[int] = 8


class RegexKey(msgspec.Struct, frozen=True):
    """Of which expression."""

    group: str
    expression: str
    VERSION: ClassVar[int] = 16


Key: TypeAlias = ConsumerGroupKey | MemberKey | TargetKey | TargetMemberKey | CurrentKey | RegexKey

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


class TargetValue(msgspec.Struct, frozen=True):
    """The group epoch that the target assignment was made for, and when (wall clock)."""

    epoch: int
    made_ms: int = 0


class TargetMemberValue(msgspec.Struct, frozen=True):
    """What a member is to have in the end."""

    partitions: Assignment


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


def encode_key(key: Key) -> bytes:
    """The record's key."""
    writer = Writer(key.VERSION)
    writer.string(key.group)
    if isinstance(key, RegexKey):
        writer.string(key.expression)
    elif isinstance(key, MemberKey | TargetMemberKey | CurrentKey):
        writer.string(key.member_id)
    return writer.done()


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
            writer.int32(value.epoch)
            writer.tags([(_MADE, value.made_ms.to_bytes(8, "big", signed=True))] if value.made_ms else ())
        case TargetMemberValue():
            _encode_partitions(writer, value.partitions)
            writer.tags()
        case CurrentValue():
            writer.int32(value.epoch)
            writer.int32(value.previous_epoch)
            writer.int8(value.state)
            _encode_partitions(writer, value.assigned)
            _encode_partitions(writer, value.revoking)
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


def _encode_partitions(writer: Writer, partitions: Assignment | Owned) -> None:
    """Topics with their partitions in order, and with the epochs of these where they have some."""

    def topic(topic_id: UUID) -> None:
        found = partitions[topic_id]
        numbers = sorted(found)
        writer.uuid(topic_id)
        writer.array(numbers, writer.int32)
        if not isinstance(found, Mapping):
            writer.tags()
            return
        inside = Writer(None, flexible=True)
        inside.array([found[number] for number in numbers], inside.int32)
        writer.tags([(_EPOCHS, inside.done())])

    writer.array(list(partitions), topic)


# --- from bytes -------------------------------------------------------------------------------------------------------


def decode_key(version: int, reader: Reader) -> Key | None:
    """Whose record it is; None for a kind that is not known here.

    Raises:
        CorruptCoordinatorRecord: the key is cut short.
    """
    match version:
        case ConsumerGroupKey.VERSION:
            return ConsumerGroupKey(reader.required_string())
        case MemberKey.VERSION:
            return MemberKey(reader.required_string(), reader.required_string())
        case TargetKey.VERSION:
            return TargetKey(reader.required_string())
        case TargetMemberKey.VERSION:
            return TargetMemberKey(reader.required_string(), reader.required_string())
        case CurrentKey.VERSION:
            return CurrentKey(reader.required_string(), reader.required_string())
        case RegexKey.VERSION:
            return RegexKey(reader.required_string(), reader.required_string())
    return None


def decode_value(key: Key, data: bytes) -> Value:
    """The value that belongs to `key`.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    reader = Reader(data)
    version = reader.int16()
    if version != 0:
        kind = LaterVersion if version > 0 else CorruptCoordinatorRecord
        raise kind(f"a value of version {version}; version 0 is known")
    reader.flexible = True
    match key:
        case ConsumerGroupKey():
            epoch = reader.int32()
            return ConsumerGroupValue(epoch, _int64(reader.tags().get(_HASH)))
        case MemberKey():
            return _decode_member(reader)
        case TargetKey():
            epoch = reader.int32()
            return TargetValue(epoch, _int64(reader.tags().get(_MADE)))
        case TargetMemberKey():
            partitions = _decode_partitions(reader, -1)
            reader.tags()
            return TargetMemberValue({topic_id: frozenset(found) for topic_id, found in partitions.items()})
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
    assigned, revoking = _decode_partitions(reader, epoch), _decode_partitions(reader, epoch)
    reader.tags()
    known = state in MemberState.__members__.values()
    return CurrentValue(epoch, previous_epoch, MemberState(state) if known else MemberState.UNKNOWN, assigned, revoking)


def _decode_partitions(reader: Reader, epoch: int) -> Owned:
    """Records of before Kafka 4.3 have no epochs of single partitions: the member's, `epoch`, is taken for them."""
    owned: dict[UUID, dict[int, int]] = {}

    def topic() -> None:
        topic_id = reader.uuid()
        numbers = reader.array(reader.int32) or []
        epochs = [epoch] * len(numbers)
        if (data := reader.tags().get(_EPOCHS)) is not None:
            inside = Reader(data)
            inside.flexible = True
            found = inside.array(inside.int32)
            epochs = epochs if found is None else found
        if len(epochs) != len(numbers):
            raise CorruptCoordinatorRecord(f"{len(numbers)} partitions with {len(epochs)} epochs")
        owned[topic_id] = dict(zip(numbers, epochs, strict=True))

    reader.array(topic)
    return owned


def _int64(data: bytes | None) -> int:
    if data is None:
        return 0
    return Reader(data).int64()
