"""Records inside a batch: for internal topics, compaction, look-ups by time and tests. Never on the produce path.

A record, every number a zigzag varint (https://kafka.apache.org/documentation/#record)::

    length │ attributes (1 byte, 0) │ timestamp delta │ offset delta │ key length, key │ value length, value
                                                                       -1: null          -1: null
           │ header count, headers
                           name length, name, value length, value
"""

from collections.abc import Iterator, Sequence

import msgspec
from crc32c import crc32c

from mainstem.records.batch import (
    BEFORE_LENGTH_COUNTS,
    CONTROL,
    CRC,
    CRC_FROM,
    HEADER,
    TRANSACTIONAL,
    BatchHeader,
    Bytes,
    decode_header,
)
from mainstem.records.compression import NAMES, UNPACKED_BYTES, compress, decompress
from mainstem.records.errors import CorruptRecords

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as readers see it."""

    offset: int
    timestamp: int
    """Milliseconds since 1970, UTC."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def decode_records(batch: Bytes) -> list[Record]:
    """The records of the one batch at the start of `batch`, decompressed; a control batch's too.

    Raises:
        CorruptBatch: the batch does not check out.
        CorruptRecords: its content is not what the header says.
    """
    header = decode_header(batch)
    data = record_bytes(header, batch)
    return [decode_record(header, data, start, end) for start, end in iter_record_spans(header, data)]


def record_bytes(header: BatchHeader, batch: Bytes, *, limit: int = UNPACKED_BYTES) -> bytes:
    """The records' section of a checked batch, decompressed: at most `limit` bytes."""
    return decompress(header.compression, memoryview(batch)[HEADER.size : header.size], limit=limit)


def iter_record_spans(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int]]:
    """Where each record lies in the decompressed section: (first byte of its length, byte after its end)."""
    position = 0
    for _ in range(header.count):
        length, body = read_varint(data, position)
        end = body + length
        if length < 0 or end > len(data):
            raise CorruptRecords(f"offset {header.base_offset}: record of {length} bytes at {position} of {len(data)}")
        yield position, end
        position = end
    if position != len(data):
        raise CorruptRecords(
            f"offset {header.base_offset}: {len(data) - position} bytes follow the last of {header.count} records"
        )


def iter_keys(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int, int, bytes | None, bool]]:
    """What compaction asks of each record: (first byte of its length, byte after its end, its offset, its key, whether
    it has a value). Its timestamp is not looked at.

    Numbers of one or two bytes, which nearly all are, are read here: a call for each took half of a compaction's time.

    Raises:
        CorruptRecords: the section is not what its header says.
    """
    position, size, base, last_delta = 0, len(data), header.base_offset, header.last_offset_delta
    try:
        for _ in range(header.count):
            start = position
            if (byte := data[position]) < 0x80:
                position, number = position + 1, byte
            elif (second := data[position + 1]) < 0x80:
                position, number = position + 2, (byte & 0x7F) | second << 7
            else:
                number, position = _read_zigzag(data, position)
            end = position + (number >> 1)
            if number & 1 or end > size:
                raise CorruptRecords(f"offset {base}: a record at {start} of {size} bytes is cut short")
            position += 1  # its attributes
            while data[position] >= 0x80:  # its timestamp
                position += 1
            position += 1
            if (byte := data[position]) < 0x80:
                position, number = position + 1, byte
            elif (second := data[position + 1]) < 0x80:
                position, number = position + 2, (byte & 0x7F) | second << 7
            else:
                number, position = _read_zigzag(data, position)
            offset_delta = number >> 1
            if number & 1 or offset_delta > last_delta:
                raise CorruptRecords(f"offset {base}: a record beyond the batch, the last one is {last_delta} behind")
            if (byte := data[position]) < 0x80:
                position, number = position + 1, byte
            else:
                number, position = _read_zigzag(data, position)
            key = None
            if not number & 1:
                after_key = position + (number >> 1)
                if after_key > end:
                    raise CorruptRecords(f"offset {base}: a key of {number >> 1} bytes, the record ends at {end}")
                key, position = data[position:after_key], after_key
            # A value has a length of 0 or more, whose lowest bit is 0; that of a tombstone is -1.
            yield start, end, base + offset_delta, key, not data[position] & 1
            position = end
    except IndexError:
        raise CorruptRecords(f"offset {base}: a record is cut short") from None
    if position != size:
        raise CorruptRecords(f"offset {base}: {size - position} bytes follow the last of {header.count} records")


