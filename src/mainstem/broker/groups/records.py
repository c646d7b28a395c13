"""What the group coordinator stores in `__consumer_offsets`: Kafka's own records, byte for byte.

Big-endian; a string is an int16 length and UTF-8 (-1: null), bytes an int32 length and the bytes::

    OffsetCommitKey      version int16 (0 or 1) │ group string │ topic string │ partition int32
    OffsetCommitValue 4  version int16 │ offset int64 │ leader epoch int32 │ metadata compact string
                         │ commit timestamp int64 │ tagged fields: 0 topic id (16 bytes)
                      3  version int16 │ offset int64 │ leader epoch int32 │ metadata string │ commit timestamp int64
                      1  version int16 │ offset int64 │ metadata string │ commit timestamp int64
                         │ expire timestamp int64
    GroupMetadataKey     version int16 (2) │ group string
    GroupMetadataValue 3 version int16 │ protocol type string │ generation int32 │ protocol, leader nullable string
                         │ state timestamp int64 │ members: count int32, each: member id string │ instance id nullable
                         string │ client id, client host string │ rebalance, session timeout int32 │ subscription,
                         assignment bytes

Beyond what Kafka stores, a rebalance is: members without a leader are to join again, since one of them has left; where
none has an assignment, the leader is to bring it. Kafka takes either for a group at rest, until it rebalances.

A null value is a tombstone. Of an offset version 4 is written, with the topic's id, or version 1 where an old client
asked for a retention time, as Kafka does; of a group version 3; 0 to 4 are read. From version 4 on values are flexible,
and Kafka adds only tagged fields, which readers skip (KIP-915). Records of groups of the consumer protocol are in
`consumer.records`, those of share groups in `share.records`, those of streams groups in `streams.records`; keys of
other versions are left alone.

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
"""

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion, Reader, Writer
from mainstem.broker.groups.consumer import records as consumer
from mainstem.broker.groups.modern import records as modern
from mainstem.broker.groups.share import records as share
from mainstem.broker.groups.streams import records as streams

# Written by hand where every commit passes; a test holds them to the bytes of the definitions.
_KEY = Struct(">hh")
_LENGTH = Struct(">h")
_PARTITION = Struct(">i")
_VERSION_1 = Struct(">hqh")
_VERSION_3 = Struct(">hqih")
_TIME = Struct(">q")
_VERSION_4 = Struct(">hqiB")  # with the length of a short metadata, plus one
_LONG = 127  # from this length on it takes a second byte
_TOPIC_ID_FOLLOWS = b"\1\0\x10"  # one tagged field, number 0, of 16 bytes
_TAIL = Struct(">q3s16s")

_TOPIC_ID_BYTES = 16

HIGHEST_VALUE = 4
FIRST_FLEXIBLE = 4


class OffsetKey(msgspec.Struct, frozen=True, gc=False):
    """Whose committed offset a record is."""

    group: str
    topic: str
    partition: int


class GroupKey(msgspec.Struct, frozen=True, gc=False):
    """Whose membership a record is."""

    group: str


class OffsetValue(msgspec.Struct, frozen=True, gc=False):
    """One committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int = -1
    """Only where an old client (OffsetCommit 2-4) asked for it; otherwise the broker's retention decides."""
    topic_id: UUID | None = None
    """Of the topic that it was committed for, and of no later one of that name; None where it is not stored."""


class MemberValue(msgspec.Struct, frozen=True):
    """One member of a group, as it was when its assignment was stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(msgspec.Struct, frozen=True):
    """A group's membership."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberValue, ...] = ()


ModernKey: TypeAlias = consumer.Key | share.Key | streams.Key
ModernValue: TypeAlias = consumer.Value | share.Value | streams.Value
Key: TypeAlias = OffsetKey | GroupKey | ModernKey
Value: TypeAlias = OffsetValue | GroupValue | ModernValue

_KINDS: Final = {**consumer.KINDS, **share.KINDS, **streams.KINDS}

KEY_VERSIONS: Final = frozenset({0, 1, 2, *_KINDS})
"""Of keys that are known."""


def encode_key(key: Key) -> bytes:
    """The record's key."""
    if not isinstance(key, OffsetKey | GroupKey):
        return modern.encode_key(key)
    group = key.group.encode()
    if isinstance(key, GroupKey):
        return _KEY.pack(2, len(group)) + group
    topic = key.topic.encode()
    return b"".join((_KEY.pack(1, len(group)), group, _LENGTH.pack(len(topic)), topic, _PARTITION.pack(key.partition)))


def encode_value(value: Value) -> bytes:
    """The record's value."""
    if isinstance(value, OffsetValue):
        return encode_offset(value)
    if isinstance(value, share.Value):
        return share.encode_value(value)
    if isinstance(value, streams.Value):
        return streams.encode_value(value)
    return encode_group(value) if isinstance(value, GroupValue) else consumer.encode_value(value)


def decode_key(data: bytes) -> Key | None:
    """Whose record it is; None for a kind we do not know.

    Raises:
        CorruptCoordinatorRecord: the key is cut short.
    """
    if (usual := _usual_offset_key(data)) is not None:
        return usual
    reader = Reader(data)
    version = reader.int16()
    if version in (0, 1):
        return OffsetKey(reader.required_string(), reader.required_string(), reader.int32())
    if version == 2:
        return GroupKey(reader.required_string())
    return modern.decode_key(_KINDS, version, reader)


def encode_offset(value: OffsetValue) -> bytes:
    """A committed offset, in version 4, or in 1 if it has a time of its own to expire at, or 3 without topic id."""
    metadata = value.metadata.encode()
    if value.expires_ms < 0:
        if value.topic_id is not None:
            return _encode_offset_4(value, metadata, value.topic_id)
        head = _VERSION_3.pack(3, value.offset, value.leader_epoch, len(metadata))
        return head + metadata + _TIME.pack(value.committed_ms)
    head = _VERSION_1.pack(1, value.offset, len(metadata))
    return head + metadata + _TIME.pack(value.committed_ms) + _TIME.pack(value.expires_ms)


