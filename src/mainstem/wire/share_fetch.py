"""ShareFetch (KIP-932): the answer is encoded by hand beside kio, as Fetch's; a test holds both to the same bytes.

    answer 1-2    throttle time │ code │ message │ lock duration │ [topic id: [partition: index │ code │ message
                  │ code and message of the acknowledgement │ leader id, leader epoch, tags │ records
                  │ [acquired: first, last offset, deliveries, tags] │ tags] │ tags] │ [endpoints] │ tags

Lengths are compact. Records are chunks of their own, on their way from the file to the socket, and are never copied.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final
from uuid import UUID

import msgspec

from mainstem.wire.errors import Code
from mainstem.wire.writing import write_varint

API_KEY: Final = 78

_HEAD: Final = Struct(">ihbi")  # throttle time, code, no message, lock duration
_PARTITION: Final = Struct(">ihb")  # index, code, no message
_ACKNOWLEDGED: Final = Struct(">h")
_LEADER: Final = Struct(">iib")
_ACQUIRED: Final = Struct(">qqhb")


class SharedPartition(msgspec.Struct):
    """What one partition answers."""

    index: int
    code: int = Code.none
    acknowledge_code: int = Code.none
    acknowledge_message: str | None = None
    records: Sequence[bytes | memoryview] = ()
    """In pieces, which are sent one after the other."""
    acquired: Sequence[tuple[int, int, int]] = ()
    """First and last offset of records that the member has got (both inclusive), and how often they were delivered."""

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return sum(map(len, self.records))


def encode(topics: Sequence[tuple[UUID, Sequence[SharedPartition]]], *, lock_ms: int, code: int = 0) -> list[Any]:
    """The body of the answer, in chunks; of versions 1 and 2, which are alike."""
    chunks: list[Any] = []
    buffer = bytearray(_HEAD.pack(0, code, 0, lock_ms))
    write_varint(buffer, len(topics) + 1)
    for topic_id, partitions in topics:
        buffer += topic_id.bytes
        write_varint(buffer, len(partitions) + 1)
        for partition in partitions:
            _head(buffer, partition)
            if partition.records:
                chunks.append(buffer)
                chunks += partition.records
                buffer = bytearray()
            write_varint(buffer, len(partition.acquired) + 1)
            for each in partition.acquired:
                buffer += _ACQUIRED.pack(*each, 0)
            buffer.append(0)
        buffer.append(0)
    buffer += b"\x01\x00"  # no endpoints of other leaders, no tags
    chunks.append(buffer)
    return chunks


def _head(buffer: bytearray, partition: SharedPartition) -> None:
    buffer += _PARTITION.pack(partition.index, partition.code, 0)
    buffer += _ACKNOWLEDGED.pack(partition.acknowledge_code)
    if partition.acknowledge_message is None:
        buffer.append(0)
    else:
        message = partition.acknowledge_message.encode()
        write_varint(buffer, len(message) + 1)
        buffer += message
    buffer += _LEADER.pack(-1, -1, 0)  # Kafka's 0 makes franz-go look for a broker 0 after an error
    write_varint(buffer, partition.size + 1)
