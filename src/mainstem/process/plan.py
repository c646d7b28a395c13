"""What a project means and what running it would change, as data: `mainstem plan` prints it as tables or as JSON."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.client.internal import job_key
from mainstem.client.topics import TopicDescription
from mainstem.core import UserError
from mainstem.process.analysis import Analysis, Determinism, analyse, recall
from mainstem.process.another_version import instead_of_retired
from mainstem.process.declare import Job
from mainstem.process.frozen import code_hash
from mainstem.process.prepare import input_type, nobody_writes
from mainstem.process.project import Project, TopicSpec
from mainstem.process.project_config import JobConfig
from mainstem.process.realtime_rules import EXACTLY_ONCE, check_settings, guarantee_of
from mainstem.process.session import job_session
from mainstem.process.task_slots import crowding, without_room
from mainstem.process.topics import read_schema
from mainstem.process.upgrade import MEANING, Upgrade, upgrade
from mainstem.process.versions import (
    Edited,
    edited,
    is_retired,
    left_over,
    live_versions,
    newest,
    output_topic,
    read_fixed,
    with_versions,
    writer_of,
)
from mainstem.registry.spark import SchemaSource, TopicSchema, avro_schema, subject_of, topic_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Column(msgspec.Struct, frozen=True):
    """A column and its type as Spark writes it."""

    name: str
    type: str


class PlannedTopic(msgspec.Struct, frozen=True):
    """A topic that the project reads or writes."""

    name: str
    kind: str
    key: list[str]
    partitions: int
    exists: bool | None  # None: not known, as the log does not run
    producer: str | None  # the job that writes it, or none of this project
    readers: list[str]
    columns: list[Column] | None  # None: not known before its source has started
    writer: str | None = None  # "job enriched", "source fleet", "collector", "splice …", with the settings of a node
    destinations: list[str] = []  # "sink lakehouse", "view planes@answers", "splice enriched.all", the same


class PlannedJob(msgspec.Struct, frozen=True):
    """A job, its place in the graph, and what is known of its output."""

    name: str
    version: str
    says: str  # the first paragraph of its docstring
    place: str  # file:line
    inputs: dict[str, str]  # parameter -> topic
    tables: list[str]  # those of the inputs that are pinned
    output: str
    columns: list[Column] | None  # of the first
    key: list[str]
    event_time: str | None
    watermark: str | None
    state: str | None  # what keeps it, an operator or a local index
    determinism: str | None
    reason: str
    keeps_order: bool | None  # of the rows of a key
    order_lost_by: str | None = None  # the operator that does not keep it, in words
    also: list[str] = []  # further topics that it writes
    slices: bool | None = None  # slices of it are together what it makes when it runs by itself
    change: str | None = None  # of what kind the edit is since the version that runs (`upgrade.Upgrade`)
    guarantee: str = EXACTLY_ONCE  # of each of its rows


class Plan(msgspec.Struct, frozen=True):
    """Everything that `mainstem plan` says."""

    project: str
    code: str
    topics: list[PlannedTopic]
    jobs: list[PlannedJob]  # each after those it reads from
    changes: list[str]  # what running it now would do, as far as it is known; empty: nothing
    complete: bool = True  # False: the log does not run, and which topics and schemas there are is not known
    warnings: list[str] = []  # settings that may do harm


def plan(
    project: Project,
    spark: "SparkSession",
    *,
    registry: SchemaSource | None = None,
    topics: Mapping[str, TopicDescription] | None = None,
    data: Path | None = None,
    room: int | None = None,
) -> Plan:
    """What `project` means; where a registry, topics or a data directory are given, also what would change there.

    Args:
        project: as `load_project` gave it.
        spark: a session for the analysis.
        registry: of a log that runs.
        topics: those that exist; None where that is not known.
        data: where the project keeps its state.
        room: for how many tasks at a time the project's Spark has room; None where that is not known.

    Raises:
        BadDeclaration: a job cannot run; with the user's file and line.
        BadSetting: a schema file is wrong.
    """
    sha = code_hash(project.directory)
    others: dict[str, Edited] = {}
    if data is not None:
        found = edited(project, data, sha)
        others = {each.job: each for each in found if not is_retired(data, each.job, each.version)}
    beside = [str(each) for each in left_over(project, data)] if data is not None else []
    project = with_versions(project, data)
    schemas = _known_schemas(project, registry)
    jobs = [_job(project, name, spark, schemas, data) for name in project.order]
    kinds = {job.name: job.change for job in jobs}
    goes_on = {name: _told(each, kinds[name]) for name, each in others.items()}
    if registry is not None:  # what the frozen code writes, and not the edited one
        written = [topic for job in jobs if job.name in goes_on for topic in (job.output, *job.also)]
        schemas |= _registered(registry, written)
    planned = [
        _topic(project, spec, name, spark, schemas, topics)
        for spec in project.topics.values()
        for name in _names(project, spec, topics, data)
    ]
    changes = _changes(project, goes_on, schemas, registry, topics, data) + beside
    partitions, warnings = _partitions(project, topics or {}), []
    if room is not None:
        changes += without_room(project, partitions, room)
        warnings = crowding(project, partitions, room)
    return Plan(project.name, sha, planned, jobs, changes, complete=topics is not None, warnings=warnings)


def _told(edited: Edited, kind: str | None) -> str:
    return f"{edited}" if kind is None else f"{edited}; of the edit: {kind}, {MEANING[Upgrade(kind)]}"


def _outputs(project: Project) -> dict[str, str]:
    """The jobs by the topics that the versions write which the project asks for."""
    return {
        output_topic(topic, project.job_config(name).version): name
        for name, job in project.jobs.items()
        for topic in job.topics
    }


def _names(
    project: Project, spec: TopicSpec, topics: Mapping[str, TopicDescription] | None, data: Path | None
) -> list[str]:
    """The topics that are meant: of a job's output that of its version, and that of version 1 where there is something
    to tell of it.
    """
    if spec.producer is None:
        return [spec.name]
    output = output_topic(spec.name, project.job_config(spec.producer).version)
    first = (
        spec.name == output
        or project.downstream(spec.name)
        or (topics is not None and spec.name in topics)
        or (data is not None and writer_of(data, spec.name) is not None)
    )
    return [*([spec.name] if first else []), *([] if output in project.topics else [output])]


def _known_schemas(project: Project, registry: SchemaSource | None) -> dict[str, TopicSchema]:
    """The schema of every topic that has one before anything runs; those of outputs are found out later, except for
    what an earlier version has written.
    """
    known: dict[str, TopicSchema] = {}
    for spec in project.topics.values():
        version = "1" if spec.producer is None else project.job_config(spec.producer).version
        if spec.schema_file is not None:
            known[spec.name] = TopicSchema(spec.name, read_schema(project, spec, project.directory), 0, {})
        elif (spec.producer is None or version != "1") and registry is not None:
            known |= _registered(registry, [spec.name])
    return known


def _registered(registry: SchemaSource, topics: Iterable[str]) -> dict[str, TopicSchema]:
    """The schemas of those topics that have one."""
    found = {}
    for topic in topics:
        with suppress(UserError):
            found[topic] = topic_schema(registry, topic)
    return found


def _job(
    project: Project, name: str, spark: "SparkSession", schemas: dict[str, TopicSchema], data: Path | None
) -> PlannedJob:
    """Analyse a job, and enter the schema of its output for those who read it."""
    job, inputs, config = project.jobs[name], project.inputs[name], project.job_config(name)
    check_settings(job, config)
    outputs = [output_topic(topic, config.version) for topic in job.topics]
    unknown = [each.topic for each in inputs if each.topic not in schemas]
    known: dict[str, Any] = {"columns": None, "event_time": job.event_time, "state": None, "determinism": None,
                             "reason": f"{', '.join(unknown)}: no schema yet", "keeps_order": None}  # fmt: skip
    if not unknown:
        session = job_session(spark, name, config)
        types = {each.parameter: input_type(session, each, schemas[each.topic]) for each in inputs}
        event_times = {each.parameter: project.topics[each.topic].event_time for each in inputs}
        found = analyse(session, job, inputs, types, event_times, project.directory)
        for output, each, result in zip(outputs, job.written, found.results, strict=True):
            required = each.key if each.kind == "changelog" else ()
            schema = avro_schema(result.columns, output, required=required)
            schemas[output] = TopicSchema(output, schema, 0, {})
            schemas.setdefault(
                each.topic, TopicSchema(each.topic, schema, 0, {})
            )  # a guess, where version 1 is not there
        known = {"columns": _columns(found.output), "event_time": found.event_time, "state": _state(found),
                 "determinism": found.determinism.value, "reason": found.reason, "keeps_order": found.keeps_order,
                 "order_lost_by": found.order_lost_by, "slices": _slices_add_up(job, found),
                 "change": _change(found, data, name, config)}  # fmt: skip
    watermark = f"{job.watermark.column}, {job.watermark.delay}" if job.watermark else None
    return PlannedJob(
        name=name,
        version=config.version,
        says=job.doc,
        place=str(job.location),
        inputs={each.parameter: each.topic for each in inputs},
        tables=[each.topic for each in inputs if each.kind == "changelog"],
        output=outputs[0],
        also=outputs[1:],
        key=list(job.key),
        watermark=watermark,
        guarantee=guarantee_of(job, config),
        **known,
    )


def _slices_add_up(job: Job, found: Analysis) -> bool:
    """Whether its slices are together what it makes when it runs by itself: each has the tables as they are when it
    runs, and a clock of its own.
    """
    return _state(found) is None and found.determinism is Determinism.PREFIX and not job.is_realtime


def _state(found: Analysis) -> str | None:
    """What keeps something from one batch to the next, in words."""
    return found.stateful or (f"the local index of {', '.join(found.indexes)}" if found.indexes else None)


def _change(found: Analysis, data: Path | None, name: str, config: JobConfig) -> str | None:
    """Of which kind the edit of a job is, since its version was started, or the newest of those before; None where
    there is none, or nobody knows what it meant.
    """
    lives = {each.version: each for each in live_versions(data) if each.job == name} if data is not None else {}
    fixed = lives.get(config.version) or lives.get(newest(lives) or "")
    before = recall(fixed.analysis, config.spark) if fixed is not None else None
    if before is None or before.shape is None or found.shape is None:
        return None
    return upgrade(before.shape, found.shape).value


def _topic(
    project: Project,
    spec: TopicSpec,
    name: str,
    spark: "SparkSession",
    schemas: Mapping[str, TopicSchema],
    topics: Mapping[str, TopicDescription] | None,
) -> PlannedTopic:
    from mainstem.registry.spark import row_type

    return PlannedTopic(
        name=name,
        kind=spec.kind,
        key=list(spec.key),
        partitions=topics[name].partitions if topics and name in topics else spec.partitions,
        exists=None if topics is None else name in topics,
        producer=spec.producer or _outputs(project).get(name),
        readers=list(project.downstream(name)),
        columns=_columns(row_type(spark, schemas[name])) if name in schemas else None,
    )


def _columns(struct: Any) -> list[Column]:
    return [Column(field.name, field.dataType.simpleString()) for field in struct.fields]


def _changes(
    project: Project,
    goes_on: Mapping[str, str],
    schemas: Mapping[str, TopicSchema],
    registry: SchemaSource | None,
    topics: Mapping[str, TopicDescription] | None,
    data: Path | None,
) -> list[str]:
    """What running the project would do that has not been done, one line each; `goes_on` are those of the jobs that
    run code of before.
    """
    changes = []
    for spec in project.topics.values():
        if topics is None:
            break
        name = spec.name
        if spec.producer is not None:
            name = output_topic(name, project.job_config(spec.producer).version)
            if name != spec.name and name in project.topics:  # it is declared too, so that others can read it
                continue
        found = topics.get(name)
        if found is None:
            changes.append(f"create topic {name} ({spec.kind}, partitions: {spec.partitions})")
        elif found.partitions != spec.partitions and spec.producer is not None:
            changes.append(
                f"REFUSED: topic {name} has {found.partitions} partitions, the project says {spec.partitions}"
            )
    for name in project.order:
        changes += [goes_on[name]] if name in goes_on else _job_changes(project, name, schemas, registry, data)
        if data is not None:
            changes += _unwritten(project, name, data)
    return changes


def _job_changes(
    project: Project,
    name: str,
    schemas: Mapping[str, TopicSchema],
    registry: SchemaSource | None,
    data: Path | None,
) -> list[str]:
    """Of a job that does not go on with code of before."""
    version = project.job_config(name).version
    outputs = [output_topic(topic, version) for topic in project.jobs[name].topics]
    others = {} if data is None else {output: writer_of(data, output) for output in outputs}
    changes = []
    fixed = read_fixed(data / "jobs" / job_key(name, version)) if data is not None else None
    if data is not None and is_retired(data, name, version):
        changes.append(f"REFUSED: job {name}@{version} was retired; {instead_of_retired(name)}")
    elif fixed is None and any(others.values()):
        changes += [
            f"REFUSED: job {name}@{version} writes topic {output}, as job {other.job}@{other.version} does; "
            f"`mainstem job retire {other.job} {other.version}` stops that one for good"
            for output, other in others.items()
            if other is not None
        ]
    elif project.job_config(name).on_demand:
        changes.append(f"job {name}@{version} runs on demand: `mainstem job run {name} --from TIME --to TIME`")
    elif fixed is None:
        changes.append(f"start job {name}@{version} from the beginning of its inputs")
    elif fixed.keeps_state and fixed.state_partitions != project.job_config(name).state_partitions:
        wanted = project.job_config(name).state_partitions
        changes.append(f"move the state of job {name}@{version} from {fixed.state_partitions} partitions into {wanted}")
    return changes + [line for each in outputs for line in _schema_change(each, schemas.get(each), registry)]


def _partitions(project: Project, topics: Mapping[str, TopicDescription]) -> dict[str, int]:
    """Of each topic of the project, as it is or would be made."""
    partitions = {each: spec.partitions for each, spec in project.topics.items()}
    return partitions | {each: topics[each].partitions for each in partitions if each in topics}


def _unwritten(project: Project, name: str, data: Path) -> list[str]:
    """What a job reads by the name of another one whose version 1 does not run."""
    found = []
    for each in project.inputs[name]:
        reason = nobody_writes(each, project, project.job_configs, data)
        if reason is not None:
            version = project.job_config(name).version
            found.append(f"job {name}@{version} gets nothing new: {reason}; {reason.hint}")
    return found


def _schema_change(topic: str, wanted: TopicSchema | None, registry: SchemaSource | None) -> list[str]:
    if wanted is None or registry is None:
        return []
    try:
        registered = registry.latest(subject_of(topic))
    except UserError:
        return [f"register a schema for topic {topic}"]
    before, after = (
        {field["name"]: field["type"] for field in msgspec.json.decode(text)["fields"]}
        for text in (registered.schema, wanted.reader)
    )
    added, gone = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    parts = [(added, "added"), (gone, "left out"), (changed, "of another type")]
    text = "; ".join(f"{word}: {', '.join(names)}" for names, word in parts if names)
    return [f"change the schema of topic {topic} ({text})"] if text else []
