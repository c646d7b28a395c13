"""Which versions of its jobs a project has: each runs from the code that it was started with, until it is retired.

    <data>/jobs/<job>@<version>/job.json   what it was first started with, for life
    <data>/jobs/<job>@<version>/asked.json from which code it is to be started, by the `up` that runs or the next
    <data>/jobs/<job>@<version>/retired    it never runs again
    <data>/jobs/<job>@<version>/running    locked by the process that runs it

The code itself, and how it is frozen: `frozen`.
"""

import glob
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.internal import job_key
from mainstem.core import Clock, CorruptData, UserError
from mainstem.core.config import PROJECT_FILE
from mainstem.core.files import make_directory, write_atomically
from mainstem.core.locks import DirectoryInUse, DirectoryLock, is_held
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.process.another_version import instead_of_retired
from mainstem.process.frozen import Comparison, Version, changed_since, check_whole, freeze, version_directory
from mainstem.process.project import Project, load_project
from mainstem.process.project_config import JobConfig

log = get_logger()

FIRST = "1"
"""The version that a job starts with, unless its project names another one."""
ASKED_FILE = "asked.json"
RETIRED_FILE = "retired"
"""The file that says of a version's home that it never runs again."""
RUNNING_LOCK = "running"
"""The lock in a version's home that the process holds which runs it."""


class Fixed(msgspec.Struct, frozen=True):
    """What a version of a job keeps for life; written beside its checkpoint when it first starts."""

    job: str
    version: str
    sha: str
    readers: dict[str, int]  # parameter -> schema id whose shape its rows have
    output: str
    output_schema: int
    state_partitions: int
    analysis: dict[str, Any] | None = None  # what its code means, as `analysis.remember` gave it; saves a start seconds
    also: dict[str, int] = {}  # further topics that it writes -> schema id, in the order of its results; then its state
    sliced: bool = False  # it is run slice by slice, on demand, and by no driver
    realtime: bool = False  # its rows are written as they come, at least once

    @property
    def outputs(self) -> dict[str, int]:
        """All topics that it writes -> schema id."""
        return {self.output: self.output_schema} | self.also

    @property
    def keeps_state(self) -> bool:
        """As far as is remembered."""
        return self.analysis is not None and bool(self.analysis["analysis"]["stateful"])


def read_fixed(home: Path) -> Fixed | None:
    """What the version in `home` was first started with; None if it never was."""
    path = home / "job.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepared(Fixed))
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        # Nothing is started here, and `job retire` needs a log that runs.
        touch = shlex.join(["touch", str(home / RETIRED_FILE)])
        hint = f"bring back the file from a copy; where there is none, `{touch}` gives up job {home.name}"
        raise CorruptData(f"{path}: expected what a job was started with: {error}", hint=hint) from error


def write_fixed(home: Path, fixed: Fixed) -> None:
    """Durable on return; what was there is replaced as a whole."""
    make_directory(home)
    write_atomically(home / "job.json", msgspec.json.format(msgspec.json.encode(fixed)))


def output_topic(to: str, version: str) -> str:
    """Where a version of a job writes: the first one to the topic itself, others beside it."""
    return to if version == "1" else f"{to}.v{version}"


class Asked(msgspec.Struct, frozen=True):
    """A version that somebody has asked for. It stays when that was done: what is broken in it from the first stops
    itself alone, unlike what somebody has just written into the project.
    """

    job: str
    version: str
    sha: str
    output: str  # the topic that it will write
    asked_at: int  # ms since 1970


def read_asked(home: Path) -> Asked | None:
    """What was asked for in `home`; None where it was not.

    Raises:
        CorruptData: the file is not as it was written.
    """
    path = home / ASKED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepared(Asked))
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        hint = f"remove {path}: `mainstem job reprocess` asks for the version again"
        raise CorruptData(f"{path}: expected which version is to be started: {error}", hint=hint) from error


def write_asked(home: Path, asked: Asked) -> None:
    """From here on the version is to be started; durable on return."""
    make_directory(home)
    write_atomically(home / ASKED_FILE, msgspec.json.format(msgspec.json.encode(asked)))


def asked_versions(data: Path) -> list[Asked]:
    """What was asked for, has not been started yet, and was not retired."""
    homes = [home for home in _homes(data) if not (home / "job.json").exists()]
    return [each for each in map(read_asked, homes) if each is not None]


def is_bound(data: Path, job: str, version: str) -> bool:
    """Whether the version goes on with its code whatever is wrong with it: it was started once, or asked for."""
    home = data / "jobs" / job_key(job, version)
    return read_fixed(home) is not None or read_asked(home) is not None


