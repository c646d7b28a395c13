"""Move the readers of jobs from one version to another, several jobs at once, and back.

1. Pin what readers may have seen of the versions that are left, 2. wait until those that come have read as far,
3. write one record to the catalog. A command that ends before the third step has changed nothing, and after it there is
nothing left to do: whoever follows the catalog moves by itself.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.basis import Basis
from mainstem.client.catalog import (
    RETIRED,
    check_target,
    current_versions,
    entries,
    outputs_of,
    plain_name,
    previous_versions,
    read_catalog,
    retired,
    way_back,
    with_cutover,
)
from mainstem.client.catalog_changes import Catalog, change_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, job_key
from mainstem.client.progress import NextOffsets
from mainstem.client.topics import cluster_id
from mainstem.core import Clock, Retriable, SystemClock, UserError
from mainstem.process.readiness import Look, Pin, look
from mainstem.process.retire import hold_catalog
from mainstem.process.seam import Seam, held_seams, spliced_streams
from mainstem.process.splice import all_stay, position_of, splices_of
from mainstem.process.versions import is_bound, is_retired

TIMEOUT_SECONDS = 600.0
LOOK_EVERY_SECONDS = 0.5


class NotReached(Retriable):
    """A version has not read as far as the one that readers are to be moved from."""


class Overtaken(Retriable):
    """Another command has moved the readers of a job meanwhile."""


class Move(msgspec.Struct, frozen=True):
    """What was moved: readers of a job's topics mean `version` now, which writes `output`, and `also` further ones."""

    job: str
    version: str
    previous: str
    output: str
    at: NextOffsets
    also: list[str] = []

    @property
    def named(self) -> dict[str, str]:
        """The topics that it writes, by the names that readers have for them."""
        return {plain_name(self.version, topic): topic for topic in (self.output, *self.also)}


class Moves(msgspec.Struct, frozen=True):
    """A cutover or a revert; a read that carries the token `basis` is answered by the versions that came."""

    moves: list[Move]
    basis: str


class Waiting(msgspec.Struct, frozen=True):
    """How long to wait for versions that are not ready, and what happens meanwhile.

    Attributes:
        timeout_seconds: then it is given up.
        failed: why versions do not run, by `<job>@<version>`, of those that do not.
        tried_again: why the last try has failed, of those that are tried again by themselves.
        tell: is called with a line when there is something new to wait for, or to know.
        clock: what the time is measured with.
        pause: waits so many seconds.
    """

    timeout_seconds: float = TIMEOUT_SECONDS
    failed: Callable[[], Mapping[str, str]] = dict
    tried_again: Callable[[], Mapping[str, str]] = dict
    tell: Callable[[str], None] = lambda _: None
    clock: Clock = SystemClock()
    pause: Callable[[float], object] = time.sleep


PATIENT = Waiting()


def cutover(
    connection: Connection,
    data: Path,
    targets: Mapping[str, str],
    waiting: Waiting = PATIENT,
    *,
    at_least_once: bool = False,
) -> Moves:
    """Make these versions of jobs current, all at once.

    Args:
        connection: the log.
        data: the data directory that they were started from; `mainstem up` may hold it.
        targets: version by job.
        waiting: for those that are not ready.
        at_least_once: plain consumers of a spliced stream whose current version does not run may read records twice.

    Raises:
        UserError: one was never started, was retired, is current, or has failed.
        NotReached: one was not ready in time; nothing is changed.
        NoSeam, NotLanded: plain consumers of a splice could not be given each record once; nothing is changed.
        Overtaken: another command was faster; nothing is changed.
    """
    return _move(connection, data, lambda _: targets, waiting, at_least_once=at_least_once)


def revert(
    connection: Connection,
    data: Path,
    jobs: Iterable[str],
    waiting: Waiting = PATIENT,
    *,
    to: Mapping[str, str] | None = None,
) -> Moves:
    """Make the versions before the last cutover current again; they may have to catch up first.

    Args:
        connection: the log.
        data: the data directory that they were started from.
        jobs: their names.
        waiting: for those that are not ready.
        to: the versions, by job, that somebody expects it to lead to.

    Raises:
        Overtaken: it leads to another one by now; nothing is changed.
        UserError, NotReached, NoSeam, NotLanded: as `cutover` does.
    """
    names = list(jobs)

    def choose(now: Look) -> Mapping[str, str]:
        _check_way_back(now.catalog, to or {})
        return way_back(now.catalog, names)

    return _move(connection, data, choose, waiting)


