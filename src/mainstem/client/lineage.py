"""How positions of topics lead to one another through jobs: what a position of a source means for what is made of it.

    flights 0:5120 ──> flights_enriched@1, batch 41 ──> flights_enriched 2:1000 ──> delays_hourly@1, batch 17 ──> ...

Each batch of a job says how far it has read its inputs and how far it has written its output (`progress.Progress`).
Composed over jobs that gives

    needed    the position of a derived topic from which on it covers given positions; `forgotten` where it may be later
    seen      the positions that whoever has read a derived topic up to some position may have seen something of

To cover a position means that a job has *processed* it: a window that is still open has not been written yet. Tables
that a batch is joined with are not waited for: it is joined with them as they are when it begins, which is after all
that it reads was written.

Jobs of projects that do not see each other may read what the other makes. On the way through such a circle a topic
counts once.

A state holder without I/O: whoever reads the topics tells it, in their order.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mainstem.client.basis import furthest, reaches
from mainstem.client.internal import job_key
from mainstem.client.progress import Marker, NextOffsets, Progress, merge_positions
from mainstem.core.prepared import prepared

T = TypeVar("T")

_EARLY_BATCHES = 1_000  # of a version that the catalog is not known to have yet: topics are read side by side
KEPT_BATCHES = 10_000
"""Of each version. What is older counts as the oldest that is kept: a reader may wait for more than it must, and a read
as of a position learns that it is `forgotten`.
"""


class _Version(msgspec.Struct, frozen=True):
    output: str
    inputs: dict[str, str]
    tables: list[str] = []
    also: dict[str, str] = {}  # further topics that it writes, by what the job's declaration calls them


class _Job(msgspec.Struct, frozen=True):
    versions: dict[str, Any] = {}
    retired: dict[str, Any] = {}


class Oldest(msgspec.Struct, frozen=True):
    """The first batch that is known of those that made `output`."""

    output: str
    batch: int


class _Needed(msgspec.Struct, frozen=True):
    position: dict[int, int]
    forgotten: Oldest | None = None  # why it may be later than what is needed


class _Batch(msgspec.Struct, frozen=True, gc=False):
    number: int
    basis: NextOffsets  # of its streams, after the batch
    tables: NextOffsets  # of the tables that it was joined with
    ends: dict[int, int]  # of the output, after this batch, all before it, and what somebody else wrote until then


class _Writer:
    """One version of a job as it writes one of its outputs: its batches in their order. Positions only grow from one to
    the next.

    Attributes:
        is_left: it, or another version of its job, goes on; else its output is a topic that nothing is known of.
        result: which of the job's outputs it is; those of its other versions are made of the same.
    """

    def __init__(self, job: str, result: str, output: str, streams: frozenset[str]) -> None:
        self.is_left = True
        self.job, self.result, self.output, self.streams = job, result, output, streams
        self.batches: list[_Batch] = []
        self.told: dict[int, int] = {}  # up to where it is known of the output what it was made of

    def add(self, progress: Progress) -> None:
        at = self._place(progress.batch)
        if at < len(self.batches) and (at == 0 or self.batches[at].number == progress.batch):
            return  # it is known, or was before what is
        # Batches of before each said where all of its output ends say it of what they wrote to.
        before = self.batches[at - 1].ends if at else self.told
        ends = furthest({self.output: before}, {self.output: progress.ends.get(self.output, {})})[self.output]
        # Not always the last: a restart begins with the last commit, and batches before it may be read later.
        self.batches.insert(at, _Batch(progress.batch, progress.basis, progress.tables, ends))
        self.told = furthest({self.output: self.told}, {self.output: ends})[self.output]
        if len(self.batches) >= 2 * KEPT_BATCHES:
            del self.batches[:-KEPT_BATCHES]

    def tell(self, position: dict[int, int]) -> None:
        """It is known of the output up to there what it was made of: by the last batch, what none has written."""
        self.told = furthest({self.output: self.told}, {self.output: position})[self.output]
        if self.batches:
            self.batches[-1] = msgspec.structs.replace(self.batches[-1], ends=self.told)

    def first_that_covers(self, wanted: NextOffsets) -> _Batch | None:
        """The first batch after which `wanted` is read."""
        return self._first(lambda batch: _covers(batch.basis, wanted))

    def first_that_writes(self, position: Mapping[int, int]) -> _Batch | None:
        """The first batch after which the output goes up to `position`."""
        return self._first(lambda batch: reaches(batch.ends, position))

    def is_told(self, position: Mapping[int, int]) -> bool:
        """Whether it is told what it had read for the output up to `position`."""
        return reaches(self.told, position)

    def before(self, batch: _Batch) -> Oldest | None:
        """The oldest that is known from `batch` back, where there was one before it: that may have been the first."""
        at = self._place(batch.number)
        known = batch.number == 0 or (at > 0 and self.batches[at - 1].number == batch.number - 1)
        return None if known else Oldest(self.output, batch.number)

    def _place(self, number: int) -> int:
        return bisect_left(self.batches, number, key=lambda each: each.number)

    def _first(self, is_so: Any) -> _Batch | None:
        at = bisect_left(self.batches, True, key=is_so)
        return self.batches[at] if at < len(self.batches) else None


class Lineage:
    """What is known of the jobs on one log. One thread uses it."""

    def __init__(self) -> None:
        self._by_output: dict[str, _Writer] = {}
        self._by_key: dict[str, list[_Writer]] = {}  # by `<job>@<version>`
        self._early: dict[str, list[Progress]] = {}

    def see_job(self, job: str, entry: Mapping[str, Any]) -> None:
        """A job's entry of the catalog: which version writes which topic, and what it reads. What says nothing of that
        was written by somebody else, and counts for nothing.
        """
        found = _as(_Job, entry)
        if found is None:
            return
        # One that is retired covers no more than it did: who asks it for more waits for the one that comes.
        for version, told in (found.retired | found.versions).items():
            about, key = _as(_Version, told), job_key(job, version)
            if about is None or key in self._by_key:
                continue
            streams = frozenset(about.inputs.values()) - frozenset(about.tables)
            outputs = {"": about.output} | about.also
            self._by_key[key] = [_Writer(job, result, output, streams) for result, output in outputs.items()]
            for writer in self._by_key[key]:
                if version in found.versions:
                    self._by_output[writer.output] = writer
                else:  # its topic may be another job's by now
                    self._by_output.setdefault(writer.output, writer)
            for progress in self._early.pop(key, ()):
                self.see(progress)
        for writers in self._by_key.values():
            for writer in writers:
                if writer.job == job:
                    writer.is_left = bool(found.versions)

    def start_from(self, marker: Marker) -> None:
        """Where a version stands: its last commit. Batches up to it need not be told."""
        for writer in self._by_key.get(job_key(marker.job, marker.version), ()):
            basis = merge_positions(marker.end_offsets)
            writer.add(Progress(marker.job, marker.version, marker.batch, basis, marker.tables, marker.ends))

    def see(self, progress: Progress) -> None:
        """A batch is committed."""
        key = job_key(progress.job, progress.version)
        if key not in self._by_key:
            early = self._early.setdefault(key, [])
            early.append(progress)
            del early[:-_EARLY_BATCHES]
        for writer in self._by_key.get(key, ()):
            writer.add(progress)

    def upstream(self, topic: str) -> set[str]:
        """All topics whose positions `needed` looks at: what `topic` is made of, itself, and what other versions make
        of the same.
        """
        found, left = {topic}, [topic]
        while left:
            writer = self._by_output.get(left.pop())
            if writer is not None:
                new = {*writer.streams, *(other.output for other in self._versions(writer))} - found
                found |= new
                left += new
        return found

    def needed(self, topic: str, positions: NextOffsets) -> dict[int, int] | None:
        """The position of `topic` that covers `positions`; None while no batch is known that has read so far. Topics
        that it is not made of do not matter; the output of another version of its job stands for what that one read.
        """
        found = self._needed(topic, positions, ())
        return None if found is None else found.position

    def forgotten(self, topic: str, positions: NextOffsets) -> Oldest | None:
        """None where `needed` is the first position that covers `positions`. Otherwise it may be a later one: of the
        batches of a job on the way, those before this one are not known any more.
        """
        found = self._needed(topic, positions, ())
        return None if found is None else found.forgotten

    def _needed(self, topic: str, positions: NextOffsets, below: tuple[str, ...]) -> _Needed | None:
        """`below` are the topics that are made of it, on the way here."""
        own = positions.get(topic, {})
        writer = self._by_output.get(topic)
        if writer is None or not writer.is_left:
            return _Needed(dict(own))
        if topic in below:  # what is asked for of it was looked at there
            return _Needed({})
        forgotten: Oldest | None = None
        for other in self._versions(writer):
            if any(positions.get(other.output, {}).values()):
                if not other.is_told(positions[other.output]):
                    return None
                batch = other.first_that_writes(positions[other.output])
                if batch is not None:  # else somebody else wrote before its first batch
                    positions, forgotten = furthest(positions, batch.basis), forgotten or other.before(batch)
        wanted: NextOffsets = {}
        for each in writer.streams:
            found = self._needed(each, positions, (*below, topic))
            if found is None:
                return None
            wanted[each], forgotten = found.position, forgotten or found.forgotten
        if not any(offset for each in wanted.values() for offset in each.values()):
            return _Needed(dict(own))
        batch = writer.first_that_covers(wanted)
        if batch is None:
            return None
        if reaches(own, batch.ends):  # so it would be with an earlier one
            return _Needed(dict(own))
        position = furthest({topic: dict(own)}, {topic: batch.ends})[topic]
        return _Needed(position, forgotten or writer.before(batch))

    def seen(self, topic: str, position: Mapping[int, int], below: tuple[str, ...] = ()) -> NextOffsets:
        """What somebody may have seen something of who has read `topic` up to `position`: of each topic that it is made
        of, tables too, how far. Of a batch that is not known yet, nothing: `knows`.
        `below` as of `needed`.
        """
        seen: NextOffsets = {topic: dict(position)}
        writer = self._by_output.get(topic)
        if writer is None or topic in below or not writer.batches or not any(position.values()):
            return seen
        batch = writer.first_that_writes(position) or writer.batches[-1]  # `knows` says whether that is all
        for each, reached in (*batch.basis.items(), *batch.tables.items()):
            seen = furthest(seen, self.seen(each, reached, (*below, topic)))
        return seen

    def knows(self, topic: str, position: Mapping[int, int]) -> bool:
        """Whether `seen` says all of it: the batches that have written `topic` up to `position` are told. What those
        have read was told before them, since it was committed before.
        """
        writer = self._by_output.get(topic)
        return writer is None or not writer.is_left or reaches(writer.told, position)

    def told(self, topic: str) -> dict[int, int]:
        """The position of `topic` up to which it is known what it was made of."""
        writer = self._by_output.get(topic)
        return {} if writer is None else writer.told

    def told_all(self, positions: NextOffsets) -> None:
        """All batches are told that were committed when somebody saw `positions`: what no batch has written of that,
        somebody else has, or a batch of which nobody knows any more.
        """
        for topic, position in positions.items():
            if (writer := self._by_output.get(topic)) is not None:
                writer.tell(position)

    def _versions(self, writer: _Writer) -> list[_Writer]:
        """What other versions of its job make of the same."""
        made = writer.job, writer.result
        return [each for each in self._by_output.values() if (each.job, each.result) == made and each is not writer]


def _as(kind: type[T], told: Any) -> T | None:
    try:
        return msgspec.convert(told, prepared(kind))
    except msgspec.ValidationError:
        return None


def _covers(basis: NextOffsets, wanted: NextOffsets) -> bool:
    return all(reaches(basis.get(topic, {}), each) for topic, each in wanted.items())
