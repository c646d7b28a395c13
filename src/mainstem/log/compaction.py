"""Compaction: of every key the last record stays. Blocking, for the `cleaner`; the log goes on meanwhile.

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

import os
import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from crc32c import crc32c
from xxhash import xxh3_128_digest

from mainstem.core.logging import get_logger
from mainstem.log.checkpoint import SegmentState
from mainstem.log.config import FOREVER, TopicConfig
from mainstem.log.disk import Disk, File
from mainstem.log.index import MARKER_OFFSET, AbortedTransaction
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import BatchHeader, CorruptRecords, UnknownCompression, decode_marker
from mainstem.records.batch import PREFIX, decode_header
from mainstem.records.keys import Keys, ReadKeys, read_keys
from mainstem.records.record import record_bytes
from mainstem.records.selection import bare, select

log = get_logger()

CLEANED = ".cleaned"
_READ_BYTES = _WRITE_BYTES = 1 << 20
_BREATH_SECONDS = 0.001  # a call of its own takes 50 µs: with one for each batch, small ones took nothing else
_DIGEST_BYTES = 15
_SEED = int.from_bytes(os.urandom(8))


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


class Stopped(Exception):
    """The log is being closed."""


class Breath:
    """Lets the event loop's thread run now and then, and notices that the log is being closed."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._until = time.perf_counter() + _BREATH_SECONDS

    def __call__(self) -> None:
        if self._stop.is_set():
            raise Stopped
        if time.perf_counter() > self._until:
            time.sleep(0)
            self._until = time.perf_counter() + _BREATH_SECONDS


def run(plan: Plan, files: OpenFiles, breathe: Callable[[], None], read: ReadKeys = read_keys) -> Result | None:
    """Write the cleaned files, durably (blocking); None if `breathe`, called for each batch, has raised Stopped.

    Raises:
        BadBatch: a batch does not check out; nothing was changed.
        OSError: the disk refused; nothing was changed.
    """
    results: list[Cleaned] = []
    try:
        latest = last_of_keys(plan, breathe, read)
        pass_ = _Pass(plan, latest, files, breathe, read, results)
        for group in _groups(plan, latest.end_offset):
            pass_.rewrite(group)
        # Their names too: the journal is going to speak of them.
        files.disk.sync_directory(plan.segments[0].directory)
    except Stopped:
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


class _Rising:
    """Offsets in rising order, which are asked for from the first to the last: 8 bytes for each."""

    def __init__(self, offsets: "array[int]") -> None:
        self._offsets = offsets
        self._at = 0

    def take(self, first: int, end: int) -> "array[int]":
        """Those from `first` on, below `end`; no earlier ones are asked for again."""
        offsets = self._offsets
        start = bisect_left(offsets, first, self._at)
        self._at = bisect_left(offsets, end, start, min(start + end - first, len(offsets)))
        return offsets[start : self._at]


class Latest(msgspec.Struct, frozen=True):
    """The last record of each key from the plan's `dirty_offset` on, below `end_offset`."""

    names: set[bytes]
    """What `_names` makes of those keys."""
    survivors: _Rising
    """The records' offsets."""
    tombstones: _Rising
    """Those of them that have no value."""
    irregular: _Rising
    """Base offsets of batches that hold something else than a record for each of their offsets."""
    end_offset: int

    def of(self, header: BatchHeader) -> "tuple[array[int], bool, bool]":
        """The offsets of a batch's records that stay, whether a tombstone is among them, and whether it has a record at
        each of its offsets. For one batch after the other.
        """
        base, end = header.base_offset, header.next_offset
        survivors = self.survivors.take(base, end)
        has_tombstone = bool(self.tombstones.take(base, end))
        return survivors, has_tombstone, _is_dense(header) and not self.irregular.take(base, base + 1)


def _is_dense(header: BatchHeader) -> bool:
    """It has a record at each of its offsets, unless it holds something else."""
    return header.count == header.last_offset_delta + 1


def _names(keys: list[bytes | None]) -> list[bytes | None]:
    """The keys, long ones as digests, which no key is: a million keys shall not need more memory because they are long.

    The seed is random, so that nobody can make two keys that have one digest; by chance that takes 2 ** 60 keys.
    """
    return [
        key if key is None or len(key) < _DIGEST_BYTES else xxh3_128_digest(key, _SEED)[:_DIGEST_BYTES] for key in keys
    ]


