"""Build a version of a job anew, or the first one of a job that was added: from the code as it is now, from the
earliest records, beside what runs.

1. Load the project as it is now, 2. freeze it, 3. take the next number, 4. write one file: it is asked for. What ends
before the fourth step has started nothing; after it the `up` that runs starts the version, or the next one does. With
the state of another version it begins where that one is instead (`from_state`), which is made ready before the fourth.
"""

import glob
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import RETIRED, entries, read_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.core import Clock, SystemClock, UserError
from mainstem.core.config import PROJECT_FILE
from mainstem.process.cutover import PATIENT, Waiting, wait_until_read
from mainstem.process.from_state import with_state_of
from mainstem.process.frozen import Comparison, check_whole, freeze
from mainstem.process.landing import NotLanded, is_driven
from mainstem.process.project import Project, load_project
from mainstem.process.readiness import Pin, look
from mainstem.process.retire import hold_catalog
from mainstem.process.versions import (
    Asked,
    all_versions,
    free_version,
    output_topic,
    read_asked,
    read_fixed,
    runs_the_same,
    version_of,
    write_asked,
)


class SameCode(UserError):
    """A version of the job runs the code as it is now."""


class Reprocess(msgspec.Struct, frozen=True):
    """A version that was asked for, and the topic that it will write."""

    job: str
    version: str
    code: str
    output: str


def reprocess(
    connection: Connection | None,
    project: Path,
    data: Path,
    job: str,
    *,
    anyway: bool = False,
    state_of: str = "",
    clock: Clock | None = None,
) -> Reprocess:
    """Ask for the next version of a job, the first one where it has none; on return it survives everything, and is
    started.

    Args:
        connection: the log, so that no number of another data directory is taken; None where it does not run.
        project: its directory; the code is taken from there as it is now.
        data: its data directory; `mainstem up` may hold it.
        job: its name.
        anyway: also where a version runs this very code: the new one reads in the shape that topics have now.
        state_of: a version, which `mainstem up` runs, whose state it goes on with, from where that one is.
        clock: what the time is taken from.

    Raises:
        UserError: the project was never started from here, or does not have the job, or not any more.
        BadDeclaration, BadSetting: the project as it is now is wrong.
        SameCode: a version of the job runs this code; unless `anyway`.
        NotLanded: the version whose state is wanted does not run, or has read nothing yet.
        DirectoryInUse: other commands on this data directory take longer than they do.
    """
    clock = clock or SystemClock()
    _check_started(data)
    with hold_catalog(data):  # also since of the threads of a process one at a time may load a project
        loaded = load_project(project)
        if job not in loaded.jobs:
            raise UserError(
                f"{project / PROJECT_FILE}: expected job {job}, found {', '.join(loaded.order) or 'none'}",
                hint="`mainstem plan` shows the jobs of the project as it is now",
            )
        frozen = freeze(project, data, clock)
        check_whole(loaded, frozen)
        if not anyway:
            _check_other(loaded, data, job, frozen.sha)
        known, first = _known(connection, job), version_of(None, job, loaded.job_config(job))
        is_first = not known and not _was_started(data, job)
        version = first if is_first else free_version(data, job, [*known, loaded.job_config(job).version])
        if state_of:
            if connection is None or not is_driven(data, job, state_of):
                raise NotLanded(
                    f"job {job_key(job, state_of)} does not run, whose state is to be taken",
                    hint="`mainstem up` runs it; `mainstem job versions` shows which there are",
                )
            with_state_of(connection, data, job, state_of, version)
        asked = Asked(job, version, frozen.sha, output_topic(loaded.jobs[job].to, version), clock.now_ms())
        write_asked(data / "jobs" / job_key(job, version), asked)
    return Reprocess(job, version, asked.sha, asked.output)


def wait_ready(connection: Connection, job: str, version: str, waiting: Waiting = PATIENT) -> None:
    """Return once a version that was asked for has read what the current one had read when this was called.

    Raises:
        UserError: it has failed.
        NotReached: the time is over.
    """
    now = look(connection)
    pin = Pin(now, job, now.current.get(job, ""))
    wait_until_read(connection, {job: version}, {job: pin}, waiting, meanwhile="it goes on")


def _check_started(data: Path) -> None:
    """See that `mainstem up` has started something from here."""
    if not (data / "jobs").is_dir():
        raise UserError(
            f"{data}: expected jobs that were started from there, found none", hint="`mainstem up` starts them"
        )


def _was_started(data: Path, job: str) -> bool:
    """Whether a version was started, or asked for, from here; it may be retired since."""
    homes = (data / "jobs").glob(f"{glob.escape(job)}@*")
    return any(read_fixed(home) or read_asked(home) for home in homes)


def _check_other(project: Project, data: Path, job: str, sha: str) -> None:
    """See that none of the versions that run has this code.

    Raises:
        SameCode: one has.
    """
    lives = [each for each in all_versions(data) if each.job == job]
    compared = Comparison(data, project.directory)
    same = [each.version for each in lives if each.sha == sha or runs_the_same(project, each, compared)]
    if same:
        raise SameCode(
            f"job {job_key(job, same[0])} runs the code as it is now, {sha}: the same again would come of it",
            hint="edit the code first; --anyway builds it once more, in the shape that its topics have now",
        )


def _known(connection: Connection | None, job: str) -> list[str]:
    """The versions that the log knows: another data directory may have started some."""
    if connection is None:
        return []
    entry: dict[str, Any] = entries(read_catalog(connection), "job").get(job, {})
    return [*entry.get("versions", {}), *entry.get(RETIRED, ())]
