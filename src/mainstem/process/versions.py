"""Code is data: the sources of a project are frozen before they run,
and each job's version names the ones it runs from.

    <data>/versions/<sha>/        a copy of the project's code, schemas and small data files, and of its [project] and
                                  [topics]
    <data>/versions/<sha>.json    when it was frozen, from where, with which packages

Spark ships functions of a module by its name, so a running process would pick up files that are edited under it. What
is copied is what the hash covers: all that can change what jobs compute (`docs/decisions/jobs.md` lists it). Of the
settings these are what is said of topics; others (a port, how often a job runs) are read from the project as it is, and
start no new version; they are not copied either, since passwords may be among them.
"""

import hashlib
import itertools
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import (
    RETIRED,
    current_versions,
    entries,
    previous_versions,
    read_catalog,
    write_catalog,
)
from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.core import Clock, CorruptData, UserError
from mainstem.core.config import PREFIX, PROJECT_FILE, BadSetting, named_tables, read_toml
from mainstem.core.files import make_directory, sync_directory, write_atomically
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.process.declare import Location
from mainstem.process.imports import import_from, places_of
from mainstem.process.jars import SPARK_LOCK
from mainstem.process.project import JobConfig, Project, load_project

_SOURCES = frozenset({".py", ".avsc", ".sql", ".json", ".toml", ".csv", ".txt"})
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "data", "tests"})
_MARKERS = ("mainstem.json", "_delta_log", "pyvenv.cfg", "conda-meta")
"""What makes a directory none of the project's sources: a data directory, a Delta table, an environment of Python."""
_TABLES = ("project", "topics")
_FILES = f"jobs of [project] in {PROJECT_FILE}"
_DIGITS = 16
_UNFINISHED = ".freezing-"
CATALOG_LOCK = ".versions~"
"""No version can have such a name."""
HOLD_SECONDS = 90.0  # the reader of the catalog waits for strangers' transactions


class Frozen(msgspec.Struct, frozen=True):
    """The manifest beside a frozen copy."""

    sha: str
    origin: str  # the project's directory when it was frozen; of an open version where it is now
    frozen_at: int  # ms since 1970
    packages: dict[str, str]
    jars: str


class Version(msgspec.Struct, frozen=True):
    """A frozen copy of a project's sources."""

    sha: str
    directory: Path
    manifest: Frozen

    @property
    def places(self) -> list[Path]:
        """The directories that its modules are imported from: what was copied of those of the project."""
        copy, origin = self.directory.resolve(), Path(self.manifest.origin).resolve()
        return [*filter(Path.is_dir, (copy / place.relative_to(origin) for place in places_of(origin)))]

    def in_project(self, location: Location) -> Location:
        """A place in the frozen copy as one in the project's own file, unless that has been edited since."""
        copy = self.directory.resolve()  # as code is loaded from there; the data directory may be given as `.mainstem`
        frozen = Path(location.file)
        if frozen.is_relative_to(copy):
            file = Path(self.manifest.origin) / frozen.relative_to(copy)
            if file.is_file() and frozen.is_file() and file.read_bytes() == frozen.read_bytes():
                return Location(str(file), location.line)
        return location


def code_hash(directory: Path) -> str:
    """The hash of everything in `directory` that can change what its jobs compute."""
    digest = hashlib.sha256()
    for name, content in sorted(_contents(directory).items()):
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:_DIGITS]


def _contents(directory: Path) -> dict[str, bytes]:
    """What is hashed, by the file's name."""
    settings = _settings(directory)
    contents = {name: path.read_bytes() for name, path in _sources(directory)}
    contents[PROJECT_FILE] = _toml(settings.get("topics", {})).encode()
    project = settings.get("project")
    files = project.get("jobs", "jobs.py") if isinstance(project, dict) else project
    if files not in (None, "jobs.py", ["jobs.py"]):
        contents[_FILES] = _toml(files).encode()
    return contents


