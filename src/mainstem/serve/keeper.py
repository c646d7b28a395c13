"""Keeps the index of one view equal to its topics: reads, decodes, applies; in a thread of its own.

    open: as it was left, else restored from a snapshot, else empty ──> follow its topics from where it is ──> …
      ▲                                                                      │
      └──────────────── after an error, once its pause is over ──────────────┘

An index that is damaged, of another shape, or of topics that were made anew is not repaired: it is built from the log.
One that answers, and cannot take a schema that has come, stays where it is: it answers until one that is built beside
it takes over.
"""

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.basis import furthest
from mainstem.client.catalog import TopicEntry
from mainstem.client.connection import Connection
from mainstem.client.errors import RecordsDeleted, UnknownTopic
from mainstem.client.progress import NextOffsets, Read
from mainstem.client.reader import arrived, committed_consumer, is_record
from mainstem.client.topics import cluster_id, end_offsets, start_offsets, topic_ids
from mainstem.core import Clock, CorruptData, MainstemError, Retriable, SystemClock, UserError
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState
from mainstem.records.fingerprint import MODULUS, fingerprint
from mainstem.registry.kept import KeptSchemas
from mainstem.registry.reader import SchemaTexts
from mainstem.serve import snapshot
from mainstem.serve.decode import Decoder
from mainstem.serve.directory import NAME
from mainstem.serve.engines import Engine, NotKnownYet
from mainstem.serve.errors import IndexDamaged, OtherShape, UnfitChanges
from mainstem.serve.index import Applied, Change, Index

log = get_logger()

_MOST_RECORDS = 10_000
_MOST_BYTES = 4 << 20
"""Of the records of a batch: decoded, they may take 40 times as much."""
_LOOK_SECONDS = 5.0
"""Between two looks at the topics: whether they are still the same, and have new partitions."""
_COMMIT_SECONDS = 0.2
"""Between two commits of an index whose commits are dear, while nobody waits for one."""
_MOST_KINDS = 100
"""Of records that were left out, of which the log tells."""


class Opened(msgspec.Struct, frozen=True):
    """The index answers; it is as new as the log once it has reached `ends`. `columns`: of each topic, by the view's
    name for it, column -> SQL type, as far as its schema is known.
    """

    index: Index
    position: NextOffsets
    ends: NextOffsets
    columns: dict[str, dict[str, str]] = {}


class Reached(msgspec.Struct, frozen=True):
    """All up to `position` is applied and visible."""

    position: NextOffsets


class Lost(msgspec.Struct, frozen=True):
    """The index is closed: nothing can be asked of it."""


class Outgrown(msgspec.Struct, frozen=True):
    """The index answers, and goes on no further: what follows does not fit into it."""


News = Opened | Reached | Lost | Outgrown


