"""The jobs of one version of a project's code: on a driver, once that code can be loaded.

Code that ran before may not load today: a package that it alone used was uninstalled, a file of its copy was changed.
Its jobs are told as failed then, and tried again; all else goes on, since the cure (`mainstem job retire`) needs a log
that runs. Only code with a job that has never run stops the start: somebody has just written it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.client.internal import job_key
from mainstem.core import Clock, CorruptData, MainstemError, SystemClock, UserError
from mainstem.core.config import BadSetting
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.core.task import TaskState
from mainstem.process.frozen import Version, load_version, open_version, version_directory
from mainstem.process.project import Project
from mainstem.process.project_config import JobConfig, project_name
from mainstem.process.retries import Retries
from mainstem.process.versions import (
    application_of,
    asked_versions,
    is_bound,
    is_retired,
    is_running,
    jobs_of,
    run_alone,
)

if TYPE_CHECKING:
    from mainstem.process.run import JobDriver

log = get_logger()

_LOOK_EVERY_SECONDS = 1.0


class CodeLost(UserError):
    """Frozen code that ran before cannot run any more."""


class FrozenJobs:
    """`load`, then `start`, then `step` now and then from one thread, then `stop`.

    Args:
        data: of the project; it has the frozen code.
        code: hash of the frozen code.
        jobs: (name, version) of those to run.
        project: where the project is now; where it was frozen unless given.
        application: that they run in; what is asked for later is taken on if it runs there too.
        settings: gives `[jobs]` of the project as it is now.
        clock: what the pauses between two tries to load the code are measured with.
    """

    def __init__(
        self,
        data: Path,
        code: str,
        jobs: Sequence[tuple[str, str]],
        *,
        project: Path | None = None,
        application: str = "",
        settings: Callable[[], Mapping[str, JobConfig]] = dict,
        clock: Clock | None = None,
    ) -> None:
        self.driver: JobDriver | None = None
        self._data, self._code = data, code
        self._application, self._settings = application, settings
        # A driver that is started again also has what it was given since its first start. Where the settings have given
        # a job to another application since, it may run there: who has it keeps it.
        own = (job for job in self._mine(jobs_of(data, code)) if not is_running(data, *job))
        self.jobs = tuple(dict.fromkeys([*jobs, *own]))
        self._alone: dict[tuple[str, str], DirectoryLock] = {}
        self._next_look = 0.0
        self._project = project
        self._clock = clock or SystemClock()
        self._retries = Retries(self._clock)
        self._loaded: tuple[Version, Project] | None = None
        self._make: Callable[[Version, Project], JobDriver] | None = None

    @property
    def name(self) -> str:
        """Of the project when it was frozen."""
        return self._loaded[1].name if self._loaded else project_name(version_directory(self._data, self._code))

    def load(self) -> None:
        """Load the code; where it ran before and cannot be loaded, `states` says so.

        Raises:
            BadDeclaration, BadSetting, CorruptData: it cannot be loaded, and a job of it has never run.
            CodeLost: it does not have a job that has never run.
            DirectoryInUse: another process runs one of the jobs.
        """
        self._hold()
        try:
            version = open_version(self._data, self._code, self._project)
            project = load_version(version)
            if absent := [name for name, _ in self.jobs if name not in project.jobs]:
                raise CodeLost(
                    f"{version.directory}: expected job {absent[0]}, found {', '.join(project.jobs) or 'none'}",
                    hint="the project was edited while it started, or MAINSTEM_PROJECT__JOBS names other files now",
                )
            self._loaded = version, project
        except MainstemError as error:
            if self._is_new():
                self._let_go()
                raise
            self._fail(error)

    def start(self, make: Callable[[Version, Project], "JobDriver"]) -> None:
        """Start the jobs on the driver that `make` gives, if their code is loaded; otherwise `step` does once it is.

        Raises:
            UserError: a job that has never run cannot run.
        """
        self._make = make
        if self._loaded is None:
            return
        self.driver = make(*self._loaded)
        try:
            self.driver.start()
        except UserError as error:
            if self._is_new():
                raise
            self.driver.stop()
            self.driver = self._loaded = None
            self._fail(error)

    def step(self) -> None:
        """See after the jobs, or try again to load their code; take on versions that were asked for since."""
        if self._clock.monotonic() >= self._next_look:
            self._take_on()
            self._next_look = self._clock.monotonic() + _LOOK_EVERY_SECONDS
        if self.driver is not None:
            self.driver.step()
        elif self._make is not None and self._left() and all(map(self._retries.is_due, self._left())):
            self.load()
            self.start(self._make)

    def stop(self) -> None:
        """Stop the jobs in order."""
        if self.driver is not None:
            self.driver.stop()
        self._let_go()

    @property
    def states(self) -> list[TaskState]:
        """How each job is."""
        if self.driver is None:
            return [self._retries.failed[key] for key in self._left()]
        return job_states(self.driver)

    def __str__(self) -> str:
        if self.driver is None:
            return f"no job running, {len(self._left())} failed"
        failed = sum(1 for key in self.driver.waiting if key in self.driver.retries.failed)
        waiting = len(self.driver.waiting) - failed
        text = f"{len(self.driver.running)} jobs running, {waiting} waiting for their inputs"
        return f"{text}, {failed} failed" if failed else text

    def _mine(self, jobs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those of some jobs that run in this application."""
        found = list(jobs)
        settings = self._settings() if found else {}
        return [job for job in found if application_of(settings, job[0]) == self._application]

    def _hold(self) -> None:
        try:
            for job in self.jobs:
                if job not in self._alone and not is_retired(self._data, *job):
                    self._alone[job] = run_alone(self._data, *job)
        except DirectoryInUse:
            self._let_go()
            raise

    def _take(self, job: tuple[str, str]) -> bool:
        """Whether nobody else runs a version: an application that was asked for it before the settings were edited has
        it, and goes on with it.
        """
        try:
            self._alone[job] = run_alone(self._data, *job)
        except DirectoryInUse:
            return False
        return True

    def _let_go(self) -> None:
        for lock in self._alone.values():
            lock.release()
        self._alone.clear()

    def _take_on(self) -> None:
        try:
            asked = [(each.job, each.version) for each in asked_versions(self._data) if each.sha == self._code]
            new = [each for each in self._mine(each for each in asked if each not in self.jobs) if self._take(each)]
        except (BadSetting, CorruptData) as error:  # a file of another job, maybe: `up` says so at its next start
            log.warning("asked_versions_unreadable", reason=str(error))
            return
        if not new:
            return
        self.jobs += tuple(new)
        log.info("jobs_taken_on", jobs=[job_key(*each) for each in new])
        if self.driver is not None:
            self.driver.take_on(new)

    def _left(self) -> list[str]:
        """Those that were not retired meanwhile, as `<job>@<version>`."""
        return [job_key(*job) for job in self.jobs if not is_retired(self._data, *job)]

    def _is_new(self) -> bool:
        """Whether a job of it has never run, and was not asked for: somebody has just written it."""
        return not all(is_bound(self._data, *job) for job in self.jobs)

    def _fail(self, error: MainstemError) -> None:
        mend = error.hint or "bring back what it needs"
        for name, version in self.jobs:
            hint = f"{mend}; where the project asks for another version by now, `mainstem job retire {name} {version}` "
            lost = CodeLost(f"its frozen code {self._code} cannot run: {error}", hint=f"{hint}stops this one for good")
            failure = self._retries.fail(job_key(name, version), lost)
            log.error("job_failed", job=job_key(name, version), reason=failure.error, hint=failure.hint)


def job_states(driver: "JobDriver") -> list[TaskState]:
    """How each job of a driver is. One that waits for its input is as it should be."""
    failed = driver.retries.failed
    running = driver.running.items()
    found = [TaskState(f"job {key}", figures=job.figures()) for key, job in running if key not in failed]
    found += failed.values()
    idle = driver.waiting.keys() - failed.keys()
    return found + [TaskState(f"job {key}", "idle", error=driver.waiting[key]) for key in sorted(idle)]
