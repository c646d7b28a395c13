"""The sink's protocol without Spark: fence, marker, decision, one transaction per batch, commit.

    open     1. fence: no older driver can commit any more      2. read the marker
    batch    3. decide: run, skip or refuse                     4. begin; tasks claim partitions and produce
             5. send the input's offsets (they show the lag)    6. meanwhile sync the batch's plan in the checkpoint
             7. send marker and progress                        8. when all is acknowledged, end the transaction

Steps 5 and 6 need nothing of what step 4 gives: where the driver writes the rows itself, they run beside it (`settle`).
After any error the transaction is aborted, and a new `open` is needed: fence first, then read the marker.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.basis import furthest
from mainstem.client.connection import Connection
from mainstem.client.errors import Fenced, IdentityLost, TransactionFailed
from mainstem.client.internal import COMMITS, PROGRESS, job_group, job_key, job_transactional_id
from mainstem.client.progress import (
    Marker,
    NextOffsets,
    Output,
    Progress,
    Reads,
    add_reads,
    add_written,
    merge_positions,
    read_marker,
    with_ends,
)
from mainstem.client.transaction import SharedTransaction, Ticket, TransactionWriter
from mainstem.core import Clock, MainstemError, SystemClock, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.process.sink_claims import ClaimsAddress, ClaimsServer
from mainstem.process.sink_decision import Decision, check_owner, decide

if TYPE_CHECKING:
    from mainstem.process.checkpoint_copy import CheckpointCopy

log = get_logger()

_REFUSALS = tuple(f"{kind.__module__}.{kind.__qualname__}: " for kind in (TransactionFailed, IdentityLost, Fenced))
"""What a task raises whose rows or whose claim are refused, as Spark tells of it."""


class JobIdentity(msgspec.Struct, frozen=True):
    """A version of a job, and the checkpoint directory of its query (`checkpointLocation`)."""

    job: str
    version: str
    checkpoint: str


class TaskPlan(msgspec.Struct, frozen=True):
    """All that a task needs to write its part of a batch; it travels to the tasks by pickle."""

    ticket: Ticket
    claims: ClaimsAddress
    transaction: int


class TaskOutput(msgspec.Struct, frozen=True):
    """What one task wrote to one partition."""

    partition: TopicPartition
    output: Output


class BatchCommitter:
    """Blocking; one per running query, used by the thread that runs the batches."""

    def __init__(
        self,
        job: JobIdentity,
        connection: Connection,
        *,
        claims: tuple[str, str, int] = ("127.0.0.1", "", 0),
        transaction_timeout_ms: int = 60_000,
        clock: Clock | None = None,
        copy: "CheckpointCopy | None" = None,
        trace: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.job = job
        self.marker: Marker | None = None
        self._connection = connection
        self._checkpoint = Checkpoint(job.checkpoint)
        self._clock = clock or SystemClock()
        self._copy = copy
        self._trace = trace
        self._group = job_group(job.job, job.version)
        self._plan: TaskPlan | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mainstem-settle")
        self._settling: Future[None] | None = None  # of the batch that is being written
        self._closed = False
        self._transaction = SharedTransaction(
            connection,
            job_transactional_id(job.job, job.version),
            timeout_ms=transaction_timeout_ms,
            timeout_hint=f"give transactions more time: transaction_timeout_seconds under [jobs.{job.job}]",
            trace=trace,
        )
        host, bind, port = claims
        self._claims = ClaimsServer(host, bind=bind, port=port)

    def open(self) -> Marker | None:
        """Fence, then read the marker. In this order: after the fence no older transaction can still commit.

        The marker is read to the end that the topic had after the fence, also past open transactions of other jobs:
        stopping at the last stable offset would find an older marker, and a batch would be written twice.

        Where what is decided already shows that the job belongs to another checkpoint, it ends before the fence, which
        would stop the driver that has the right one. That look must not wait: what is open may be the transaction of
        our own last driver, which the fence ends.

        Raises:
            SinkRefused: the last commit belongs to another checkpoint.
        """
        found = read_marker(self._connection, self.job.job, self.job.version, decided=True)
        if found is not None:
            check_owner(found, self._checkpoint.started())
        self._transaction.fence()
        marker = read_marker(self._connection, self.job.job, self.job.version, linearizable=True)
        self.marker = marker and with_ends(self._connection, marker)
        self._trace("marker_read")
        return self.marker

    def decide(
        self, batch: int, end_offsets: Mapping[str, NextOffsets], start_offsets: Mapping[str, NextOffsets] | None = None
    ) -> Decision:
        """See `sink_decision`. Raises SinkRefused."""
        checkpoint = self._checkpoint.query_id()
        return decide(
            self.marker, checkpoint=checkpoint, batch=batch, end_offsets=end_offsets, start_offsets=start_offsets
        )

    def begin(self) -> TaskPlan:
        ticket = self._transaction.begin()
        number = self._claims.begin(self._transaction.join)
        self._plan = TaskPlan(ticket, self._claims.address, number)
        self._trace("begun")
        return self._plan

    def writer(self) -> TransactionWriter:
        """For rows that the driver writes itself."""
        assert self._plan is not None, "begin first"
        return self._transaction.writer(self._plan.ticket)

    def settle(self, batch: int, end_offsets: Mapping[str, NextOffsets]) -> None:
        """Begin steps 5 and 6; `commit` waits for them. The batch's rows are computed, and so is its state."""
        self._settling = self._thread.submit(self._settle, batch, merge_positions(end_offsets))

    def commit(
        self,
        batch: int,
        end_offsets: Mapping[str, NextOffsets],
        outputs: Iterable[TaskOutput] = (),
        tables: NextOffsets | None = None,
        reads: Reads | None = None,
        topics: Mapping[str, str] | None = None,
        event_time: int = 0,
        ends: NextOffsets | None = None,
    ) -> Marker:
        """Make the batch visible: its rows, its marker and its progress at once. Steps 5 to 8 above. `ends` are those
        of what others have written for it.

        Raises:
            TransactionFailed: nothing of the batch is visible.
            BrokerUnavailable: no answer to the last step; `open` shows whether it is committed.
        """
        assert self._plan is not None, "begin first"
        counts, by_topic = self._collect(outputs)
        positions = merge_positions(end_offsets)
        written_to = {topic: {p: each.last + 1 for p, each in parts.items()} for topic, parts in by_topic.items()}
        last = self._last_of(topics or {})
        ends = furthest(furthest(last.ends if last else {}, written_to), ends or {})
        marker = Marker(
            job=self.job.job,
            version=self.job.version,
            checkpoint=self._checkpoint.query_id(),
            batch=batch,
            end_offsets=dict(end_offsets),
            outputs=by_topic,
            written=add_written(last.written if last else {}, by_topic),
            read=add_reads(last.read if last else {}, reads or {}),
            topics={**(last.topics if last else {}), **(topics or {})},
            event_time=event_time,
            ends=ends,
            tables=dict(tables or {}),
        )
        progress = Progress(self.job.job, self.job.version, batch, positions, marker.tables, ends)
        if self._settling is None:
            self.settle(batch, end_offsets)
        assert self._settling is not None
        with self._transaction.writer(self._plan.ticket) as writer:
            if self._copy is not None:
                self._copy.send(writer, self._clock.now_ms())
            self._send_own(writer, {COMMITS: marker, PROGRESS: progress})
            self._settling.result()
            counts |= {partition: appended.count for partition, appended in writer.finish().items()}
        self._trace("marker_written")
        self._claims.end()
        if self._claims.refusal:
            raise TransactionFailed(f"{job_key(self.job.job, self.job.version)}: batch {batch}: {self._claims.refusal}")
        self._transaction.commit(counts)
        self._plan, self._settling, self.marker = None, None, marker
        if self._copy is not None:
            self._copy.committed()
        self._trace("committed")
        return marker

    def reason(self, error: BaseException) -> BaseException:
        """Why the batch has failed: a task that is refused does not know whether there is a newer driver, or the log
        has aborted the transaction for its age.
        """
        text = str(error)
        late = self._transaction.took_too_long() if any(each in text for each in _REFUSALS) else None
        return late or error

    def abort(self) -> None:
        """Give up the batch; `open` before the next one. Never raises:
        what cannot be aborted now, the next fence aborts.
        """
        self._claims.end()
        if self._settling is not None:
            wait([self._settling])  # an abort does not overtake them
        self._plan = self._settling = None
        try:
            self._transaction.abort()
        except MainstemError as error:
            log.warning("abort_failed", job=self.job.job, version=self.job.version, reason=str(error))
        self._trace("aborted")

    def close(self) -> None:
        """Abort what is open and leave: a dead driver's transaction would hold back readers until it times out."""
        if self._closed:
            return
        self._closed = True
        try:
            self.abort()
        finally:
            self._thread.shutdown()
            self._claims.close()
            self._transaction.close()

    def _last_of(self, topics: Mapping[str, str]) -> Marker | None:
        """The marker before, without what it says was written to topics that have been made anew since: a quarantine
        may be deleted.
        """
        last = self.marker
        if last is None:
            return None
        gone = {name for name, of in last.topics.items() if topics.get(name, of) != of}
        ends = {name: each for name, each in last.ends.items() if name not in gone}
        written = {name: each for name, each in last.written.items() if name not in gone}
        return msgspec.structs.replace(last, ends=ends, written=written)

    def _collect(self, outputs: Iterable[TaskOutput]) -> tuple[dict[TopicPartition, int], dict[str, dict[int, Output]]]:
        counts: dict[TopicPartition, int] = {}
        by_topic: dict[str, dict[int, Output]] = {}
        for task in outputs:
            counts[task.partition] = task.output.count
            by_topic.setdefault(task.partition.topic, {})[task.partition.partition] = task.output
        return counts, by_topic

    def _send_own(self, writer: TransactionWriter, records: Mapping[str, Marker | Progress]) -> None:
        """The driver's own records, last of all: an open transaction holds back all readers of these topics. They are
        under way while offsets are committed and the plan is synced.
        """
        key = job_key(self.job.job, self.job.version).encode()
        for topic, record in records.items():
            value = msgspec.json.encode(record)
            writer.append(TopicPartition(topic, 0), [key], [value], None, self._clock.now_ms())
        writer.flush()

    def _settle(self, batch: int, positions: NextOffsets) -> None:
        """Sync the plan while the log takes the offsets."""
        answer = self._transaction.send_offsets(self._group, positions) if positions else lambda: ""
        try:
            self._checkpoint.sync(batch)
            self._trace("plan_synced")
        finally:
            refusal = answer()
        if refusal:
            log.warning("lag_not_committed", group=self._group, reason=refusal)


def fence_job(connection: Connection, job: str, version: str) -> None:
    """Abort whatever a dead driver of this version left open, and keep it from writing: for jobs that are deleted."""
    transaction = SharedTransaction(connection, job_transactional_id(job, version))
    try:
        transaction.fence()
    finally:
        transaction.close()
