"""One topic for plain consumers, which know nothing of versions: what a job writes, whichever version is current.

    delays_hourly      ──up to the cutover──┐
                                            ├──> delays    (then the difference of both tables, then the new version)
    delays_hourly.v2   ──after it───────────┘

Records keep their keys and partitions. Each transaction has records and the position of what was read for them
(`At`, in `__mainstem.sources`), so that each is there once, whatever is killed.

    table    at a cutover the rows that differ between what consumers have, which is this topic, and the new version as
             it is then: a tombstone for each key that is gone. No position has to fit
    stream   both versions were held at one position when readers were moved, and the record of the cutover says where
             their outputs ended there: the old one is passed on up to there, the new one from there on
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import msgspec

from mainstem.client.catalog import (
    RETIRED,
    Cutover,
    TopicEntry,
    current_versions,
    cutovers,
    entries,
    read_catalog,
    spliced_jobs,
    topic_entries,
    users_of,
    write_catalog,
)
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG
from mainstem.client.progress import Read, Written
from mainstem.client.reader import RangeReader, headers_of
from mainstem.client.splices import At, Pending, source_name
from mainstem.client.topics import (
    TopicDescription,
    end_offsets,
    ensure_topic,
    list_topics,
    stable_offsets,
    start_offsets,
    topic_settings,
)
from mainstem.client.writer import TransactionalWriter, read_source
from mainstem.core import UserError
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.process.compare import Side, table_differences
from mainstem.records.fingerprint import fingerprint

log = get_logger()

RECORDS_OF_A_TRANSACTION = 5_000
_PAUSE_SECONDS = 0.5


class SpliceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[splices.NAME]`: topic NAME is what a job writes, whichever version is current.

    Attributes:
        job: its name.
    """

    job: str


class NotSpliced(UserError):
    """What a job writes cannot be passed on."""


def splices_of(catalog: Mapping[str, dict[str, Any]], job: str) -> list[str]:
    """The splices of a job that projects on this log have."""
    return sorted(name for name, of in spliced_jobs(catalog).items() if of == job)


def position_of(connection: Connection, splice: str) -> At | None:
    """How far a splice is; None before its first record."""
    state = read_source(connection, source_name(splice))
    return None if state is None else msgspec.convert(state.position, prepared(At), strict=False)


def all_stay(connection: Connection, job: str, version: str) -> bool:
    """Whether all splices of a stream stand at a version and cannot follow the last cutover from it, which says nothing
    of where the two versions had read the same.
    """
    catalog = read_catalog(connection)
    moved = cutovers(catalog).get(job)
    places = [position_of(connection, splice) for splice in splices_of(catalog, job)]
    return moved is not None and all(
        at is not None and at.version == version and at.output not in moved.ends for at in places
    )


