"""Whether the rows of a key come out in the order in which they came in, and which operator loses that.

The sink orders the rows of a batch by `_position`. A function that selects other columns need not keep it: it is
carried past its projections, as Spark does with its own hidden columns. Those go through no union, and through
operators whose result another column would change; so it is done here, for operators of which each is known.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from mainstem.process.late import WINDOW
from mainstem.process.plan_nodes import ATTRIBUTE, class_of, items_of, nodes_of
from mainstem.process.reading import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PASSES = frozenset({
    "CollectMetrics", "Deduplicate", "DeduplicateWithinWatermark", "EventTimeWatermark", "Filter", "Generate",
    "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint", "Sample", "Sort", "SubqueryAlias", "View",
})  # fmt: skip
"""Operators with one input whose rows are the same whatever columns it has besides; a Deduplicate names its own."""
_ABOVE = frozenset({"Filter", "Project", "SubqueryAlias", "View"})
"""Those that make no more rows of an aggregation's."""
_NAMES = {
    "MapInPandas": "mapInPandas", "MapInArrow": "mapInArrow", "PythonMapInArrow": "mapInArrow",
    "FlatMapGroupsInPandasWithState": "a state function", "TransformWithStateInPySpark": "a state function",
    "TransformWithStateInPandas": "a state function",
}  # fmt: skip
"""Operators that make new rows, as users call them."""
_OF_STATE = {
    "a join of two streams": "a join of two streams: a row comes out when the last row that it is made of has come",
    "distinct": "distinct: it compares all columns, and has none besides; dropDuplicates([…]) keeps the order",
}
"""Why the rows of a key are in no order, whatever is selected of them."""


class _Lost(Exception):
    """The position does not come through an operator; the message says so in words."""


def with_position(result: "DataFrame") -> "DataFrame":
    """`result` with the `_position` of the row that each row was made of, wherever its function has left that out;
    unchanged where no plan has it.
    """
    from pyspark.sql import DataFrame

    if POSITION in result.columns:
        return result
    session: Any = result.sparkSession
    plan = cast("Any", result)._jdf.queryExecution().analyzed()
    try:
        carried = _project(session._jvm, plan.output(), *_carried(session._jvm, plan))
    except _Lost:
        return result
    rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, carried)
    return DataFrame(rows, session)


def order_lost_by(result: "DataFrame", stateful: str | None, key: tuple[str, ...]) -> str | None:
    """What keeps the rows of a key from coming out in the order of their input, in words; None: nothing.

    Args:
        result: of a job's function on streams.
        stateful: the operator that keeps state.
        key: of what is written.
    """
    if stateful in _OF_STATE:
        return _OF_STATE[stateful]
    plan = cast("Any", result)._jdf.queryExecution().analyzed()
    try:
        _check_unions(plan)
        if stateful == "an aggregation":
            _check_one_row_of_a_key(plan, key)
        else:
            _carried(cast("Any", result.sparkSession)._jvm, plan)
    except _Lost as lost:
        return str(lost)
    return None


def _carried(jvm: Any, plan: Any) -> tuple[Any, Any]:
    """The plan with the position among its columns, and that column."""
    kind, children = class_of(plan), plan.children()
    if kind == "Join" and all(each.isStreaming() for each in items_of(children)):  # its state would keep it too
        raise _Lost(_OF_STATE["a join of two streams"])
    place = plan.schema().getFieldIndex(POSITION)
    if place.isDefined():
        return plan, plan.output().apply(place.get())
    if kind == "WithCTE":
        inlined = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)
        return _carried(jvm, inlined)
    if kind == "Union":
        wide = [_project(jvm, each.output(), *_carried(jvm, each)) for each in items_of(children)]
        plan = plan.withNewChildren(_seq(jvm, wide))
        return plan, plan.output().last()
    if kind == "Join":
        return _carried_past_a_join(jvm, plan)
    if kind == "Project":
        child, position = _carried(jvm, children.head())
        return _project(jvm, plan.projectList(), child, position), position
    if kind == "Expand":  # some rows of each, as unpivot makes
        child, position = _carried(jvm, children.head())
        rows = [_seq(jvm, [*items_of(each), position]) for each in items_of(plan.projections())]
        columns = _seq(jvm, [*items_of(plan.output()), position])
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Expand(_seq(jvm, rows), columns, child), position
    if kind not in _PASSES:
        raise _Lost(_words(plan, kind))
    child, position = _carried(jvm, children.head())
    plan = plan.withNewChildren(_seq(jvm, [child]))
    return plan, _same(plan, position)


