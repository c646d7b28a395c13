"""A project: a directory with a `mainstem.toml` and the Python files that declare its jobs.

    [project]
    jobs = "jobs.py"                     # or a list of files

    [topics.flights]                     # what a topic is created with; every field is optional
    partitions = 2
    schema = "schemas/flights.avsc"

    [jobs.flights_enriched]              # how a job runs
    every = "1 second"

Loading imports the files and draws the graph: a parameter of a job is the name of a declared topic's variable, or of
another job.
"""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from mainstem.core.config import (
    PROJECT_FILE,
    BadSetting,
    settings_from,
)
from mainstem.process.declare import BadDeclaration, Job, Kind, Output, Topic, collecting
from mainstem.process.imports import places_of
from mainstem.process.job_files import import_files
from mainstem.process.project_config import JobConfig, Settings, TopicConfig, read_settings


class Input(msgspec.Struct, frozen=True):
    """One parameter of a job."""

    parameter: str
    topic: str
    kind: Kind
    job: str | None  # whose output it is, in this project
    history: str | None = None  # of a table, all versions of its rows: the column that says since when they hold


class TopicSpec(msgspec.Struct, frozen=True):
    """Everything that is known of a topic before anything runs."""

    name: str
    kind: Kind
    key: tuple[str, ...]
    event_time: str | None
    schema_file: Path | None
    partitions: int
    config: dict[str, str]
    producer: str | None  # the job of this project that writes it


class Project(msgspec.Struct, frozen=True):
    """What a project declares; `order` holds its jobs so that each comes after those it reads from."""

    name: str
    directory: Path
    jobs: dict[str, Job]
    inputs: dict[str, tuple[Input, ...]]
    topics: dict[str, TopicSpec]
    job_configs: dict[str, JobConfig]
    order: tuple[str, ...]
    modules: tuple[ModuleType, ...]

    def job_config(self, job: str) -> JobConfig:
        """Its settings; the defaults where `[jobs]` does not name it."""
        return self.job_configs.get(job, JobConfig())

    def downstream(self, topic: str) -> tuple[str, ...]:
        """The jobs that read `topic`."""
        return tuple(job for job in self.order if any(each.topic == topic for each in self.inputs[job]))


def load_project(
    path: Path | str, *, environment: Mapping[str, str] = os.environ, places: Sequence[Path] = ()
) -> Project:
    """Read the settings of the project at `path`, import its code, and draw its graph. Nothing runs.

    Who calls its functions first calls `imports.import_from`: they may import more of the project.

    Args:
        path: its directory.
        environment: variables over its settings.
        places: the directories that its modules are imported from; `imports.places_of` it unless given.

    Raises:
        BadSetting: `mainstem.toml` is missing or wrong.
        BadDeclaration: the code is; the message starts with its file and line.
    """
    directory = Path(path).resolve()
    where = directory / PROJECT_FILE
    settings = settings_from(environment, lambda variables: read_settings(where, variables), where=str(where))
    named = settings.project.jobs
    names = [named] if isinstance(named, str) else named
    files = [_file(directory, name, where) for name in names]
    with collecting() as declared:
        modules = import_files(directory, files, places or places_of(directory))
    jobs = _jobs_by_name(declared.jobs)
    topics = _topics_by_variable(modules, declared.topics, jobs)
    writers = _writers(jobs, topics)
    inputs = {name: _inputs(job, topics, jobs, writers) for name, job in jobs.items()}
    _check_settings(settings, jobs, where)
    return Project(
        name=settings.project.name or directory.name,
        directory=directory,
        jobs=jobs,
        inputs=inputs,
        topics=_specs(directory, settings, topics, jobs, inputs, writers, where),
        job_configs=settings.jobs,
        order=_order(jobs, inputs),
        modules=tuple(modules),
    )


