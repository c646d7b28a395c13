"""A job over closed slices of its inputs: `mainstem job run JOB --from T1 --to T2`.

The records of a slice are those that its streams had from T1 on and before T2, by their timestamps; tables are read as
they are now. The function runs once over all of them, and all that comes of it is one transaction: a slice is there as
a whole or not at all. Slices know nothing of each other, so a window across a cut comes out once for each of them.

A version of a job is made of slices or runs; this one's are numbered as batches are:

    <data>/jobs/<job>@<version>/slices/metadata     the id of this row of slices: {"id": "<uuid>"}
    <data>/jobs/<job>@<version>/slices/offsets/2    the third one: its times, and where it begins and ends

A plan is durable before anything is written. What the log's marker has is done: the same slice is not run again, one
that overlaps it is refused. What it does not have left nothing.
"""

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import TookTooLong
from mainstem.client.progress import NextOffsets, Reads
from mainstem.client.topics import end_offsets, offsets_since
from mainstem.core import Clock, Retriable, SystemClock, UserError
from mainstem.core.files import make_directory, write_atomically
from mainstem.core.prepared import prepared
from mainstem.process.books import StreamBooks
from mainstem.process.calling import call
from mainstem.process.diagnosis import JobFailed, failed
from mainstem.process.job_spec import JobSpec, indexes_of, sink_of, table_reads, tables_of, topics_of
from mainstem.process.local_index import running
from mainstem.process.order import with_position
from mainstem.process.outputs import Quarantine, records
from mainstem.process.project import Input
from mainstem.process.reading import BooksMissing, metrics_of, range_of, typed_rows
from mainstem.process.session import job_session
from mainstem.process.sink import BatchSink
from mainstem.registry.client import Registry
from mainstem.registry.spark import unknown_id, with_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICES = "slices"
"""The directory of a version's slices, and the version that has them where the job runs by itself beside."""
_ATTEMPTS = 5


class Slice(msgspec.Struct, frozen=True):
    """From when, and before when, in ms since 1970."""

    start_ms: int
    end_ms: int

    def __str__(self) -> str:
        return " to ".join(_told(each) for each in (self.start_ms, self.end_ms))

    def overlaps(self, other: "Slice") -> bool:
        return self.start_ms < other.end_ms and other.start_ms < self.end_ms


class PlannedSlice(msgspec.Struct, frozen=True):
    """A slice, and where it begins and ends in each topic."""

    slice: Slice
    starts: NextOffsets
    ends: NextOffsets


class SliceResult(msgspec.Struct, frozen=True):
    """What became of a slice."""

    number: int
    slice: Slice
    skipped: bool  # it was there already
    read: dict[str, int] = {}  # records by topic
    written: dict[str, int] = {}  # the same


class SliceOpen(Retriable):
    """A slice is not closed yet: more of it may come."""


class SliceRefused(UserError):
    """A slice that would write rows that are there already."""


