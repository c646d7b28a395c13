"""What a job means, found out by running its function on empty typed DataFrames: nothing is read, nothing is started.

The streams are streaming DataFrames, the tables are not, so Spark's own analysis tells
which operators would keep state.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.core.causes import one_line
from mainstem.process.declare import BadDeclaration, Job, Location
from mainstem.process.project import Input
from mainstem.process.reading import POSITION
from mainstem.registry.spark import UnfitType, avro_schema, key_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

POSITION_TYPE = f"{POSITION} struct<partition:int,offset:bigint,timestamp:timestamp>"

LATE_ROWS = "which rows come too late depends on how the input is cut into batches"
"""Why the result of a job with windows is not the same however its input is cut; where no row was late, it is."""
_STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsWithState": "a state function",
    "FlatMapGroupsInPandasWithState": "a state function",
    "TransformWithState": "a state function",
    "TransformWithStateInPySpark": "a state function",
    "TransformWithStateInPandas": "a state function",
}
_UNBOUNDED = {
    "Sort": "a sort",
    "Window": "a window function",
    "GlobalLimit": "a limit",
    "LocalLimit": "a limit",
    "Intersect": "an intersection",
    "Except": "a difference",
}
_ATTRIBUTE, _MARK = "AttributeReference", '"spark.watermarkDelayMs"'
_CLOCK = re.compile(r"\b(current_timestamp|now|current_date|localtimestamp|current_time|curdate)\(")
_DURATION = re.compile(r"cast\(((?:\d+ (?:days|hours|minutes|seconds|weeks)\s?)+) as interval\)|\b(\d{7,17})(?=[ )])")
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


class Determinism(StrEnum):
    """What the same input gives when it is read again."""

    PREFIX = "prefix-deterministic"  # the same positions give the same output, however they are cut into batches
    BATCH = "batch-dependent"  # only the same positions, cut into the same batches


class Analysis(msgspec.Struct, frozen=True):
    """What is known of a job before it runs."""

    output: "StructType"  # without `_position`
    stateful: str | None  # the operator that keeps state
    determinism: Determinism
    reason: str
    keeps_order: bool
    reads_again: bool  # a stream stands in the result more than once
    event_time: str | None
    horizon: int  # the longest duration in its windows, in ms; a guess


def remember(analysis: Analysis, settings: Mapping[str, str]) -> dict[str, Any]:
    """The analysis as JSON has it, for `recall` to find; `settings` are those of the job's session."""
    fields = msgspec.structs.asdict(analysis) | {"output": analysis.output.jsonValue()}
    return {"made_with": _made_with(settings), "analysis": fields}


def recall(remembered: Mapping[str, Any] | None, settings: Mapping[str, str]) -> Analysis | None:
    """The analysis that `remember` was given; None where Spark or the settings are others now."""
    from pyspark.sql.types import StructType

    if remembered is None or remembered["made_with"] != _made_with(settings):
        return None
    fields = remembered["analysis"]
    determinism = Determinism(fields["determinism"])
    return Analysis(**fields | {"output": StructType.fromJson(fields["output"]), "determinism": determinism})


def _made_with(settings: Mapping[str, str]) -> dict[str, Any]:
    import pyspark

    told = hashlib.sha256(msgspec.json.encode(sorted(settings.items())))  # a setting may be a password
    return {"spark": pyspark.__version__, "settings": told.hexdigest()}


def analyse(
    spark: "SparkSession", job: Job, inputs: Sequence[Input], types: Mapping[str, "StructType"],
    event_times: Mapping[str, str | None], directory: Path,
) -> Analysis:  # fmt: skip
    """Run the job's function on empty inputs of `types` (by parameter) and read the plan that comes out.

    Raises:
        BadDeclaration: the function fails, or what it asks for cannot run; with the user's file and line.
    """
    _check_watermark(job, inputs, types)
    frames = {
        each.parameter: empty_stream(spark, types[each.parameter], job)
        if each.kind == "stream"
        else spark.createDataFrame([], types[each.parameter])
        for each in inputs
    }
    result = call(job, frames, directory)
    plan = result._jdf.queryExecution().analyzed()
    found = list(_nodes(plan))
    stateful = _stateful(job, inputs, found)
    output = _output(job, result)
    reason = _batch_dependence(plan, stateful, inputs)
    return Analysis(
        output=output,
        stateful=stateful,
        determinism=Determinism.BATCH if reason else Determinism.PREFIX,
        reason=reason or "every row of the output depends on its input rows alone",
        keeps_order=POSITION in result.columns,
        reads_again=_reads_again(job, inputs, found, stateful),
        event_time=_event_time(job, inputs, event_times, output),
        horizon=_horizon(plan.toString()),
    )