def _encode_offset_4(value: OffsetValue, metadata: bytes, topic_id: UUID) -> bytes:
    if len(metadata) < _LONG:
        head = _VERSION_4.pack(4, value.offset, value.leader_epoch, len(metadata) + 1)
        return head + metadata + _TAIL.pack(value.committed_ms, _TOPIC_ID_FOLLOWS, topic_id.bytes)
    writer = Writer(4, flexible=True)
    writer.int64(value.offset)
    writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.committed_ms)
    writer.tags([(0, topic_id.bytes)])
    return writer.done()


def decode_offset(data: bytes) -> OffsetValue:
    """The committed offset in `data`, of any version Kafka ever wrote.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    if (usual := _usual_offset(data)) is not None:
        return usual
    reader = Reader(data)
    version = _value_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.required_string()
    committed_ms = reader.int64()
    expires_ms = reader.int64() if version == 1 else -1
    topic_id = reader.tags().get(0)
    return OffsetValue(
        offset, leader_epoch, metadata, committed_ms, expires_ms, None if topic_id is None else _topic_id(topic_id)
    )


@lru_cache(4096)
def _topic_id(data: bytes) -> UUID | None:
    """As it is stored: zeros stand for none.

    Raises:
        CorruptCoordinatorRecord: it has not 16 bytes.
    """
    if len(data) != _TOPIC_ID_BYTES:
        raise CorruptCoordinatorRecord(f"topic id: expected 16 bytes, found {len(data)}")
    return UUID(bytes=data) if any(data) else None


def _usual_offset_key(data: bytes) -> OffsetKey | None:
    """As `encode_key` writes it; None: it has to be looked at with care.

    A start reads one for each offset there is, and field by field that takes three times as long.
    """
    try:
        version, length = _KEY.unpack_from(data)
        group_end = _KEY.size + length
        (topic_length,) = _LENGTH.unpack_from(data, group_end)
        topic_end = group_end + _LENGTH.size + topic_length
        if version != 1 or length < 0 or topic_length < 0 or len(data) != topic_end + _PARTITION.size:
            return None
        group, topic = data[_KEY.size : group_end].decode(), data[group_end + _LENGTH.size : topic_end].decode()
        return OffsetKey(group, topic, _PARTITION.unpack_from(data, topic_end)[0])
    except (StructError, UnicodeDecodeError):
        return None


def _usual_offset(data: bytes) -> OffsetValue | None:
    """As `encode_offset` writes it in version 4 with little metadata, or in 3; None: as above."""
    try:
        if data[:2] == b"\0\4":
            _, offset, leader_epoch, length = _VERSION_4.unpack_from(data)
            end = _VERSION_4.size + length - 1
            if not 0 < length <= _LONG or len(data) != end + _TAIL.size:
                return None
            committed_ms, follows, topic_id = _TAIL.unpack_from(data, end)
            if follows != _TOPIC_ID_FOLLOWS:
                return None
            metadata = data[_VERSION_4.size : end].decode()
            return OffsetValue(offset, leader_epoch, metadata, committed_ms, -1, _topic_id(topic_id))
        version, offset, leader_epoch, length = _VERSION_3.unpack_from(data)
        end = _VERSION_3.size + length
        if version != 3 or length < 0 or len(data) != end + _TIME.size:
            return None
        metadata = data[_VERSION_3.size : end].decode() if length else ""
        return OffsetValue(offset, leader_epoch, metadata, _TIME.unpack_from(data, end)[0])
    except (StructError, UnicodeDecodeError):
        return None


def encode_group(value: GroupValue) -> bytes:
    """A group's membership, in version 3."""
    writer = Writer(3)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.state_since_ms)

    def member(each: MemberValue) -> None:
        writer.string(each.member_id)
        writer.string(each.instance_id)
        writer.string(each.client_id)
        writer.string(each.client_host)
        writer.int32(each.rebalance_timeout_ms)
        writer.int32(each.session_timeout_ms)
        writer.blob(each.subscription)
        writer.blob(each.assignment)

    writer.array(value.members, member)
    return writer.done()


def decode_group(data: bytes) -> GroupValue:
    """The membership in `data`, of any version Kafka ever wrote.

    Raises:
        CorruptCoordinatorRecord: an unknown version, or cut short.
    """
    reader = Reader(data)
    version = _value_version(reader)

    def member() -> MemberValue:
        member_id = reader.required_string()
        instance_id = reader.string() if version >= 3 else None
        client_id, client_host = reader.required_string(), reader.required_string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        subscription, assignment = reader.blob(), reader.blob()
        reader.tags()
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = session_timeout_ms
        return MemberValue(
            member_id,
            instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms,
            session_timeout_ms,
            subscription,
            assignment,
        )

    protocol_type, generation = reader.required_string(), reader.int32()
    protocol, leader = reader.string(), reader.string()
    state_since_ms = reader.int64() if version >= 2 else -1
    members = tuple(reader.array(member) or ())
    reader.tags()
    return GroupValue(protocol_type, generation, protocol, leader, state_since_ms, members)


def _value_version(reader: Reader) -> int:
    version = reader.int16()
    if not 0 <= version <= HIGHEST_VALUE:
        kind = LaterVersion if version > HIGHEST_VALUE else CorruptCoordinatorRecord
        raise kind(f"a value of version {version}; versions 0 to {HIGHEST_VALUE} are known")
    reader.flexible = version >= FIRST_FLEXIBLE
    return version
