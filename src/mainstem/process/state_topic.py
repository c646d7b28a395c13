"""What a job keeps over batches, as a table that others read: `state=` of its declaration.

    state store of Spark, batch 41        changes      record of the topic, written with batch 42
    ------------------------------------  -----------  ----------------------------------------------------------
    key {window {start, end}, region}     put          {window_start, window_end, region} -> the row, flat
    value {sum, count}                    removed      the same key, without a value
    a variable of a state function        put          {key columns, variable[, map_key]} -> the row, in its column

Spark shows the state of a batch when it is over, so it goes with the transaction of the next one, and always comes
after the rows that the batch itself has written. What a store has, and what its columns are, is found out by running
the job over nothing. A join of two streams keeps rows of its inputs, which are topics already; of a state function
timers are left out, which say nothing but when it looks at a key again.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from mainstem.core.prepared import prepared
from mainstem.process.declare import BadDeclaration, Job
from mainstem.process.outputs import JobOutput, no_key
from mainstem.process.plan_nodes import analyzed, class_of, items_of, nodes_of
from mainstem.process.repartition import moves_state
from mainstem.process.sink import BatchSink, OutputTopic
from mainstem.registry.spark import key_bytes, row_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

VARIABLE, MAP_KEY = "variable", "map_key"
"""Key columns of what a state function keeps: the variable's name, and the key in it, as JSON, where it is a map."""
_FUNCTION, _JOIN = "transformWithState", "symmetricHashJoin"
"""How the names of operators begin in what Spark says of a state."""
_MAP, _LIST = "MapState", "ListState"
_COLUMNS = {"ValueState": "value", _MAP: "user_map_value", _LIST: "list_element"}
"""Of each kind of variable, the column of its changes with what it keeps; timers are of no kind of these."""
_WITH_TTL = ["value", "ttlExpirationMs"]
"""The fields of what a variable keeps for a time: what it keeps, and until when."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class _Variable(msgspec.Struct, rename="camel"):
    state_name: str
    state_variable_type: str

    @property
    def is_map(self) -> bool:
        return self.state_variable_type == _MAP

    @property
    def is_list(self) -> bool:
        return self.state_variable_type == _LIST

    @property
    def column(self) -> str:
        return _COLUMNS[self.state_variable_type]


class _Properties(msgspec.Struct, rename="camel"):
    state_variables: list[_Variable] = []


class _Leaf(NamedTuple):
    """A column of a state; it is right after `_by_place`."""

    name: str
    column: "Column"
    type: "DataType"


class StateTable(msgspec.Struct, frozen=True):
    """Columns of a state, flat, and which of them are the key."""

    columns: "StructType"
    key: tuple[str, ...]


def state_table(job: Job, result: "DataFrame") -> StateTable:
    """What a job keeps, found out by running it over nothing.

    Args:
        job: the job.
        result: of its function, on streams without rows.

    Raises:
        BadDeclaration: its key is another one than what is declared, or it cannot be published.
    """
    assert job.state is not None
    with tempfile.TemporaryDirectory(prefix="mainstem-state-") as directory:
        query = (
            result.writeStream.format("noop")
            .outputMode("update" if job.emit == "changes" else "append")
            .option("checkpointLocation", directory)
            .trigger(once=True)
            .start()
        )
        query.awaitTermination()
        found = _table(result.sparkSession, directory, _buffers(result))
    names = found.columns.fieldNames() if isinstance(found, StateTable) else []
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadDeclaration(
            job.state.location,
            f"table {job.state.name}: {job.name} keeps a variable with the name of a key column, {min(twice)}",
            hint="call one of them otherwise",
        )
    if isinstance(found, str):
        raise BadDeclaration(job.location, f"{job.name}: {found}: there is no state to publish", hint="remove state=…")
    if job.state.key != found.key:
        raise BadDeclaration(
            job.state.location,
            f"table {job.state.name}: the state of {job.name} has the key {list(found.key)}, found {list(job.state.key)}",
            hint=f"key={list(found.key)!r}",
        )
    return found


class StateTopic:
    """The topic with the state of a running version.

    Args:
        job: whose it is.
        output: the topic.
        columns: of its rows, as `state_table` found them.
        checkpoint: of the version's query.
    """

    def __init__(self, job: Job, output: JobOutput, columns: "StructType", checkpoint: Path) -> None:
        self.output = OutputTopic(output.topic, output.partitions)
        self._job, self._output, self._columns, self._checkpoint = job, output, columns, checkpoint
        self._looked_at = -1  # the last batch of which it is known whether it has changed the state

    def publish(self, sink: BatchSink, session: "SparkSession", batch: int) -> None:
        """Write what `batch` has changed with the batch that follows it; nothing where there was none before."""
        if batch >= 0 and not moves_state(self._checkpoint, batch):
            sink.add(self._records(session, batch), [self.output])

    def is_behind(self, session: "SparkSession", batch: int) -> bool:
        """Whether `batch`, the last one, has changed the state; no where that was asked before."""
        if batch <= self._looked_at:
            return False
        self._looked_at = batch
        return not moves_state(self._checkpoint, batch) and not self._records(session, batch).isEmpty()

    def _records(self, session: "SparkSession", batch: int) -> "DataFrame":
        """What `batch` has changed, as the sink takes it; its end is written down in the checkpoint."""
        from pyspark.sql import functions as F

        changes = _changes(session, str(self._checkpoint), batch, self._columns)
        key = key_bytes(self._columns, self._output.declared.key)
        value = row_bytes(self._output.schema_id, self._output.schema)
        return changes.select(
            F.lit(self._output.topic).alias("topic"),
            F.coalesce(key, no_key(self._job, self._output.declared.key)).alias("key"),
            F.when(F.col("_kept"), value).alias("value"),
            "_partition",
            "_offset",
        )


def _table(spark: "SparkSession", checkpoint: str, buffers: Sequence[str]) -> StateTable | str:
    """A text: why it cannot be published."""
    from pyspark.sql import types as T

    operator, variables = _kept(spark, checkpoint)
    if operator == _JOIN:
        return "a join of two streams keeps rows of its inputs"
    if not operator.startswith(_FUNCTION):
        keys, values = _leaves(_feed(spark, checkpoint, 0).schema)
        names = _distinct([each.name for each in keys], [each.name for each in values], buffers)
        types = [each.type for each in (*keys, *values)]
        columns = [T.StructField(name, kind) for name, kind in zip(names, types, strict=True)]
        return StateTable(T.StructType(columns), tuple(names[: len(keys)]))
    schemas = {each.state_name: _feed(spark, checkpoint, 0, each.state_name).schema for each in variables}
    if not schemas:
        return "its state function keeps neither values nor maps nor lists"
    columns = [
        T.StructField(each.name, each.type) for each in _flat(next(iter(schemas.values()))["key"].dataType, "key")
    ]
    columns.append(T.StructField(VARIABLE, T.StringType()))
    if any(each.is_map for each in variables):
        columns.append(T.StructField(MAP_KEY, T.StringType()))
    key = tuple(each.name for each in columns)
    columns += [T.StructField(each.state_name, _kind(schemas[each.state_name], each)) for each in variables]
    return StateTable(T.StructType(columns), key)


def _changes(spark: "SparkSession", checkpoint: str, batch: int, columns: "StructType") -> "DataFrame":
    """Rows of `columns`; where `_kept` is false only the key counts. In `_partition` and `_offset` the order in which
    they were made.
    """
    names = columns.fieldNames()
    if VARIABLE not in names:
        feed = _feed(spark, checkpoint, batch)
        keys, values = _leaves(feed.schema)
        leaves = zip(names, (*keys, *values), strict=True)
        return _in_order(_by_place(feed, "key", "value"), [leaf.column.alias(name) for name, leaf in leaves])
    _, variables = _kept(spark, checkpoint)
    return reduce(
        lambda all_, part: all_.union(part),
        (_of_variable(spark, checkpoint, batch, columns, each) for each in variables),
    )


def _of_variable(
    spark: "SparkSession", checkpoint: str, batch: int, columns: "StructType", variable: _Variable
) -> "DataFrame":
    from pyspark.sql import functions as F

    feed = _feed(spark, checkpoint, batch, variable.state_name)
    value = variable.column
    is_for_a_time = _is_for_a_time(feed.schema[value].dataType)
    if variable.is_list:
        value, feed = "list_value", _whole(feed, spark, checkpoint, batch, variable.state_name)
    found = {leaf.name: leaf.column for leaf in _flat(feed.schema["key"].dataType, "key")}
    row = F.col(f"{value}.{_WITH_TTL[0]}" if is_for_a_time else value)
    found |= {VARIABLE: F.lit(variable.state_name), variable.state_name: row}
    found[MAP_KEY] = F.to_json("user_map_key") if variable.is_map else F.lit("")
    nothing = F.lit(None)
    cells = [found.get(field.name, nothing).cast(field.dataType).alias(field.name) for field in columns.fields]
    return _in_order(_by_place(feed, "key"), cells)


def _kind(schema: "StructType", variable: _Variable) -> "DataType":
    """The type of a variable's column."""
    from pyspark.sql import types as T

    kind: Any = schema[variable.column].dataType
    row = kind[_WITH_TTL[0]].dataType if _is_for_a_time(kind) else kind
    return T.ArrayType(row) if variable.is_list else row


