"""A running version of a job with `latency="realtime"`: a query in Spark's Real-Time Mode, whose rows are written as
they come.

It is a query from Spark's Kafka source to Spark's Kafka sink: a task for each partition that it reads, which runs as
long as the batch, `realtime_batch`. At its end Spark writes down where it ended; what was written since is written
again by whatever starts then. So its rows are there at least once.

    Spark                                                   here, once it has ended
    a batch: rows go to the output one by one
    offsets/N, commits/N: where it ended             ->     one transaction: marker with the books of what was read,
    the next batch                                          progress, the group's offsets; what does not decode goes
                                                            to the quarantine

What it has read is known exactly, and counted once, since only what lies behind the marker is noted: each record that
does not decode is in the quarantine once, at most a batch later. What it has written is not counted. A batch that has
found nothing is not noted. The transaction is that of all other jobs, so whoever retires the version, or starts it
elsewhere, fences this one too: its query stops when it next has something to note.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.client.basis import furthest
from mainstem.client.progress import NextOffsets
from mainstem.client.reader import RangeReader
from mainstem.client.topics import end_offsets
from mainstem.core import MainstemError
from mainstem.core.files import sync_directory
from mainstem.core.logging import get_logger
from mainstem.process.calling import call
from mainstem.process.diagnosis import JobFailed, JobRefused, java_text
from mainstem.process.job import RunningJob
from mainstem.process.offsets import read_plan
from mainstem.process.order import with_position
from mainstem.process.outputs import records
from mainstem.process.planting import Stand
from mainstem.process.reading import metrics_of, range_of
from mainstem.process.realtime_rules import batch_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = get_logger()

_LIMITATION = "STREAMING_REAL_TIME_MODE"
"""In the name of each error by which Spark says what it cannot do in Real-Time Mode."""
_LOUD = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
_NAME = "mainstem.realtime"
_WHOLE = b"v1\n{"
"""How a file of Spark's logs begins; of one that was cut some or all is zeros, or nothing is there."""
_RECORD = ("topic", "key", "value", "partition", "headers")