def last_of_keys(plan: Plan, breathe: Callable[[], None], read: ReadKeys) -> Latest:
    """Read the part that was not cleaned yet, up to the plan's `end_offset`, or to a batch boundary where `most_keys`
    keys are known.
    """
    try:
        return _last_of_keys(plan, plan.end_offset, plan.most_keys, breathe, read)
    except _TooManyKeys:
        return _last_of_keys(plan, _end_of_most_keys(plan, breathe, read), sys.maxsize, breathe, read)


class _TooManyKeys(Exception):
    pass


def _last_of_keys(plan: Plan, end_offset: int, most_keys: int, breathe: Callable[[], None], read: ReadKeys) -> Latest:
    """From the end to the beginning: a record whose key was not met before is the last one that has it.

    So a key is all that is kept, and what is asked most often (is it there?) changes nothing in memory.
    """
    names: set[bytes] = set()
    survivors, tombstones, irregular = array("q"), array("q"), array("q")  # falling
    for header, batch in _dirty_batches(plan, backwards=True):
        if header.base_offset >= end_offset:
            continue
        if len(names) >= most_keys:
            raise _TooManyKeys
        breathe()
        found = _keys_of(header, batch, read)
        if found is None or (
            _is_dense(header) and found.offsets != list(range(header.base_offset, header.next_offset))
        ):
            irregular.append(header.base_offset)
        if found is None:
            continue
        latest = dict(zip(_names(found.keys), found.offsets, strict=True))
        new = [name for name in latest if name is not None and name not in names]
        names.update(new)
        offsets = [latest[name] for name in new]
        survivors.extend(sorted(offsets, reverse=True))
        if found.tombstones:
            without_value = {found.offsets[number] for number in found.tombstones}
            tombstones.extend(sorted(without_value.intersection(offsets), reverse=True))
    for falling in (survivors, tombstones, irregular):
        falling.reverse()
    return Latest(names, _Rising(survivors), _Rising(tombstones), _Rising(irregular), end_offset)


def _end_of_most_keys(plan: Plan, breathe: Callable[[], None], read: ReadKeys) -> int:
    """The base offset of the first batch before which there are `most_keys` keys."""
    names: set[bytes | None] = set()
    for header, batch in _dirty_batches(plan):
        if len(names) >= plan.most_keys:
            return header.base_offset
        breathe()
        if (found := _keys_of(header, batch, read)) is not None:
            names.update(_names(found.keys))
            names.discard(None)
    return plan.end_offset