def freeze(directory: Path, data: Path, clock: Clock) -> Version:
    """The frozen copy of the project as it is now; made if it does not exist yet, durable on return. For
    one process at a time, which holds the lock of `data`.
    """
    versions = data / "versions"
    make_directory(versions)
    for unfinished in versions.glob(f"{_UNFINISHED}*"):  # of a process that was killed
        shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=versions) as scratch:
        copy = Path(scratch) / "copy"
        copy.mkdir()
        for name, path in _sources(directory):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / name)  # with its permissions: it may be for its owner alone
        tables = (f"{name} = {_toml(table)}\n" for name, table in _settings(directory).items())
        (copy / PROJECT_FILE).write_text("".join(tables))
        sha = code_hash(copy)  # of the copy: the project may be edited meanwhile
        if not (versions / f"{sha}.json").exists():
            _keep(copy, versions / sha)
            manifest = Frozen(sha, str(directory), clock.now_ms(), _packages(), SPARK_LOCK.read_text())
            write_atomically(versions / f"{sha}.json", msgspec.json.format(msgspec.json.encode(manifest)))
    return open_version(data, sha, directory)


def open_version(data: Path, sha: str, project: Path | None = None) -> Version:
    """A copy that was frozen before.

    Args:
        data: where it lies.
        sha: its hash.
        project: where the project is now, if it may have been moved since.

    Raises:
        CorruptData: it is missing, or not what was frozen.
    """
    directory = version_directory(data, sha)
    try:
        manifest = msgspec.json.decode((data / "versions" / f"{sha}.json").read_bytes(), type=Frozen)
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptData(
            f"{directory}: the frozen sources of version {sha} are missing: {error}",
            hint=f"bring back {directory} and {sha}.json beside it from a copy",
        ) from error
    found = code_hash(directory)
    if found != sha:
        raise CorruptData(
            f"{directory}: frozen as {sha}, found {found}: somebody edited it",
            hint="bring back the files; to change a job, edit the project and give the job a new version",
        )
    if project is not None:
        manifest = msgspec.structs.replace(manifest, origin=str(project.resolve()))
    return Version(sha, directory, manifest)


def version_directory(data: Path, sha: str) -> Path:
    """Where the frozen copy lies."""
    return data / "versions" / sha


def load_version(version: Version) -> Project:
    """The project that was frozen; settings of its jobs are those of the project as it is now.

    So variables that set some are none of its own: they may name a job that it does not have. What its functions import
    from now on is of the frozen copy.

    Raises:
        BadDeclaration, BadSetting: it cannot be loaded any more.
    """
    variables = {name: value for name, value in os.environ.items() if not name.upper().startswith(f"{PREFIX}JOBS__")}
    project = load_project(version.directory, environment=variables, places=version.places)
    import_from(*version.places)
    return project


def _keep(copy: Path, place: Path) -> None:
    if place.exists():  # left by a crash before its manifest was written
        shutil.rmtree(place)
    for path in (copy, *copy.rglob("*")):
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as file:  # the project's own may be read-only
                os.fsync(file.fileno())
    copy.rename(place)
    sync_directory(place.parent)


def _sources(directory: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every file that is copied and hashed, in order of the names."""
    directory = directory.resolve()
    where = directory / PROJECT_FILE
    tree = read_toml(where)
    # What sources follow and sinks write changes while the project stays the same.
    moving = set(_named(tree, ("sources", "sinks"), "path", where))
    schemas = {path for path in _named(tree, ("topics",), "schema", where) if path.is_relative_to(directory)}
    found = {path for path in _walk(directory, moving) if path.suffix in _SOURCES}
    for path in sorted((found | schemas) - moving - {where}):
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path


def _named(tree: Mapping[str, Any], tables: Collection[str], setting: str, where: Path) -> Iterator[Path]:
    """The paths that a setting has in each entry of `tables`."""
    for found in (named_tables(tree, table, where=where) for table in tables):
        for each in found.values():
            if isinstance(each.get(setting), str):
                yield Path(os.path.normpath(where.parent / each[setting]))


def _walk(directory: Path, moving: Collection[Path]) -> Iterator[Path]:
    """The files below `directory`, without those of directories that hold none of the project's sources."""
    for root, folders, files in os.walk(directory):
        here = Path(root)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and here / name not in moving
            and not any((here / name / marker).exists() for marker in _MARKERS)
        ]
        yield from (here / name for name in files if not name.startswith("."))