class SliceRunner:
    """Runs slices of a version of a job, one at a time.

    Args:
        spec: the version; its outputs exist.
        spark: the root session.
        connection: the log.
        registry: of the schemas.
        clock: what a slice's end is held against.
        wait_seconds: for transactions that are open at the end of a slice.
    """

    def __init__(
        self,
        spec: JobSpec,
        spark: "SparkSession",
        connection: Connection,
        registry: Registry,
        *,
        clock: Clock | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        self.spec = spec
        self._root, self._connection, self._registry = spark, connection, registry
        self._clock = clock or SystemClock()
        self._wait_seconds = wait_seconds
        self._directory = spec.home / SLICES
        self._schemas = dict(spec.schemas)
        self._quarantine = Quarantine(connection, registry, spec.job, spec.config.version, spec.fixed.output)
        self._topics = topics_of(spec, connection)

    def run(self, wanted: Slice) -> SliceResult:
        """Run a slice unless it is there; durable and visible on return, as a whole.

        Raises:
            SliceOpen: it is not over, or a transaction of somebody else in it is not.
            SliceRefused: it overlaps one that is there.
            JobFailed, JobRefused: the function failed; nothing of it is visible.
        """
        if wanted.end_ms > self._clock.now_ms():
            raise SliceOpen(f"slice {wanted} is not over", hint="a slice ends in the past")
        self._make_directory()
        session = job_session(self._root, self.spec.name, self.spec.config)
        sink = sink_of(self.spec, self._connection, self._quarantine, self._directory)
        try:
            marker = sink.open(session)
            self._topics.begin(marker)
            done = [self._plan(number) for number in range(marker.batch + 1)] if marker is not None else []
            for number, each in enumerate(done):
                if each.slice == wanted:
                    return SliceResult(number, wanted, skipped=True)
                if each.slice.overlaps(wanted):
                    raise SliceRefused(
                        f"job {self.spec.key}: slice {wanted} overlaps {each.slice}, which is there: its rows would be "
                        "there twice",
                        hint="run what is missing; or give --version another name, for an output of its own",
                    )
            plan = self._positions(wanted, done)
            self._write_plan(len(done), plan)
            return self._attempt(session, sink, len(done), plan)
        finally:
            sink.close()

    # -- plans

    def _make_directory(self) -> None:
        path = self._directory / "metadata"
        if not path.exists():
            make_directory(self._directory / "offsets")
            write_atomically(path, msgspec.json.encode({"id": str(uuid.uuid4())}))

    def _plan(self, number: int) -> PlannedSlice:
        return msgspec.json.decode(
            (self._directory / "offsets" / str(number)).read_bytes(), type=prepared(PlannedSlice)
        )

    def _write_plan(self, number: int, plan: PlannedSlice) -> None:
        write_atomically(self._directory / "offsets" / str(number), msgspec.json.encode(plan))

    def _positions(self, wanted: Slice, done: list[PlannedSlice]) -> PlannedSlice:
        """Where the slice begins and ends. Beside one that is there it begins where that ends: between the two no
        record is left out, whenever it came.
        """
        before = next((each for each in done if each.slice.end_ms == wanted.start_ms), None)
        after = next((each for each in done if each.slice.start_ms == wanted.end_ms), None)
        starts, ends = {}, {}
        for each in self.spec.streams:
            starts[each.topic] = before.ends[each.topic] if before else self._since(each.topic, wanted.start_ms)
            ends[each.topic] = after.starts[each.topic] if after else self._since(each.topic, wanted.end_ms)
            self._await_decided(each.topic, ends[each.topic])
        return PlannedSlice(wanted, starts, ends)

    def _since(self, topic: str, time_ms: int) -> dict[int, int]:
        """The first offset of every partition from this time on; its end where nothing came since."""
        ends = end_offsets(self._connection, topic)
        found = offsets_since(self._connection, topic, time_ms)
        return {partition: found[partition] if found[partition] >= 0 else end for partition, end in ends.items()}

    def _await_decided(self, topic: str, ends: Mapping[int, int]) -> None:
        deadline = time.monotonic() + self._wait_seconds
        while True:
            decided = end_offsets(self._connection, topic, committed=True)
            undecided = [partition for partition, end in ends.items() if decided.get(partition, 0) < end]
            if not undecided:
                return
            if time.monotonic() > deadline:
                raise SliceOpen(f"topic {topic}, partition {undecided[0]}: a transaction within the slice is open")
            time.sleep(0.1)

    # -- rows

    def _attempt(self, session: "SparkSession", sink: BatchSink, number: int, plan: PlannedSlice) -> SliceResult:
        """Run it; with a schema that a producer has registered since, once more."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._write(session, sink, number, plan)
            except TookTooLong as error:
                raise self._too_long(plan.slice, error) from error
            except Exception as error:
                unknown = unknown_id(error)
                if unknown is None or not left:
                    raise failed(error, None, self.spec.version, self.spec.job.location) from error
                schema_id, topic = unknown
                for each in self.spec.inputs:
                    if each.topic == topic:
                        found = with_id(self._registry, self._schemas[each.parameter], schema_id)
                        self._schemas[each.parameter] = found
                sink.open(session)
        raise AssertionError("unreachable")

    def _too_long(self, wanted: Slice, error: TookTooLong) -> JobFailed:
        most = self.spec.config.transaction_timeout_seconds
        return JobFailed(
            self.spec.version.in_project(self.spec.job.location),
            f"slice {wanted}: expected its rows to be written within {most} s, found {error.seconds:.1f} s: nothing of it "
            "is there",
            hint=f"raise transaction_timeout_seconds under [jobs.{self.spec.name}], to 900 at most, or take shorter slices",
        )

    def _write(self, session: "SparkSession", sink: BatchSink, number: int, plan: PlannedSlice) -> SliceResult:
        spec = self.spec
        tables = tables_of(spec, self._connection, self._registry, self._schemas)
        for table in tables.values():
            table.move()
        kept: list[DataFrame] = []
        indexes = indexes_of(spec, session, self._connection, self._topics)
        books = StreamBooks(spec.name, self._connection, spec.streams, spec.partitions, self._quarantine, None)
        starts, ends = ({topic: {topic: each} for topic, each in side.items()} for side in (plan.starts, plan.ends))

        def counted(stream: str) -> dict[str, Any]:
            try:
                return sink.observed(stream)
            except BooksMissing:  # the function had no use for it
                count = frames[stream].groupBy().count()
                count.collect()
                return metrics_of(cast("Any", count)._jdf.queryExecution(), stream)

        def reads() -> Reads:
            found = books.read(counted, session, self._schemas, starts, ends, 0, sink)
            self._topics.check()
            return found | table_reads(tables)

        try:
            frames = {each.parameter: self._rows(session, each, plan) for each in spec.streams}
            if spec.analysis.reads_again:  # what is read twice would be counted twice
                kept = [frame.persist() for frame in frames.values()]
            frames |= {parameter: table.frame(session) for parameter, table in tables.items()}
            with running(indexes):
                results = [with_position(each) for each in call(spec.job, frames, spec.version.directory)]
            done = sink.write(
                records(spec.job, results, spec.results, self._quarantine, self._clock.now_ms()),
                number,
                ends,
                {table.schema.topic: table.position for table in tables.values()},
                reads=reads,
                topics=lambda: self._topics.kept | self._quarantine.kept,
            )
        finally:
            indexes.release()
            for frame in kept:
                frame.unpersist()
            for table in tables.values():
                table.close()
        written = {topic: sum(each.count for each in parts.values()) for topic, parts in done.outputs.items()}
        read = {topic: sum(ends.values()) - sum(plan.starts[topic].values()) for topic, ends in plan.ends.items()}
        return SliceResult(number, plan.slice, skipped=done.skipped, read=read, written=written)

    def _rows(self, session: "SparkSession", each: Input, plan: PlannedSlice) -> "DataFrame":
        record = self.spec.analysis.needs_record
        starts, ends = plan.starts[each.topic], plan.ends[each.topic]
        raw = range_of(session, self._connection, each.topic, starts, ends, headers=record)
        partitions = self.spec.partitions[each.topic]
        return typed_rows(raw, self._schemas[each.parameter], partitions, None, each.parameter, record=record)


def _told(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="auto").removesuffix("+00:00") + "Z"