def _dirty_batches(plan: Plan, *, backwards: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Those with records of committed transactions, or of none, from the plan's `dirty_offset` on."""
    transactions = _Transactions(plan.aborted)
    dirty = [segment for segment in plan.segments if segment.next_offset > plan.dirty_offset]
    for segment in reversed(dirty) if backwards else dirty:
        for _, header, batch in _backwards(segment) if backwards else segment.scan():
            if header.base_offset < plan.dirty_offset or header.is_control or transactions.is_aborted(header):
                continue
            yield header, batch


def _backwards(segment: Segment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `segment.scan`, from the last batch to the first."""
    starts = array("q")
    for position, _, _ in segment.scan():
        if not starts or position >= starts[-1] + _READ_BYTES:
            starts.append(position)
    end = segment.size
    for start in reversed(starts):
        yield from reversed(list(segment.scan(start, end)))
        end = start


def _keys_of(header: BatchHeader, batch: memoryview, read: ReadKeys) -> Keys | None:
    """Of a batch's records; None where its CRC is right and it holds something else: who wrote it may know what."""
    try:
        return read(header, batch)
    except (CorruptRecords, UnknownCompression) as error:
        log.warning("batch_without_records", offset=header.base_offset, error=str(error))
        return None


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
        breathe: Callable[[], None],
        read: ReadKeys,
        results: list[Cleaned],
    ) -> None:
        self.plan = plan
        self.latest = latest
        self.read = read
        self.end_offset = latest.end_offset
        self.files = files
        self.transactions = _Transactions(plan.aborted)
        self.breathe = breathe
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
                    written = header if kept is batch else decode_header(kept)
                    output.write(written, kept)
                    self.count(written, kept_markers, expired=self.is_expired(header))
                self.breathe()
        if not changed:
            self.files.disk.unlink(path)
            self.results.pop()
            return
        output.finish()
        if not target.size:
            # Kafka, started on these files, takes the file's time for the last record's where there is none, and ends
            # its look-ups by time there: with any later one it finds nothing behind it.
            self.files.disk.set_time(path, 0)
        for aborted in (aborted for segment in group for aborted in segment.aborted):
            if aborted.last_offset in kept_markers:
                target.add_aborted(aborted)
        target.next_offset = group[-1].next_offset
        target.first_append_ms = group[0].first_append_ms
        target.seal()
        target.unsaved = True  # also an empty one: compaction waits until a checkpoint covers it
        target.trust.end(target.size)

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
            return bare(header, batch) if header_stays else None
        told = self.kept_of(header, batch, expired=expired)
        if told is None:
            return batch
        kept, has_tombstone = told
        if not kept:
            return bare(header, batch) if header_stays else None
        needs_horizon = has_tombstone and not header.has_delete_horizon
        if len(kept) == header.count and not needs_horizon:
            return batch
        try:
            return select(header, record_bytes(header, batch), kept, self.new_horizon() if needs_horizon else None)
        except CorruptRecords as error:
            log.warning("batch_without_times", offset=header.base_offset, error=str(error))
            return batch

    def kept_of(self, header: BatchHeader, batch: memoryview, *, expired: bool) -> tuple[list[int], bool] | None:
        """The numbers of its records that stay, and whether a tombstone is among them; None: it holds none."""
        is_dirty = header.base_offset >= self.plan.dirty_offset
        survivors: frozenset[int] = frozenset()
        if is_dirty:
            offsets, has_tombstone, is_regular = self.latest.of(header)
            if is_regular and not header.has_delete_horizon:
                return [offset - header.base_offset for offset in offsets], has_tombstone
            survivors = frozenset(offsets)
        found = _keys_of(header, batch, self.read)
        if found is None:
            return None
        names, tombstones = self.latest.names, set(found.tombstones)
        kept = [
            number
            for number, (name, offset) in enumerate(zip(_names(found.keys), found.offsets, strict=True))
            # None: from before the topic was compacted
            if name is not None
            and (offset in survivors if is_dirty else name not in names)
            and not (expired and number in tombstones)
        ]
        return kept, not tombstones.isdisjoint(kept)

    def is_last(self, header: BatchHeader) -> bool:
        """Nothing comes after it in the segments; where they are all that was appended, the log ends with it."""
        return header.last_offset + 1 == self.plan.segments[-1].next_offset

    def clean_marker(self, header: BatchHeader, batch: memoryview, *, expired: bool) -> bytes | memoryview | None:
        if not self.transactions.may_drop_marker(header, batch):
            return batch
        if header.has_delete_horizon:
            return None if expired and not self.is_last(header) else batch
        return select(header, record_bytes(header, batch), list(range(header.count)), self.new_horizon())

    def new_horizon(self) -> int:
        return min(self.plan.now_ms + self.plan.delete_retention_ms, FOREVER)


class _Output:
    """Collects batches and writes them in large pieces."""

    def __init__(self, file: File, segment: Segment, index_interval_bytes: int) -> None:
        self._file, self._segment, self._interval = file, segment, index_interval_bytes
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._queued = self._position = 0

    def write(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        self._segment.append(header, self._interval)
        self._segment.offsets_crc = crc32c(batch[: PREFIX.size], self._segment.offsets_crc)
        self._pieces.append(bytes(batch))
        self._queued += len(batch)
        if self._queued >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            self._file.write(self._pieces, self._position)
            # With all of it at once the journal's syncs would wait behind the last one.
            self._file.begin_writeback(self._position, self._queued)
        self._position += self._queued
        self._pieces, self._queued = [], 0

    def finish(self) -> None:
        self._flush()
        if self._position:
            self._segment.offsets_crc = self._segment.offsets_crc or 1  # 0 says: not compacted
        self._file.sync()


class _Transactions:
    """Follows transactions through the batches, in offset order."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        """`aborted` are in the order of their markers."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in aborted:
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._with_data: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """The batch's records never became visible."""
        if not header.is_transactional or (of_producer := self._aborted.get(header.producer_id)) is None:
            return False
        # A producer has one transaction at a time: of those that end behind the batch only the first may hold it.
        place = bisect_left(of_producer, header.base_offset, key=MARKER_OFFSET)
        return place < len(of_producer) and of_producer[place].first_offset <= header.base_offset

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
