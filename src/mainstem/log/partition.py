"""One partition's log: the path of an append and of a read.

Everything here runs on the event loop, except what is handed to a thread by name. An append is validated, gets its
offsets and is queued; the writer brings it to the disk, and then the high watermark passes it and its future resolves.
"""

import asyncio
import errno
import shlex
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

import msgspec

from mainstem.core import Clock, CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import compaction
from mainstem.log import producers as producer_state
from mainstem.log.checkpoint import PartitionState
from mainstem.log.config import FOREVER, TopicConfig
from mainstem.log.epochs import LeaderEpochs
from mainstem.log.errors import BatchTooLarge, CorruptSegment, InvalidRecord, OffsetOutOfRange, StorageError
from mainstem.log.index import AbortedTransaction
from mainstem.log.journal import LOG_START, REPLACE, Entry
from mainstem.log.producers import AppendedBatch, Producer, Producers
from mainstem.log.reading import READ_SLACK, OffsetAndTimestamp, Part, cut, find_latest, find_timestamp, rest
from mainstem.log.retention import expired_before
from mainstem.log.segment import OpenFiles, Segment
from mainstem.log.threads import FileThreads
from mainstem.log.validation import check_batch, recompress, rewrite, rewrites, takes_long
from mainstem.log.writer import Batch, Write, Writer
from mainstem.records import BatchHeader, Marker, build_marker, decode_marker, iter_headers
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, PREFIX, decode_header

log = get_logger()

Verify = Callable[[BatchHeader], None]

_WANTING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
_INT32_MAX = 2**31 - 1
_READ_MOST = 16 * 2**20  # bytes of one read, whatever was asked; the reader comes back for more
_READ_STEP = 2**20 + READ_SLACK
"""Bytes that are read and gone through in one turn of the loop: 10 ms where batches are as small as can be. A usual fetch
(1 MB) is one step; 16 MB at once kept everybody else waiting for 0.2 s and more."""
_LONG_STEP = 2**18  # bytes after which others have their turn
_GROWN = 32  # times `max.message.bytes` that the batches of one append may grow by the topic's compression
_FLUSH_AGAIN_SECONDS = 1.0
_TRUSTED_BYTES = 32 * 2**20  # what this process appended last is in the page cache: reads need not check it again


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """Where an append went."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 where the producer's timestamps are kept (`CreateTime`)."""
    log_start_offset: int
    duplicate: bool = False
    """The batch was appended before; these are the offsets it got then."""


