"""The record batch's header: everything a broker needs to keep a batch without looking inside.

Format 2 (https://kafka.apache.org/documentation/#recordbatch), big-endian, 61 bytes before the records::

     0        8       12          16    17   21          23          27            35           43          51       53       57      61
     ├────────┼────────┼───────────┼─────┼────┼───────────┼───────────┼─────────────┼────────────┼───────────┼────────┼────────┼───────┤
     │ base   │ length │ leader    │magic│crc │attributes │last offset│ base        │ max        │ producer  │producer│ base   │ count │ records…
     │ offset │ (after)│ epoch     │ = 2 │    │           │delta      │ timestamp   │ timestamp  │ id        │epoch   │sequence│       │
     └────────┴────────┴───────────┴─────┴────┴───────────┴───────────┴─────────────┴────────────┴───────────┴────────┴────────┴───────┘
                                              └──────────────────────── the CRC-32C covers this, to the batch's end ────────────────────┘

Base offset and leader epoch lie outside the CRC: the log assigns both without touching anything else.
"""  # noqa: W505 - the picture is as wide as the header

from collections.abc import Iterator
from struct import Struct

import msgspec
from crc32c import crc32c

from mainstem.records.errors import CorruptBatch

HEADER = Struct(">qiibIhiqqqhii")
CRC_FROM = 21
MAGIC_AT = 16
LOW_ATTRIBUTES = 22  # the byte that has all of them so far
CRC = Struct(">I")
OFFSET_AND_LENGTH = Struct(">qi")
PREFIX = Struct(">qii")  # base offset, length, leader epoch: what the log assigns (the length stays as it is)
BEFORE_LENGTH_COUNTS = 12  # `length` counts what follows itself

COMPRESSION_MASK = 0x07
TIMESTAMP_IS_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
HAS_DELETE_HORIZON = 0x40

MAX_SEQUENCE = 0x7FFF_FFFF

Bytes = bytes | bytearray | memoryview


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Every field of the header, and the batch's size."""

    base_offset: int
    last_offset: int
    """Inclusive."""
    size: int
    """Bytes of the whole batch, header included."""
    leader_epoch: int
    crc: int
    attributes: int
    base_timestamp: int
    """Milliseconds since 1970, UTC; with `has_delete_horizon`, the time from which tombstones may go."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_offset_delta(self) -> int:
        return self.last_offset - self.base_offset

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_append_time(self) -> bool:
        """The timestamps are the log's (`LogAppendTime`), not the producer's."""
        return bool(self.attributes & TIMESTAMP_IS_APPEND_TIME)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & HAS_DELETE_HORIZON)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences start again at 0 after 2**31 - 1. -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) & MAX_SEQUENCE


def decode_header(data: Bytes, position: int = 0) -> BatchHeader:
    """Check and decode the batch that starts at byte `position`; the records themselves are not decoded.

    Raises:
        CorruptBatch: cut short, not magic 2, or its CRC does not match.
    """
    if len(data) - position < HEADER.size:
        raise CorruptBatch(f"byte {position}: a batch header is {HEADER.size} bytes, found {len(data) - position}")
    header = unpack_header(data, position)
    end, magic = position + header.size, data[position + MAGIC_AT]
    whole = position + HEADER.size <= end <= len(data)
    if magic != 2 or not whole or crc32c(memoryview(data)[position + CRC_FROM : end]) != header.crc:
        raise CorruptBatch(
            f"byte {position}: magic {magic}, length {header.size - BEFORE_LENGTH_COUNTS}: cut short, unknown format or"
            " bad CRC"
        )
    if header.last_offset < header.base_offset or header.count < 0:
        raise CorruptBatch(
            f"byte {position}: last offset delta {header.last_offset_delta} and record count {header.count} must not be"
            " negative"
        )
    return header


def unpack_header(data: Bytes, position: int = 0) -> BatchHeader:
    """Decode the header at byte `position`, unchecked: the batch need not be there."""
    (
        base,
        length,
        leader_epoch,
        _,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    ) = HEADER.unpack_from(data, position)
    return BatchHeader(
        base,
        base + delta,
        BEFORE_LENGTH_COUNTS + length,
        leader_epoch,
        crc,
        attributes,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


def iter_headers(data: Bytes, position: int = 0) -> Iterator[BatchHeader]:
    """The header of every batch in `data`, in order; each is checked.

    Raises:
        CorruptBatch: at the first batch that does not check out, also a partial one at the end.
    """
    while position < len(data):
        header = decode_header(data, position)
        yield header
        position += header.size


class Span(msgspec.Struct, frozen=True, gc=False):
    """Where a batch lies, and its offsets: what a read needs."""

    position: int
    end: int
    base_offset: int
    last_offset: int


_SPAN = Struct(">qi11xi")  # base offset, length, then the last offset delta at byte 23


def iter_spans(data: Bytes, position: int = 0) -> Iterator[Span]:
    """The whole batches in `data`, without checking their CRC; a partial one at the end is left out.

    For bytes that were checked when they were appended. Stops at what cannot be a batch.
    """
    size = len(data)
    while size - position >= HEADER.size:
        base, length, delta = _SPAN.unpack_from(data, position)
        end = position + BEFORE_LENGTH_COUNTS + length
        if end > size or length < HEADER.size - BEFORE_LENGTH_COUNTS:
            return
        yield Span(position, end, base, base + delta)
        position = end


def decode_span(header: Bytes, position: int) -> Span | None:
    """The span of a batch that begins at `position` of something else, by its header alone; None: it cannot be one."""
    base, length, delta = _SPAN.unpack_from(header)
    whole = length >= HEADER.size - BEFORE_LENGTH_COUNTS and delta >= 0
    return Span(position, position + BEFORE_LENGTH_COUNTS + length, base, base + delta) if whole else None


def set_append_time(batch: bytearray, timestamp: int) -> None:
    """Make `timestamp` the time of every record of the one batch in `batch`: `LogAppendTime`.

    Attributes and maximum timestamp are covered by the CRC, which is computed anew.
    """
    attributes = int.from_bytes(batch[21:23], "big") | TIMESTAMP_IS_APPEND_TIME
    batch[21:23] = attributes.to_bytes(2, "big")
    batch[35:43] = timestamp.to_bytes(8, "big", signed=True)
    CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
