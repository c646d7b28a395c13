"""What an edit of a job's code changes, by kind: the taxonomy of ksqlDB's guide to upgrading queries
(docs.ksqldb.io, "Upgrade ksqlDB pipelines"), and one kind more for values that are computed otherwise.

Two plans are compared, not two texts: a comment, a name or a helper moved changes nothing. Of what Python functions
within a plan do, their code is all that is known.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.process.plan_nodes import nodes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Upgrade(StrEnum):
    """The kinds, from the least to the one that changes most."""

    TRANSPARENT = "transparent"
    SELECTION = "data selection"
    COMPUTATION = "computation"
    SCHEMA = "schema evolution"
    SOURCE = "source modifying"
    TOPOLOGY = "topology"


MEANING = {
    Upgrade.TRANSPARENT: "it means the same",
    Upgrade.SELECTION: "it lets other rows through",
    Upgrade.COMPUTATION: "it computes values otherwise",
    Upgrade.SCHEMA: "its output has other columns",
    Upgrade.SOURCE: "it reads other topics, or other columns of them",
    Upgrade.TOPOLOGY: "it has other operators, and no state of before fits them",
}

_PLAIN = frozenset({"Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark"})
"""Nodes that are no operators of their own: what they do stands in their expressions."""
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""A watermark has one of its own each time."""
_PYTHON = ("Python", "PySpark", "Pandas", "Arrow")


class Shape(msgspec.Struct, frozen=True):
    """What is compared of a job."""

    inputs: dict[str, str]  # parameter -> topic and columns
    outputs: dict[str, str]  # topic -> key and columns
    operators: list[str]
    filters: list[str]
    expressions: str  # a hash of all of them
    code: str = ""  # a hash of what it reaches of the project's code, where the plan calls functions of Python


def shape_of(
    spark: "SparkSession",
    plans: Sequence[Any],
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    code: Callable[[], str],
) -> Shape:
    """The shape of a job.

    Args:
        spark: where its function was called.
        plans: of its results, analyzed.
        inputs: parameter -> what is read.
        outputs: topic -> what is written.
        code: gives a hash of what the job reaches of the project's code; it is called where a plan calls functions of
            Python.
    """
    # Without its leaves, which name what Spark made for them.
    nodes = [node for plan in plans for node in nodes_of(plan.canonicalized()) if not node.children().isEmpty()]
    names = [str(node.nodeName()) for node in nodes]
    texts = [_UUID.sub("", str(node.simpleString(10_000))) for node in nodes]
    filters = [text for name, text in zip(names, texts, strict=True) if name == "Filter"]
    told = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    udf = cast("Any", spark)._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    is_python = any(plan.containsPattern(udf) for plan in plans) or any(
        word in name for name in names for word in _PYTHON
    )
    return Shape(
        dict(inputs),
        dict(outputs),
        [name for name in names if name not in _PLAIN],
        filters,
        told,
        code() if is_python else "",
    )


def upgrade(before: Shape, after: Shape) -> Upgrade:
    """Of which kind the change is; where it is of several, the one that changes most."""
    if before.operators != after.operators:
        return Upgrade.TOPOLOGY
    if before.inputs != after.inputs:
        return Upgrade.SOURCE
    if before.outputs != after.outputs:
        return Upgrade.SCHEMA
    if before.filters != after.filters:
        return Upgrade.SELECTION
    if (before.expressions, before.code) != (after.expressions, after.code):
        return Upgrade.COMPUTATION
    return Upgrade.TRANSPARENT
