"""Lakehouse: every topic becomes a Delta table with the columns of its schema; one query serves all topics.

Exactly once by the table itself: each commit's user metadata holds, per partition, the offset up to which the table
has its topic, the books of all that came before, and of which log and which topic that is:

    {"mainstem": 1, "topic": "flights", "cluster": "pXk…", "topic_id": "T3a…", "number": 3, "partitions": {"0":
     {"next": 41, "rows": 40, "tombstones": 0, "quarantined": 0, "hash": 1234}}}

The query always starts where the tables are, with a new checkpoint. So a batch that was cut off, a checkpoint that is
lost or rolled back, and a topic that is gone change nothing; Spark's batch numbers play no part.

What a table cannot take holds up that table only: its position stays, one line says why, and it is left out until the
query starts again from where the tables are, which it does with back-off while a table is held.

A stream is appended. A changelog is merged by its key: the table shows the rows as they are now. Every so many commits a
table's small files become few, and what no version of the last week has is removed.
"""

import itertools
import re
import shutil
import threading
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import bounds, cluster_id, list_topics, topic_ids
from mainstem.connect.sinks.delta_log import PartitionBooks, TableCommit, is_table, last_commit
from mainstem.connect.sinks.delta_small import Columns, NotPlain, commit_small, typed_small
from mainstem.connect.worker import TaskState
from mainstem.core import Backoff, Clock, MainstemError, Retriable, SystemClock, TopicPartition, UserError
from mainstem.core.config import check_interval
from mainstem.core.logging import get_logger
from mainstem.registry.reader import read_schemas
from mainstem.registry.spark import SENTINEL, if_within, with_sentinel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

log = get_logger()
_views = itertools.count()  # global temporary views are shared by all sinks of a process

