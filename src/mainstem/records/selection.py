"""A batch without some of its records: what stays keeps its bytes, its offset and its time."""

import msgspec

from mainstem.records.batch import COMPRESSION_MASK, HAS_DELETE_HORIZON, BatchHeader
from mainstem.records.errors import CorruptRecords
from mainstem.records.record import assemble_batch, check_deltas, read_varint, varint


def select(header: BatchHeader, data: bytes, numbers: list[int], horizon: int | None = None) -> bytes:
    """The batch with these of its records: at least one, by their numbers from 0, rising.

    `data` is the records' section, decompressed. With a `horizon` (KIP-534) the timestamps are counted from it.

    Raises:
        CorruptRecords: it holds something else than that, or a time that is none.
    """
    base = header.base_timestamp
    try:
        pieces, latest = _cut_out(header, data, numbers, None if horizon is None else base - horizon)
    except IndexError:
        raise CorruptRecords(f"offset {header.base_offset}: a record is cut short") from None
    return assemble_batch(
        msgspec.structs.replace(
            header,
            attributes=header.attributes | (0 if horizon is None else HAS_DELETE_HORIZON),
            base_timestamp=base if horizon is None else horizon,
            max_timestamp=header.max_timestamp if header.has_append_time else base + latest,
            count=len(numbers),
        ),
        b"".join(pieces),
    )


def _cut_out(header: BatchHeader, data: bytes, numbers: list[int], moved_by: int | None) -> tuple[list[bytes], int]:
    """The records with these numbers, their times moved, and the latest timestamp delta that they had.

    Numbers of one or two bytes, which nearly all are, are read here: a call for each took most of the time.
    """
    pieces: list[bytes] = []
    deltas: list[int] = []
    position = next_number = 0
    for number in numbers:
        while True:
            start = position
            if (byte := data[position]) < 0x80:
                position += 1
                end = position + (byte >> 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2
                end = position + ((byte & 0x7F | second << 7) >> 1)
            else:
                length, position = read_varint(data, position)
                end = position + length
            if end <= position:  # also a length below 0
                raise CorruptRecords(f"offset {header.base_offset}: a record of no bytes at {start}")
            next_number += 1
            if next_number > number:
                break
            position = end
        if (byte := data[position + 1]) < 0x80:
            delta, position = (byte >> 1) ^ -(byte & 1), position + 2
        else:
            delta, position = read_varint(data, position + 1)
        deltas.append(delta)
        if end > len(data):
            raise CorruptRecords(f"offset {header.base_offset}: a record at {start} is cut short")
        if moved_by is None:
            pieces.append(data[start:end])
        else:
            body = b"\x00" + varint(delta + moved_by) + data[position:end]
            pieces += (varint(len(body)), body)
        position = end
    for delta in (min(deltas), max(deltas)):
        check_deltas(header, delta, 0)
    return pieces, max(deltas)


def bare(header: BatchHeader, batch: memoryview) -> bytes | memoryview:
    """Only the header: offsets and the producer's sequence, no record. The batch itself where it is that already."""
    if header.count == 0:
        return batch
    attributes = header.attributes & ~(COMPRESSION_MASK | HAS_DELETE_HORIZON)
    return assemble_batch(msgspec.structs.replace(header, attributes=attributes, count=0), b"")