def _carried_past_a_join(jvm: Any, plan: Any) -> tuple[Any, Any]:
    """From the side that has it: the other one is a table."""
    first: _Lost | None = None
    for side in range(2):
        children = [*items_of(plan.children())]
        try:
            children[side], position = _carried(jvm, children[side])
        except _Lost as lost:
            # What is told is what happens to the stream; the table's side has no position to lose.
            first = lost if first is None or plan.children().apply(side).isStreaming() else first
            continue
        joined = plan.withNewChildren(_seq(jvm, children))
        return joined, _same(joined, position)
    assert first is not None
    raise first


def _project(jvm: Any, columns: Any, child: Any, position: Any) -> Any:
    """A projection of `child` to these columns, with the position as the last."""
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_seq(jvm, [*items_of(columns), position]), child)


def _same(plan: Any, column: Any) -> Any:
    """A column of an input as a plan gives it."""
    found = (each for each in items_of(plan.output()) if each.exprId().equals(column.exprId()))
    same = next(found, None)
    if same is None:  # the right side of a semi join
        raise _Lost(f"{plan.nodeName()}: it gives no columns of the stream")
    return same


def _seq(jvm: Any, items: list[Any]) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)


def _words(plan: Any, kind: str) -> str:
    if plan.children().isEmpty():
        return "a union with rows that are of no stream"
    name = _NAMES.get(kind, str(plan.nodeName()))
    return f"{name}: it makes new rows; give each `{POSITION}` of the row that it is made of"


def _check_unions(plan: Any) -> None:
    """Where one part of a union keeps the position and another one does not, Spark fills in nulls."""
    for node in nodes_of(plan):
        place = node.schema().getFieldIndex(POSITION)
        if class_of(node) != "Union" or not place.isDefined():
            continue
        for part in items_of(node.children()):
            column = part.projectList().apply(place.get()) if class_of(part) == "Project" else None
            if column is not None and class_of(column) == "Alias" and column.child().foldable():
                raise _Lost(f"a union with rows that have no `{POSITION}`: keep it in each of its parts, or in none")


def _check_one_row_of_a_key(plan: Any, key: tuple[str, ...]) -> None:
    """An aggregation has one row of a group in a batch, so that those of a key are in order if it names the group."""
    wanted = {plan.output().apply(plan.schema().fieldIndex(name)).exprId().id() for name in key}
    while class_of(plan) in _ABOVE:
        if class_of(plan) == "Project":
            told = _told_by(items_of(plan.projectList()), wanted)
            wanted = {each.exprId().id() for each in told if class_of(each) == ATTRIBUTE}
        plan = plan.children().head()
    if class_of(plan) != "Aggregate":
        raise _Lost("an aggregation whose rows are made into others")
    told = _told_by(items_of(plan.aggregateExpressions()), wanted)
    lacking = [
        str(each.sql()).replace("`", "")
        for each in items_of(plan.groupingExpressions())
        if not any(each.semanticEquals(mine) for mine in told)
    ]
    if lacking:
        raise _Lost(
            f"an aggregation by {', '.join(lacking)}, which the key does not have: "
            "a batch may write several rows of a key, in any order; make it a part of the key"
        )


def _told_by(columns: Iterator[Any], wanted: set[int]) -> list[Any]:
    """What the columns among these whose ids are wanted are made of; the start or end of a window tells which it is."""
    told = []
    for column in columns:
        if column.exprId().id() in wanted:
            told.append(column.child() if class_of(column) == "Alias" else column)
            inner = told[-1].child() if class_of(told[-1]) == "GetStructField" else None
            if inner is not None and class_of(inner) == ATTRIBUTE and WINDOW.search(inner.metadata().json()):
                told.append(inner)
    return told
