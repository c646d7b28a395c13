"""The driver: one process that runs all jobs of one version of a project's code.

Jobs start as soon as their inputs exist and have schemas. One that fails is told and tried again by itself, the others
go on. Only a job that has never run and cannot run stops the start: somebody has just written it.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.client.topics import ensure_internal_topics, list_topics
from mainstem.core import Clock, MainstemError, SystemClock, UserError
from mainstem.core.causes import one_line
from mainstem.core.logging import get_logger
from mainstem.process.announce import announce
from mainstem.process.batch_job import BatchJob
from mainstem.process.culprit import FailedBatch
from mainstem.process.declare import BadDeclaration
from mainstem.process.diagnosis import JobFailed
from mainstem.process.frozen import Version
from mainstem.process.heartbeats import Follower
from mainstem.process.imports import ship
from mainstem.process.job import RunningJob
from mainstem.process.job_spec import JobSpec
from mainstem.process.landing import Lander
from mainstem.process.prepare import InputMissing, Preparer
from mainstem.process.project import Project
from mainstem.process.project_config import JobConfig
from mainstem.process.realtime import RealtimeJob
from mainstem.process.realtime_rules import without_realtime
from mainstem.process.retries import Retries
from mainstem.process.session import is_local
from mainstem.process.task_slots import check_tasks, most_tasks, room_of, tasks_of
from mainstem.process.topics import create_topic, register_schema
from mainstem.process.versions import is_bound, is_retired, read_fixed, version_of
from mainstem.registry.client import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger()

_START_EVERY_SECONDS = 1.0
_STARTS_AT_ONCE = 8
_HANGS = "its function hangs in the driver, and is tried again once it returns, or when `mainstem up` is started again"


class JobDriver:
    """Runs jobs of `project`, whose code is frozen as `version`.
    One that is retired meanwhile is stopped, the others go on.

    `start`, then `step` now and then from one thread. `stop` stops all in order. `running`, `waiting` (for an input, or
    to be tried again) and `retries.failed` are by `<job>@<version>`.

    Args:
        spark: the root session.
        project: loaded from the version's directory.
        version: its frozen code.
        connection: the log.
        registry: of the schemas.
        data: where jobs keep their checkpoints.
        jobs: (name, version) of those to run; all of the project unless given.
        settings: `[jobs]` of the project as it is now; those that were frozen unless given.
    """

    def __init__(
        self,
        spark: "SparkSession",
        project: Project,
        version: Version,
        connection: Connection,
        registry: Registry,
        data: Path,
        *,
        jobs: Sequence[tuple[str, str]] | None = None,
        settings: Mapping[str, JobConfig] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.running: dict[str, RunningJob] = {}
        self.waiting: dict[str, str] = {}
        self.retries = Retries(clock or SystemClock())
        self._spark = spark
        self._project = project
        self._version = version
        self._connection = connection
        self._registry = registry
        self._data = data
        self._settings = settings or project.job_configs
        self._jobs = _asked_of(project, self._settings, data) if jobs is None else list(jobs)
        self._configs = _configs(project, self._settings, self._jobs, data)
        self._preparer = Preparer(spark, project, version, connection, registry, data, self._settings)
        self._landers: dict[str, Lander] = {}
        self._failed_batches: dict[str, FailedBatch] = {}
        self._hanging: dict[str, RunningJob] = {}  # stopped, and their functions have not returned yet
        self.heartbeats = Follower(connection)
        self._next_start = 0.0

    def start(self) -> None:
        """Create what the project's own code can create, and start the jobs whose inputs are there.

        Raises:
            BadDeclaration: a job that has never run cannot run at all; with the user's file and line.
        """
        ship(self._project.modules)
        ensure_internal_topics(self._connection)
        self.heartbeats.start()
        self._create_declared()
        self.waiting = dict.fromkeys(self._configs, "")
        self._start_waiting(first=True)

    def bind(self, name: str) -> JobSpec:
        """Bind a version that runs slice by slice to this code, without running it; its outputs and their schemas exist
        on return, and the catalog knows of them.

        Raises:
            InputMissing, BadDeclaration, BadSetting, OutputTaken, TopicLost: it cannot run.
        """
        ship(self._project.modules)
        ensure_internal_topics(self._connection)
        self._create_declared()
        name, config = next(each for each in self._configs.values() if each[0] == name)
        spec = self._preparer.prepare(name, config)
        without_realtime([(spec.key, spec.job.is_realtime)], "expected a job that is run over slices")
        if not self._preparer.is_fixed(spec.key):
            spec = msgspec.structs.replace(spec, fixed=msgspec.structs.replace(spec.fixed, sliced=True))
            self._preparer.fix(spec)
        elif not spec.fixed.sliced:
            raise UserError(
                f"job {spec.key} runs by itself: what it has read it would read again",
                hint="--version names another version, which has an output of its own",
            )
        announce(self._connection, self._data, [spec])
        return spec

    def take_on(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Run these versions too: `step` starts them. The others go on meanwhile."""
        self._jobs += jobs
        self._configs = _configs(self._project, self._settings, self._jobs, self._data)
        self.waiting |= dict.fromkeys((job_key(*each) for each in jobs), "")

    def step(self) -> None:
        """Start what can start, see that all run, pass on news of idle inputs."""
        if self.waiting and time.monotonic() >= self._next_start:
            self._start_waiting()
        for key, job in list(self.running.items()):
            if self._is_retired(key):
                self._stop_job(key)
                log.info("job_retired", job=key)
                continue
            try:
                if self._lander(key).step(job):  # it is held at a position that somebody compares it at
                    continue
                job.check()
                job.beat()
            except Exception as error:
                self._fail(key, error)
            else:
                self.retries.see(key, works=job.has_worked)
        for key, reason in self.waiting.items():
            if reason:  # one that has just been started answers when it runs
                self._lander(key).refuse(reason)

    def run(self, stop: threading.Event, *, every_seconds: float = 0.25) -> None:
        """Until `stop` is set."""
        self.start()
        try:
            while not stop.wait(every_seconds):
                self.step()
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the jobs, those that read from others first."""
        for key in reversed(self._configs):
            if key in self.running:
                self._stop_job(key)
        self.heartbeats.stop()

    def _lander(self, key: str) -> Lander:
        if key not in self._landers:
            self._landers[key] = Lander(self._data, self._data / "jobs" / key)
        return self._landers[key]

    def _stop_job(self, key: str) -> None:
        job = self.running.pop(key)
        try:
            job.stop()
        except Exception as error:
            log.warning("job_not_stopped", job=key, reason=str(error))
            if job.goes_on:
                self._hanging[key] = job

    def _fail(self, key: str, error: Exception) -> None:
        """Stop what is left of the job, and tell of it; `_start_waiting` tries it again."""
        if key in self.running:
            self._stop_job(key)
        told = self._told(key, error)
        if isinstance(error, JobFailed) and error.batch is not None:
            self._failed_batches[key] = error.batch
            name, _ = self._configs[key]
            told.hint = told.hint or f"`mainstem job show {name}` shows what it read then"
        if key in self._hanging:
            told.hint = f"{_HANGS}; {told.hint}" if told.hint else _HANGS
        failure = self.retries.fail(key, told)
        self.waiting[key] = failure.error
        log.error(
            "job_failed", job=key, reason=failure.error, hint=failure.hint, retry_in_seconds=failure.retry_seconds
        )

    def _is_retired(self, key: str) -> bool:
        name, config = self._configs[key]
        return is_retired(self._data, name, config.version)

    def _create_declared(self) -> None:
        """Topics whose schema the project itself brings: nobody has to send anything first."""
        existing = list_topics(self._connection)
        for spec in self._project.topics.values():
            if spec.producer is None and spec.schema_file is not None:
                origin = Path(self._version.manifest.origin)
                register_schema(self._registry, self._project, spec, origin)
                if spec.name not in existing:
                    create_topic(self._connection, spec, origin)

    def _start_waiting(self, *, first: bool = False) -> None:
        """Prepare what can start, one after the other, as a job's output is the next one's input; then start it, side
        by side: each waits for the log and for Spark in turn.

        Only `first` may raise for a job that cannot run: later, others would stop with it. It raises before any is
        bound to this code, which has to be mended.
        """
        specs = [spec for key in list(self.waiting) if (spec := self._try_prepare(key, first=first)) is not None]
        ready: list[RunningJob] = []
        bound: list[JobSpec] = []
        for spec in specs:
            bound += [spec] if self._try_bind(spec, bound) else []
        for spec in self._announced(bound):
            del self.waiting[spec.key]
            if self._is_retired(spec.key):  # since it was prepared: `retire` has fenced what could still write
                self.retries.forget(spec.key)
                continue
            job = self.running[spec.key] = self._job(spec)
            ready.append(job)
        if ready:
            self._start_together(ready)
        self._next_start = time.monotonic() + _START_EVERY_SECONDS

    def _job(self, spec: JobSpec) -> RunningJob:
        if spec.job.is_realtime:
            return RealtimeJob(spec, self._spark, self._connection, self._registry, self.heartbeats)
        spec = msgspec.structs.replace(spec, most_tasks=most_tasks(spec.config, self._shared_room()))
        failed = self._failed_batches.get(spec.key)
        return BatchJob(spec, self._spark, self._connection, self._registry, self.heartbeats, failed)

    def _shared_room(self) -> int | None:
        """For how many tasks a local Spark has room that is shared by several jobs."""
        is_shared = len(self._configs) > 1 and is_local(str(self._spark.sparkContext.master))
        return room_of(self._spark) if is_shared else None

    def _try_prepare(self, key: str, *, first: bool) -> JobSpec | None:
        """What a waiting job needs to run, if it can run now; otherwise `waiting` and `retries` say why not."""
        if self._is_retired(key):
            del self.waiting[key]
            self.retries.forget(key)
            return None
        if not self.retries.is_due(key) or self._hangs(key):
            return None
        try:
            return self._preparer.prepare(*self._configs[key])
        except InputMissing as reason:
            if self.waiting[key] != str(reason):
                log.info("job_waiting", job=key, reason=str(reason))
            self.waiting[key] = str(reason)
        except Exception as error:
            if first and isinstance(error, BadDeclaration) and not self._is_bound(key):
                raise self._in_project(error) from error
            self._fail(key, error)
        return None

    def _hangs(self, key: str) -> bool:
        """Whether the version's function has still not returned since it was stopped."""
        if key in self._hanging and not self._hanging[key].goes_on:
            del self._hanging[key]
        return key in self._hanging

    def _start_together(self, jobs: Sequence[RunningJob]) -> None:
        """Side by side: each waits for the log and for Spark in turn."""
        with ThreadPoolExecutor(min(len(jobs), _STARTS_AT_ONCE)) as threads:
            started = {job.spec.key: threads.submit(job.start) for job in jobs}
        for key, each in started.items():
            self.retries.start(key)
            try:
                each.result()
            except Exception as error:
                self._fail(key, error)

    def _try_bind(self, spec: JobSpec, beside: Sequence[JobSpec]) -> bool:
        """Write down what a version that starts for the first time keeps for life; where another one that was prepared
        with it writes its output, or it has no room beside those that run and start, `waiting` and `retries` say so.
        """
        try:
            if spec.job.is_realtime:
                others = [*(job.spec for job in self.running.values()), *beside, spec]
                tasks = {each.key: tasks_of(each.partitions, each.streams) for each in others if each.job.is_realtime}
                check_tasks(spec.key, tasks, room_of(self._spark))
            self._preparer.fix(spec)
        except Exception as error:
            self._fail(spec.key, error)
            return False
        return True

    def _announced(self, specs: list[JobSpec]) -> list[JobSpec]:
        """The same, once the catalog knows of them; none where it cannot be told: all are tried again."""
        try:
            if specs:
                announce(self._connection, self._data, specs)
        except Exception as error:
            for spec in specs:
                self._fail(spec.key, error)
            return []
        return specs

    def _is_bound(self, key: str) -> bool:
        name, config = self._configs[key]
        return is_bound(self._data, name, config.version)

    def _told(self, key: str, error: Exception) -> MainstemError:
        """An error as people are told of it; one that nobody has foreseen is logged with its stack."""
        if isinstance(error, BadDeclaration):
            return self._in_project(error)
        if isinstance(error, MainstemError):
            return error
        log.error("job_failed_unforeseen", job=key, exc_info=error)
        return JobFailed(None, one_line(error))

    def _in_project(self, error: BadDeclaration) -> BadDeclaration:
        if isinstance(error.location, str):
            return error
        return BadDeclaration(self._version.in_project(error.location), error.reason, hint=error.hint)


def _asked_of(project: Project, settings: Mapping[str, JobConfig], data: Path) -> list[tuple[str, str]]:
    """All jobs of a project, in the versions that it means."""
    return [(name, version_of(data, name, settings.get(name, JobConfig()))) for name in project.order]


def _configs(
    project: Project, settings: Mapping[str, JobConfig], jobs: Sequence[tuple[str, str]], data: Path
) -> dict[str, tuple[str, JobConfig]]:
    """Name and settings by `<job>@<version>`, each after those it reads from."""
    return {
        job_key(name, version): (name, _config(settings.get(name), version, data, name))
        for name, version in sorted(jobs, key=lambda job: project.order.index(job[0]))
    }


def _config(config: JobConfig | None, version: str, data: Path, name: str) -> JobConfig:
    """The settings for a version of a job. What is fixed for the life of a version holds where they name another one,
    or nothing: a job that goes on though the project has it no more has no settings.
    """
    is_other = config is None or version != version_of(data, name, config)
    fixed = read_fixed(data / "jobs" / job_key(name, version)) if is_other else None
    config = config or JobConfig()
    partitions = fixed.state_partitions if fixed is not None else config.state_partitions
    return msgspec.structs.replace(config, version=version, state_partitions=partitions)
