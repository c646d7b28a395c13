"""Finding batches and records in bytes and segments: the blocking and the pure half of reads."""

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct

import msgspec
from crc32c import crc32c

from mainstem.core.logging import get_logger
from mainstem.log.epochs import NO_EPOCH, epoch_at
from mainstem.log.errors import CorruptSegment
from mainstem.log.segment import Segment
from mainstem.records import BatchHeader, CorruptBatch, CorruptRecords, Record, Span, UnknownCompression, iter_spans
from mainstem.records.batch import (
    BEFORE_LENGTH_COUNTS,
    CRC_FROM,
    HEADER,
    OFFSET_AND_LENGTH,
    decode_header,
)
from mainstem.records.record import decode_record, iter_record_spans, record_bytes

log = get_logger()

READ_SLACK = 64 * 1024
"""Bytes read beyond what was asked, to get past the batches between an index entry and the offset."""

READ_STEP = 2**20 + READ_SLACK
"""Bytes that are read and gone through at once: 10 ms where batches are as small as can be. A usual fetch (1 MB) is one
step; 16 MB at once kept everybody else waiting for 0.2 s and more."""

_UNCOVERED = Struct(">iBI")  # leader epoch, magic and the CRC itself, which does not cover them
_UNCOVERED_AT = 12
_MAGIC = 2
_MOST_STEPS = 8  # from header to header: with small batches it is quicker to read them


class OffsetAndTimestamp(msgspec.Struct, frozen=True, gc=False):
    """A record found by its timestamp."""

    offset: int
    timestamp: int


class Part(msgspec.Struct, gc=False):
    """Bytes of a segment that begin with a batch, and what is known of their offsets."""

    data: memoryview
    next_offset: int
    """The first batch begins here if `dense`, else here or later."""
    dense: bool
    """Each batch begins at the offset where the one before it ends: nothing was compacted."""
    end_offset: int
    """Of the segment: no batch reaches it."""
    indexed_offset: int = -1
    """The first batch ends with this offset, says the index, which then gives no `next_offset`; -1: it says nothing."""
    verify: bool = True
    """Check CRCs and leader epochs as well: it may have come from the disk."""
    epochs: tuple[tuple[int, int], ...] = ()
    """`LeaderEpochs.known`; empty: nothing is."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where in a segment somebody reads on, and what has to be known of the segment for that, as it was on the loop."""

    start: int
    """A position at which a batch begins."""
    next_offset: int
    indexed_offset: int
    """These two as in `Part`, of what begins at `start`; the others as well."""
    end: int
    """What may be read ends here."""
    dense: bool
    end_offset: int
    verify: bool
    epochs: tuple[tuple[int, int], ...]


class Batches(msgspec.Struct, frozen=True, gc=False):
    """Whole batches, and where the next ones begin."""

    data: bytes | memoryview
    """Empty: there is one, and it does not fit."""
    next_offset: int
    after: Place
    is_full: bool
    """Cut off by the size of a read: more is there."""


def step(place: Place, most: int) -> int:
    """How much to read of what comes next, for `most` bytes of it."""
    return min(most + READ_SLACK, place.end - place.start, READ_STEP)


def next_batches(
    read: Callable[[int, int], memoryview],
    place: Place,
    offset: int,
    limit: int,
    most: int,
    *,
    at_least_one: bool,
) -> Batches | None:
    """The next batches from the one that holds `offset` on, below `limit`, in `most` bytes; None: the segment has none.
    `read` gives so many bytes at a position; at most `READ_STEP` of them are asked for unless one batch has more.

    Raises:
        CorruptSegment: the file has less than was written.
        CorruptBatch: as `cut` and `rest`.
    """
    start, next_offset, indexed_offset = place.start, place.next_offset, place.indexed_offset
    size = step(place, most)
    while size > 0:
        data = read(start, size)
        if len(data) < size:
            raise CorruptSegment(f"position {start}: {len(data)} bytes, {size} bytes were written")
        part = Part(data, next_offset, place.dense, place.end_offset, indexed_offset, place.verify, place.epochs)
        first, last, following = cut(part, offset, limit, most, at_least_one=at_least_one)
        if first < 0:
            return Batches(b"", offset, place, is_full=False)
        if last > first:
            after = msgspec.structs.replace(place, start=start + last, next_offset=following, indexed_offset=-1)
            return Batches(data[first:last], following, after, size >= READ_STEP)
        more = rest(part, offset, place.end - start)
        if more is None:
            return None
        if more[1] > most and not at_least_one:
            return Batches(b"", offset, place, is_full=False)
        skipped, size, next_offset = more
        start += skipped
        if skipped:  # else the batch that the index names is there again, this time whole
            indexed_offset = -1
    return None


