"""What a job with `latency="realtime"` may be, and what it promises: found out before it runs.

Spark 4.2.0 runs a query in Real-Time Mode only where all of its plan is on a list of its own, which has projections,
filters, unions and `explode`, and no shuffle, no state and no function of Python. What is refused here Spark refuses
too, but once the query has started, and by the names of its classes. Joins are on that list as long as Spark takes the
other side for small; a table would stay as it was when the batch began, for half a minute or for five, and is refused.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mainstem.core import UserError
from mainstem.process.declare import BadDeclaration, Job
from mainstem.process.durations import milliseconds
from mainstem.process.plan_nodes import class_of, nodes_of
from mainstem.process.project import Input
from mainstem.process.project_config import JobConfig
from mainstem.process.reading import REJECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REALTIME = "realtime"
EXACTLY_ONCE = "exactly once"
LEAST_BATCH_MS = 5000
"""Spark refuses less."""

_ALLOWED = frozenset({
    "CollectMetrics", "CTERelationDef", "CTERelationRef", "EventTimeWatermark", "Expand", "Filter", "Generate",
    "LocalRelation", "OneRowRelation", "Project", "ResolvedHint", "SubqueryAlias", "Union", "UnresolvedHint",
    "View", "WithCTE",
})  # fmt: skip
"""Nodes of a plan whose streams run in Real-Time Mode; its leaves are the streams."""
_IN_WORDS = {
    "Join": "a join",
    "Repartition": "repartition or coalesce",
    "RepartitionByExpression": "repartition",
    "RebalancePartitions": "a hint that rebalances",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
}
_OTHERWISE = {
    "every": ("1 second", "realtime_batch says how often it writes down how far it is"),
    "max_offsets_per_trigger": (100_000, "no batch of it is bounded by a number of records"),
    "checkpoint_in_log": (False, "it keeps no state: `mainstem job restore` needs no copy for it"),
    "batch_timeout_seconds": (3600, "it calls no function that could hang"),
    "tasks": (0, "it holds one for each partition that it reads"),
}


def guarantee_of(job: Job, config: JobConfig) -> str:
    """What a job promises of its rows."""
    if not job.is_realtime:
        return EXACTLY_ONCE
    return f"at least once: after a crash or a stop the rows of up to {config.realtime_batch} come again"


def batch_ms(config: JobConfig) -> int:
    """How long its batches are; 0 where that is not known."""
    return milliseconds(config.realtime_batch) or 0


def check_settings(job: Job, config: JobConfig) -> None:
    """See that the settings of a job fit to its latency.

    Raises:
        BadDeclaration: they do not.
    """
    if not job.is_realtime:
        return
    where = f'{job.name}: latency="realtime": [jobs.{job.name}]'
    for name, (default, instead) in _OTHERWISE.items():
        found = getattr(config, name)
        if found != default:
            raise BadDeclaration(
                job.location, f"{where}: expected no {name}, found {found!r}", hint=f"remove it: {instead}"
            )
    if batch_ms(config) < LEAST_BATCH_MS:
        raise BadDeclaration(
            job.location,
            f"{where}: expected a realtime_batch of 5 seconds or more, found {config.realtime_batch!r}",
            hint="5 seconds is the least that Spark takes; rows are written as they come, however long it is",
        )


def check_job(
    spark: "SparkSession",
    job: Job,
    inputs: Sequence[Input],
    results: Sequence["DataFrame"],
    plans: Sequence[Any],
    *,
    stateful: str | None,
    is_python: bool,
) -> None:
    """See that a job can run in Real-Time Mode.

    Args:
        spark: where its function was called.
        job: it.
        inputs: its parameters.
        results: of its function.
        plans: of these, analyzed.
        stateful: what keeps its state, in words.
        is_python: its plan calls functions of Python.

    Raises:
        BadDeclaration: it cannot.
    """
    if not job.is_realtime:
        return
    tables = ", ".join(each.parameter for each in inputs if each.kind == "changelog")
    found, hint = "", ""
    if tables:
        found, hint = f"the table {tables}, which is pinned per batch", "join it in a job of its own, of latency batch"
    elif stateful is not None:
        found, hint = f"{stateful}, which keeps state", "do it in a job of its own, of latency batch"
    elif is_python:
        found, hint = "a function of Python", "write it in Spark's own functions, or in SQL"
    elif any(REJECTED in each.columns for each in results):
        found, hint = f"the column {REJECTED}", "filter such rows, or reject them in a job that reads the result"
    elif _is_used_twice(plans, len(inputs)):
        found, hint = "a stream that is used twice", "make two jobs of it, or one row of both by explode"
    else:
        found, hint = _operator(spark, plans), "do it in a job of its own, of latency batch"
    if found:
        raise BadDeclaration(
            job.location,
            f'{job.name}: latency="realtime": expected projections, filters and unions, found {found}',
            hint=hint,
        )


def _is_used_twice(plans: Sequence[Any], streams: int) -> bool:
    """Whether a stream stands in the plans more than once, by itself or within a query that has a name."""
    nodes = [(class_of(node), node) for plan in plans for node in nodes_of(plan) if node.isStreaming()]
    named, asked = (sum(1 for name, _ in nodes if name == kind) for kind in ("CTERelationDef", "CTERelationRef"))
    leaves = sum(1 for name, node in nodes if node.children().isEmpty() and name != "CTERelationRef")
    return leaves > streams or asked > named


def _operator(spark: "SparkSession", plans: Sequence[Any]) -> str:
    """The first operator that does not run in Real-Time Mode, in words; empty: there is none."""
    subquery = cast("Any", spark)._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()
    for plan in plans:
        for node in nodes_of(plan):
            name = class_of(node).rstrip("$")
            if node.isStreaming() and not node.children().isEmpty() and name not in _ALLOWED:
                return _IN_WORDS.get(name, str(node.nodeName()))
        if plan.containsPattern(subquery):
            return "a subquery"
    return ""


def without_realtime(latencies: Iterable[tuple[str, bool]], what: str) -> None:
    """Refuse what needs versions whose rows come with their batch, once.

    Args:
        latencies: `<job>@<version>`, and whether it is one whose rows do not.
        what: is refused, to be read behind the version.

    Raises:
        UserError: one is.
    """
    for key, is_realtime in latencies:
        if is_realtime:
            raise UserError(
                f'job {key}: latency="realtime": {what}',
                hint="its rows are not bound to batches, and may come twice; a version without it can be",
            )