def _settings(directory: Path) -> dict[str, Any]:
    """The tables of the project's settings that say what its code means."""
    tree = read_toml(directory / PROJECT_FILE)
    return {name: tree[name] for name in _TABLES if name in tree}


def _toml(value: Any) -> str:
    """A value in TOML; tables inline and in the order of their keys, the rest as JSON writes it too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _packages() -> dict[str, str]:
    found = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return dict(sorted(found.items()))


FIRST = "1"
"""The version that a job starts with, unless its project names another one."""
RETIRED_FILE = "retired"
"""The file that says of a version's home that it never runs again."""


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


def read_fixed(home: Path) -> Fixed | None:
    """What the version in `home` was first started with; None if it never was."""
    path = home / "job.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Fixed)
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


def live_versions(data: Path) -> list[Fixed]:
    """What was started here and was not retired: each of them runs whenever the project is up."""
    homes = [home for home in sorted((data / "jobs").glob("*@*")) if not (home / RETIRED_FILE).exists()]
    return [each for each in map(read_fixed, homes) if each is not None]


def writer_of(data: Path, output: str) -> Fixed | None:
    """The version that was started here, was not retired, and writes the topic `output`."""
    return next((each for each in live_versions(data) if each.output == output), None)


def newest(versions: Iterable[str]) -> str | None:
    """The last of some versions: numbers by their size, after what is none."""
    return max(versions, key=lambda name: (name.isdecimal(), int(name) if name.isdecimal() else 0, name), default=None)


def version_of(data: Path | None, job: str, config: JobConfig) -> str:
    """The version that a project asks for; where it asks for none in particular the newest that goes on, else the
    first.
    """
    if config.version:
        return config.version
    lives = [each.version for each in live_versions(data) if each.job == job] if data is not None else []
    return newest(lives) or FIRST


def with_versions(project: Project, data: Path | None) -> Project:
    """The project with the version of each job that it means in this data directory."""
    configs = {name: project.job_config(name) for name in project.order}
    named = {
        name: msgspec.structs.replace(each, version=version_of(data, name, each)) for name, each in configs.items()
    }
    return msgspec.structs.replace(project, job_configs=project.job_configs | named)


class Assignment(msgspec.Struct, frozen=True):
    """What one driver process runs: jobs, each with its version's name, that share a version of the code."""

    sha: str
    jobs: tuple[tuple[str, str], ...]


def assignments(directory: Path, data: Path, clock: Clock) -> list[Assignment]:
    """Which jobs run from which code: one driver process each, that of the project as it is now first.

    A version of a job that was started once goes on with the code it was started with, until it is retired; what is new
    in the project runs from the code as it is now. Other code is not looked at: what is wrong with it stops its own
    jobs alone.

    Raises:
        BadDeclaration, BadSetting: the project as it is now is wrong.
        UserError: it names a version that was retired, or needs a file that is not copied.
    """
    project = load_project(directory)
    current = freeze(directory, data, clock)
    code: dict[tuple[str, str], str] = {}
    for name in project.order:
        version = version_of(data, name, project.job_config(name))
        if is_retired(data, name, version):
            raise UserError(
                f"{directory / PROJECT_FILE}: job {job_key(name, version)} was retired and never runs again",
                hint=f"set another version under [jobs.{name}], or take the job out of the code",
            )
        code[name, version] = current.sha
    for fixed in live_versions(data):
        code[fixed.job, fixed.version] = fixed.sha
    if current.sha in code.values():
        _check_whole(project, current)
    shas = sorted(set(code.values()), key=lambda sha: (sha != current.sha, sha))
    return [Assignment(sha, tuple(job for job, of in code.items() if of == sha)) for sha in shas]


