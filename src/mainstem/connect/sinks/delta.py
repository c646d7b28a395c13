"""Lakehouse: every topic becomes a Delta table with the columns of its schema; one query serves all topics.

Exactly once by the table itself: each commit's user metadata holds, per partition, the offset up to which the table
has its topic, the books of all that came before, and of which log and which topic that is:

    {"mainstem": 1, "topic": "flights", "cluster": "pXk…", "topic_id": "T3a…", "number": 3, "partitions": {"0":
     {"next": 41, "rows": 40, "tombstones": 0, "quarantined": 0, "hash": 1234}}}

The query always starts where the tables are, with a new checkpoint. So a batch that was cut off, a checkpoint that is
lost or rolled back, and a topic that is gone change nothing; Spark's batch numbers play no part.

What a table cannot take holds up that table only: its position stays, one line says why, and it is left out until the
query starts again from where the tables are, which it does with back-off while a table is held.

A stream is appended. A changelog is merged by its key: the table shows the rows as they are now. Every so many commits
a table's small files become few, and what no version of the last week has is removed.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from mainstem.client.catalog_changes import tell_catalog
from mainstem.client.connection import Connection, records_are_gone
from mainstem.client.internal import AUDIT
from mainstem.client.reports import Report, write_reports
from mainstem.connect.sinks.delta_held import HeldTables
from mainstem.connect.sinks.delta_log import TableCommit
from mainstem.connect.sinks.delta_positions import Positions
from mainstem.connect.sinks.delta_small import SmallWriter
from mainstem.connect.sinks.delta_spark import (
    SMALL_BATCH,
    SparkWriter,
    count_records,
    failures,
    with_schema_ids,
)
from mainstem.connect.sinks.delta_topics import Slice, Topics, batch_ends, batch_starts, begin_at, offsets_between
from mainstem.core import Clock, SystemClock
from mainstem.core.causes import one_line
from mainstem.core.config import check_interval
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger()

USER_TOPICS = r"^[^_].*"  # internal topics start with an underscore, in Kafka and here
GAP_SECONDS = 2.0  # between batches: `step` comes every 0.25 s, unless what else its thread does takes longer
WRITERS = 4  # tables written at the same time: a commit is mostly waiting


class LakehouseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[sinks.<name>]` with `type = "delta"`.

    Attributes:
        path: directory of the tables; empty: `tables` in the data directory.
        topics: a regular expression; every topic whose whole name fits becomes a table.
        every: how often it looks for new records and new topics.
        max_records: of all topics together, in one batch.
    """

    path: str = ""
    topics: str = USER_TOPICS
    every: str = "2 seconds"
    max_records: Annotated[int, Meta(ge=1)] = 100_000

    def __post_init__(self) -> None:
        check_interval(self.every)
        try:
            re.compile(self.topics)
        except re.error as error:
            raise ValueError(f"topics = {self.topics!r}: no regular expression: {error}") from None
        if re.fullmatch(self.topics, AUDIT):  # each commit would write a record to it, and lead to the next one
            raise ValueError(f"topics = {self.topics!r}: fits {AUDIT}, which it writes to: as in {USER_TOPICS!r}")


