"""What `mainstem.toml` says of a project's topics and jobs, without its code."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from mainstem.core import is_topic_name
from mainstem.core.config import (
    PROJECT_FILE,
    BadSetting,
    check_interval,
    convert,
    named_tables,
    overlay_environment,
    read_toml,
)
from mainstem.process.declare import Kind

ON_DEMAND = "on demand"
JOBS = "jobs.py"


class ProjectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The project as a whole.

    Attributes:
        name: what `plan` and `status` call it; empty: the directory's name.
        jobs: the Python files with the jobs and topics, in the order they are read.
    """

    name: str = ""
    jobs: str | list[str] = JOBS


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[topics.<name>]`: what the topic is created with. The code may say the same of it, never the opposite.

    Attributes:
        partitions: 0: as many as the first input of the job that writes it, else 1.
        kind: a stream keeps every record; a changelog is compacted to the last record of each key. Absent: what the
            code declares, else a stream.
        key: the columns whose values make a record's key, and with it its partition. Absent: what the code declares,
            else none, and records go to any partition.
        event_time: the column that says when the event happened: late rows are counted by it, and sources say by it how
            far they are.
        schema: an Avro schema file of the project, registered for the topic's values.
        config: Kafka's own settings, as `"retention.ms" = "86400000"`.
    """

    partitions: Annotated[int, Meta(ge=0)] = 0
    kind: Kind | None = None
    key: str | list[str] | None = None
    event_time: str | None = None
    schema: str | None = None
    config: dict[str, str] = {}

    @property
    def key_columns(self) -> tuple[str, ...]:
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[jobs.<name>]`, a job of the code.

    Attributes:
        every: how often the job looks for new records; "on demand": it does not, and `mainstem job run` runs it over
            slices.
        version: another name builds the job anew, beside the old one; empty: those that were started go on, and where
            there is none, version 1 starts.
        max_offsets_per_trigger: most records of one batch, and with it of its transaction. As long as what is there
            fills one, the next begins at once, whatever `every` says.
        transaction_timeout_seconds: for writing one batch; readers wait so long for a dead driver's.
        batch_timeout_seconds: for a batch as a whole; then it is given up, and tried again as any that fails.
        tasks: that read, or write, at a time; each has a place of Spark until it ends, and one that hangs keeps it. 0:
            a third of the places, where Spark is local and the job shares it with others, otherwise one for each
            partition.
        state_partitions: in how many parts the job's state is kept; where that changes, the next start moves it.
        checkpoint_in_log: keep a copy of the job's checkpoint in the log, for `mainstem job restore` where its disk is
            lost. A job without state needs none.
        application: the Spark application that the job runs in, with those that name the same one; empty: the one that
            all others share. `[spark.applications.NAME]` has its settings.
        realtime_batch: of a job with `latency="realtime"`: how often what it has read is written down, for a restart,
            for its lag and for views that wait for it; 5 seconds or more. What was written since comes once more after
            a crash or a stop. Such a job has neither `every`, `max_offsets_per_trigger`, `batch_timeout_seconds`,
            `tasks` nor `checkpoint_in_log`.
        spark: settings of the job's Spark session.
    """

    every: str = "1 second"
    version: str = ""
    max_offsets_per_trigger: Annotated[int, Meta(ge=1)] = 100_000
    transaction_timeout_seconds: Annotated[int, Meta(ge=1, le=900)] = 60
    batch_timeout_seconds: Annotated[int, Meta(ge=1)] = 3600
    tasks: Annotated[int, Meta(ge=0)] = 0
    state_partitions: Annotated[int, Meta(ge=1)] = 4
    checkpoint_in_log: bool = False
    application: str = ""
    realtime_batch: str = "30 seconds"
    spark: dict[str, str] = {}

    @property
    def on_demand(self) -> bool:
        return self.every == ON_DEMAND

    def __post_init__(self) -> None:
        if not self.on_demand:
            check_interval(self.every)
        check_interval(self.realtime_batch)
        if self.version and not is_topic_name(self.version):  # a part of the output's name, and of a directory's
            raise ValueError(f"expected letters, digits, '.', '_' and '-' in a version, found {self.version!r}")
        if self.application and not is_topic_name(self.application):  # a part of a directory's name
            raise ValueError(
                f"expected letters, digits, '.', '_' and '-' in an application, found {self.application!r}"
            )


class Settings(msgspec.Struct, frozen=True):
    """The tables that this room reads; others belong to other rooms and are checked there."""

    project: ProjectConfig = ProjectConfig()
    topics: dict[str, TopicConfig] = {}
    jobs: dict[str, JobConfig] = {}


def read_settings(where: Path, environment: Mapping[str, str]) -> Settings:
    """The tables of the file at `where`, with the variables of `environment` over them.

    Raises:
        BadSetting: it is missing or wrong.
    """
    tree = overlay_environment(read_toml(where), environment)
    topics, jobs = (named_tables(tree, table, where=where) for table in ("topics", "jobs"))
    for name in topics:
        if not is_topic_name(name):
            raise BadSetting(f"{where}: [topics.{name}]: expected letters, digits, '.', '_' and '-' in a topic's name")
    return Settings(
        convert(tree.get("project", {}), ProjectConfig, where=f"{where}: [project]"),
        {name: convert(each, TopicConfig, where=f"{where}: [topics.{name}]") for name, each in topics.items()},
        {name: convert(each, JobConfig, where=f"{where}: [jobs.{name}]") for name, each in jobs.items()},
    )


def project_name(path: Path, *, environment: Mapping[str, str] = os.environ) -> str:
    """What `plan` and `status` call the project at `path`; its directory's name where its settings cannot be read."""
    directory = path.resolve()
    try:
        return read_settings(directory / PROJECT_FILE, environment).project.name or directory.name
    except BadSetting:
        return directory.name


def load_job_configs(path: Path, *, environment: Mapping[str, str] = os.environ) -> dict[str, JobConfig]:
    """The `[jobs]` of the project at `path`, without its code.

    Raises:
        BadSetting: `mainstem.toml` is missing or wrong.
    """
    return read_settings(path.resolve() / PROJECT_FILE, environment).jobs
