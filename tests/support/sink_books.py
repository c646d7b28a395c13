"""What jobs wrote while they were killed, and what may not be among it.

A job's progress records say which input each of its batches has read, and where it ends in the outputs. So it is known
of each batch what it has to have written, and what lies where it wrote: all of it, once, and nothing else.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from mainstem.client.progress import Progress

Row = Hashable
Rows = Mapping[int, Sequence[tuple[int, Row]]]
"""Partition -> (offset, what it holds) of each record that a reader of committed ones finds, in their order."""


class Job(msgspec.Struct, frozen=True):
    """`writes`: the rows that a batch has to write, asked for batch by batch; the argument is what it has read."""

    name: str
    source: str
    output: str
    writes: Callable[[list[int]], Iterable[Row]]


class Anomalies(msgspec.Struct, frozen=True):
    lost: list[str] = []
    duplicated: list[str] = []
    torn: list[str] = []
    backward: list[str] = []

    def __add__(self, other: "Anomalies") -> "Anomalies":
        return Anomalies(*(mine + theirs for mine, theirs in zip(_lists(self), _lists(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(
            f"{len(found)} {name}" for name, found in zip(self.__struct_fields__, _lists(self), strict=True)
        )

    def __bool__(self) -> bool:
        return any(_lists(self))


def _lists(each: Anomalies) -> list[list[str]]:
    return [each.lost, each.duplicated, each.torn, each.backward]


def check_job(
    job: Job,
    source: Mapping[int, Mapping[int, int]],
    progress: Sequence[Progress],
    written: Rows,
    stable: Mapping[int, Iterable[int]],
) -> Anomalies:
    """What is wrong with a job's output.

    Args:
        job: the job, which has read all of its input.
        source: its input: partition -> offset -> number.
        progress: of the job, in the order of the log.
        written: its output.
        stable: partition -> last stable offsets of the output that were seen while the job was killed, as they came.
    """
    found, batches = Anomalies(), [each.batch for each in progress]
    for number, count in Counter(batches).items():
        if count > 1:
            found.duplicated.append(f"{job.name}: batch {number} was committed {count} times")
    if missing := sorted(set(range(max(batches, default=-1) + 1)) - set(batches)):
        found.lost.append(f"{job.name}: batches {missing} were not committed")
    due, there, start, read_to = Counter[Row](), Counter[Row](), dict.fromkeys(written, 0), dict.fromkeys(source, 0)
    for each in sorted(progress, key=lambda each: each.batch):
        wanted = Counter(job.writes(list(_read(source, read_to, each.basis.get(job.source, {})))))
        ends = start | each.ends.get(job.output, {})
        wrote = Counter[Row]()
        for partition, records in written.items():
            offsets = [(offset, row) for offset, row in records if start[partition] <= offset < ends[partition]]
            wrote.update(row for _, row in offsets)
            if offsets:
                first, last = offsets[0][0], offsets[-1][0]
                parts = [each for each in stable.get(partition, ()) if first < each <= last]
                found.torn.extend(
                    f"{job.name}: of batch {each.batch}, offsets {first} to {last} of partition {partition}, a reader "
                    f"saw those before {part}"
                    for part in parts
                )
        if wrote != wanted:
            found.torn.append(
                f"{job.name}: batch {each.batch} lacks {_some(wanted - wrote)} and has {_some(wrote - wanted)}"
            )
        due, there, start, read_to = due + wanted, there + wrote, ends, read_to | each.basis.get(job.source, {})
    beyond = Counter(
        row for partition, records in written.items() for offset, row in records if offset >= start[partition]
    )
    if beyond:
        found.torn.append(f"{job.name}: {_some(beyond)} lie behind the last batch")
    there += beyond
    left = Counter(
        job.writes(list(_read(source, read_to, {p: max(each, default=-1) + 1 for p, each in source.items()})))
    )
    if lost := due + left - there:
        found.lost.append(f"{job.name}: {_some(lost)}")
    if more := there - due - left:
        found.duplicated.append(f"{job.name}: {_some(more)}")
    return found


def check_reader(name: str, seen: Rows, written: Rows) -> Anomalies:
    """What is wrong with what a reader saw who was there all the time."""
    found = Anomalies()
    for partition, records in seen.items():
        where = f"{name}-{partition}"
        for (before, _), (after, _) in pairwise(records):
            if after <= before:
                found.backward.append(f"{where}: offset {after} was read after {before}")
        there = written[partition][: len(records)]
        for saw, is_there in zip(records, there, strict=False):
            if saw != is_there:
                found.torn.append(f"{where}: a reader saw {saw}, there is {is_there}")
                break
        if len(there) < len(records):
            found.lost.append(f"{where}: a reader saw {len(records)} records, {len(there)} are there")
    return found


def check_stable(name: str, stable: Mapping[int, Sequence[int]]) -> Anomalies:
    """Of a partition, what is stable stays so."""
    return Anomalies(
        backward=[
            f"{name}-{partition}: the last stable offset was {before}, then {after}"
            for partition, offsets in stable.items()
            for before, after in pairwise(offsets)
            if after < before
        ]
    )


def _read(source: Mapping[int, Mapping[int, int]], start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[int]:
    for partition, to in end.items():
        for offset in range(start.get(partition, 0), to):
            if offset in source[partition]:
                yield source[partition][offset]


def _some(rows: Counter[Row]) -> str:
    total = rows.total()
    return f"{total} rows ({', '.join(map(str, list(rows)[:3]))}{', …' if total > 3 else ''})" if total else "none"


def copies(numbers: list[int]) -> Iterator[Row]:
    """What a job writes that copies its input."""
    yield from numbers


class Totals:
    """What a job writes that counts and sums numbers by lane and window, and tells each change."""

    def __init__(self, lanes: int, in_a_window: int) -> None:
        self._lanes, self._in_a_window = lanes, in_a_window
        self._totals: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self, numbers: list[int]) -> Iterator[Row]:
        touched = set()
        for number in numbers:
            place = number % self._lanes, number // self._in_a_window
            count, total = self._totals.get(place, (0, 0))
            self._totals[place] = count + 1, total + number
            touched.add(place)
        for place in touched:
            yield (*place, *self._totals[place])