class Lakehouse:
    """The tables below `directory`, one for each topic, and the query that keeps them.

    `start`, then `step` now and then from one thread: a query that fails is started again with back-off, and so is one
    that had to leave a table out. `stop` ends it.

    Args:
        spark: a session of its own, with the Kafka, Avro and Delta jars.
        connection: the log.
        directory: one directory per topic appears in it.
        checkpoint: the query's own; every start makes it anew.
        config: which topics, how often.
        name: of the sink: for the log, the catalog and the audit, so every sink of a project has one of its own.
    """

    def __init__(
        self,
        spark: "SparkSession",
        connection: Connection,
        directory: Path,
        checkpoint: Path,
        config: LakehouseConfig,
        *,
        name: str = "lakehouse",
        clock: Clock | None = None,
    ) -> None:
        self.query: StreamingQuery | None = None
        self._spark = spark
        self._connection = connection
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = config
        self._name = name
        self._clock = clock or SystemClock()
        self._topics = Topics(connection)
        self._spark_writer = SparkWriter(spark, directory, self._topics)
        self._small_writer = SmallWriter(directory, self._topics, self._spark_writer.typed)
        self._told: dict[str, TableCommit] = {}  # to the audit
        self._attempts = Attempts(f"sink {name}", self._clock)
        self._held = HeldTables(name, self._clock)
        self._positions = Positions(connection, directory, self._held)
        self._error: BaseException | None = None  # of the last batch, as it was: Spark has only its text
        self._in_batch = False
        self._stopping = threading.Event()  # the query: its batches are read again by the next one

    @property
    def states(self) -> list[TaskState]:
        """How the sink is, and each table that was held back: `failed` where a person has to mend something."""
        return [self._attempts.state, *self._held.states]

    @property
    def held(self) -> Mapping[str, str]:
        """The tables that are left out, each with its reason."""
        return self._held.reasons

    def start(self) -> None:
        """Announce what the tables hold, then follow the log; what goes wrong is tried again by `step`."""
        self.stop()
        try:
            self._follow()
        except failures() as error:
            self._failed(error)

    def step(self) -> None:
        """Start the query again where that is due."""
        query = self.query
        if query is not None and not query.isActive:
            self.query = None
            self._failed(self._error or query.exception())
        held_is_due = self._held.is_due and not self._in_batch  # a batch is not cut off for it
        if self._attempts.is_due if self.query is None else held_is_due:
            self.start()

    def stop(self) -> None:
        """Return when the batch under way is done."""
        self._stopping.set()
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _failed(self, error: BaseException | None) -> None:
        reason, hint = one_line(error) if error is not None else "it ended", getattr(error, "hint", "")
        if records_are_gone(str(error)):
            reason = "what it was to read next is gone: a topic was deleted, or its records were"
            hint = "nothing to do: it goes on from where its tables are, and tells of a table that has missed something"
        state = self._attempts.fail(reason, hint)
        log.warning("lakehouse_failed", sink=self._name, reason=reason, again_in_seconds=state.retry_seconds)

    def _follow(self) -> None:
        announce(self._connection, self._config, self._name)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._held.try_again()
        self._error = None
        self._stopping.clear()
        self._spark_writer.forget_shapes()
        matches = self._spark._jvm.java.util.regex.Pattern.matches  # type: ignore[union-attr]
        starts = self._positions.open(lambda topic: matches(self._config.topics, topic))
        self._report(commit for topic, commit in self._positions.commits.items() if topic not in self.held)
        begin_at(self._checkpoint, starts)
        source = self._spark.readStream.format("kafka").options(**self._connection.spark())
        source = source.option("kafka.isolation.level", "read_committed").option("includeHeaders", "false")
        source = source.option("subscribePattern", self._config.topics)
        source = source.option("maxOffsetsPerTrigger", str(self._config.max_records))
        writer = source.load().writeStream.foreachBatch(self._batch).queryName(self._name)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(processingTime=self._config.every)
        self.query = writer.start()
        self._attempts.start()

    def _batch(self, batch: "DataFrame", number: int) -> None:
        """Under load one batch follows the other, so while a table waits to be tried again there is a gap before each,
        in which `step` can start the query again from where the tables are.

        Only then is a batch left out: the positions that a later one of the query writes are past it.
        """
        if self._stopping.wait(GAP_SECONDS if self._held.is_due else 0):
            return
        self._in_batch = True
        try:
            self._write(batch, batch_starts(self._checkpoint, number), batch_ends(self._checkpoint, number))
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._in_batch = False

    def _write(
        self, batch: "DataFrame", starts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]
    ) -> None:
        """One batch, from `starts` to `ends`: 1. leave out what is held, 2. count it, 3. write the tables, those with
        few records first: a table does not wait for others' rows to be decoded, 4. move on those without any.
        """
        from pyspark.sql import functions as F

        rows = with_schema_ids(batch)
        if self.held:
            rows = rows.filter(~F.col("topic").isin(*self.held))
        if offsets_between(starts, ends) <= SMALL_BATCH:  # a task for each partition would be most of the work
            rows = rows.coalesce(self._spark.sparkContext.defaultParallelism)
        rows = rows.persist()
        try:
            slices = count_records(rows)
            quiet = self._positions.moved(ends) - slices.keys()
            self._positions.recognise(slices.keys() | quiet)
            self._topics.learn(slices)
            self._spark_writer.prepare(
                batch.sparkSession, sum(each.records for mine in slices.values() for each in mine)
            )
            few, many = self._small_writer.choose(slices)
            if few:
                small = self._small_writer.collect_few(rows, few, slices)
                self._write_tables(rows, {topic: slices[topic] for topic in sorted(few)}, small, ends)
            if rest := slices.keys() - few.keys():
                small = self._small_writer.collect_many(rows, many, slices)
                self._write_tables(rows, {topic: slices[topic] for topic in sorted(rest)}, small, ends)
            if quiet:  # by markers of transactions or aborted records: the log may lose those, and nothing is missing
                commits = [self._positions.next_commit(topic, [], {}, ends[topic]) for topic in sorted(quiet)]
                self._commit(commits, self._write_books)
        finally:
            rows.unpersist()

    def _write_tables(
        self,
        rows: "DataFrame",
        slices: Mapping[str, list[Slice]],
        small: "Mapping[str, pa.Table]",
        ends: Mapping[str, Mapping[int, int]],
    ) -> None:
        """The tables of these topics: 1. those with the rows that are `small`, 2. all else by Spark, once what does not
        decode is set aside. What was small and is left to Spark after all comes there too: the bytes of a damaged
        record may be a row for Python, and none for Spark.
        """
        from pyspark.sql import functions as F

        def write_small(commit: TableCommit) -> bool:
            return self._small_writer.write(small[commit.topic], commit, slices[commit.topic])

        def write(commit: TableCommit) -> bool:
            self._spark_writer.write(rows, commit, large[commit.topic])
            return True

        commits = [self._positions.next_commit(topic, slices[topic], {}, ends[topic]) for topic in small]
        done = self._commit(commits, write_small) | self.held.keys()
        large = {topic: mine for topic, mine in slices.items() if topic not in done}
        if large:
            wrong = self._set_aside(rows.filter(F.col("topic").isin(*large)), large)
            still = [topic for topic in large if topic not in self.held]
            self._commit([self._positions.next_commit(t, large[t], wrong, ends[t]) for t in still], write)

    def _write_books(self, commit: TableCommit) -> bool:
        if not self._small_writer.write_books(commit):
            self._spark_writer.write_books(commit)
        return True

    def _commit(self, commits: Sequence[TableCommit], write: Callable[[TableCommit], bool]) -> set[str]:
        """Write these tables, several at the same time, and report; returns the topics whose tables are written."""
        with ThreadPoolExecutor(WRITERS) as pool:
            done = list(pool.map(lambda commit: self._try_topic(commit, write), commits))
        written = [commit for commit, success in zip(commits, done, strict=True) if success]
        self._positions.written(written)
        self._report(written)
        return {commit.topic for commit in written}

    def _set_aside(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> dict[tuple[str, int], int]:
        """Put what does not decode into quarantine; returns how many by topic and partition."""
        wrong, failed = self._spark_writer.set_aside(rows, slices)
        for topic, error in failed.items():
            self._held.hold(topic, error)
        return wrong

    def _try_topic(self, commit: TableCommit, write: Callable[[TableCommit], bool]) -> bool:
        """Write one table; what goes wrong holds up this one only. False too where `write` has not done it."""
        topic = commit.topic
        try:
            self._positions.check_unchanged(topic)
            if not write(commit):
                return False
            log.debug("table_written", topic=topic, next={p: books.next for p, books in commit.partitions.items()})
            self._spark_writer.care(topic, commit.number)
        except failures() as error:
            self._held.hold(topic, error)
            return False
        self._held.written(topic)
        return True

    def _report(self, commits: Iterable[TableCommit]) -> None:
        """Tell the audit what the tables hold, from offset 0 on."""
        news = {commit.topic: commit for commit in commits if self._told.get(commit.topic) != commit}
        write_reports(self._connection, [each for commit in news.values() for each in reports_of(commit, self._name)])
        self._told |= news


def announce(connection: Connection, config: LakehouseConfig, name: str) -> None:
    """Tell the catalog which topics become tables: the audit misses what the sink `name` does not speak of."""
    tell_catalog(connection, {f"sink:{name}": {"type": "delta", "pattern": config.topics}})


def reports_of(commit: TableCommit, reader: str) -> list[Report]:
    """What a table of `reader` holds: all records from offset 0 up to the table's position, per partition."""
    return [
        Report(
            reader=reader,
            topic=commit.topic,
            partition=partition,
            end=books.next,
            rows=books.rows,
            quarantined=books.quarantined,
            tombstones=books.tombstones,
            hash=books.hash,
        )
        for partition, books in sorted(commit.partitions.items())
        if books.next
    ]
