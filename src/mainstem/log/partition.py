"""One partition's log: the path of a record, top to bottom.

1. `append` checks batches, gives them offsets and places, and queues them;
2. `take_writes` hands the queue to the writer, which writes segments and journal and syncs (`writer` has the steps);
3. `written` or `synced` moves the high watermark past them, and their futures resolve;
4. `read` gives them to whoever asks.

How they leave is told in `housekeeping`, what a start finds in `recovery`. Everything here runs on the event loop,
except what is handed to a thread by name.
"""

import asyncio
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar, cast
from uuid import UUID

import msgspec

from mainstem.core import Clock, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import producers as producer_state
from mainstem.log.answers import Answers, AppendResult, ProducersBefore, Told
from mainstem.log.checkpoint import PartitionState
from mainstem.log.cold import ColdReads
from mainstem.log.config import TopicConfig
from mainstem.log.epochs import LeaderEpochs
from mainstem.log.errors import InvalidRecord, OffsetOutOfRange, StorageError
from mainstem.log.flushing import Flushing
from mainstem.log.index import AbortedTransaction
from mainstem.log.look_ups import LookUps
from mainstem.log.producers import AppendedBatch, Producer, Producers, Verify
from mainstem.log.reader import Piece, Reader
from mainstem.log.reading import OffsetAndTimestamp
from mainstem.log.round import PartitionWrites, Write
from mainstem.log.segment import OpenFiles, Segment
from mainstem.log.segments import SegmentList
from mainstem.log.threads import FileThreads
from mainstem.log.validation import (
    check_batch,
    iter_few_headers,
    looks_inside,
    prepare,
    rewrite,
    rewrites,
    takes_long,
)
from mainstem.log.writer import Writer
from mainstem.records import BatchHeader, Marker, build_marker
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, PREFIX, decode_header

PieceT = TypeVar("PieceT", bytes, Piece)

log = get_logger()


class Shared(msgspec.Struct, frozen=True):
    """What all partitions of a directory work with."""

    clock: Clock
    files: OpenFiles
    threads: FileThreads
    cold: ColdReads
    writer: Writer
    loop: asyncio.AbstractEventLoop
    look_ups: LookUps = msgspec.field(default_factory=LookUps)


class ReadResult(msgspec.Struct, Generic[PieceT], frozen=True):
    """Whole batches, the first of which holds the offset asked for (or the next one there is)."""

    pieces: list[PieceT]
    """Of whole batches each, none of them empty. A large read is not put together: that copy held everybody up."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """For a read of committed records: aborted transactions that touch what was read."""
    is_cut: bool = False
    """There may be more that could be read now: the reader had no room for it, or it is in the next segment."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.pieces))


