"""Topics as streaming DataFrames of typed rows, and the exact books of what a batch read.

The books ride along: `observe` counts in the same pass that feeds the job, per partition, and what it found is asked of
the query after the batch ran. Only if a row may be late is the batch's range read a second time, to count exactly.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.progress import Read, Seen
from mainstem.core import MainstemError
from mainstem.records.fingerprint import MODULUS
from mainstem.registry.spark import BAD, DECODED, ROW, STATUS, TOMBSTONE, TopicSchema, decode_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

POSITION = "_position"
"""The struct column that every input row has beside its own: partition int, offset long, timestamp timestamp."""

POSITION_TYPE = f"{POSITION} struct<partition:int,offset:bigint,timestamp:timestamp>"
RECORD = "_record"
"""The struct column with the record as it came; jobs whose functions do not use it do without."""
RECORD_TYPE = f"{RECORD} struct<topic:string,key:binary,value:binary,headers:array<struct<key:string,value:binary>>>"
REJECTED = "_rejected"
"""The column of a result that says why a row is rejected; null: it is not."""
HEADERS = "_headers"
"""The column of a result with the headers that its record is to have."""
DELETED = "_deleted"
"""The column of a table's result that says whether the row of this key is to go."""
ERROR, REASON = "_error", "_reason"
"""The columns of a record that is kept out: a code for programs, and a line for people."""
OWN = frozenset({POSITION, RECORD, REJECTED, HEADERS, DELETED})
"""Columns of a result that are none of its record's."""

_LOW = 0xFFFFFFFF


class Observed(msgspec.Struct, frozen=True):
    """What a batch found in one topic, and the oldest event time among its rows (ms since 1970)."""

    partitions: dict[int, Seen]
    oldest: int | None = None


class BooksMissing(MainstemError):
    """Spark has no counts for a batch that it ran, so the audit cannot be told of it: the batch is not committed."""


def with_own(columns: "StructType") -> "StructType":
    """The columns of a stream's rows as a function sees them: those of its values, and our own."""
    from pyspark.sql.types import StructType

    ours = cast("StructType", StructType.fromDDL(f"{POSITION_TYPE}, {RECORD_TYPE}"))
    return StructType([*columns.fields, *ours.fields])


def kafka_options(connection: Connection) -> dict[str, str]:
    """What every reader of ours sets: Spark reads uncommitted records otherwise."""
    return connection.spark() | {"kafka.isolation.level": "read_committed", "failOnDataLoss": "true"}


def stream_of(
    spark: "SparkSession", connection: Connection, topic: str, source: str, max_offsets: int | None, *,
    wait_ms: int = 0, headers: bool = False,
) -> "DataFrame":  # fmt: skip
    """The raw records of `topic` from its beginning, as the source named `source` of a query; at most `max_offsets` in
    a batch, where it is told beforehand what a batch has. Fewer wait until so long after the last batch.
    """
    options = kafka_options(connection) | {"startingOffsets": "earliest"}
    options |= {} if max_offsets is None else {"maxOffsetsPerTrigger": str(max_offsets)}
    options |= {"minOffsetsPerTrigger": str(max_offsets), "maxTriggerDelay": f"{wait_ms}ms"} if wait_ms else {}
    reader = spark.readStream.name(source).format("kafka").options(**options)
    return reader.option("includeHeaders", headers).option("subscribe", topic).load()


def range_of(
    spark: "SparkSession",
    connection: Connection,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    headers: bool = False,
) -> "DataFrame":
    """The raw records of `topic` from `start` (included; what is missing starts at the earliest) to `end` (not)."""
    first = {str(partition): start.get(partition, -2) for partition in end}
    reader = spark.read.format("kafka").options(**kafka_options(connection)).option("subscribe", topic)
    reader = reader.option("startingOffsets", json.dumps({topic: first})).option("includeHeaders", headers)
    return reader.option("endingOffsets", json.dumps({topic: {str(p): offset for p, offset in end.items()}})).load()


def typed_rows(
    raw: "DataFrame", schema: TopicSchema, partitions: int, event_time: str | None, name: str, *, record: bool = False
) -> "DataFrame":
    """Rows of `raw` with the reader's columns and `_position`, with `record` also `_record`, for which `raw` has
    headers; the books are observed under `name` on the way.
    """
    from pyspark.sql import functions as F

    decoded = decode_values(raw, schema)
    time = F.when(F.col(STATUS) == DECODED, F.col(f"{ROW}.`{event_time}`")) if event_time else None
    observed = decoded.observe(name, *_metrics(partitions, time))
    own = {POSITION: F.struct("partition", "offset", "timestamp")}
    own |= {RECORD: F.struct("topic", "key", "value", "headers")} if record else {}
    if event_time is not None:
        # The schema of a state says whether a column may be null, and heartbeats, which lack these, are in the plan of
        # one batch and not in that of the next.
        own = {name: F.when(F.col("offset") >= 0, column) for name, column in own.items()}
    ours = [column.alias(name) for name, column in own.items()]
    return observed.filter(F.col(STATUS) == DECODED).select(f"{ROW}.*", *ours)


