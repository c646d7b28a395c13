"""What a job needs before it runs: inputs that are there, outputs of its own, and what its version keeps for life."""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries, users_of
from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.client.progress import read_marker
from mainstem.client.topics import TopicDescription, end_offsets, list_topics
from mainstem.client.writer import read_source
from mainstem.core import UserError
from mainstem.process.analysis import Analysis, analyse, recall, remember
from mainstem.process.another_version import start_another
from mainstem.process.frozen import Version
from mainstem.process.identity import lost_input, lost_output, used_topics
from mainstem.process.installed import write_lock
from mainstem.process.job_spec import JobSpec
from mainstem.process.outputs import JobOutput
from mainstem.process.project import Input, Project
from mainstem.process.project_config import JobConfig
from mainstem.process.realtime_rules import check_settings
from mainstem.process.session import job_session
from mainstem.process.tables import table_type
from mainstem.process.topics import create_topic
from mainstem.process.versions import Fixed, is_retired, output_topic, read_fixed, version_of, write_fixed, writer_of
from mainstem.registry.client import Registry
from mainstem.registry.errors import NotFound
from mainstem.registry.spark import TopicSchema, avro_schema, row_type, subject_of, topic_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class InputMissing(UserError):
    """A job cannot start yet: an input has no topic or no schema."""


class OutputUnwritten(UserError):
    """A job reads another one by its name, and with it the topic of a version that does not run."""


class SchemaLost(UserError):
    """A version was started with a schema that the registry does not have."""


class OutputTaken(UserError):
    """A version that has never run would write into a topic that another one writes."""