def check_revert(connection: Connection, to: Mapping[str, str]) -> None:
    """See that a revert leads to these versions, by job; wait for nothing.

    Raises:
        Overtaken: it leads to another one by now, or nowhere.
    """
    _check_way_back(read_catalog(connection), to)


def _check_way_back(catalog: Mapping[str, dict[str, Any]], to: Mapping[str, str]) -> None:
    previous = previous_versions(catalog)
    for job, version in to.items():
        if previous.get(job) != version:
            found = f"version {previous[job]}" if job in previous else "no version to go back to"
            raise Overtaken(
                f"job {job}: expected that a revert leads to version {version}, found {found}: its readers were moved "
                "meanwhile, or that version was retired; nothing is changed",
                hint=f"`mainstem job versions {job}` shows how it is",
            )


def check_targets(connection: Connection, data: Path, targets: Mapping[str, str]) -> None:
    """See that a cutover to these versions is no mistake, and wait for nothing.

    Raises:
        UserError: as `cutover` does.
    """
    now = look(connection)
    for job, version in targets.items():
        _check_can_move(now, data, job, version)


def _move(
    connection: Connection,
    data: Path,
    choose: Callable[[Look], Mapping[str, str]],
    waiting: Waiting,
    *,
    at_least_once: bool = False,
) -> Moves:
    now = look(connection)
    targets = choose(now)
    for job, version in targets.items():
        _check_can_move(now, data, job, version)
    current = {job: now.current[job] for job in targets}
    pins = {job: Pin(now, job, current[job]) for job in targets}
    wait_until_read(connection, targets, pins, waiting)
    spliced = {job: targets[job] for job in spliced_streams(now.catalog, targets)}
    _wait_for_splices(connection, now, spliced, waiting)
    # Where all splices stand at what readers go back to, and cannot leave it, no plain consumer passes over.
    stay = {job for job, version in spliced.items() if all_stay(connection, job, version)}
    passed = {job: version for job, version in targets.items() if job not in stay}
    with held_seams(connection, data, now, passed, at_least_once=at_least_once, pause=waiting.pause) as seams:
        for job, seam in seams.items():
            if seam.repeated:
                waiting.tell(f"job {job}: plain consumers read up to {seam.repeated:,} records twice")
        return _write(connection, data, targets, pins, current, waiting, seams)


def _check_can_move(now: Look, data: Path, job: str, version: str) -> None:
    """Refuse at once what waiting would not mend.

    Raises:
        UserError: no version of the job is current, or this one was never started, was retired, or is current.
    """
    if is_retired(data, job, version):  # the catalog hears of it last
        raise retired(job, version)
    entry = entries(now.catalog, "job").get(job, {})
    is_about_to_start = is_bound(data, job, version) and version not in (
        *entry.get("versions", {}),
        *entry.get(RETIRED, ()),
    )
    if not is_about_to_start:
        check_target(entries(now.catalog, "job"), now.current, job, version)
    elif not now.current.get(job):
        raise UserError(
            f"job {job}: expected a version that is current, found none: readers of it are not there to be moved",
            hint="the first version that starts is; `mainstem up` starts it",
        )


def _write(
    connection: Connection,
    data: Path,
    targets: Mapping[str, str],
    pins: Mapping[str, Pin],
    current: Mapping[str, str],
    waiting: Waiting,
    seams: Mapping[str, Seam],
) -> Moves:
    """The third step; readers are moved on return."""
    reached = look(connection, decided=True)  # afterwards: what covers the pin is in their outputs, up to these ends
    outputs = {job: [*outputs_of(reached.about(job, version)).values()] for job, version in targets.items()}
    at = {job: pins[job].positions | {topic: reached.end(topic) for topic in outputs[job]} for job in targets}
    ends = {job: seam.ends for job, seam in seams.items()}

    def change(catalog: Catalog) -> dict[str, Any]:
        last = look(connection, decided=True) if seams else reached
        for job, seam in seams.items():
            seam.check(last, job)
        for job, version in targets.items():
            _check_still(data, current_versions(catalog), job, version, current[job])
        return with_cutover(catalog, targets, at, waiting.clock.now_ms(), ends)

    with hold_catalog(data):
        end = change_catalog(connection, change)
    token = Basis(cluster_id(connection), {CATALOG: {0: end}}).token
    moves = [
        Move(job, version, current[job], outputs[job][0], at[job], outputs[job][1:]) for job, version in targets.items()
    ]
    return Moves(moves, token)


