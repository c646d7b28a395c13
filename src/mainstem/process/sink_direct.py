"""A batch of few rows: the driver collects them and writes them itself.

A shuffle, two stages of tasks and Python workers with connections of their own cost more than all else of such a batch
(docs/decisions/sink.md). Nobody knows how many rows there are before they are computed, and the driver has little
memory, so that no more than MOST_ROWS of each task and MOST_BYTES of each row come to it. If that was not all, nothing
is written, and the rows are computed again for Spark's workers to write.

What the workers have Spark compute of each row, its place and its fingerprint, is computed here: an expression costs
more in the planning of a small batch than in its rows.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.client.partitioner import partition_for
from mainstem.core import UserError
from mainstem.records.fingerprint import fingerprint

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

FEW_RECORDS = 5_000
"""A batch that reads no more is worth a try."""
MOST_ROWS = 5_000
MOST_BYTES = 4 * 1024
"""Of a value, or of headers. Together 20 MB of a task, whatever a job makes of what it reads."""
MOST_KEY_BYTES = 256
_OF_A_PARTITION = (1 << 33) - 1  # of `monotonically_increasing_id`: the number of the row in its partition
ORDER = ("_partition", "_offset")
"""The columns of the sink's rows by which they are written in the order of the input."""


class OutputTopic(msgspec.Struct, frozen=True):
    """A topic that a job writes; its partitions never change, since keys would change their place."""

    topic: str
    partitions: int


class FewRows:
    """What is asked of Spark for rows with these columns: the same in each batch, and made by many calls of the JVM."""

    def __init__(self, job: str, names: Sequence[str], outputs: Sequence[OutputTopic]) -> None:
        from pyspark.sql import functions as F

        self._job, self._outputs = job, outputs
        number = F.monotonically_increasing_id().bitwiseAND(F.lit(_OF_A_PARTITION))
        self._first = number <= MOST_ROWS
        self._columns: list[Column] = [
            F.substring("key", 1, MOST_KEY_BYTES + 1).alias("key"),
            F.substring("value", 1, MOST_BYTES + 1).alias("value"),
            F.spark_partition_id().alias("_task"),
            *(F.col(name) for name in ("topic", "partition", *ORDER) if name in names),
        ]
        if "headers" in names:
            large = F.length(F.col("headers").cast("string")) > MOST_BYTES
            self._columns += [F.when(~large, F.col("headers")).alias("headers"), large.alias("_large")]
        self._java: tuple[Any, Any] | None = None  # both, as the JVM has them

    def collect(self, rows: "DataFrame") -> "tuple[DataFrame, pyarrow.RecordBatch | None]":
        """What was run, and the rows in the order of the input, with `_target` and `_hash` as `sink_task` takes them;
        None: there are too many of them, or one is too large.

        Raises:
            UserError: a row is for another topic.
        """
        import pyarrow as pa

        run, found = self._run(rows)
        names = found.schema.names
        if order := [(name, "ascending") for name in ORDER if name in names]:
            found = found.sort_by(order)
        keys, values = found.column("key").to_pylist(), found.column("value").to_pylist()
        tasks = found.column("_task").to_pylist()
        if self._is_too_much(keys, values, tasks) or ("_large" in names and True in found.column("_large").to_pylist()):
            return run, None
        places = found.column("_partition").to_pylist() if "_partition" in names else tasks
        given = found.column("partition").to_pylist() if "partition" in names else [None] * len(keys)
        neighbours = (task if place is None else place for task, place in zip(tasks, places, strict=True))
        targets = self._targets(zip(found.column("topic").to_pylist(), keys, given, neighbours, strict=True))
        columns: dict[str, Any] = {name: found.column(name).combine_chunks() for name in ("key", "value")}
        if "headers" in names:
            columns["headers"] = found.column("headers").combine_chunks()
        hashes = pa.array([fingerprint(key, value) for key, value in zip(keys, values, strict=True)], pa.uint64())
        columns |= {"_target": pa.array(targets, pa.int32()), "_hash": hashes.view(pa.int64())}
        return run, pa.RecordBatch.from_pydict(columns)

    def _run(self, rows: "DataFrame") -> "tuple[DataFrame, pyarrow.Table]":
        """`rows.where(first).select(*columns)`, run `toArrow`, without what they ask the JVM anew in each batch."""
        import pyarrow as pa
        from pyspark.sql.classic.dataframe import DataFrame

        source = cast("Any", rows)
        if self._java is None:
            self._java = cast("Any", self._first)._jc, source._jcols(*self._columns)
        first, columns = self._java
        run = DataFrame(source._jdf.filter(first).select(columns), rows.sparkSession)
        return run, pa.Table.from_batches(run._collect_as_arrow(empty_list_if_zero_records=False))

    def _is_too_much(self, keys: list[bytes | None], values: list[bytes | None], tasks: list[int]) -> bool:
        return (
            max(map(_length, values), default=0) > MOST_BYTES
            or max(map(_length, keys), default=0) > MOST_KEY_BYTES
            or max(Counter(tasks).values(), default=0) > MOST_ROWS
        )

    def _targets(self, rows: "Iterable[tuple[str | None, bytes | None, int | None, int]]") -> list[int]:
        """As `BatchSink` has Spark compute it: the number of the output partition, over all outputs."""
        bases: dict[str | None, tuple[int, int]] = {}
        base = 0
        for output in self._outputs:
            bases[output.topic] = base, output.partitions
            base += output.partitions
        targets = []
        for topic, key, given, neighbour in rows:
            if topic not in bases:
                raise UserError(f"job {self._job}: the job does not declare the output {topic}")
            base, partitions = bases[topic]
            if given is None:
                given = neighbour % partitions if key is None else partition_for(key, partitions)
            targets.append(base + given)
        return targets


def _length(data: bytes | None) -> int:
    return 0 if data is None else len(data)