def whole_range(
    header: Callable[[int], Span | None],
    named: Callable[[int], int],
    place: Place,
    offset: int,
    limit: int,
    most: int,
) -> tuple[int, int, int, int] | None:
    """What `next_batches` finds, or some of it, by headers alone: where it begins and ends, in the file and in offsets.
    None: who reads the bytes knows more.

    `header` gives that of the batch at a position, None where it is not to be looked at; `named` the last position at
    or before one at which a batch begins, or the limit, says the index.
    """
    position, expected = place.start, place.next_offset
    for _ in range(_MOST_STEPS):
        first = header(position)
        by_index = position == place.start and place.indexed_offset >= 0
        if first is None or (first.last_offset != place.indexed_offset if by_index else first.base_offset != expected):
            return None
        position, expected = first.end, first.last_offset + 1
        if first.last_offset >= offset:
            break
    else:
        return None
    most_end = first.position + most
    if first.end > most_end:
        return None
    end, next_offset = first.end, first.last_offset + 1
    far = header(named(most_end - 1))
    if far is not None and end < far.position:
        end, next_offset = far.position, far.base_offset
    for _ in range(_MOST_STEPS):
        span = header(end)
        if span is None or span.base_offset != next_offset or span.base_offset >= limit or span.end > most_end:
            break
        end, next_offset = span.end, span.last_offset + 1
    return first.position, end, first.base_offset, next_offset


def check(data: bytes, part: Part) -> None:
    """That these are whole batches, right to the last bit; `part` is what is known of them.

    Raises:
        CorruptBatch: they are not.
    """
    part = msgspec.structs.replace(part, data=memoryview(data))
    _, end, _ = cut(part, part.next_offset, part.end_offset, len(data), at_least_one=False)
    if end != len(data):
        raise CorruptBatch(f"byte {max(end, 0)}: no whole batch")


def cut(part: Part, offset: int, limit: int, max_bytes: int, *, at_least_one: bool) -> tuple[int, int, int]:
    """The range with whole batches from the one that holds `offset`, within `max_bytes`; the next offset. (-1, -1): the
    first one does not fit.

    No batch begins at or above `limit`.

    Raises:
        CorruptBatch: the offsets are not what they must be or, with `verify`, a CRC or a leader epoch does
            not match.
    """
    first = last = -1
    epoch, epoch_end = NO_EPOCH, 0 if part.epochs else limit
    next_offset = offset
    for span in _spans(part):
        if span.last_offset < offset:
            continue
        if span.base_offset >= limit:
            break
        if first < 0:
            first = last = span.position
        if span.end - first > max_bytes and not (at_least_one and last == first):
            if last == first:
                return -1, -1, offset
            break
        if part.verify:
            if span.base_offset >= epoch_end:
                epoch, epoch_end = epoch_at(part.epochs, span.base_offset)
            _check(part.data, span, epoch)
        last, next_offset = span.end, span.last_offset + 1
    return max(first, 0), max(last, 0), next_offset


def _spans(part: Part) -> Iterator[Span]:
    """The batches that are whole, their offsets checked."""
    expected = part.next_offset
    for span in iter_spans(part.data):
        if span.position == 0 and part.indexed_offset >= 0:
            wrong = span.last_offset != part.indexed_offset
        else:
            wrong = span.base_offset != expected if part.dense else span.base_offset < expected
        if wrong or not span.base_offset <= span.last_offset < part.end_offset:
            raise CorruptBatch(
                f"byte {span.position}: offsets {span.base_offset} to {span.last_offset},"
                f" expected {expected} or what compaction left of it, below {part.end_offset}"
            )
        expected = span.last_offset + 1
        yield span


def _check(data: memoryview, span: Span, epoch: int) -> None:
    leader_epoch, magic, crc = _UNCOVERED.unpack_from(data, span.position + _UNCOVERED_AT)
    if magic != _MAGIC:
        raise CorruptBatch(f"byte {span.position}: offset {span.base_offset}: unknown format")
    if crc32c(data[span.position + CRC_FROM : span.end]) != crc:
        raise CorruptBatch(f"byte {span.position}: offset {span.base_offset}: bad CRC")
    if leader_epoch != epoch != NO_EPOCH:
        raise CorruptBatch(
            f"byte {span.position}: offset {span.base_offset}: leader epoch {leader_epoch}, expected {epoch}"
        )


