"""A second PostgreSQL kept equal to the first through the log, one whole source transaction after the other.

The replica reads the tables' topics and `<source>.transactions`, waits until a transaction is there as a whole, and
applies it in one transaction of the target, together with the offsets of the log (table `mainstem_offsets`). So a
reader of the target never sees half a source transaction, and after a crash the target itself says where to go on.
Several source transactions may share a target transaction. An advisory lock, held by the connection that writes, keeps
a second process of the same sink out.

A transaction that lacks records because compaction removed them cannot be had any more. The replica then empties its
tables and reads the topics from their start, in one target transaction: its readers see the old state, then the new.

    mainstem_offsets   sink | topic | partition | next_offset | position | log_id | rows | tombstones | hash | schema_id
                     topic_id

`schema_id` says in which schema's shape the topic's table is, since a later run must not change it back; `topic_id`
which topic of that name the offset is of. An earlier version wrote neither.
"""

import math
import threading
import zlib
from collections.abc import Mapping, Set
from typing import Any

import msgspec
import psycopg2
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from psycopg2.extras import execute_values

from mainstem.client.catalog import entries, read_catalog
from mainstem.client.catalog_changes import tell_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted
from mainstem.client.reader import committed_consumer, headers_of, is_record
from mainstem.client.reports import Report, write_reports
from mainstem.client.topics import cluster_id, end_offsets, ensure_internal_topics, start_offsets, topic_ids
from mainstem.client.writer import read_source
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sinks.postgres_order import Batch, TransactionOrder
from mainstem.connect.sinks.postgres_records import Records
from mainstem.connect.sinks.postgres_target import TargetTable
from mainstem.connect.sources.postgres import transactions_topic
from mainstem.connect.sources.postgres_catalog import connect, translate
from mainstem.connect.sources.postgres_position import decode_position
from mainstem.connect.sources.postgres_table import SNAPSHOT_ID
from mainstem.core import Clock, Retriable, SystemClock, TopicPartition, UserError
from mainstem.core.logging import get_logger
from mainstem.core.wrong_settings import suggestion
from mainstem.records.fingerprint import MODULUS, fingerprint
from mainstem.registry.client import Registry
from mainstem.registry.errors import NotFound

log = get_logger()

# Of one partition; more wait in the log. Both are above what is handed out as a piece: a transaction can go on.
MAX_WAITING = 100_000  # records
MAX_WAITING_BYTES = 64 << 20
_LOCK_CLASS = 0x6D61_696E  # "main"
_FETCH_RECORDS = 5_000
_IDLE_SECONDS = 0.25
_PATIENCE_SECONDS = 1.0
_COMMIT_CHANGES = 50_000
_LOCK_PATIENCE = "3s"


class SourceNotReady(Retriable):
    """The source has not described itself in the catalog yet."""


class ReplicaInUse(Retriable):
    """Another process applies this sink."""


class Rebuild(Retriable):
    """What the target lacks does not come any more, since the log has lost it or it lies before where the target is:
    its tables are filled anew.
    """


class SameTables(UserError):
    """The target's tables are the source's own: what is applied would come again as a change, for ever."""


class LogMismatch(UserError):
    """The target's offsets are not of this log."""


class TopicsLost(UserError):
    """Topics that the target is filled from are gone, and nothing in the log replaces them."""


class KeyUnknown(UserError):
    """A table has another key, and nothing in the log says what its older rows have in it."""


class Seen(msgspec.Struct):
    """What the sink did with the records so far: for the audit."""

    rows: int = 0
    tombstones: int = 0
    hash: int = 0