def _is_for_a_time(kind: Any) -> bool:
    return bool(kind.names == _WITH_TTL)


def _whole(feed: "DataFrame", spark: "SparkSession", checkpoint: str, batch: int, variable: str) -> "DataFrame":
    """The lists that a batch has changed, as they were after it. Spark's changes have which they are, and of one that
    was put its first element alone; so all lists are read.
    """
    from pyspark.sql import functions as F

    reader = spark.read.format("statestore").option("batchId", batch).option("stateVarName", variable)
    lists = reader.option("flattenCollectionTypes", value=False).load(checkpoint)
    changed = feed.select("key", "partition_id").distinct()
    is_same = F.col("key").eqNullSafe(F.col("_key"))
    both = changed.join(lists.select(F.col("key").alias("_key"), "list_value"), is_same, "left")
    kind = F.when(F.col("_key").isNull(), "delete").otherwise("update")
    return both.select("key", "partition_id", "list_value", kind.alias("change_type"))


def _in_order(feed: "DataFrame", row: "Sequence[Column]") -> "DataFrame":
    """A key's changes are all in one partition of the state, as they were made."""
    from pyspark.sql import functions as F

    return feed.select(
        *row,
        (F.col("change_type") != "delete").alias("_kept"),
        F.col("partition_id").alias("_partition"),
        F.monotonically_increasing_id().alias("_offset"),
    )


