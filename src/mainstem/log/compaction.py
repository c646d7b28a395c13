"""Compaction: of every key the last record stays. Blocking, for a thread of its own; the log goes on meanwhile.

1. `plan`: which sealed segments may be cleaned, up to which offset (on the event loop).
2. `last_of_keys`: the last record of each key in the part that was not cleaned yet.
3. `rewrite`: groups of segments are copied to one ``.cleaned`` file each, without the records
   that a later one replaces.
4. The partition makes the exchange durable in the journal, renames the file and forgets the old segments.

Offsets never change: a batch that loses records keeps its first and last offset. Nothing of an open transaction is
touched; records of aborted ones go, and a marker goes when nothing of its transaction is left. Tombstones and such
markers stay `delete.retention.ms` longer, so that a reader who is behind sees them: their batch then carries the time
from which they may go (its *delete horizon*, KIP-534) as its base timestamp, with attribute bit 6.

Of the last batch at least the header stays, a marker whole: without it no reader would come to the end of the log.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from crc32c import crc32c

from mainstem.core.logging import get_logger
from mainstem.log.checkpoint import SegmentState
from mainstem.log.config import FOREVER, TopicConfig
from mainstem.log.disk import Disk, File
from mainstem.log.index import AbortedTransaction
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import BatchHeader, CorruptRecords, UnknownCompression, decode_marker
from mainstem.records.batch import COMPRESSION_MASK, HAS_DELETE_HORIZON, PREFIX, decode_header
from mainstem.records.record import (
    assemble_batch,
    check_deltas,
    iter_keys,
    iter_record_spans,
    read_varint,
    record_bytes,
    varint,
)

log = get_logger()

CLEANED = ".cleaned"
MOST_KEY_BYTES = 128 * 1024 * 1024
"""Of the keys that a pass holds at a time; what is left waits for the next one."""
_WRITE_BYTES = 1 << 20
_NO_HORIZON = -1


class Plan(msgspec.Struct, frozen=True):
    """What one compaction of a partition does."""

    segments: list[Segment]
    """All sealed segments below `end_offset`, cleaned before or not."""
    dirty_offset: int
    end_offset: int
    """Nothing from here on is looked at."""
    aborted: list[AbortedTransaction]
    last_offsets_of_producers: frozenset[int]
    """A producer's last batch stays, if only its header: a reader of the segments learns its sequence from it."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    most_keys: int


class Cleaned(msgspec.Struct, frozen=True):
    """One file that takes the place of some segments."""

    replaces: list[Segment]
    segment: Segment
    path: Path

    @property
    def gain(self) -> int:
        """Bytes that are no longer there; negative where there are more (a delete horizon makes records longer)."""
        return sum(segment.size for segment in self.replaces) - self.segment.size


class Replacement(msgspec.Struct, frozen=True, array_like=True):
    """What the journal says of an exchange: `state` in place of the segments with these base offsets."""

    state: SegmentState
    base_offsets: list[int]


class Result(msgspec.Struct, frozen=True):
    """What a compaction wrote."""

    files: list[Cleaned]
    end_offset: int
    """Below it every key has one record."""
    horizon_ms: int
    """When the first tombstone or marker that was kept may go; 0 without one."""


def dirty_ratio(segments: list[Segment], cleaned_offset: int) -> float:
    """The part of the bytes that compaction has not seen."""
    dirty = sum(segment.size for segment in segments if segment.next_offset > cleaned_offset)
    total = sum(segment.size for segment in segments)
    return dirty / total if total else 0.0


def cleanable(segments: Sequence[Segment], last_stable_offset: int, config: TopicConfig, now_ms: int) -> list[Segment]:
    """The sealed segments that may be compacted: all records decided, and older than `min.compaction.lag.ms`.

    Of those, the ones that a checkpoint covers: what the journal holds goes to its segment after a crash, and must not
    meet another file there.
    """
    result = []
    for segment in segments[:-1]:
        young = config.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        covered = segment.checkpointed_size == segment.size
        if segment.next_offset > last_stable_offset or young or not covered:
            break
        result.append(segment)
    return result


class _Stopped(Exception):
    """The log is being closed."""


