"""Where plain consumers pass from one version of a stream to another (`splice`): the end of either output at which both
had read the same.

    version 1   ...  batch 41  up to  flights 0:5120   its output ends at 900  ─┐  held there by `landing`, or stopped
    version 2   ...  batch 17  up to  flights 0:5120   its output ends at 880  <┘  or a batch that ends there

Versions that run are held at one position until the cutover is written. A version that does not run stands where its
last batch ended; of the one that comes some batch may end there, too. Where none does, consumers can be given the batch
before: what lies between is there by both versions.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.basis import furthest, reaches
from mainstem.client.catalog import TopicEntry, current_versions, entries, topic_entries
from mainstem.client.compacted import decode_state
from mainstem.client.connection import Connection
from mainstem.client.internal import PROGRESS, job_key
from mainstem.client.progress import NextOffsets, Progress
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import start_offsets
from mainstem.core import Retriable
from mainstem.process.landing import NotLanded, check_held, held_at_one_position, is_driven, went_on
from mainstem.process.planting import Stand
from mainstem.process.readiness import Look, is_of_one_moment, look, look_at_held
from mainstem.process.realtime_rules import without_realtime
from mainstem.process.splice import splices_of


class NoSeam(Retriable):
    """There is no place at which both versions of a stream had read the same."""


class Seam(msgspec.Struct, frozen=True):
    """One job's.

    Attributes:
        batches: by version, of those that must not go on before the cutover is written: the last one.
        ends: of both outputs.
        repeated: so many records at most are there by both versions.
    """

    batches: dict[str, int | None]
    ends: NextOffsets
    repeated: int = 0

    def check(self, now: Look, job: str) -> None:
        """See that versions still are where they stood.

        Raises:
            NotLanded: one has gone on.
        """
        check_held(self.batches, {version: now.batch(job, version) for version in self.batches})


def spliced_streams(catalog: Mapping[str, dict[str, Any]], jobs: Iterable[str]) -> list[str]:
    """Jobs that write streams and are spliced; of a table the splice itself writes what differs."""
    topics, known, current = topic_entries(catalog), entries(catalog, "job"), current_versions(catalog)

    def writes_a_stream(job: str) -> bool:
        about = known.get(job, {}).get("versions", {}).get(current.get(job), {})
        return topics.get(about.get("output", ""), TopicEntry()).kind == "stream"

    return [job for job in jobs if splices_of(catalog, job) and writes_a_stream(job)]


@contextmanager
def held_seams(
    connection: Connection,
    data: Path,
    now: Look,
    targets: Mapping[str, str],
    *,
    at_least_once: bool = False,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[dict[str, Seam]]:
    """The seam of each job that is a spliced stream; it holds until the block ends.

    Args:
        connection: the log.
        data: the data directory that the versions run in.
        now: what the log says; versions that come have read as far as the current ones.
        targets: the version that comes, by job.
        at_least_once: where a current version does not run, and no batch of the other one ends where it stopped, begin
            behind the one before.
        pause: waits so many seconds; what it raises ends it.

    Raises:
        NoSeam: there is none.
        UserError: nor can there be one: a version's rows are not bound to batches.
        NotLanded: versions that run could not be brought to one position.
    """
    jobs = {job: (now.current[job], targets[job]) for job in spliced_streams(now.catalog, targets)}
    abouts = {job_key(job, each): now.about(job, each) for job, versions in jobs.items() for each in versions}
    without_realtime(
        [(key, "guarantee" in about) for key, about in abouts.items()],
        "expected a version that a splice can go on with: plain consumers could not be given each record once",
    )
    stopped = {job: [each for each in versions if not is_driven(data, job, each)] for job, versions in jobs.items()}
    driven = {job: each for job, each in jobs.items() if not stopped[job]}
    seams = {
        job: _of_stopped(connection, job, *versions, stopped[job], at_least_once=at_least_once)
        for job, versions in jobs.items()
        if job not in driven
    }
    with ExitStack() as stack:
        if driven:
            try:
                seams |= _of_held(
                    connection, stack.enter_context(held_at_one_position(data, driven, pause=pause)), driven
                )
            except NotLanded as error:
                if not at_least_once:
                    raise NotLanded(f"{error}; {_why(now, driven)}", hint=_what_helps(driven)) from error
                seams |= {
                    job: _of_stopped(connection, job, *versions, [], at_least_once=True)
                    for job, versions in driven.items()
                }
        yield seams


def _of_held(
    connection: Connection, held: Mapping[str, Mapping[str, Stand]], jobs: Mapping[str, tuple[str, str]]
) -> dict[str, Seam]:
    batches = {job: {version: stand.batch for version, stand in held[job].items()} for job in jobs}
    reached = look_at_held(connection, batches)
    for job, (current, target) in jobs.items():
        if reached.event_time(job, target) != reached.event_time(job, current):
            raise NoSeam(
                f"job {job}: at one position the versions {current} and {target} have not closed the same windows, and "
                "its stream is spliced; nothing is changed",
                hint="a heartbeat came to one of them only: try again when more events have come",
            )
        if not is_of_one_moment(connection, reached, job, (current, target)):
            raise went_on(job)
    return {
        job: Seam(
            {**batches[job]},
            {
                output: _end(connection, reached, job, version)
                for version, output in zip(versions, _outputs(reached, job, versions), strict=True)
            },
        )
        for job, versions in jobs.items()
    }


def _of_stopped(
    connection: Connection, job: str, current: str, target: str, idle: list[str], *, at_least_once: bool
) -> Seam:
    """At a batch of the version that comes. No driver runs those that are `idle`; where none is, none could be held."""
    now = look(connection)  # what it has begun to commit is part of what it wrote
    if not is_of_one_moment(connection, now, job, [current]):
        raise went_on(job)
    if now.windows_by(job, current) or now.windows_by(job, target):
        raise NoSeam(
            f"{_not_held(job, idle)}, and what has windows open is left only where both versions are held; "
            f"{_why(now, {job: (current, target)})}",
            hint=f"bring version {' and '.join(idle) or current} to run; a splice of another name begins with version "
            f"{target}",
        )
    old, new = _outputs(now, job, (current, target))
    stopped = now.basis(job, current)
    start = dict.fromkeys(now.ends.get(new, {}), 0)
    end = first = start  # after the last batch within, and after the first that goes as far
    is_exact = not any(offset for each in stopped.values() for offset in each.values())
    is_covered = False
    for batch in _batches(connection, job, target):
        first = furthest({new: first}, {new: batch.ends.get(new, {})})[new]
        is_covered = _within(stopped, batch.basis)
        if _within(batch.basis, stopped):
            end, is_exact = first, is_exact or is_covered
        elif is_covered:
            break
    repeated = sum(first.values()) - sum(end.values())
    if not (is_exact or at_least_once or (is_covered and not repeated)):
        raise NoSeam(
            f"{_not_held(job, idle)}, and no batch of version {target} ends where version {current} stands; "
            f"{_why(now, {job: (current, target)})}",
            hint=_what_helps({job: (current, target)})
            if current in idle
            else f"have `mainstem up` run {job_key(job, target)} beside {job_key(job, current)}, and try again",
        )
    ends = {old: _end(connection, now, job, current), new: end}
    return Seam({current: now.batch(job, current)}, ends, 0 if is_exact else repeated)


def _end(connection: Connection, now: Look, job: str, version: str) -> dict[int, int]:
    """Where the output of a version ended with its last batch; where all of that was deleted, what is there begins."""
    output, written = str(now.about(job, version)["output"]), now.written(job, version)
    starts = start_offsets(connection, output) if output in now.ends else {}
    return {partition: max(offset, starts.get(partition, 0)) for partition, offset in written.items()}


def _not_held(job: str, idle: list[str]) -> str:
    match [job_key(job, version) for version in idle]:
        case []:
            return f"job {job}: its versions run, and could not be held at one position"
        case [one]:
            return f"job {one} does not run"
        case several:
            return f"jobs {' and '.join(several)} do not run"


def _outputs(now: Look, job: str, versions: Iterable[str]) -> list[str]:
    return [str(now.about(job, version)["output"]) for version in versions]


def _batches(connection: Connection, job: str, version: str) -> Iterator[Progress]:
    """All of a version, in their order."""
    key, starts = job_key(job, version).encode(), start_offsets(connection, PROGRESS)
    with CommittedReader(connection, PROGRESS, starts, deleted="earliest", decided=True) as reader:
        for messages in reader:
            for message in messages:
                if message.key() == key and message.value():
                    yield decode_state(PROGRESS, key, message.value(), Progress)


def _within(inner: NextOffsets, outer: NextOffsets) -> bool:
    return all(reaches(outer.get(topic, {}), each) for topic, each in inner.items())


def _why(now: Look, jobs: Mapping[str, tuple[str, str]]) -> str:
    topics = ", ".join(splice for job in jobs for splice in splices_of(now.catalog, job))
    return f"topic {topics} is to have each record once, by one of both versions"


def _what_helps(jobs: Mapping[str, tuple[str, str]]) -> str:
    versions = ", ".join(f"{job}@{current} and {job}@{target}" for job, (current, target) in jobs.items())
    return (
        f"have `mainstem up` run {versions}; where the current one cannot run any more: `mainstem job cutover "
        "--at-least-once`, and some records come twice"
    )