def _metrics(partitions: int, time: "Column | None") -> "list[Column]":
    from pyspark.sql import functions as F

    fingerprint = F.xxhash64("key", "value")
    one = F.lit(1)
    metrics = [F.max("partition").alias("partitions")]
    for partition in range(partitions):
        here = F.col("partition") == partition
        counted = {
            "records": F.when(here, one),
            "tombstones": F.when(here & (F.col(STATUS) == TOMBSTONE), one),
            "quarantined": F.when(here & (F.col(STATUS) == BAD), one),
            # Two sums of halves: one sum of 64-bit numbers would overflow, which Spark reports as an error.
            "high": F.when(here, F.shiftright(fingerprint, 32)),
            "low": F.when(here, fingerprint.bitwiseAND(F.lit(_LOW))),
        }
        if time is not None:
            counted["timeless"] = F.when(here & (F.col(STATUS) == DECODED) & time.isNull(), one)
        metrics += [F.sum(column).cast("long").alias(f"{what}_{partition}") for what, column in counted.items()]
    if time is not None:
        metrics.append(F.min(F.unix_millis(time)).alias("oldest"))
    return metrics


def observed(metrics: Mapping[str, Any], partitions: int) -> Observed:
    """The books from what `observe` counted.

    Raises:
        BooksMissing: a partition exists that the query was not told of: it must be started anew.
    """
    newest = metrics.get("partitions")
    if newest is not None and newest >= partitions:
        raise BooksMissing(f"partition {newest} was added to a topic that had {partitions} partitions")
    result = {}
    for partition in range(partitions):
        found = {what: metrics.get(f"{what}_{partition}") or 0 for what in _COUNTED}
        wrong = found["tombstones"] + found["quarantined"] + found["timeless"]
        result[partition] = Seen(
            rows=found["records"] - wrong,
            tombstones=found["tombstones"],
            quarantined=found["quarantined"],
            filtered=found["timeless"],
            hash=((found["high"] << 32) + found["low"]) % MODULUS,
        )
    return Observed(result, metrics.get("oldest"))


_COUNTED = ("records", "tombstones", "quarantined", "timeless", "high", "low")


def with_late(seen: Observed, late: Mapping[int, int]) -> Observed:
    """The books with `late` rows taken out of the rows."""
    partitions = {
        partition: msgspec.structs.replace(each, rows=each.rows - late.get(partition, 0), late=late.get(partition, 0))
        for partition, each in seen.partitions.items()
    }
    return msgspec.structs.replace(seen, partitions=partitions)


def reads_of(seen: Observed, start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, Read]:
    """What a batch has read of one topic, by partition; those that did not move are left out."""
    return {
        partition: Read(
            start=start.get(partition, 0),
            end=end[partition],
            **msgspec.structs.asdict(seen.partitions.get(partition, Seen())),
        )
        for partition in sorted(end)
        if end[partition] > start.get(partition, 0)
    }


def query_metrics(query: Any, name: str) -> dict[str, Any]:
    """What `observe(name)` counted in the batch that the streaming query runs now, after its rows were used.

    Asked of the running execution itself: listeners hear of it after the batch, when it is committed.

    Raises:
        BooksMissing: nothing was counted.
    """
    return metrics_of(_execution(query), name)


def forget_metrics(query: Any) -> None:
    """Have `query_metrics` count from the beginning, before the rows of the batch are used again."""
    _execution(query).executedPlan().resetMetrics()


def _execution(query: Any) -> Any:
    """Of the batch that a query runs now."""
    return query._jsq.streamingQuery().lastExecution() if hasattr(query, "_jsq") else query.lastExecution()


def metrics_of(execution: Any, name: str) -> dict[str, Any]:
    """What `observe(name)` counted in what an execution of Spark has run.

    Raises:
        BooksMissing: nothing was counted.
    """
    found = execution.observedMetrics().get(name)
    if found.isEmpty():
        raise BooksMissing(f"no counts of {name} in this batch")
    result: dict[str, Any] = json.loads(found.get().json())
    return result