class PostgresReplica:
    """One target database, written by one thread. `run` goes on until `stop` is set or something fails."""

    def __init__(
        self,
        name: str,
        config: PostgresReplicaConfig,
        connection: Connection,
        registry: Registry,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.connection = connection
        self.registry = registry
        self.clock = clock or SystemClock()
        self.records = Records(name, registry.schema)  # what never changes, its schemas, stays from run to run

    def run(self, stop: threading.Event) -> None:
        """1. lock the target, 2. read its offsets, 3. apply what follows them."""
        ensure_internal_topics(self.connection)
        topics = self._read_topics()
        try:
            self._run_once(topics, stop, rebuild=False)
        except Rebuild as reason:
            log.warning("replica_rebuilds", sink=self.name, reason=str(reason))
            self._run_once(self._read_topics(), stop, rebuild=True)

    def _run_once(self, topics: list[str], stop: threading.Event, *, rebuild: bool) -> None:
        target = connect(self.config.url, name=f"mainstem {self.name}")
        try:
            run = _Run(self, target, topics, rebuild=rebuild)
            try:
                run.follow(stop)
            finally:
                run.close()
        except psycopg2.Error as error:
            raise translate(error, f"sink {self.name}") from error
        except KafkaException as error:
            raise BrokerUnavailable(f"sink {self.name}: {error.args[0].str()}") from error
        finally:
            target.close()

    def _read_topics(self) -> list[str]:
        catalog = read_catalog(self.connection)
        entry = catalog.get(f"source:{self.config.source}")
        if entry is None or not entry.get("topics"):
            raise SourceNotReady(
                f"sink {self.name}: source {self.config.source} is not in the catalog yet",
                hint=self._which_source(catalog),
            )
        topics = [str(topic) for topic in entry["topics"]]
        about = {"type": "postgres", "source": self.config.source, "topics": topics}
        tell_catalog(self.connection, {f"sink:{self.name}": about})
        return topics

    def _which_source(self, catalog: Mapping[str, dict[str, Any]]) -> str:
        """What to do where the source does not come: its name may be wrong, and it may be another project's."""
        known = [name for name, about in entries(catalog, "source").items() if about.get("type") == "postgres"]
        rule = f"source in [sinks.{self.name}] is the name of a table [sources.NAME] of type postgres"
        return f"{rule}; {suggestion(self.config.source, known)}" if known else rule


class _Run:
    """One run of a replica: a connection, a consumer, and what is between them. An error ends it."""

    def __init__(self, sink: PostgresReplica, target: Any, topics: list[str], *, rebuild: bool) -> None:
        self._sink = sink
        self._config = sink.config
        self._records = sink.records
        self._clock = sink.clock
        self._connection = sink.connection
        self._target = target
        self._rebuild = rebuild
        self._transactions = TopicPartition(transactions_topic(sink.config.source), 0)
        self._topics = topics
        self._tables = {topic: self._table(topic) for topic in topics}
        self._others: set[str] = set()  # topics that the source did not have any more when a transaction named them
        self._last: dict[TopicPartition, tuple[str, int, int]] = {}
        self._paused: set[TopicPartition] = set()
        self._applied = 0  # changes in the open target transaction
        self._opened_at: float | None = None  # when it began
        self._whole = True  # the target may commit
        self._position = 0
        self._seen: dict[TopicPartition, Seen] = {}
        self._schema_ids: dict[str, int] = {}  # of the tables as the last run left them, by topic
        self._written: set[str] = set()  # topics whose tables an earlier run has written to
        self._reported_at = -math.inf
        self._unreported = False
        self._ends: tuple[str, dict[TopicPartition, int]] | None = None  # of the head that is incomplete
        self._look_at = 0.0
        self._log_id = cluster_id(self._connection)
        self._ids = topic_ids(self._connection, (*topics, self._transactions.topic))
        with target.cursor() as cursor:
            self._lock(cursor)
            self._refuse_own_tables(cursor)
            cursor.execute(_TABLES)
            saved = self._read_offsets(cursor, rebuild=rebuild)
            self._new = not any(saved.values())
            self._prepare_tables(cursor, rebuild=rebuild)
            if not rebuild:
                target.commit()
        self._counted_from = saved  # the audit hears of every record once, also of one that a rebuild reads again
        offsets = self._starts() if rebuild else saved
        self._order = TransactionOrder(self._transactions, offsets, barrier=self._log_ends() if rebuild else None)
        self._consumer = self._consume(offsets)
        log.info("replica_follows", sink=sink.name, topics=len(topics), resumed=not self._new, rebuild=rebuild)

    def close(self) -> None:
        self._consumer.close()

    def follow(self, stop: threading.Event) -> None:
        """1. read, 2. see whether all of it is there, 3. apply the transactions that are whole,
        4. commit when it is time.
        """
        while not stop.is_set():
            self._read()
            self._look_for_gaps()
            with self._target.cursor() as cursor:
                while (batch := self._order.next()) is not None:
                    self._apply(cursor, batch)
                    if self._whole and self._is_due():
                        self._commit(cursor)
                if self._whole and self._opened_at is not None:
                    self._commit(cursor)
            if self._unreported and self._opened_at is None and self._report_is_due():
                self._report()
            self._resume()

    # ------------------------------------------------------------------------------------------------------- the log

    def _consume(self, offsets: dict[TopicPartition, int]) -> Consumer:
        """Several topics in one consumer, whose partitions are paused one by one: no reader of `client` does."""
        consumer = committed_consumer(
            # Only a name: offsets are the target's.
            self._connection,
            f"mainstem.sink.{self._sink.name}",
            deleted="error",
            wait_ms=50,
        )
        consumer.assign([ConfluentPartition(p.topic, p.partition, offset) for p, offset in offsets.items()])
        return consumer

    def _starts(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, number): offset
            for topic in (*self._topics, self._transactions.topic)
            for number, offset in start_offsets(self._connection, topic).items()
        }

    def _log_ends(self) -> dict[TopicPartition, int]:
        """The last stable offsets; the transactions' last, so that it has announced what the others hold."""
        return {
            TopicPartition(topic, number): offset
            for topic in (*self._topics, self._transactions.topic)
            for number, offset in end_offsets(self._connection, topic, committed=True).items()
        }

    def _read(self) -> None:
        """Take what has arrived; wait a little when there is nothing."""
        first = self._consumer.poll(_IDLE_SECONDS)
        if first is None:
            return
        for message in (first, *self._consumer.consume(_FETCH_RECORDS, 0.002)):
            partition = TopicPartition(message.topic() or "", message.partition() or 0)
            try:
                found = is_record(message, str(partition))
            except RecordsDeleted:
                raise Rebuild(f"sink {self._sink.name}: {partition} has lost the records that come next") from None
            if found:
                self._take(partition, message)
            else:
                before = self._order.position(partition)
                self._order.reached(partition, message.offset() or 0)
                self._unreported |= self._order.position(partition) > before

    def _take(self, partition: TopicPartition, message: Any) -> None:
        value, offset = message.value(), message.offset()
        key = message.key()
        mark = fingerprint(key, value)
        if partition == self._transactions:
            self._take_transaction(value, offset, mark)
        elif value is None:
            last = self._last.get(partition, ("", 0, 0))
            self._order.add(partition, self._records.tombstone(partition, offset, key, last, mark))
        else:
            change = self._records.change(partition, offset, key, value, headers_of(message), mark)
            self._last[partition] = change.transaction, change.position, change.order
            self._order.add(partition, change)
        if partition not in self._paused and self._is_full(partition, 1):
            self._paused.add(partition)
            self._consumer.pause([ConfluentPartition(partition.topic, partition.partition)])

    def _take_transaction(self, value: bytes | None, offset: int, mark: int) -> None:
        record = self._records.transaction(self._transactions, offset, value)
        new = offset >= self._counted_from[self._transactions]
        if record.status == "BEGIN":
            self._order.begin(record.id, record.position, offset, mark, new=new)
        else:
            counts = {table.topic: table.event_count for table in record.tables}
            unknown = counts.keys() - self._tables.keys()
            # A new snapshot may have brought back what the source had lost.
            self._see_topics(unknown if record.id.startswith(SNAPSHOT_ID) else unknown - self._others)
            self._order.end(record.id, counts, offset, mark, new=new)

    def _see_topics(self, unknown: Set[str]) -> None:
        """Topics of a transaction that are not followed: a snapshot has brought them, unless they are of a former one.

        Raises:
            Rebuild: the source has one of them now, and whoever goes on commits past its rows.
        """
        if not unknown:
            return
        entry = read_catalog(self._connection).get(f"source:{self._config.source}", {})
        joined = sorted(unknown & set(entry.get("topics", ())))
        if joined:
            raise Rebuild(f"sink {self._sink.name}: {', '.join(joined)} joined the source")
        self._others |= unknown

    def _is_full(self, partition: TopicPartition, share: float) -> bool:
        """So much of the partition waits, as a share of what may, that no more of it is read for now."""
        order = self._order
        full = (
            order.waiting(partition) >= MAX_WAITING * share
            or order.waiting_bytes(partition) >= MAX_WAITING_BYTES * share
        )
        return full and not order.needs(partition)

    def _resume(self) -> None:
        ready = [partition for partition in self._paused if not self._is_full(partition, 0.5)]
        if ready:
            self._paused.difference_update(ready)
            self._consumer.resume([ConfluentPartition(p.topic, p.partition) for p in ready])

    def _look_for_gaps(self) -> None:
        """A transaction that lacks records although everything up to the end of the log was read: rebuild."""
        if self._order.compacted:
            raise Rebuild(f"sink {self._sink.name}: a delete is no longer whole in the log")
        head = self._order.incomplete()
        if head is None:
            self._ends = None
            return
        if self._ends is None or self._ends[0] != head.id:
            self._ends, self._look_at = (head.id, {}), self._clock.monotonic() + _PATIENCE_SECONDS
        if self._clock.monotonic() < self._look_at:
            return  # it is most likely on its way: to ask where the log ends costs a round trip per topic
        if not self._ends[1]:
            self._ends = head.id, self._log_ends()
        if self._order.read_past(head, self._ends[1]):
            raise Rebuild(f"sink {self._sink.name}: transaction {head.id} is no longer whole in the log: {head.counts}")

    # ---------------------------------------------------------------------------------------------------- the target

    def _lock(self, cursor: Any) -> None:
        """Keep others out. The server may not have noticed yet that a predecessor's connection is closed."""
        number = zlib.crc32(self._sink.name.encode()) - (1 << 31)
        try:
            cursor.execute("SET LOCAL lock_timeout = %s", (_LOCK_PATIENCE,))
            cursor.execute("SELECT pg_advisory_lock(%s, %s)", (_LOCK_CLASS, number))
        except psycopg2.errors.LockNotAvailable as error:
            raise ReplicaInUse(
                f"sink {self._sink.name}: another process applies it", hint="stop one of them; this one keeps trying"
            ) from error
        cursor.execute("SET LOCAL lock_timeout = DEFAULT")

    def _refuse_own_tables(self, cursor: Any) -> None:
        """Raises:
        SameTables: it is the database of the source, and tables of both have the same names.
        """
        source = self._config.source
        state = read_source(self._connection, source)
        if state is None:
            return
        position = decode_position(source, state.position)
        own = sorted({f"{table.schema}.{table.name}" for table in self._tables.values()}.intersection(position.tables))
        # The slot first: clusters that are copies of one image have the same identifier, and not the slot.
        cursor.execute(
            "SELECT FROM pg_replication_slots WHERE database = current_database() AND database = %s AND slot_name = %s",
            (position.database, position.slot),
        )
        if not own or cursor.fetchone() is None:
            return
        cursor.execute("SELECT system_identifier::text FROM pg_control_system()")
        if cursor.fetchone() == (position.system,):
            raise SameTables(
                f"sink {self._sink.name}: expected another database than that of source {source}, or another schema, found "
                f"the source's own {', '.join(own)}",
                hint="correct `url`, or give the sink a `schema` of its own",
            )

    def _read_offsets(self, cursor: Any, *, rebuild: bool) -> dict[TopicPartition, int]:
        """Where to go on in every partition: 0 where the target has nothing of it.

        Raises:
            LogMismatch: the offsets are of another log, or lie beyond its end.
            TopicsLost: a topic was deleted, and the source has not filled another one.
            Rebuild: it has; or a topic joined the source after the target's last commit, which wrote a row for all it
                followed, and has records: the target may be past them.
        """
        cursor.execute(
            "SELECT topic, partition, next_offset, log_id, rows, tombstones, hash::text, schema_id, topic_id FROM mainstem_offsets "
            "WHERE sink = %s",
            (self._sink.name,),
        )
        found = cursor.fetchall()
        saved = {TopicPartition(topic, number): tuple(rest) for topic, number, *rest, _, _ in found}
        self._schema_ids = {topic: schema_id for topic, *_, schema_id, _ in found if schema_id is not None}
        self._written = {topic for topic, _, next_offset, *_ in found if next_offset}
        lost = self._lost_topics({topic: topic_id for topic, *_, topic_id in found if topic_id is not None})
        if lost and not rebuild:
            raise Rebuild(
                f"sink {self._sink.name}: {', '.join(lost)} were deleted, and a new snapshot has filled others"
            )
        saved = {partition: rest for partition, rest in saved.items() if partition.topic not in lost}
        offsets: dict[TopicPartition, int] = {}
        for topic in (*self._topics, self._transactions.topic):
            for number, end in end_offsets(self._connection, topic).items():
                partition = TopicPartition(topic, number)
                offset, log_id, rows, tombstones, sums = saved.get(partition, (0, self._log_id, 0, 0, "0"))
                if log_id != self._log_id or offset > end:
                    raise LogMismatch(
                        f"sink {self._sink.name}: the target has {partition} up to offset {offset} of log {log_id}, "
                        f"this is log {self._log_id} up to offset {end}",
                        hint=f"empty the target's tables and: DELETE FROM mainstem_offsets WHERE sink = '{self._sink.name}'",  # noqa: S608
                    )
                offsets[partition] = offset
                self._seen[partition] = Seen(rows, tombstones, int(sums))
                self._unreported |= rows + tombstones > 0
        joined = sorted({partition.topic for partition in offsets.keys() - saved.keys()})
        joined = [topic for topic in joined if any(end_offsets(self._connection, topic, committed=True).values())]
        if saved and joined and not rebuild:
            raise Rebuild(f"sink {self._sink.name}: {', '.join(joined)} joined the source")
        return offsets

    def _lost_topics(self, known: dict[str, str]) -> list[str]:
        """The topics that are others than those whose ids are known, and that the source has filled anew."""
        source = self._config.source
        lost = [topic for topic, here in self._ids.items() if known.get(topic, here) != here]
        state = read_source(self._connection, source) if lost else None
        position = decode_position(source, state.position) if state is not None else None
        filled = position.topics if position is not None and position.state == "streaming" else {}
        names = (*self._topics, self._transactions.topic)
        empty = [
            name for name in names if name not in self._ids or (name in lost and filled.get(name) != self._ids[name])
        ]
        if empty:
            raise TopicsLost(
                f"sink {self._sink.name}: {', '.join(empty)} {'was' if len(empty) == 1 else 'were'} deleted, and source "
                f"{source} has not filled others of that name",
                hint=f'set on_gap = "snapshot" for source {source}: a new snapshot fills them; till then the tables stay as '
                "they are",
            )
        return lost

    def _prepare_tables(self, cursor: Any, *, rebuild: bool) -> None:
        """Every table as it was left, or in its first shape, also one without rows;
        later shapes come with the records.

        Raises:
            Rebuild: somebody has taken away a table, or a column, that the target has rows of.
        """
        for topic, table in self._tables.items():
            if rebuild:
                table.clear(cursor)
            try:
                schema_id = self._schema_ids.get(topic) or self._sink.registry.version(f"{topic}-value", 1).id
                shape = self._records.shape(schema_id)
            except NotFound:
                continue
            if self._new:
                table.prepare(cursor, schema_id, shape, may_have_rows=False)
            else:
                if not rebuild and topic in self._written and (missing := table.missing(cursor, shape)):
                    raise Rebuild(f"sink {self._sink.name}: {missing}")
                table.resume(cursor, schema_id, shape, certain=topic in self._schema_ids)

    def _table(self, topic: str) -> TargetTable:
        schema, _, table = topic.removeprefix(f"{self._config.source}.").rpartition(".")
        return TargetTable(schema or self._config.schema, table)

    def _apply(self, cursor: Any, batch: Batch) -> None:
        if self._opened_at is None:
            self._opened_at = self._clock.monotonic()
        for partition, change in batch.changes:
            table = self._tables[partition.topic]
            if change.offset >= self._counted_from[partition]:
                seen = self._seen[partition]
                seen.hash += change.fingerprint
                if change.operation:
                    seen.rows += 1
                else:
                    seen.tombstones += 1
            if change.operation:
                table.prepare(
                    cursor, change.schema_id, self._records.shape(change.schema_id), may_have_rows=not self._new
                )
            # A tombstone says what its delete record has said, which only a rebuild may not have found; and one that
            # is read late, after changes of other partitions, is not of the table's key where they have another.
            if change.operation or self._rebuild:
                table.apply(cursor, change)
        if batch.records:
            seen = self._seen[self._transactions]
            seen.rows += batch.records
            seen.hash += batch.fingerprint
        self._applied += len(batch.changes)
        self._position, self._whole = batch.position, batch.whole

    def _is_due(self) -> bool:
        age_ms = (self._clock.monotonic() - (self._opened_at or 0)) * 1000
        return self._applied >= _COMMIT_CHANGES or age_ms >= self._config.commit_interval_ms

    def _commit(self, cursor: Any) -> None:
        """Rows, offsets and books, all of it or nothing."""
        self._check_lost()
        for table in self._tables.values():
            table.flush(cursor)
        self._write_offsets(cursor)
        self._target.commit()
        for table in self._tables.values():
            table.committed()
        self._new, self._applied, self._opened_at = False, 0, None
        self._unreported = True

    def _check_lost(self) -> None:
        """See that no table has lost rows by another key.

        Raises:
            Rebuild: one has; further on in the log there may be a snapshot that has them, which a rebuild comes to.
            KeyUnknown: there is none.
        """
        for reason in (table.lost_by for table in self._tables.values() if table.lost_by):
            if not self._rebuild:
                raise Rebuild(f"sink {self._sink.name}: {reason}")
            source = self._config.source
            slot = read_catalog(self._connection).get(f"source:{source}", {}).get("slot", "its slot")
            raise KeyUnknown(
                f"sink {self._sink.name}: {reason}",
                hint=f"a new snapshot has it: stop `mainstem up`, SELECT pg_drop_replication_slot('{slot}') in the database of "
                f'source {source}, set on_gap = "snapshot" under [sources.{source}], and start `mainstem up` again',
            )

    def _write_offsets(self, cursor: Any) -> None:
        rows = [
            (
                self._sink.name, partition.topic, partition.partition, offset, self._position, self._log_id,
                seen.rows, seen.tombstones, seen.hash % MODULUS, table.schema_id if table is not None else None,
                self._ids.get(partition.topic),
            )
            for partition, offset in self._order.offsets.items()
            for seen, table in ((self._seen[partition], self._tables.get(partition.topic)),)
        ]  # fmt: skip
        execute_values(cursor, _SAVE_OFFSETS, rows)

    def _report_is_due(self) -> bool:
        return (self._clock.monotonic() - self._reported_at) * 1000 >= self._config.report_interval_ms

    def _report(self) -> None:
        """Tell the audit all that the target has, per partition: after the commit, or at the next start."""
        write_reports(
            self._sink.connection,
            [
                Report(
                    reader=self._sink.name, topic=partition.topic, partition=partition.partition,
                    end=end, rows=seen.rows, tombstones=seen.tombstones, hash=seen.hash % MODULUS,
                )
                for partition, seen in self._seen.items()
                if (end := self._order.position(partition))
            ],
        )  # fmt: skip
        self._reported_at, self._unreported = self._clock.monotonic(), False