class ReadResult(msgspec.Struct, frozen=True):
    """Whole batches, the first of which holds the offset asked for (or the next one there is)."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """For a read of committed records: aborted transactions that touch what was read."""


class _Pending(msgspec.Struct, frozen=True):
    """An append that is not acknowledged yet, and how to undo it."""

    last_offset: int
    future: "asyncio.Future[AppendResult]"
    result: AppendResult
    producers_before: tuple[tuple[int, Producer | None], ...] = ()


class _Ended(msgspec.Struct, frozen=True, gc=False):
    """A transaction whose marker is not durable yet: it still holds back the last stable offset."""

    first_offset: int
    marker_offset: int


class _Replaced(Exception):
    """The segment was deleted or compacted while it was read or searched."""


class PartitionLog:
    """One ordered log. `log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        directory: Path,
        *,
        config: TopicConfig,
        clock: Clock,
        files: OpenFiles,
        threads: FileThreads,
        writer: Writer,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.number = topic_partition.partition
        self.fail_stop = topic_partition.topic.startswith("__")
        """A full disk takes the directory offline instead of undoing the append. So it is for Kafka's internal topics:
        a coordinator's memory is ahead of the log while a record is on its way, and a restart puts both right."""
        self.directory = directory
        self.leader_epoch = 0
        self.epochs = LeaderEpochs()
        self.log_start_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.log_end_offset = 0
        self.cleaned_offset = 0
        """Compaction has seen every record below it."""
        self.tombstones_expire_ms = 0
        """When the first tombstone that compaction has kept may go; 0 without one."""
        self.error: StorageError | None = None
        """Why the partition is offline; every use raises it."""
        self.append_error: StorageError | None = None
        """Why it takes no appends; it can still be read."""
        self.changed = True
        """Since the last checkpoint."""
        self.files_changed = False
        """Segments were added or deleted since the last checkpoint."""
        self.configured = False
        """Its topic's settings are known: before that nothing may be deleted."""
        self._config = config
        self._rewrites = rewrites(config)
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        self._high_watermark_place = (0, 0)  # base offset of its segment, position in it
        self._high_watermark_latest = (-1, 0)  # the latest timestamp before that position, and its offset
        self._producers = Producers()
        self._ended: list[_Ended] = []
        self._pending: deque[_Pending] = deque()
        self._retries: list[_Pending] = []  # duplicates of batches that are not durable yet
        self._queue: list[Write] = []
        self._scheduled = False
        self._unsynced: dict[Segment, None] = {}  # hold batches that are in no journal
        self._unsynced_records = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._listeners: list[Callable[[], None]] = []
        self._maintenance = asyncio.Lock()  # segments leave the log one reason at a time
        self._clock = clock
        self.files = files
        self._threads = threads
        self._writer = writer
        self._loop = loop

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; new ones hold from the next append on."""
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        self._config = config
        self._rewrites = rewrites(config)
        self.configured = True

    @property
    def repair_hint(self) -> str:
        """What a person can do about damaged files."""
        data = shlex.quote(str(self.directory.parent))
        command = f"mainstem log repair --data {data} {self.topic_partition.topic} {self.number}"
        return f"acknowledged records are damaged: stop the log, then restore the file from a copy, or see: {command}"

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id to the first offset of its open transaction."""
        return MappingProxyType(self._producers.open_transactions)

    def producer(self, producer_id: int) -> Producer | None:
        """What the partition remembers of one producer."""
        return self._producers.get(producer_id)

    def producers(self) -> list[Producer]:
        """Every producer that the partition remembers."""
        return list(self._producers)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where leader epoch `epoch` ended: (the epoch found, its end offset); (-1, -1) for one not known here."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever high watermark or last stable offset advance, or the partition goes."""
        self._listeners.append(callback)

    def remove_listener(self, callback: Callable[[], None]) -> None:
        if callback in self._listeners:
            self._listeners.remove(callback)

    # -- append -------------------------------------------------------------------------------------------------------

    def takes_long(self, batches: bytes | memoryview) -> bool:
        """Whether `prepare` should be asked before `append`, which would do the same on the event loop.

        Raises:
            CorruptBatch: cut short, unknown format or bad CRC.
        """
        if not (self._config.compacts or self._rewrites):
            return False
        return any(takes_long(header, self._config) for header in iter_headers(batches))

    def prepare(self, batches: bytes | memoryview) -> "asyncio.Future[bytes | memoryview]":
        """In a thread: check the batches, and give them with the topic's compression; the rest is left to `append`.

        The future fails with what is wrong.
        """
        return self._threads.run(self._prepare, batches, self._config, self._clock.now_ms())

    def _prepare(self, batches: bytes | memoryview, config: TopicConfig, now: int) -> bytes | memoryview:
        parts: list[bytes | memoryview] = []
        start = size = 0
        for header in iter_headers(batches):
            batch = memoryview(batches)[start : start + header.size]
            start += header.size
            check_batch(header, batch, config, now, self.topic_partition)
            parts.append(recompress(header, batch, config, self.topic_partition))
            size += len(parts[-1])
            # A client sends one batch; others may send more.
            if size > len(batches) + _GROWN * config.max_message_bytes:
                raise BatchTooLarge(f"{self.topic_partition}: {len(batches)} bytes of batches grow to more than {size}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def append(
        self, batches: bytes | memoryview, *, verify: Verify | None = None, prepared: bool = False
    ) -> "asyncio.Future[AppendResult]":
        """Append a producer's batches; the future resolves when they are durable (per `flush.messages`, `flush.ms`).

        The bytes must not change until then: they are not copied. A batch that repeats one of its producer's last
        five is not appended again; its future gives the first one's offsets, when those are durable. `verify` is asked
        about each transactional batch that is not a repetition, before anything changes; it raises to refuse it.
        `prepared` says that they come from `prepare`.

        Raises:
            CorruptBatch, InvalidRecord, InvalidTimestamp, BatchTooLarge: the bytes are not what the topic takes.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState: the producer's order is broken.
            StorageError: the partition or its directory is offline.
        """
        self._check_appendable()
        now = self._clock.now_ms()
        append_time = now if self._config.message_timestamp_type == "LogAppendTime" else -1
        view = memoryview(batches)
        # 1. validate: nothing changes before everything was found right
        headers = [decode_header(batches)] if batches else []
        if headers and headers[0].size < len(batches):  # a client sends one; others may send more
            headers = list(iter_headers(batches))
        if not headers:
            raise InvalidRecord(f"{self.topic_partition}: an append without a batch")
        staged: dict[int, Producer] = {}
        parts: list[tuple[BatchHeader, memoryview]] = []
        next_offset = self.log_end_offset
        start = 0
        for header in headers:
            batch = view[start : start + header.size]
            check_batch(header, batch, self._config, now, self.topic_partition, keys_checked=prepared)
            start += header.size
            if header.producer_id >= 0:
                repeated = self._stage(header, next_offset, now, append_time, staged, verify)
                if repeated is not None:
                    return self._answer_again(repeated)
            next_offset += header.last_offset - header.base_offset + 1
            parts.append(self._in_topics_form(header, batch, now))
        # 2. assign offsets, roll, queue
        first = self.log_end_offset
        for header, batch in parts:
            self._enqueue(header, batch)
        before = tuple((producer_id, self._producers.get(producer_id)) for producer_id in staged)
        for producer in staged.values():
            self._producers.put(producer)
        # 3. answer when the high watermark has passed it
        result = AppendResult(first, self.log_end_offset - 1, append_time, self.log_start_offset)
        return self._answer_when_durable(result, before)

    def _stage(
        self,
        header: BatchHeader,
        base_offset: int,
        now: int,
        append_time: int,
        staged: dict[int, Producer],
        verify: Verify | None,
    ) -> AppendedBatch | None:
        """Put the producer's state after the batch into `staged`, or return the batch that it repeats."""
        before = staged.get(header.producer_id) or self._producers.get(header.producer_id)
        repeated = producer_state.find_duplicate(before, header)
        if repeated is None:
            if verify is not None and header.is_transactional:
                verify(header)
            if append_time >= 0:
                header = msgspec.structs.replace(header, max_timestamp=append_time)
            staged[header.producer_id] = producer_state.after_batch(
                before, header, base_offset, now, self.topic_partition
            )
        return repeated

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int
    ) -> "asyncio.Future[AppendResult]":
        """End the producer's transaction in this partition; readers of committed records see it once it is durable.

        Raises:
            InvalidProducerEpoch, CoordinatorFenced: the marker is older than what the partition has seen.
            StorageError: the partition or its directory is offline.
        """
        self._check_appendable()
        now = self._clock.now_ms()
        marker = Marker(producer_id, producer_epoch, commit, coordinator_epoch)
        before = self._producers.get(producer_id)
        producer = producer_state.after_marker(before, marker, now, self.topic_partition)
        batch = build_marker(producer_id, producer_epoch, commit, coordinator_epoch, now)
        offset = self.log_end_offset
        self._enqueue(decode_header(batch), memoryview(batch))
        self._producers.put(producer)
        if before is not None:
            self._end_transaction(before, marker, offset)
        result = AppendResult(offset, offset, -1, self.log_start_offset)
        return self._answer_when_durable(result, ((producer_id, before),))

    def _end_transaction(self, before: Producer, marker: Marker, marker_offset: int) -> None:
        first_offset = before.transaction_first_offset
        if first_offset < 0:
            return
        self._ended.append(_Ended(first_offset, marker_offset))
        if not marker.commit:
            still_open = self._producers.first_open_offset()
            stable = marker_offset + 1 if still_open is None else still_open
            self._segments[-1].add_aborted(AbortedTransaction(marker.producer_id, first_offset, marker_offset, stable))

    def _check_usable(self) -> None:
        if self.error is not None:
            raise self.error

    def _check_appendable(self) -> None:
        if self.error is not None or self.append_error is not None:
            raise self.error or self.append_error or StorageError("offline")

    def _in_topics_form(self, header: BatchHeader, batch: memoryview, now: int) -> tuple[BatchHeader, memoryview]:
        if not self._rewrites:
            return header, batch
        batch = memoryview(rewrite(header, batch, self._config, now, self.topic_partition))
        return decode_header(batch), batch

    def _enqueue(self, header: BatchHeader, batch: memoryview) -> None:
        """Give a batch its offsets and its place, and queue its bytes."""
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset - header.base_offset
        segment = self._roll_if_needed(last_offset, header)
        self.epochs.assign(self.leader_epoch, base_offset)
        position = segment.count_in(last_offset, header.size, header.max_timestamp, self._config.index_interval_bytes)
        if position == 0:  # only now the file comes into being
            self.files_changed = True
        self.log_end_offset = last_offset + 1
        self._unsynced_records += header.count
        prefix = PREFIX.pack(base_offset, header.size - BEFORE_LENGTH_COUNTS, self.leader_epoch)
        self._queue.append(Write(segment, position, [prefix, batch[PREFIX.size :]], header.size))
        self.changed = True
        if not self._scheduled:
            self._scheduled = True
            self._writer.schedule(self)

    def _roll_if_needed(self, last_offset: int, header: BatchHeader) -> Segment:
        """The segment that takes the batch: the active one, or a new one where it is full or old."""
        active = self._segments[-1]
        if active.size == 0:
            return active
        full = active.size + header.size > self._config.segment_bytes
        far = last_offset - active.base_offset > _INT32_MAX
        age = header.max_timestamp - active.first_append_ms if active.first_append_ms >= 0 else 0
        if full or far or age > self._config.segment_ms:
            return self.roll()
        return active

    def roll(self) -> Segment:
        """Start a new segment at the log end offset; an active one that is empty is that already."""
        active = self._segments[-1]
        if active.size == 0:
            return active
        active.seal()
        self.changed = True
        return self._add_segment(self.log_end_offset)

    def _add_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.directory, base_offset, self.files)
        self._segments.append(segment)
        self._base_offsets.append(base_offset)
        self.files_changed = True
        return segment

    def _answer_when_durable(
        self, result: AppendResult, before: tuple[tuple[int, Producer | None], ...]
    ) -> "asyncio.Future[AppendResult]":
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        self._pending.append(_Pending(result.last_offset, future, result, before))
        return future

    def _answer_again(self, batch: AppendedBatch) -> "asyncio.Future[AppendResult]":
        append_time = batch.timestamp if self._config.message_timestamp_type == "LogAppendTime" else -1
        result = AppendResult(batch.base_offset, batch.last_offset, append_time, self.log_start_offset, duplicate=True)
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        if batch.last_offset < self.high_watermark:
            future.set_result(result)
        else:
            self._retries.append(_Pending(batch.last_offset, future, result))
        return future

    # -- what the writer asks and reports -----------------------------------------------------------------------------

    def take_writes(self) -> Batch:
        writes, self._queue = self._queue, []
        self._scheduled = False
        journaled = self._config.syncs_every_append
        sync: list[Segment] = []
        if not journaled:
            self._unsynced.update(dict.fromkeys(write.segment for write in writes))
        due = self._flush_due or self._unsynced_records >= self._config.flush_messages
        self._flush_due = False
        if self._unsynced and (journaled or due):
            sync = [segment for segment in self._unsynced if not segment.retired]
            self._unsynced.clear()
            self._unsynced_records = 0
            self._cancel_flush_timer()
        elif self._unsynced and self._flush_timer is None and self._config.flush_ms < FOREVER:
            self._flush_timer = self._loop.call_later(self._config.flush_ms / 1000, self._flush)
        latest = writes[-1].segment.latest if writes else self._high_watermark_latest
        return Batch(self, writes, self.log_end_offset, latest, journaled, sync)

    def _flush(self) -> None:
        """Sync with the next round what is in no journal."""
        self._flush_timer, self._flush_due = None, True
        if not self._scheduled:
            self._scheduled = True
            self._writer.schedule(self)

    def _cancel_flush_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def written(self, batch: Batch) -> None:
        self._advance(batch)

    def synced(self, batch: Batch) -> None:
        if batch.journaled:
            self._advance(batch)

    def _advance(self, batch: Batch) -> None:
        """Everything below the batch's end is as durable as the topic asks for."""
        if not batch.writes:
            return
        last = batch.writes[-1]
        self.high_watermark = batch.end_offset
        self._high_watermark_place = (last.segment.base_offset, last.position + last.size)
        self._high_watermark_latest = batch.latest
        self._update_last_stable_offset()
        while self._pending and self._pending[0].last_offset < self.high_watermark:
            _resolve(self._pending.popleft())
        if self._retries:
            for retry in self._retries:
                if retry.last_offset < self.high_watermark:
                    _resolve(retry)
            self._retries = [retry for retry in self._retries if retry.last_offset >= self.high_watermark]
        self._notify()

    def _update_last_stable_offset(self) -> None:
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.marker_offset >= self.high_watermark]
        stable = self._producers.first_open_offset()
        stable = self.high_watermark if stable is None else min(stable, self.high_watermark)
        for ended in self._ended:
            stable = min(stable, ended.first_offset)
        self.last_stable_offset = max(stable, self.log_start_offset)
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark <= self.log_end_offset

    def _notify(self) -> None:
        for callback in tuple(self._listeners):
            callback()

    def undo(self, batch: Batch, error: StorageError) -> None:
        """Forget every append that is not acknowledged; the disk had no room for them."""
        if unsynced := [segment for segment in batch.sync if not segment.retired]:
            # The round did not come to it; what is journaled next may lie behind bytes that only these syncs bring.
            self._unsynced.update(dict.fromkeys(unsynced))
            self._cancel_flush_timer()
            self._flush_timer = self._loop.call_later(_FLUSH_AGAIN_SECONDS, self._flush)
        if batch.end_offset <= self.high_watermark:
            return
        while self._segments[-1].base_offset > self.high_watermark:
            self._drop_last_segment()
        # One that begins at the high watermark stays, empty: what is before it is sealed, and compacted perhaps.
        base_offset, position = self._high_watermark_place
        active = self._segments[-1]
        if active.base_offset != base_offset:
            position = 0
        active.cut(position, self.high_watermark, self._high_watermark_latest)
        if active.size == 0:  # there may be no file to sync
            self._unsynced.pop(active, None)
        self.epochs.truncate_after(self.high_watermark)
        for pending in reversed(self._pending):
            for producer_id, before in pending.producers_before:
                self._producers.restore(producer_id, before)
        self._ended = [ended for ended in self._ended if ended.marker_offset < self.high_watermark]
        self.log_end_offset = self.high_watermark
        self._queue = []
        self._fail_waiting(error)
        self._pending.clear()
        self._update_last_stable_offset()

    def _drop_last_segment(self) -> None:
        self._base_offsets.pop()
        segment = self._segments.pop()
        segment.retired = True
        self._unsynced.pop(segment, None)
        self.files.forget(segment)
        with suppress(OSError):  # its name would say that the log ends there
            self.files.disk.unlink(segment.path)

    def refuse_appends(self, error: StorageError) -> None:
        """The directory's disk failed: what is not acknowledged fails, and so does every later append."""
        self._queue = []
        self._take_no_more(error)
        self._pending.clear()

    def go_offline(self, error: StorageError) -> None:
        """Refuse every further use with `error`; what was not acknowledged fails with it.

        What is queued is written all the same: sizes, offsets and producers count it, and the next checkpoint says that
        it is there. The pending appends stay until then, since a full disk may still undo them.
        """
        self.error = self.error or error
        self._take_no_more(error)

    def _take_no_more(self, error: StorageError) -> None:
        self.append_error = self.append_error or error
        self._cancel_flush_timer()
        self._fail_waiting(error)
        self._notify()

    def _fail_waiting(self, error: StorageError) -> None:
        waiting = [*self._pending, *self._retries]
        self._retries.clear()
        for pending in waiting:
            if not pending.future.done():
                pending.future.set_exception(error)

    # -- read ---------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, *, committed_only: bool = False, at_least_one: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` of them.

        The first batch may begin before `offset`. Nothing at or above the high watermark is given, with
        `committed_only` nothing at or above the last stable offset. With `at_least_one` the first batch is given even
        where it alone is larger than `max_bytes`.

        Raises:
            OffsetOutOfRange: below the log start offset or above the log end offset.
            StorageError: the partition is offline.
        """
        self._check_usable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset}, expected {self.log_start_offset} to {self.log_end_offset}"
            )
        high_watermark, last_stable_offset = self.high_watermark, self.last_stable_offset  # they may move meanwhile
        limit = last_stable_offset if committed_only else high_watermark
        records, next_offset = b"", offset
        segment = self._segment_of(offset)
        while segment is not None and offset < limit and (max_bytes > 0 or at_least_one) and not records:
            end = self._readable_end(segment)
            try:
                records, next_offset = await self._read_segment(
                    segment, offset, limit, end, max_bytes, at_least_one=at_least_one
                )
            except _Replaced:
                self._check_usable()  # the whole partition may be gone: then there is no other segment to go on with
                segment = self._segment_of(offset)
                continue
            # Nothing at or after the offset here: compaction took it out, the next segment goes on.
            segment = self._segment_after(segment)
        aborted = self._aborted_between(offset, next_offset) if committed_only and records else ()
        return ReadResult(records, high_watermark, last_stable_offset, self.log_start_offset, aborted)

    def _segment_of(self, offset: int) -> Segment | None:
        """The last segment that begins at or before `offset`, or the first one."""
        if not self._segments:
            return None
        return self._segments[max(0, bisect_right(self._base_offsets, offset) - 1)]

    def _segment_after(self, segment: Segment) -> Segment | None:
        place = bisect_right(self._base_offsets, segment.base_offset)
        return self._segments[place] if place < len(self._segments) else None

    def _readable_end(self, segment: Segment) -> int:
        """The bytes of the segment that are below the high watermark."""
        base_offset, position = self._high_watermark_place
        if segment.base_offset == base_offset:
            return position
        return segment.size if segment.base_offset < base_offset else 0

    async def _read_segment(
        self, segment: Segment, offset: int, limit: int, end: int, max_bytes: int, *, at_least_one: bool
    ) -> tuple[bytes, int]:
        """Batches of one segment, in steps between which others have their turn; and the offset behind them."""
        parts: list[bytes] = []
        left, most = max_bytes, _READ_MOST
        try:
            if not segment.indexed:
                await self._load_indexes(segment)
            indexed_offset, start = segment.offset_index.lookup(offset)
            next_offset = segment.base_offset
            size = min(left + READ_SLACK, end - start, _READ_STEP)
            while size > 0 and not (parts and segment.retired):
                data = await self._read_bytes(segment, start, size)
                verify = start < segment.restored_size or start < segment.size - _TRUSTED_BYTES
                part = Part(data, next_offset, segment.is_dense, segment.next_offset, indexed_offset, verify)
                first, last, next_offset = cut(part, offset, limit, left, at_least_one=at_least_one and not parts)
                if last > first:
                    parts.append(bytes(data[first:last]))
                    start, offset, indexed_offset = start + last, next_offset, -1
                    left, most = left - (last - first), most - (last - first)
                    more_fits = size >= _READ_STEP and min(left, most) > READ_SLACK
                    size = min(left, most, end - start, _READ_STEP) if more_fits else 0
                    if last - first >= _LONG_STEP:
                        await asyncio.sleep(0)
                    continue
                more = rest(part, offset, end - start)
                if more is None or (more[1] > min(left, most) if parts else more[1] > left and not at_least_one):
                    break
                skipped, size, next_offset = more
                start += skipped
                if skipped:  # else the batch that the index names is there again, this time whole
                    indexed_offset = -1
        except (OSError, CorruptData) as error:
            if segment.retired:
                raise _Replaced from error
            raise self._unreadable(segment, error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts), offset

    async def _read_bytes(self, segment: Segment, position: int, size: int) -> memoryview:
        """From the page cache on the loop if it is all there, else in a thread."""
        file = segment.file
        buffer = self._threads.buffer(size)
        if file.read_cached(buffer, position) == size:
            return buffer
        data = await self._threads.run(file.read, size, position)
        if len(data) < size:
            raise CorruptSegment(f"position {position}: {len(data)} bytes, {size} bytes were written")
        return memoryview(data)

    async def _load_indexes(self, segment: Segment) -> None:
        """Bring the look-ups of a segment from before the start into memory; in doubt, build them anew."""
        entries = await self._threads.run(segment.read_indexes)
        rebuilt = entries is None
        if entries is None:
            log.warning("index_rebuilt", partition=str(self.topic_partition), base_offset=segment.base_offset)
            entries = await self._threads.run(segment.rebuild_indexes, self._config.index_interval_bytes)
        if not segment.indexed:  # another reader may have been faster
            segment.fill_indexes(entries, rebuilt=rebuilt)
            self.changed = self.changed or rebuilt

    def _unreadable(self, segment: Segment, error: Exception) -> StorageError:
        """What a reader is told; only damage takes the partition offline, not a lack of memory or descriptors."""
        if isinstance(error, OSError) and error.errno in _WANTING:
            return StorageError(f"{segment.path}: {error}", hint="the machine or the process is short of it: try again")
        return self._broken(segment, error)

    def _broken(self, segment: Segment, error: Exception) -> StorageError:
        """The segment cannot be read, or its bytes do not check out: the partition goes offline."""
        failure = StorageError(
            f"{segment.path}: {error}",
            hint=self.repair_hint,
        )
        log.error("partition_offline", partition=str(self.topic_partition), error=str(failure))
        self.go_offline(failure)
        return failure

    def _aborted_between(self, offset: int, end: int) -> tuple[AbortedTransaction, ...]:
        place = max(0, bisect_right(self._base_offsets, offset) - 1)
        return tuple(
            transaction
            for segment in self._segments[place:]
            for transaction in segment.aborted
            if transaction.last_offset >= offset and transaction.first_offset < end
        )

    # -- look-ups by time ---------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record below the high watermark whose timestamp is at least `timestamp`."""

        async def look_up() -> OffsetAndTimestamp | None:
            for segment in tuple(self._segments):
                if segment.max_timestamp < timestamp:
                    continue
                found = await self._search(segment, partial(self._find_timestamp, segment, timestamp))
                if found is not None:
                    return found
            return None

        return await self._in_current_segments(look_up)

    async def latest_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record below the high watermark that has the latest timestamp of all."""

        async def look_up() -> OffsetAndTimestamp | None:
            for segment in sorted(self._segments, key=lambda s: s.max_timestamp, reverse=True):
                found = await self._search(segment, partial(self._find_latest, segment))
                if found is not None:
                    return found
            return None

        return await self._in_current_segments(look_up)

    async def _in_current_segments(
        self, look_up: Callable[[], Awaitable[OffsetAndTimestamp | None]]
    ) -> OffsetAndTimestamp | None:
        """Look up anew where a segment was deleted or compacted while it was searched."""
        while True:
            self._check_usable()
            with suppress(_Replaced):
                return await look_up()

    async def _find_timestamp(self, segment: Segment, timestamp: int) -> OffsetAndTimestamp | None:
        if not segment.indexed:
            await self._load_indexes(segment)
        start = segment.position_of(segment.time_index.lookup(timestamp))
        end, low, high = self._readable_end(segment), self.log_start_offset, self.high_watermark
        return await self._threads.run(find_timestamp, segment, start, end, timestamp, low, high)

    async def _find_latest(self, segment: Segment) -> OffsetAndTimestamp | None:
        end = self._readable_end(segment)
        return await self._threads.run(find_latest, segment, end, self.log_start_offset, self.high_watermark)

    async def _search(
        self, segment: Segment, search: Callable[[], Awaitable[OffsetAndTimestamp | None]]
    ) -> OffsetAndTimestamp | None:
        try:
            return await search()
        except (OSError, CorruptData) as error:
            if segment.retired:
                raise _Replaced from error
            raise self._unreadable(segment, error) from error

    # -- delete -------------------------------------------------------------------------------------------------------

    async def delete_records(self, before_offset: int) -> int:
        """Make `before_offset` the log start offset (-1: the high watermark), durably; the new log start offset.

        Raises:
            OffsetOutOfRange: above the high watermark.
            StorageError: the partition or its directory is offline.
        """
        self._check_appendable()
        target = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {target}, expected 0 to {self.high_watermark}")
        await self._advance_log_start(target)
        return self.log_start_offset

    async def enforce_retention(self) -> int:
        """Let go what `retention.ms` and `retention.bytes` do not keep; how many bytes that frees."""
        self._check_appendable()
        now = self._clock.now_ms()
        target = expired_before(self._segments, self.log_start_offset, self.high_watermark, self._config, now)
        if target > self._segments[-1].base_offset and self._segments[-1].size:
            self.roll()  # the active segment goes too: its successor takes the next append
        return await self._advance_log_start(target)

    async def _advance_log_start(self, target: int) -> int:
        """Make it durable, forget what is before it, delete the files; how many bytes that frees."""
        if target <= self.log_start_offset:
            return 0
        async with self._maintenance:
            entry = Entry(LOG_START, self.topic_id, self.number, target)
            await self._writer.note(entry, lambda: self._move_log_start(target))
            await self._create_active()
            dropped = self._drop_segments()
            await self._threads.run(_unlink, dropped)
        freed = sum(segment.size for segment in dropped)
        log.info("log_start_advanced", partition=str(self.topic_partition), offset=target, bytes_freed=freed)
        return freed

    async def _create_active(self) -> None:
        """Let the active segment's file be there before anything before it goes: its name says where the log ends."""
        try:
            await self._threads.run(self._segments[-1].file_to_write, 0)
            self.files_changed = True
        except OSError as error:
            raise StorageError(f"{self.topic_partition}: {error}") from error

    def _move_log_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.epochs.truncate_before(offset)
        self.changed = True
        self._update_last_stable_offset()

    def _drop_segments(self) -> list[Segment]:
        """Forget the segments that are wholly before the log start offset."""
        dropped = []
        while len(self._segments) > 1 and self._segments[1].base_offset <= self.log_start_offset:
            dropped.append(self._segments.pop(0))
            self._base_offsets.pop(0)
        for segment in dropped:
            segment.retired = True
            self._unsynced.pop(segment, None)
            self.changed = self.files_changed = True
        if dropped and self._high_watermark_place[0] < self._base_offsets[0]:
            self._high_watermark_place = (self._base_offsets[0], 0)
        return dropped

    def expire_producers(self, expiration_ms: int) -> int:
        """Forget producers that have not written for so long; how many."""
        expired = self._producers.expire(self._clock.now_ms() - expiration_ms)
        self.changed = self.changed or expired > 0
        return expired

    # -- compaction ---------------------------------------------------------------------------------------------------

    async def compact(self, cleaner: FileThreads, stop: threading.Event, *, most_keys: int) -> bool:
        """Keep the last record per key, where there is enough to gain; whether a compaction was completed.

        It runs in the cleaner's thread, and gives up soon after `stop` is set.
        """
        self._check_appendable()
        plan = self._plan_compaction(most_keys)
        if plan is None:
            return False
        try:
            await self._create_active()
            result = await cleaner.run(compaction.run, plan, self.files, stop)
        except CorruptData as error:
            raise self._broken(plan.segments[0], error) from error
        except OSError as error:
            if any(segment.retired for segment in plan.segments):
                return False  # they were deleted meanwhile
            raise StorageError(f"{self.topic_partition}: compaction: {error}") from error
        if result is None:
            return False
        before = sum(segment.size for segment in plan.segments)
        for number, cleaned in enumerate(result.files):
            if not await self._exchange(cleaned):
                # What comes later was written without what this one replaces: a tombstone gone from there would let
                # the value that is still here come back. The next pass does it all anew.
                await cleaner.run(compaction.discard, result.files[number:], self.files.disk)
                return False
        self.cleaned_offset = result.end_offset
        self.tombstones_expire_ms = result.horizon_ms
        self.changed = True
        log.info(
            "log_compacted",
            partition=str(self.topic_partition),
            end_offset=result.end_offset,
            bytes_before=before,
            bytes_after=before - sum(cleaned.gain for cleaned in result.files),
        )
        return True

    def waits_for_checkpoint(self) -> bool:
        """There are sealed segments that only a checkpoint makes ready for compaction."""
        return any(segment.checkpointed_size != segment.size for segment in self._segments[:-1])

    def roll_if_old(self) -> None:
        """Seal an active segment that has waited long enough for compaction."""
        active = self._segments[-1]
        lag = min(self._config.segment_ms, self._config.max_compaction_lag_ms)
        if active.size and 0 <= active.first_append_ms < self._clock.now_ms() - lag:
            self.roll()

    def _plan_compaction(self, most_keys: int) -> compaction.Plan | None:
        config, now = self._config, self._clock.now_ms()
        segments = compaction.cleanable(self._segments, self.last_stable_offset, config, now)
        dirty = [segment for segment in segments if segment.next_offset > self.cleaned_offset]
        overdue = any(0 <= s.first_append_ms < now - config.max_compaction_lag_ms for s in dirty)
        ratio = compaction.dirty_ratio(segments, self.cleaned_offset)
        enough = bool(dirty) and (overdue or ratio >= config.min_cleanable_dirty_ratio)
        tombstones = bool(segments) and 0 < self.tombstones_expire_ms <= now
        if not (enough or tombstones):
            return None
        return compaction.Plan(
            segments=segments,
            dirty_offset=self.cleaned_offset,
            end_offset=segments[-1].next_offset,
            aborted=[aborted for segment in self._segments for aborted in segment.aborted],
            last_offsets_of_producers=frozenset(producer.last_offset for producer in self._producers),
            now_ms=now,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            most_keys=most_keys,
        )

    async def _exchange(self, cleaned: compaction.Cleaned) -> bool:
        """Put the cleaned file in the place of what it replaces; False where some of that is gone meanwhile.

        1. say so in the journal, 2. rename the file, 3. forget the old segments, 4. delete the others' files.
        After a crash the journal decides: with its word the exchange is completed, without it the file is removed.
        """
        async with self._maintenance:
            if any(segment.retired for segment in cleaned.replaces):
                return False
            replacement = compaction.Replacement(
                cleaned.segment.state(), [segment.base_offset for segment in cleaned.replaces]
            )
            entry = Entry(REPLACE, self.topic_id, self.number, payload=(msgspec.msgpack.encode(replacement),))
            await self._writer.note(entry, lambda: self._replace(cleaned))
            await self._threads.run(_unlink, cleaned.replaces[1:])
            await self._threads.run(self.files.forget, cleaned.replaces[0])  # the new file has its name
            return True

    def _replace(self, cleaned: compaction.Cleaned) -> None:
        if any(segment.retired for segment in cleaned.replaces):  # the partition was deleted meanwhile
            return
        # On the loop: a rename is quick, and nobody may see the new segment with the old file.
        self.files.disk.rename(cleaned.path, cleaned.segment.path)
        self._put_in_place(cleaned.segment, [segment.base_offset for segment in cleaned.replaces])

    def _put_in_place(self, segment: Segment, base_offsets: list[int]) -> None:
        start = self._base_offsets.index(base_offsets[0])
        end = start + len(base_offsets)
        if self._high_watermark_place[0] in base_offsets:
            self._high_watermark_place = (segment.base_offset, segment.size)
        for replaced in self._segments[start:end]:
            replaced.retired = True
            self._unsynced.pop(replaced, None)
        self._segments[start:end] = [segment]
        self._base_offsets[start:end] = [segment.base_offset]
        self.changed = self.files_changed = True

    # -- recovery (in a thread, before the partition is given to anybody) ---------------------------------------------

    def state(self) -> PartitionState:
        """What the checkpoint keeps of it; everything that was appended counts."""
        return PartitionState(
            self.topic_partition.topic,
            self.number,
            self.topic_id.hex,
            self.log_start_offset,
            self.log_end_offset,
            self.leader_epoch,
            self.epochs.entries(),
            [segment.state() for segment in self._segments],
            list(self._producers),
            self.cleaned_offset,
            self.tombstones_expire_ms,
        )

    def restore(self, state: PartitionState) -> None:
        """Be what the checkpoint says."""
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.leader_epoch = state.leader_epoch
        self.epochs = LeaderEpochs(state.epochs)
        self.cleaned_offset = state.cleaned_offset
        self.tombstones_expire_ms = state.tombstones_expire_ms
        for segment in state.segments:
            self._segments.append(Segment(self.directory, segment.base_offset, self.files, segment))
            self._base_offsets.append(segment.base_offset)
        for producer in sorted(state.producers, key=lambda p: p.transaction_first_offset):
            self._producers.put(producer)
        self.changed = False

    def replay_log_start(self, offset: int) -> None:
        """The journal says that nothing before `offset` counts any more."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.epochs.truncate_before(offset)
        self.changed = True

    def replay_replacement(self, replacement: compaction.Replacement) -> list[Segment]:
        """The journal says that compaction exchanged segments; those that have gone."""
        gone = [segment for segment in self._segments if segment.base_offset in replacement.base_offsets[1:]]
        segment = Segment(self.directory, replacement.state.base_offset, self.files, replacement.state)
        cleaned = segment.path.with_name(segment.path.name + compaction.CLEANED)
        if self.files.disk.exists(cleaned):
            self.files.disk.rename(cleaned, segment.path)
        self._put_in_place(segment, replacement.base_offsets)
        return gone

    def replay_segment(self, base_offset: int) -> Segment:
        """The active segment, which begins at `base_offset`; a new one if that is the log end offset."""
        if not self._segments or self._segments[-1].base_offset != base_offset:
            if self._segments:
                self._segments[-1].seal()
            self._add_segment(base_offset)
            self.changed = True
        return self._segments[-1]

    def replay(self, header: BatchHeader, batch: memoryview, *, append_ms: int | None = None) -> None:
        """Count in a batch that the active segment's file holds; it was appended now at the latest, if nothing says when."""
        if append_ms is None:
            append_ms = self._clock.now_ms()
        self._segments[-1].append(header, self._config.index_interval_bytes)
        self.files_changed = True
        self.epochs.assign(header.leader_epoch, header.base_offset)
        self.leader_epoch = max(self.leader_epoch, header.leader_epoch)
        self.log_end_offset = header.last_offset + 1
        self.changed = True
        if header.producer_id < 0:
            return
        before = self._producers.get(header.producer_id)
        if header.is_control:
            marker = decode_marker(batch)
            self._producers.put(producer_state.replay_marker(before, marker, header.max_timestamp, append_ms))
            if before is not None:
                self._end_transaction(before, marker, header.base_offset)
        else:
            self._producers.put(producer_state.replay_batch(before, header, append_ms))

    def start(self, *, bump_epoch: bool = False) -> None:
        """Everything that was found (nothing, in a new partition) is durable: take appends."""
        if not self._segments:
            self._add_segment(self.log_end_offset)
        if not self._segments[-1].is_dense:  # nothing is appended to what compaction wrote
            self.roll()
        _unlink(self._drop_segments())
        last = self._segments[-1]
        self._high_watermark_place = (last.base_offset, last.size)
        self._high_watermark_latest = last.latest
        self.high_watermark = self.log_end_offset
        for segment in self._segments:
            segment.restored_size = segment.checkpointed_size = segment.size
        if bump_epoch:
            self.raise_leader_epoch(self.leader_epoch + 1)
        self._update_last_stable_offset()

    def raise_leader_epoch(self, epoch: int) -> None:
        """What is appended from now on is of `epoch` or a later one: readers notice that something was cut off (KIP-320)."""
        self.leader_epoch = max(self.leader_epoch, epoch)
        self.epochs.assign(self.leader_epoch, self.log_end_offset)
        self.changed = True


def _resolve(pending: _Pending) -> None:
    if not pending.future.done():  # a caller that is gone has cancelled it
        pending.future.set_result(pending.result)


def _unlink(segments: list[Segment]) -> None:
    for segment in segments:
        segment.unlink()
