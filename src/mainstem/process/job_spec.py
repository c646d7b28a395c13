"""What is needed to run a version of a job, and the parts that are made of it: for a query, and for a slice."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.client.progress import Reads
from mainstem.process.analysis import Analysis
from mainstem.process.checkpoint_copy import CheckpointCopy, ensure_copy_topic
from mainstem.process.declare import Job
from mainstem.process.frozen import Version
from mainstem.process.identity import SameTopics
from mainstem.process.job_indexes import JobIndexes
from mainstem.process.outputs import JobOutput, Quarantine
from mainstem.process.project import Input
from mainstem.process.project_config import JobConfig
from mainstem.process.reading import reads_of
from mainstem.process.session import is_local
from mainstem.process.sink import BatchSink, JobIdentity, OutputTopic
from mainstem.process.tables import PinnedTable, TableReader
from mainstem.process.versions import Fixed
from mainstem.registry.client import Registry
from mainstem.registry.spark import TopicSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobSpec(msgspec.Struct, frozen=True):
    """Everything that is needed to run a version of a job."""

    job: Job
    inputs: tuple[Input, ...]
    config: JobConfig
    fixed: Fixed
    schemas: dict[str, TopicSchema]  # by parameter
    analysis: Analysis
    outputs: tuple[JobOutput, ...]  # one for each result; that for its state is the last
    partitions: dict[str, int]  # of the input topics, by topic
    version: Version  # the frozen code
    home: Path  # of checkpoint and `job.json`
    most_tasks: int | None = None  # at a time; None: one for each partition

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def key(self) -> str:
        return job_key(self.job.name, self.config.version)

    @property
    def results(self) -> tuple[JobOutput, ...]:
        """What its function's results go to."""
        return self.outputs[: len(self.job.outputs)]

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    @property
    def streams(self) -> tuple[Input, ...]:
        return tuple(each for each in self.inputs if each.kind == "stream")


def topics_of(spec: JobSpec, connection: Connection) -> SameTopics:
    """The topics that a version reads and writes."""
    return SameTopics(
        connection,
        spec.name,
        streams=[each.topic for each in spec.streams],
        tables=[each.topic for each in spec.inputs if each.kind == "changelog"],
        outputs=[each.topic for each in spec.outputs],
    )


def tables_of(
    spec: JobSpec, connection: Connection, registry: Registry, schemas: Mapping[str, TopicSchema]
) -> dict[str, PinnedTable]:
    """The tables that a version is joined with, by parameter; nothing of them is read yet."""
    return {
        each.parameter: PinnedTable(
            schemas[each.parameter], registry, TableReader(connection, each.topic), history=each.history
        )
        for each in spec.inputs
        if each.kind == "changelog"
    }


def indexes_of(spec: JobSpec, spark: "SparkSession", connection: Connection, topics: SameTopics) -> JobIndexes:
    """Its local indexes: beside its checkpoint, or wherever the executors are."""
    place = spec.home.absolute() if is_local(str(spark.sparkContext.master)) else Path("mainstem", spec.key)
    return JobIndexes(connection, spec.outputs, topics, place / "index")


def table_reads(tables: Mapping[str, PinnedTable]) -> Reads:
    """What was read of them since somebody last asked, by parameter."""
    reads: Reads = {}
    for parameter, table in tables.items():
        if table.read is not None:
            reads[parameter] = {table.schema.topic: reads_of(table.read, table.moved_from, table.position)}
            table.read = None
    return reads


def sink_of(spec: JobSpec, connection: Connection, quarantine: Quarantine, checkpoint: Path) -> BatchSink:
    """What a version writes with; its quarantine is there where its function may reject rows."""
    outputs = [OutputTopic(each.topic, each.partitions) for each in spec.results]
    if spec.analysis.rejects:
        quarantine.ensure()
        outputs.append(quarantine.output)
    identity = JobIdentity(spec.name, spec.config.version, str(checkpoint))
    timeout_ms = spec.config.transaction_timeout_seconds * 1000
    copy = None
    if spec.config.checkpoint_in_log and spec.analysis.stateful and checkpoint == spec.checkpoint:
        copy = CheckpointCopy(checkpoint, ensure_copy_topic(connection, spec.name, spec.config.version))
    return BatchSink(
        identity, connection, outputs, transaction_timeout_ms=timeout_ms, most_tasks=spec.most_tasks, copy=copy
    )