class Keeper:
    """`run` in a thread until `stop`; `tell` is called there with what has become of the index.

    Attributes:
        upper: no reader of the index has seen anything beyond it: it is moved before what it covers is applied. It ends
            with the last record. No batch of a job has written so far as the marker of its transaction.
        hurry: somebody waits for what is not committed.
        answers: readers ask this index; others are built anew in their place.
        look: somebody waits for a partition that is not known: there may be new ones.
        books: what has been applied, and is visible: topic -> partition -> from where to where it was read.
        left_out: the last record that was left out, and why; "" where there was none since it was made.
        state: how it goes, for people.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        connection: Connection,
        directory: Path,
        *,
        tell: Callable[[News], None],
        on_change: Callable[[], None] = lambda: None,
        snapshots: Path | None = None,
        snapshot_every_s: float = 0,
        clock: Clock | None = None,
    ) -> None:
        self.upper: NextOffsets = {}
        self.books: dict[str, dict[int, Read]] = {}
        self.left_out = ""
        self._left_out: set[tuple[str, str]] = set()  # topics and reasons that are logged
        self.hurry = self.look = self.answers = False
        self._outgrown = ""  # why it goes on no further
        self._engine = engine
        self._connection = connection
        self._directory = directory
        self._snapshots = snapshots
        self._snapshot_every_s = snapshot_every_s
        self._tell = tell
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._attempts = Attempts(name, self._clock)
        self._anew = False  # the index is not to be used again
        self._schemas = SchemaTexts(connection)
        self._storing: threading.Thread | None = None

    @property
    def state(self) -> TaskState:
        return self._attempts.state

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                if self.state.state != "idle":
                    self._attempts.start()
                    self._on_change()
                self._keep(stop)
            except (OtherShape, IndexDamaged, RecordsDeleted) as error:
                log.warning("index_is_built_anew", view=self.state.name, reason=str(error))
                self._anew = True
                self._fail(error, stop, needs_a_person=False)
            except (NotKnownYet, UnknownTopic) as reason:
                self._wait_for(reason)
                stop.wait(1.0)
            except Exception as error:
                self._fail(error, stop, needs_a_person=isinstance(error, (UserError, CorruptData)))
        self._attempts.stop()
        self._on_change()

    def _wait_for(self, reason: MainstemError) -> None:
        """What the view is made of is not there yet, as at the start of a project: nobody has to do anything."""
        now = self._clock.now_ms()
        idle = TaskState(self.state.name, "idle", error=str(reason), hint=reason.hint, since_ms=now)
        if self.state.error != idle.error:
            self._attempts.state = idle
            self._on_change()

    def _fail(self, error: Exception, stop: threading.Event, *, needs_a_person: bool) -> None:
        ours = isinstance(error, MainstemError)
        if not ours:
            log.error("view_has_a_bug", view=self.state.name, exc_info=error)
        text = str(error) if ours else f"{type(error).__name__}: {error}"
        hint = error.hint if isinstance(error, MainstemError) else ""
        state = self._attempts.fail(text.splitlines()[0] if text else "", hint, needs_a_person=needs_a_person)
        log.warning("view_waits", view=state.name, reason=state.error, hint=hint, retry_in_seconds=state.retry_seconds)
        self._on_change()
        stop.wait(state.retry_seconds)

    def _keep(self, stop: threading.Event) -> None:
        """1. see what the topics are  2. open the index  3. follow from where it is."""
        found = _Topics.of(self._connection, self._engine)
        index = self._open(found)
        try:
            applied = index.applied or Applied(found.log, found.ids, {})
            reads = _from(applied.reads, found.starts)
            self.upper, self.books = applied.records, reads
            if self.state.state == "idle":
                self._attempts.go_on()
                self._on_change()
            position = Applied(found.log, found.ids, reads).position
            ends = position if self._outgrown else found.ends
            self._tell(Opened(index, position, ends, self._engine.columns(found.schemas)))
            try:
                if not self._outgrown:
                    self._follow(index, found, reads, stop)
            except OtherShape as reason:
                if not self.answers:
                    raise
                self._outgrown = str(reason)
            if self._outgrown:
                self._hold(index, stop)
        finally:
            self._tell(Lost())
            if self._storing is not None:
                self._storing.join()
            index.close()

    def _hold(self, index: Index, stop: threading.Event) -> None:
        """Answer with what there is until another index takes over."""
        if index.pending:
            index.commit()
            if index.applied is not None:
                self._tell(Reached(index.applied.position))
        self._wait_for(MainstemError(f"an index that takes the new schema is being built: {self._outgrown}"))
        log.warning("index_outgrown", view=self.state.name, reason=self._outgrown)
        self._tell(Outgrown())
        stop.wait()

    # -- opening

    def _open(self, found: "_Topics") -> Index:
        ways = ([] if self._anew else [self._as_left, self._restored]) + [self._empty]
        for way in ways:
            try:
                index = way(found)
            except (OtherShape, IndexDamaged) as error:
                if way == self._empty:
                    raise
                log.warning("index_not_used", view=self.state.name, reason=str(error))
                continue
            if index is None:
                continue
            if (reason := found.misfit(index.applied)) is None:
                self._anew = False
                return index
            index.close()
            self._outgrown = ""
            log.warning("index_not_used", view=self.state.name, reason=reason)
        raise AssertionError("an empty index fits")

    def _as_left(self, found: "_Topics") -> Index | None:
        self._outgrown = ""
        if not (self._directory / NAME).exists():
            return None
        try:
            return self._engine.open(self._directory, found.schemas)
        except OtherShape as reason:
            index = self._engine.open_as_it_is(self._directory) if self.answers else None
            if index is None:
                raise
            self._outgrown = str(reason)
            return index

    def _restored(self, found: "_Topics") -> Index | None:
        if self._snapshots is None or snapshot.restore(self._snapshots, self._directory) is None:
            return None
        return self._engine.open(self._directory, found.schemas)

    def _empty(self, found: "_Topics") -> Index:
        shutil.rmtree(self._directory, ignore_errors=True)
        return self._engine.open(self._directory, found.schemas)

    # -- following

    def _follow(self, index: Index, found: "_Topics", reads: dict[str, dict[int, Read]], stop: threading.Event) -> None:
        decoders = {
            topic: Decoder(topic, self._engine.entries.get(topic, TopicEntry()), self._schemas)
            for topic in self._engine.topics.values()
        }
        known: set[tuple[str, int]] = set()  # each topic has a table of its own
        told = Applied(found.log, found.ids, reads).position
        committed_at = snapshot_at = self._clock.monotonic()
        parts: deque[list[Any]] = deque()  # of what has come
        consumer = committed_consumer(self._connection, "mainstem.view", deleted="error", wait_ms=50)
        try:
            _assign(consumer, reads)
            looked_at = self._clock.monotonic()
            while not stop.is_set():
                if index.failure is not None:
                    raise index.failure
                if not parts and (self.look or self._clock.monotonic() - looked_at >= _LOOK_SECONDS):
                    self.look = False
                    if _answers(consumer, found.ids) and (wider := self._wider(found, reads)) is not None:
                        reads = wider
                        _assign(consumer, reads)
                    looked_at = self._clock.monotonic()
                if not parts:
                    parts.extend(_parts(arrived(consumer, 0.01 if index.pending else 0.2, _MOST_RECORDS)))
                messages = parts.popleft()
                self._schemas.look_again()
                changes, reads = self._taken(messages, decoders, reads)
                self.upper = furthest(self.upper, _records(messages))
                new = {(topic, each) for topic, decoder in decoders.items() for each in decoder.schema_ids} - known
                if new:
                    self._learn(index, new, found)
                    known |= new
                applied = Applied(found.log, found.ids, reads, self.upper)
                if changes:
                    reads = self._apply(index, changes, applied).reads
                now = self._clock.monotonic()
                if index.pending and (self.hurry or now - committed_at >= _COMMIT_SECONDS):
                    index.commit()
                    committed_at = now
                if not index.pending and told != applied.position:
                    told, self.books = applied.position, reads
                    self._tell(Reached(told))
                if self._snapshot_every_s and now - snapshot_at >= self._snapshot_every_s:
                    self._snapshot(index)
                    snapshot_at = now
        finally:
            consumer.close()

    def _apply(self, index: Index, changes: list[Change], applied: Applied) -> Applied:
        """Apply the rows that fit; the others count as what cannot be decoded."""
        while True:
            try:
                index.apply(changes, applied)
            except UnfitChanges as error:
                reads = {topic: dict(partitions) for topic, partitions in applied.reads.items()}
                for place, reason in error.reasons.items():
                    change = changes[place]
                    self._leave_out(change.topic, change.partition, change.offset, reason)
                    read = reads[change.topic][change.partition]
                    counts = {"rows": read.rows - 1, "quarantined": read.quarantined + 1}
                    reads[change.topic][change.partition] = msgspec.structs.replace(read, **counts)
                applied = msgspec.structs.replace(applied, reads=reads)
                changes = [change for place, change in enumerate(changes) if place not in error.reasons]
            else:
                return applied

    def _leave_out(self, topic: str, partition: int, offset: int, reason: str) -> None:
        """Tell of a record; in the log, of the first of each kind."""
        self.left_out = f"{topic}-{partition} offset {offset}: {reason.splitlines()[0][:500] if reason else ''}"
        kind = (topic, "".join(each for each in reason if not each.isdigit())[:200])
        if kind not in self._left_out and len(self._left_out) < _MOST_KINDS:
            self._left_out.add(kind)
            log.warning(
                "record_left_out", view=self.state.name, place=f"{topic}-{partition}", offset=offset, reason=reason
            )

    def _taken(
        self, messages: list[Any], decoders: Mapping[str, Decoder], reads: Mapping[str, Mapping[int, Read]]
    ) -> tuple[list[Change], dict[str, dict[int, Read]]]:
        """The changes that records are, and how far and with what they were read. What cannot be decoded is counted."""
        changes: list[Change] = []
        ends: dict[tuple[str, int], int] = {}
        counts: dict[tuple[str, int], dict[str, int]] = {}
        for message in messages:
            topic, partition = message.topic(), message.partition()
            if not is_record(message, topic):
                ends[topic, partition] = max(message.offset(), ends.get((topic, partition), 0))
                continue
            ends[topic, partition] = message.offset() + 1
            count = counts.setdefault((topic, partition), {"rows": 0, "tombstones": 0, "quarantined": 0, "hash": 0})
            count["hash"] = (count["hash"] + fingerprint(message.key(), message.value())) % MODULUS
            try:
                changes.append(decoders[topic].change(message))
            except CorruptData as error:
                count["quarantined"] += 1
                self._leave_out(topic, partition, message.offset(), str(error))
            else:
                count["tombstones" if message.value() is None else "rows"] += 1
        result = {topic: dict(partitions) for topic, partitions in reads.items()}
        for (topic, partition), end in ends.items():
            before = result[topic][partition]
            if end > before.end:
                read = Read(start=before.end, end=end, **counts.get((topic, partition), {}))
                result[topic][partition] = before.then(read)
        return changes, result

    def _wider(self, found: "_Topics", reads: dict[str, dict[int, Read]]) -> dict[str, dict[int, Read]] | None:
        """With the partitions that were added; None where there are none, or the log has ceased to answer.

        Raises:
            IndexDamaged: a topic was made anew: what follows is of another one.
        """
        try:
            ids = topic_ids(self._connection, found.ids)
            starts = {topic: start_offsets(self._connection, topic) for topic in ids}
        except Retriable:
            return None
        for topic, each in ids.items():
            if each != found.ids[topic]:
                raise IndexDamaged(f"topic {topic} was deleted and made anew")
        new = [(topic, p) for topic, partitions in starts.items() for p in partitions if p not in reads[topic]]
        if not new:
            return None
        log.info("partitions_added", view=self.state.name, partitions=[f"{topic}-{p}" for topic, p in new])
        return {**reads, **_from(reads, starts)}

    def _learn(self, index: Index, new: set[tuple[str, int]], found: "_Topics") -> None:
        """Records name schemas that this run has not seen: `found` may be of before they were registered."""
        known = KeptSchemas(self._connection) if found.learned else found.schemas
        found.learned = True
        for topic in sorted({topic for topic, _ in new}):
            texts = [self._schemas(each) for each in sorted(each for of, each in new if of == topic)]
            self._engine.learn(index, topic, texts, known)

    def _snapshot(self, index: Index) -> None:
        """A copy, if the last one is done; stored in another thread, since it is hashed and synced."""
        if self._snapshots is None or (self._storing is not None and self._storing.is_alive()):
            return
        taken = snapshot.take(index)
        if taken is not None:
            self._storing = threading.Thread(target=self._store, args=(*taken, self._snapshots), daemon=True)
            self._storing.start()

    def _store(self, staged: Path, applied: Applied, directory: Path) -> None:
        try:
            snapshot.store(staged, applied, directory)
        except (OSError, MainstemError) as error:  # the view goes on: there is the log
            log.warning("snapshot_failed", view=self.state.name, reason=str(error))


class _Topics:
    """The topics of a view as they are when its index is opened."""

    def __init__(
        self,
        log_id: str,
        ids: dict[str, str],
        starts: NextOffsets,
        ends: NextOffsets,
        highest: NextOffsets,
        schemas: KeptSchemas,
    ) -> None:
        self.log, self.ids, self.starts, self.schemas = log_id, ids, starts, schemas
        self.ends = ends  # of what is decided: an open transaction keeps no view from answering
        self.highest = highest  # with what is not
        self.learned = False

    @staticmethod
    def of(connection: Connection, engine: Engine) -> "_Topics":
        """Raises UnknownTopic: one is not there."""
        topics = list(engine.topics.values())
        starts = {topic: start_offsets(connection, topic) for topic in topics}
        ends = {topic: end_offsets(connection, topic, committed=True) for topic in topics}
        highest = {topic: end_offsets(connection, topic) for topic in topics}
        ids = topic_ids(connection, topics)
        return _Topics(cluster_id(connection), ids, starts, ends, highest, KeptSchemas(connection))

    def misfit(self, applied: Applied | None) -> str | None:
        """Why an index cannot go on with these; None where it can."""
        if applied is None:
            return None
        if applied.log != self.log:
            return f"expected an index of log {self.log}, found one of {applied.log}"
        for topic, reads in applied.reads.items():
            if topic not in self.ids:
                return f"it is of topic {topic}, which the view does not read"
            if applied.topic_ids.get(topic) != self.ids[topic]:
                return f"topic {topic} was deleted and made anew"
            for partition, read in reads.items():
                if read.end > (end := self.highest[topic].get(partition, 0)):
                    return f"it is at {topic}-{partition} offset {read.end}, where the log ends at {end}"
        if applied.reads.keys() != self.ids.keys():
            return f"it is of {', '.join(applied.reads)} alone"
        return None


def _answers(consumer: Consumer, topics: Iterable[str]) -> bool:
    """Whether the log does: while it does not, nothing else is asked, which would take long to end."""
    try:
        for topic in topics:
            consumer.list_topics(topic, timeout=1.0)
    except KafkaException:
        return False
    return True


def _assign(consumer: Consumer, reads: Mapping[str, Mapping[int, Read]]) -> None:
    consumer.assign(
        [
            ConfluentPartition(topic, partition, read.end)
            for topic, partitions in reads.items()
            for partition, read in partitions.items()
        ]
    )


def _parts(messages: list[Any]) -> Iterator[list[Any]]:
    """In parts of about `_MOST_BYTES`; one at least."""
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message)
        if size >= _MOST_BYTES:
            yield messages[start : place + 1]
            start, size = place + 1, 0
    if start < len(messages) or not messages:
        yield messages[start:]


def _from(reads: Mapping[str, Mapping[int, Read]], starts: NextOffsets) -> dict[str, dict[int, Read]]:
    """Where each partition was read from and to; those that are new, from their first record."""
    return {
        topic: {p: reads.get(topic, {}).get(p) or Read(start=start, end=start) for p, start in partitions.items()}
        for topic, partitions in starts.items()
    }


def _records(messages: list[Any]) -> NextOffsets:
    """Where the last record of each partition ends."""
    found: NextOffsets = {}
    for message in messages:
        if is_record(message, message.topic()):
            found.setdefault(message.topic(), {})[message.partition()] = message.offset() + 1
    return found
