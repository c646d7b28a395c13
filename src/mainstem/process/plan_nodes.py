"""Walking through Spark's plans, which are objects of its JVM."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTRIBUTE = "AttributeReference"


def analyzed(rows: "DataFrame") -> Any:
    """The plan of a DataFrame, with all names resolved."""
    return cast("Any", rows)._jdf.queryExecution().analyzed()


def nodes_of(plan: Any) -> Iterator[Any]:
    """The nodes of a plan, each before those below it."""
    yield plan
    for child in items_of(plan.children()):
        yield from nodes_of(child)


def items_of(seq: Any) -> Iterator[Any]:
    """What a sequence of Scala's has in it."""
    return (seq.apply(number) for number in range(seq.size()))


def class_of(node: Any) -> str:
    """The name of a node's class, without its package."""
    return str(node.getClass().getSimpleName())