class RealtimeJob(RunningJob):
    """The query of one version of a job, as `RunningJob`."""

    _noted: Mapping[str, NextOffsets] = {}
    """Where the last marker ends."""
    _noted_at: Mapping[str, NextOffsets] | None = None
    """Where the batch ended, as Spark says it, that this was noted of; None: nobody knows any more."""
    _session: "SparkSession"

    def land(self, to: NextOffsets | None) -> Stand | None:
        """It stands nowhere: rows are written before it is known where a batch ends. Nobody asks (`landing`)."""
        raise JobFailed(None, 'latency="realtime": expected a version that can be held at a position')

    def has_worked(self) -> bool:
        """Whether a batch has ended since it was started."""
        return self._has_worked

    def beat(self) -> None:
        """Note what has ended; then as any job."""
        self._note_ended()
        super().beat()

    def check(self) -> None:
        """As any job, and see what Spark cannot do in this mode.

        Raises:
            JobFailed: the query ended by an error.
        """
        query = self._query
        if query is not None and not query.isActive and _LIMITATION in (text := java_text(self._root, query)):
            raise self._refused(text)
        super().check()

    def stop(self) -> None:
        """As any job. Its tasks run as long as its query does, and each would tell of its end with its stack."""
        with _quiet(self._root):
            super().stop()

    # -- the query

    def _open(self) -> "SparkSession":
        """As any job; then note what had ended when it stopped."""
        drop_torn_ends(self.spec.checkpoint)
        self._session = session = super()._open()
        ended = last_ended(self.spec.checkpoint)
        ends = read_plan(self.spec.checkpoint, ended).ends
        self._noted = dict(self._marker.end_offsets) if self._marker is not None else {}
        self._noted_at = ends if ends == self._noted else None
        if ended >= 0:
            self._note(ended, ends, partial(self._seen, {}))
        self._committed = ended  # the batch that the query goes on behind
        return session

    def _begin(self, session: "SparkSession") -> None:
        from pyspark.errors import AnalysisException

        spec = self.spec
        writer = self._records(session).writeStream.queryName(spec.key).format("kafka").outputMode("update")
        writer = writer.options(**self._connection.spark()).option("kafka.acks", "all")
        writer = writer.option("checkpointLocation", str(spec.checkpoint))
        self._error, self._has_worked, self._last_batch = None, False, self._committed
        session.sparkContext.setLocalProperty("spark.scheduler.pool", spec.key)  # the query's thread inherits it
        try:
            triggered = cast("Any", writer).trigger(realTime=f"{batch_ms(spec.config)} milliseconds")
            self._query = triggered.start()
        except AnalysisException as error:
            raise self._refused(str(error)) from error
        finally:
            session.sparkContext.setLocalProperty("spark.scheduler.pool", "default")

    def _refused(self, text: str) -> JobRefused:
        reason = " ".join(text.strip().partition("\n")[0].partition(" To bypass")[0].split())
        place = self.spec.version.in_project(self.spec.job.location)
        return JobRefused(place, f'latency="realtime": {reason}', hint="do it in a job of its own, of latency batch")

    def _records(self, session: "SparkSession") -> "DataFrame":
        """What the function makes of its streams, as Spark's sink takes it; to the partitions that any other job's sink
        would choose.
        """
        spec, sink = self.spec, self._sink
        assert sink is not None
        frames = {each.parameter: self._rows(session, each, None) for each in spec.streams}
        results = tuple(map(with_position, call(spec.job, frames, spec.version.directory)))
        found = records(spec.job, results, spec.results, self._quarantine, 0)
        placed = found.withColumn("partition", sink.target(found, sink.outputs))
        return placed.select(*(name for name in _RECORD if name in placed.columns))

    # -- what has ended

    def _note_ended(self) -> None:
        """What Spark says of batches comes once they have ended."""
        query: Any = self._query
        last = query.lastProgress
        if not last or last["batchId"] <= self._last_batch:
            return
        news = [last] if last["batchId"] == self._last_batch + 1 else query.recentProgress
        for progress in news:
            batch = progress["batchId"]
            if batch <= self._last_batch:
                continue
            before, plan = (read_plan(self.spec.checkpoint, number) for number in (batch - 1, batch))
            # Otherwise it has read some once more, or it is not known what lies between.
            seen = progress["observedMetrics"] if before.ends == self._noted_at else {}
            self._note(batch, plan.ends, partial(self._seen, seen))
            self._attempts, self._has_worked, self._last_batch = 0, True, batch
            self._tell(progress)

    def _note(self, batch: int, ends: Mapping[str, NextOffsets], counted: Callable[..., dict[str, Any]]) -> None:
        """Commit how far the query has got, where that is behind the last marker.

        Args:
            batch: that has ended.
            ends: where, by source, as Spark says it.
            counted: what was counted of a stream from the last marker up to some ends, by its parameter.
        """
        spec, sink = self.spec, self._sink
        assert sink is not None
        reached = self._reached(ends)
        if reached == self._noted:
            return
        _sync_end(spec.checkpoint, batch)

        def reads() -> Any:
            observed = partial(counted, ends=reached)
            found = self._books.read(observed, self._session, self._schemas, self._noted, reached, 0, sink)
            self._topics.check()  # after all that was read, before the commit
            return found

        self._result = sink.note(
            batch,
            reached,
            reads=reads,
            topics=lambda: self._topics.kept | self._quarantine.kept,
            ends={each.topic: end_offsets(self._connection, each.topic) for each in spec.results},
        )
        self._noted, self._noted_at = reached, ends
        self._remember(reached)
        log.debug("batch_noted", job=spec.name, batch=batch)

    def _reached(self, ends: Mapping[str, NextOffsets]) -> dict[str, NextOffsets]:
        """Up to where all that there is was read: a query ends behind the last record that it was given. Behind that
        may lie what nobody is given, markers of transactions and what was aborted; who waits for the topic's end would
        wait for ever. What it reads once more, before the last marker, was read.
        """
        reached = {}
        for source, topics in ends.items():
            reached[source] = furthest(self._noted.get(source, {}), topics)
            for topic, partitions in reached[source].items():
                with closing(RangeReader(self._connection, topic, deleted="earliest", name=_NAME)) as reader:
                    for partition, end in reader.ends().items():
                        start = partitions.get(partition, end)
                        if end > start and not any(True for _ in reader.read({partition: start}, {partition: end})):
                            partitions[partition] = end
        return reached

    def _seen(self, seen: Mapping[str, Any], name: str, ends: Mapping[str, NextOffsets]) -> dict[str, Any]:
        """What `observe` counts of a stream from the last marker up to `ends`: read again where Spark has not said it,
        since the driver was killed in between, or has counted more.
        """
        if name in seen:
            return dict(seen[name].asDict())
        each = next(each for each in self.spec.streams if each.parameter == name)
        start, end = (of.get(each.topic, {}).get(each.topic, {}) for of in (self._noted, ends))
        rows = self._typed(range_of(self._session, self._connection, each.topic, start, end), each, record=False)
        found = rows.groupBy().count()
        found.collect()
        return metrics_of(cast("Any", found)._jdf.queryExecution(), name)

    def _tell(self, progress: Mapping[str, Any]) -> None:
        """The figures of the batch, whether or not it was noted."""
        if self._result is not None:
            rows = max(0, progress["sink"]["numOutputRows"])
            took = float(progress["durationMs"].get("addBatch", 0))
            self._result = msgspec.structs.replace(self._result, batch=progress["batchId"], rows=rows, write_ms=took)


@contextmanager
def _quiet(spark: "SparkSession") -> Iterator[None]:
    """Nothing of what Spark's writers say of tasks that are stopped is logged meanwhile."""
    logs: Any = cast("Any", spark)._jvm.org.apache.logging.log4j
    before = {name: logs.LogManager.getLogger(name).getLevel() for name in _LOUD}
    try:
        for name in _LOUD:
            logs.core.config.Configurator.setLevel(name, logs.Level.OFF)
        yield
    finally:
        for name, level in before.items():
            logs.core.config.Configurator.setLevel(name, level)


def last_ended(checkpoint: Path) -> int:
    """The last batch that has ended, of a query in this checkpoint; -1: none."""
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def drop_torn_ends(checkpoint: Path) -> None:
    """Remove what a power cut has left of the ends of batches: such a batch is run again, as after any stop."""
    commits = checkpoint / "commits"
    for path in commits.glob("[0-9]*"):
        plan = checkpoint / "offsets" / path.name
        if not path.read_bytes().startswith(_WHOLE) or not plan.exists() or not plan.read_bytes().startswith(_WHOLE):
            for each in (path.with_name(f".{path.name}.crc"), path):
                each.unlink(missing_ok=True)
            sync_directory(commits)
            log.warning("checkpoint_mended", removed=str(path), reason="the end of a batch was torn")


def _sync_end(checkpoint: Path, batch: int) -> None:
    """Make durable that the batch has ended, before the log says so."""
    path = checkpoint / "commits" / str(batch)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise MainstemError(f"{path}: the end of the batch is missing") from error
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)