def wait_until_read(
    connection: Connection,
    targets: Mapping[str, str],
    pins: Mapping[str, Pin],
    waiting: Waiting,
    *,
    meanwhile: str = "nothing is changed",
    windows: bool = True,
) -> None:
    """Return once each version has started and has reached its pin.

    Args:
        connection: the log.
        targets: version by job.
        pins: by job.
        waiting: how long.
        meanwhile: what is so where the time is over.
        windows: it must have closed those that the pin says, too.

    Raises:
        UserError: one has failed.
        NotReached: the time is over.
    """
    told, deadline = "", waiting.clock.monotonic() + waiting.timeout_seconds
    while True:
        reasons = waiting.failed()
        for job, version in targets.items():
            if (key := job_key(job, version)) in reasons:
                raise UserError(
                    f"job {key} has failed: {reasons[key]}", hint="readers are moved to a version that runs: mend it"
                )
        now = look(connection, decided=True)
        left = [
            each
            for job, version in targets.items()
            if (each := _left(now, pins[job], job, version, windows=windows)) is not None
        ]
        if not left:
            return
        tried = waiting.tried_again()
        lines = ", ".join(f"{each.line}{_why(tried.get(each.key, ''))}" for each in left)
        if waiting.clock.monotonic() >= deadline:
            raise NotReached(f"not ready in time: {lines}; {meanwhile}", hint=_what_helps(left))
        if lines != told:
            waiting.tell(told := lines)
        waiting.pause(LOOK_EVERY_SECONDS)


class _Left(msgspec.Struct, frozen=True):
    """What is left of a version, `<job>@<version>`, for people; `closed_by`: the topics whose later records close the
    windows, if those are all that is left.
    """

    key: str
    line: str
    closed_by: tuple[str, ...] = ()


def _why(reason: str) -> str:
    return f" (its last try failed: {reason})" if reason else ""


def _left(now: Look, pin: Pin, job: str, version: str, *, windows: bool) -> _Left | None:
    key = job_key(job, version)
    if not now.about(job, version):
        return _Left(key, f"job {key} has not started")
    count = pin.missing(now, job, version)
    if count:
        return _Left(key, f"job {key} has {count:,} offsets to go")
    told = pin.open_windows(now, job, version) if windows else ""
    return _Left(key, f"job {key} {told}", tuple(now.streams(job, version))) if told else None


def _what_helps(left: Iterable[_Left]) -> str:
    topics = sorted({topic for each in left for topic in each.closed_by})
    if not topics:
        return "see with `mainstem job list` that it runs; --timeout gives it longer"
    ends = " and ".join(f"`curl -X POST …/v1/topics/{topic}/end`" for topic in topics)
    return (
        f"later events close them, or a stated end of what it reads: {ends} of the gateway, and of a file source the "
        "file <path>.end; --timeout waits longer"
    )


def _wait_for_splices(connection: Connection, now: Look, targets: Mapping[str, str], waiting: Waiting) -> None:
    """See that those of streams have followed the last cutover: a seam is between two versions. One that stands at the
    version that comes has nothing to follow: it goes on there, or at the seam if it follows meanwhile.
    """
    deadline = waiting.clock.monotonic() + waiting.timeout_seconds
    for job, version in targets.items():
        for splice in splices_of(now.catalog, job):
            told = False
            while (at := position_of(connection, splice)) is not None and at.version not in (now.current[job], version):
                if not told:
                    waiting.tell(f"topic {splice} has yet to follow the last cutover of job {job}")
                told = True
                if waiting.clock.monotonic() >= deadline:
                    raise NotReached(
                        f"topic {splice} has not followed the last cutover of job {job}; nothing is changed",
                        hint="`mainstem status` says how its splice is",
                    )
                waiting.pause(LOOK_EVERY_SECONDS)


def _check_still(data: Path, found: Mapping[str, str], job: str, version: str, current: str) -> None:
    """See that nobody has moved readers since, or ended the version.

    Raises:
        Overtaken, UserError: somebody has.
    """
    if found.get(job) != current:
        raise Overtaken(
            f"job {job}: expected that version {current} is current still, found {found.get(job)}: another command has "
            "moved its readers; nothing is changed",
            hint=f"`mainstem job versions {job}` shows how it is; give the command again if it is still what you want",
        )
    if is_retired(data, job, version):
        raise retired(job, version)
