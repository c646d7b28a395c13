"""The books of a batch: what became of every record that it read. Records that have not reached the job's function go
to its quarantine, with the batch and in its transaction.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from mainstem.client.connection import Connection
from mainstem.client.progress import NextOffsets, Reads
from mainstem.core import SystemClock
from mainstem.core.logging import get_logger
from mainstem.process.late import LATE, Late, refused_records
from mainstem.process.outputs import Quarantine
from mainstem.process.project import Input
from mainstem.process.reading import (
    ERROR,
    POSITION,
    observed,
    range_of,
    reads_of,
    with_late,
)
from mainstem.process.sink import BatchSink
from mainstem.registry.spark import TopicSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = get_logger()


class StreamBooks:
    """The books of a job's streams, batch by batch.

    Args:
        job: its name.
        connection: the log.
        streams: its inputs that are streams.
        partitions: how many each of them has, by topic.
        quarantine: of the job.
        late: when a row comes too late, but for the watermark; None: no row does.
    """

    def __init__(
        self,
        job: str,
        connection: Connection,
        streams: tuple[Input, ...],
        partitions: Mapping[str, int],
        quarantine: Quarantine,
        late: Late | None,
    ) -> None:
        self.late_rows = 0
        """Since the start."""
        self._job, self._connection = job, connection
        self._streams, self._partitions = streams, partitions
        self._quarantine, self._late = quarantine, late

    def read(
        self,
        counted: Callable[[str], dict[str, Any]],
        session: "SparkSession",
        schemas: Mapping[str, TopicSchema],
        start: Mapping[str, NextOffsets],
        end: Mapping[str, NextOffsets],
        watermark: int,
        sink: BatchSink,
    ) -> Reads:
        """What the batch has read, once its rows are written.

        Args:
            counted: what was counted of a stream while its rows were used, by its parameter.
            session: of the batch.
            schemas: of the streams, by parameter.
            start: source -> topic -> partition -> next offset before the batch.
            end: the same after it.
            watermark: of the batch before, in ms since 1970.
            sink: that writes the batch; it gets what goes to the quarantine.

        Raises:
            BooksMissing: a partition was added to a topic.
        """
        reads: Reads = {}
        refused: list[DataFrame] = []
        try:
            for each in self._streams:
                before = start.get(each.topic, {}).get(each.topic, {})
                after = end.get(each.topic, {}).get(each.topic, {})
                seen = observed(counted(each.parameter), self._partitions[each.topic])
                late = self._late.behind(watermark) if self._late is not None else None
                if late is not None and (seen.oldest is None or seen.oldest > watermark):
                    late = None
                if late is not None or any(found.quarantined for found in seen.partitions.values()):
                    raw = range_of(session, self._connection, each.topic, before, after, headers=True)
                    refused.append(refused_records(raw, schemas[each.parameter], late).persist())
                if late is not None:
                    seen = with_late(seen, self._count_late(refused[-1], each.topic))
                reads[each.parameter] = {each.topic: reads_of(seen, before, after)}
            if refused:
                self._keep(refused, sink)
        finally:
            for kept in refused:
                kept.unpersist()
        return reads

    def _count_late(self, refused: "DataFrame", topic: str) -> dict[int, int]:
        """By partition."""
        from pyspark.sql import functions as F

        counted = refused.filter(F.col(ERROR) == LATE).groupBy(f"{POSITION}.partition").count().collect()
        late = {row["partition"]: row["count"] for row in counted}
        if late:
            self.late_rows += sum(late.values())
            log.warning("rows_late", job=self._job, topic=topic, rows=sum(late.values()))
        return late

    def _keep(self, refused: "list[DataFrame]", sink: BatchSink) -> None:
        self._quarantine.ensure()
        at_ms = SystemClock().now_ms()
        parts = (self._quarantine.unread(each, at_ms) for each in refused)
        sink.add(reduce(lambda all_, part: all_.unionByName(part), parts), [self._quarantine.output])
