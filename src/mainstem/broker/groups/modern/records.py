"""What the records of the newer protocols' groups have in common.

A key is its version, which says what the record is about, and strings (int16 length, UTF-8): the group, and whom or
what in it. Values are flexible (compact lengths, tagged fields) and of version 0 up to now; what later versions add are
tags, which are skipped. A null value is a tombstone.

https://github.com/apache/kafka/tree/trunk/group-coordinator/src/main/resources/common/message
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, TypeVar
from uuid import UUID

import msgspec

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion, Reader, Writer
from mainstem.broker.groups.modern.partitions import Assignment, Owned

_MADE: Final = 0  # tag of when a target assignment was made
_EPOCHS: Final = 0  # tag of the assignment epochs of a topic or subtopology


class GroupRecordKey(msgspec.Struct, frozen=True):
    """Of which group; all fields of a key are strings."""

    group: str
    VERSION: ClassVar[int]


class MemberRecordKey(GroupRecordKey, frozen=True):
    """Of which member."""

    member_id: str


K = TypeVar("K", bound=GroupRecordKey)


def encode_key(key: GroupRecordKey) -> bytes:
    """The record's key."""
    writer = Writer(key.VERSION)
    for text in msgspec.structs.astuple(key):
        writer.string(text)
    return writer.done()


def decode_key(kinds: Mapping[int, type[K]], version: int, reader: Reader) -> K | None:
    """Whose record it is; None for a kind that is not among `kinds`, by version.

    Raises:
        CorruptCoordinatorRecord: the key is cut short.
    """
    kind = kinds.get(version)
    return None if kind is None else kind(*[reader.required_string() for _ in kind.__struct_fields__])


def value_reader(data: bytes) -> Reader:
    """At the first field of a value.

    Raises:
        CorruptCoordinatorRecord: an unknown version.
    """
    reader = Reader(data)
    version = reader.int16()
    if version != 0:
        kind = LaterVersion if version > 0 else CorruptCoordinatorRecord
        raise kind(f"a value of version {version}; version 0 is known")
    reader.flexible = True
    return reader


# --- the target assignment --------------------------------------------------------------------------------------------


class TargetValue(msgspec.Struct, frozen=True):
    """The group epoch that the target assignment was made for, and when (wall clock)."""

    epoch: int
    made_ms: int = 0


def write_target(writer: Writer, value: TargetValue) -> None:
    """With its tags."""
    writer.int32(value.epoch)
    writer.tags([(_MADE, value.made_ms.to_bytes(8, "big", signed=True))] if value.made_ms else ())


def read_target(reader: Reader) -> TargetValue:
    """With its tags."""
    epoch = reader.int32()
    made = reader.tags().get(_MADE)
    return TargetValue(epoch, 0 if made is None else Reader(made).int64())


class TargetMemberValue(msgspec.Struct, frozen=True):
    """What a member is to have in the end."""

    partitions: Assignment


# --- partitions -------------------------------------------------------------------------------------------------------


def write_partitions(writer: Writer, partitions: Assignment | Owned) -> None:
    """Topics with their partitions in order, and with the epochs of these where they have some."""

    def topic(topic_id: UUID) -> None:
        found = partitions[topic_id]
        numbers = sorted(found)
        writer.uuid(topic_id)
        writer.array(numbers, writer.int32)
        if isinstance(found, Mapping):
            write_epochs(writer, [found[number] for number in numbers])
        else:
            writer.tags()

    writer.array(list(partitions), topic)


def read_partitions(reader: Reader) -> Assignment:
    """Topics with their partitions; epochs of these are skipped."""
    return {topic_id: frozenset(found) for topic_id, found in read_owned(reader, -1).items()}


def read_owned(reader: Reader, epoch: int) -> Owned:
    """Topics with their partitions and the epochs of these: `epoch`, the member's, where there are none."""
    owned: dict[UUID, Mapping[int, int]] = {}

    def topic() -> None:
        topic_id, numbers = reader.uuid(), reader.array(reader.int32) or []
        owned[topic_id] = read_epochs(reader, numbers, epoch)

    reader.array(topic)
    return owned


def write_epochs(writer: Writer, epochs: Sequence[int]) -> None:
    """The tags of a topic or subtopology: since when a member has each of its partitions or tasks (KIP-1251)."""
    inside = Writer(None, flexible=True)
    inside.array(epochs, inside.int32)
    writer.tags([(_EPOCHS, inside.done())])


def read_epochs(reader: Reader, numbers: Sequence[int], epoch: int) -> dict[int, int]:
    """Each of `numbers` with its epoch. Records of before Kafka 4.3 have none: `epoch`, the member's, is taken."""
    epochs: list[int] | None = None
    if (data := reader.tags().get(_EPOCHS)) is not None:
        inside = Reader(data)
        inside.flexible = True
        epochs = inside.array(inside.int32)
    if epochs is None:
        return dict.fromkeys(numbers, epoch)
    if len(epochs) != len(numbers):
        raise CorruptCoordinatorRecord(f"{len(numbers)} partitions or tasks with {len(epochs)} epochs")
    return dict(zip(numbers, epochs, strict=True))
