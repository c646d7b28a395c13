"""The shared-identity transaction: one Kafka transaction that many processes write and one of them commits.

The driver holds the transactional id. It fences, begins, commits and aborts (`SharedTransaction`). Tasks, in processes
of their own, produce with the driver's producer id and epoch (`TransactionWriter`), each to output partitions that
nobody else writes, so that sequences never collide. On the wire nothing else ties a transaction to a client.

    driver   fence ── begin ── ticket ──────────────────────────── commit_offsets ── commit
    tasks                        └── join(partition) ── batches ── finish

Two protocols. Where the cluster has finalized `transaction.version` 2 (KIP-890): producing adds the partition, and
every EndTxn bumps the epoch, so that a task left over from one transaction can never write into the next. Elsewhere:
AddPartitionsToTxn before the first batch, and the epoch changes with a fence only; sequences then go on from one
transaction to the next, so the driver remembers them.
"""

import asyncio
import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Literal

import msgspec
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from mainstem.client.cluster import Api, Cluster, Coordinator, nested
from mainstem.client.connection import Connection
from mainstem.client.errors import (
    BrokerUnavailable,
    CommitUnknown,
    Fenced,
    IdentityLost,
    RecordRefused,
    TookTooLong,
    TransactionFailed,
    UnknownTopic,
)
from mainstem.client.loop import LoopThread
from mainstem.client.progress import NextOffsets
from mainstem.core import TopicPartition
from mainstem.core.clock import since_boot
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, CRC_FROM, HEADER
from mainstem.wire.kafka import ErrorCode, Records

BATCH_BYTES = 256 * 1024
WINDOW = 4  # produce requests in flight per partition: a broker remembers the last 5 batches of a producer
ABORT_SECONDS = 5.0  # then whoever fences next aborts it, or the broker when it times out
_TRANSACTIONAL = 0x10
NEW_TOPIC_SECONDS = 5  # a topic that one broker has created may be unknown to another for a moment
SEQUENCES = 2**31  # they wrap to 0

FENCING = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
REFUSED = (
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.invalid_record,
    ErrorCode.invalid_timestamp,
    ErrorCode.topic_authorization_failed,
    ErrorCode.policy_violation,
)

# Answers about a group that never concern the transaction: offsets are committed to show the lag, nothing else.
GROUP_FINAL = (
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_instance_id,
    ErrorCode.stale_member_epoch,
    ErrorCode.group_authorization_failed,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.invalid_group_id,
)

Join = Callable[[TopicPartition], int]
"""Called once before the first batch to a partition; gives the sequence of that batch, or raises."""


class Ticket(msgspec.Struct, frozen=True):
    """What a task needs to write into the driver's transaction. It goes through pickle to other processes."""

    connection: Connection
    transactional_id: str
    producer_id: int
    producer_epoch: int
    implicit: bool  # transactions v2: producing adds the partition


class Appended(msgspec.Struct, frozen=True):
    """What was appended to one partition: the first and the last offset, and how many records."""

    base: int
    last: int
    count: int