def run(plan: Plan, files: OpenFiles, stop: threading.Event) -> Result | None:
    """Write the cleaned files, durably (blocking); None if `stop` was set meanwhile.

    Raises:
        BadBatch: a batch does not check out; nothing was changed.
        OSError: the disk refused; nothing was changed.
    """
    results: list[Cleaned] = []
    try:
        latest = last_of_keys(plan, stop)
        pass_ = _Pass(plan, latest, files, stop, results)
        for group in _groups(plan, latest.end_offset):
            pass_.rewrite(group)
        # Their names too: the journal is going to speak of them.
        files.disk.sync_directory(plan.segments[0].directory)
    except _Stopped:
        discard(results, files.disk)
        return None
    except BaseException:
        discard(results, files.disk)
        raise
    return Result(results, latest.end_offset, pass_.horizon_ms)


def discard(cleaned: list[Cleaned], disk: Disk) -> None:
    """Remove files that are not going to be used (blocking)."""
    for each in cleaned:
        disk.unlink(each.path)


class Latest(msgspec.Struct, frozen=True):
    """The last record of each key from the plan's `dirty_offset` on, below `end_offset`."""

    offsets: dict[bytes, int]
    tombstones: set[int]
    """Offsets of records without a value, and of some that have a later one of their key."""
    unread: set[int]
    """Base offsets of batches that hold something else than records."""
    end_offset: int

    def kept_of(self, header: BatchHeader, survivors: set[int]) -> list[int] | None:
        """The offsets of a batch's records that stay, where these tell; None: it has to be looked into."""
        dense = header.count == header.last_offset_delta + 1
        if header.has_delete_horizon or not dense or header.base_offset in self.unread:
            return None
        kept = [offset for offset in range(header.base_offset, header.next_offset) if offset in survivors]
        return None if kept and not self.tombstones.isdisjoint(kept) else kept


def last_of_keys(plan: Plan, stop: threading.Event) -> Latest:
    """Read the part that was not cleaned yet.

    It stops at the plan's `end_offset`, or at a batch boundary when `most_keys` keys are known, or keys of
    `MOST_KEY_BYTES`.
    """
    offsets: dict[bytes, int] = {}
    tombstones: set[int] = set()
    unread: set[int] = set()
    size = 0
    transactions = _Transactions(plan.aborted)
    for segment in plan.segments:
        if segment.next_offset <= plan.dirty_offset:
            continue
        for _, header, batch in segment.scan():
            if header.last_offset < plan.dirty_offset or header.is_control or transactions.is_aborted(header):
                continue
            if len(offsets) >= plan.most_keys or size >= MOST_KEY_BYTES:
                return Latest(offsets, tombstones, unread, header.base_offset)
            known = len(offsets)
            try:
                records = list(iter_keys(header, record_bytes(header, batch)))
            except (CorruptRecords, UnknownCompression) as error:
                log.warning("batch_without_records", offset=header.base_offset, error=str(error))
                unread.add(header.base_offset)
                continue
            for _, _, offset, key, has_value in records:
                if key is None:
                    continue
                offsets[key] = offset
                if not has_value:
                    tombstones.add(offset)
                if len(offsets) > known:
                    size, known = size + len(key), known + 1
            _breathe(stop)
    return Latest(offsets, tombstones, unread, plan.end_offset)


def _breathe(stop: threading.Event) -> None:
    """Let the event loop's thread run, and notice that the log is being closed."""
    time.sleep(0)
    if stop.is_set():
        raise _Stopped


