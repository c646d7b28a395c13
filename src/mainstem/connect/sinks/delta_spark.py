"""Batches of records, counted and written to Delta tables by Spark.

It takes whatever comes: values that do not decode go to quarantine, columns are added and become wider, truncations of
the source are applied. What small batches need not pay for all that is in `delta_small`.
"""

import collections
import functools
import itertools
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.connect.sinks.delta_log import TableCommit, TableGone, is_table
from mainstem.connect.sinks.delta_topics import NO_SCHEMA, Slice, Topics, ids_of
from mainstem.connect.sinks.delta_types import Fit, converted_fields, fit, joined
from mainstem.core import MainstemError, UserError
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger
from mainstem.registry.schema import is_change
from mainstem.registry.spark import SENTINEL, for_spark, if_within, with_sentinel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = get_logger()
_views = itertools.count()  # global temporary views are shared by all sinks of a process

QUARANTINE = "_quarantine"
METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
SETTINGS = {
    # The books of a batch that changes no row must be kept too: only bad records, an insert and its delete.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.databricks.delta.typeWidening.allowAutomaticWidening": "always",
    # Spark's own default is a type of 96 bits, which others read as nanoseconds of 64: a `valid_to` of 9999 as 1816.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # OPTIMIZE holds up the batch: it rewrites what is below 64 MB, and not, as it comes, all of a table of up to 1 GB.
    "spark.databricks.delta.optimize.minFileSize": str(64 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
}
"""Settings of the lakehouse's own sessions."""
SMALL_BATCH = 50_000  # records, or offsets
"""Up to so much, planning and starting tasks are most of the work."""
CARE = {"OPTIMIZE": 100, "VACUUM": 1_000}
"""After how many commits of a table it is done. VACUUM lists all of its files, so it comes more seldom."""


class TableHeld(UserError):
    """A table cannot take its topic's records; the hint says what a person can do."""


def with_schema_ids(records: "DataFrame") -> "DataFrame":
    """With a column `schema_id`: null of null values, NO_SCHEMA of those that do not begin as Confluent's do."""
    from pyspark.sql import functions as F

    schema_id = F.when(
        F.expr("substring(value, 1, 1) = X'00' AND length(value) >= 5"),
        # Not an int: any four bytes may stand there, and ANSI's cast fails the query for those above 2^31.
        F.expr("CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS BIGINT)"),
    ).otherwise(NO_SCHEMA)
    return records.withColumn("schema_id", F.when(F.col("value").isNotNull(), schema_id))


def count_records(rows: "DataFrame") -> dict[str, list[Slice]]:
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


class SparkWriter:
    """Writes the batches of one sink, one after the other;
    `write` and `care` from several threads, of different topics.

    Args:
        spark: the sink's session.
        directory: one directory per topic appears in it.
        topics: their schemas and kinds; the sink learns those of a batch before it is written.
    """

    def __init__(self, spark: "SparkSession", directory: Path, topics: Topics) -> None:
        self._spark = with_settings(spark, SETTINGS)
        self._directory = directory
        self._topics = topics
        self._compile: dict[str, str] = {}
        self._shapes: dict[str, StructType] = {}  # of the tables, where the last batch did not change it

    def forget_shapes(self) -> None:
        """Others may have changed the tables."""
        self._shapes.clear()

    def prepare(self, session: "SparkSession", records: int) -> None:
        """Before a batch of so many records, with the session that its rows are of."""
        self._compile = compile_settings(records)
        with_settings(session, self._compile)

    def set_aside(
        self, rows: "DataFrame", slices: Mapping[str, list[Slice]]
    ) -> tuple[dict[tuple[str, int], int], dict[str, Exception]]:
        """Put what does not decode into quarantine.

        All topics are looked at together. If that fails, each by itself, to find the one that it fails for.

        Returns:
            How many by topic and partition; the topics for which it failed, with the reason.
        """
        try:
            return self._set_aside_together(rows, slices), {}
        except failures() as error:
            if len(slices) == 1:
                return {}, {next(iter(slices)): error}
        wrong: dict[tuple[str, int], int] = {}
        failed: dict[str, Exception] = {}
        for topic, mine in slices.items():
            of_topic = self.set_aside(rows.filter(rows["topic"] == topic), {topic: mine})
            wrong |= of_topic[0]
            failed |= of_topic[1]
        return wrong, failed

    def _set_aside_together(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> dict[tuple[str, int], int]:
        bad = self._undecodable(rows, slices).persist()
        try:
            counts = bad.groupBy("topic", "partition").count().collect()
            if counts:
                self._quarantine(bad)
        finally:
            bad.unpersist()
        return {(row["topic"], row["partition"]): row["count"] for row in counts}

    def _undecodable(self, rows: "DataFrame", slices: Mapping[str, list[Slice]]) -> "DataFrame":
        """The records that cannot become rows, with the reason."""
        from pyspark.sql import functions as F

        reason = F.lit(None).cast("string")
        for topic, mine in slices.items():
            if self._topics.is_typed(topic, mine):
                nothing = (F.col("topic") == topic) & (F.col("schema_id") == NO_SCHEMA)
                reason = F.when(nothing, "no schema id in the value").otherwise(reason)
        for schema_id in sorted(ids_of(each for mine in slices.values() for each in mine)):
            this = F.col("schema_id") == schema_id
            if schema_id not in self._topics.schemas:
                reason = F.when(this, f"schema {schema_id} is not registered").otherwise(reason)
            else:
                lost = this & self._decoded(schema_id)[SENTINEL].isNull()
                why = f"the bytes do not fit schema {schema_id}, or a date or timestamp is not of the years 1 to 9999"
                reason = F.when(lost, why).otherwise(reason)
        return rows.withColumn("reason", reason).filter("reason IS NOT NULL")

    def _decoded(self, schema_id: int) -> "Column":
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        schema = for_spark(self._topics.schemas[schema_id])
        options = {"avroSchema": with_sentinel(schema, f"with schema {schema_id}"), "mode": "PERMISSIVE"}
        rows = from_avro(F.expr("substring(value, 6)"), schema, options)
        return if_within(self._spark, rows, schema)

    def write(self, batch: "DataFrame", commit: TableCommit, slices: list[Slice]) -> None:
        """Bring the table of the commit's topic up to this batch, in one commit with our user metadata. Its first makes
        it.

        Raises:
            TableHeld: a column has another type now, or two.
            TableGone: the table is missing, and the commit is not its first.
        """
        typed = self._fit(self._parts(batch, commit.topic, slices), commit)
        if self._topics.is_changelog(commit.topic, slices):
            self._merge(typed, commit, slices)
        else:
            self._append(typed, commit)

    def write_books(self, commit: TableCommit) -> None:
        """Have a table say that it has more offsets of its topic, in a commit without rows."""
        path = self._directory / commit.topic
        nothing = self._spark.read.format("delta").load(str(path)).limit(0)
        nothing.writeTo(_in_sql(path)).option("userMetadata", commit.metadata).append()

    def care(self, topic: str, commits: int) -> None:
        """Keep the number of a table's files small: of the newest version, and of what the older ones have left.

        The table has what the batch brought, so a failure is only told; it is tried again as many commits later.
        """
        turn = commits + zlib.crc32(topic.encode())  # tables that began together do not all wait together
        for statement, every in CARE.items():
            if turn % every == 0:
                try:
                    self._spark.sql(f"{statement} {_in_sql(self._directory / topic)}")
                except failures() as error:
                    log.warning("table_care_failed", topic=topic, statement=statement, reason=one_line(error))

    def typed(self, batch: "DataFrame", topic: str, slices: list[Slice]) -> "DataFrame":
        """The rows of one topic that decode, with the columns of their schemas.

        Columns: the schema's own, then `_key` string, `_partition`, `_offset`, `_timestamp`, `_op` (null but of change
        records) and `_deleted`.

        Raises:
            TableHeld: two schemas give a column two types that no column has.
        """
        parts = self._parts(batch, topic, slices)
        return united(parts, common_columns(self._directory / topic, None, parts)[0])

    def _parts(self, batch: "DataFrame", topic: str, slices: list[Slice]) -> "list[DataFrame]":
        """The same, of each schema by itself, in the order of their ids; null values have no columns of a schema."""
        from pyspark.sql import functions as F

        # The batch has a task for every partition of every topic, and nearly all hold nothing of this one.
        rows = batch.filter(F.col("topic") == topic).coalesce(len({each.partition for each in slices}))
        place = [
            F.col("key").cast("string").alias("_key"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
        ]
        plain = [F.lit(None).cast("string").alias("_op"), F.lit(False).alias("_deleted")]
        parts: list[DataFrame] = []
        for schema_id in sorted(ids_of(slices) & self._topics.schemas.keys()):
            decoded = rows.filter(F.col("schema_id") == schema_id).withColumn("row", self._decoded(schema_id))
            decoded = decoded.filter(F.col(f"row.{SENTINEL}")).withColumn("row", F.col("row").dropFields(SENTINEL))
            if is_change(self._topics.schemas[schema_id]):
                op = F.col("row.op")
                parts.append(decoded.select("row.after.*", *place, op.alias("_op"), (op == "d").alias("_deleted")))
            else:
                parts.append(decoded.select("row.*", *place, *plain))
        # Null values alone do not say that the topic has no schema: its rows may have a column `value` of another type.
        if any(each.schema_id == NO_SCHEMA for each in slices) and not self._topics.is_typed(topic, slices):
            parts.append(rows.filter(F.col("schema_id") == NO_SCHEMA).select("value", *place, *plain))
        gone = rows.filter(F.col("value").isNull())
        parts.append(gone.select(*place, plain[0], F.lit(True).alias("_deleted")))
        return parts

    def _fit(self, parts: "list[DataFrame]", commit: TableCommit) -> "DataFrame":
        """Rows as the table can take them, with all of its columns.

        A column keeps its type, or becomes wider where a schema now says so, also within it; one that the batch's
        schemas lack is null: what a merge does not name keeps the value that an earlier schema gave it.

        Raises:
            TableHeld: a column has another type now, or two.
            TableGone: the table is missing, and the commit is not its first.
        """
        topic, path = commit.topic, self._directory / commit.topic
        if not is_table(path):
            if not commit.is_first:
                raise TableGone(path)
            return united(parts, common_columns(path, None, parts)[0])
        table = self._shapes.get(topic) or self._spark.read.format("delta").load(str(path)).schema
        columns, needed = common_columns(path, table, parts)
        if needed & Fit.WIDER:
            self._set_property(path, "delta.enableTypeWidening", "true")
        if (ntz := "timestamp_ntz") in columns.simpleString() and ntz not in table.simpleString():
            self._set_property(path, "delta.feature.timestampNtz", "supported")  # which only a new table has by itself
        if needed:
            self._shapes.pop(topic, None)
        else:
            self._shapes[topic] = table
        return united(parts, columns)

    def _set_property(self, path: Path, name: str, value: str) -> None:
        self._spark.sql(f"ALTER TABLE {_in_sql(path)} SET TBLPROPERTIES ('{name}' = '{value}')")

    def _append(self, rows: "DataFrame", commit: TableCommit) -> None:
        path, options = self._directory / commit.topic, {"mergeSchema": "true", "userMetadata": commit.metadata}
        rows = rows.drop("_op", "_deleted")
        if commit.is_first:
            rows.write.format("delta").mode("append").options(**options).save(str(path))
        else:  # `save` makes a table that is gone anew, with metadata that claim what it had
            rows.writeTo(_in_sql(path)).options(**options).append()

    def _merge(self, typed: "DataFrame", commit: TableCommit, slices: list[Slice]) -> None:
        """Apply the last record of every key: 1. truncations, 2. the rows."""
        from pyspark.sql import functions as F

        path = self._directory / commit.topic
        columns = [name for name in typed.columns if name not in ("_op", "_deleted")]
        cuts: dict[int, int] = {}
        if self._topics.has_changes(slices):
            cut = typed.filter("_op = 't'").groupBy("_partition").agg(F.max("_offset").alias("cut"))
            cuts = {row["_partition"]: row["cut"] for row in cut.collect()}
        for partition, offset in cuts.items():
            typed = typed.filter((F.col("_partition") != partition) | (F.col("_offset") > offset))
        last = typed.groupBy("_key").agg(F.max_by(F.struct(*columns, "_deleted"), "_offset").alias("last"))
        source = last.select("last.*")
        if commit.is_first and not is_table(path):  # nothing to merge with
            self._append(source.filter("NOT _deleted"), commit)
            return
        # The commit's metadata is a setting of the session.
        own = SETTINGS | self._compile | {METADATA_CONF: commit.metadata}
        session = with_settings(typed.sparkSession.newSession(), own)
        view = f"merge_{next(_views)}"  # global: the source is another session's. Other topics and sinks have theirs
        source.createOrReplaceGlobalTempView(view)
        values = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names, taken = ", ".join(f"`{name}`" for name in columns), ", ".join(f"s.`{name}`" for name in columns)
        before_cut = " OR ".join(f"(t._partition = {p} AND t._offset < {offset})" for p, offset in cuts.items())
        truncate = f"WHEN NOT MATCHED BY SOURCE AND ({before_cut}) THEN DELETE" if cuts else ""
        try:
            session.sql(
                # S608: the path is quoted, and columns are quoted Avro names
                f"MERGE WITH SCHEMA EVOLUTION INTO {_in_sql(path)} t USING global_temp.{view} s ON t._key = s._key "  # noqa: S608
                f"WHEN MATCHED AND s._deleted THEN DELETE WHEN MATCHED THEN UPDATE SET {values} "
                f"WHEN NOT MATCHED AND NOT s._deleted THEN INSERT ({names}) VALUES ({taken}) {truncate}"
            )
        finally:
            session.catalog.dropGlobalTempView(view)

    def _quarantine(self, bad: "DataFrame") -> None:
        """Keep what does not decode, with its reason; once, however often the batch runs."""
        path = self._directory / QUARANTINE
        rows = bad.select("topic", "partition", "offset", "timestamp", "reason", "key", "value")
        if not is_table(path):
            rows.filter("false").write.format("delta").mode("append").save(str(path))
        rows.createOrReplaceTempView("undecodable")
        rows.sparkSession.sql(
            f"MERGE INTO {_in_sql(path)} t USING undecodable s ON t.topic = s.topic AND t.partition = s.partition "
            "AND t.offset = s.offset AND t.timestamp = s.timestamp WHEN NOT MATCHED THEN INSERT *"
        )


def _in_sql(table: Path) -> str:
    """The name of a table for SQL, whatever its path has."""
    return "delta.`" + str(table).replace("`", "``") + "`"


def common_columns(path: Path, table: "StructType | None", parts: "Iterable[DataFrame]") -> "tuple[StructType, Fit]":
    """The columns that take the rows of all parts as they are: those of the table, as they become with one part after
    the other, `_op` and `_deleted`; and what the table needs for it.

    Raises:
        TableHeld: a column has another type in a part than in the table, or in a part before it, or is there twice.
    """
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    own = (StructField("_op", StringType()), StructField("_deleted", BooleanType()))
    columns = {field.name.lower(): field for field in (*(table or ()), *own)}
    needed = Fit.AS_IS
    for new in (field for part in parts for field in _checked(path, part.schema)):
        name, kind = new.name.lower(), new.dataType
        if name not in columns:
            columns[name] = new
            needed |= Fit.MORE
            continue
        has = columns[name].dataType
        needed |= (each := fit(kind, has))
        if each & Fit.NEVER:
            raise TableHeld(
                f"{path}: column {new.name}: expected {has.simpleString()}, found {kind.simpleString()}",
                hint="remove or move the directory, if there is one, when the log has records of one of these types "
                "only: the table is filled anew",
            )
        columns[name] = StructField(columns[name].name, joined(kind, has))
    return StructType([*columns.values()]), needed


def _checked(path: Path, columns: "StructType") -> "StructType":
    """The columns of a part.

    Raises:
        TableHeld: two have one name.
    """
    names = collections.Counter(field.name.lower() for field in columns)
    for name, count in names.items():
        if count > 1:
            raise TableHeld(
                f"{path}: column {name}: expected one of that name, found {count}",
                hint="call the field something else, in a topic without records of this schema: a table has _key, "
                "_partition, _offset and _timestamp of its own, _op and _deleted are taken too, and id is ID",
            )
    return columns


def united(parts: "Iterable[DataFrame]", columns: "StructType") -> "DataFrame":
    """The rows of all parts, each with these columns: Spark's union would find types itself, and round to them."""
    same = (part.select(*converted_fields(part.__getitem__, part.schema, columns)) for part in parts)
    return functools.reduce(lambda rows, more: rows.union(more), same)


def compile_settings(records: int) -> dict[str, str]:
    """Java is generated and compiled for the plans of large batches only: for a small one that is most of its time."""
    if records > SMALL_BATCH:
        return {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    return {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def with_settings(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    for name, value in settings.items():
        spark.conf.set(name, value)
    return spark


def failures() -> tuple[type[Exception], ...]:
    """What another try may mend; not the loss of Spark's JVM, which ends the process."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return MainstemError, OSError, PySparkException, Py4JJavaError
