"""The versions of one job side by side: for `mainstem job versions`, and whoever shows them in another way."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mainstem.client.catalog import previous_versions
from mainstem.client.connection import Connection
from mainstem.client.internal import job_key
from mainstem.core import CorruptData
from mainstem.core.task import TaskState
from mainstem.process.frozen import open_version
from mainstem.process.readiness import Pin, look
from mainstem.process.versions import read_asked
from mainstem.standalone.overview import JobState, job_state


class JobVersion(JobState, frozen=True, kw_only=True):
    """One version, and whether readers can be moved to it.

    `frozen_at`: when its code was, in ms since 1970; None where its copy is not in the data directory. `behind`: how
    many offsets it has to read to where the current version was when this was asked; `ready` where that is none.
    """

    previous: bool
    frozen_at: int | None
    behind: int
    ready: bool


def job_versions(connection: Connection, data: Path, job: str, tasks: Sequence[TaskState] = ()) -> list[JobVersion]:
    """The versions of a job. What they have to reach is pinned now.

    Raises:
        UnknownJob: there is no such job.
    """
    states = job_state(connection, job, tasks)
    now = look(connection)
    current, previous = now.current.get(job, ""), previous_versions(now.catalog).get(job)
    found = []
    for state in states:
        started = bool(now.about(job, state.version))
        if not started:
            state = _as_asked(data, state)
        pin = Pin(now, job, current)
        behind = 0 if state.version == current else pin.missing(now, job, state.version)
        open_ms = 0 if state.version == current else pin.open_ms(now, job, state.version)
        found.append(
            JobVersion(
                **msgspec.structs.asdict(state),
                previous=state.version == previous,
                frozen_at=_frozen_at(data, state.code),
                behind=behind,
                ready=started and not behind and not open_ms,
            )
        )
    return found


def _as_asked(data: Path, state: JobState) -> JobState:
    """What is known of a version that was asked for, and has not started."""
    try:
        asked = read_asked(data / "jobs" / job_key(state.job, state.version))
    except CorruptData:
        return state
    return state if asked is None else msgspec.structs.replace(state, code=asked.sha, output=asked.output)


def _frozen_at(data: Path, code: str) -> int | None:
    try:
        return open_version(data, code).manifest.frozen_at if code else None
    except CorruptData:
        return None