class _Link:
    """A loop thread and the connections that live in it."""

    def __init__(self, connection: Connection) -> None:
        self.loop = LoopThread()
        self.cluster = Cluster(connection)

    def open(self) -> None:
        try:
            self.loop.run(self.cluster.open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.loop.run(self.cluster.close())
        self.loop.close()


class SharedTransaction:
    """The driver's side. Blocking; `join` may be called from other threads while the transaction is open.

    `trace` is told the name of every step when it is done, for timings and for tests that stop right there.
    `timeout_hint` says how a person gives transactions more than `timeout_ms`, where that can be set.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        timeout_hint: str = "",
        version: Literal[1, 2] | None = None,
        trace: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._timeout_hint = timeout_hint
        self._connection = connection
        self._version = version
        self._trace = trace
        self._link = _Link(connection)
        self._link.open()
        self._identity: tuple[int, int] | None = None  # producer id and epoch; None until fenced, and after an error
        self._holder: tuple[int, int] | None = None  # the last identity that was given to us
        self._joined: set[TopicPartition] = set()
        self._offsets_joined = False
        self._sequences: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._began_at = 0.0  # when the broker was about to hear of the transaction; 0 before

    @property
    def implicit(self) -> bool:
        """True with transactions v2."""
        if self._version is not None:
            return self._version == 2
        return self._link.cluster.features.get("transaction.version", 0) >= 2

    def fence(self) -> None:
        """Take the transactional id: older holders can write and commit no more, and what they left open is aborted.

        Raises:
            BrokerUnavailable: no verdict within the transaction timeout.
        """
        self._initialize(-1, -1)

    def fence_again(self) -> None:
        """Take the transactional id again after an error, unless somebody else has taken it since.

        What may be open is ended in the name of the last identity, which is refused to whoever was fenced.
        InitProducerId with that identity (KIP-360) does not tell before: Apache Kafka aborts the open transaction of
        the newer holder for it. Version 1: an id whose transaction was aborted for its age is taken for a lost one.

        Raises:
            Fenced: a newer holder has the id; it keeps it.
            BrokerUnavailable: no verdict within the transaction timeout; try again.
        """
        if self._holder is None:
            self.fence()
            return
        self._began_at = 0.0
        outcomes = (False, True) if self.implicit else (False,)  # it may be committed, and the answer was lost
        lost = False
        for committed in outcomes:
            self._identity = self._holder
            try:
                with contextlib.suppress(_NothingToEnd):
                    self._end(committed=committed)
                    break
            except IdentityLost:
                # Who has the id now, if anybody, has another producer id: nothing of theirs is aborted.
                lost = True
                break
        if lost or not self.implicit:
            self._initialize(*self._holder)
        elif self._identity is None:
            raise Fenced(f"{self.transactional_id}: a newer holder of the transactional id took over")

    def _initialize(self, producer_id: int, producer_epoch: int) -> None:
        self._identity, self._began_at = None, 0.0
        timeout = timedelta(milliseconds=self.timeout_ms)
        fields = {"transaction_timeout": timeout, "producer_id": producer_id, "producer_epoch": producer_epoch}
        fields["transactional_id"] = self.transactional_id
        answer = self._ask_coordinator(Api.INIT_PRODUCER_ID, 5 if self.implicit else 4, fields)
        self._identity = self._holder = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        self._joined.clear()
        self._offsets_joined = False
        self._trace("fenced")

    def begin(self) -> Ticket:
        """Start a transaction; the broker hears of it with the first record or offset."""
        producer_id, producer_epoch = self._require_identity()
        if self._joined:
            raise TransactionFailed(f"{self.transactional_id}: the transaction before is open: abort it")
        self._began_at = 0.0
        return Ticket(self._connection, self.transactional_id, producer_id, producer_epoch, self.implicit)

    def join(self, partition: TopicPartition) -> int:
        """Let one writer write one partition; a second one is refused, since their sequences would collide.

        Returns:
            The sequence of the writer's first batch.
        """
        with self._lock:
            if partition in self._joined:
                raise TransactionFailed(f"{self.transactional_id}: {partition} is written already in this transaction")
            self._joined.add(partition)
            self._began_at = self._began_at or since_boot()
        if not self.implicit:
            self._add_partition(partition)
        return self._sequences.get(partition, 0)

    def writer(self, ticket: Ticket) -> "TransactionWriter":
        """A writer in this process, for the driver's own records, over the driver's own connections."""
        return TransactionWriter(ticket, self.join, _link=self._link, _judge=self._verdict)

    def commit_offsets(self, group: str, positions: NextOffsets) -> str:
        """Commit next offsets of a group within the transaction. They serve lag tools; nothing reads them back.

        Returns:
            Empty, or the reason why the group could not take them (it has members, a topic is gone); the transaction
            is sound in any case.
        """
        return self.send_offsets(group, positions)()

    def send_offsets(self, group: str, positions: NextOffsets) -> Callable[[], str]:
        """As `commit_offsets`, whose answer is what it gives, when that is called: before the transaction ends."""
        self._began_at = self._began_at or since_boot()
        if not self.implicit:
            self._ask_coordinator(Api.ADD_OFFSETS_TO_TXN, 3, {**self._who(), "group_id": group})
        self._offsets_joined = True
        version = 5 if self.implicit else 3
        entry = nested(Api.TXN_OFFSET_COMMIT, version, "TxnOffsetCommitRequestPartition")
        of_topic = nested(Api.TXN_OFFSET_COMMIT, version, "TxnOffsetCommitRequestTopic")
        topics = tuple(
            of_topic(
                name=topic,
                partitions=tuple(
                    entry(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for partition, offset in sorted(partitions.items())
                ),
            )
            for topic, partitions in sorted(positions.items())
        )
        fields = {**self._who(), "group_id": group, "topics": topics}
        work = self._until_verdict(Coordinator.GROUP, group, Api.TXN_OFFSET_COMMIT, version, fields, final=GROUP_FINAL)
        under_way = self._link.loop.start(work)

        def answer() -> str:
            try:
                under_way.result()
            except _Refused as refusal:
                if refusal.code not in GROUP_FINAL:
                    raise self._verdict(refusal.code, f"offsets of {group}") from refusal
                return refusal.code.name
            self._trace("offsets_committed")
            return ""

        return answer

    def commit(self, counts: Mapping[TopicPartition, int]) -> None:
        """Make all of it visible at once; durable on return. `counts`: the records that each partition received.

        Raises:
            Fenced: a newer driver took over; nothing of this transaction is or becomes visible.
            TransactionFailed: the broker has aborted it, nothing is visible.
            BrokerUnavailable: no answer; whether it is committed shows after the next `fence`. As `CommitUnknown`:
                nor does the one who holds the id now know.
        """
        with self._lock:
            joined = set(self._joined)
        if set(counts) != joined:
            raise TransactionFailed(f"{self.transactional_id}: {joined} were joined, {set(counts)} were reported")
        try:
            self._end(committed=True)
        except (Fenced, IdentityLost, TookTooLong) as error:
            if isinstance(error.__cause__, _Refused) and error.__cause__.is_repeated:  # the first one may have done it
                raise CommitUnknown(
                    f"{error}; the answer to a request before was lost, which may have committed it", hint=error.hint
                ) from error
            raise
        if not self.implicit:
            for partition, count in counts.items():
                self._sequences[partition] = (self._sequences.get(partition, 0) + count) % SEQUENCES

    def abort(self) -> None:
        """Give up what was written since `begin`. The identity is used up: `fence` before the next `begin`."""
        try:
            if self._identity is not None and (self._joined or self._offsets_joined):
                self._end(committed=False, seconds=ABORT_SECONDS)
        except (Fenced, IdentityLost):
            self._trace("abort_found_fenced")  # a newer holder aborted it already
        finally:
            self._identity = None
            self._joined.clear()
            self._offsets_joined = False

    def took_too_long(self) -> TookTooLong | None:
        """Where the open transaction is older than its timeout: what a writer in another process, which does not know
        its age, has met as a newer holder.
        """
        elapsed_ms = (since_boot() - self._began_at) * 1000 if self._began_at else 0.0
        if elapsed_ms < self.timeout_ms:
            return None
        return TookTooLong(
            f"{self.transactional_id}: took {elapsed_ms:.0f} ms, more than its timeout of {self.timeout_ms} ms: aborted",
            seconds=elapsed_ms / 1000,
            hint=self._timeout_hint,
        )

    def close(self) -> None:
        """Drop the connections. An open transaction stays open until it times out: `abort` first."""
        self._link.close()

    def _end(self, *, committed: bool, seconds: float | None = None) -> None:
        fields = {**self._who(), "committed": committed}
        self._trace("ending")
        try:
            answer = self._ask_coordinator(Api.END_TXN, 5 if self.implicit else 3, fields, seconds=seconds)
        except BaseException:
            self._identity = None
            raise
        if self.implicit:
            self._identity = self._holder = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        with self._lock:
            self._joined.clear()
        self._offsets_joined = False
        self._trace("ended")

    def _add_partition(self, partition: TopicPartition) -> None:
        topics = (
            nested(Api.ADD_PARTITIONS_TO_TXN, 3, "AddPartitionsToTxnTopic")(
                name=partition.topic, partitions=(partition.partition,)
            ),
        )
        fields = {f"v3_and_below_{name}": value for name, value in {**self._who(), "topics": topics}.items()}
        self._ask_coordinator(Api.ADD_PARTITIONS_TO_TXN, 3, fields)

    def _who(self) -> dict[str, Any]:
        producer_id, producer_epoch = self._require_identity()
        return {"transactional_id": self.transactional_id, "producer_id": producer_id, "producer_epoch": producer_epoch}

    def _require_identity(self) -> tuple[int, int]:
        if self._identity is None:
            raise TransactionFailed(f"{self.transactional_id}: not fenced since the last error: call fence()")
        return self._identity

    def _ask_coordinator(self, api: Api, version: int, fields: dict[str, Any], *, seconds: float | None = None) -> Any:
        """Ask the transaction's coordinator; its refusal is raised as the error that says what to do."""
        name = self.transactional_id
        try:
            work = self._until_verdict(Coordinator.TRANSACTION, name, api, version, fields, seconds=seconds)
            return self._link.loop.run(work)
        except _Refused as refusal:
            raise self._verdict(refusal.code, api.name.lower()) from refusal

    def _verdict(self, code: ErrorCode, doing: str) -> Exception:
        """A broker that aborted a transaction for its age has changed the epoch: it looks like a newer holder."""
        late = self.took_too_long() if code in FENCING else None
        return late or _verdict(code, f"{self.transactional_id}: {doing}")

    async def _until_verdict(
        self,
        kind: Coordinator,
        key: str,
        api: Api,
        version: int,
        fields: dict[str, Any],
        final: Container[ErrorCode] = (),
        seconds: float | None = None,
    ) -> Any:
        """Ask the coordinator, wherever it moves, until it says yes or no; a repeated request does no harm."""
        cluster, pause = self._link.cluster, _Pause(seconds or self.timeout_ms / 1000)
        may_be_done = False
        while True:
            try:
                connection = await cluster.coordinator(kind, key)
                sent = cluster.post(connection, api, version, **fields)
                self._trace(f"sent_{api.name.lower()}")
                before, may_be_done = may_be_done, True
                answer = await sent
                code = _first_error(answer)
                if code is ErrorCode.none:
                    return answer
                if code in final or not code.retriable:
                    raise _Refused(code, is_repeated=before)
                if code is ErrorCode.concurrent_transactions:
                    may_be_done = before
                reason = code.name
            except BrokerUnavailable as error:
                code, reason = ErrorCode.not_coordinator, str(error)
            if code is not ErrorCode.concurrent_transactions:
                cluster.forget_coordinator(kind, key)
            await pause.wait(f"{key}: {api.name.lower()}: {reason}")


class TransactionWriter:
    """A task's side: appends records to partitions within the driver's transaction. Blocking; one thread uses it."""

    def __init__(
        self,
        ticket: Ticket,
        join: Join,
        *,
        batch_bytes: int = BATCH_BYTES,
        timeout_ms: int = 60_000,
        _link: _Link | None = None,
        _judge: Callable[[ErrorCode, str], Exception] | None = None,
    ) -> None:
        self._ticket = ticket
        self._join = join
        self._batch_bytes = batch_bytes
        self._timeout_seconds = timeout_ms / 1000
        self._owns_link = _link is None
        self._link = _link or _Link(ticket.connection)
        if self._owns_link:
            self._link.open()
        self._judge = _judge or (lambda code, doing: _verdict(code, f"{ticket.transactional_id}: {doing}"))
        self._lanes: dict[TopicPartition, _Lane] = {}

    def append(
        self,
        partition: TopicPartition,
        keys: Iterable[bytes | None],
        values: Iterable[bytes | None],
        headers: Iterable[list[tuple[str, bytes | None]]] | None,
        timestamp_ms: int,
    ) -> None:
        """Append records in their order. They are sent as batches fill up; `finish` tells when all are acknowledged.

        Raises:
            Fenced, TransactionFailed, RecordRefused, BrokerUnavailable: abort the transaction.
        """
        lane = self._lane(partition)
        if headers is None:
            self._append_plain(lane, keys, values, timestamp_ms)
            return
        for key, value, header in zip(keys, values, headers, strict=True):
            builder = lane.builder or lane.new_builder(self._batch_bytes)
            if builder.append(lane.filled, timestamp_ms, key, value, header) is None:
                lane.seal()
                lane.new_builder(self._batch_bytes).append(0, timestamp_ms, key, value, header)
            lane.filled += 1

    def append_encoded(self, partition: TopicPartition, records: Any, count: int, timestamp_ms: int) -> None:
        """Append one batch of encoded records: a buffer of the records' section, offset deltas from 0."""
        lane = self._lane(partition)
        lane.seal()
        ticket, sequence = self._ticket, lane.take_sequences(count)
        lane.send(frame(records, count, timestamp_ms, ticket.producer_id, ticket.producer_epoch, sequence), count)

    def _lane(self, partition: TopicPartition) -> "_Lane":
        lane = self._lanes.get(partition)
        if lane is None:
            sequence = self._join(partition)
            lane = _Lane(self._ticket, self._link, partition, sequence, self._timeout_seconds, self._judge)
            self._lanes[partition] = lane
        return lane

    def _append_plain(
        self, lane: "_Lane", keys: Iterable[bytes | None], values: Iterable[bytes | None], timestamp_ms: int
    ) -> None:
        """The hot loop: everything that it looks up per record is a local name."""
        builder = lane.builder or lane.new_builder(self._batch_bytes)
        append, filled, none = builder.append, lane.filled, []  # type: ignore[var-annotated]
        for key, value in zip(keys, values, strict=True):
            if append(filled, timestamp_ms, key, value, none) is None:
                lane.filled = filled
                lane.seal()
                append, filled = lane.new_builder(self._batch_bytes).append, 0
                append(0, timestamp_ms, key, value, none)
            filled += 1
        lane.filled = filled

    def flush(self) -> None:
        """Send what is left, without waiting."""
        for lane in self._lanes.values():
            lane.seal()

    def finish(self) -> dict[TopicPartition, Appended]:
        """Send what is left and wait until every record is acknowledged."""
        self.flush()
        for lane in self._lanes.values():
            self._link.loop.call(lane.end)
        return {partition: lane.done.result() for partition, lane in self._lanes.items()}

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.done.cancel()
        if self._owns_link:
            self._link.close()

    def __enter__(self) -> "TransactionWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(
    records: Any, count: int, timestamp_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    """A transactional batch, uncompressed, all of one timestamp, around records that are encoded already."""
    head = bytearray(HEADER.pack(
        0, HEADER.size - BEFORE_LENGTH_COUNTS + len(records), -1, 2, 0, _TRANSACTIONAL, count - 1, timestamp_ms, timestamp_ms,
        producer_id, producer_epoch, base_sequence, count,
    ))  # fmt: skip
    struct.pack_into(">I", head, CRC_FROM - 4, crc32c(records, crc32c(memoryview(head)[CRC_FROM:])))
    return b"".join((head, records))


class _Batch(msgspec.Struct, frozen=True):
    data: Records
    count: int


class _Lane:
    """One partition's way to its leader: batches in order of their sequence, at most WINDOW of them unanswered.

    Sequences are fixed when a batch is sealed and stay the same however often it is sent: the broker knows a repeated
    batch by them, and gives the offset that it got the first time.
    """

    LIMIT = 2 * WINDOW  # sealed batches that wait in memory; then `seal` blocks

    def __init__(
        self,
        ticket: Ticket,
        link: _Link,
        partition: TopicPartition,
        sequence: int,
        timeout_seconds: float,
        judge: Callable[[ErrorCode, str], Exception],
    ) -> None:
        self.builder: Any = None
        self._judge = judge
        self.filled = 0
        self._ticket, self._cluster, self._loop, self._partition = ticket, link.cluster, link.loop, partition
        self._sequence = sequence
        self._timeout_seconds = timeout_seconds
        self._room = threading.BoundedSemaphore(self.LIMIT)
        # Below: only the loop's thread.
        self._unanswered: deque[_Batch] = deque()
        self._ended = False
        self._changed = asyncio.Event()
        self._base, self._last, self._count = -1, -1, 0
        self.done: Future[Appended] = self._loop.start(self._run())
        self.done.add_done_callback(lambda _: self._wake())

    def new_builder(self, batch_bytes: int) -> Any:
        ticket = self._ticket
        self.filled = 0
        self.builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=1, producer_id=ticket.producer_id,
            producer_epoch=ticket.producer_epoch, base_sequence=self._sequence, batch_size=batch_bytes,
        )  # fmt: skip
        return self.builder

    def seal(self) -> None:
        """Send what the builder holds."""
        if self.filled:
            data, count = bytes(self.builder.build()), self.filled
            self.builder, self.filled = None, 0
            self.take_sequences(count)
            self.send(data, count)

    def take_sequences(self, count: int) -> int:
        """The sequence of the next batch, which has `count` records."""
        sequence = self._sequence
        self._sequence = (sequence + count) % SEQUENCES
        return sequence

    def send(self, data: bytes, count: int) -> None:
        """Hand a batch to the loop; blocks while LIMIT batches wait. Raises what has stopped the lane."""
        self._room.acquire()
        if self.done.done():
            self.done.result()
        self._loop.call(self._offer, _Batch(Records(data), count))

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def _wake(self) -> None:
        """The lane has ended: nobody shall wait for room any longer."""
        try:
            self._room.release()
        except ValueError:
            return

    def _offer(self, batch: _Batch) -> None:
        self._unanswered.append(batch)
        self._changed.set()

    async def _run(self) -> Appended:
        pause = _Pause(self._timeout_seconds)
        while not (self._ended and not self._unanswered):
            try:
                await self._stream(pause)
            except (BrokerUnavailable, UnknownTopic) as error:
                if isinstance(error, UnknownTopic) and pause.waited > NEW_TOPIC_SECONDS:
                    raise
                self._cluster.forget_leaders(self._partition.topic)
                await pause.wait(f"{self._partition}: {error}")
        return Appended(self._base, self._last, self._count)

    async def _stream(self, pause: "_Pause") -> None:
        """Send and take answers until all is answered.

        Any refusal that may pass ends it: the next round sends every unanswered batch again, in order. The first batch
        goes alone: a leader that does not know the producer takes any sequence, so where it refuses the first (it has
        only just become leader) and takes the second, the first is out of order for good.
        """
        connection = await self._cluster.leader(self._partition)
        flying: deque[Awaitable[Any]] = deque()
        try:
            while True:
                window = WINDOW if self._count else 1
                while len(flying) < min(window, len(self._unanswered)):
                    flying.append(self._post(connection, self._unanswered[len(flying)]))
                if flying:
                    answer = await flying.popleft()
                    self._take(answer.responses[0].partition_responses[0])
                    pause.reset()
                elif self._ended:
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            await asyncio.gather(*flying, return_exceptions=True)

    def _post(self, connection: Any, batch: _Batch) -> Awaitable[Any]:
        version = 12 if self._ticket.implicit else 9
        of_topic, of_partition = (
            nested(Api.PRODUCE, version, "TopicProduceData"),
            nested(Api.PRODUCE, version, "PartitionProduceData"),
        )
        part = of_partition(index=self._partition.partition, records=batch.data)
        fields = {"transactional_id": self._ticket.transactional_id, "acks": -1, "timeout": timedelta(seconds=30)}
        data = (of_topic(name=self._partition.topic, partition_data=(part,)),)
        return self._cluster.post(connection, Api.PRODUCE, version, **fields, topic_data=data)

    def _take(self, result: Any) -> None:
        code = result.error_code
        if code is not ErrorCode.none:
            if code.retriable:
                raise BrokerUnavailable(code.name)
            raise self._judge(code, f"{self._partition}: {result.error_message or 'produce'}")
        batch = self._unanswered.popleft()
        self._room.release()
        self._base = result.base_offset if self._base < 0 else self._base
        self._last = result.base_offset + batch.count - 1
        self._count += batch.count