def call(job: Job, frames: Mapping[str, Any], directory: Path) -> "DataFrame":
    """The function's result on `frames`.

    Raises:
        BadDeclaration: it raised, or returned something else; at the line of the project's code where that happened.
    """
    from pyspark.sql import DataFrame

    try:
        result = job.function(**frames)
    except Exception as error:
        raise BadDeclaration(place_of(error, directory) or job.location, f"{job.name}: {one_line(error)}") from error
    if not isinstance(result, DataFrame):
        raise BadDeclaration(job.location, f"{job.name}: expected a DataFrame as result, found {type(result).__name__}")
    return result


def place_of(error: BaseException, directory: Path) -> Location | None:
    """The innermost line below `directory` that an error passed through: in this process, or in a Spark worker."""
    place = None
    seen: list[BaseException | None] = [error, error.__cause__]
    for each in seen:
        traceback = each.__traceback__ if each is not None else None
        while traceback is not None:
            file = Path(traceback.tb_frame.f_code.co_filename)
            if file.is_relative_to(directory):
                place = Location(str(file), traceback.tb_lineno)
            traceback = traceback.tb_next
    for file_name, line in re.findall(r'File "([^"]+)", line (\d+)', str(error)):
        if Path(file_name).is_relative_to(directory):
            place = Location(file_name, int(line))
    return place