class PartitionLog:
    """One ordered log. `log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset`.

    Of these the log start offset is included, the others are not. Offsets count records, positions and sizes bytes,
    times are milliseconds since 1970 in UTC.
    """

    def __init__(self, topic_partition: TopicPartition, topic_id: UUID, directory: Path, shared: Shared) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.number = topic_partition.partition
        self.fail_stop = False
        """A full disk takes the directory offline instead of undoing the append. So its owner wants it where his memory
        is ahead of the log while a record is on its way: a restart puts both right."""
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
        self.recovered = True
        """False: a start found damage. What is known of it is not the truth, and the checkpoint keeps its words."""
        self.append_error: StorageError | None = None
        """Why it takes no appends; it can still be read."""
        self.changed = True
        """Since the last checkpoint."""
        self.configured = False
        """Its topic's settings are known: before that nothing may be deleted."""
        self.segments = SegmentList(directory, shared.files)
        self.producer_table = Producers()
        self.shared = shared
        self._config = TopicConfig()
        self._rewrites = rewrites(self._config)
        self._answers = Answers()
        self._queue: list[Write] = []
        self._scheduled = False
        self._flushing = Flushing(shared.loop, self._schedule)
        self._reader = Reader(self.segments, self, shared.threads, shared.cold, shared.look_ups, shared.clock)
        self._listeners: dict[Callable[[], None], None] = {}
        self.leaving = asyncio.Lock()
        """Held while segments leave the log: one reason at a time."""

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
        if self.append_error is None:
            self._flushing.follow(config)

    @property
    def repair_hint(self) -> str:
        """What a person can do about damaged files."""
        data = shlex.quote(str(self.directory.parent))
        command = f"mainstem log repair --data {data} {self.topic_partition.topic} {self.number}"
        return f"acknowledged records are damaged: stop the log, then restore the file from a copy, or see: {command}"

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id to the first offset of its open transaction."""
        return MappingProxyType(self.producer_table.open_transactions)

    def producer(self, producer_id: int) -> Producer | None:
        """What the partition remembers of one producer."""
        return self.producer_table.get(producer_id)

    def producers(self) -> list[Producer]:
        """Every producer that the partition remembers."""
        return list(self.producer_table)

    @property
    def size_bytes(self) -> int:
        """Of all batches, those that are not durable yet too."""
        return self.segments.size_bytes

    def estimated_bytes(self, count: int) -> int:
        """About what so many offsets take, by the mean of all; 1 at least."""
        offsets = max(self.log_end_offset - self.log_start_offset, 1)
        return max(count * self.size_bytes // offsets, 1)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where leader epoch `epoch` ended: (the epoch found, its end offset); (-1, -1) for one not known here."""
        if epoch == self.leader_epoch:  # known before anything is appended in it, as in Kafka
            return epoch, self.log_end_offset
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def add_listener(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop whenever high watermark or last stable offset advance, or the partition goes."""
        self._listeners[callback] = None

    def remove_listener(self, callback: Callable[[], None]) -> None:
        """Call it no more; one that is not there is fine."""
        self._listeners.pop(callback, None)

    def check_usable(self) -> None:
        """Raise why the partition is offline, if it is.

        Raises:
            StorageError: as it was given to `go_offline`.
        """
        if self.error is not None:
            raise self.error.again()

    def check_appendable(self) -> None:
        """Raise why the partition takes no change, if it takes none.

        Raises:
            StorageError: the partition or its directory is offline.
        """
        if (error := self.error or self.append_error) is not None:
            raise error.again()

    # -- 1. append ----------------------------------------------------------------------------------------------------

    def takes_long(self, batches: bytes | memoryview) -> bool:
        """Whether `prepare` should be asked before `append`, which would do the same on the event loop.

        Raises:
            CorruptBatch: cut short, unknown format or bad CRC.
            InvalidRecord: more batches than are taken at once.
        """
        if not (self._rewrites or looks_inside(self._config)):
            return False
        return any(takes_long(header, self._config) for header in iter_few_headers(batches, self.topic_partition))

    def prepare(self, batches: bytes | memoryview) -> "asyncio.Future[bytes | memoryview]":
        """In a thread: check the batches, and give them with the topic's compression; the rest is left to `append`.

        The future fails with what is wrong.
        """
        now_ms = self.shared.clock.now_ms()
        return self.shared.threads.run(prepare, batches, self._config, now_ms, self.topic_partition)

    def append(
        self, batches: bytes | memoryview, *, verify: Verify | None = None, prepared: bool = False
    ) -> "asyncio.Future[AppendResult]":
        """`append_and_tell` for those who wait: the future resolves when the batches are durable.

        Raises:
            As `append_and_tell`.
        """
        future: asyncio.Future[AppendResult] = self.shared.loop.create_future()
        self.append_and_tell(batches, _resolver(future), verify=verify, prepared=prepared)
        return future

    def append_and_tell(
        self, batches: bytes | memoryview, told: Told, *, verify: Verify | None = None, prepared: bool = False
    ) -> None:
        """Append a producer's batches; `told` is called when they are durable (per `flush.messages`, `flush.ms`).

        The bytes must not change until then: they are not copied. A batch that repeats one of its producer's last
        five is not appended again; the first one's offsets are told, when those are durable, which may be at once.
        `verify` is asked about each transactional batch that is not a repetition, before anything changes; it raises to
        refuse it. `prepared` says that they come from `prepare`.

        Raises:
            CorruptBatch, InvalidRecord, InvalidTimestamp, BatchTooLarge: the bytes are not what the topic takes.
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState: the producer's order is broken.
            StorageError: the partition or its directory is offline.
        """
        self.check_appendable()
        now = self.shared.clock.now_ms()
        append_time = now if self._config.message_timestamp_type == "LogAppendTime" else -1
        view = memoryview(batches)
        # 1. validate: nothing changes before everything was found right
        headers = [decode_header(batches)] if batches else []
        if headers and headers[0].size < len(batches):  # a client sends one; others may send more
            headers = list(iter_few_headers(batches, self.topic_partition))
        if not headers:
            raise InvalidRecord(f"{self.topic_partition}: an append without a batch")
        if len(headers) > 1 and any(header.producer_id >= 0 for header in headers):
            # One answer cannot say that the first is repeated and the second is new; Kafka takes one batch of anybody.
            raise InvalidRecord(
                f"{self.topic_partition}: {len(headers)} batches, expected one of a producer with an id"
            )
        staged: dict[int, Producer] = {}
        parts: list[tuple[BatchHeader, memoryview]] = []
        next_offset = self.log_end_offset
        start = 0
        for header in headers:
            batch = view[start : start + header.size]
            check_batch(header, batch, self._config, now, self.topic_partition, looked_into=prepared)
            start += header.size
            if header.producer_id >= 0:
                timed = header if append_time < 0 else msgspec.structs.replace(header, max_timestamp=append_time)
                repeated = self.producer_table.stage(timed, next_offset, now, staged, verify, self.topic_partition)
                if repeated is not None:
                    self._answer_again(repeated, told)
                    return
            next_offset += header.last_offset - header.base_offset + 1
            parts.append(self._in_topics_form(header, batch, now))
        # 2. assign offsets, roll, queue
        first = self.log_end_offset
        for header, batch in parts:
            self._enqueue(header, batch)
        before = tuple((producer_id, self.producer_table.get(producer_id)) for producer_id in staged)
        for producer in staged.values():
            self.producer_table.put(producer)
        # 3. answer when the high watermark has passed it
        self._answers.add(
            AppendResult(first, self.log_end_offset - 1, append_time, self.log_start_offset), before, told
        )

    def _answer_again(self, batch: AppendedBatch, told: Told) -> None:
        append_time = batch.timestamp if self._config.message_timestamp_type == "LogAppendTime" else -1
        result = AppendResult(batch.base_offset, batch.last_offset, append_time, self.log_start_offset, duplicate=True)
        self._answers.repeat(result, self.high_watermark, told)

    def _in_topics_form(self, header: BatchHeader, batch: memoryview, now: int) -> tuple[BatchHeader, memoryview]:
        if not self._rewrites:
            return header, batch
        batch = memoryview(rewrite(header, batch, self._config, now, self.topic_partition))
        return decode_header(batch), batch

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int
    ) -> "asyncio.Future[AppendResult]":
        """End the producer's transaction in this partition; readers of committed records see it once it is durable.

        On the disk, that is, also where the topic trusts the page cache, and with it all that lies before the marker.

        Raises:
            InvalidProducerEpoch, CoordinatorFenced: the marker is older than what the partition has seen.
            StorageError: the partition or its directory is offline.
        """
        self.check_appendable()
        now = self.shared.clock.now_ms()
        marker = Marker(producer_id, producer_epoch, commit, coordinator_epoch)
        before = self.producer_table.get(producer_id)
        producer = producer_state.after_marker(before, marker, now, self.topic_partition)
        batch = build_marker(producer_id, producer_epoch, commit, coordinator_epoch, now)
        offset = self.log_end_offset
        self._enqueue(decode_header(batch), memoryview(batch))
        self._flushing.promised = True
        self.take_marker(before, producer, marker, offset)
        producers_before: ProducersBefore = ((producer_id, before),)
        future: asyncio.Future[AppendResult] = self.shared.loop.create_future()
        self._answers.add(AppendResult(offset, offset, -1, self.log_start_offset), producers_before, _resolver(future))
        return future

    def take_marker(self, before: Producer | None, after: Producer, marker: Marker, offset: int) -> None:
        """The marker at `offset` makes what is known of its producer `after`, and ends its transaction."""
        self.producer_table.put(after)
        if before is not None and (aborted := self.producer_table.end_transaction(before, marker, offset)):
            self.segments.active.add_aborted(aborted)

    def _enqueue(self, header: BatchHeader, batch: memoryview) -> None:
        """Give a batch its offsets and its place, and queue its bytes."""
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset - header.base_offset
        segment = self.segments.with_room(header, base_offset, self._config)
        self.epochs.assign(self.leader_epoch, base_offset)
        position = segment.count_in(last_offset, header.size, header.max_timestamp, self._config.indexed_bytes)
        if position == 0:  # only now the file comes into being
            self.segments.changed = True
        self.log_end_offset = last_offset + 1
        self._flushing.records += header.count
        prefix = PREFIX.pack(base_offset, header.size - BEFORE_LENGTH_COUNTS, self.leader_epoch)
        self._queue.append(Write(segment, position, prefix, batch[PREFIX.size :], header.size))
        self.changed = True
        self.shared.writer.count_batch()
        self._schedule()

    def roll(self) -> Segment:
        """Start a new segment at the log end offset; an active one that is empty is that already."""
        before = self.segments.active
        after = self.segments.roll(self.log_end_offset)
        self.changed = self.changed or after is not before
        return after

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.shared.writer.schedule(self)

    # -- 2. to the disk: what the writer asks --------------------------------------------------------------------------

    def take_writes(self) -> PartitionWrites:
        """Everything that was queued, for the round that begins.

        With `flush.messages=1` (or `flush.ms=0`) it is journaled: the round makes it durable, and `synced` is
        when it counts. Else `written` is: it survives the process, and the machine once its segment is synced, which
        this round does (`PartitionWrites.sync`) where the topic's number or time of records is reached. What was
        written like that before a topic was set to journal is synced too: what is promised from now on lies behind it
        in the file. What ends a transaction is journaled in every topic: whoever has the marker durable forgets what
        was open.
        """
        writes, self._queue = self._queue, []
        self._scheduled = False
        journaled = self._flushing.journals(self._config)
        sync = self._flushing.take(writes, self._config)
        latest = writes[-1].segment.latest if writes else self.segments.readable_latest
        return PartitionWrites(self, writes, self.log_end_offset, latest, journaled, sync)

    # -- 3. the high watermark: what the writer reports ----------------------------------------------------------------

    def written(self, ours: PartitionWrites) -> None:
        """It is in the page cache: for a topic that trusts it, that is enough to be read and acknowledged."""
        self._advance(ours)

    def synced(self, ours: PartitionWrites) -> None:
        """It survives a crash of the machine: if `written` was not enough, it is read and acknowledged from now on."""
        if ours.journaled:
            self._advance(ours)

    def _advance(self, ours: PartitionWrites) -> None:
        """Everything below their end is as durable as the topic asks for."""
        if not ours.writes:
            return
        last = ours.writes[-1]
        self.high_watermark = ours.end_offset
        self.segments.advance(last.segment, last.position + last.size, ours.latest)
        now = self.shared.clock.monotonic()
        for segment in {write.segment for write in ours.writes}:
            segment.trust.appended(segment.size, now)
        self._update_last_stable_offset()
        self._answers.give(self.high_watermark)
        self._notify()

    def _update_last_stable_offset(self) -> None:
        stable = self.producer_table.last_stable_offset(self.high_watermark)
        self.last_stable_offset = max(stable, self.log_start_offset)
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark <= self.log_end_offset

    def _notify(self) -> None:
        for callback in tuple(self._listeners):
            callback()

    # -- where it goes wrong ------------------------------------------------------------------------------------------

    def undo(self, ours: PartitionWrites, error: StorageError) -> None:
        """Forget every append that is not acknowledged, those that came after `ours` too; they fail with `error`.

        The disk had no room, or no file could be opened: nothing of them is in the journal or in a file.
        """
        self._flushing.again(ours.sync)
        if ours.end_offset <= self.high_watermark:
            return
        self._forget(self.segments.cut(self.high_watermark))
        if self.segments.active.size == 0:
            self._flushing.forget([self.segments.active])
        self.epochs.truncate_after(self.high_watermark)
        self.producer_table.undo(self._answers.producers_before(), self.high_watermark)
        self.log_end_offset = self.high_watermark
        self._queue = []
        self._flushing.promised = False
        self._answers.fail(error)
        self._answers.forget()
        self._update_last_stable_offset()

    def refuse_appends(self, error: StorageError) -> None:
        """The directory's disk failed: what is not acknowledged fails, and so does every later append."""
        self._queue = []
        self._take_no_more(error)
        self._answers.forget()

    def go_offline(self, error: StorageError) -> None:
        """Refuse every further use with `error`; what was not acknowledged fails with it.

        What is queued is written all the same: sizes, offsets and producers count it, and the next checkpoint says that
        it is there. How to undo it is known until then, since a full disk may still do that.
        """
        self.error = self.error or error.again()
        self._take_no_more(error)

    def _take_no_more(self, error: StorageError) -> None:
        self.append_error = self.append_error or error.again()
        self._flushing.stop()
        self._answers.fail(error)
        self._notify()

    def found_damage(self, segment: Segment, error: Exception) -> StorageError:
        """The segment cannot be read or does not check out: the partition goes offline, with what is returned."""
        failure = StorageError(f"{segment.path}: {error}", hint=self.repair_hint)
        log.error("partition_offline", partition=str(self.topic_partition), error=str(failure), hint=failure.hint)
        self.go_offline(failure)
        return failure

    # -- 4. read ------------------------------------------------------------------------------------------------------

    async def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        enough: int | None = None,
        committed_only: bool = False,
        at_least_one: bool = True,
    ) -> ReadResult[bytes]:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` of them. With `enough` bytes, what has
        to come from the disk is not waited for.

        The first batch may begin before `offset`. Nothing at or above the high watermark is given, with
        `committed_only` nothing at or above the last stable offset. With `at_least_one` the first batch is given even
        where it alone is larger than `max_bytes`.

        Raises:
            OffsetOutOfRange: below the log start offset, which may move meanwhile, or above the log end offset.
            StorageError: the partition is offline.
        """
        found = await self._read(
            offset, max_bytes, enough, committed_only=committed_only, at_least_one=at_least_one, slices=False
        )
        return cast("ReadResult[bytes]", found)

    async def read_to_send(
        self, offset: int, max_bytes: int, *, enough: int, committed_only: bool, at_least_one: bool
    ) -> ReadResult[Piece]:
        """`read`, where what is known to be right and in the page cache need not come into memory, and what comes from
        the disk lies in memory that is lent: who keeps it for long keeps more than it says.
        """
        return await self._read(
            offset, max_bytes, enough, committed_only=committed_only, at_least_one=at_least_one, slices=True
        )

    async def _read(
        self,
        offset: int,
        max_bytes: int,
        enough: int | None,
        *,
        committed_only: bool,
        at_least_one: bool,
        slices: bool,
    ) -> ReadResult[Piece]:
        self.check_usable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset}, expected {self.log_start_offset} to {self.log_end_offset}"
            )
        high_watermark, last_stable_offset = self.high_watermark, self.last_stable_offset  # they may move meanwhile
        limit = last_stable_offset if committed_only else high_watermark
        pieces, aborted, is_cut = await self._reader.read(
            offset,
            limit,
            max_bytes,
            max_bytes if enough is None else enough,
            at_least_one=at_least_one,
            with_aborted=committed_only,
            slices=slices,
        )
        return ReadResult(pieces, high_watermark, last_stable_offset, self.log_start_offset, aborted, is_cut)

    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record below the high watermark whose timestamp (ms) is at least `timestamp`; None without one.

        Raises:
            StorageError: the partition is offline.
        """
        return await self._reader.offset_for_timestamp(timestamp)

    async def latest_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record below the high watermark that has the latest timestamp of all; None in an empty log.

        Raises:
            StorageError: the partition is offline.
        """
        return await self._reader.latest_timestamp()

    # -- how records leave: `housekeeping` brings it to the disk -------------------------------------------------------

    def move_log_start(self, offset: int) -> None:
        """Nothing before `offset` counts any more; where more is gone already, that stays so."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.epochs.truncate_before(offset)
        self.changed = True
        self._update_last_stable_offset()

    def drop_segments(self) -> list[Segment]:
        """Forget the segments that are wholly before the log start offset; their files are the caller's to delete."""
        dropped = self.segments.drop_before(self.log_start_offset)
        self._forget(dropped)
        self.changed = self.changed or bool(dropped)
        return dropped

    def put_in_place(self, segment: Segment, base_offsets: list[int]) -> None:
        """A compacted segment is there instead of those with these base offsets."""
        self._forget(self.segments.replace(segment, base_offsets))
        self.changed = True

    def _forget(self, retired: list[Segment]) -> None:
        self._flushing.forget(retired)
        self.shared.look_ups.forget(retired)

    def expire_producers(self, expiration_ms: int) -> int:
        """Forget producers that have not written for so long; how many."""
        expired = self.producer_table.expire(self.shared.clock.now_ms() - expiration_ms)
        self.changed = self.changed or expired > 0
        return expired

    # -- its state at a checkpoint, and at a start ---------------------------------------------------------------------

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
            [segment.state() for segment in self.segments],
            list(self.producer_table),
            self.cleaned_offset,
            self.tombstones_expire_ms,
        )

    def start(self, *, bump_epoch: bool = False) -> None:
        """Everything that was found (nothing, in a new partition) is durable: take appends."""
        if not self.segments:
            self.segments.add(self.log_end_offset)
        if not self.segments.active.is_dense:  # nothing is appended to what compaction wrote
            self.roll()
        active = self.segments.active
        if active.base_offset and not active.size:  # its name says where the log ends, before others go
            active.file_to_write(0)
            self.segments.changed = True
        for dropped in self.drop_segments():
            dropped.unlink()
        self.segments.advance(active, active.size, active.latest)
        self.high_watermark = self.log_end_offset
        for segment in self.segments:
            segment.trust.end(segment.size)
            segment.is_saved(segment.state())
        if bump_epoch:
            self.raise_leader_epoch(self.leader_epoch + 1)
        self._update_last_stable_offset()

    def raise_leader_epoch(self, epoch: int) -> None:
        """What is appended from now on is of `epoch` or later: readers notice that something was cut off (KIP-320)."""
        self.leader_epoch = max(self.leader_epoch, epoch)
        self.epochs.assign(self.leader_epoch, self.log_end_offset)
        self.changed = True


def _resolver(future: "asyncio.Future[AppendResult]") -> Told:
    def told(result: AppendResult, error: StorageError | None) -> None:
        if future.done():  # a caller that is gone has cancelled it
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return told