class _Pause:
    """Back-off between tries: 5 ms, doubled up to 250 ms; gives up after `seconds` without success."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        self._next = 0.005
        self._since = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the first failure."""
        return time.monotonic() - self._since if self._since else 0.0

    async def wait(self, reason: str) -> None:
        self._since = self._since or time.monotonic()
        if self.waited > self._seconds:
            raise _GaveUp(f"{reason}; gave up after {self._seconds:.0f} s")
        await asyncio.sleep(self._next)
        self._next = min(self._next * 2, 0.25)


class _GaveUp(BrokerUnavailable):
    pass


class _NothingToEnd(TransactionFailed):
    """No transaction is open, or it had the other outcome."""


class _Refused(Exception):
    """A coordinator's or leader's final no. `is_repeated`: the same request was sent before, and may be carried out."""

    def __init__(self, code: ErrorCode, *, is_repeated: bool) -> None:
        super().__init__(code.name)
        self.code, self.is_repeated = code, is_repeated


def _first_error(answer: Any) -> ErrorCode:
    """The first error of an answer, at whatever depth its API keeps it."""
    if hasattr(answer, "error_code"):
        return ErrorCode(answer.error_code)
    if hasattr(answer, "topics"):
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
    else:
        topics = answer.results_by_topic_v3_and_below
        codes = [partition.partition_error_code for topic in topics for partition in topic.results_by_partition]
    return next((ErrorCode(code) for code in codes if code is not ErrorCode.none), ErrorCode.none)


def _verdict(code: ErrorCode, where: str) -> Exception:
    if code in FENCING:
        return Fenced(f"{where}: {code.name}: a newer holder of the transactional id took over, or it timed out")
    if code is ErrorCode.invalid_producer_id_mapping:
        return IdentityLost(
            f"{where}: {code.name}: the transactional id was not used for too long, or a newer holder took over"
        )
    if code in REFUSED:
        return RecordRefused(f"{where}: {code.name}", hint="the topic's settings do not allow this record")
    kind = _NothingToEnd if code is ErrorCode.invalid_txn_state else TransactionFailed
    return kind(f"{where}: {code.name}")