def decode_record(header: BatchHeader, data: bytes, start: int, end: int) -> Record:
    """The record at `data[start:end]`, as `iter_record_spans` gave it.

    Numbers of one byte are read here: a start decodes as many records as there are committed offsets.

    Raises:
        CorruptRecords: it is not what its length says.
    """
    position = start
    try:
        while data[position] >= 0x80:  # its length
            position += 1
        position += 2  # and its attributes
        if (byte := data[position]) < 0x80:
            timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            timestamp_delta, position = read_varint(data, position)
        if (byte := data[position]) < 0x80:
            offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            offset_delta, position = read_varint(data, position)
        key, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        headers, position = ((), position + 1) if data[position] == 0 else _read_headers(header, data, position, end)
    except IndexError:
        raise CorruptRecords(f"offset {header.base_offset}: a record is cut short at byte {position}") from None
    if position != end:
        raise CorruptRecords(f"offset {header.base_offset}: a record ends at byte {position}, its length says {end}")
    check_deltas(header, timestamp_delta, offset_delta)
    timestamp = header.max_timestamp if header.has_append_time else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _read_headers(header: BatchHeader, data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:
        raise CorruptRecords(f"offset {header.base_offset}: {count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        content, position = _read_bytes(data, position, end)
        headers.append((_header_name(name), content))
    return tuple(headers), position


def check_deltas(header: BatchHeader, timestamp_delta: int, offset_delta: int) -> None:
    """Check that a record lies within its batch and its time has 64 bits: nobody but its writer has looked inside.

    Raises:
        CorruptRecords: this one does not.
    """
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptRecords(
            f"offset {header.base_offset}: offset delta {offset_delta}, the last one is {header.last_offset_delta}"
        )
    if not -_TIMES <= header.base_timestamp + timestamp_delta < _TIMES:
        raise CorruptRecords(
            f"offset {header.base_offset}: timestamp {header.base_timestamp} and {timestamp_delta} more"
        )


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    compression: str = "none",
    timestamp: int | None = None,
) -> bytes:
    """A batch of `records`, in their order, with consecutive offsets from `base_offset` (theirs are not looked at).

    A `timestamp` is given to every record in place of its own.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    times = [record.timestamp if timestamp is None else timestamp for record in records]
    data = b"".join(encode_record(r, times[i] - times[0], i) for i, r in enumerate(records))
    codec = NAMES.index(compression)
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    return assemble_batch(
        BatchHeader(
            base_offset,
            base_offset + len(records) - 1,
            0,
            leader_epoch,
            0,
            attributes,
            times[0],
            max(times),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
        data,
    )


def assemble_batch(header: BatchHeader, data: bytes) -> bytes:
    """A batch with the fields of `header` around the uncompressed records `data`; size and CRC are computed."""
    payload = compress(header.compression, data)
    batch = bytearray(HEADER.size + len(payload))
    HEADER.pack_into(
        batch,
        0,
        header.base_offset,
        len(batch) - BEFORE_LENGTH_COUNTS,
        header.leader_epoch,
        2,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count,
    )
    batch[HEADER.size :] = payload
    CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """One record behind its length."""
    body = bytearray(b"\x00")
    body += varint(timestamp_delta)
    body += varint(offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    body += varint(len(record.headers))
    for name, content in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, content)
    return varint(len(body)) + bytes(body)


def varint(number: int) -> bytes:
    """A zigzag varint: small numbers of either sign are short."""
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_TIMES = 1 << 62  # with room for what is added to them
_ONE_BYTE = [bytes((n,)) for n in range(0x80)]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it.

    Raises:
        CorruptRecords: the data ends within it, or it has more than 64 bits.
    """
    try:
        byte = data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    except IndexError:
        raise CorruptRecords(f"byte {position}: a varint is cut short") from None
    value, position = _read_zigzag(data, position)
    return (value >> 1) ^ -(value & 1), position


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    """`read_varint` of the number as it is written: its lowest bit is its sign."""
    value = shift = 0
    try:
        while shift <= 63:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                return value, position
            shift += 7
    except IndexError:
        raise CorruptRecords(f"byte {position}: a varint is cut short") from None
    raise CorruptRecords(f"byte {position}: a varint has at most 64 bits")


def _read_bytes(data: bytes, position: int, limit: int) -> tuple[bytes | None, int]:
    if (byte := data[position]) < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > limit:
        raise CorruptRecords(f"byte {position}: {length} bytes announced, the record ends at {limit}")
    return data[position:end], end


def _header_name(name: bytes | None) -> str:
    if name is None:
        raise CorruptRecords("a record header without a name")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise CorruptRecords(f"a record header's name is not UTF-8: {name[:40]!r}") from None


def _write_bytes(body: bytearray, content: bytes | None) -> None:
    if content is None:
        body += b"\x01"  # -1
    else:
        body += varint(len(content))
        body += content
