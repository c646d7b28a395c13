"""What a job means, found out by running its function on empty typed DataFrames: nothing is read, nothing is started.

The streams are streaming DataFrames, the tables are not, so Spark's own analysis tells
which operators would keep state.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.process.calling import call
from mainstem.process.clocks import clock_of
from mainstem.process.declare import BadDeclaration, Job, Output
from mainstem.process.durations import milliseconds
from mainstem.process.frozen import code_of_job
from mainstem.process.late import Windows, windows_of
from mainstem.process.local_index import KnownIndexes, running
from mainstem.process.order import order_lost_by, with_position
from mainstem.process.plan_nodes import analyzed, class_of, items_of, nodes_of
from mainstem.process.project import Input
from mainstem.process.reading import DELETED, HEADERS, OWN, RECORD, REJECTED, with_own
from mainstem.process.realtime_rules import check_job
from mainstem.process.state_rules import check_watermark, is_by_the_clock, leaves_out_late, stateful_operator
from mainstem.process.state_topic import state_table
from mainstem.process.upgrade import Shape, shape_of
from mainstem.registry.spark import UnfitType, avro_schema, key_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORM = 7
"""Of what is remembered: raised when a field is added that older ones lack."""

LATE_ROWS = "which rows come too late depends on how the input is cut into batches"
"""Why the result of a job with windows is not the same however its input is cut; where no row was late, it is."""
ROWS_BETWEEN = (
    "how often a key is written depends on how the input is cut into batches; the last row of each key does not"
)
"""Why totals are not the same topic each time, though they are the same table."""
OF_ROWS = "every row of the output depends on its input rows alone"
OF_PYTHON = f"{OF_ROWS}, if its Python functions make each of one row and of nothing else"
_OWN_TYPES = {
    REJECTED: ("string", "void"),
    HEADERS: ("array<struct<key:string,value:binary>>",),
    DELETED: ("boolean", "void"),
}
"""What our own columns of a result are to be, and what they may be besides."""
_DURATION = re.compile(r"cast\(((?:\d+ (?:days|hours|minutes|seconds|weeks)\s?)+) as interval\)|\b(\d{7,17})(?=[ )])")


class Determinism(StrEnum):
    """What the same input gives when it is read again."""

    PREFIX = "prefix-deterministic"  # the same positions give the same output, however they are cut into batches
    BATCH = "batch-dependent"  # only the same positions, cut into the same batches


class Result(msgspec.Struct, frozen=True):
    """What is known of one result of a job."""

    columns: "StructType"  # without those of our own
    event_time: str | None
    rejects: bool = False  # some rows may be rejected


class Analysis(msgspec.Struct, frozen=True):
    """What is known of a job before it runs."""

    results: tuple[Result, ...]  # one for each topic that it writes, in their order; that of its state is the last
    stateful: str | None  # the operator that keeps state
    determinism: Determinism
    reason: str
    order_lost_by: str | None  # what keeps the rows of a key from the order of their input, in words
    reads_again: bool  # a stream stands in the results more than once
    horizon: int  # the longest duration in its windows, in ms; a guess
    windows: Windows | None = None  # by which rows are late
    leaves_out_late: bool = False  # rows behind the watermark
    by_the_clock: bool = False  # it may have something to do at any time, without a row
    shape: Shape | None = None  # by which edits are told apart
    needs_record: bool = False  # the function uses the records as they came, in column `_record`
    indexes: tuple[str, ...] = ()  # tables that it writes, and of which it keeps a local index

    @property
    def output(self) -> "StructType":
        """The columns of the first result."""
        return self.results[0].columns

    @property
    def event_time(self) -> str | None:
        """That of the first result."""
        return self.results[0].event_time

    @property
    def keeps_order(self) -> bool:
        """Whether the rows of a key come out in the order of their input, in each topic that it writes."""
        return self.order_lost_by is None

    @property
    def rejects(self) -> bool:
        return any(each.rejects for each in self.results)


def remember(analysis: Analysis, settings: Mapping[str, str]) -> dict[str, Any]:
    """The analysis as JSON has it, for `recall` to find; `settings` are those of the job's session."""
    results = [msgspec.structs.asdict(each) | {"columns": each.columns.jsonValue()} for each in analysis.results]
    windows, shape = (each and msgspec.structs.asdict(each) for each in (analysis.windows, analysis.shape))
    fields = msgspec.structs.asdict(analysis) | {"results": results, "windows": windows, "shape": shape}
    return {"made_with": _made_with(settings), "analysis": fields}