QUARANTINE = "_quarantine"
USER_TOPICS = r"^[^_].*"  # internal topics start with an underscore, in Kafka and here
EARLIEST, LATEST = -2, -1  # Spark's names for offsets
NO_SCHEMA = -1  # a value without Confluent's first byte
METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
KAFKA_INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}  # no pattern finds them
WRITERS = 4  # tables written at the same time: a commit is mostly waiting
BACKOFF = Backoff(first=1.0, longest=60.0)
SETTINGS = {
    # The books of a batch that changes no row must be kept too: only bad records, an insert and its delete.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.databricks.delta.typeWidening.allowAutomaticWidening": "always",
    # OPTIMIZE holds up the batch: it rewrites what is below 64 MB, and not, as it comes, all of a table of up to 1 GB.
    "spark.databricks.delta.optimize.minFileSize": str(64 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
}
"""Settings of the lakehouse's own sessions."""
SMALL_BATCH = 50_000  # records
COLLECTED_RECORDS, COLLECTED_BYTES = 50_000, 16 << 20
"""What of a batch is committed without Spark's writer: its smallest topics, up to so much."""
CARE = {"OPTIMIZE": 100, "VACUUM": 1_000}
"""After how many commits of a table it is done. VACUUM lists all of its files, so it comes more seldom."""
WIDENINGS = {("integer", "long"), ("integer", "double"), ("float", "double")}
"""What a column's type may become while its table stays: those of Avro's promotions that Delta can do."""


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
    max_records: Annotated[int, Meta(ge=1)] = 400_000

    def __post_init__(self) -> None:
        check_interval(self.every)
        try:
            re.compile(self.topics)
        except re.error as error:
            raise ValueError(f"topics = {self.topics!r}: no regular expression: {error}") from None


class Slice(msgspec.Struct, frozen=True):
    """What a batch holds of one partition with one schema id; None for null values."""

    partition: int
    schema_id: int | None
    records: int
    hash: int
    size: int = 0  # bytes of keys and values


def ids_of(slices: Iterable[Slice]) -> set[int]:
    """The schema ids in use; neither null values nor values without an id."""
    return {each.schema_id for each in slices if each.schema_id is not None and each.schema_id != NO_SCHEMA}


class TableHeld(UserError):
    """A table cannot take its topic's records; the hint says what a person can do."""


class TopicChanged(Retriable):
    """A topic was deleted and made anew while the query ran: the query starts again."""


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
        self.held: dict[str, str] = {}  # the tables that are left out, each with its reason
        self._spark = _with_settings(spark, SETTINGS)
        self._connection = connection
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = config
        self._name = name
        self._clock = clock or SystemClock()
        self._schemas: dict[int, str] = {}
        self._columns: dict[int, Columns | None] = {}  # by schema id; None of those that need Spark
        self._catalog: dict[str, TopicEntry] = {}
        self._cluster = ""
        self._ids: dict[str, str] = {}
        self._commits: dict[str, TableCommit] = {}
        self._compile: dict[str, str] = {}
        self._told: dict[str, TableCommit] = {}  # to the audit
        self._state = TaskState(f"sink {name}", since_ms=self._clock.now_ms())
        self._tables: dict[str, TaskState] = {}  # those that were ever held: until they are written, why
        self._unopened: set[str] = set()  # those of them that could not even be opened
        self._shapes: dict[str, StructType] = {}  # of the tables, where the last batch did not change it
        self._error: BaseException | None = None  # of the last batch, as it was: Spark has only its text
        self._failures = 0
        self._again_at = 0.0
        self._lock = threading.Lock()  # of what the writers share

    @property
    def states(self) -> list[TaskState]:
        """How the sink is, and each table that was held back: `failed` where a person has to mend something."""
        with self._lock:
            return [self._state, *(self._tables[topic] for topic in sorted(self._tables))]

    def start(self) -> None:
        """Announce what the tables hold, then follow the log; what goes wrong is tried again by `step`."""
        self.stop()
        try:
            self._follow()
        except _failures() as error:
            self._failed(error)

    def step(self) -> None:
        """Start the query again where that is due."""
        query = self.query
        if query is not None and not query.isActive:
            self.query = None
            self._failed(self._error or query.exception())
        if (self.query is None or self.held) and self._clock.monotonic() >= self._again_at:
            self.start()

    def stop(self) -> None:
        """Return when the batch under way is done."""
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _failed(self, error: BaseException | None) -> None:
        reason, delay = one_line(error) if error is not None else "it ended", self._back_off()
        self._state = self._after(self._state, "waiting", reason, getattr(error, "hint", ""), delay)
        log.warning("lakehouse_failed", sink=self._name, reason=reason, again_in_seconds=delay)

    def _after(self, before: TaskState, state: str, reason: str, hint: str, retry_seconds: float) -> TaskState:
        """The state after one more failure."""
        return TaskState(before.name, state, before.failures + 1, reason, hint, self._clock.now_ms(), retry_seconds)

    def _back_off(self) -> float:
        self._failures += 1
        delay = BACKOFF.pause(self._failures)
        self._again_at = self._clock.monotonic() + delay
        return delay

    def _follow(self) -> None:
        announce(self._connection, self._config, self._name)
        self._directory.mkdir(parents=True, exist_ok=True)
        self.held.clear()
        self._error = None
        starts = self._starts()
        self._report(self._commits[topic] for topic in self._commits.keys() - self.held.keys())
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        source = self._spark.readStream.format("kafka").options(**self._connection.spark())
        source = source.option("kafka.isolation.level", "read_committed").option("includeHeaders", "false")
        source = source.option("subscribePattern", self._config.topics)
        if starts:
            source = source.option("startingOffsets", msgspec.json.encode(starts).decode())
        else:
            source = source.option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", str(self._config.max_records))
        writer = source.load().writeStream.foreachBatch(self._batch).queryName(self._name)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(processingTime=self._config.every)
        self.query = writer.start()
        self._state = msgspec.structs.replace(
            self._state, state="running", since_ms=self._clock.now_ms(), retry_seconds=0.0
        )

    def _starts(self) -> dict[str, dict[str, int]]:
        """Where the tables are, for every partition of every topic that is there now; later ones start at their first."""
        matches = self._spark._jvm.java.util.regex.Pattern.matches  # type: ignore[union-attr]
        found = list_topics(self._connection)
        topics = {
            name: topic.partitions
            for name, topic in found.items()
            if name not in KAFKA_INTERNAL and matches(self._config.topics, name)
        }
        self._cluster = cluster_id(self._connection)
        self._ids = topic_ids(self._connection, topics)
        places = bounds(self._connection, topics)
        self._commits = {}
        self._shapes.clear()
        for table in sorted(self._directory.iterdir()):
            if is_table(table) and table.name != QUARANTINE:
                self._open(table.name, places)
        starts: dict[str, dict[str, int]] = {}
        for topic, partitions in topics.items():
            positions = self._commit_of(topic).positions
            for number in range(partitions):
                start = LATEST if topic in self.held else positions.get(TopicPartition(topic, number), EARLIEST)
                starts.setdefault(topic, {})[str(number)] = start
        with self._lock:
            for topic in self._tables.keys() - topics.keys() - self.held.keys():
                del self._tables[topic]
            for topic in self._unopened - self.held.keys():
                self._mended(topic)
        return starts

    def _open(self, topic: str, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Know the position of a table, if it is one of this log's topic."""
        path = self._directory / topic
        try:
            commit = self._commits[topic] = last_commit(path) or TableCommit(topic)
            if commit.cluster and topic in self._ids:
                expected, here = (commit.cluster, commit.topic_id), (self._cluster, self._ids[topic])
                beyond = [str(p) for p, offset in commit.positions.items() if offset > places.get(p, (0, 0))[1]]
                if expected != here or beyond:
                    raise TableHeld(
                        f"{path}: the table is of topic {commit.topic_id} of log {commit.cluster}, found topic "
                        f"{here[1]} of log {here[0]}" + (f", which ends before {', '.join(beyond)}" if beyond else ""),
                        hint="remove or move the directory: the table is filled anew from the log",
                    )
            for place, offset in commit.positions.items():
                if place in places and offset < places[place][0]:
                    raise TableHeld(
                        f"{path}: the table has {place} up to offset {offset}, and the log starts at offset "
                        f"{places[place][0]}: what lay between was removed before the table had it",
                        hint="to go on without, remove or move the directory: the table is filled anew with what the log "
                        "has; a larger retention.ms of the topic gives the lakehouse more time",
                    )
        except MainstemError as error:
            self._hold(topic, error)
            self._unopened.add(topic)

    def _hold(self, topic: str, error: BaseException) -> None:
        """Leave a table out until the query starts again; the log hears of each reason once."""
        with self._lock:
            reason, hint = one_line(error), getattr(error, "hint", "")
            self.held[topic] = reason
            if self._clock.monotonic() >= self._again_at:
                self._back_off()
            before = self._tables.get(topic) or TaskState(f"sink {self._name}: table {topic}")
            if before.error != reason:
                log.warning("table_held", topic=topic, reason=reason, hint=hint)
            state = "failed" if isinstance(error, UserError) else "waiting"
            self._tables[topic] = self._after(
                before, state, reason, hint, round(self._again_at - self._clock.monotonic(), 1)
            )

    def _mended(self, topic: str) -> None:
        """The table is held no longer."""
        self._unopened.discard(topic)
        if topic in self._tables:
            self._tables[topic] = TaskState(self._tables[topic].name, since_ms=self._clock.now_ms())

    def _batch(self, batch: "DataFrame", number: int) -> None:
        try:
            self._write(batch, batch_ends(self._checkpoint, number))
        except BaseException as error:
            self._error = error
            raise

    def _write(self, batch: "DataFrame", ends: Mapping[str, Mapping[int, int]]) -> None:
        """One batch, up to `ends`: 1. leave out what is held, 2. count it, 3. write each topic's table, 4. report."""
        from pyspark.sql import functions as F

        schema_id = F.when(
            F.expr("substring(value, 1, 1) = X'00' AND length(value) >= 5"),
            # Not an int: any four bytes may stand there, and ANSI's cast fails the query for those above 2^31.
            F.expr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS BIGINT)"),
        ).otherwise(NO_SCHEMA)
        rows = batch.withColumn("schema_id", F.when(F.col("value").isNotNull(), schema_id))
        if self.held:
            rows = rows.filter(~F.col("topic").isin(*self.held))
        rows = rows.persist()
        try:
            slices = self._count(rows)
            self._compile = compile_settings(sum(each.records for mine in slices.values() for each in mine))
            _with_settings(batch.sparkSession, self._compile)
            self._recognise(slices)
            self._learn(slices)
            small = self._collect(rows, slices)
            large = {topic: mine for topic, mine in slices.items() if topic not in small}
            wrong = self._set_aside(rows.filter(F.col("topic").isin(*large)), large) if large else {}
            commits = [
                self._next_commit(topic, mine, wrong, ends[topic])
                for topic, mine in sorted(slices.items())
                if topic not in self.held
            ]
            with ThreadPoolExecutor(WRITERS) as pool:
                done = list(
                    pool.map(
                        lambda commit: self._try_topic(rows, commit, slices[commit.topic], small.get(commit.topic)),
                        commits,
                    )
                )
        finally:
            rows.unpersist()
        written = [commit for commit, success in zip(commits, done, strict=True) if success]
        self._commits |= {commit.topic: commit for commit in written}
        self._report(written)
        self._state = TaskState(self._state.name, since_ms=self._state.since_ms)
        if not self.held:
            self._failures = 0

    def _try_topic(self, rows: "DataFrame", commit: TableCommit, slices: list[Slice], small: "pa.Table | None") -> bool:
        """Write one table; what goes wrong holds up this one only."""
        try:
            if small is None or not self._write_small(small, commit, slices):
                self._write_topic(rows, commit, slices)
            self._care(commit)
        except _failures() as error:
            self._hold(commit.topic, error)
            return False
        with self._lock:
            self._mended(commit.topic)
        return True

    def _set_aside(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> dict[tuple[str, int], int]:
        """Put what does not decode into quarantine; returns how many by topic and partition.

        All topics are looked at together. If that fails, each by itself, to find the one that it fails for.
        """
        try:
            return self._set_aside_together(rows, slices)
        except _failures() as error:
            if len(slices) == 1:
                self._hold(next(iter(slices)), error)
                return {}
        wrong: dict[tuple[str, int], int] = {}
        for topic, mine in slices.items():
            wrong |= self._set_aside(rows.filter(rows["topic"] == topic), {topic: mine})
        return wrong

    def _set_aside_together(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> dict[tuple[str, int], int]:
        bad = self._undecodable(rows, slices).persist()
        try:
            counts = bad.groupBy("topic", "partition").count().collect()
            if counts:
                self._quarantine(bad)
        finally:
            bad.unpersist()
        return {(row["topic"], row["partition"]): row["count"] for row in counts}

    def _recognise(self, topics: Iterable[str]) -> None:
        """Know the ids of this batch's topics.

        Raises:
            TopicChanged: one is no longer the topic that it was when the query started.
        """
        now = topic_ids(self._connection, topics)
        for topic in topics:
            found = now.get(topic, "")
            known = self._ids.get(topic) or self._commit_of(topic).topic_id  # it may have come since the query started
            if known not in ("", found):
                raise TopicChanged(f"topic {topic} was deleted or made anew since")
            self._ids[topic] = found

    @staticmethod
    def _count(rows: "DataFrame") -> dict[str, list[Slice]]:
        """What the batch holds, by topic: one job for all topics."""
        from pyspark.sql import functions as F

        fingerprint = F.xxhash64("key", "value").cast("decimal(38,0)")  # mainstem.records.fingerprint
        counts = rows.groupBy("topic", "partition", "schema_id").agg(
            F.count("*").alias("records"),
            F.sum(fingerprint).alias("hash"),
            F.sum(F.expr("coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)")).alias("size"),
        )
        slices: dict[str, list[Slice]] = {}
        for row in counts.collect():
            found = Slice(row["partition"], row["schema_id"], row["records"], int(row["hash"]), row["size"])
            slices.setdefault(row["topic"], []).append(found)
        return slices

    def _learn(self, slices: Mapping[str, list[Slice]]) -> None:
        """Know the schemas and the kinds of all topics of this batch; ask the log only about new ones."""
        if not ids_of(each for mine in slices.values() for each in mine) <= self._schemas.keys():
            self._schemas = read_schemas(self._connection)
        if not slices.keys() <= self._catalog.keys():
            entries = topic_entries(read_catalog(self._connection))
            self._catalog |= {topic: entries.get(topic, TopicEntry()) for topic in slices}

    def _collect(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> "dict[str, pa.Table]":
        """The typed rows of the topics that are written without Spark: the smallest of those that are plain."""
        import pyarrow.compute as pc
        from pyspark.sql import functions as F

        chosen: dict[str, dict[int, Columns]] = {}
        records = size = 0
        for topic, mine in sorted(slices.items(), key=lambda each: sum(part.size for part in each[1])):
            records, size = records + sum(each.records for each in mine), size + sum(each.size for each in mine)
            if records > COLLECTED_RECORDS or size > COLLECTED_BYTES:
                break
            columns = {number: self._plain(number) for number in ids_of(mine)}
            known = {number: each for number, each in columns.items() if each is not None}
            if known and len(known) == len(columns) and not any(each.schema_id == NO_SCHEMA for each in mine):
                chosen[topic] = known
        if not chosen:
            return {}
        wanted = rows.filter(F.col("topic").isin(*chosen))
        collected = wanted.select("topic", "partition", "offset", "timestamp", "key", "value").toArrow()
        small: dict[str, pa.Table] = {}
        for topic, known in chosen.items():
            of_topic = collected.filter(pc.equal(collected["topic"], topic))
            try:
                small[topic] = typed_small(of_topic, known, merged=self._is_changelog(topic, slices[topic]))
            except NotPlain as reason:
                log.debug("left_to_spark", topic=topic, reason=str(reason))
        return small

    def _plain(self, schema_id: int) -> Columns | None:
        """The columns of a schema whose rows need no Spark."""
        if schema_id not in self._columns and schema_id in self._schemas:
            try:
                self._columns[schema_id] = Columns(self._schemas[schema_id])
            except (NotPlain, UserError) as reason:  # the second: another registry took it
                log.debug("left_to_spark", schema_id=schema_id, reason=str(reason))
                self._columns[schema_id] = None
        return self._columns.get(schema_id)

    def _write_small(self, rows: "pa.Table", commit: TableCommit, slices: list[Slice]) -> bool:
        """Bring one topic's table up to this batch without Spark; False where that cannot be."""
        topic, metadata = commit.topic, msgspec.json.encode(commit).decode()
        try:
            commit_small(self._directory / topic, rows, metadata, merged=self._is_changelog(topic, slices))
        except NotPlain as reason:
            log.debug("left_to_spark", topic=topic, reason=str(reason))
            return False
        log.debug("table_written", topic=topic, next={p: books.next for p, books in commit.partitions.items()})
        return True

    def _undecodable(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> "DataFrame":
        """The records that cannot become rows, with the reason."""
        from pyspark.sql import functions as F

        reason = F.lit(None).cast("string")
        for topic, mine in slices.items():
            if self._is_typed(topic, mine):
                nothing = (F.col("topic") == topic) & (F.col("schema_id") == NO_SCHEMA)
                reason = F.when(nothing, "no schema id in the value").otherwise(reason)
        for schema_id in sorted(ids_of(each for mine in slices.values() for each in mine)):
            this = F.col("schema_id") == schema_id
            if schema_id not in self._schemas:
                reason = F.when(this, f"schema {schema_id} is not registered").otherwise(reason)
            else:
                lost = this & self._decoded(schema_id)[SENTINEL].isNull()
                why = f"the bytes do not fit schema {schema_id}, or a date or timestamp is not of the years 1 to 9999"
                reason = F.when(lost, why).otherwise(reason)
        return rows.withColumn("reason", reason).filter("reason IS NOT NULL")

    def _decoded(self, schema_id: int) -> "Column":
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        schema = self._schemas[schema_id]
        options = {"avroSchema": with_sentinel(schema, f"with schema {schema_id}"), "mode": "PERMISSIVE"}
        rows = from_avro(F.expr("substring(value, 6)"), schema, options)
        return if_within(self._spark, rows, schema)

    def _next_commit(
        self, topic: str, slices: Iterable[Slice], wrong: Mapping[tuple[str, int], int], ends: Mapping[int, int]
    ) -> TableCommit:
        """The books of the table after this batch.

        The position is the batch's end, not the last record's: where retention takes the marker behind that too, nothing
        is missing. It is known of partitions without records too: what they get and lose later is missing.
        """
        partitions = {p: msgspec.structs.replace(books) for p, books in self._commit_of(topic).partitions.items()}
        for number, end in ends.items():
            books = partitions.setdefault(number, PartitionBooks())
            books.next = max(books.next, end)
        for each in slices:
            books = partitions[each.partition]
            books.hash = (books.hash + each.hash) % 2**64
            if each.schema_id is None:
                books.tombstones += each.records
            else:
                books.rows += each.records
        for (of, partition), count in wrong.items():
            if of == topic:
                partitions[partition].rows -= count
                partitions[partition].quarantined += count
        number = self._commit_of(topic).number + 1
        return TableCommit(topic, partitions, self._cluster, self._ids[topic], number)

    def _write_topic(self, batch: "DataFrame", commit: TableCommit, slices: list[Slice]) -> None:
        """Bring one topic's table up to this batch, in one commit that says so."""
        from pyspark.sql import functions as F

        topic, metadata = commit.topic, msgspec.json.encode(commit).decode()
        # The batch has a task for every partition of every topic, and nearly all hold nothing of this one.
        mine = batch.filter(F.col("topic") == topic).coalesce(len({each.partition for each in slices}))
        typed = self._fit(topic, self._typed(mine, topic, slices))
        if self._is_changelog(topic, slices):
            self._merge(typed, topic, slices, metadata)
        else:
            self._append(typed, topic, metadata)
        log.debug("table_written", topic=topic, next={p: books.next for p, books in commit.partitions.items()})

    def _typed(self, rows: "DataFrame", topic: str, slices: list[Slice]) -> "DataFrame":
        """The rows that decode, with the columns of their schemas.

        Columns: the schema's own, then `_key` string, `_partition`, `_offset`, `_timestamp`, and for `_merge` `_op`
        (of change records) and `_deleted`.
        """
        from pyspark.sql import functions as F

        place = [
            F.col("key").cast("string").alias("_key"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
        ]
        plain = [F.lit(None).cast("string").alias("_op"), F.lit(False).alias("_deleted")]
        parts: list[DataFrame] = []
        for schema_id in sorted(ids_of(slices) & self._schemas.keys()):
            decoded = rows.filter(F.col("schema_id") == schema_id).withColumn("row", self._decoded(schema_id))
            decoded = decoded.filter(F.col(f"row.{SENTINEL}")).withColumn("row", F.col("row").dropFields(SENTINEL))
            if is_change(self._schemas[schema_id]):
                op = F.col("row.op")
                parts.append(decoded.select("row.after.*", *place, op.alias("_op"), (op == "d").alias("_deleted")))
            else:
                parts.append(decoded.select("row.*", *place, *plain))
        if not self._is_typed(topic, slices):
            parts.append(rows.filter(F.col("schema_id") == NO_SCHEMA).select("value", *place, *plain))
        gone = rows.filter(F.col("value").isNull())
        parts.append(gone.select(*place, plain[0], F.lit(True).alias("_deleted")))
        typed = parts[0]
        for part in parts[1:]:
            typed = typed.unionByName(part, allowMissingColumns=True)
        return typed

    def _is_changelog(self, topic: str, slices: Iterable[Slice]) -> bool:
        changes = (is_change(self._schemas.get(schema_id, "{}")) for schema_id in ids_of(slices))
        return self._catalog.get(topic, TopicEntry()).kind == "changelog" or any(changes)

    def _is_typed(self, topic: str, slices: Iterable[Slice]) -> bool:
        return self._catalog.get(topic, TopicEntry()).subject is not None or bool(ids_of(slices))

    def _fit(self, topic: str, typed: "DataFrame") -> "DataFrame":
        """Rows as the table can take them, with all of its columns.

        A column keeps its type, or becomes wider where a schema now says so; one that the batch's schemas lack is null:
        what a merge does not name keeps the value that an earlier schema gave it.

        Raises:
            TableHeld: a column has another type now.
        """
        from pyspark.sql import functions as F

        path = self._directory / topic
        if not is_table(path):
            return typed
        table = self._shapes.get(topic) or self._spark.read.format("delta").load(str(path)).schema
        has = {field.name.lower(): field.dataType for field in table}
        wider = False
        for field in typed.schema:
            old, new = has.get(field.name.lower(), field.dataType), field.dataType
            if (new.typeName(), old.typeName()) in WIDENINGS:  # from a producer that has the older schema
                typed = typed.withColumn(field.name, typed[field.name].cast(old))
            elif (old.typeName(), new.typeName()) in WIDENINGS:
                wider = True
            elif old.typeName() != new.typeName():
                raise TableHeld(
                    f"{path}: column {field.name}: expected {old.simpleString()}, found {new.simpleString()}",
                    hint="remove or move the directory: the table is filled anew, with the types of the newest schema",
                )
        if wider:
            self._spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        given = {name.lower() for name in typed.columns}
        if wider or not given - {"_op", "_deleted"} <= has.keys():
            self._shapes.pop(topic, None)
        else:
            self._shapes[topic] = table
        lacking = [field for field in table if field.name.lower() not in given]
        return typed.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in lacking))

    def _append(self, rows: "DataFrame", topic: str, metadata: str) -> None:
        writer = rows.drop("_op", "_deleted").write.format("delta").mode("append").option("mergeSchema", "true")
        writer.option("userMetadata", metadata).save(str(self._directory / topic))

    def _care(self, commit: TableCommit) -> None:
        """Keep the number of files small: of the newest version, and of what the older ones have left.

        The table has what the batch brought, so a failure is only told; it is tried again as many commits later.
        """
        turn = commit.number + zlib.crc32(commit.topic.encode())  # tables that began together do not all wait together
        for statement, every in CARE.items():
            if turn % every == 0:
                try:
                    self._spark.sql(f"{statement} delta.`{self._directory / commit.topic}`")
                except _failures() as error:
                    log.warning("table_care_failed", topic=commit.topic, statement=statement, reason=one_line(error))

    def _merge(self, typed: "DataFrame", topic: str, slices: list[Slice], metadata: str) -> None:
        """Apply the last record of every key: 1. truncations, 2. the rows."""
        from pyspark.sql import functions as F

        path = str(self._directory / topic)
        columns = [name for name in typed.columns if name not in ("_op", "_deleted")]
        cuts: dict[int, int] = {}
        if any(is_change(self._schemas.get(schema_id, "{}")) for schema_id in ids_of(slices)):
            cut = typed.filter("_op = 't'").groupBy("_partition").agg(F.max("_offset").alias("cut"))
            cuts = {row["_partition"]: row["cut"] for row in cut.collect()}
        for partition, offset in cuts.items():
            typed = typed.filter((F.col("_partition") != partition) | (F.col("_offset") > offset))
        last = typed.groupBy("_key").agg(F.max_by(F.struct(*columns, "_deleted"), "_offset").alias("last"))
        source = last.select("last.*")
        if not is_table(self._directory / topic):  # nothing to merge with
            self._append(source.filter("NOT _deleted"), topic, metadata)
            return
        own = SETTINGS | self._compile | {METADATA_CONF: metadata}  # the commit's metadata is a setting of the session
        session = _with_settings(typed.sparkSession.newSession(), own)
        view = f"merge_{next(_views)}"  # global: the source is another session's. Other topics and sinks have theirs
        source.createOrReplaceGlobalTempView(view)
        values = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names, taken = ", ".join(f"`{name}`" for name in columns), ", ".join(f"s.`{name}`" for name in columns)
        before_cut = " OR ".join(f"(t._partition = {p} AND t._offset < {offset})" for p, offset in cuts.items())
        truncate = f"WHEN NOT MATCHED BY SOURCE AND ({before_cut}) THEN DELETE" if cuts else ""
        try:
            session.sql(
                # S608: the path's last part is a topic's name: letters, digits, dots, dashes and underscores only;
                # columns are quoted Avro names
                f"MERGE WITH SCHEMA EVOLUTION INTO delta.`{path}` t USING global_temp.{view} s ON t._key = s._key "  # noqa: S608
                f"WHEN MATCHED AND s._deleted THEN DELETE WHEN MATCHED THEN UPDATE SET {values} "
                f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({names}) VALUES ({taken}) {truncate}"
            )
        finally:
            session.catalog.dropGlobalTempView(view)

    def _quarantine(self, bad: "DataFrame") -> None:
        """Keep what does not decode, with its reason; once, however often the batch runs."""
        path = str(self._directory / QUARANTINE)
        rows = bad.select("topic", "partition", "offset", "timestamp", "reason", "key", "value")
        if not is_table(self._directory / QUARANTINE):
            rows.filter("false").write.format("delta").mode("append").save(path)
        rows.createOrReplaceTempView("undecodable")
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{path}` t USING undecodable s ON t.topic = s.topic AND t.partition = s.partition "
            "AND t.offset = s.offset AND t.timestamp = s.timestamp WHEN NOT MATCHED THEN INSERT *"
        )

    def _commit_of(self, topic: str) -> TableCommit:
        """Our last commit to the topic's table; nothing where there is no table."""
        return self._commits.get(topic) or TableCommit(topic)

    def _report(self, commits: Iterable[TableCommit]) -> None:
        """Tell the audit what the tables hold, from offset 0 on."""
        news = {commit.topic: commit for commit in commits if self._told.get(commit.topic) != commit}
        write_reports(self._connection, [each for commit in news.values() for each in reports_of(commit, self._name)])
        self._told |= news


def one_line(error: BaseException) -> str:
    """The first line that says something, of Spark's pages too."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):  # of the call, not of what failed
        lines.pop(0)
    return (lines[0] if lines else type(error).__name__)[:500]


def batch_ends(checkpoint: Path, number: int) -> dict[str, dict[int, int]]:
    """Where batch `number` of a query of one source ends: next offset by topic and partition, past markers too.

    Spark writes it to the checkpoint before it runs the batch: a line of version, one of metadata, one for each source.
    """
    return msgspec.json.decode(
        (checkpoint / "offsets" / str(number)).read_text().splitlines()[2], type=dict[str, dict[int, int]]
    )


def compile_settings(records: int) -> dict[str, str]:
    """Java is generated and compiled for the plans of large batches only: for a small one that is most of its time."""
    if records > SMALL_BATCH:
        return {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    return {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def _with_settings(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    for name, value in settings.items():
        spark.conf.set(name, value)
    return spark


def _failures() -> tuple[type[Exception], ...]:
    """What another try may mend; not the loss of Spark's JVM, which ends the process."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return MainstemError, OSError, PySparkException, Py4JJavaError


def announce(connection: Connection, config: LakehouseConfig, name: str) -> None:
    """Tell the catalog which topics become tables: the audit misses what the sink `name` does not speak of."""
    key, entry = f"sink:{name}", {"type": "delta", "pattern": config.topics}
    if read_catalog(connection).get(key) != entry:
        write_catalog(connection, {key: entry})


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


def is_change(schema: str) -> bool:
    """Whether a schema is that of a canonical change record: `"mainstem": "change"` among its attributes."""
    parsed = msgspec.json.decode(schema)
    return isinstance(parsed, dict) and parsed.get("mainstem") == "change"