class Preparer:
    """Prepares the jobs of `project`, whose code is frozen as `version`.

    Args:
        spark: the root session.
        project: loaded from the version's directory.
        version: its frozen code.
        connection: the log.
        registry: of the schemas.
        data: where jobs keep their checkpoints.
        settings: `[jobs]` of the project as it is now.
    """

    def __init__(
        self,
        spark: "SparkSession",
        project: Project,
        version: Version,
        connection: Connection,
        registry: Registry,
        data: Path,
        settings: Mapping[str, JobConfig],
    ) -> None:
        self._spark = spark
        self._project = project
        self._version = version
        self._connection = connection
        self._registry = registry
        self._data = data
        self._settings = settings

    def prepare(self, name: str, config: JobConfig) -> JobSpec:
        """Everything that job `name` needs to run; its output topic and schema exist on return.

        Raises:
            InputMissing: an input has no topic or no schema yet.
            BadDeclaration: the job cannot run at all.
            BadSetting: the log refuses what the project says of the output.
            OutputTaken: somebody else writes it.
            TopicLost: what it has written was deleted, or an input that it has read.
            OutputUnwritten: an input is of a version that does not run, and is not there.
        """
        project, connection = self._project, self._connection
        job, inputs = project.jobs[name], project.inputs[name]
        check_settings(job, config)
        topics = list_topics(connection)
        home = self._data / "jobs" / job_key(name, config.version)
        fixed = read_fixed(home)
        _check_fixed(fixed, config, self._version, name)
        outputs = {output_topic(each, config.version): each for each in job.topics}
        if fixed is None:
            for output in outputs:
                self._check_output(job_key(name, config.version), output, exists=output in topics)
        else:
            streams = {each.topic for each in inputs if each.kind == "stream"}
            self._check_lost(fixed, (outputs.keys() | streams) - topics.keys())
        for each in inputs:
            missing = (
                nobody_writes(each, self._project, self._settings, self._data) if each.topic not in topics else None
            )
            if missing is not None:
                raise missing
        schemas = {each.parameter: _schema(self._registry, each, topics, fixed) for each in inputs}
        _check_sources(connection, inputs, topics)  # after the schemas: a source writes the catalog, then its schemas
        analysis = self._analysis(name, config, schemas, fixed)
        # Before anything is fixed: what the log refuses here is mended in the settings, and they are part of the code.
        origin = Path(self._version.manifest.origin)
        created = {
            output: create_topic(connection, project.topics[declared], origin, output)
            for output, declared in outputs.items()
        }
        if fixed is None:
            fixed = self._new_fixed(name, config, schemas, analysis)
        return JobSpec(
            job=job,
            inputs=inputs,
            config=config,
            fixed=fixed,
            schemas=schemas,
            analysis=analysis,
            outputs=tuple(
                JobOutput(
                    declared=declared,
                    topic=output,
                    kind=project.topics[declared.topic].kind,
                    partitions=created[output].partitions,
                    schema_id=schema_id,
                    schema=self._registry.schema(schema_id),
                )
                for declared, (output, schema_id) in zip(job.written, fixed.outputs.items(), strict=True)
            ),
            partitions={each.topic: topics[each.topic].partitions for each in inputs},
            version=self._version,
            home=home,
        )

    def fix(self, spec: JobSpec) -> None:
        """Write down what a version that has not started before keeps for life.

        Raises:
            OutputTaken: since it was prepared, somebody else writes its output.
        """
        if self.is_fixed(spec.key):
            return
        for output in spec.fixed.outputs:
            self._check_output(spec.key, output, exists=False)
        write_lock(spec.home)
        write_fixed(spec.home, spec.fixed)

    def is_fixed(self, key: str) -> bool:
        """Whether `<job>@<version>` has started before, with this code or another one."""
        return read_fixed(self._data / "jobs" / key) is not None

    def _check_output(self, key: str, output: str, *, exists: bool) -> None:
        """Refuse to be a second writer: every row would be there twice, and the books balance all the same.

        It stops this job alone, not the start: `job retire` needs a log that runs.
        """
        other = writer_of(self._data, output)
        if other is not None:
            raise OutputTaken(
                f"topic {output}: job {job_key(other.job, other.version)} writes it, with its frozen code {other.sha}",
                hint=f"`mainstem job retire {other.job} {other.version}` stops that one for good; what it wrote stays, "
                "and this one begins at the start of its inputs: for a topic of its own give it another `to`",
            )
        writers = users_of(read_catalog(self._connection), output)[0] if exists else []
        if foreign := [each for each in writers if each != f"job {key}"]:
            elsewhere = ", which was started from another data directory" if foreign[0].startswith("job ") else ""
            raise OutputTaken(
                f"topic {output}: {foreign[0]} writes it{elsewhere}",
                hint=f"give this job another `to`; where nothing writes it any more, `mainstem topic delete {output}`",
            )

    def _check_lost(self, fixed: Fixed, missing: Set[str]) -> None:
        """See that a version has used no topic that is not there: an output would be made anew, without its rows, and
        for an input the version would wait, and be refused once it is there.
        """
        marker = read_marker(self._connection, fixed.job, fixed.version, decided=True) if missing else None
        lost = missing & used_topics(marker) if marker is not None else set()
        if gone := next((output for output in fixed.outputs if output in lost), None):
            raise lost_output(fixed.job, gone)
        if lost:
            raise lost_input(fixed.job, min(lost))

    def _analysis(
        self, name: str, config: JobConfig, schemas: Mapping[str, TopicSchema], fixed: Fixed | None
    ) -> Analysis:
        """As remembered from the first start of the version, where the settings are the same."""
        found = None if fixed is None else recall(fixed.analysis, config.spark)
        if found is not None:
            return found
        project, inputs = self._project, self._project.inputs[name]
        session = job_session(self._spark, name, config)
        types = {each.parameter: input_type(session, each, schemas[each.parameter]) for each in inputs}
        event_times = {each.parameter: project.topics[each.topic].event_time for each in inputs}
        return analyse(session, project.jobs[name], inputs, types, event_times, project.directory)

    def _new_fixed(self, name: str, config: JobConfig, schemas: Mapping[str, TopicSchema], analysis: Analysis) -> Fixed:
        """What stays for the life of this version; the schemas of its outputs are registered on return."""
        job = self._project.jobs[name]
        written = {}
        for each, result in zip(job.written, analysis.results, strict=True):
            output = output_topic(each.topic, config.version)
            schema = avro_schema(result.columns, output, required=each.key if each.kind == "changelog" else ())
            written[output] = self._registry.register(subject_of(output), schema)
        (output, schema_id), *also = written.items()
        return Fixed(
            job=name,
            version=config.version,
            sha=self._version.sha,
            readers={parameter: each.reader_id for parameter, each in schemas.items()},
            output=output,
            output_schema=schema_id,
            state_partitions=config.state_partitions,
            analysis=remember(analysis, config.spark),
            also=dict(also),
            realtime=job.is_realtime,
        )


