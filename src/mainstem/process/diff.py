"""What differs between the outputs of two versions of a job at one position of their inputs.

1. Wait until each has read what the other one has, 2. hold both at the furthest position of the two (`landing`),
3. note where their outputs end, and let them go on, 4. compare the outputs up to there (`compare`). Where nothing runs,
or both are idle at one position already, nobody is held.

At one position equal code has equal output, if the result does not depend on how the input was cut into batches. Where
it may, the answer says so: not every difference then comes from the code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import TopicEntry, named_outputs, topic_entries
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS, job_key
from mainstem.client.progress import Marker, NextOffsets, merge_positions, read_markers
from mainstem.client.topics import list_topics, start_offsets
from mainstem.core import CorruptData, Retriable, UserError
from mainstem.process.analysis import LATE_ROWS, ROWS_BETWEEN
from mainstem.process.compare import ColumnDifference, Comparison, Example, Side, compare
from mainstem.process.cutover import PATIENT, Waiting, wait_until_read
from mainstem.process.landing import check_held, held_at_one_position, is_driven, went_on
from mainstem.process.planting import stand_of
from mainstem.process.readiness import Look, Pin, is_of_one_moment, look, look_at_held

_EXAMPLES = 10


class NotComparable(Retriable):
    """The versions are not at one position, and nobody can bring them there now."""


class Compared(msgspec.Struct, frozen=True):
    """One version: its topic, which was compared up to the offsets `ends`, and the batch that it had committed."""

    version: str
    output: str
    batch: int
    ends: dict[int, int]


class Diff(msgspec.Struct, frozen=True):
    """Rows that are `added`, `removed` or `changed` from `left` to `right`, when both had read `at`.

    `exact`: every difference comes from the code; otherwise `why` says what else it may come from.
    """

    job: str
    left: Compared
    right: Compared
    at: NextOffsets
    exact: bool
    why: str
    equal: int
    added: int
    removed: int
    changed: int
    columns: list[ColumnDifference]
    examples: list[Example]


class Position(msgspec.Struct, frozen=True):
    """Two versions of a job at one position: what they had read, and where what they had written ended."""

    at: NextOffsets
    sides: dict[str, Compared]
    now: Look


def diff(
    connection: Connection,
    data: Path,
    job: str,
    left: str,
    right: str,
    *,
    topic: str = "",
    limit: int = _EXAMPLES,
    waiting: Waiting = PATIENT,
) -> Diff:
    """Compare two versions of a job.

    Args:
        connection: the log.
        data: the data directory that they were started from; `mainstem up` may hold it.
        job: its name.
        left: one version.
        right: the other one.
        topic: of those that the job writes, as its declaration calls it; the first one unless given.
        limit: how many rows that differ are given.
        waiting: for a version that is behind, and for its driver.

    Raises:
        UserError: one was never started, or has failed, or writes no such topic.
        NotReached: one has not read what the other one had, in time.
        NotLanded, NotComparable: they could not be brought to one position.
    """
    if left == right:
        raise UserError(f"job {job}: expected two versions, found {left} twice")
    found = at_one_position(connection, data, job, left, right, topic=topic, waiting=waiting)
    sides = [Side(found.sides[version].output, found.sides[version].ends) for version in (left, right)]
    result = compare(connection, *sides, keyed=_is_table(found, job), limit=limit)
    why = _why_inexact(connection, found, job, (left, right))
    return _diff(job, found, left, right, result, why)


def at_one_position(
    connection: Connection,
    data: Path,
    job: str,
    left: str,
    right: str,
    *,
    topic: str = "",
    waiting: Waiting = PATIENT,
) -> Position:
    """Bring two versions to one position; they go on at once. It raises what `diff` does."""
    now = look(connection)
    for version in (left, right):
        if not now.about(job, version):
            raise UserError(
                f"job {job_key(job, version)} has never started on this log",
                hint=f"`mainstem job versions {job}` shows those that have",
            )
        _topic_of(now, job, version, topic)
    found = _as_they_are(connection, data, job, (left, right), topic)
    if found is not None:
        return found
    idle = [version for version in (left, right) if not is_driven(data, job, version)]
    if idle:
        raise NotComparable(
            f"job {job}: the versions {left} and {right} have not read up to one position, and {job_key(job, idle[0])} "
            "does not run",
            hint="compare them while `mainstem up` runs both",
        )
    for version, other in ((right, left), (left, right)):
        pin = Pin(look(connection), job, other)
        wait_until_read(connection, {job: version}, {job: pin}, waiting, meanwhile="both go on", windows=False)
    with held_at_one_position(data, {job: (left, right)}, pause=waiting.pause) as held:
        stood = {version: stand.batch for version, stand in held[job].items()}
        now = look_at_held(connection, {job: stood})
        check_held(stood, {version: now.batch(job, version) for version in stood})
        if not is_of_one_moment(connection, now, job, (left, right)):
            raise went_on(job)
        return _position(now, job, stood, topic)


def _position(now: Look, job: str, batches: Mapping[str, int], topic: str) -> Position:
    sides = {}
    for version, batch in batches.items():
        written = _topic_of(now, job, version, topic)
        sides[version] = Compared(version, written, batch, now.written(job, version, written))
    return Position(now.basis(job, next(iter(batches))), sides, now)


def _topic_of(now: Look, job: str, version: str, name: str) -> str:
    """What a version writes where the declaration has a topic of this name; its first topic where there is no name.

    Raises:
        UserError: it writes none of this name.
    """
    about = now.about(job, version)
    named = named_outputs(version, about)
    if name and name not in named:
        raise UserError(f"job {job_key(job, version)}: expected one of the topics {', '.join(named)}, found {name}")
    return named[name] if name else str(about["output"])


def _as_they_are(
    connection: Connection, data: Path, job: str, versions: tuple[str, str], topic: str
) -> Position | None:
    """Where both have read the same, closed the same windows, and have nothing to do: it is as good as being held."""
    before = _markers(connection)
    markers = [before.get(job_key(job, version)) for version in versions]
    if None in markers:
        return None
    known = [each for each in markers if each is not None]
    bases = [merge_positions(each.end_offsets) for each in known]
    try:
        stands = [
            stand_of(data / "jobs" / job_key(job, each.version) / "checkpoint", each.batch, each.end_offsets)
            for each in known
        ]
    except CorruptData:  # Spark is about to write it, or it lies elsewhere
        return None
    if bases[0] != bases[1] or len({stand.closed for stand in stands}) > 1:
        return None
    if any(stand.closed != stand.watermark for stand in stands):
        return None
    now = look(connection, decided=True)
    after = [now.markers.get(job_key(job, version)) for version in versions]
    if [each and each.batch for each in after] != [each.batch for each in known]:
        return None
    if not is_of_one_moment(connection, now, job, versions):
        return None
    return _position(now, job, {each.version: each.batch for each in known}, topic)


def _markers(connection: Connection) -> dict[str, Marker]:
    return read_markers(connection, decided=True) if COMMITS in list_topics(connection) else {}


def _is_table(found: Position, job: str) -> bool:
    """Whether the last row of each key counts.

    Raises:
        UserError: it does for one of them only.
    """
    known = topic_entries(found.now.catalog)
    kinds = {known.get(side.output, TopicEntry()).kind for side in found.sides.values()}
    if len(kinds) > 1:
        raise UserError(f"job {job}: expected two tables or two streams, found that one version writes each")
    return kinds == {"changelog"}


def _why_inexact(connection: Connection, found: Position, job: str, versions: tuple[str, str]) -> str:
    """What a difference may come from but the code; "" where from nothing."""
    abouts = {version: found.now.about(job, version) for version in versions}
    left, right = (found.now.streams(job, version) for version in versions)
    if left != right:
        return f"they read other topics: {', '.join(left)} and {', '.join(right)}"
    for version, about in abouts.items():
        if guarantee := about.get("guarantee"):
            return f"version {version} is there {guarantee}"
        if about.get("determinism") == "prefix-deterministic":
            continue
        reason = str(about.get("reason", ""))
        # Of a table the last row of each key is compared, however many were written before it.
        if reason.partition(": ")[2] not in (LATE_ROWS, ROWS_BETWEEN, f"{ROWS_BETWEEN}; {LATE_ROWS}"):
            return f"version {version} is batch-dependent: {reason}"
        if late := _late(found.now.markers.get(job_key(job, version))):
            return f"version {version} is batch-dependent: {late:,} of the rows that it read came late"
    if told := windows_differ(found.now, job, versions):
        return told
    if not _is_table(found, job):
        for side in found.sides.values():
            if any(start_offsets(connection, side.output).values()):
                return f"the first records of topic {side.output} were deleted"
    for topic in (each for each in left if each in found.now.ends):
        if any(start_offsets(connection, topic).values()) and not _have_read_the_same(found.now, job, versions, topic):
            return f"the first records of topic {topic} were deleted: a version that began later has not read them"
    return ""


def _have_read_the_same(now: Look, job: str, versions: tuple[str, str], topic: str) -> bool:
    """Whether the books of both versions show that they have read the same records of a topic."""
    left, right = (_books(now.markers.get(job_key(job, version)), topic) for version in versions)
    return bool(left) and left == right


def _books(marker: Marker | None, topic: str) -> set[frozenset[tuple[int, int, int, int, int]]]:
    """What each source of a version has read of a topic: partition, its range, and count and hash of the records."""
    reads: Mapping[str, Any] = marker.read if marker is not None else {}
    return {
        frozenset((p, read.start, read.end, read.count, read.hash) for p, read in by_topic[topic].items())
        for by_topic in reads.values()
        if topic in by_topic
    }


def windows_differ(now: Look, job: str, versions: tuple[str, str]) -> str:
    """Whether one of them has closed windows that the other one, at the same position, has not."""
    columns = {now.windows_by(job, version) for version in versions}
    if len(columns) > 1 or columns == {""}:
        return ""  # by other columns: that is the code; or there is nothing to close
    first, second = sorted(versions, key=lambda version: now.event_time(job, version))
    ahead = now.event_time(job, second) - now.event_time(job, first)
    return f"a heartbeat has closed windows of version {second} that version {first} has open still" if ahead else ""


def _late(marker: Marker | None) -> int:
    reads: Mapping[str, Any] = marker.read if marker is not None else {}
    topics = [topic for by_topic in reads.values() for topic in by_topic.values()]
    return sum(read.late for partitions in topics for read in partitions.values())


def _diff(job: str, found: Position, left: str, right: str, result: Comparison, why: str) -> Diff:
    return Diff(
        job,
        found.sides[left],
        found.sides[right],
        found.at,
        not why,
        why,
        result.equal,
        result.added,
        result.removed,
        result.changed,
        result.columns,
        result.examples,
    )
