"""The tasks' side of the sink: rows of output partitions that this task alone writes,
produced in the driver's transaction.

in    _target int: the number of the output partition, over all outputs      key, value binary
      _hash long: the record's fingerprint, computed by Spark                [headers array<struct<key, value>>]
out   one row per partition that received records: OUTPUT_SCHEMA
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mainstem.client.progress import Output
from mainstem.client.transaction import TransactionWriter
from mainstem.core import TopicPartition
from mainstem.process.sink_claims import Claim, send_claim
from mainstem.process.sink_commit import TaskOutput, TaskPlan
from mainstem.process.sink_encoding import TooLong, encode
from mainstem.records.fingerprint import MODULUS

if TYPE_CHECKING:
    import pyarrow

OUTPUT_SCHEMA = "topic string, partition int, base long, last long, count long, hash long"


class WriteShare(msgspec.Struct, frozen=True):
    """The function for `mapInArrow`; `partitions[_target]` is where a row goes."""

    plan: TaskPlan
    partitions: tuple[TopicPartition, ...]

    def __call__(self, batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return  # nothing to write: no connection, no claim
        with TransactionWriter(self.plan.ticket, self._join) as writer:
            yield to_arrow(write_rows(writer, self.partitions, chain((first,), rows)))

    def _join(self, partition: TopicPartition) -> int:
        return send_claim(self.plan.claims, Claim(self.plan.transaction, partition.topic, partition.partition))


def write_rows(
    writer: TransactionWriter, partitions: Sequence[TopicPartition], batches: "Iterable[pyarrow.RecordBatch]"
) -> list[TaskOutput]:
    """Write them, each where `partitions[_target]` says, and wait until all are acknowledged."""
    hashes: dict[int, int] = {}
    for batch in batches:
        for target, part in by_target(batch):
            _append(writer, partitions[target], part)
            hashes[target] = hashes.get(target, 0) + hash_sum(part.column("_hash"))
    appended = writer.finish()
    outputs = []
    for target, total in hashes.items():
        wrote = appended[partitions[target]]
        outputs.append(TaskOutput(partitions[target], Output(wrote.base, wrote.last, wrote.count, total % MODULUS)))
    return outputs


def _append(writer: TransactionWriter, partition: TopicPartition, part: Any) -> None:
    now_ms = time.time_ns() // 1_000_000
    keys, values = part.column("key"), part.column("value")
    headers = part.column("headers") if "headers" in part.schema.names else None
    try:
        for batch in encode(keys, values, headers):
            writer.append_encoded(partition, batch.records, batch.count, now_ms)
    except TooLong:  # raised before the first batch
        writer.append(partition, keys.to_pylist(), values.to_pylist(), header_lists(headers), now_ms)


def header_lists(column: Any | None) -> list[list[tuple[str, bytes | None]]] | None:
    """Headers as the slow path takes them."""
    if column is None:
        return None
    return [[(header["key"], header["value"]) for header in headers or ()] for headers in column.to_pylist()]


def by_target(batch: "pyarrow.RecordBatch") -> "Iterator[tuple[int, pyarrow.RecordBatch]]":
    """The rows of each target, in their order."""
    targets = batch.column("_target").to_numpy()
    if targets[0] == targets[-1] and (targets == targets[0]).all():
        yield int(targets[0]), batch
        return
    order = np.argsort(targets, kind="stable")
    ordered = targets[order]
    batch = batch.take(order)
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for start, end in pairwise(edges):
        yield int(ordered[start]), batch.slice(start, end - start)


def hash_sum(column: Any) -> int:
    """The sum of signed 64-bit hashes as an unsigned number modulo 2**64."""
    return int(column.to_numpy().view(np.uint64).sum(dtype=np.uint64))


def to_arrow(outputs: list[TaskOutput]) -> "pyarrow.RecordBatch":
    """Rows of OUTPUT_SCHEMA; Spark has no unsigned numbers, so the hash goes as the signed one with the same bits."""
    import pyarrow

    rows = [
        {
            "topic": task.partition.topic,
            "partition": task.partition.partition,
            "base": task.output.base,
            "last": task.output.last,
            "count": task.output.count,
            "hash": task.output.hash - MODULUS if task.output.hash >= 2**63 else task.output.hash,
        }
        for task in outputs
    ]
    integer, long = pyarrow.int32(), pyarrow.int64()
    fields = [
        ("topic", pyarrow.string()),
        ("partition", integer),
        ("base", long),
        ("last", long),
        ("count", long),
        ("hash", long),
    ]
    return pyarrow.RecordBatch.from_pylist(rows, schema=pyarrow.schema(fields))


def from_row(row: Any) -> TaskOutput:
    """What a row of OUTPUT_SCHEMA says."""
    partition = TopicPartition(row["topic"], row["partition"])
    return TaskOutput(partition, Output(row["base"], row["last"], row["count"], row["hash"] % MODULUS))