def _file(directory: Path, name: str, where: Path) -> Path:
    path = Path(os.path.normpath(directory / name))  # a link stays one: what it leads to may lie anywhere
    if not path.is_relative_to(directory):
        raise BadSetting(
            f"{where}: expected jobs in the project's directory, found {path}",
            hint="move the file there, or put a link to it there",
        )
    if not path.is_file():
        raise BadSetting(
            f"{where}: expected jobs in {path}, found no such file",
            hint="make it, or name the files under [project]: jobs = [] where there are none",
        )
    return path


def _topics_by_variable(
    modules: Sequence[ModuleType], declared: Sequence[Topic], jobs: Mapping[str, Job]
) -> dict[str, Topic]:
    """Declared topics by the name of the variable that holds them, in any module of the project."""
    ids = {id(topic): topic for topic in declared}
    by_variable: dict[str, Topic] = {}
    for module in modules:
        for variable, value in vars(module).items():
            if id(value) in ids and isinstance(value, Topic):
                other = by_variable.setdefault(variable, value)
                if other != value:
                    raise BadDeclaration(value.location, f"{variable} is already a topic, declared at {other.location}")
    given = [topic for job in jobs.values() for topic in (*job.also, job.state)]
    held = {id(topic) for topic in [*by_variable.values(), *given]}
    for topic in declared:
        if id(topic) not in held:
            raise BadDeclaration(
                topic.location,
                f"topic {topic.name} is not assigned to a variable of its module, so no job can name it",
                hint=f'write: some_name = topic("{topic.name}")',
            )
    return by_variable


