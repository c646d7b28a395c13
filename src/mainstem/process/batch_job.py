"""A running version of a job whose rows go in batches.

A job without state (tables may be joined) gets the rows of each batch; a job with state gets the stream itself. In both
cases a batch ends in the same steps, and what they write is one transaction of the sink:

    1. the plan of the batch is read: where it ends    2. tables are pinned    3. the function's rows become records
    4. the sink writes them    5. marker, with the books of what was read, and progress    6. commit
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.progress import Marker, NextOffsets, Reads, Written
from mainstem.core import SystemClock
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger
from mainstem.process.calling import call
from mainstem.process.culprit import FailedBatch, Range, first_that_fails, ranges_of, rows_of, shown
from mainstem.process.diagnosis import JobFailed
from mainstem.process.durations import milliseconds
from mainstem.process.figures import UnderWay
from mainstem.process.heartbeats import Follower
from mainstem.process.injections import with_heartbeats
from mainstem.process.job import RunningJob
from mainstem.process.job_spec import JobSpec, indexes_of, table_reads, tables_of
from mainstem.process.local_index import running
from mainstem.process.offsets import read_plan, records_between
from mainstem.process.order import with_position
from mainstem.process.outputs import records
from mainstem.process.passing_on import delay_of, last_look
from mainstem.process.planting import Stand, next_step, plant, stand_of
from mainstem.process.project import Input
from mainstem.process.reading import BooksMissing, forget_metrics, query_metrics
from mainstem.process.repartition import change_of, repartition
from mainstem.process.sink import BatchResult
from mainstem.process.sink_checkpoint import INJECTION_SOURCE
from mainstem.process.sink_direct import FEW_RECORDS
from mainstem.process.state_topic import StateTopic
from mainstem.process.tables import PinnedTable
from mainstem.process.task_slots import tasks_of
from mainstem.process.versions import write_fixed
from mainstem.registry.client import Registry
from mainstem.registry.spark import TopicSchema, unknown_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOKS_EVERY_MS = 1_000  # at most

log = get_logger()


class BatchJob(RunningJob):
    """The query of one version of a job, as `RunningJob`.

    Args:
        failed_batch: what the last try of the version has failed with.
    """

    def __init__(
        self,
        spec: JobSpec,
        spark: "SparkSession",
        connection: Connection,
        registry: Registry,
        follower: Follower,
        failed_batch: FailedBatch | None = None,
    ) -> None:
        super().__init__(spec, spark, connection, registry, follower)
        self._tables: dict[str, PinnedTable] = {}
        self._failed_before = failed_batch
        self._state_topic: StateTopic | None = None
        if spec.job.state is not None:
            columns = spec.analysis.results[-1].columns
            self._state_topic = StateTopic(spec.job, spec.outputs[-1], columns, spec.checkpoint)
        self._under_way = UnderWay(spec.name, SystemClock())
        self._indexes = indexes_of(spec, spark, connection, self._topics)

    def figures(self) -> dict[str, int]:
        """Those of any job, and for how long the batch that runs has done so."""
        return super().figures() | {"running_ms": self._under_way.ms}

    # -- the query

    def _open(self) -> "SparkSession":
        self._tables = tables_of(self.spec, self._connection, self._registry, self._schemas)
        session = super()._open()
        if self.spec.analysis.stateful and self._marker is not None:
            return self._in_partitions(session, self._marker)
        return session

    def _in_partitions(self, session: "SparkSession", marker: Marker) -> "SparkSession":
        """See that the state is in as many partitions as the settings say; the session to go on with."""
        spec, sink = self.spec, self._sink
        assert sink is not None
        change = change_of(spec.checkpoint, marker.batch, spec.config.state_partitions)
        if change is None:
            if spec.fixed.state_partitions != spec.config.state_partitions:
                write_fixed(
                    spec.home, msgspec.structs.replace(spec.fixed, state_partitions=spec.config.state_partitions)
                )
            return session
        if not stand_of(spec.checkpoint, marker.batch, marker.end_offsets).whole:
            self._begin(session, one_batch=True)
            self._await_end()
            self.stop()
            return self._open()
        repartition(session, spec.checkpoint, change)

        def reads() -> Reads:
            if self._state_topic is not None:
                self._state_topic.publish(sink, session, marker.batch)
            return {}

        sink.write(
            session.createDataFrame([], "topic string, key binary, value binary"),
            change.batch,
            marker.end_offsets,
            start_offsets=marker.end_offsets,
            reads=reads,
            topics=lambda: self._topics.kept | self._quarantine.kept,
            event_time=marker.event_time,
        )
        log.info("state_repartitioned", job=spec.name, batch=change.batch, partitions=change.partitions)
        self.stop()
        return self._open()

    def _begin(self, session: "SparkSession", *, one_batch: bool = False) -> None:
        """Start the query; with `one_batch` it runs the batch that is planned, and ends."""
        spec = self.spec
        stream = self._stateful_rows(session) if spec.analysis.stateful else self._tagged_rows(session)
        mode = "update" if spec.analysis.stateful and spec.job.emit == "changes" else "append"
        writer = stream.writeStream.queryName(spec.key).outputMode(mode).foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", str(spec.checkpoint))
        every = f"{_LOOKS_EVERY_MS} milliseconds" if self._wait_ms else spec.config.every
        writer = writer.trigger(once=True) if one_batch else writer.trigger(processingTime=every)
        self._error, self._has_worked = None, False
        self._last_batch = self._committed
        session.sparkContext.setLocalProperty("spark.scheduler.pool", spec.key)  # the query's thread inherits it
        self._query = writer.start()
        session.sparkContext.setLocalProperty("spark.scheduler.pool", "default")

    @property
    def _wait_ms(self) -> int:
        """A job that is paced by more than a second looks each second all the same, and goes on at once as long as what
        is there fills a batch: after days without it, it does not take as many. Not one by the clock: it would have a
        batch each time it looks.
        """
        every = milliseconds(self.spec.config.every) or 0
        return every if every > _LOOKS_EVERY_MS and not self.spec.analysis.by_the_clock else 0

    def stop(self) -> None:
        """As any job; then close the tables.

        Raises:
            JobHangs: its function does not return.
        """
        try:
            super().stop()
        finally:
            for table in self._tables.values():
                table.close()

    def land(self, to: NextOffsets | None) -> Stand | None:
        """As `RunningJob` says."""
        while True:
            self.stop()
            session = self._open()
            if self._marker is None:
                return None
            stand = stand_of(self.spec.checkpoint, self._marker.batch, self._marker.end_offsets)
            if stand.whole:
                bound = self.spec.config.max_offsets_per_trigger
                step = (
                    None if to is None else next_step(stand, to, bound, windows=self.spec.analysis.stateful is not None)
                )
                if step is None:
                    self.stop()
                    return stand
                plant(self.spec.checkpoint, stand.batch, step, SystemClock().now_ms())
            elif to is None:
                self.stop()
                return stand
            self._begin(session, one_batch=True)
            self._await_end()

    def _await_end(self) -> None:
        """Return when the query has ended by itself, or goes on after what can be mended here.

        Raises:
            JobFailed: it has failed.
        """
        assert self._query is not None
        try:
            while not self._query.awaitTermination(1):
                self._check_time()
        except JobFailed:
            raise
        except Exception:  # `check` knows more of it
            self.check()

    def has_worked(self) -> bool:
        """Whether the query has done a batch since it was started, or has found that there is nothing to do."""
        self._has_worked = self._has_worked or self._is_waiting()
        return self._has_worked

    def _is_waiting(self) -> bool:
        """For the next time to look for input, or for some."""
        if self._query is None or not self._query.isActive:
            return False
        return str(self._query.status["message"]).startswith("Waiting")

    def check(self) -> None:
        """As any job, and give up a batch that has taken too long.

        Raises:
            JobFailed: the query ended by an error, or that.
        """
        super().check()
        self._check_time()

    def _check_time(self) -> None:
        """Raises: JobFailed: the batch that runs has taken too long: who stops it frees what its tasks hold."""
        self._under_way.tell()
        spec, limit = self.spec, self.spec.config.batch_timeout_seconds
        if self._under_way.ms <= limit * 1000:
            return
        number = self._under_way.number
        error = JobFailed(
            None,
            f"batch {number} has run for more than {limit} s",
            hint=f"a function that hangs is to be mended; where it is slow, make batches smaller, max_offsets_per_trigger "
            f"under [jobs.{spec.name}], or give them more time: batch_timeout_seconds",
        )
        error.batch = FailedBatch(number, self._ranges(number))
        raise error

    def _all_schemas(self) -> list[TopicSchema]:
        return [*super()._all_schemas(), *(table.schema for table in self._tables.values())]

    # -- rows in

    def _tagged_rows(self, session: "SparkSession") -> "DataFrame":
        """The rows of all streams in one DataFrame, a column for each; the batch takes them apart again."""
        from pyspark.sql import functions as F

        most = self.spec.config.max_offsets_per_trigger
        parts = [
            self._rows(session, each, most).select(F.struct("*").alias(each.parameter)) for each in self.spec.streams
        ]
        result = parts[0]
        for part in parts[1:]:
            result = result.unionByName(part, allowMissingColumns=True)
        return self._in_few_tasks(result, self.spec.streams)

    def _in_few_tasks(self, rows: "DataFrame", streams: Sequence[Input]) -> "DataFrame":
        """The same rows in as many tasks as are the job's: partitions one after the other where they are more. Those
        that wait hold no place of Spark, which takes none away from a task that hangs.
        """
        most = self.spec.most_tasks
        return rows if most is None or tasks_of(self.spec.partitions, streams) <= most else rows.coalesce(most)

    def _stateful_rows(self, session: "SparkSession") -> "DataFrame":
        """The function's result on the streams, each with the job's heartbeats in it to move the watermark."""
        watermark = self.spec.job.watermark
        assert watermark is not None
        injections = self._passing_on.injections
        injections.take_over()
        # A source for each stream: Spark makes two of one that is in a plan twice, and refuses two of one name.
        sources = [INJECTION_SOURCE, *(f"{INJECTION_SOURCE}_{each.parameter}" for each in self.spec.streams[1:])]
        frames, most = {}, self.spec.config.max_offsets_per_trigger
        for each, source in zip(self.spec.streams, sources, strict=True):
            rows, beats = self._rows(session, each, most), injections.rows(session, watermark.column, source)
            rows = self._in_few_tasks(rows, [each])
            frames[each.parameter] = with_heartbeats(rows, beats, watermark.column, watermark.delay, each.parameter)
        (result,) = call(self.spec.job, frames, self.spec.version.directory)
        return with_position(result)

    # -- batches

    def _batch(self, rows: "DataFrame", number: int) -> None:
        """One batch; what goes wrong is kept as it was, for `check`: through Spark only its text would arrive."""
        try:
            with self._under_way.batch(number):
                self._run_batch(rows, number)
        except BaseException as error:
            self._error = error
            if self._query is not None and self._query.isActive:  # nobody stops it
                self._failed_batch = self._look_into(rows, number, error)
            raise

    def _look_into(self, rows: "DataFrame", number: int, error: BaseException) -> FailedBatch | None:
        """What the batch was, and with which row it fails, if it is one that fails alone."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        spec = self.spec
        try:
            ranges = self._ranges(number)
            last = self._failed_before
            is_same = last is not None and (last.batch, last.ranges) == (number, ranges)
            so_far = last.search if last is not None and is_same else None
            if is_same and so_far is None:
                return last
            is_of_a_row = isinstance(error, PySparkException | Py4JError) and unknown_id(error) is None
            if spec.analysis.stateful or not is_of_a_row:
                return FailedBatch(number, ranges)

            def fails(some: Sequence[Range]) -> bool:
                try:
                    for result in self._apply(rows_of(rows, some)):
                        result.write.format("noop").mode("append").save()
                except (PySparkException, Py4JError):
                    return True
                return False

            found = first_that_fails(ranges, fails, so_far=so_far)
            if isinstance(found, Range):
                return FailedBatch(number, ranges, shown(rows, found))
            return FailedBatch(number, ranges, search=found)
        except Exception as why:  # what is told of the failure itself is worth more
            log.warning("batch_not_looked_into", job=spec.name, batch=number, reason=one_line(why))
            return None
        finally:
            self._indexes.release()

    def _ranges(self, number: int) -> tuple[Range, ...]:
        """What a batch reads."""
        before, plan = (read_plan(self.spec.checkpoint, each) for each in (number - 1, number))
        return ranges_of({each.topic: each.parameter for each in self.spec.streams}, before.ends, plan.ends)

    def _run_batch(self, rows: "DataFrame", number: int) -> None:
        spec, sink = self.spec, self._sink
        assert sink is not None
        before, plan = read_plan(spec.checkpoint, number - 1), read_plan(spec.checkpoint, number)
        is_small = records_between(before.ends, plan.ends) <= FEW_RECORDS
        tables = self._pin()
        again = not spec.analysis.stateful and (spec.analysis.reads_again or len(spec.streams) > 1)
        kept = rows.persist() if again else None  # what is read twice would be counted twice

        def read() -> Reads:
            if self._state_topic is not None:
                self._state_topic.publish(sink, rows.sparkSession, number - 1)
            found = self._read(rows, before.ends, plan.ends, before.watermark)
            self._topics.check()  # after all that was read, before the commit
            return found

        try:
            results = (rows,) if spec.analysis.stateful else self._apply(rows)
            start = before.ends if number > 0 else None
            result = sink.write(
                records(spec.job, results, spec.results, self._quarantine, SystemClock().now_ms()),
                number,
                plan.ends,
                tables,
                start_offsets=start,
                reads=read,
                topics=lambda: self._topics.kept | self._quarantine.kept,
                event_time=plan.watermark + delay_of(spec) if plan.watermark else 0,
                recount=partial(self._recount, kept) if is_small else None,
            )
        finally:
            self._indexes.release()
            if kept is not None:
                kept.unpersist()
        if result.skipped:
            self._compare(result)
        self._remember(plan.ends)
        self._attempts, self._has_worked, self._result = 0, True, result
        self._last_batch = number
        log.debug("batch_done", job=spec.name, batch=number, rows=result.rows, skipped=result.skipped)

    def _compare(self, skipped: BatchResult) -> None:
        """A batch that was committed and has been run again for its state: see that this has made the same of it."""
        spec, marker = self.spec, self._marker
        if spec.analysis.stateful is None or marker is None or marker.batch != skipped.batch:
            return
        for each in spec.results:  # a quarantine has the time in it
            written = marker.outputs.get(each.topic, {}).values()
            before = sum((Written(one.count, one.hash) for one in written), Written())
            now = skipped.again.get(each.topic, Written())
            if before != now:
                log.warning(
                    "batch_differs", job=spec.key, batch=skipped.batch, topic=each.topic, written=before.count,
                    again=now.count, reason=f"{spec.analysis.determinism}: {spec.analysis.reason}",
                    hint="what it keeps is of the second run; `mainstem job reprocess` builds the job anew",
                )  # fmt: skip

    def _pin(self) -> dict[str, dict[int, int]]:
        """Move the tables to where their topics are now: all that is committed, nothing that is not."""
        for table in self._tables.values():
            table.move()
        return {table.schema.topic: table.position for table in self._tables.values()}

    def _apply(self, rows: "DataFrame") -> "tuple[DataFrame, ...]":
        """The function's results on the rows of this batch and the tables at their pinned positions, each with the
        positions that the sink orders them by.
        """
        from pyspark.sql import functions as F

        frames: dict[str, DataFrame] = {}
        for each in self.spec.inputs:
            if each.kind == "stream":
                mine = rows.filter(F.col(each.parameter).isNotNull()) if len(self.spec.streams) > 1 else rows
                frames[each.parameter] = mine.select(f"{each.parameter}.*")
            else:
                frames[each.parameter] = self._tables[each.parameter].frame(rows.sparkSession)
        with running(self._indexes):
            results = call(self.spec.job, frames, self.spec.version.directory)
        return tuple(map(with_position, results))

    # -- books and news

    def _read(
        self, rows: "DataFrame", start: Mapping[str, NextOffsets], end: Mapping[str, NextOffsets], watermark: int
    ) -> Reads:
        assert self._sink is not None
        counted = partial(self._counted, rows)
        reads = self._books.read(counted, rows.sparkSession, self._schemas, start, end, watermark, self._sink)
        return reads | table_reads(self._tables)

    def _counted(self, rows: "DataFrame", name: str) -> dict[str, Any]:
        """What was counted while the rows were used; if a job without state had no use for them, they are read now."""
        try:
            return query_metrics(self._query, name)
        except BooksMissing:
            if self.spec.analysis.stateful:
                raise
            rows.write.format("noop").mode("append").save()
            return query_metrics(self._query, name)

    def _recount(self, kept: "DataFrame | None") -> None:
        """The rows of this batch will be used again: what is counted of them begins anew, unless they are kept."""
        if kept is None:
            forget_metrics(self._query)

    def beat(self) -> None:
        """As any job, and pass on what the last batch has changed of the state."""
        # Where no batch follows the last one, a row that says nothing makes one, for what it has changed of the state.
        if time.time() - last_look(self._progress()) < self._wait_ms / 1000:
            return  # it would have a batch of its own
        state = self._state_topic
        if state is not None and self._is_waiting() and state.is_behind(self._root, self._last_batch):
            self._passing_on.wake(self._progress)
        super().beat()