def _groups(plan: Plan, end_offset: int) -> Iterator[list[Segment]]:
    """Neighbours that together stay below `segment.bytes` become one."""
    group: list[Segment] = []
    size = 0
    for segment in plan.segments:
        if segment.base_offset >= end_offset and group:
            break
        too_far = group and segment.next_offset - group[0].base_offset > 2**31 - 1
        if group and (size + segment.size > plan.segment_bytes or too_far):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class _Pass:
    """One pass over the segments, in offset order."""

    def __init__(
        self,
        plan: Plan,
        latest: Latest,
        files: OpenFiles,
        stop: threading.Event,
        results: list[Cleaned],
    ) -> None:
        self.plan = plan
        self.latest = latest
        self.survivors = set(latest.offsets.values())
        self.end_offset = latest.end_offset
        self.files = files
        self.transactions = _Transactions(plan.aborted)
        self.stop = stop
        self.results = results
        self.horizon_ms = 0

    def rewrite(self, group: list[Segment]) -> None:
        """Copy a group to one file, without what goes; no file is left where that changed nothing."""
        target = Segment(group[0].directory, group[0].base_offset, self.files)
        path = target.path.with_name(target.path.name + CLEANED)
        self.files.disk.unlink(path)
        self.results.append(Cleaned(group, target, path))
        output = _Output(self.files.disk.open(path, create=True), target, self.plan.index_interval_bytes)
        kept_markers: set[int] = set()
        changed = len(group) > 1
        for segment in group:
            for _, header, batch in segment.scan():
                kept = self.clean(header, batch)
                changed = changed or kept is not batch
                if kept is not None:
                    self.count(output.write(kept), kept_markers, expired=self.is_expired(header))
                _breathe(self.stop)
        if not changed:
            self.files.disk.unlink(path)
            self.results.pop()
            return
        output.finish()
        for aborted in (aborted for segment in group for aborted in segment.aborted):
            if aborted.last_offset in kept_markers:
                target.add_aborted(aborted)
        target.next_offset = group[-1].next_offset
        target.first_append_ms = group[0].first_append_ms
        target.seal()
        target.unsaved = True  # also an empty one: compaction waits until a checkpoint covers it
        target.restored_size = target.size

    def is_expired(self, header: BatchHeader) -> bool:
        """Its tombstones go in this pass; records beside them stay, and the horizon with them."""
        expired = header.has_delete_horizon and header.base_timestamp <= self.plan.now_ms
        return expired and header.base_offset < self.end_offset

    def count(self, written: BatchHeader, kept_markers: set[int], *, expired: bool) -> None:
        if written.is_control:
            kept_markers.add(written.base_offset)
        self.transactions.kept(written)
        if written.has_delete_horizon and not expired:
            self.horizon_ms = min(self.horizon_ms or written.base_timestamp, written.base_timestamp)

    def clean(self, header: BatchHeader, batch: memoryview) -> bytes | memoryview | None:
        """The batch as it is, without what goes, as a bare header, or None: nothing of it stays."""
        if header.base_offset >= self.end_offset:
            return batch
        expired = self.is_expired(header)
        if header.is_control:
            return self.clean_marker(header, batch, expired=expired)
        last_of_producer = header.producer_id >= 0 and header.last_offset in self.plan.last_offsets_of_producers
        header_stays = last_of_producer or self.is_last(header)
        if self.transactions.is_aborted(header):
            return _bare(header, batch) if header_stays else None
        if header.base_offset >= self.plan.dirty_offset:
            offsets = self.latest.kept_of(header, self.survivors)
            if offsets is not None:
                if len(offsets) == header.count:
                    return batch
                if offsets:
                    return _pick(header, batch, offsets)
                return _bare(header, batch) if header_stays else None
        data, records = _records_of(header, batch)
        if not records and header.count:
            return batch  # who wrote it may know what it is
        kept = [record for record in records if self.stays(record, expired=expired)]
        if not kept:
            return _bare(header, batch) if header_stays else None
        needs_horizon = not header.has_delete_horizon and any(not record.has_value for record in kept)
        if len(kept) == len(records) and not needs_horizon:
            return batch
        return _rebuild(header, data, kept, self.new_horizon() if needs_horizon else _NO_HORIZON)

    def is_last(self, header: BatchHeader) -> bool:
        """Nothing comes after it in the segments; where they are all that was appended, the log ends with it."""
        return header.last_offset + 1 == self.plan.segments[-1].next_offset

    def stays(self, record: "_Raw", *, expired: bool) -> bool:
        if record.key is None:  # from before the topic was compacted
            return False
        return self.latest.offsets.get(record.key, -1) <= record.offset and (record.has_value or not expired)

    def clean_marker(self, header: BatchHeader, batch: memoryview, *, expired: bool) -> bytes | memoryview | None:
        if not self.transactions.may_drop_marker(header, batch):
            return batch
        if header.has_delete_horizon:
            return None if expired and not self.is_last(header) else batch
        data = record_bytes(header, batch)
        return _rebuild(header, data, list(_raw_records(header, data)), self.new_horizon())

    def new_horizon(self) -> int:
        return min(self.plan.now_ms + self.plan.delete_retention_ms, FOREVER)


class _Output:
    """Collects batches and writes them in large pieces."""

    def __init__(self, file: File, segment: Segment, index_interval_bytes: int) -> None:
        self._file, self._segment, self._interval = file, segment, index_interval_bytes
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._queued = self._position = 0

    def write(self, batch: bytes | memoryview) -> BatchHeader:
        header = decode_header(batch)
        self._segment.append(header, self._interval)
        self._segment.offsets_crc = crc32c(batch[: PREFIX.size], self._segment.offsets_crc)
        self._pieces.append(bytes(batch))
        self._queued += len(batch)
        if self._queued >= _WRITE_BYTES:
            self._flush()
        return header

    def _flush(self) -> None:
        if self._pieces:
            self._file.write(self._pieces, self._position)
        self._position += self._queued
        self._pieces, self._queued = [], 0

    def finish(self) -> None:
        self._flush()
        if self._position:
            self._segment.offsets_crc = self._segment.offsets_crc or 1  # 0 says: not compacted
        self._file.sync()