def recall(remembered: Mapping[str, Any] | None, settings: Mapping[str, str]) -> Analysis | None:
    """The analysis that `remember` was given; None where Spark or the settings are others now."""
    from pyspark.sql.types import StructType

    if remembered is None or remembered["made_with"] != _made_with(settings):
        return None
    fields = remembered["analysis"]
    results = tuple(Result(**each | {"columns": StructType.fromJson(each["columns"])}) for each in fields["results"])
    typed = {
        "results": results,
        "determinism": Determinism(fields["determinism"]),
        "windows": fields["windows"] and Windows(**fields["windows"]),
        "shape": fields["shape"] and Shape(**fields["shape"]),
        "indexes": tuple(fields["indexes"]),
    }
    return Analysis(**fields | typed)


def _made_with(settings: Mapping[str, str]) -> dict[str, Any]:
    import pyspark

    told = hashlib.sha256(msgspec.json.encode(sorted(settings.items())))  # a setting may be a password
    return {"form": _FORM, "spark": pyspark.__version__, "settings": told.hexdigest()}


def analyse(
    spark: "SparkSession", job: Job, inputs: Sequence[Input], types: Mapping[str, "StructType"],
    event_times: Mapping[str, str | None], directory: Path,
) -> Analysis:  # fmt: skip
    """Run the job's function on empty inputs of `types` (by parameter) and read the plan that comes out.

    Raises:
        BadDeclaration: the function fails, or what it asks for cannot run; with the user's file and line.
    """
    check_watermark(job, inputs, types)
    session = _own_session(spark)
    frames = {
        each.parameter: empty_stream(session, types[each.parameter], job)
        if each.kind == "stream"
        else session.createDataFrame([], types[each.parameter])
        for each in inputs
    }
    known, began = KnownIndexes(job.also), time.time()
    with running(known):
        found = call(job, frames, directory)
        ended = time.time()
        needs_record = _needs_record(job, inputs, frames, found, directory)
    plans = [analyzed(each) for each in found]
    nodes = [node for plan in plans for node in nodes_of(plan)]
    stateful = stateful_operator(job, inputs, nodes)
    late = stateful is not None and leaves_out_late(nodes)
    clocks = [clock_of(plan.toString(), began, ended) for plan in plans]
    reasons: list[str | None] = [f"it asks for the time ({clock})" for clock in clocks if clock is not None]
    reasons += [_batch_dependence(job, plan, stateful, inputs, late=late) for plan in plans]
    reasons += [f"{', '.join(known.used)}: its local index is as it was when the batch began"] if known.used else []
    reason = next(filter(None, reasons), None)
    results = tuple(
        _result(job, output, each, inputs, event_times) for output, each in zip(job.outputs, found, strict=True)
    )
    if job.state is not None:
        results = (*results, _state(job, frames, directory, stateful))
    shape = shape_of(
        session,
        plans,
        {each.parameter: f"{each.topic} {types[each.parameter].simpleString()}" for each in inputs},
        {
            output.topic: f"{list(output.key)} {result.columns.simpleString()}"
            for output, result in zip(job.written, results, strict=True)
        },
        partial(code_of_job, directory, job.name),
    )
    check_job(session, job, inputs, found, plans, stateful=stateful, is_python=bool(shape.code))
    return Analysis(
        results=results,
        stateful=stateful,
        determinism=Determinism.BATCH if reason else Determinism.PREFIX,
        reason=reason or (OF_PYTHON if shape.code else OF_ROWS),
        order_lost_by=_order_lost_by(job, found, stateful),
        reads_again=_reads_again(job, inputs, nodes, stateful),
        horizon=max(_horizon(plan.toString()) for plan in plans),
        windows=windows_of(session, nodes) if stateful else None,
        leaves_out_late=late,
        by_the_clock=is_by_the_clock(nodes),
        shape=shape,
        needs_record=needs_record,
        indexes=tuple(known.used),
    )


