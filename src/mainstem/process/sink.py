"""The exactly-once sink: one Kafka transaction per micro-batch, from Spark to the log. The only way jobs write.

    sink = BatchSink(JobIdentity("enriched", "1", checkpoint), connection, [OutputTopic("shop.enriched", 4)])
    sink.open()
    stream.writeStream.foreachBatch(lambda df, n: sink.write(rows(df), n, end_offsets(n))).option(...).start()

The rules and what each is for: docs/decisions/sink.md; the protocol: `sink_commit`; what runs in Spark's workers:
`sink_task`. The rows are shuffled by output partition before they are written. That gives every partition one writer,
and it means that all of the job's own work is done, and lies on disk, before the transaction opens. Few rows come to
the driver instead, which writes them itself: `sink_direct`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import TransactionFailed, UnknownTopic
from mainstem.client.progress import Marker, NextOffsets, Output, Reads, Written
from mainstem.core import MainstemError, TopicPartition, UserError
from mainstem.core.logging import get_logger
from mainstem.process.checkpoint_copy import CheckpointCopy
from mainstem.process.murmur2 import partition_by
from mainstem.process.reading import BooksMissing, metrics_of
from mainstem.process.session import check_rules, driver_place
from mainstem.process.sink_commit import BatchCommitter, JobIdentity, TaskOutput, TaskPlan
from mainstem.process.sink_decision import Decision, SinkRefused
from mainstem.process.sink_direct import ORDER, FewRows, OutputTopic
from mainstem.process.sink_task import OUTPUT_SCHEMA, WriteShare, from_row, write_rows
from mainstem.records.fingerprint import MODULUS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["BatchResult", "BatchSink", "JobIdentity", "OutputTopic", "SinkRefused"]

log = get_logger()

_BATCHES_AFTER_MANY = 100  # that the workers write after one with more rows than the driver takes


class BatchResult(msgspec.Struct, frozen=True):
    """What became of a batch."""

    batch: int
    skipped: bool  # it was committed already, before Spark could write that down
    rows: int = 0
    outputs: dict[str, dict[int, Output]] = {}
    write_ms: float = 0.0  # the job's own work and the writing: Spark computes when rows are asked for
    commit_ms: float = 0.0
    again: dict[str, Written] = {}  # of one that is skipped: what its rows are now, by topic


class BatchSink:
    """Writes the batches of one query; one thread uses it. After an error, `open` again before the next batch."""

    def __init__(
        self,
        job: JobIdentity,
        connection: Connection,
        outputs: Sequence[OutputTopic],
        *,
        transaction_timeout_ms: int = 60_000,
        most_tasks: int | None = None,
        copy: CheckpointCopy | None = None,
        trace: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.outputs = tuple(outputs)
        self._job = job
        self._connection = connection
        self._timeout_ms = transaction_timeout_ms
        self._most_tasks = most_tasks
        self._copy = copy
        self._trace = trace
        self._committer: BatchCommitter | None = None
        self._plan: TaskPlan | None = None  # of the batch that is being written
        self._written: list[TaskOutput] = []
        self._ran: list[DataFrame] = []
        self._few: dict[tuple[str, ...], FewRows] = {}
        self._direct_from = 0  # the first batch whose rows may be few again

    def open(self, spark: "SparkSession | None" = None) -> Marker | None:
        """Fence older drivers of this version, then read what they committed last. Before the query starts.

        Raises:
            BadSparkSetting: this Spark may run a task twice within a batch.
        """
        from pyspark.sql import SparkSession

        spark = spark or SparkSession.active()
        check_rules(spark.sparkContext.getConf().get)
        if self._committer is None:
            self._committer = BatchCommitter(
                self._job,
                self._connection,
                claims=driver_place(spark),
                transaction_timeout_ms=self._timeout_ms,
                copy=self._copy,
                trace=self._trace,
            )
        return self._committer.open()

    def write(
        self,
        batch_df: "DataFrame",
        batch: int,
        end_offsets: Mapping[str, NextOffsets],
        tables: NextOffsets | None = None,
        *,
        start_offsets: Mapping[str, NextOffsets] | None = None,
        reads: Callable[[], Reads] = dict,
        topics: Callable[[], Mapping[str, str]] = dict,
        event_time: int = 0,
        recount: Callable[[], None] | None = None,
    ) -> BatchResult:
        """Write a batch once, whatever happens; on return it is durable and visible.

        Args:
            batch_df: columns `topic` string, `key` and `value` binary; optional `headers` array<struct<key string,
                value binary>>; optional `partition` int: where a row goes that has one, whatever its key; optional
                `_partition` int and `_offset` long of the input: rows are then written in their order. It is
                evaluated once, unless there is a `recount`.
            batch: the number that Spark gives.
            end_offsets: source -> topic -> partition -> next offset after the batch.
            tables: the pinned position of each table that the batch was joined with, for the progress record.
            start_offsets: where the batch starts, if known: then it is checked against the last commit.
            reads: called once the rows are written: what the batch read, for the audit. What it raises ends the batch;
                it may `add` rows to it.
            topics: called after `reads`: the id of each topic that the job reads or writes.
            event_time: of the marker: windows that end a delay before it are closed. In ms since 1970.
            recount: where the batch has few rows, most likely: the driver writes them itself then (`sink_direct`). It
                is called before they are evaluated once more because they were many after all.

        Raises:
            SinkRefused: marker and checkpoint do not fit together; the hint names the repair.
            Any other: nothing of the batch is visible; `open` again, then the same batch may be tried again.
        """
        committer = self._committer
        if committer is None:
            raise MainstemError("the sink is not open")
        started = time.monotonic()
        if committer.decide(batch, end_offsets, start_offsets) is Decision.SKIP:
            again = _summed(batch_df)  # also since the state of stateful operators must still advance
            log.info("batch_skipped", job=self._job.job, version=self._job.version, batch=batch)
            return BatchResult(batch, skipped=True, again=again)
        with self._batch(committer):
            self._write(batch, batch_df, end_offsets, recount)
            seen, written = reads(), time.monotonic()
            marker = committer.commit(batch, end_offsets, self._written, tables, seen, topics(), event_time)
        rows = sum(task.output.count for task in self._written)
        write_ms, commit_ms = (written - started) * 1000, (time.monotonic() - written) * 1000
        return BatchResult(batch, False, rows, marker.outputs, write_ms=write_ms, commit_ms=commit_ms)

    def note(
        self,
        batch: int,
        end_offsets: Mapping[str, NextOffsets],
        *,
        reads: Callable[[], Reads],
        topics: Callable[[], Mapping[str, str]],
        ends: NextOffsets,
    ) -> BatchResult:
        """Commit what a query that writes its rows itself has done up to the end of a batch: how far it has read, and
        what `reads` adds. There is nothing to decide: a batch that it runs again it has written again already.

        Args:
            batch: the last one that has ended.
            end_offsets: as for `write`.
            reads: likewise.
            topics: likewise.
            ends: of its outputs, behind all that it has written up to there.

        Raises:
            Any: nothing of it is visible; `open` again before the next.
        """
        committer, started = self._committer, time.monotonic()
        if committer is None:
            raise MainstemError("the sink is not open")
        with self._batch(committer):
            seen = reads()
            committer.commit(batch, end_offsets, self._written, None, seen, topics(), ends=ends)
        return BatchResult(batch, False, commit_ms=(time.monotonic() - started) * 1000)

    @contextmanager
    def _batch(self, committer: BatchCommitter) -> Iterator[None]:
        """A transaction, which `commit` ends within the block."""
        self._plan, self._written, self._ran = committer.begin(), [], []
        try:
            yield
        except BaseException as error:
            reason = committer.reason(error)
            committer.abort()
            if reason is not error:
                raise reason from error
            raise
        finally:
            self._plan, self._ran = None, []

    def close(self) -> None:
        """Abort what is open: readers of the outputs need not wait for its timeout."""
        if self._committer is not None:
            self._committer.close()
            self._committer = None

    def add(self, rows: "DataFrame", outputs: Sequence[OutputTopic]) -> None:
        """Write rows within the batch that is being written: to partitions that none of its rows has gone to yet.

        Raises:
            Any: the batch ends.
        """
        assert self._plan is not None, "no batch is being written"
        partitions = _partitions(outputs)
        placed = self._in_one_task_each(rows, outputs, len(partitions))
        run = placed.mapInArrow(WriteShare(self._plan, partitions), OUTPUT_SCHEMA)
        self._written += map(from_row, run.collect())
        self._ran.append(run)

    def observed(self, name: str) -> dict[str, Any]:
        """What `observe` has counted under a name while rows of the batch that is being written were used.

        Raises:
            BooksMissing: nothing.
        """
        for run in self._ran:
            with suppress(BooksMissing):
                return metrics_of(cast("Any", run)._jdf.queryExecution(), name)
        raise BooksMissing(f"no counts of {name} in this batch")

    def _write(
        self,
        batch: int,
        rows: "DataFrame",
        end_offsets: Mapping[str, NextOffsets],
        recount: Callable[[], None] | None,
    ) -> None:
        if recount is not None and batch >= self._direct_from:
            if self._write_directly(batch, rows, end_offsets):
                return
            self._direct_from = batch + _BATCHES_AFTER_MANY
            recount()
        self.add(rows, self.outputs)

    def _write_directly(self, batch: int, rows: "DataFrame", end_offsets: Mapping[str, NextOffsets]) -> bool:
        """Write them in this process; False: nothing is written, they are too many."""
        assert self._committer is not None
        names = tuple(rows.columns)
        if names not in self._few:
            self._few[names] = FewRows(self._job.job, names, self.outputs)
        run, found = self._few[names].collect(rows)
        if found is None:
            return False
        self._committer.settle(batch, end_offsets)
        if found.num_rows:
            try:
                with self._committer.writer() as writer:
                    self._written += write_rows(writer, _partitions(self.outputs), [found])
            except UnknownTopic as error:  # to be made anew where it may be, which the next start sees to
                raise TransactionFailed(str(error)) from error
        self._ran.append(run)
        return True

    def _in_one_task_each(self, rows: "DataFrame", outputs: Sequence[OutputTopic], partitions: int) -> "DataFrame":
        """Bring the rows of every output partition together in one task, in the order of the input."""
        from pyspark.sql import functions as F

        room = self._most_tasks or rows.sparkSession.sparkContext.defaultParallelism
        tasks, order = min(partitions, room), _order(rows)
        given = [name for name in ("key", "value", "headers", *order) if name in rows.columns]
        own = (self.target(rows, outputs).alias("_target"), F.xxhash64("key", "value").alias("_hash"))
        placed = rows.select(*own, *given).repartitionById(tasks, F.col("_target") % tasks)
        return placed.sortWithinPartitions(*order).drop(*order) if order else placed

    def target(self, rows: "DataFrame", outputs: Sequence[OutputTopic]) -> "Column":
        """The number of a row's output partition, over all outputs: as Kafka's Java clients choose it by the key; a
        row without a key stays with its neighbours from the same input partition.
        """
        from pyspark.sql import functions as F

        place = F.spark_partition_id()
        if "_partition" in rows.columns:
            place = F.coalesce(F.col("_partition"), place)
        given = F.col("partition") if "partition" in rows.columns else F.lit(None).cast("int")
        base, cases = 0, []
        for output in outputs:
            hashed = partition_by(rows.sparkSession, F.col("key"), output.partitions)
            chosen = F.coalesce(given, hashed, F.pmod(place, F.lit(output.partitions)))
            cases.append((output.topic, chosen + base))
            base += output.partitions
        if not cases:
            raise UserError(f"job {self._job.job}: the sink has no outputs")
        unknown = F.concat(F.lit("the job does not declare the output "), F.coalesce(F.col("topic"), F.lit("null")))
        first, *others = cases
        start = F.when(F.col("topic") == first[0], first[1])
        chain = reduce(lambda chain, case: chain.when(F.col("topic") == case[0], case[1]), others, start)
        return chain.otherwise(F.raise_error(unknown).cast("int")).cast("int")


def _summed(rows: "DataFrame") -> dict[str, Written]:
    """How many rows go to each topic, and their fingerprints; all of them are made."""
    from pyspark.sql import functions as F

    # Two sums of halves: one of 64-bit numbers would overflow, which Spark reports as an error.
    hashed = rows.select("topic", F.xxhash64("key", "value").alias("hash"))
    high, low = F.sum(F.shiftright("hash", 32)), F.sum(F.col("hash").bitwiseAND(F.lit(0xFFFF_FFFF)))
    found = hashed.groupBy("topic").agg(F.count("*").alias("rows"), high.alias("high"), low.alias("low")).collect()
    return {row["topic"]: Written(row["rows"], ((row["high"] << 32) + row["low"]) % MODULUS) for row in found}


def _partitions(outputs: Sequence[OutputTopic]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(each.topic, number) for each in outputs for number in range(each.partitions))


def _order(rows: "DataFrame") -> list[str]:
    return [name for name in ORDER if name in rows.columns]