def _check_whole(project: Project, version: Version) -> None:
    """See that the copy has the files of the project that loading it has read: jobs run from nothing else.

    Raises:
        UserError: one was not copied.
    """
    inside = project.directory
    _check_packages(project)
    read = {Path(str(module.__file__)) for module in project.modules}
    read |= {spec.schema_file for spec in project.topics.values() if spec.schema_file is not None}
    installed = [Path(entry) for entry in sys.path if entry.startswith(f"{inside}{os.sep}")]  # drivers find that, too
    for file in sorted(file for file in read if file.is_relative_to(inside)):
        copied = (version.directory / file.relative_to(inside)).is_file()
        if not copied and not any(map(file.is_relative_to, installed)):
            raise UserError(
                f"{file}: expected among the files that are copied for the jobs to run from, found left out",
                hint="move it to a directory of the project that is not hidden, no link, and not called "
                + " or ".join(sorted(_LEFT_OUT))
                if file.suffix in _SOURCES
                else f"what is copied ends in {', '.join(sorted(_SOURCES))}, or [topics] names it as a schema",
            )


def _check_packages(project: Project) -> None:
    """See that drivers find the packages of the project in its copy too; else they would run what is edited.

    Raises:
        UserError: one is found only where the project itself lies.
    """
    inside = project.directory
    places = [inside, *(place for entry in sys.path if (place := Path(entry).resolve()).is_relative_to(inside))]
    for name in sorted({module.__name__.partition(".")[0] for module in project.modules}):
        paths = [Path(path) for path in getattr(sys.modules.get(name), "__path__", ())]
        mine = [path for path in paths if path.is_relative_to(inside)]
        if mine and not any(path.parent in places for path in mine):
            raise UserError(
                f"{mine[0]}: expected packages below {inside}, of which the jobs run from a copy, found that one of "
                f"its modules is imported as part of {name}",
                hint=f"import what lies in {mine[0]} by its own name",
            )


class Edited(msgspec.Struct, frozen=True):
    """A version that goes on with the code it was started with, although the project's is another by now."""

    job: str
    version: str
    sha: str
    changed: list[str]  # what differs: files, and [topics] of the project's settings
    next_version: str  # the first that is free

    def __str__(self) -> str:
        since = f" (changed since: {', '.join(self.changed)})" if self.changed else ""
        return (
            f"job {job_key(self.job, self.version)} goes on with its frozen code {self.sha}{since}; "
            f'[jobs.{self.job}] version = "{self.next_version}" runs the edited code beside it'
        )


def edited(project: Project, data: Path, sha: str) -> list[Edited]:
    """The jobs whose version, as the project names it, was started with other code than `sha`, the project's own. Where
    it names none, those of which no version runs that code.
    """
    found = []
    for name in project.order:
        config = project.job_config(name)
        version = version_of(data, name, config)
        fixed = read_fixed(data / "jobs" / job_key(name, version))
        others = () if config.version else (each for each in live_versions(data) if each.job == name)
        if fixed is not None and fixed.sha != sha and all(each.sha != sha for each in others):
            free = next(n for n in map(str, itertools.count(2)) if not (data / "jobs" / job_key(name, n)).exists())
            changed = _changed(version_directory(data, fixed.sha), project.directory)
            found.append(Edited(name, version, fixed.sha, changed, free))
    return found


def _changed(frozen: Path, now: Path) -> list[str]:
    try:
        before = _contents(frozen)
    except (BadSetting, OSError):  # it is gone, or damaged: whoever runs it says so
        return []
    after = _contents(now)
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    told = (os.fsencode(name).decode(errors="replace") for name in names)  # a name may be in any encoding
    return [f"[topics] of {name}" if name == PROJECT_FILE else name for name in told]


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
        if asked_for.get(each.job) not in (each.version, "")
    ]


def is_retired(data: Path, job: str, version: str) -> bool:
    """Whether this version was retired here: its directory says so, whether or not the log answers."""
    return (data / "jobs" / job_key(job, version) / RETIRED_FILE).exists()


