"""PostgreSQL as a source: a consistent snapshot, then every change, exactly once, with source transactions kept.

Rows and position are committed in one Kafka transaction, so the log itself says how far the source is; the replication
slot is confirmed after that. On every start the position is read from the log, and what the server sends again is
dropped. Several source transactions share a Kafka transaction, which ends between two of them: a reader sees a source
transaction whole or not at all. One exception: a source transaction of more than `max_transaction_rows` changes, or one
that takes longer than half of the Kafka transaction's timeout, is committed in parts. Then BEGIN is visible before END,
and a sink that promises whole transactions waits for END.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import psycopg2

from mainstem.client.catalog import TopicEntry, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import TopicMismatch
from mainstem.client.topics import (
    CHANGELOG_SETTINGS,
    STREAM_SETTINGS,
    end_offsets,
    ensure_internal_topics,
    ensure_topic,
    list_topics,
    topic_ids,
)
from mainstem.client.writer import TransactionalWriter
from mainstem.connect.sources import postgres_catalog as catalog
from mainstem.connect.sources import postgres_publication as publication
from mainstem.connect.sources.postgres_catalog import DatabaseUnavailable, TableInfo, translate
from mainstem.connect.sources.postgres_changes import ChangeTranslator
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.connect.sources.postgres_pgoutput import Relation, Row, decode, format_lsn
from mainstem.connect.sources.postgres_position import (
    PositionMismatch,
    Resume,
    Server,
    Snapshot,
    SourcePosition,
    decode_position,
    plan_start,
)
from mainstem.connect.sources.postgres_replication import ReplicationStream
from mainstem.connect.sources.postgres_snapshot import SNAPSHOT_TIMEOUT_MS, adopt, copy_table, create_slot, leave
from mainstem.connect.sources.postgres_table import (
    SNAPSHOT_ID,
    TRANSACTIONS_SCHEMA,
    TRUNCATE_KEY,
    NoKey,
    Table,
    TableEncoder,
    Transaction,
    changed_columns,
    describe_table,
    encode_begin,
    encode_end,
    key_of,
)
from mainstem.core import Clock, MainstemError, SystemClock, UserError, is_topic_name
from mainstem.core.logging import get_logger
from mainstem.registry.client import Registry
from mainstem.registry.errors import IncompatibleSchema, NotFound
from mainstem.registry.schema import is_change

log = get_logger()

TRANSACTION_TIMEOUT_MS = 60_000
HEARTBEAT_PREFIX = "mainstem"
_IDLE_WAIT_SECONDS = 0.3
_POSITION_SECONDS = 0.5  # between two commits of nothing but a position, of a database that is busy with other tables
_COMMIT_ROWS = 50_000
_VISIBLE_SECONDS = 10  # well below the Kafka transaction's timeout
_VISIBLE_PAUSE_SECONDS = 0.005


class UnfitName(UserError):
    """A table that cannot have the topic that it would be called by."""


class Stopped(MainstemError):
    """The source was asked to stop in the middle of its snapshot; nothing of it is visible."""


def table_topic(source: str, namespace: str, name: str) -> str:
    """`<source>.<table>`, with the schema between them where it is not public."""
    schema = "" if namespace == "public" else f"{namespace}."
    return f"{source}.{schema}{name}"


def _metric_name(topic: str) -> str:
    """What no two topics may share: Kafka's metrics write `.` as `_`."""
    return topic.replace(".", "_")


def transactions_topic(source: str) -> str:
    return f"{source}.transactions"


def default_name(source: str) -> str:
    """The slot's and publication's name: small letters, digits and underscores, at most 63."""
    return (
        "mainstem_"
        + "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in source.lower())[:54]
    )


def mark_position(url: str) -> int:
    """Put a mark into the database's WAL. When the source's `lsn` in the log is beyond the result, everything that
    was committed before this call is in the log.
    """
    connection = catalog.connect(url)
    try:
        connection.autocommit = True
        return catalog.emit_message(connection, HEARTBEAT_PREFIX, "mark")
    finally:
        connection.close()