def empty_stream(spark: "SparkSession", struct: "StructType", job: Job) -> "DataFrame":
    """A streaming DataFrame without rows, of type `struct` and `_position`, with the job's watermark."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    position = cast("StructType", StructType.fromDDL(POSITION_TYPE))
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")  # it is never started
    rate = session.readStream.format("rate").load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in [*struct.fields, *position.fields]]
    rows = rate.select(*columns)
    return rows.withWatermark(job.watermark.column, job.watermark.delay) if job.watermark else rows


def _check_watermark(job: Job, inputs: Sequence[Input], types: Mapping[str, "StructType"]) -> None:
    from pyspark.sql.types import TimestampType

    if job.watermark is None:
        return
    for each in inputs:
        struct = types[each.parameter]
        if each.kind == "stream":
            column = job.watermark.column
            if column not in struct.fieldNames():
                raise BadDeclaration(
                    job.location,
                    f"{job.name}: the watermark's column {column!r} is not among those of {each.parameter}: "
                    f"{', '.join(struct.fieldNames())}",
                )
            if not isinstance(struct[column].dataType, TimestampType):
                raise BadDeclaration(
                    job.location,
                    f"{job.name}: the watermark's column {column!r} is {struct[column].dataType.simpleString()}, "
                    "expected timestamp",
                )
    delay = milliseconds(job.watermark.delay)
    if delay is None:
        raise BadDeclaration(
            job.location, f"{job.name}: expected a watermark delay like '10 minutes', found {job.watermark.delay!r}"
        )


def milliseconds(duration: str) -> int | None:
    """`10 minutes`, `1 hour 30 minutes`; None if it is no such duration."""
    parts = re.findall(r"(\d+)\s*([a-z]+)", duration.strip().lower())
    if not parts or re.sub(r"(\d+)\s*([a-z]+)|\s|,", "", duration.strip().lower()):
        return None
    total = 0
    for number, unit in parts:
        unit = unit if unit.endswith("s") else f"{unit}s"
        if unit == "milliseconds":
            total += int(number)
        elif unit in _SECONDS:
            total += int(number) * _SECONDS[unit] * 1000
        else:
            return None
    return total


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _stateful(job: Job, inputs: Sequence[Input], nodes: Sequence[Any]) -> str | None:
    """The one operator that keeps state over batches, in words."""
    found: list[str] = []
    unbounded = False
    for node in nodes:
        if not node.isStreaming():
            continue
        name = str(node.nodeName())
        if name in _UNBOUNDED:
            raise BadDeclaration(
                job.location,
                f"{job.name}: {_UNBOUNDED[name]} over a stream never ends",
                hint="apply it in a reader of the result",
            )
        if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
            found.append("a join of two streams")
        elif name in _STATEFUL:
            found.append(_STATEFUL[name])
            # Totals of a key: a row of state for each row of the table, as large as that.
            totals = name == "Aggregate" and job.emit == "changes"
            unbounded = unbounded or not (totals or _is_bounded(name, node))
    if not found:
        return None
    if len(found) > 1:
        raise BadDeclaration(
            job.location,
            f"{job.name}: keeps state in {' and in '.join(found)}; a job has one such operator",
            hint="make two jobs of it: the log connects them",
        )
    tables = [each.parameter for each in inputs if each.kind == "changelog"]
    if tables:
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} together with a table ({', '.join(tables)}), which is pinned per batch",
            hint="join in a job of its own, and read its output here",
        )
    if job.watermark is None:
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} keeps state, and without a watermark it keeps it for ever",
            hint='add watermark=("column of the event time", "10 minutes")',
        )
    if unbounded:
        column = job.watermark.column
        raise BadDeclaration(
            job.location,
            f"{job.name}: {found[0]} whose columns hold neither {column!r} nor a window of it keeps its state for ever",
            hint=f"add F.window({column!r}, …) itself, not only its start or end, to what it groups by"
            if found[0] == _STATEFUL["Aggregate"]
            else f"add {column!r} to the columns that must be equal, or use dropDuplicatesWithinWatermark",
        )
    return found[0]


def _is_bounded(name: str, node: Any) -> bool:
    """Whether the watermark removes what an aggregation or a dropDuplicates keeps: Spark asks the columns for its mark.

    Spark itself refuses such an aggregation where `emit` is `final`, and only once it is started.
    """
    if name not in ("Aggregate", "Deduplicate", "Distinct"):
        return True
    columns = (
        node.groupingExpressions() if name == "Aggregate" else node.keys() if name == "Deduplicate" else node.output()
    )
    found = [columns.apply(number) for number in range(columns.size())]
    return any(_MARK in each.metadata().json() for each in found if each.getClass().getSimpleName() == _ATTRIBUTE)


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


def _output(job: Job, result: "DataFrame") -> "StructType":
    from pyspark.sql.types import StructType

    struct = StructType([field for field in result.schema.fields if field.name != POSITION])
    twice = {name for name in struct.fieldNames() if struct.fieldNames().count(name) > 1}
    if twice:
        raise BadDeclaration(job.location, f"{job.name}: the result has the column {min(twice)!r} twice")
    try:
        avro_schema(struct, job.to)
        key_bytes(struct, job.key)
    except UnfitType as error:
        raise BadDeclaration(job.location, f"{job.name}: {error}", hint=error.hint) from error
    return struct


def _batch_dependence(plan: Any, stateful: str | None, inputs: Sequence[Input]) -> str | None:
    clock = _CLOCK.search(plan.toString())
    if clock:
        return f"it asks for the time ({clock[1]})"
    if not plan.deterministic():
        return "it uses a function that gives another result each time"
    tables = [each.parameter for each in inputs if each.kind == "changelog"]
    if tables:
        return f"{', '.join(tables)}: read at the position that was pinned with each batch"
    if stateful:
        return f"{stateful}: {LATE_ROWS}"
    return None


def _event_time(
    job: Job, inputs: Sequence[Input], event_times: Mapping[str, str | None], output: "StructType"
) -> str | None:
    if job.event_time is not None:
        if job.event_time not in output.fieldNames():
            raise BadDeclaration(
                job.location, f"{job.name}: the event time {job.event_time!r} is not among its columns"
            )
        return job.event_time
    candidates = [job.watermark.column] if job.watermark else []
    candidates += [time for each in inputs if each.kind == "stream" and (time := event_times.get(each.parameter))]
    return next((column for column in candidates if column in output.fieldNames()), None)


def _horizon(plan: str) -> int:
    """The longest duration that the text of a plan names, in ms; an hour if it names none."""
    longest = 0
    for words, micros in _DURATION.findall(plan):
        longest = max(longest, milliseconds(words) or 0) if words else max(longest, int(micros) // 1000)
    return longest if 0 < longest < 400 * 86_400_000 else 3_600_000