def _own_session(spark: "SparkSession") -> "SparkSession":
    """One with the same settings, in which streams without a name may stand: they are never started."""
    session = type(spark)(spark.sparkContext, cast("Any", spark)._jsparkSession.cloneSession())
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
    return session


def _needs_record(
    job: Job, inputs: Sequence[Input], frames: Mapping[str, "DataFrame"], found: Sequence["DataFrame"], directory: Path
) -> bool:
    """Whether the function asks for `_record`, or keeps it for rows that it rejects: only then is it carried along."""
    if any(REJECTED in each.columns and RECORD in each.columns for each in found):
        return True
    without = {each.parameter: frames[each.parameter].drop(RECORD) for each in inputs}
    try:
        call(job, without, directory)
    except BadDeclaration:
        return True
    return False


def empty_stream(spark: "SparkSession", struct: "StructType", job: Job) -> "DataFrame":
    """A streaming DataFrame without rows, of type `struct` and our own columns, with the job's watermark."""
    from pyspark.sql import functions as F

    rate = spark.readStream.format("rate").load()
    # No constants: those are what a union puts where a part of it lacks a column (`order`).
    nothing = F.when(F.col("value").isNull(), F.lit(None))
    columns = [nothing.cast(field.dataType).alias(field.name) for field in with_own(struct).fields]
    rows = rate.select(*columns)
    return rows.withWatermark(job.watermark.column, job.watermark.delay) if job.watermark else rows


def _reads_again(job: Job, inputs: Sequence[Input], nodes: Sequence[Any], stateful: str | None) -> bool:
    """Whether a stream stands in the result more than once."""
    streams = [each.parameter for each in inputs if each.kind == "stream"]
    leaves = sum(1 for node in nodes if node.isStreaming() and node.children().isEmpty())
    if leaves < len(streams):
        raise BadDeclaration(job.location, f"{job.name}: not all of its streams are used: {', '.join(streams)}")
    if leaves > len(streams) and stateful:
        raise BadDeclaration(
            job.location,
            f"{job.name}: keeps state, and uses a stream twice",
            hint="make two jobs of it: the log connects them",
        )
    return leaves > len(streams)


def _result(
    job: Job, output: Output, result: "DataFrame", inputs: Sequence[Input], event_times: Mapping[str, str | None]
) -> Result:
    """Raises: BadDeclaration: it cannot be the records of a topic."""
    from pyspark.sql.types import StructType

    which = f"the result for {output.topic}" if job.also else "the result"
    struct = StructType([field for field in result.schema.fields if field.name not in OWN])
    ours = OWN if REJECTED in result.columns else OWN - {RECORD}  # which is not carried along then
    for name in (*struct.fieldNames(), *sorted(ours)):
        if result.columns.count(name) > 1:
            raise BadDeclaration(job.location, f"{job.name}: {which} has the column {name!r} twice")
    for name, expected in _OWN_TYPES.items():
        if name in result.columns and (found := result.schema[name].dataType.simpleString()) not in expected:
            raise BadDeclaration(job.location, f"{job.name}: {which}: column {name} is {found}, expected {expected[0]}")
    if DELETED in result.columns and output.kind != "changelog":
        raise BadDeclaration(
            job.location, f"{job.name}: {which} has the column {DELETED}, and is a stream: only a table's rows can go"
        )
    _check_columns(job, struct, output.topic, output.key)
    return Result(struct, _event_time(job, output, inputs, event_times, struct), REJECTED in result.columns)