class PostgresSource:
    """One database, read by one thread. `run` goes on until `stop` is set or something fails;
    it can be called again.
    """

    def __init__(
        self,
        name: str,
        config: PostgresSourceConfig,
        connection: Connection,
        registry: Registry,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.slot = config.slot or default_name(name)
        self.publication = config.publication or default_name(name)
        self._connection = connection
        self._registry = registry
        self.clock = clock or SystemClock()
        self._as_text = frozenset(
            (*catalog.qualified(column.rpartition(".")[0]), column.rpartition(".")[2]) for column in config.as_text
        )

    def run(self, stop: threading.Event) -> None:
        """1. fence older runs of this source and read its position, 2. see whether slot and position fit together,
        3. take the snapshot where there is none, 4. stream.
        """
        ensure_internal_topics(self._connection)
        database = catalog.connect(self.config.url, name=f"mainstem {self.name}")
        replication = None
        try:
            database.autocommit = True
            catalog.check_wal_level(database)
            catalog.see_all_rows(database)
            replication = catalog.connect(self.config.url, replication=True, name=f"mainstem {self.name}")
            position = self._position(database, replication, stop)
            _Stream(self, database, replication, position).run(stop)
        except Stopped:
            log.info("snapshot_stopped", source=self.name)
        except psycopg2.Error as error:
            raise translate(error, f"source {self.name}") from error
        finally:
            database.close()
            if replication is not None:
                replication.close()

    def writer(self, timeout_ms: int) -> TransactionalWriter:
        return TransactionalWriter(self._connection, self.name, transaction_timeout_ms=timeout_ms)

    def _position(self, database: Any, replication: Any, stop: threading.Event) -> SourcePosition:
        writer = self.writer(SNAPSHOT_TIMEOUT_MS)
        try:
            state = writer.open()
            server = catalog.identify(replication)
            known = None if state is None else decode_position(self.name, state.position)
            slot = catalog.read_slot(database, known.slot if known else self.slot)
            gap = self.config.on_gap == "snapshot"
            plan = plan_start(self.name, self.slot, known, slot, server, snapshot_on_gap=gap)
            if isinstance(plan, Resume):
                plan = self._check_stream(database, plan)
            if isinstance(plan, Resume):
                log.info("source_resumes", source=self.name, lsn=format_lsn(plan.position.lsn))
                self._check_tables(plan.position)
                return plan.position
            if plan.drop_slot:
                catalog.drop_slot(database, known.slot if known else self.slot)
            return self._snapshot(writer, database, replication, server, known, stop)
        finally:
            writer.close()

    def _check_stream(self, database: Any, plan: Resume) -> Resume | Snapshot:
        """See that the stream has everything that happens to the tables, and the topics everything that has happened;
        else refuse, or begin anew where that is set.
        """
        position = plan.position
        try:
            if not position.oids:
                oids = publication.find_oids(database, self.name, position.tables)
                position = msgspec.structs.replace(position, oids=oids)
            self.check_published(database, position)
            position = self._check_topics(position)
        except PositionMismatch as error:
            if self.config.on_gap != "snapshot":
                raise
            log.warning("source_begins_anew", source=self.name, reason=str(error))
            return Snapshot(drop_slot=True)
        return Resume(position)

    def check_published(self, database: Any, position: SourcePosition) -> list[str]:
        """The tables that were dropped.

        Raises:
            PositionMismatch: changes of another one are not in the stream.
        """
        tables = dict(zip(position.tables, position.oids, strict=True))
        return publication.check_published(database, self.name, self.publication, tables)

    def _check_topics(self, position: SourcePosition) -> SourcePosition:
        """The position with the topics' ids, which one of an earlier version lacks.

        Raises:
            PositionMismatch: a topic was deleted, and with it the rows that have not changed since.
            TopicMismatch: `partitions` was changed: older rows of a key would stay in a partition that nobody writes.
        """
        names = [table_topic(self.name, *name.split(".", 1)) for name in position.tables]
        names.append(transactions_topic(self.name))
        lost, ids = self._lost_topics(names, position.topics)
        if lost:
            raise PositionMismatch(
                f"source {self.name}: {', '.join(lost)} {'was' if len(lost) == 1 else 'were'} deleted since the log was begun",
                hint='set on_gap = "snapshot" for this source: it makes its topics, and a new snapshot fills them',
            )
        present = list_topics(self._connection)
        for name in names[:-1]:
            if present[name].partitions != self.config.partitions:
                raise TopicMismatch(
                    f"source {self.name}: `partitions` is {self.config.partitions}, but the log was begun with "
                    f"{present[name].partitions} ({name})",
                    hint="restore `partitions`; or delete the source's topics, of tables and transactions, and set "
                    'on_gap = "snapshot": it makes them anew',
                )
        return msgspec.structs.replace(position, topics=ids)

    def _lost_topics(self, names: list[str], known: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """Which topics are not there, or not those whose ids are known; and the ids of those that are there."""
        ids = topic_ids(self._connection, names)
        return [name for name in names if name not in ids or known.get(name, ids[name]) != ids[name]], ids

    def _check_tables(self, position: SourcePosition) -> None:
        """A table that was added to the settings later has no snapshot, and to say nothing would be to lose it."""
        wanted = {".".join(catalog.qualified(name)) for name in self.config.tables}
        if wanted and wanted != set(position.tables):
            raise catalog.DatabaseRefused(
                f"source {self.name}: `tables` are {', '.join(sorted(wanted))}, but the log was begun with {', '.join(position.tables)}",
                hint="restore `tables`; give new tables a source of their own",
            )

    def _snapshot(
        self,
        writer: TransactionalWriter,
        database: Any,
        replication: Any,
        server: Server,
        known: SourcePosition | None,
        stop: threading.Event,
    ) -> SourcePosition:
        tables = catalog.find_tables(database, self.config.tables)
        self.check_keys(tables)
        self.check_topics(tables)
        publication.ensure_publication(database, self.publication, [table.relation for table in tables])
        topics = [self._topic(table) for table in tables] + [transactions_topic(self.name)]
        lost, _ = self._lost_topics(topics, known.topics if known else {})
        transactions = self.ensure_topics(tables, made_anew=lost)
        writer.forget(lost)
        names = tuple(f"{table.relation.namespace}.{table.relation.name}" for table in tables)
        oids = tuple(table.relation.oid for table in tables)
        position = SourcePosition(
            "snapshot", server.system, server.database, self.slot, tables=names, oids=oids,
            topics=topic_ids(self._connection, topics),
        )  # fmt: skip
        writer.begin()
        writer.commit(msgspec.to_builtins(position))  # from here on the slot is known to be ours
        lsn, snapshot = create_slot(replication, self.slot)
        adopt(database, snapshot)
        started = self.clock.monotonic()
        transaction = Transaction(f"{SNAPSHOT_ID}{lsn}", lsn, self.clock.now_ms() * 1000)
        writer.begin()
        writer.send(transactions_topic(self.name), 0, None, encode_begin(transactions, transaction))
        counts = self._copy(writer, database, tables, transaction, stop)
        writer.send(transactions_topic(self.name), 0, None, encode_end(transactions, transaction, counts))
        position = msgspec.structs.replace(position, state="streaming", lsn=lsn, commit_lsn=lsn)
        writer.commit(msgspec.to_builtins(position))
        leave(database)
        seconds = round(self.clock.monotonic() - started, 3)
        log.info("snapshot_done", source=self.name, rows=sum(counts.values()), seconds=seconds, lsn=format_lsn(lsn))
        return position

    def _copy(
        self,
        writer: TransactionalWriter,
        database: Any,
        tables: list[TableInfo],
        transaction: Transaction,
        stop: threading.Event,
    ) -> dict[str, int]:
        """Every row as `r`. A topic that has records already gets a truncate first: they are from before the gap."""
        counts: dict[str, int] = {}
        order = 0
        prefix, suffix = transaction.prefix(), transaction.suffix()
        single = 0 if self.config.partitions == 1 else None
        for info in tables:
            encoder = self.encoder(info)
            topic = encoder.topic
            count = 0
            for partition, end in end_offsets(self._connection, topic).items():
                if end:
                    order, count = order + 1, count + 1
                    value = encoder.change("t", None, None, prefix, order, suffix)
                    writer.send(topic, partition, TRUNCATE_KEY, value)

            def on_row(row: Row) -> None:
                nonlocal order, count
                order, count = order + 1, count + 1
                value = encoder.change("r", None, encoder.row(row), prefix, order, suffix)  # noqa: B023 - called in this turn
                writer.send(topic, single, encoder.key(row), value)  # noqa: B023
                if stop.is_set():
                    raise Stopped(f"source {self.name}: stopped in its snapshot")

            copy_table(database, info.relation, on_row)
            counts[topic] = count
        return counts

    def check_keys(self, tables: list[TableInfo]) -> None:
        """All tables without a key in one line, so that a person mends them in one go."""
        without = [f"{table.relation.namespace}.{table.relation.name}" for table in tables if not table.key]
        if without:
            raise NoKey(
                f"source {self.name}: expected a primary key, found none in {', '.join(without)}",
                hint="add a primary key, or leave the table out of `tables` in the source's settings",
            )

    def check_topics(self, tables: list[TableInfo]) -> None:
        """All tables whose name is no topic's, or the topic of something else, in one line."""
        transactions = transactions_topic(self.name)
        users = {_metric_name(transactions): "the source's transactions"}
        unfit = []
        for relation in (table.relation for table in tables):
            topic, name = (
                table_topic(self.name, relation.namespace, relation.name),
                f"{relation.namespace}.{relation.name}",
            )
            user = users.setdefault(_metric_name(topic), name)
            if not is_topic_name(topic):
                unfit.append(f"{name} ({topic} is no name of a topic: 1 to 249 of a-z A-Z 0-9 . _ -)")
            elif user != name:
                unfit.append(f"{name} (topic {topic} is like that of {user})")
        if unfit:
            raise UnfitName(
                f"source {self.name}: expected tables that can have a topic of their own, found {', '.join(unfit)}",
                hint="name the tables without them in `tables` in the source's settings, or rename them in the database",
            )

    def ensure_topics(self, tables: list[TableInfo], *, made_anew: Collection[str] = ()) -> int:
        """Create the topics and describe them in the catalog; the schema id of the transactions topic.

        Raises:
            TopicMismatch: one exists with another number of partitions; or it is among those that somebody has
                `made_anew`, with settings that may take its records away.
        """
        entries: dict[str, Any] = {}
        producer = f"source:{self.name}"
        for table in tables:
            topic = self._topic(table)
            same = topic in made_anew
            ensure_topic(self._connection, topic, self.config.partitions, CHANGELOG_SETTINGS, same_settings=same)
            entries[f"topic:{topic}"] = TopicEntry("changelog", table.key, None, f"{topic}-value", producer)
        topic = transactions_topic(self.name)
        ensure_topic(self._connection, topic, 1, STREAM_SETTINGS, same_settings=topic in made_anew)
        entries[f"topic:{topic}"] = TopicEntry("stream", (), None, f"{topic}-value", producer)
        topics = [self._topic(table) for table in tables]
        entries[producer] = {"type": "postgres", "slot": self.slot, "publication": self.publication, "topics": topics}
        write_catalog(self._connection, entries)
        return self.transactions_schema()

    def _topic(self, table: TableInfo) -> str:
        return table_topic(self.name, table.relation.namespace, table.relation.name)

    def transactions_schema(self) -> int:
        return self._registry.register(f"{transactions_topic(self.name)}-value", TRANSACTIONS_SCHEMA)

    def encoder(self, info: TableInfo) -> TableEncoder:
        """The table's encoder; its schema is registered on the way, as a new version where it has changed."""
        place = (info.relation.namespace, info.relation.name)
        topic = table_topic(self.name, *place)
        as_text = frozenset(column for *table, column in self._as_text if tuple(table) == place)
        table = describe_table(
            self.name, topic, info.relation, info.types, info.key, as_text=as_text, missing=info.missing
        )
        try:
            return table.with_schema_id(self._registry.register(f"{topic}-value", table.schema))
        except IncompatibleSchema as error:
            raise self._not_allowed(table, error) from error

    def _not_allowed(self, table: Table, error: IncompatibleSchema) -> IncompatibleSchema:
        """The same, said of the table: the registry knows neither it nor what a person may do."""
        subject = f"{table.topic}-value"
        latest = self._registry.latest(subject).schema
        changed = changed_columns(latest, table.schema) if is_change(latest) else []
        return IncompatibleSchema(
            f"table {table.name}: the schemas of {subject} do not allow what became of "
            f"{', '.join(changed) or f'its columns: {error}'}",
            error.reasons,
            hint=f"allow it: curl -X PUT {self._registry.url}/config/{subject} -H 'Content-Type: application/json' "
            '-d \'{"compatibility": "NONE"}\'; a lakehouse then holds the table of a column that has two types',
        )

    def registered_keys(self, relation: Relation) -> Iterator[tuple[str, ...]]:
        """The keys of the table that were registered, the last one first.

        Older versions count too: what the server sends again may be from before the last one.
        """
        subject = f"{table_topic(self.name, relation.namespace, relation.name)}-value"
        for number in range(self._registry.latest(subject).version, 0, -1):
            with contextlib.suppress(NotFound):  # somebody has deleted this version
                schema = self._registry.version(subject, number).schema
                if is_change(schema):  # or somebody else has registered it
                    yield key_of(schema)


class _Stream:
    """From the position on, until asked to stop. An error undoes what is not committed; the next run sends it again."""

    def __init__(self, source: PostgresSource, database: Any, replication: Any, position: SourcePosition) -> None:
        self._source = source
        self._config = source.config
        self._clock = source.clock
        self._database = database
        self._replication = replication
        self._position = position
        self._writer = source.writer(TRANSACTION_TIMEOUT_MS)
        self._send = self._writer.send
        self._tables = {
            oid: tuple(name.split(".", 1)) for oid, name in zip(position.oids, position.tables, strict=True)
        }
        self._dropped: set[str] = set()
        self._open = False
        self._opened_at = 0.0
        self._visible_xid: int | None = None
        self._changes = ChangeTranslator(
            position,
            transactions=(transactions_topic(source.name), source.transactions_schema()),
            partitions=self._config.partitions,
            send=self._send_record,
            describe=self._describe,
            read_columns=self._read_columns,
        )

    def run(self, stop: threading.Event) -> None:
        try:
            self._writer.open()
            stream = ReplicationStream(
                self._replication,
                slot=self._position.slot,
                publication=self._source.publication,
                lsn=self._position.lsn,
            )
            log.info("source_streams", source=self._source.name, lsn=format_lsn(self._position.lsn))
            self._follow(stream, stop)
        finally:
            self._writer.close()

    def _follow(self, stream: ReplicationStream, stop: threading.Event) -> None:
        """1. take what has arrived, 2. commit when it is time, 3. when nothing has arrived, ask how far the
        server's WAL goes on without us, beat or wait.

        Somebody may wait for the log to have all up to an LSN behind which nothing was written for us.
        """
        changes, monotonic = self._changes, self._clock.monotonic
        interval, heartbeat = self._config.commit_interval_ms / 1000, self._config.heartbeat_ms / 1000
        heartbeat_due, position_due = monotonic() + heartbeat, 0.0
        while not stop.is_set():
            message = stream.receive()
            if message is not None:
                changes.handle(decode(message))
            elif stream.asked or monotonic() >= position_due:
                stream.asked = False  # what it has sent, we have: it may be waiting for us to shut down
                changes.advance(stream.wal_end)
            now = monotonic()
            if changes.pending and self._is_due(now, interval):
                self._commit(stream)
                heartbeat_due, position_due = now + heartbeat, now + _POSITION_SECONDS
            elif message is None:
                if now >= heartbeat_due:
                    self._heartbeat(stream)
                    heartbeat_due = now + heartbeat
                stream.ask()
                stream.wait(max(0.001, self._opened_at + interval - now) if self._open else _IDLE_WAIT_SECONDS)
        if changes.pending and not changes.in_transaction:
            self._commit(stream)

    def _is_due(self, now: float, interval: float) -> bool:
        """Between two source transactions after the interval; inside of one only when it has grown too large."""
        if not self._open:
            self._begin(now)
        age = now - self._opened_at
        if self._changes.in_transaction:
            too_old = TRANSACTION_TIMEOUT_MS / 2000
            return self._changes.sent >= self._config.max_transaction_rows or (age > too_old and self._changes.sent > 0)
        return age >= interval or self._changes.sent >= _COMMIT_ROWS

    def _begin(self, now: float) -> None:
        self._writer.begin()
        self._open, self._opened_at = True, now

    def _send_record(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        if not self._open:
            self._begin(self._clock.monotonic())
        self._send(topic, partition, key, value, headers or ())

    def _commit(self, stream: ReplicationStream) -> None:
        """1. see that nothing is missing below the position, 2. rows and position into the log,
        3. only then the slot.
        """
        position = self._changes.checkpoint()
        self._check_published()
        self._writer.commit(msgspec.to_builtins(position))
        self._open = False
        self._changes.committed()
        stream.confirm(position.lsn)

    def _heartbeat(self, stream: ReplicationStream) -> None:
        """A message of ours in the WAL: its transaction moves the position, and the slot lets go of older WAL."""
        stream.speak()
        if stream.wal_end - self._changes.position.lsn >= self._config.heartbeat_wal_bytes:
            catalog.emit_message(self._database, HEARTBEAT_PREFIX, self._source.name)

    def _check_published(self) -> None:
        dropped = set(self._source.check_published(self._database, self._position)) - self._dropped
        for name in sorted(dropped):
            log.warning("table_dropped", source=self._source.name, table=name)
        self._dropped |= dropped

    def _describe(self, relation: Relation) -> TableEncoder | None:
        name = (relation.namespace, relation.name)
        ours = self._tables.get(relation.oid)
        if name != ours and (ours or name in self._tables.values()):
            self._check_published()  # it fits now: the table has its name back, and what was changed meanwhile is its
        if ours is None:
            return None
        relation = msgspec.structs.replace(relation, namespace=ours[0], name=ours[1])
        types = catalog.server_types(self._database, [(c.type_oid, c.type_modifier) for c in relation.columns])
        key = catalog.key_columns(self._database, relation.oid)
        flagged = tuple(column.name for column in relation.columns if column.in_key)
        if relation.replica_identity in "di" and set(key) != set(flagged):
            # The catalog is of now, the message of then; but a message has the table's order, not the key's.
            registered = self._source.registered_keys(relation) if len(flagged) > 1 else iter(())
            key = next((each for each in registered if set(each) == set(flagged)), flagged)
        columns = {column.name for column in relation.columns}
        if not columns.issuperset(key) or (not key and self._is_dropped(".".join(ours))):
            key = next((each for each in self._source.registered_keys(relation) if columns >= set(each)), ())
        missing = catalog.missing_values(self._database, relation.oid)
        return self._source.encoder(TableInfo(relation, types, key, missing))

    def _is_dropped(self, table: str) -> bool:
        self._check_published()
        return table in self._dropped

    def _read_columns(self, xid: int, table: TableEncoder, row: Row, places: list[int]) -> Row:
        self._wait_until_visible(xid)
        relation = table.table.relation
        key: dict[str, str] = {}
        for place in table.table.key:
            value = row[place]
            assert isinstance(value, bytes)
            key[relation.columns[place].name] = value.decode()
        found = catalog.read_columns(self._database, relation, key, [relation.columns[place].name for place in places])
        return [None] * len(places) if found is None else list(found)

    def _wait_until_visible(self, xid: int) -> None:
        """Raises:
        DatabaseUnavailable: the transaction's commit still waits for something, most likely a synchronous standby.
        """
        deadline = self._clock.monotonic() + _VISIBLE_SECONDS
        while xid != self._visible_xid:
            if catalog.is_visible(self._database, xid):
                self._visible_xid = xid
            elif self._clock.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"source {self._source.name}: transaction {xid} is in the WAL, and not visible {_VISIBLE_SECONDS} s later",
                    hint="see whether its session waits for a synchronous standby (pg_stat_activity); this one tries again",
                )
            else:
                time.sleep(_VISIBLE_PAUSE_SECONDS)
