"""End a version of a job for good, and take turns at what the catalog says of versions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mainstem.client.catalog import (
    RETIRED,
    current_versions,
    entries,
    previous_versions,
    read_catalog,
)
from mainstem.client.catalog_changes import Catalog, change_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import checkpoint_topic, job_key
from mainstem.client.topics import delete
from mainstem.core import UserError
from mainstem.core.config import PROJECT_FILE
from mainstem.core.files import write_atomically
from mainstem.core.locks import hold
from mainstem.process.another_version import before_it_is_retired
from mainstem.process.project import load_project
from mainstem.process.seam import spliced_streams
from mainstem.process.splice import splices_of
from mainstem.process.versions import (
    RETIRED_FILE,
    Asked,
    Fixed,
    all_versions,
    is_retired,
    newest,
    read_asked,
    read_fixed,
)

CATALOG_LOCK = ".versions~"
"""No version can have such a name."""
HOLD_SECONDS = 90.0  # the reader of the catalog waits for strangers' transactions


def retirable(
    connection: Connection, data: Path, job: str, version: str, directory: Path, *, force: bool
) -> Fixed | Asked:
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
    home = data / "jobs" / job_key(job, version)
    fixed = read_fixed(home) or read_asked(home)
    if fixed is None:
        raise UserError(
            f"job {job_key(job, version)} was never started from {data}", hint="`mainstem job list` shows the jobs"
        )
    if is_retired(data, job, version):  # by a command that was killed: nothing runs it any more, whoever needs it
        return fixed
    if (directory / PROJECT_FILE).exists():
        project = load_project(directory)
        asked = project.job_config(job).version
        lives = {each.version for each in all_versions(data) if each.job == job}
        # Where it asks for none, the last one that goes on is what it has; the next start would begin anew.
        if job in project.jobs and (asked == version or (not asked and lives == {version})):
            raise UserError(
                f"job {job_key(job, version)} is what {directory / PROJECT_FILE} asks for",
                hint=before_it_is_retired(job),
            )
    _check_unneeded(read_catalog(connection), job, version, force=force)
    return fixed


def _check_unneeded(catalog: Mapping[str, dict[str, Any]], job: str, version: str, *, force: bool) -> None:
    """Refuse to retire what readers mean by the job's name while they can mean another, and their way back.

    Raises:
        UserError: it is one of the two.
    """
    others = [each for each in entries(catalog, "job").get(job, {}).get("versions", {}) if each != version]
    is_left = bool(others) and current_versions(catalog).get(job) == version
    if is_left and spliced_streams(catalog, [job]):  # nobody could say any more where another one goes on
        raise UserError(
            f"job {job_key(job, version)} is current, and topic {', '.join(splices_of(catalog, job))} is spliced from it",
            hint=f"first `mainstem job cutover {job} {newest(others)}`, with --at-least-once where this one cannot run",
        )
    if force:
        return
    if is_left:
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
) -> Fixed | Asked:
    """Never run this version again; returns what it was. Its output stays, and so does its checkpoint.

    1. Mark it: no driver starts it any more, and one that runs it stops it, 2. fence: whatever it has open is aborted,
    3. tell the catalog. Each step can be repeated: this command does, and the project where it runs or starts
    (`finish_retired`). Nobody makes it current meanwhile.

    What is given is given to `retirable`.

    Raises:
        UserError: it is not `retirable`.
        DirectoryInUse: another command has moved readers, or retired something, for all of the time that this waited.
    """
    from mainstem.process.sink_commit import fence_job

    with hold_catalog(data):
        fixed = retirable(connection, data, job, version, directory, force=force)
        write_atomically(data / "jobs" / job_key(job, version) / RETIRED_FILE, b"")
        fence_job(connection, job, version)
        delete(connection, [checkpoint_topic(job, version)])
        _forget(connection, job, version)
    return fixed


def finish_retired(connection: Connection, data: Path) -> None:
    """Do what is left of `retire` where it was killed after its first step: else readers would mean a version for ever
    that no driver starts. What the catalog has heard of is not touched.

    Args:
        connection: the log, with its internal topics.
        data: the data directory that versions were marked in.

    Raises:
        BrokerUnavailable: the log does not answer; it may be called again.
    """
    from mainstem.process.sink_commit import fence_job

    for job, entry in entries(read_catalog(connection), "job").items():
        for version in set(entry.get("versions", {})) - set(entry.get(RETIRED, ())):
            if is_retired(data, job, version):
                fence_job(connection, job, version)
                delete(connection, [checkpoint_topic(job, version)])
                _forget(connection, job, version)


class Marks:
    """Finishes what killed commands leave while the project runs. What is marked already is not looked at.

    Args:
        data: the data directory that versions are marked in.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._finished = self._marked()

    def look(self, connection: Connection) -> None:
        """`finish_retired` where a mark is new. It waits for a command that is at it.

        Raises:
            BrokerUnavailable, DirectoryInUse, OSError: it may be called again.
        """
        marked = self._marked()
        if marked == self._finished:
            return
        with hold_catalog(self._data):
            finish_retired(connection, self._data)
        self._finished = marked

    def _marked(self) -> set[str]:
        return {mark.parent.name for mark in (self._data / "jobs").glob(f"*@*/{RETIRED_FILE}")}


def _forget(connection: Connection, job: str, version: str) -> None:
    """Tell the catalog that a version is retired; if it was current, the one before it is, else the newest left."""

    def change(catalog: Catalog) -> dict[str, Any]:
        entry = dict(catalog.get(f"job:{job}", {}))
        versions = dict(entry.get("versions", {}))
        # What it wrote, and what it read for that: readers may still have tokens of it.
        about = versions.pop(version, entry.get(RETIRED, {}).get(version, {}))
        entry |= {"versions": versions, RETIRED: entry.get(RETIRED, {}) | {version: about}}
        if version in (current_versions(catalog).get(job), entry.get("current")):
            meant = current_versions(catalog).get(job), previous_versions(catalog).get(job)
            entry["current"] = next((each for each in meant if each in versions), newest(versions) or "")
        return {f"job:{job}": entry}

    change_catalog(connection, change)


@contextmanager
def hold_catalog(data: Path) -> Iterator[None]:
    """Move readers, retire or ask for versions: of all commands on a data directory one at a time.

    It is for what they write into that directory, and is held while code is frozen: drivers, which have to go on, never
    take it. What the catalog says is safe without: see `catalog_changes`.

    Raises:
        DirectoryInUse: another one takes longer than they do.
    """
    with hold(data / "jobs", CATALOG_LOCK, HOLD_SECONDS):
        yield