def all_versions(data: Path) -> list[Fixed | Asked]:
    """What runs whenever the project is up: what was started here, and what was asked for."""
    return [*(each for each in live_versions(data) if not each.sliced), *asked_versions(data)]


def jobs_of(data: Path, sha: str) -> list[tuple[str, str]]:
    """The versions, by job and name, that run from the code `sha`, or are to be started from it."""
    return [(each.job, each.version) for each in all_versions(data) if each.sha == sha]


def _homes(data: Path) -> list[Path]:
    """Of the versions that were not retired."""
    return [home for home in sorted((data / "jobs").glob("*@*")) if not (home / RETIRED_FILE).exists()]


def live_versions(data: Path) -> list[Fixed]:
    """What was started here and was not retired: each of them but the sliced ones runs whenever the project is up."""
    return [each for each in map(read_fixed, _homes(data)) if each is not None]


def writer_of(data: Path, output: str) -> Fixed | None:
    """The version that was started here, was not retired, and writes the topic `output`."""
    return next((each for each in live_versions(data) if output in each.outputs), None)


def newest(versions: Iterable[str]) -> str | None:
    """The last of some versions: numbers by their size, after what is none."""
    return max(versions, key=lambda name: (name.isdecimal(), int(name) if name.isdecimal() else 0, name), default=None)


def free_version(data: Path, job: str, used: Iterable[str] = ()) -> str:
    """The number that comes after those of all versions of a job, retired ones too; `used` are known otherwise."""
    homes = [home for home in (data / "jobs").glob(f"{glob.escape(job)}@*") if any(home.iterdir())]
    names = [*used, *(home.name.rpartition("@")[2] for home in homes)]
    return str(max((int(name) for name in names if name.isdecimal()), default=1) + 1)


def version_of(data: Path | None, job: str, config: JobConfig) -> str:
    """The version that a project asks for; where it asks for none in particular the newest that goes on, else the
    first.
    """
    if config.version:
        return config.version
    lives = all_versions(data) if data is not None else []
    return newest(each.version for each in lives if each.job == job) or FIRST


def with_versions(project: Project, data: Path | None) -> Project:
    """The project with the version of each job that it means in this data directory."""
    configs = {name: project.job_config(name) for name in project.order}
    named = {
        name: msgspec.structs.replace(each, version=version_of(data, name, each)) for name, each in configs.items()
    }
    return msgspec.structs.replace(project, job_configs=project.job_configs | named)


def application_of(settings: Mapping[str, JobConfig], job: str) -> str:
    """The Spark application that the settings give a job; "" is that of all others, and of those that have none."""
    return settings.get(job, JobConfig()).application


class Assignment(msgspec.Struct, frozen=True):
    """What one driver process runs: jobs, each with its version's name, that share a version of the code and an
    application.
    """

    sha: str
    jobs: tuple[tuple[str, str], ...]
    application: str = ""


def assignments(directory: Path, data: Path, clock: Clock) -> list[Assignment]:
    """Which jobs run from which code, and in which application: one driver process each, those of the project as it is
    now first.

    A version of a job that was started once goes on with the code it was started with, until it is retired; one
    that was asked for starts with its own; what is new in the project runs from the code as it is now. So does a
    version of whose job no edit has changed anything: of ten jobs of which one was edited, nine share a driver with it.
    Other code is not run here: what is wrong with it stops its own jobs alone.

    Raises:
        BadDeclaration, BadSetting: the project as it is now is wrong.
        UserError: it names a version that was retired, or needs a file that is not copied.
    """
    project = load_project(directory)
    current = freeze(directory, data, clock)
    code: dict[tuple[str, str], str] = {}
    for name in project.order:
        config = project.job_config(name)
        version = version_of(data, name, config)
        if config.on_demand:
            continue
        if is_retired(data, name, version):
            raise UserError(
                f"{directory / PROJECT_FILE}: job {job_key(name, version)} was retired and never runs again",
                hint=instead_of_retired(name),
            )
        code[name, version] = current.sha
    lives = all_versions(data)
    compared = Comparison(data, current.directory)
    following = [each for each in lives if isinstance(each, Fixed) and _follows(project, data, each, current, compared)]
    for each in lives:
        code[each.job, each.version] = current.sha if each in following else each.sha
    if current.sha in code.values():
        check_whole(project, current)
    for fixed in following:
        write_fixed(data / "jobs" / job_key(fixed.job, fixed.version), msgspec.structs.replace(fixed, sha=current.sha))
        log.info("version_follows", job=fixed.job, version=fixed.version, code=current.sha, before=fixed.sha)
    drivers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for job, sha in code.items():
        drivers.setdefault((sha, application_of(project.job_configs, job[0])), []).append(job)
    ordered = sorted(drivers, key=lambda each: (each[0] != current.sha, *each))
    return [Assignment(sha, tuple(drivers[sha, name]), name) for sha, name in ordered]