def rest(part: Part, offset: int, available: int) -> tuple[int, int, int] | None:
    """The first batch at or after `offset` that is only partly there: where to read, how much, its offset.

    None where nothing more is there. `available` counts from the start of the part.

    Raises:
        CorruptBatch: what is there cannot be a batch.
    """
    position, next_offset = 0, part.next_offset
    for span in _spans(part):
        position, next_offset = span.end, span.last_offset + 1
        if span.last_offset >= offset:
            return None
    left = available - position
    if left <= 0:
        return None
    if len(part.data) - position < HEADER.size:
        if left < HEADER.size:
            raise CorruptBatch(f"byte {position}: {left} bytes, a batch header is {HEADER.size}")
        return position, min(left, READ_SLACK), next_offset
    size = OFFSET_AND_LENGTH.unpack_from(part.data, position)[1] + BEFORE_LENGTH_COUNTS
    if not HEADER.size <= size <= left or (size <= len(part.data) - position):
        raise CorruptBatch(f"byte {position}: a batch of {size} bytes, {left} are left")
    return position, min(left, max(size, READ_SLACK)), next_offset


def records_of(batch: memoryview | bytes, path: Path) -> Iterator[Record]:
    """The records of a batch, one at a time: one of a megabyte may have millions. Where its CRC is right and it holds
    something else, they end there: its writer's fault, no damage.

    Raises:
        CorruptBatch: its CRC does not match.
    """
    header = decode_header(batch)
    try:
        data = record_bytes(header, batch)
        for start, end in iter_record_spans(header, data):
            yield decode_record(header, data, start, end)
    except (CorruptRecords, UnknownCompression) as error:
        log.warning("batch_without_records", path=str(path), offset=header.base_offset, error=str(error))


def find_timestamp(
    segment: Segment, start: int, end: int, timestamp: int, low: int, high: int
) -> OffsetAndTimestamp | None:
    """The first record with an offset in [low, high) at or after `timestamp`, from position `start` on (blocking)."""
    for _, header, batch in segment.scan(start, end):
        if header.base_offset >= high:
            return None
        if header.max_timestamp < timestamp or header.last_offset < low:
            continue
        for record in records_of(batch, segment.path):
            if record.timestamp >= timestamp and low <= record.offset < high:
                return OffsetAndTimestamp(record.offset, record.timestamp)
    return None


def latest_of_batch(
    segment: Segment, start: int, end: int, latest: tuple[int, int], low: int, high: int
) -> OffsetAndTimestamp | None:
    """The first record of the latest timestamp, in the batch that `latest` names (timestamp, the batch's last offset).

    None where part of that batch is not in [low, high), or it is not as expected: `find_latest` looks everywhere
    (blocking).
    """
    timestamp, last_offset = latest
    for _, header, batch in segment.scan(start, end):
        if header.last_offset < last_offset:
            continue
        if header.last_offset == last_offset < high and header.base_offset >= low:
            for record in records_of(batch, segment.path):
                if record.timestamp == timestamp:
                    return OffsetAndTimestamp(record.offset, record.timestamp)
        return None
    return None


def find_latest(segment: Segment, end: int, low: int, high: int) -> OffsetAndTimestamp | None:
    """The first record with an offset in [low, high) and the latest timestamp of them (blocking).

    It is in the first batch whose header says the latest; where that lies outside, or the header says too much, all
    batches are looked into that may have a later one than was found, each once.
    """
    best: tuple[BatchHeader, bytes] | None = None
    for header, batch in _batches_between(segment, end, low, high):
        if best is None or header.max_timestamp > best[0].max_timestamp:
            best = (header, bytes(batch))
    if best is None:
        return None
    found = _latest_between(best[1], segment, low, high)
    if found is not None and found.timestamp == best[0].max_timestamp:
        return found
    for header, batch in _batches_between(segment, end, low, high):
        if found is None or (header.max_timestamp, -header.base_offset) > (found.timestamp, -found.offset):
            other = _latest_between(batch, segment, low, high)
            if other and (found is None or (other.timestamp, -other.offset) > (found.timestamp, -found.offset)):
                found = other
    return found


def _batches_between(segment: Segment, end: int, low: int, high: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    for _, header, batch in segment.scan(0, end):
        if header.base_offset >= high:
            return
        if header.last_offset >= low and header.count:
            yield header, batch


def _latest_between(batch: bytes | memoryview, segment: Segment, low: int, high: int) -> OffsetAndTimestamp | None:
    found: OffsetAndTimestamp | None = None
    for record in records_of(batch, segment.path):
        if low <= record.offset < high and (found is None or record.timestamp > found.timestamp):
            found = OffsetAndTimestamp(record.offset, record.timestamp)
    return found
