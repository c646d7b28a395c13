"""Fetch, the hot path: the answer is encoded by hand, beside kio; a test holds both to the same bytes.

    answer 4-18   throttle time | 7: code, session id | [topic: name (13: id) | [partition: index | code
                  | high watermark | last stable offset | 5: log start offset | [aborted:
                  producer id, first offset] | 11: preferred replica
                  | records | 12: tags: 0 diverging epoch, 1 current leader] | 12: tags] | 12: tags

From version 12 on lengths are compact and structs end in tags. Records are never copied here: the body is a list of
chunks, and each partition's records are chunks of their own, on their way from the file to the socket.
"""

from collections.abc import Sequence, Sized
from struct import Struct
from typing import Any, Final
from uuid import UUID

import msgspec

from mainstem.wire.errors import Code
from mainstem.wire.fields import INT16, INT32
from mainstem.wire.writing import write_length, write_varint

API_KEY: Final = 1
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13

_HEAD_4: Final = Struct(">i")
_HEAD_7: Final = Struct(">ihi")
_PARTITION_4: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_DIVERGING: Final = Struct(">BBiqB")  # tag, size, epoch, end offset, no tags
_LEADER: Final = Struct(">BBiiB")  # tag, size, leader id, leader epoch, no tags


class FetchedPartition(msgspec.Struct):
    """What one partition answers; `aborted` is None for readers of uncommitted records."""

    index: int
    code: int = Code.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    records: Sequence[Sized] = ()
    """In pieces, which are sent one after the other: bytes, or what stands for bytes of a file."""
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return sum(map(len, self.records))


class FetchedTopic(msgspec.Struct):
    """The partitions of one topic; it is named by `name`, or by `topic_id` from version 13 on."""

    name: str
    topic_id: UUID | None
    partitions: list[FetchedPartition]


def encode(version: int, topics: Sequence[FetchedTopic], *, code: int = 0, session_id: int = 0) -> list[Any]:
    """The body of the answer, in chunks."""
    flexible = version >= FIRST_FLEXIBLE
    chunks: list[Any] = []
    buffer = bytearray(_HEAD_7.pack(0, code, session_id) if version >= 7 else _HEAD_4.pack(0))
    write_length(buffer, len(topics), flexible)
    for topic in topics:
        if version >= FIRST_WITH_TOPIC_IDS:
            buffer += topic.topic_id.bytes if topic.topic_id is not None else bytes(16)
        else:
            name = topic.name.encode()
            if flexible:
                write_varint(buffer, len(name) + 1)
            else:
                buffer += INT16.pack(len(name))
            buffer += name
        write_length(buffer, len(topic.partitions), flexible)
        for partition in topic.partitions:
            _partition_head(buffer, version, flexible, partition)
            if partition.records:
                chunks.append(buffer)
                chunks += partition.records
                buffer = bytearray()
            if flexible:
                _partition_tags(buffer, partition)
        if flexible:
            buffer.append(0)
    if flexible:
        buffer.append(0)
    chunks.append(buffer)
    return chunks


def _partition_head(buffer: bytearray, version: int, flexible: bool, partition: FetchedPartition) -> None:
    if version >= 5:
        buffer += _PARTITION_5.pack(
            partition.index,
            partition.code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        buffer += _PARTITION_4.pack(
            partition.index, partition.code, partition.high_watermark, partition.last_stable_offset
        )
    if partition.aborted is None:
        buffer += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        write_length(buffer, len(partition.aborted), flexible)
        for producer_id, first_offset in partition.aborted:
            buffer += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                buffer.append(0)
    if version >= 11:
        buffer += b"\xff\xff\xff\xff"  # preferred read replica: none
    if flexible:
        write_varint(buffer, partition.size + 1)
    else:
        buffer += INT32.pack(partition.size)


def _partition_tags(buffer: bytearray, partition: FetchedPartition) -> None:
    diverging, leader = partition.diverging_epoch, partition.current_leader
    if diverging is None and leader is None:
        buffer.append(0)
        return
    buffer.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        buffer += _DIVERGING.pack(0, 13, diverging[0], diverging[1], 0)
    if leader is not None:
        buffer += _LEADER.pack(1, 9, leader[0], leader[1], 0)