def nobody_writes(
    each: Input, project: Project, settings: Mapping[str, JobConfig], data: Path
) -> OutputUnwritten | None:
    """Why nothing comes for an input; None where it is not the output of a job, or a version of that job writes it.

    Args:
        each: the input; by the name of a job it is the topic of its version 1.
        project: whose input it is.
        settings: its `[jobs]` as they are now.
        data: where versions are kept.
    """
    if each.job is None:
        return None
    version = version_of(data, each.job, settings.get(each.job, JobConfig()))
    if version == "1" or writer_of(data, each.topic) is not None:
        return None
    output = output_topic(each.topic, version)
    partitions = project.topics[each.topic].partitions
    hint = f'declare topic("{output}") in the code, with partitions = {partitions} under [topics."{output}"], and read that'
    if not is_retired(data, each.job, "1"):
        hint += f', or set version = "1" under [jobs.{each.job}]'
    error = f"topic {each.topic} is that of {job_key(each.job, '1')}, which does not run; {job_key(each.job, version)} writes {output}"
    return OutputUnwritten(error, hint=hint)


def input_type(spark: "SparkSession", each: Input, schema: TopicSchema) -> "StructType":
    """The columns that a job's parameter has, without `_position`."""
    row = row_type(spark, schema)
    return table_type(row, schema, each.history) if each.kind == "changelog" else row


def _check_sources(connection: Connection, inputs: tuple[Input, ...], topics: dict[str, TopicDescription]) -> None:
    """A table that a database source feeds is there once its snapshot is taken, which becomes visible as a whole.

    Before that it looks empty, and rows joined with it would be without what they are joined for. A table that somebody
    else feeds may well be empty.
    """
    for each in inputs:
        if each.kind == "changelog" and each.job is None and each.topic in topics:
            if any(end_offsets(connection, each.topic, committed=True).values()):
                continue
            catalog = read_catalog(connection)
            producer = topic_entries(catalog).get(each.topic, TopicEntry()).producer or ""
            if catalog.get(producer, {}).get("type") != "postgres":
                continue
            source = read_source(connection, producer.partition(":")[2])
            if source is None or source.position.get("state") == "snapshot":
                raise InputMissing(f"table {each.topic} has no rows yet: its source has not taken its snapshot")


def _check_fixed(fixed: Fixed | None, config: JobConfig, version: Version, name: str) -> None:
    if fixed is None:
        return
    if fixed.sha != version.sha:
        raise UserError(
            f"job {name}@{config.version} runs from the sources {fixed.sha}, these are {version.sha}",
            hint=start_another(name, is_edited=True),
        )


def _schema(registry: Registry, each: Input, topics: dict[str, TopicDescription], fixed: Fixed | None) -> TopicSchema:
    if each.topic not in topics:
        raise InputMissing(f"topic {each.topic} does not exist yet")
    reader_id = fixed.readers.get(each.parameter) if fixed else None
    try:
        return topic_schema(registry, each.topic, reader_id=reader_id)
    except NotFound:
        if fixed is not None and reader_id is not None and not _knows(registry, reader_id):
            raise SchemaLost(
                f"topic {each.topic}: schema id {reader_id}, in whose shape this version reads it, is not registered",
                hint=f"`_schemas` was deleted or this is another log: bring it back, or {start_another(fixed.job)}",
            ) from None
        raise InputMissing(f"topic {each.topic} has no schema yet") from None


def _knows(registry: Registry, schema_id: int) -> bool:
    try:
        registry.schema(schema_id)
    except NotFound:
        return False
    return True
