"""What a job's results become: records of the topics that it writes, and of its quarantine.

The quarantine of a job, `<to>.quarantine`, has what is in none of its results, each record with the reason and where it
came from (`registry.quarantine`).
"""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.topics import topic_ids
from mainstem.process.declare import Job, Kind, Output
from mainstem.process.reading import DELETED, ERROR, HEADERS, OWN, POSITION, REASON, RECORD, REJECTED
from mainstem.process.sink import OutputTopic
from mainstem.registry.client import Registry
from mainstem.registry.quarantine import (
    REJECTED_PARTITION,
    SCHEMA,
    UNREAD_PARTITION,
    ensure_quarantine,
    quarantine_topic,
)
from mainstem.registry.spark import framed_id, key_bytes, row_bytes, value_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARTITIONS = 2


class JobOutput(msgspec.Struct, frozen=True):
    """A topic that a running version of a job writes."""

    declared: Output
    topic: str  # the version's own
    kind: Kind  # as the settings have it, or the code
    partitions: int
    schema_id: int
    schema: str


class Quarantine:
    """The quarantine of a running version; it is made when there is something to put into it.

    Args:
        connection: the log.
        registry: of its schema.
        job: whose it is.
        version: of the job.
        output: the topic that the first result goes to.
    """

    def __init__(self, connection: Connection, registry: Registry, job: Job, version: str, output: str) -> None:
        self.output = OutputTopic(quarantine_topic(output), _PARTITIONS)
        self._connection, self._registry = connection, registry
        self._for, self._stage = output, f"job {job.name}@{version}"
        self.kept: dict[str, str] = {}
        """Its topic's id by its name, for the marker; empty before it is there."""
        self._schema_id = 0

    def ensure(self) -> None:
        """Make the topic unless it is there; who has mended what is in it may have deleted it."""
        self.kept = topic_ids(self._connection, [self.output.topic])
        if not self.kept or not self._schema_id:
            self._schema_id = ensure_quarantine(self._connection, self._registry, self._for, partitions=_PARTITIONS)
            self.kept = topic_ids(self._connection, [self.output.topic])

    def unread(self, refused: "DataFrame", at_ms: int) -> "DataFrame":
        """Rows of `late.refused_records` as the sink takes them."""
        from pyspark.sql import functions as F

        return refused.select(
            F.lit(self.output.topic).alias("topic"),
            F.col(f"{RECORD}.key").alias("key"),
            self.value(refused, F.col(ERROR), F.col(REASON), at_ms).alias("value"),
            F.lit(UNREAD_PARTITION).alias("partition"),
            F.col(f"{POSITION}.partition").alias("_partition"),
            F.col(f"{POSITION}.offset").alias("_offset"),
        )

    def value(self, row: "DataFrame", error: "Column", reason: "Column", at_ms: int) -> "Column":
        """The value of a record about each row, which has `_record` or, as far as it is known, something else."""
        from pyspark.sql import functions as F

        known = RECORD in row.columns
        own = [F.col(f"`{name}`") for name in row.columns if name not in OWN]
        came = F.col(f"{RECORD}.value") if known else F.encode(F.to_json(F.struct(*own)), "UTF-8")
        placed = known and POSITION in row.columns  # a partition says nothing without its topic
        fields = {
            "topic": F.coalesce(F.col(f"{RECORD}.topic"), F.lit(self._for)) if known else F.lit(self._for),
            "partition": F.coalesce(F.col(f"{POSITION}.partition"), F.lit(-1)) if placed else F.lit(-1),
            "offset": F.coalesce(F.col(f"{POSITION}.offset"), F.lit(-1)) if placed else F.lit(-1).cast("long"),
            "stage": F.lit(self._stage),
            "error": error,
            "reason": reason,
            "key": F.col(f"{RECORD}.key") if known else F.lit(None).cast("binary"),
            "value": came,
            "schema_id": framed_id(came) if known else F.lit(None).cast("int"),
            "at": F.timestamp_millis(F.lit(at_ms)),
        }
        return value_bytes([column.alias(name) for name, column in fields.items()], self._schema_id, SCHEMA)


def records(
    job: Job, results: Sequence["DataFrame"], outputs: Sequence[JobOutput], quarantine: Quarantine, at_ms: int
) -> "DataFrame":
    """The results as the sink takes them, each row once: as a record of its topic, or of the quarantine."""
    parts = [_records(job, *each, quarantine, at_ms) for each in zip(results, outputs, strict=True)]
    return reduce(lambda all_, part: all_.unionByName(part, allowMissingColumns=True), parts)


def _records(job: Job, rows: "DataFrame", output: JobOutput, quarantine: Quarantine, at_ms: int) -> "DataFrame":
    from pyspark.sql import functions as F

    topic, key = F.lit(output.topic), key_bytes(rows.schema, output.declared.key)
    if output.declared.kind == "changelog":
        key = F.coalesce(key, no_key(job, output.declared.key))
    value = row_bytes(output.schema_id, output.schema)
    if DELETED in rows.columns:
        value = F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value)
    others = {}
    if REJECTED in rows.columns:
        reason = F.col(REJECTED)
        refused = quarantine.value(rows, F.lit("rejected"), reason, at_ms)
        topic = F.when(reason.isNull(), topic).otherwise(F.lit(quarantine.output.topic))
        key = F.when(reason.isNull(), key)
        value = F.when(reason.isNull(), value).otherwise(refused)
        others["partition"] = F.when(reason.isNotNull(), F.lit(REJECTED_PARTITION))
    if POSITION in rows.columns:
        others |= {"_partition": F.col(f"{POSITION}.partition"), "_offset": F.col(f"{POSITION}.offset")}
    if HEADERS in rows.columns:
        others["headers"] = F.col(HEADERS)
    columns = {"topic": topic, "key": key, "value": value} | others
    return rows.select(*(column.alias(name) for name, column in columns.items()))


def no_key(job: Job, key: Sequence[str]) -> "Column":
    """What stands for the key of a row of a table that has none: an error."""
    from pyspark.sql import functions as F

    message = f"{job.location}: job {job.name}: a row of a table has no key ({', '.join(key)})"
    return F.raise_error(F.lit(message)).cast("binary")