def _jobs_by_name(declared: Sequence[Job]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for job in declared:
        if job.name in jobs:
            raise BadDeclaration(job.location, f"job {job.name} is already declared at {jobs[job.name].location}")
        jobs[job.name] = job
    return jobs


def _inputs(
    job: Job, topics: Mapping[str, Topic], jobs: Mapping[str, Job], writers: Mapping[str, str]
) -> tuple[Input, ...]:
    inputs = []
    for parameter in job.parameters:
        if parameter in topics and parameter in jobs:
            raise BadDeclaration(
                job.location, f"{job.name}: parameter {parameter!r} is both a topic and a job: rename one of them"
            )
        if parameter in topics:
            declared = topics[parameter]
            writer = writers.get(declared.name)
            inputs.append(Input(parameter, declared.name, declared.kind, writer, declared.history))
        elif parameter in jobs:
            inputs.append(Input(parameter, jobs[parameter].to, jobs[parameter].kind, parameter))
        else:
            known = sorted([*topics, *jobs])
            close = difflib.get_close_matches(parameter, known, 1)
            raise BadDeclaration(
                job.location,
                f"{job.name}: parameter {parameter!r} is no declared topic and no job",
                hint=f"did you mean {close[0]!r}?" if close else f"declared are: {', '.join(known)}",
            )
    names = [each.topic for each in inputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadDeclaration(job.location, f"{job.name}: reads topic {twice} by two parameters; use one of them twice")
    if not any(each.kind == "stream" for each in inputs):
        raise BadDeclaration(
            job.location,
            f"{job.name}: expected at least one stream among its inputs, found only tables",
            hint="declare the topic with topic() to read every change as a record",
        )
    return tuple(inputs)


def _writers(jobs: Mapping[str, Job], topics: Mapping[str, Topic]) -> dict[str, str]:
    """The job that writes a topic, by the topic's name.

    Raises:
        BadDeclaration: a topic has two, or is declared as one that nobody of the project writes.
    """
    declared = {topic.name: topic for topic in topics.values()}
    writers: dict[str, str] = {}
    for job in jobs.values():
        for name in job.topics:
            if name in writers:
                other = jobs[writers[name]]
                raise BadDeclaration(
                    job.location, f"{job.name} writes to {name}, as {other.name} does ({other.location})"
                )
            writers[name] = job.name
        if job.to in declared:
            raise BadDeclaration(
                job.location,
                f"{job.name} writes to {job.to}, which is declared as an input at {declared[job.to].location}",
                hint=f"read it by naming a parameter {job.name!r}",
            )
    return writers


def _check_settings(settings: Settings, jobs: Mapping[str, Job], where: Path) -> None:
    for name in settings.jobs:
        if name not in jobs:
            close = difflib.get_close_matches(name, jobs, 1)
            raise BadSetting(
                f"{where}: [jobs.{name}]: there is no such job",
                hint=f"did you mean {close[0]!r}?" if close else f"declared are: {', '.join(sorted(jobs)) or 'none'}",
            )


def _order(jobs: Mapping[str, Job], inputs: Mapping[str, tuple[Input, ...]]) -> tuple[str, ...]:
    """Jobs, each after those it reads from."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise BadDeclaration(jobs[name].location, f"the jobs form a cycle: {circle}")
        if name in order:
            return
        path.append(name)
        for each in inputs[name]:
            if each.job is not None:
                visit(each.job)
        path.pop()
        order.append(name)

    for name in jobs:
        visit(name)
    return tuple(order)


def _specs(
    directory: Path,
    settings: Settings,
    topics: Mapping[str, Topic],
    jobs: Mapping[str, Job],
    inputs: Mapping[str, tuple[Input, ...]],
    writers: Mapping[str, str],
    where: Path,
) -> dict[str, TopicSpec]:
    """Every topic that the code or the settings name, with what both say of it."""
    # Of a table that is read both as of now and with its history, the history is what its topic has to keep.
    in_order = sorted(topics.values(), key=lambda topic: topic.history is not None)
    declared = {topic.name: topic for topic in in_order if topic.name not in writers}
    specs = {
        name: _spec(directory, name, settings.topics.get(name, TopicConfig()), declared.get(name), where)
        for name in dict.fromkeys((*settings.topics, *declared))
        if name not in writers
    }
    for job in (jobs[name] for name in _order(jobs, inputs)):
        for output in job.written:
            config = settings.topics.get(output.topic, TopicConfig())
            specs[output.topic] = _output_spec(job, output, config, inputs[job.name], specs, where)
    return specs


def _spec(directory: Path, name: str, config: TopicConfig, topic: Topic | None, where: Path) -> TopicSpec:
    table = f"{where}: [topics.{name}]"
    kind = _agreed(table, "kind", config.kind, topic.kind if topic else None)
    key = _agreed(table, "key", config.key_columns, topic.key if topic else ())
    event_time = _agreed(table, "event_time", config.event_time, topic.event_time if topic else None)
    schema = _agreed(table, "schema", config.schema, topic.schema if topic else None)
    file = None if schema is None else directory / schema
    if file is not None and not file.is_file():
        raise BadSetting(f"{table}: schema: no such file: {file}")
    return TopicSpec(
        name=name,
        kind=kind or "stream",
        key=key or (),
        event_time=event_time,
        schema_file=file,
        partitions=config.partitions or 1,
        config=(_kept_for_ever() if topic is not None and topic.history else {}) | config.config,
        producer=None,
    )


def _kept_for_ever() -> dict[str, str]:
    from mainstem.client.topics import STREAM_SETTINGS  # whoever declares needs no client

    return STREAM_SETTINGS


def _output_spec(
    job: Job,
    output: Output,
    config: TopicConfig,
    inputs: Sequence[Input],
    specs: Mapping[str, TopicSpec],
    where: Path,
) -> TopicSpec:
    table = f"{where}: [topics.{output.topic}]"
    first = next(each for each in inputs if each.kind == "stream")
    if config.schema is not None:
        raise BadSetting(f"{table}: schema: job {job.name} gives this topic its schema")
    return TopicSpec(
        name=output.topic,
        kind=_agreed(table, "kind", config.kind, output.kind) or output.kind,
        key=_agreed(table, "key", config.key_columns, output.key) or (),
        event_time=_agreed(table, "event_time", config.event_time, output.event_time),
        schema_file=None,
        partitions=config.partitions or specs[first.topic].partitions,
        config=config.config,
        producer=job.name,
    )


def _agreed(table: str, field: str, setting: Any, declared: Any) -> Any:
    """What the settings and the code say of one field, where both may be silent."""
    if setting and declared and setting != declared:
        raise BadSetting(f"{table}: {field} = {setting!r}, but the code declares {declared!r}")
    return setting or declared