class _Raw(msgspec.Struct, gc=False):
    """A record in its encoded form, with what compaction asks of it."""

    start: int
    end: int
    offset: int
    timestamp_delta: int
    after_timestamp: int
    """Position behind the timestamp delta, where the offset delta begins."""
    key: bytes | None
    has_value: bool


def _records_of(header: BatchHeader, batch: memoryview) -> tuple[bytes, list[_Raw]]:
    """A batch's records, also encoded; none where its CRC is right and it holds something else."""
    try:
        data = record_bytes(header, batch)
        return data, list(_raw_records(header, data))
    except (CorruptRecords, UnknownCompression) as error:
        log.warning("batch_without_records", offset=header.base_offset, error=str(error))
        return b"", []


def _raw_records(header: BatchHeader, data: bytes) -> Iterator[_Raw]:
    for start, end, offset, key, has_value in iter_keys(header, data):
        timestamp_delta, after_timestamp = _timestamp_delta(header, data, start)
        yield _Raw(start, end, offset, timestamp_delta, after_timestamp, key, has_value)


def _timestamp_delta(header: BatchHeader, data: bytes, start: int) -> tuple[int, int]:
    """Of the record that begins there, and the position behind it."""
    timestamp_delta, position = read_varint(data, read_varint(data, start)[1] + 1)
    check_deltas(header, timestamp_delta, 0)
    return timestamp_delta, position


def _pick(header: BatchHeader, batch: memoryview, offsets: list[int]) -> bytes | memoryview:
    """The batch with the records at these offsets; it has one at each of its own. All of it where a time is none."""
    data = record_bytes(header, batch)
    spans = list(iter_record_spans(header, data))
    kept = [spans[offset - header.base_offset] for offset in offsets]
    latest = header.max_timestamp
    if not header.has_append_time:
        try:
            latest = header.base_timestamp + max(_timestamp_delta(header, data, start)[0] for start, _ in kept)
        except CorruptRecords as error:
            log.warning("batch_without_times", offset=header.base_offset, error=str(error))
            return batch
    changed = msgspec.structs.replace(header, max_timestamp=latest, count=len(kept))
    return assemble_batch(changed, b"".join(data[start:end] for start, end in kept))


def _rebuild(header: BatchHeader, data: bytes, kept: list[_Raw], horizon: int) -> bytes:
    """The batch with the records `kept`; with a horizon, timestamps are counted from it."""
    attributes, base = header.attributes, header.base_timestamp
    if horizon == _NO_HORIZON:
        body = b"".join(data[record.start : record.end] for record in kept)
    else:
        body = b"".join(_moved(data, record, base - horizon) for record in kept)
        attributes |= HAS_DELETE_HORIZON
    latest = header.max_timestamp if header.has_append_time else base + max(r.timestamp_delta for r in kept)
    changed = msgspec.structs.replace(
        header,
        attributes=attributes,
        base_timestamp=base if horizon == _NO_HORIZON else horizon,
        max_timestamp=latest,
        count=len(kept),
    )
    return assemble_batch(changed, body)


def _moved(data: bytes, record: _Raw, by: int) -> bytes:
    """The record with `by` added to its timestamp delta."""
    body = b"\x00" + varint(record.timestamp_delta + by) + data[record.after_timestamp : record.end]
    return varint(len(body)) + body


def _bare(header: BatchHeader, batch: memoryview) -> bytes | memoryview:
    """Only the header: offsets and the producer's sequence, no record. The batch itself where it is that already."""
    if header.count == 0:
        return batch
    attributes = header.attributes & ~(COMPRESSION_MASK | HAS_DELETE_HORIZON)
    return assemble_batch(msgspec.structs.replace(header, attributes=attributes, count=0), b"")


class _Transactions:
    """Follows transactions through the batches, in offset order."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """The batch's records never became visible."""
        return header.is_transactional and any(
            transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in self._aborted.get(header.producer_id, ())
        )

    def kept(self, header: BatchHeader) -> None:
        # A bare header too: whoever reads the segments takes it for the begin of a transaction, which has to end.
        if header.is_transactional and not header.is_control:
            self._with_data.add(header.producer_id)

    def may_drop_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Nothing of the transaction that this marker ends is left before it."""
        producer_id = decode_marker(batch).producer_id
        has_data = producer_id in self._with_data
        self._with_data.discard(producer_id)
        return not has_data
