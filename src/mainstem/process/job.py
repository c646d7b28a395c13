"""One running version of a job: its query, what it is told and tells others.

What a query does with its rows is its kind's affair: `BatchJob` (`batch_job.py`), batch by batch, or `RealtimeJob`
(`realtime.py`). Both note how far they have got in one transaction of the sink.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainstem.client.connection import Connection
from mainstem.client.progress import Marker, NextOffsets
from mainstem.core.logging import get_logger
from mainstem.process.books import StreamBooks
from mainstem.process.culprit import FailedBatch
from mainstem.process.diagnosis import JobFailed, JobHangs, JobRefused, check_damage, check_shape, failed, java_text
from mainstem.process.figures import figures_of
from mainstem.process.heartbeats import Follower
from mainstem.process.job_spec import JobSpec, sink_of, topics_of
from mainstem.process.late import Late
from mainstem.process.outputs import Quarantine
from mainstem.process.passing_on import PassingOn
from mainstem.process.planting import Stand
from mainstem.process.project import Input
from mainstem.process.reading import stream_of, typed_rows
from mainstem.process.session import STOP_SECONDS, job_session
from mainstem.process.sink import BatchResult, BatchSink, SinkRefused
from mainstem.process.sink_checkpoint import Checkpoint
from mainstem.registry.client import Registry
from mainstem.registry.spark import TopicSchema, unknown_id, with_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger()

_ATTEMPTS = 5
_FIGURES_SECONDS = 5.0


class RunningJob(ABC):
    """The query of one version of a job. `start`, then `check` and `beat` now and then from one thread, then `stop`."""

    def __init__(
        self, spec: JobSpec, spark: "SparkSession", connection: Connection, registry: Registry, follower: Follower
    ) -> None:
        self.spec = spec
        self.processed: NextOffsets = {}
        self._connection = connection
        self._registry = registry
        self._root = spark
        self._schemas = dict(spec.schemas)
        self._query: StreamingQuery | None = None
        self._error: BaseException | None = None
        self._failed_batch: FailedBatch | None = None
        self._has_worked = False
        self._sink: BatchSink | None = None
        self._topics = topics_of(spec, connection)
        self._quarantine = Quarantine(connection, registry, spec.job, spec.config.version, spec.fixed.output)
        late = Late(self._time_of() or "", spec.analysis.windows) if spec.analysis.leaves_out_late else None
        self._books = StreamBooks(spec.name, connection, spec.streams, spec.partitions, self._quarantine, late)
        self._last_batch = -1
        self._marker: Marker | None = None  # of the last commit when the query started
        self._committed = -1  # the last batch that the log had when the query started
        self._attempts = 0
        self._passing_on = PassingOn(spec, connection, follower)
        self._result: BatchResult | None = None  # of the last batch
        self._figures: dict[str, int] = {}
        self._figures_until = 0.0
        self._lock = threading.Lock()

    def figures(self) -> dict[str, int]:
        """Of the last finished batch (`figures_of`), looked at every few seconds; nothing before the first."""
        now = time.monotonic()
        if self._result is not None and self._query is not None and now >= self._figures_until:
            progress = self._progress()
            if progress and progress["batchId"] == self._result.batch and "addBatch" in progress["durationMs"]:
                self._figures, self._figures_until = figures_of(progress, self._result), now + _FIGURES_SECONDS
        return self._figures

    @property
    def late(self) -> int:
        """Rows that came too late for its windows, since it was started."""
        return self._books.late_rows

    @abstractmethod
    def land(self, to: NextOffsets | None) -> Stand | None:
        """Stop; then run batches that end at the position `to`, and no further. None: it has never run a batch.

        Args:
            to: the position; None: only stop. Where it has read further, it stays there. Windows that the rows up to it
                allow are closed.

        Raises:
            JobFailed: a batch did.
        """

    def release(self) -> None:
        """Go on after `land`."""
        self.stop()
        self.start()

    @abstractmethod
    def has_worked(self) -> bool:
        """Whether it has done something since it was started, or has found that there is nothing to do."""

    def start(self) -> None:
        """Open the sink, then start the query: whatever an older driver of this version left open is aborted first."""
        self._begin(self._open())
        log.info("job_started", job=self.spec.name, version=self.spec.config.version, code=self.spec.fixed.sha)

    def _open(self) -> "SparkSession":
        """Everything before the query, which starts in the session that this gives."""
        spec = self.spec
        session = job_session(self._root, spec.name, spec.config)
        self._passing_on.restart()
        self._sink = sink_of(spec, self._connection, self._quarantine, spec.checkpoint)
        marker = self._sink.open(session)
        self._topics.begin(marker)
        self._marker = marker
        if marker is not None:
            self._remember(marker.end_offsets)
        self._committed = marker.batch if marker is not None else -1
        try:
            Checkpoint(spec.checkpoint).check(self._committed)
        except SinkRefused as error:
            raise JobRefused(None, str(error), hint=error.hint) from error
        return session

    @abstractmethod
    def _begin(self, session: "SparkSession") -> None:
        """Start the query."""

    def stop(self) -> None:
        """Stop the query, then abort what its batch had open: readers of the output need not wait for a timeout.

        Raises:
            JobHangs: its function does not return. When it does, it cannot write any more.
        """
        hangs = False
        if self._query is not None:
            try:
                self._query.stop()
            except Exception:
                hangs = self.goes_on
                if not hangs:
                    raise
        if self._sink is not None:
            self._sink.close()
        if hangs:
            raise JobHangs(None, f"its function has not returned within {STOP_SECONDS} s of its stop")

    @property
    def goes_on(self) -> bool:
        """Whether its query's thread does; a query is not active as soon as somebody has begun to stop it."""
        query: Any = self._query
        return query is not None and bool(query._jsq.streamingQuery().queryExecutionThread().isAlive())

    def check(self) -> None:
        """Go on after what can be mended here; otherwise raise.

        Raises:
            JobFailed: the query ended by an error.
        """
        query = self._query
        if query is None or query.isActive:
            return
        failure = query.exception()
        error: BaseException | None = self._error or failure
        if error is None:
            raise JobFailed(None, "its query was stopped by somebody else")
        unknown = unknown_id(failure) if failure is not None else None
        if unknown is not None and self._attempts < _ATTEMPTS:
            self._learn(*unknown)
            return
        spec = self.spec
        check_shape(spec.name, failure, self._all_schemas())
        topics, text = (each.topic for each in spec.inputs), java_text(self._root, query)
        check_damage(spec.name, text, Checkpoint(spec.checkpoint), self._committed, topics)
        raise failed(error, failure, spec.version, spec.job.location, self._failed_batch) from error

    def _learn(self, schema_id: int, topic: str) -> None:
        """A producer has registered a new schema since the query was planned: plan it again with that one too."""
        self._attempts += 1
        log.info("schema_learned", job=self.spec.name, topic=topic, schema_id=schema_id)
        for each in self.spec.inputs:
            if each.topic == topic:
                self._schemas[each.parameter] = with_id(self._registry, self._schemas[each.parameter], schema_id)
        self.stop()
        self.start()

    # -- rows in

    @property
    def _wait_ms(self) -> int:
        """How long a batch that is not full waits, after the last one, for more to come; see `stream_of`."""
        return 0

    def _rows(self, session: "SparkSession", each: Input, most: int | None) -> "DataFrame":
        """A stream, as the function takes it; `most` of its records at a time."""
        record = self.spec.analysis.needs_record
        raw = stream_of(
            session, self._connection, each.topic, each.parameter, most, wait_ms=self._wait_ms, headers=record
        )
        return self._typed(raw, each, record=record)

    def _typed(self, raw: "DataFrame", each: Input, *, record: bool) -> "DataFrame":
        schema, partitions = self._schemas[each.parameter], self.spec.partitions[each.topic]
        return typed_rows(raw, schema, partitions, self._time_of(), each.parameter, record=record)

    def _time_of(self) -> str | None:
        """The column that can make a row late."""
        watermark = self.spec.job.watermark
        return watermark.column if watermark and self.spec.analysis.stateful else None

    def _all_schemas(self) -> list[TopicSchema]:
        """Of its inputs, as it reads them."""
        return list(self._schemas.values())

    # -- news

    def _remember(self, ends: Mapping[str, NextOffsets]) -> None:
        with self._lock:
            self.processed = {
                topic: dict(positions) for by_topic in ends.values() for topic, positions in by_topic.items()
            }

    def beat(self) -> None:
        """Pass on what is known of idle and finished inputs."""
        with self._lock:
            processed = self.processed
        self._passing_on.beat(processed, self._progress)

    def _progress(self) -> Any:
        """What Spark says of the last finished batch; None before there is one."""
        return self._query.lastProgress if self._query is not None else None
