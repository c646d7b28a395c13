"""Lakehouse: every topic becomes a Delta table with the columns of its schema; one query serves all topics.

Exactly once by the table itself: each commit's user metadata holds, per partition, the offset up to which the table
has its topic, and the books of all that came before:

    {"mainstem": 1, "topic": "flights", "partitions": {"0": {"next": 41, "rows": 40, "tombstones": 0,
     "quarantined": 0, "hash": 1234}}}

A batch leaves out what the table already has, so a batch that runs again, a checkpoint that is lost or one that was
rolled back changes nothing. Spark's batch numbers, which start over with a new checkpoint, play no part.

A stream is appended. A changelog is merged by its key: the table shows the rows as they are now.
"""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from mainstem.client.append import append
from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import AUDIT
from mainstem.core.config import check_interval
from mainstem.core.logging import get_logger
from mainstem.registry.reader import read_schemas
from mainstem.registry.spark import SENTINEL, with_sentinel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger()

READER = "lakehouse"
QUARANTINE = "_quarantine"
USER_TOPICS = r"^[^_].*"  # internal topics start with an underscore, in Kafka and here
NO_SCHEMA = -1  # a value without Confluent's first byte
METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
WRITERS = 4  # tables written at the same time: a commit is mostly waiting


class LakehouseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sinks.<name>]` with `type = "delta"`."""

    path: str = ""  # directory of the tables; empty: `tables` in the data directory
    topics: str = USER_TOPICS  # a regular expression
    every: str = "2 seconds"
    max_records: Annotated[int, Meta(ge=1)] = 400_000  # of all topics together, per batch

    def __post_init__(self) -> None:
        check_interval(self.every)
        try:
            re.compile(self.topics)
        except re.error as error:
            raise ValueError(f"topics = {self.topics!r}: no regular expression: {error}") from None


class PartitionBooks(msgspec.Struct):
    """What a table holds of one partition: everything below offset `next`."""

    next: int = 0
    rows: int = 0
    tombstones: int = 0
    quarantined: int = 0
    hash: int = 0


class TableCommit(msgspec.Struct):
    """The user metadata of a commit."""

    topic: str
    partitions: dict[int, PartitionBooks]
    mainstem: int = 1


class Slice(msgspec.Struct, frozen=True):
    """What a batch holds of one partition with one schema id; None for null values."""

    partition: int
    schema_id: int | None
    records: int
    last: int
    hash: int


def ids_of(slices: Iterable[Slice]) -> set[int]:
    """The schema ids in use; neither null values nor values without an id."""
    return {each.schema_id for each in slices if each.schema_id is not None and each.schema_id != NO_SCHEMA}


class Lakehouse:
    """The tables below `directory`, one for each topic, and the query that keeps them.

    Args:
        spark: a session with the Kafka, Avro and Delta jars.
        connection: the log.
        directory: one directory per topic appears in it.
        checkpoint: the query's own; it may be deleted at any time.
        config: which topics, how often.
    """

    def __init__(
        self, spark: "SparkSession", connection: Connection, directory: Path, checkpoint: Path, config: LakehouseConfig
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._directory = directory
        self._checkpoint = checkpoint
        self._config = config
        self._schemas: dict[int, str] = {}
        self._catalog: dict[str, TopicEntry] = {}
        self._commits: dict[str, TableCommit] = {}

    def start(self) -> "StreamingQuery":
        """Announce what the tables read and hold, then follow the log."""
        announce(self._connection, self._config)
        self._directory.mkdir(parents=True, exist_ok=True)
        for table in sorted(self._directory.iterdir()):
            if (table / "_delta_log").is_dir() and table.name != QUARANTINE:
                self._commit_of(table.name)
        self._report(self._commits.values())
        source = self._spark.readStream.format("kafka").options(**self._connection.spark())
        source = source.option("kafka.isolation.level", "read_committed").option("includeHeaders", "false")
        source = source.option("subscribePattern", self._config.topics).option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", str(self._config.max_records))
        writer = source.load().writeStream.foreachBatch(self._write).queryName(READER)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(processingTime=self._config.every)
        return writer.start()

    def _write(self, batch: "DataFrame", number: int) -> None:
        """One batch: 1. leave out what the tables have, 2. count it, 3. write each topic's table, 4. report."""
        from pyspark.sql import functions as F

        schema_id = F.when(
            F.expr("substring(value, 1, 1) = X'00' AND length(value) >= 5"),
            F.expr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS INT)"),
        ).otherwise(NO_SCHEMA)
        rows = batch.withColumn("schema_id", F.when(F.col("value").isNotNull(), schema_id))
        rows = rows.filter(~self._known()).persist()
        try:
            slices = self._count(rows)
            self._learn(slices)
            bad = self._undecodable(rows, slices).persist()
            wrong = {
                (r["topic"], r["partition"]): r["count"] for r in bad.groupBy("topic", "partition").count().collect()
            }
            commits = [self._next_commit(topic, mine, wrong) for topic, mine in sorted(slices.items())]
            if wrong:
                self._quarantine(bad)
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(lambda commit: self._write_topic(rows, commit, slices[commit.topic]), commits))
            bad.unpersist()
        finally:
            rows.unpersist()
        self._commits |= {commit.topic: commit for commit in commits}
        self._report(self._commits[commit.topic] for commit in commits)

    def _known(self) -> "Column":
        """True for the records that the tables have already."""
        from pyspark.sql import functions as F

        known = F.lit(False)
        for topic, commit in self._commits.items():
            for partition, books in commit.partitions.items():
                place = (F.col("topic") == topic) & (F.col("partition") == partition)
                known |= place & (F.col("offset") < books.next)
        return known

    @staticmethod
    def _count(rows: "DataFrame") -> dict[str, list[Slice]]:
        """What the batch holds, by topic: one job for all topics."""
        from pyspark.sql import functions as F

        fingerprint = F.xxhash64("key", "value").cast("decimal(38,0)")  # mainstem.records.fingerprint
        counts = rows.groupBy("topic", "partition", "schema_id").agg(
            F.count("*").alias("records"), F.max("offset").alias("last"), F.sum(fingerprint).alias("hash")
        )
        slices: dict[str, list[Slice]] = {}
        for row in counts.collect():
            found = Slice(row["partition"], row["schema_id"], row["records"], row["last"], int(row["hash"]))
            slices.setdefault(row["topic"], []).append(found)
        return slices

    def _learn(self, slices: Mapping[str, list[Slice]]) -> None:
        """Know the schemas and the kinds of all topics of this batch; ask the log only about new ones."""
        if not ids_of(each for mine in slices.values() for each in mine) <= self._schemas.keys():
            self._schemas = read_schemas(self._connection)
        if not slices.keys() <= self._catalog.keys():
            entries = topic_entries(read_catalog(self._connection))
            self._catalog |= {topic: entries.get(topic, TopicEntry()) for topic in slices}

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
                reason = F.when(lost, f"the bytes do not fit schema {schema_id}").otherwise(reason)
        return rows.withColumn("reason", reason).filter("reason IS NOT NULL")

    def _decoded(self, schema_id: int) -> "Column":
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        schema = self._schemas[schema_id]
        options = {"avroSchema": with_sentinel(schema, f"with schema {schema_id}"), "mode": "PERMISSIVE"}
        return from_avro(F.expr("substring(value, 6)"), schema, options)

    def _next_commit(self, topic: str, slices: Iterable[Slice], wrong: Mapping[tuple[str, int], int]) -> TableCommit:
        """The books of the table after this batch."""
        partitions = {p: msgspec.structs.replace(books) for p, books in self._commit_of(topic).partitions.items()}
        for each in slices:
            books = partitions.setdefault(each.partition, PartitionBooks())
            books.next = max(books.next, each.last + 1)
            books.hash = (books.hash + each.hash) % 2**64
            if each.schema_id is None:
                books.tombstones += each.records
            else:
                books.rows += each.records
        for (of, partition), count in wrong.items():
            if of == topic:
                partitions[partition].rows -= count
                partitions[partition].quarantined += count
        return TableCommit(topic, partitions)

    def _write_topic(self, batch: "DataFrame", commit: TableCommit, slices: list[Slice]) -> None:
        """Bring one topic's table up to this batch, in one commit that says so."""
        from pyspark.sql import functions as F

        topic, metadata = commit.topic, msgspec.json.encode(commit).decode()
        # The batch has a task for every partition of every topic, and nearly all hold nothing of this one.
        mine = batch.filter(F.col("topic") == topic).coalesce(len({each.partition for each in slices}))
        typed = self._typed(mine, topic, slices)
        if self._is_changelog(topic, slices):
            self._merge(typed, topic, slices, metadata)
        else:
            columns = [name for name in typed.columns if name not in ("_op", "_deleted")]
            writer = typed.select(columns).write.format("delta").mode("append").option("mergeSchema", "true")
            writer.option("userMetadata", metadata).save(str(self._directory / topic))
        log.info("table_written", topic=topic, next={p: books.next for p, books in commit.partitions.items()})

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
        if not (self._directory / topic / "_delta_log").is_dir():
            source.select(columns).filter("false").write.format("delta").mode("append").save(path)
        session = typed.sparkSession.newSession()  # the commit's metadata is a setting of the session
        session.conf.set(METADATA_CONF, metadata)
        view = "merge_" + re.sub(r"\W", "_", topic)
        source.createOrReplaceGlobalTempView(view)
        values = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names, taken = ", ".join(f"`{name}`" for name in columns), ", ".join(f"s.`{name}`" for name in columns)
        before_cut = " OR ".join(f"(t._partition = {p} AND t._offset < {offset})" for p, offset in cuts.items())
        truncate = f"WHEN NOT MATCHED BY SOURCE AND ({before_cut}) THEN DELETE" if cuts else ""
        session.sql(
            # S608: topic names hold letters, digits, dots, dashes and underscores only; columns are quoted Avro names
            f"MERGE WITH SCHEMA EVOLUTION INTO delta.`{path}` t USING global_temp.{view} s ON t._key = s._key "  # noqa: S608
            f"WHEN MATCHED AND s._deleted THEN DELETE WHEN MATCHED THEN UPDATE SET {values} "
            f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({names}) VALUES ({taken}) {truncate}"
        )
        session.catalog.dropGlobalTempView(view)

    def _quarantine(self, bad: "DataFrame") -> None:
        """Keep what does not decode, with its reason; once, however often the batch runs."""
        path = str(self._directory / QUARANTINE)
        rows = bad.select("topic", "partition", "offset", "timestamp", "reason", "key", "value")
        if not (self._directory / QUARANTINE / "_delta_log").is_dir():
            rows.filter("false").write.format("delta").mode("append").save(path)
        rows.createOrReplaceTempView("undecodable")
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{path}` t USING undecodable s ON t.topic = s.topic AND t.partition = s.partition "
            "AND t.offset = s.offset WHEN NOT MATCHED THEN INSERT *"
        )

    def _commit_of(self, topic: str) -> TableCommit:
        """The last commit of ours in the table's history; nothing where there is no table."""
        if topic not in self._commits:
            self._commits[topic] = TableCommit(topic, {})
            if (self._directory / topic / "_delta_log").is_dir():
                history = self._spark.sql(f"DESCRIBE HISTORY delta.`{self._directory / topic}`")
                ours = history.filter("userMetadata LIKE '{%\"mainstem\"%'").orderBy("version", ascending=False)
                newest = ours.select("userMetadata").first()
                if newest is not None:
                    self._commits[topic] = msgspec.json.decode(newest[0], type=TableCommit, strict=False)
        return self._commits[topic]

    def _report(self, commits: Iterable[TableCommit]) -> None:
        """Tell the audit what the tables hold, from offset 0 on."""
        statements = [
            (READER.encode(), msgspec.json.encode(statement))
            for commit in commits
            for statement in statements_of(commit)
        ]
        if statements:
            append(self._connection, AUDIT, statements)


def announce(connection: Connection, config: LakehouseConfig) -> None:
    """Tell the catalog which topics become tables: the audit misses what this reader does not speak of."""
    key, entry = f"sink:{READER}", {"type": "delta", "pattern": config.topics}
    if read_catalog(connection).get(key) != entry:
        write_catalog(connection, {key: entry})


def statements_of(commit: TableCommit) -> list[dict[str, Any]]:
    """The audit statements of a table: all records from offset 0 up to the table's position, per partition."""
    return [
        {
            "reader": READER,
            "topic": commit.topic,
            "partition": partition,
            "from": 0,
            "to": books.next,
            "rows": books.rows,
            "quarantined": books.quarantined,
            "tombstones": books.tombstones,
            "filtered": 0,
            "late": 0,
            "hash": books.hash,
        }
        for partition, books in sorted(commit.partitions.items())
    ]


def is_change(schema: str) -> bool:
    """Whether a schema is that of a canonical change record: `"mainstem": "change"` among its attributes."""
    parsed = msgspec.json.decode(schema)
    return isinstance(parsed, dict) and parsed.get("mainstem") == "change"