def _kept(spark: "SparkSession", checkpoint: str) -> tuple[str, list[_Variable]]:
    """The operator that keeps the state, and the variables that can be published of a state function."""
    row = spark.read.format("state-metadata").load(checkpoint).collect()[0]
    text = row["operatorProperties"] or "{}"
    found = msgspec.json.decode(text, type=prepared(_Properties)).state_variables
    kept = [each for each in found if each.state_variable_type in _COLUMNS]
    return row["operatorName"], sorted(kept, key=lambda each: each.state_name)


def _feed(spark: "SparkSession", checkpoint: str, batch: int, variable: str = "") -> "DataFrame":
    """What a batch has changed: Spark's `statestore`, read as changes."""
    reader = spark.read.format("statestore").option("readChangeFeed", "true")
    reader = reader.option("changeStartBatchId", batch).option("changeEndBatchId", batch)
    return (reader.option("stateVarName", variable) if variable else reader).load(checkpoint)


def _by_place(feed: "DataFrame", *structs: str) -> "DataFrame":
    """The fields of structs called by their places: an average and a sum both keep a `sum`."""
    from pyspark.sql import functions as F

    return feed.withColumns({name: F.col(name).cast(_numbered(feed.schema[name].dataType)) for name in structs})


def _numbered(kind: "DataType") -> "DataType":
    from pyspark.sql import types as T

    if not isinstance(kind, T.StructType):
        return kind
    return T.StructType([T.StructField(f"_{at}", _numbered(field.dataType)) for at, field in enumerate(kind.fields)])


def _leaves(schema: "StructType") -> tuple[list[_Leaf], list[_Leaf]]:
    """What a key and a value consist of; what a value repeats of its key is left out, and what has no type."""
    from pyspark.sql import types as T

    keys = list(_flat(schema["key"].dataType, "key"))
    known = {each.name for each in keys}
    values = _flat(schema["value"].dataType, "value")
    return keys, [each for each in values if each.name not in known and not isinstance(each.type, T.NullType)]


def _flat(kind: Any, path: str, name: str = "") -> Iterator[_Leaf]:
    """The fields of a struct, and of windows in it."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    for at, field in enumerate(kind.fields):
        own, place = _WORDS.sub("_", f"{name}{field.name}").lower(), f"{path}._{at}"
        if isinstance(field.dataType, T.StructType) and field.dataType.fieldNames() == ["start", "end"]:
            yield from _flat(field.dataType, place, f"{own}_")
        else:
            yield _Leaf(own, F.col(place), field.dataType)


def _distinct(keys: Sequence[str], values: Sequence[str], buffers: Sequence[str]) -> list[str]:
    """Names of a row's columns, each once; `buffers` are those of the last ones, where they are known."""
    known = buffers if len(buffers) <= len(values) else ()
    names = list(keys)
    for name in (*values[: len(values) - len(known)], *known):
        free = (name if number == 1 else f"{name}_{number}" for number in count(1))
        names.append(next(each for each in free if each not in names))
    return names


def _buffers(result: "DataFrame") -> list[str]:
    """What an aggregation keeps of its functions, called as the columns that they make: `total`, `mean_sum`. Of those
    that nothing is made of nothing is kept.
    """
    optimizer = cast("Any", result.sparkSession)._jsparkSession.sessionState().optimizer()
    plan = optimizer.execute(analyzed(result))
    found: dict[str, tuple[str, list[str]]] = {}
    for node in nodes_of(plan):
        if node.nodeName() != "Aggregate" or not node.isStreaming():
            continue
        for expression in items_of(node.aggregateExpressions()):
            for each in nodes_of(expression):
                if class_of(each) != "AggregateExpression":
                    continue
                same = str(each.canonicalized())
                buffers = [str(field.name()) for field in items_of(each.aggregateFunction().aggBufferAttributes())]
                is_it = class_of(expression) == "Alias" and class_of(expression.child()) == "AggregateExpression"
                if same not in found or is_it:
                    found[same] = (str(expression.name()), buffers if not is_it or len(buffers) > 1 else [""])
    return [f"{name}_{buffer}".strip("_") for name, buffers in found.values() for buffer in buffers]
