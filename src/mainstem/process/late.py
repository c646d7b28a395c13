"""Which rows are too late for a job's state: the rule of Spark's operators, applied to rows one by one.

Spark leaves such rows out and counts them after it has summed them up, so its number is not that of the input's rows.
A window takes rows until the watermark has passed its end, everything else until it has passed the row's event time.
What counts is the watermark of the batch before: that by which windows are closed in a batch is a step ahead.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.process.plan_nodes import ATTRIBUTE, class_of, items_of
from mainstem.process.reading import ERROR, POSITION, REASON, RECORD
from mainstem.registry.spark import BAD, DECODED, ROW, STATUS, TopicSchema, decode_values, framed_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LATE, UNDECODABLE = "late", "undecodable"

WINDOW = re.compile(r'"spark\.(?:timeWindow|sessionWindow)":true')
"""In the metadata of a window's column."""


class Windows(msgspec.Struct, frozen=True):
    """The windows of a job, in microseconds: one begins at `origin`, and one each `slide` before and after."""

    duration: int
    slide: int
    origin: int


class Late(msgspec.Struct, frozen=True):
    """When a row is too late.

    Attributes:
        event_time: the column of its event time.
        windows: of the job; None: it has others than windows of time, and the row counts by itself.
        watermark: of the batch before, in ms since 1970.
    """

    event_time: str
    windows: Windows | None
    watermark: int = 0

    def behind(self, watermark: int) -> "Late":
        return msgspec.structs.replace(self, watermark=watermark)


def refused_records(raw: "DataFrame", schema: TopicSchema, late: Late | None) -> "DataFrame":
    """The records of `raw`, which has headers, that a job's function does not see: `_position`, `_record`, and why, in
    `_error` and `_reason`. A tombstone is none of them.
    """
    from pyspark.sql import functions as F

    rows = decode_values(raw, schema)
    error = F.when(F.col(STATUS) == BAD, F.lit(UNDECODABLE))
    reason = F.concat(
        F.lit(f"topic {schema.topic}: expected a value of one of its schemas, found one that does not decode"),
        F.coalesce(F.concat(F.lit("; it names the schema id "), framed_id(F.col("value"))), F.lit("")),
    )
    if late is not None:
        time = F.col(f"{ROW}.`{late.event_time}`")
        error = error.when((F.col(STATUS) == DECODED) & is_late(time, late.windows, late.watermark), F.lit(LATE))
        behind = F.timestamp_millis(F.lit(late.watermark))
        told = F.concat(F.lit(f"{late.event_time} "), time, F.lit(": the watermark had reached "), behind)
        reason = F.when(F.col(STATUS) == BAD, reason).otherwise(told)
    position = F.struct("partition", "offset", "timestamp").alias(POSITION)
    record = F.struct("topic", "key", "value", "headers").alias(RECORD)
    found = rows.select(position, record, error.alias(ERROR), reason.alias(REASON))
    return found.filter(F.col(ERROR).isNotNull())


def is_late(time: "Column", windows: Windows | None, watermark: int) -> "Column":
    """Whether rows with these event times came too late: all windows of theirs are over.

    Args:
        time: timestamps.
        windows: of the job; None: it has others than windows of time, and the row counts by itself.
        watermark: of the batch before, in ms since 1970.
    """
    from pyspark.sql import functions as F

    micros = F.unix_micros(time)
    if windows is not None:
        # The last one that it is in began so long ago.
        into = F.pmod(micros - F.lit(windows.origin), F.lit(windows.slide))
        micros = micros - into + F.lit(windows.duration)
    return micros <= F.lit(watermark * 1000)


def windows_of(spark: "SparkSession", nodes: Sequence[Any]) -> Windows | None:
    """The windows that an aggregation among the nodes of an analyzed plan groups by; None where it groups by none, or
    by sessions whose gap depends on the row.
    """
    for node in nodes:
        if node.isStreaming() and str(node.nodeName()) == "Aggregate":
            found = (_definition(node.child(), each) for each in items_of(node.groupingExpressions()))
            return next((_measured(spark, each) for each in found if each is not None), None)
    return None


def _definition(node: Any, column: Any) -> Any:
    """The struct of start and end that a window's column is made of, below `node`; None: it is no window's."""
    if class_of(column) != ATTRIBUTE or not WINDOW.search(column.metadata().json()):
        return None
    while True:
        if class_of(node) == "Expand":  # a projection for each window that a row is in, that of the last one first
            place = next(n for n, each in enumerate(items_of(node.output())) if each.exprId().equals(column.exprId()))
            return node.projections().apply(0).apply(place)
        for each in items_of(node.projectList()) if class_of(node) == "Project" else ():
            if class_of(each) == "Alias" and each.exprId().equals(column.exprId()):
                return each.child()
        if node.children().size() != 1:
            return None
        node = node.children().apply(0)


def _measured(spark: "SparkSession", window: Any) -> Windows | None:
    """What a window's struct gives for some event times; None where it asks for more than that."""
    columns = list({each.exprId().id(): each for each in items_of(window.references().toSeq())}.values())
    if len(columns) != 1:
        return None
    jvm: Any = spark._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    attributes = getattr(jvm.org.apache.spark.sql.catalyst.expressions, "package$AttributeSeq")(to_seq(columns))
    bound = jvm.org.apache.spark.sql.catalyst.expressions.BindReferences.bindReference(window, attributes, False)

    def at(micros: int) -> tuple[int, int]:
        row = jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(1)
        row.setLong(0, micros)
        found = bound.eval(row)
        return found.getLong(0), found.getLong(1)

    origin, end = at(0)
    within, beyond = 0, end - origin  # the next window begins behind the one, and not behind the other
    while beyond - within > 1:
        middle = (within + beyond) // 2
        within, beyond = (middle, beyond) if at(middle)[0] == origin else (within, middle)
    return Windows(end - origin, at(beyond)[0] - origin, origin)
