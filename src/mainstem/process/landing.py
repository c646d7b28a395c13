"""Bring versions of a job to one position of their inputs, while they run: there their outputs can be compared.

    who asks                        jobs/.landing~ (flock)         the driver of each version
    1. stop, and say where you are  <home>/landing.json  ------->  stops the query; <home>/landed.json
    2. go to the furthest of both   <home>/landing.json  ------->  runs planted batches up to there, no further
    3. note where the outputs end; the files go, and the queries go on

A query is held only while the lock is, and for five minutes of one request: whoever asks may be killed, or stopped by
Ctrl-Z, at any time. A driver that is killed goes on where
its checkpoint is, and is asked again. Planted batches are batches like any other (`planting`), exactly once.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from mainstem.client.basis import furthest
from mainstem.client.internal import job_key
from mainstem.client.progress import NextOffsets
from mainstem.core import MainstemError, Retriable
from mainstem.core.files import write_atomically
from mainstem.core.locks import hold, is_held
from mainstem.core.prepared import prepared
from mainstem.process.planting import Stand, is_at
from mainstem.process.realtime_rules import without_realtime
from mainstem.process.versions import read_fixed

LOCK = ".landing~"
"""No version can have such a name."""
REQUEST_FILE, ANSWER_FILE = "landing.json", "landed.json"
ANSWER_SECONDS = 120.0
MOST_SECONDS = 300.0  # of one request: somebody who was stopped shall not stop the jobs
_LOOK_EVERY_SECONDS = 0.2
_TRIES = 5


class NotLanded(Retriable):
    """Versions could not be brought to one position."""


class Landing(msgspec.Struct, frozen=True):
    """What a driver is asked. `to`: None: only stop."""

    id: str
    to: NextOffsets | None = None


class Landed(msgspec.Struct, frozen=True):
    """What it has done."""

    id: str
    stand: Stand | None = None
    error: str = ""


def request_in(data: Path, home: Path) -> Landing | None:
    """What the driver of the version in `home` is asked to do now; None where nobody waits for it any more."""
    path = home / REQUEST_FILE
    if not path.exists() or not is_held(data / "jobs", LOCK):
        return None
    try:
        asked = msgspec.json.decode(path.read_bytes(), type=prepared(Landing))
        return asked if time.time() - path.stat().st_mtime < MOST_SECONDS else None
    except (OSError, msgspec.DecodeError):  # it has just gone
        return None


def answer(home: Path, landed: Landed) -> None:
    """Tell whoever asked."""
    write_atomically(home / ANSWER_FILE, msgspec.json.encode(landed))


@contextmanager
def held_at_one_position(
    data: Path,
    jobs: Mapping[str, Sequence[str]],
    *,
    seconds: float = ANSWER_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[dict[str, dict[str, Stand]]]:
    """Hold versions of jobs, which their drivers run, those of each job at one position of all that they read: where
    each stands, by job and version.

    Args:
        data: the data directory that they run in.
        jobs: versions by job.
        seconds: for each answer of a driver.
        pause: waits so many seconds; what it raises ends it, and all goes on.

    Raises:
        NotLanded: a driver did not do it, or not in time; all goes on.
        UserError: a version has no such position: its rows are not bound to batches.
        DirectoryInUse: somebody else does the same for all of the time.
    """
    homes = [home for job, versions in jobs.items() for home in _homes(data, job, versions).values()]
    fixed = {home.name: read_fixed(home) for home in homes}
    latencies = [(key, each is not None and each.realtime) for key, each in fixed.items()]
    without_realtime(latencies, "expected a version that can be held at a position of its inputs")
    with hold(data / "jobs", LOCK, seconds):
        _clean(data)
        try:
            yield {job: _land(_homes(data, job, versions), seconds, pause) for job, versions in jobs.items()}
        finally:
            _clean(data)


def check_held(before: Mapping[str, int | None], now: Mapping[str, int | None]) -> None:
    """See that versions still are where they stood: after five minutes, as of somebody who was stopped, they go on.

    Args:
        before: the last batch of each that was committed when it stood.
        now: the last one that is.

    Raises:
        NotLanded: one has gone on, or the log does not show yet where it stands.
    """
    for version, batch in before.items():
        found, stood = (-1 if each is None else each for each in (now[version], batch))
        if found > stood:
            raise NotLanded(f"version {version} was held for too long, and has gone on", hint="try again")
        if found < stood:  # where it ends would be taken from before
            raise NotLanded(
                f"version {version} stands at batch {stood}, of which the log shows {found} at most: a transaction is open",
                hint="try again",
            )


def went_on(job: str) -> NotLanded:
    """A batch came between two questions whose answers were to be of one moment."""
    return NotLanded(f"job {job}: a version went on while its output was asked for its end", hint="try again")


def is_driven(data: Path, job: str, version: str) -> bool:
    """Whether a driver runs that has the code of a version."""
    fixed = read_fixed(data / "jobs" / job_key(job, version))
    return fixed is not None and is_held(data / "spark" / fixed.sha)


def _homes(data: Path, job: str, versions: Sequence[str]) -> dict[str, Path]:
    return {version: data / "jobs" / job_key(job, version) for version in versions}


def _clean(data: Path) -> None:
    """Remove what there is of requests: those of somebody who was killed would be taken for ours."""
    for name in (REQUEST_FILE, ANSWER_FILE):
        for path in (data / "jobs").glob(f"*/{name}"):
            path.unlink(missing_ok=True)


def _land(homes: Mapping[str, Path], seconds: float, pause: Callable[[float], object]) -> dict[str, Stand]:
    found = _ask(homes, None, seconds, pause)
    for _ in range(_TRIES):
        to: NextOffsets = {}
        for each in found.values():
            to = furthest(to, _stand(each).basis)
        found = _ask(homes, to, seconds, pause)
        # Otherwise one was started again in between, and has read on.
        if all(is_at(_stand(each).basis, to) for each in found.values()):
            return {version: _stand(each) for version, each in found.items()}
    raise NotLanded(
        f"the versions {', '.join(homes)} did not come to one position: they are started again and again",
        hint="`mainstem job list` says why",
    )


def _ask(
    homes: Mapping[str, Path], to: NextOffsets | None, seconds: float, pause: Callable[[float], object]
) -> dict[str, Landed]:
    """Ask all of them, then wait for all answers."""
    asked = Landing(uuid.uuid4().hex, to)
    for home in homes.values():
        write_atomically(home / REQUEST_FILE, msgspec.json.encode(asked))
    deadline = time.monotonic() + seconds
    found: dict[str, Landed] = {}
    while len(found) < len(homes):
        for version, home in homes.items():
            with suppress(FileNotFoundError, msgspec.DecodeError):
                landed = msgspec.json.decode((home / ANSWER_FILE).read_bytes(), type=prepared(Landed))
                if landed.id == asked.id:
                    found[version] = landed
                    if landed.error:
                        raise NotLanded(
                            f"job {home.name}: {landed.error}", hint="`mainstem job list` says how its versions are"
                        )
        if len(found) < len(homes):
            if time.monotonic() > deadline:
                missing = ", ".join(home.name for version, home in homes.items() if version not in found)
                raise NotLanded(
                    f"job {missing}: no answer within {seconds:.0f} s",
                    hint="see with `mainstem status` that its driver runs; a batch of it may take long",
                )
            pause(_LOOK_EVERY_SECONDS)
    return found


def _stand(landed: Landed) -> Stand:
    if landed.stand is None:
        raise NotLanded("a version has not read anything yet", hint="ask again when it has")
    return landed.stand


class Landable(Protocol):
    """What a version that runs must be able to do."""

    def land(self, to: NextOffsets | None) -> Stand | None:
        """Stop; then go to a position, and no further. None: there has been no batch."""

    def release(self) -> None:
        """Go on."""


class Lander:
    """The driver's side, for one running version: `step` now and then; while it says so, the query is held."""

    def __init__(self, data: Path, home: Path) -> None:
        self._data, self._home = data, home
        self._done = ""

    def step(self, job: Landable) -> bool:
        """Do what is asked; whether the query is held now.

        Raises:
            Exception: the query cannot be started again.
        """
        asked = request_in(self._data, self._home)
        if asked is None:
            if self._done:
                self._done = ""
                job.release()
            return False
        if asked.id == self._done:
            return True
        try:
            stand = job.land(asked.to)
        except Exception as error:
            reason = str(error) if isinstance(error, MainstemError) else f"{type(error).__name__}: {error}"
            answer(self._home, Landed(asked.id, error=" ".join(reason.split())))
            raise
        self._done = asked.id
        answer(self._home, Landed(asked.id, stand))
        return True

    def refuse(self, reason: str) -> None:
        """Say that the version does not run, where somebody waits for it."""
        asked = request_in(self._data, self._home)
        if asked is not None and asked.id != self._done:
            self._done = asked.id
            answer(self._home, Landed(asked.id, error=f"does not run: {reason}"))