def _follows(project: Project, data: Path, each: Fixed, current: Version, compared: Comparison) -> bool:
    """Whether a version that was started with other code may as well run from that of the project."""
    if each.sha == current.sha or is_running(data, each.job, each.version):
        return False
    return runs_the_same(project, each, compared)


def runs_the_same(project: Project, each: Fixed | Asked, compared: Comparison) -> bool:
    """Whether what a version runs is what the project, of which `compared` has the code, says of its job."""
    job = project.jobs.get(each.job)
    if job is None:
        return False
    topics = {*job.topics, *(topic.topic for topic in project.inputs[each.job])}
    return compared.is_same_job(each.sha, each.job, topics)


class Edited(msgspec.Struct, frozen=True):
    """A version that goes on with the code it was started with, although that of its job is another by now."""

    job: str
    version: str
    sha: str
    changed: list[str]  # what differs: files, and [topics] of the project's settings
    next_version: str  # the first that is free

    def __str__(self) -> str:
        since = f" (changed since: {', '.join(self.changed)})" if self.changed else ""
        return (
            f"job {job_key(self.job, self.version)} goes on with its frozen code {self.sha}{since}; "
            f"`mainstem job reprocess {self.job}` runs the edited code beside it, as version {self.next_version}"
        )


def edited(project: Project, data: Path, sha: str) -> list[Edited]:
    """The jobs whose version, as the project names it, was started with other code than `sha`, the project's own. Where
    it names none, those of which no version runs that code.
    """
    found, compared = [], Comparison(data, project.directory)
    for name in project.order:
        config = project.job_config(name)
        version = version_of(data, name, config)
        fixed = read_fixed(data / "jobs" / job_key(name, version))
        others = [] if config.version else [each for each in all_versions(data) if each.job == name]
        if fixed is None:
            continue
        lives = [fixed, *(each for each in others if each.version != version)]
        if not any(each.sha == sha or runs_the_same(project, each, compared) for each in lives):
            free = free_version(data, name)
            changed = changed_since(version_directory(data, fixed.sha), project.directory)
            found.append(Edited(name, version, fixed.sha, changed, free))
    return found


class LeftOver(msgspec.Struct, frozen=True):
    """A version that runs although the project asks for another one, or has no such job any more."""

    job: str
    version: str
    sha: str
    asked_for: str | None  # the version that the project names; None: it has no such job

    def __str__(self) -> str:
        key = job_key(self.job, self.version)
        why = f"beside {job_key(self.job, self.asked_for)}" if self.asked_for else "though the project has no such job"
        return (
            f"job {key} goes on with its frozen code {self.sha}, {why}; "
            f"`mainstem job retire {self.job} {self.version}` stops it for good"
        )


def left_over(project: Project, data: Path) -> list[LeftOver]:
    """The versions that run whenever the project is up, but are not what it asks for as it is now; where it asks for
    none in particular, all of them are.
    """
    asked_for = {name: project.job_config(name).version for name in project.order}
    return [
        LeftOver(each.job, each.version, each.sha, asked_for.get(each.job))
        for each in live_versions(data)
        if not each.sliced and asked_for.get(each.job) not in (each.version, "")
    ]


def is_retired(data: Path, job: str, version: str) -> bool:
    """Whether this version was retired here: its directory says so, whether or not the log answers."""
    return (data / "jobs" / job_key(job, version) / RETIRED_FILE).exists()


def run_alone(data: Path, job: str, version: str) -> DirectoryLock:
    """The right to run a version, until it is released or this process ends. Two that ran it would take it from each
    other, in turn: each fences the other one when it starts.

    Raises:
        DirectoryInUse: another process runs it.
    """
    try:
        return DirectoryLock(data / "jobs" / job_key(job, version), RUNNING_LOCK)
    except DirectoryInUse as error:
        hint = "a version runs in one process at a time: stop that one, or leave this job out here"
        raise DirectoryInUse(f"job {job_key(job, version)} runs already: {error}", hint=hint) from None


def is_running(data: Path, job: str, version: str) -> bool:
    """Whether a process runs this version, on this data directory."""
    return is_held(data / "jobs" / job_key(job, version), RUNNING_LOCK)
