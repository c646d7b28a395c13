"""Which operator of a job keeps state over batches, and what of it a watermark takes away: state that is kept for ever
is refused.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.process.declare import BadDeclaration, Job
from mainstem.process.durations import milliseconds
from mainstem.process.plan_nodes import ATTRIBUTE, class_of, items_of
from mainstem.process.project import Input
from mainstem.process.reading import OWN

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FUNCTION = "a state function"
_STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsWithState": _FUNCTION,
    "FlatMapGroupsInPandasWithState": _FUNCTION,
    "TransformWithState": _FUNCTION,
    "TransformWithStateInPySpark": _FUNCTION,
    "TransformWithStateInPandas": _FUNCTION,
}
_UNBOUNDED = {
    "Sort": "a sort",
    "Window": "a window function",
    "GlobalLimit": "a limit",
    "LocalLimit": "a limit",
    "Intersect": "an intersection",
    "Except": "a difference",
}
_MARK = '"spark.watermarkDelayMs"'


def check_watermark(job: Job, inputs: Sequence[Input], types: Mapping[str, "StructType"]) -> None:
    """Refuse a watermark of a column that the streams do not have, of another type than a time, or without a length.

    Raises:
        BadDeclaration: with the user's file and line.
    """
    from pyspark.sql.types import TimestampType

    if job.watermark is None:
        return
    for each in inputs:
        struct = types[each.parameter]
        if each.kind == "stream":
            column = job.watermark.column
            if column not in struct.fieldNames():
                raise BadDeclaration(
                    job.location,
                    f"{job.name}: the watermark's column {column!r} is not among those of {each.parameter}: "
                    f"{', '.join(struct.fieldNames())}",
                )
            if not isinstance(struct[column].dataType, TimestampType):
                raise BadDeclaration(
                    job.location,
                    f"{job.name}: the watermark's column {column!r} is {struct[column].dataType.simpleString()}, "
                    "expected timestamp",
                )
    delay = milliseconds(job.watermark.delay)
    if delay is None:
        raise BadDeclaration(
            job.location, f"{job.name}: expected a watermark delay like '10 minutes', found {job.watermark.delay!r}"
        )


def stateful_operator(job: Job, inputs: Sequence[Input], nodes: Sequence[Any]) -> str | None:
    """The one operator that keeps state over batches, in words; None: no state is kept.

    Args:
        job: as it is declared.
        inputs: of its function.
        nodes: of the analysed plans of all its results.

    Raises:
        BadDeclaration: more than one keeps state, or it would be kept for ever; with the user's file and line.
    """
    found: list[str] = []
    unbounded = False
    for node in nodes:
        if not node.isStreaming():
            continue
        name = str(node.nodeName())
        if name == "Sort" and not getattr(node, "global")():  # within each partition
            continue
        if name in _UNBOUNDED:
            raise BadDeclaration(
                job.location,
                f"{job.name}: {_UNBOUNDED[name]} over a stream never ends",
                hint="apply it in a reader of the result",
            )
        if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
            found.append("a join of two streams")
        elif name in _STATEFUL:
            _check_compared(job, name, node)
            found.append(_STATEFUL[name])
            # Totals of a key: a row of state for each row of the table, as large as that.
            totals = name == "Aggregate" and job.emit == "changes"
            unbounded = unbounded or not (totals or _is_bounded(name, node))
    if not found:
        return None
    if job.also:
        raise BadDeclaration(
            job.location,
            f"{job.name}: keeps state in {found[0]}, and writes {len(job.topics)} topics",
            hint="write one topic, and part its rows in a job of its own: the log connects them",
        )
    if len(found) > 1:
        raise BadDeclaration(
            job.location,
            f"{job.name}: keeps state in {' and in '.join(found)}; a job has one such operator",
            hint="make two jobs of it: the log connects them",
        )
    tables = [each.parameter for each in inputs if each.kind == "changelog"]
    if tables:
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} together with a table ({', '.join(tables)}), which is pinned per batch",
            hint="join in a job of its own, and read its output here",
        )
    if job.watermark is None:
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} keeps state, and without a watermark it keeps it for ever",
            hint='add watermark=("column of the event time", "10 minutes")',
        )
    if unbounded:
        column = job.watermark.column
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} whose columns hold neither {column!r} nor a window of it keeps its state for ever",
            hint=f"add F.window({column!r}, …) itself, not only its start or end, to what it groups by"
            if found[0] == _STATEFUL["Aggregate"]
            else f"add {column!r} to the columns that must be equal, or use dropDuplicatesWithinWatermark",
        )
    return found[0]


def _check_compared(job: Job, name: str, node: Any) -> None:
    """Refuse to look for rows that are equal in all columns, our own among them: each has another position."""
    if name == "Distinct":
        compared = node.output()
    elif name.startswith("Deduplicate"):
        compared = node.keys()
    else:
        return
    if own := [each.name() for each in items_of(compared) if each.name() in OWN]:
        raise BadDeclaration(
            job.location,
            f"{job.name}: {_STATEFUL[name]} compares all columns, and no two rows have the same {own[0]}",
            hint='name the columns that are to be equal, dropDuplicates(["id"]), or select them first',
        )


def _is_bounded(name: str, node: Any) -> bool:
    """Whether the watermark removes what an aggregation or a dropDuplicates keeps: Spark asks the columns for its mark.

    Spark itself refuses such an aggregation where `emit` is `final`, and only once it is started.
    """
    if name not in ("Aggregate", "Deduplicate", "Distinct"):
        return True
    columns = (
        node.groupingExpressions() if name == "Aggregate" else node.keys() if name == "Deduplicate" else node.output()
    )
    return any(_MARK in each.metadata().json() for each in items_of(columns) if class_of(each) == ATTRIBUTE)


def is_by_the_clock(nodes: Sequence[Any]) -> bool:
    """Whether what keeps state may have something to do at any time, without a row: a state function by the clock."""
    return any("ProcessingTime" in _time_of(node) for node in nodes if node.isStreaming())


def _time_of(node: Any) -> str:
    """What time a state function asks for; "" of any other operator."""
    name = str(node.nodeName())
    if name.startswith("TransformWithState"):
        return str(node.timeMode().toString())
    if name.startswith("FlatMapGroups"):
        return str(node.timeout().toString())
    return ""


def leaves_out_late(nodes: Sequence[Any]) -> bool:
    """Whether rows behind the watermark are left out by what keeps state: not where it asks for no time of theirs."""
    for node in nodes:
        name = str(node.nodeName())
        if not node.isStreaming() or name not in _STATEFUL:
            continue
        if _STATEFUL[name] == _FUNCTION:
            return "EventTime" in _time_of(node)
        return name != "Aggregate" or _is_bounded(name, node)
    return True  # a join of two streams