def _state(job: Job, frames: Mapping[str, "DataFrame"], directory: Path, stateful: str | None) -> Result:
    """What it keeps, as the last of what it writes. Raises: BadDeclaration: nothing, or it cannot be published."""
    from pyspark.sql import functions as F

    if stateful is None:
        raise BadDeclaration(job.location, f"{job.name}: keeps no state", hint="remove state=…")
    (nothing,) = call(job, {name: frame.filter(F.lit(False)) for name, frame in frames.items()}, directory)
    table = state_table(job, with_position(nothing))
    assert job.state is not None
    _check_columns(job, table.columns, job.state.name, table.key)
    return Result(table.columns, None)


def _check_columns(job: Job, struct: "StructType", topic: str, key: Sequence[str]) -> None:
    """Raises: BadDeclaration: they cannot be those of a topic."""
    try:
        avro_schema(struct, topic)
        key_bytes(struct, key)
    except UnfitType as error:
        raise BadDeclaration(job.location, f"{job.name}: {error}", hint=error.hint) from error


def _order_lost_by(job: Job, found: Sequence["DataFrame"], stateful: str | None) -> str | None:
    """Of the first topic that loses it, which is named where the job writes several."""
    for output, result in zip(job.outputs, found, strict=True):
        lost = order_lost_by(result, stateful, output.key)
        if lost is not None:
            return f"{output.topic}: {lost}" if job.also else lost
    return None


def _batch_dependence(job: Job, plan: Any, stateful: str | None, inputs: Sequence[Input], *, late: bool) -> str | None:
    if not plan.deterministic():
        return "it uses a function that gives another result each time"
    if any(class_of(node) == "Sample" for node in nodes_of(plan)):
        return "sample: which rows it takes depends on how the input is cut into batches"
    tables = [each.parameter for each in inputs if each.kind == "changelog"]
    if tables:
        return f"{', '.join(tables)}: read at the position that was pinned with each batch"
    if stateful is None:
        return None
    why = []
    if "state function" in stateful:
        why.append("it is called with what each batch has of a key")
    elif "dropDuplicates" in stateful and _tells_which(plan):
        why.append("which of several rows with the same key is the first depends on how the input is cut into batches")
    elif job.emit == "changes":
        why.append(ROWS_BETWEEN)
    return f"{stateful}: {'; '.join([*why, *([LATE_ROWS] if late else [])])}"


def _tells_which(plan: Any) -> bool:
    """Whether a result has columns by which the rows that a dropDuplicates takes for equal differ."""
    keys: set[int] = set()
    for node in nodes_of(plan):
        if node.isStreaming() and class_of(node).startswith("Deduplicate"):
            keys |= {each.exprId().id() for each in items_of(node.keys())}
    return any(each.name() not in OWN and each.exprId().id() not in keys for each in items_of(plan.output()))


def _event_time(
    job: Job, output: Output, inputs: Sequence[Input], event_times: Mapping[str, str | None], columns: "StructType"
) -> str | None:
    if output.event_time is not None:
        if output.event_time not in columns.fieldNames():
            raise BadDeclaration(
                job.location, f"{job.name}: the event time {output.event_time!r} is not among its columns"
            )
        return output.event_time
    candidates = [job.watermark.column] if job.watermark else []
    candidates += [time for each in inputs if each.kind == "stream" and (time := event_times.get(each.parameter))]
    return next((column for column in candidates if column in columns.fieldNames()), None)


def _horizon(plan: str) -> int:
    """The longest duration that the text of a plan names, in ms; an hour if it names none."""
    longest = 0
    for words, micros in _DURATION.findall(plan):
        longest = max(longest, milliseconds(words) or 0) if words else max(longest, int(micros) // 1000)
    return longest if 0 < longest < 400 * 86_400_000 else 3_600_000