_TABLES = """
CREATE TABLE IF NOT EXISTS mainstem_offsets (
    sink text, topic text, partition int, next_offset bigint NOT NULL, position bigint NOT NULL, log_id text NOT NULL,
    rows bigint NOT NULL, tombstones bigint NOT NULL, hash numeric(20) NOT NULL, schema_id int, topic_id text,
    PRIMARY KEY (sink, topic, partition)
);
DO $$ BEGIN  -- ADD COLUMN IF NOT EXISTS locks the table also where there is nothing to add, and other sinks write to it
    IF 2 > (
        SELECT count(*) FROM pg_attribute
        WHERE attrelid = 'mainstem_offsets'::regclass AND attname IN ('schema_id', 'topic_id')
    ) THEN
        ALTER TABLE mainstem_offsets ADD COLUMN IF NOT EXISTS schema_id int, ADD COLUMN IF NOT EXISTS topic_id text;
    END IF;
END $$;
"""

_SAVE_OFFSETS = """
INSERT INTO mainstem_offsets AS o (
    sink, topic, partition, next_offset, position, log_id, rows, tombstones, hash, schema_id, topic_id
) VALUES %s
ON CONFLICT (sink, topic, partition) DO UPDATE SET next_offset = EXCLUDED.next_offset, position = EXCLUDED.position,
    log_id = EXCLUDED.log_id, rows = EXCLUDED.rows, tombstones = EXCLUDED.tombstones,
    hash = EXCLUDED.hash, schema_id = EXCLUDED.schema_id, topic_id = EXCLUDED.topic_id
WHERE o.next_offset <> EXCLUDED.next_offset OR o.schema_id IS DISTINCT FROM EXCLUDED.schema_id
    OR o.topic_id IS DISTINCT FROM EXCLUDED.topic_id
"""