def retirable(connection: Connection, data: Path, job: str, version: str, directory: Path, *, force: bool) -> Fixed:
    """A version that may be retired.

    Args:
        connection: the log that it ran on.
        data: the data directory that it was started from; `mainstem up` may hold it.
        job: its name.
        version: its version.
        directory: of the project. Where there is none any more, nothing is asked for.
        force: also where readers are moved by it, or cannot go back any more.

    Raises:
        UserError: it was never started here, is what the project as it is now asks for, or readers need it.
    """
    fixed = read_fixed(data / "jobs" / job_key(job, version))
    if fixed is None:
        raise UserError(
            f"job {job_key(job, version)} was never started from {data}", hint="`mainstem job list` shows the jobs"
        )
    if (directory / PROJECT_FILE).exists():
        project = load_project(directory)
        asked = project.job_config(job).version
        lives = {each.version for each in live_versions(data) if each.job == job}
        # Where it asks for none, the last one that goes on is what it has; the next start would begin anew.
        if job in project.jobs and (asked == version or (not asked and lives == {version})):
            raise UserError(
                f"job {job_key(job, version)} is what {directory / PROJECT_FILE} asks for",
                hint=f"first set another version under [jobs.{job}], or take the job out of the code",
            )
    if not force:
        _check_unneeded(read_catalog(connection), job, version)
    return fixed


def _check_unneeded(catalog: Mapping[str, dict[str, Any]], job: str, version: str) -> None:
    """Refuse to retire what readers mean by the job's name while they can mean another, and their way back.

    Raises:
        UserError: it is one of the two.
    """
    others = [each for each in entries(catalog, "job").get(job, {}).get("versions", {}) if each != version]
    if others and current_versions(catalog).get(job) == version:
        raise UserError(
            f"job {job_key(job, version)} is current: who reads the job by its name means it",
            hint=f"first `mainstem job cutover {job} {newest(others)}`; --force retires it, and moves them unprepared",
        )
    if previous_versions(catalog).get(job) == version:
        raise UserError(
            f"job {job_key(job, version)} is what `mainstem job revert {job}` leads back to",
            hint="--force retires it; then there is no way back",
        )


def retire(
    connection: Connection, data: Path, job: str, version: str, directory: Path, *, force: bool = False
) -> Fixed:
    """Never run this version again; returns what it was. Its output stays, and so does its checkpoint.

    1. Mark it: no driver starts it any more, and one that runs it stops it, 2. fence: whatever it has open is aborted,
    3. tell the catalog. Each step can be repeated. Nobody makes it current meanwhile.

    Args:
        connection: the log that it ran on.
        data: the data directory that it was started from; `mainstem up` may hold it.
        job: its name.
        version: its version.
        directory: of the project. Where there is none any more, nothing is asked for.
        force: also where readers are moved by it, or cannot go back any more.

    Raises:
        UserError: it is not `retirable`.
        DirectoryInUse: another command has moved readers, or retired something, for all of the time that this waited.
    """
    from mainstem.process.sink_commit import fence_job

    with hold_catalog(data):
        fixed = retirable(connection, data, job, version, directory, force=force)
        write_atomically(data / "jobs" / job_key(job, version) / RETIRED_FILE, b"")
        fence_job(connection, job, version)
        _forget(connection, job, version)
    return fixed


def _forget(connection: Connection, job: str, version: str) -> None:
    """Tell the catalog that a version is retired; if it was current, the one before it is, else the newest left."""
    catalog = read_catalog(connection, linearizable=True)
    entry = dict(catalog.get(f"job:{job}", {}))
    versions = {name: about for name, about in entry.get("versions", {}).items() if name != version}
    entry |= {"versions": versions, RETIRED: sorted({*entry.get(RETIRED, ()), version})}
    if version in (current_versions(catalog).get(job), entry.get("current")):
        entry["current"] = previous_versions(catalog).get(job) or next(reversed(versions), "")
    write_catalog(connection, {f"job:{job}": entry})


@contextmanager
def hold_catalog(data: Path) -> Iterator[None]:
    """Change what the catalog says of versions: of all commands on a data directory one at a time, each after reading
    what the last one wrote.

    Raises:
        DirectoryInUse: another one takes longer than they do.
    """
    deadline = time.monotonic() + HOLD_SECONDS
    while True:
        try:
            lock = DirectoryLock(data / "jobs", CATALOG_LOCK)
            break
        except DirectoryInUse:
            if time.monotonic() > deadline:
                raise
    with lock:
        yield