class Splice:
    """The task: `run` works until it is told to stop; it can be called again.

    Args:
        name: of the splice, and of its topic.
        job: whose outputs it passes on.
        connection: the log.
        trace: is called with the name of each step that is done.
    """

    def __init__(
        self, name: str, job: str, connection: Connection, *, trace: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name, self.job = name, job
        self.on_idle: Callable[[str, str], None] = lambda *_: None
        self._connection, self._trace = connection, trace
        self._catalog: dict[str, dict[str, Any]] = {}
        self._catalog_end = -1

    def run(self, stop: threading.Event) -> None:
        """Pass on what is written.

        Raises:
            NotSpliced: a person has to see to it.
            Fenced: another process runs this splice.
            TransactionFailed, BrokerUnavailable: it may be tried again.
        """
        writer = TransactionalWriter(self._connection, source_name(self.name))
        try:
            state = writer.open()
            at = self._begin(stop) if state is None else msgspec.convert(state.position, prepared(At), strict=False)
            at = None if at is None else at.with_books(self._written(writer))
            self._trace("opened")
            while at is not None and not stop.is_set():
                after = self.step(writer, at)
                if after is None:
                    stop.wait(_PAUSE_SECONDS)
                else:
                    at = after
        finally:
            writer.close()

    def step(self, writer: TransactionalWriter, at: At) -> At | None:
        """Pass on some records, or take the next step of a move; None: there is nothing to do."""
        if at.move is not None:
            return self._differ(writer, at, at.move)
        # In this order: what a version had written by then comes before a cutover that is not seen now, since a stream
        # is held until its cutover is written down.
        ends = self._ends(at.output)
        move = self._moved_from(at)
        if move is not None:
            ends = at.offsets if self._is_table(at.output, move.version) else self._end_of_stream(at, move)
        if any(at.offsets.get(partition, 0) < end for partition, end in ends.items()):
            return self._copy(writer, at, ends)
        return None if move is None else self._move(writer, at, move)

    # -- what is passed on

    def _copy(self, writer: TransactionalWriter, at: At, ends: Mapping[int, int]) -> At:
        to = {p: min(end, at.offsets.get(p, 0) + RECORDS_OF_A_TRANSACTION) for p, end in ends.items()}
        to = {partition: max(offset, at.offsets.get(partition, 0)) for partition, offset in to.items()}
        same = self._existing(self.name).partitions == self._existing(at.output).partitions
        reader = RangeReader(self._connection, at.output, deleted="error", name="mainstem.splice")
        counts = dict.fromkeys(to, Written())
        writer.begin()
        try:
            for message in reader.read(at.offsets, to):
                read, key, value = message.partition(), message.key(), message.value()
                headers = [(name, text or b"") for name, text in headers_of(message).items()]
                writer.send(self.name, read if same else None, key, value, headers)
                counts[read] += Written(1, fingerprint(key, value))
        finally:
            reader.close()
        self._trace("copied")
        return self._commit(writer, msgspec.structs.replace(at, offsets=to, read=_further(at, to, counts)))

    def _move(self, writer: TransactionalWriter, at: At, move: Cutover) -> At:
        """All of the old version is passed on: the next is what differs, or the new version itself."""
        output = self._output_of(move.version)
        if self._is_table(at.output, move.version):
            pending = Pending(move.version, output, self._ends(output), move.since_ms)
            after = msgspec.structs.replace(at, move=pending)
        else:
            after = at.then(move.version, output, move.ends[output])
        writer.begin()
        self._trace("moving")
        return self._commit(writer, after)

    def _differ(self, writer: TransactionalWriter, at: At, move: Pending) -> At:
        """Write the rows that differ; after the last of them the new version goes on.

        What consumers have is held against it: the old version lacks by now what was passed on, then written anew, and
        cleaned. After a kill the rows that were committed are no difference any more.
        """
        self._existing(self.name)
        # Nobody else writes to it, and what was committed is below its high watermark, with no open transaction after:
        # the last stable offset may come later than the answer to a commit.
        left = Side(self.name, end_offsets(self._connection, self.name))
        # As it is now, not as when the cutover was seen: of rows that were written anew since, the old may be cleaned.
        move = msgspec.structs.replace(move, offsets=self._ends(move.output))
        with closing(table_differences(self._connection, left, Side(move.output, move.offsets))) as rows:
            while some := list(islice(rows, RECORDS_OF_A_TRANSACTION)):
                writer.begin()
                for each in some:
                    writer.send(self.name, None, each.key, each.right)
                self._trace("differed")
                move = msgspec.structs.replace(move, written=move.written + len(some))
                other = sum((Written(1, fingerprint(each.key, each.right)) for each in some), at.other)
                at = self._commit(writer, msgspec.structs.replace(at, move=move, other=other))
        writer.begin()
        self._trace("moved")
        log.info("splice_moved", splice=self.name, job=self.job, version=move.version, rows=move.written)
        return self._commit(writer, at.then(move.version, move.output, move.offsets))

    def _commit(self, writer: TransactionalWriter, at: At) -> At:
        writer.commit(msgspec.to_builtins(at, str_keys=True))
        self._trace("committed")
        return at

    def _written(self, writer: TransactionalWriter) -> Written:
        """All that it has ever written to its topic."""
        written = writer.state.written.get(self.name, {}) if writer.state is not None else {}
        return sum(written.values(), Written())

    # -- what the log says

    def _begin(self, stop: threading.Event) -> At | None:
        """Wait until a version of the job has started, and make the topic; None where it is to stop before."""
        told = False
        while not stop.is_set():
            version = current_versions(self._now()).get(self.job)
            output = self._output_of(version) if version else ""
            existing = list_topics(self._connection)
            if version and output in existing:
                if told:
                    self.on_idle("", "")
                self._create(output, existing)
                return At(version, output, start_offsets(self._connection, output))
            if not told:
                self.on_idle(f"job {self.job} has not started", "`mainstem job list` shows the jobs")
                told = True
            stop.wait(_PAUSE_SECONDS)
        return None

    def _create(self, output: str, existing: Mapping[str, TopicDescription]) -> None:
        entries = topic_entries(self._now())
        ours = entries.get(self.name, TopicEntry()).producer == source_name(self.name)  # what was aborted may be there
        if self.name in existing and not ours and any(end_offsets(self._connection, self.name).values()):
            raise NotSpliced(
                f"topic {self.name}: expected one without records, found some that this splice has not written",
                hint=f"give [splices.{self.name}] another name, or delete the topic",
            )
        writers = users_of(self._now(), self.name)[0] if self.name in existing else []
        if others := [each for each in writers if each != f"splice {self.name}"]:
            raise NotSpliced(
                f"topic {self.name}: expected that nobody else writes it, found {others[0]}",
                hint=f"give [splices.{self.name}] another name",
            )
        entry = entries.get(output, TopicEntry())
        ensure_topic(self._connection, self.name, existing[output].partitions, topic_settings(entry.kind, {}))
        told = msgspec.structs.replace(entry, producer=source_name(self.name))
        write_catalog(self._connection, {f"topic:{self.name}": msgspec.to_builtins(told)})

    def _now(self) -> dict[str, dict[str, Any]]:
        """The catalog as it is now; read only where somebody has written to it."""
        end = end_offsets(self._connection, CATALOG)[0]
        if end != self._catalog_end:
            self._catalog, self._catalog_end = read_catalog(self._connection), end
        return self._catalog

    def _moved_from(self, at: At) -> Cutover | None:
        """The cutover by which readers mean another version now; None where they mean this one."""
        catalog = self._now()
        version = current_versions(catalog).get(self.job, "")
        if version in (at.version, ""):
            return None
        found = cutovers(catalog).get(self.job)
        return found if found is not None and found.version == version else Cutover(version, at.version, 0)

    def _end_of_stream(self, at: At, move: Cutover) -> dict[int, int]:
        """Where the old version of a stream ended when both had read the same.

        Raises:
            NotSpliced: nobody has written that down.
        """
        if at.output not in move.ends or self._output_of(move.version) not in move.ends:
            raise NotSpliced(
                f"job {self.job}: readers were moved from version {at.version} to {move.version} without a position at "
                "which both had read the same: records would be missing, or be there twice",
                hint=self._what_helps(at.version),
            )
        ends = move.ends[at.output]
        if self._has_records(at.output, ends, at.offsets):
            raise NotSpliced(
                f"job {self.job}: version {at.version} went on before its cutover was written: what is passed on of it "
                f"would be there by version {move.version} once more",
                hint=f"move the readers back to version {at.version}, and again",
            )
        return ends

    def _has_records(self, topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> bool:
        """Whether there are committed ones between: not the marks of transactions alone, and what was aborted."""
        beyond = {partition: end[partition] for partition in start if end.get(partition, 0) > start[partition]}
        if not beyond:
            return False
        reader = RangeReader(self._connection, topic, deleted="error", name="mainstem.splice")
        try:
            return any(True for _ in reader.read(start, beyond))
        finally:
            reader.close()

    def _what_helps(self, version: str) -> str:
        if version in entries(self._now(), "job").get(self.job, {}).get(RETIRED, ()):
            return (
                f"version {version} was retired: [splices.{self.name}] under another name begins with what is current"
            )
        return f"move them back to version {version}, and again while `mainstem up` runs both and this splice"

    def _output_of(self, version: str) -> str:
        about = entries(self._now(), "job").get(self.job, {}).get("versions", {}).get(version, {})
        return str(about.get("output", ""))

    def _is_table(self, output: str, version: str) -> bool:
        """Whether the last row of each key counts.

        Raises:
            NotSpliced: it does for one of both versions only.
        """
        known = topic_entries(self._now())
        kinds = {known.get(topic, TopicEntry()).kind for topic in (output, self._output_of(version))}
        if len(kinds) > 1:
            raise NotSpliced(
                f"job {self.job}: expected two tables or two streams, found one of each in {output} and version {version}",
                hint=f"move the readers back; a splice of another name begins with version {version}",
            )
        return kinds == {"changelog"}

    def _ends(self, topic: str) -> dict[int, int]:
        return stable_offsets(self._connection, {topic: self._existing(topic).partitions})[topic]

    def _existing(self, topic: str) -> TopicDescription:
        existing = list_topics(self._connection)
        if topic not in existing:
            raise NotSpliced(
                f"topic {topic}: expected one that is {'written to' if topic == self.name else 'passed on'}, found none: "
                "it was deleted",
                hint=f"take [splices.{self.name}] out, or give it another name, to begin anew",
            )
        return existing[topic]


def _further(at: At, to: Mapping[int, int], counts: Mapping[int, Written]) -> dict[int, Read]:
    """The books after what was read up to `to`."""
    found = dict(at.read or {})
    for partition, end in to.items():
        start, count = at.offsets.get(partition, 0), counts[partition]
        more = Read(start=start, end=end, rows=count.count, hash=count.hash)
        found[partition] = found[partition].then(more) if partition in found else more
    return found
