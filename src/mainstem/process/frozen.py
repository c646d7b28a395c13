"""Code is data: the sources of a project are frozen before they run.

    <data>/versions/<sha>/        a copy of the project's code, schemas and small data files, and of its [project] and
                                  [topics]
    <data>/versions/<sha>.json    when it was frozen, and from where

Spark ships functions of a module by its name, so a running process would pick up files that are edited under it. What
is copied is what the hash covers: all that can change what jobs compute (`docs/decisions/jobs.md` lists it). Of the
settings these are what is said of topics; others (a port, how often a job runs) are read from the project as it is, and
start no new version; they are not copied either, since passwords may be among them.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from mainstem.core import Clock, CorruptData, UserError
from mainstem.core.config import PREFIX, PROJECT_FILE, BadSetting, named_tables, read_toml
from mainstem.core.files import sync_directory, write_atomically
from mainstem.core.locks import hold
from mainstem.core.prepared import prepared
from mainstem.process.declare import Location
from mainstem.process.imports import import_from, places_of
from mainstem.process.job_code import ProjectCode
from mainstem.process.project import Project, load_project
from mainstem.process.project_config import JOBS

_SOURCES = frozenset({".py", ".avsc", ".sql", ".json", ".toml", ".csv", ".txt"})
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "data", "tests"})
_MARKERS = ("mainstem.json", "_delta_log", "pyvenv.cfg", "conda-meta")
"""What makes a directory none of the project's sources: a data directory, a Delta table, an environment of Python."""
_TABLES = ("project", "topics")
_FILES = f"jobs of [project] in {PROJECT_FILE}"
_DIGITS = 16
_UNFINISHED = ".freezing-"
_LOCK = ".frozen~"
_HOLD_SECONDS = 90.0


class Frozen(msgspec.Struct, frozen=True):
    """The manifest beside a frozen copy."""

    sha: str
    origin: str  # the project's directory when it was frozen; of an open version where it is now
    frozen_at: int  # ms since 1970


class Version(msgspec.Struct, frozen=True):
    """A frozen copy of a project's sources."""

    sha: str
    directory: Path  # absolute
    manifest: Frozen

    @property
    def places(self) -> list[Path]:
        """The directories that its modules are imported from: what was copied of those of the project."""
        copy, origin = self.directory, Path(self.manifest.origin).resolve()
        return [*filter(Path.is_dir, (copy / place.relative_to(origin) for place in places_of(origin)))]

    def in_project(self, location: Location) -> Location:
        """A place in the frozen copy as one in the project's own file, unless that has been edited since."""
        frozen = Path(location.file)
        if frozen.is_relative_to(self.directory):
            file = Path(self.manifest.origin) / frozen.relative_to(self.directory)
            if file.is_file() and frozen.is_file() and file.read_bytes() == frozen.read_bytes():
                return Location(str(file), location.line)
        return location


def code_hash(directory: Path) -> str:
    """The hash of everything in `directory` that can change what its jobs compute."""
    digest = hashlib.sha256()
    for name, content in sorted(_contents(directory).items()):
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:_DIGITS]


def code_of_job(directory: Path, job: str) -> str:
    """The hash of what can change what one job computes, as far as the project's code tells it; else of everything."""
    return _Code(directory).of_project.of_job(job) or code_hash(directory)


class _Code:
    """What a directory says of jobs, read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settings = _settings(directory)
        files = _job_files(self._settings)
        start = [files] if isinstance(files, str) else [*files] if isinstance(files, list) else []
        self.of_project = ProjectCode({name: path.read_bytes() for name, path in _sources(directory)}, start)

    @cached_property
    def sha(self) -> str:
        """The hash of all of it."""
        return code_hash(self._directory)

    def of_topic(self, name: str) -> Any:
        """What the settings say of a topic."""
        return self._settings.get("topics", {}).get(name)


class Comparison:
    """Frozen copies beside a project as it is; each is read once, and not to be edited meanwhile."""

    def __init__(self, data: Path, now: Path) -> None:
        """`data` is where the copies lie, `now` the project's directory, or a copy of that."""
        self._data = data
        self._now = now
        self._read: dict[Path, _Code] = {}

    def is_same_job(self, sha: str, job: str, topics: Collection[str]) -> bool:
        """Whether a job computes the same in a copy and in the project, as far as their code tells; not where the copy
        is not what was frozen.

        Args:
            sha: the copy's.
            job: its name.
            topics: that it reads and writes now.
        """
        try:
            before, now = self._code(version_directory(self._data, sha)), self._code(self._now)
            reached = before.of_project.of_job(job)
            if reached is None or before.sha != sha or reached != now.of_project.of_job(job):
                return False
        except (BadSetting, OSError):
            return False
        return all(before.of_topic(name) == now.of_topic(name) for name in topics)

    def _code(self, directory: Path) -> _Code:
        if directory not in self._read:
            self._read[directory] = _Code(directory)
        return self._read[directory]


def _job_files(settings: Mapping[str, Any]) -> Any:
    """`jobs` of [project]: files, by their names in the project, unless the settings are wrong."""
    project = settings.get("project")
    return project.get("jobs", JOBS) if isinstance(project, dict) else JOBS if project is None else project


def _contents(directory: Path) -> dict[str, bytes]:
    """What is hashed, by the file's name."""
    settings = _settings(directory)
    contents = {name: path.read_bytes() for name, path in _sources(directory)}
    contents[PROJECT_FILE] = _toml(settings.get("topics", {})).encode()
    files = _job_files(settings)
    if files not in (None, JOBS, [JOBS]):
        contents[_FILES] = _toml(files).encode()
    return contents


def freeze(directory: Path, data: Path, clock: Clock) -> Version:
    """The frozen copy of the project as it is now; made if it does not exist yet, durable on return. Of all
    processes on a data directory one at a time.

    Raises:
        DirectoryInUse: another one takes longer than they do.
    """
    with hold(data / "versions", _LOCK, _HOLD_SECONDS):
        sha = _freeze(directory, data / "versions", clock)
    return open_version(data, sha, directory)


def _freeze(directory: Path, versions: Path, clock: Clock) -> str:
    """Make the copy; its hash."""
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
            manifest = Frozen(sha, str(directory), clock.now_ms())
            write_atomically(versions / f"{sha}.json", msgspec.json.format(msgspec.json.encode(manifest)))
    return sha


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
        manifest = msgspec.json.decode((data / "versions" / f"{sha}.json").read_bytes(), type=prepared(Frozen))
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptData(
            f"{directory}: the frozen sources of version {sha} are missing: {error}",
            hint=f"bring back {directory} and {sha}.json beside it from a copy",
        ) from error
    found = code_hash(directory)
    if found != sha:
        raise CorruptData(
            f"{directory}: frozen as {sha}, found {found}: somebody edited it",
            hint="bring back the files; to change a job, edit the project; `mainstem job reprocess JOB` starts a version of that",
        )
    if project is not None:
        manifest = msgspec.structs.replace(manifest, origin=str(project.resolve()))
    return Version(sha, directory.resolve(), manifest)  # as code is loaded from there, and errors name its files


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


def check_whole(project: Project, version: Version) -> None:
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


def changed_since(frozen: Path, now: Path) -> list[str]:
    """What differs between a frozen copy and a project as it is now: files, and [topics] of the settings."""
    try:
        before = _contents(frozen)
    except (BadSetting, OSError):  # it is gone, or damaged: whoever runs it says so
        return []
    after = _contents(now)
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    told = (os.fsencode(name).decode(errors="replace") for name in names)  # a name may be in any encoding
    return [f"[topics] of {name}" if name == PROJECT_FILE else name for name in told]
