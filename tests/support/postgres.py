"""Two real databases, a log and a registry: what a source and its replica are tested with."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest

from mainstem.client import Connection
from mainstem.client.topics import end_offsets, ensure_internal_topics
from mainstem.client.writer import read_source
from mainstem.connect.local_postgres import LocalPostgres
from mainstem.connect.sinks.postgres import PostgresReplica
from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources.postgres import PostgresSource, mark_position
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.connect.worker import Task
from mainstem.core import Clock
from mainstem.registry import avro
from mainstem.registry.client import Registry
from tests.support.live import running_registry
from tests.support.records import committed
from tests.support.waiting import pause

WAIT_SECONDS = 120.0  # only a hang takes so long, or a machine that many share

ALL_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN price AS numeric(10, 3);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, small smallint, number integer, amount numeric(12, 4), any_number numeric, cost price, flag boolean,
    day date, moment timestamp, instant timestamptz, at time, span interval, uid uuid, doc json, docb jsonb, raw bytea, single real,
    double double precision, name varchar(20), fixed char(5), feeling mood, address inet, numbers int[], names text[],
    amounts numeric[], moods mood[], matrix int[][], "odd name" text
);
INSERT INTO kinds VALUES (
    1, -32768, 2147483647, 12345678.9012, 0.1000000000000000000000000000000001, 9.999, true,
    '2024-02-29', '1999-12-31 23:59:59.999999', '2013-01-01 05:00:00+02', '23:59:59.999999', '1 year 2 days 03:04:05.6',
    '6ecd8c99-4036-403d-bf84-cf8400f67836', '{"a" : 1.50}', '{"b": [1, null]}', '\\xdeadbeef00', 1.1, 1e-300,
    E'tab\\t"quote" \\\\ \\n ünï', 'ab', 'happy', '10.0.0.1/8', '{1,NULL,3}', '{"a b",NULL,"NULL","q\\"\\\\",""}',
    '{1.10,NaN}', '{sad,happy}', '{{1,2},{3,4}}', 'odd'
), (
    2, 0, 0, 0, 'NaN', -0.001, false, '0001-01-01', '9999-12-31 23:59:59.5', '0001-01-01 00:00:00+00', '00:00:00.000001',
    '-1 mons', NULL, '[]', 'null', '', 'NaN', '-Infinity', '', '', 'sad', '::1', '{}', '{}', '{}', '{}', '{}', ''
), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL);
"""

EXTREMES = """
INSERT INTO kinds (id, day, moment, instant) VALUES
    (10, '0044-03-15 BC', '12024-01-01 00:00:00.5', '0001-01-01 00:00:00+00 BC'),
    (11, '4713-01-01 BC', '294247-01-10 04:00:54.775807', '4713-01-01 00:00:00+00 BC')
"""


class Database:
    """One database, spoken to in autocommit unless told otherwise."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        return connection

    def run(self, *statements: str, transaction: bool = False) -> list[Any]:
        """Run statements, in one transaction where asked; the rows of the last."""
        connection = self.connect()
        try:
            connection.autocommit = not transaction
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
            if transaction:
                connection.commit()
            return rows
        finally:
            connection.close()

    def rows(self, table: str, columns: str = "*") -> list[Any]:
        """Every row as text, in order."""
        return sorted(self.run(f"SELECT row_to_json(t)::text FROM (SELECT {columns} FROM {table}) t"))


class Pipeline:
    """A source database, a target database, and the log between them, all of one test."""

    def __init__(self, server: LocalPostgres, connection: Connection, registry_url: str) -> None:
        self.name = f"s{uuid.uuid4().hex[:8]}"
        self.server, self.connection, self.registry = server, connection, Registry(registry_url)
        self.source = Database(server.create_database(self.name))
        self.target = Database(server.create_database(f"{self.name}_replica"))

    def make_source(self, **settings: Any) -> PostgresSource:
        defaults: dict[str, Any] = {"url": self.source.url, "commit_interval_ms": 20, "heartbeat_ms": 200}
        return PostgresSource(self.name, PostgresSourceConfig(**defaults | settings), self.connection, self.registry)

    def make_replica(self, clock: Clock | None = None, **settings: Any) -> PostgresReplica:
        defaults: dict[str, Any] = {"url": self.target.url, "source": self.name, "commit_interval_ms": 20}
        config = PostgresReplicaConfig(**defaults | settings)
        return PostgresReplica(f"{self.name}-replica", config, self.connection, self.registry, clock=clock)

    def topic(self, table: str) -> str:
        return f"{self.name}.{table}"

    def position(self) -> dict[str, Any]:
        state = read_source(self.connection, self.name)
        return state.position if state is not None else {}

    def wait_until_written(self, running: "Running | None" = None) -> None:
        """Until everything that was committed before this call is in the log."""
        lsn = mark_position(self.source.url)
        wait_until(lambda: self.position().get("lsn", 0) > lsn, "the log has it", running)

    def wait_until_equal(self, *tables: str, running: "Running | None" = None) -> None:
        """Until the replica has the same rows in `tables`."""

        def equal() -> bool:
            try:
                return all(self.source.rows(table) == self.target.rows(table) for table in tables)
            except psycopg2.errors.UndefinedTable:
                return False

        wait_until(equal, "source and replica are equal", running, describe=lambda: self._differences(tables))

    def _differences(self, tables: tuple[str, ...]) -> str:
        """What a person needs who was not there: rows that one side lacks, and how far the replica says it is."""
        lines = []
        for table in tables:
            source, target = set(self.source.rows(table)), set(self.target.rows(table))
            lines += [
                f"{table}: only in the {side}: {row}"
                for side, rows in (("source", source - target), ("replica", target - source))
                for row in sorted(rows)[:5]
            ]
        offsets = self.target.run("SELECT topic, partition, next_offset, position FROM mainstem_offsets")
        ends = {topic: end_offsets(self.connection, topic, committed=True) for topic, *_ in offsets}
        lines += [
            f"{t}-{p}: next {offset} of {ends[t].get(p)}, position {position}" for t, p, offset, position in offsets
        ]
        return "\n".join(lines)

    def read(self, topic: str) -> list[Any]:
        """Every committed record of a topic, by partition: (key, decoded value or None, headers, partition, offset)."""
        return read_topic(self.connection, topic, self.registry)

    def drop(self) -> None:
        """Let the server forget the slots, which would hold its WAL."""
        for slot, pid in self.source.run(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = current_database()"
        ):
            if pid is not None:
                self.source.run(f"SELECT pg_terminate_backend({pid})")
            wait_until(lambda slot=slot: self._drop_slot(slot), f"slot {slot} is dropped")

    def _drop_slot(self, slot: str) -> bool:
        try:
            self.source.run(
                f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
            )
        except psycopg2.errors.ObjectInUse:
            return False
        return True


class Running:
    """A task in a thread; the error that ended it, if one did."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._task.run(self._stop)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive(), "the task does not stop"


@contextmanager
def running(task: Task) -> Iterator[Running]:
    """Run a task beside the test; an error of it is the test's."""
    run = Running(task)
    run.thread.start()
    try:
        yield run
    finally:
        run.stop()
    if run.error is not None:
        raise run.error


def run_until_it_fails(task: Task) -> BaseException:
    """The error that ends the task."""
    run = Running(task)
    run.thread.start()
    run.thread.join(WAIT_SECONDS)
    run.stop()
    assert run.error is not None, "the task did not fail"
    return run.error


def wait_until(
    reached: Callable[[], bool],
    what: str,
    running: Running | None = None,
    seconds: float = WAIT_SECONDS,
    describe: Callable[[], str] = lambda: "",
) -> None:
    began = time.monotonic()
    while not reached():
        if running is not None and running.error is not None:
            raise running.error
        assert time.monotonic() < began + seconds, f"not within {seconds:.0f} s: {what}\n{describe()}"
        pause(began)


def read_topic(connection: Connection, topic: str, registry: Registry) -> list[Any]:
    """Every committed record: (key, decoded value or None, headers, partition, offset)."""
    return [
        (
            message.key(),
            None if message.value() is None else avro.decode(message.value(), registry.schema),
            message.headers(),
            message.partition(),
            message.offset(),
        )
        for message in committed(connection, topic)
    ]


def state_of(records: list[Any]) -> dict[bytes, Any]:
    """The rows that a reader of the changes ends with, by key."""
    rows: dict[bytes, Any] = {}
    for key, value, _, _, _ in records:
        if value is None or value["op"] == "d":
            rows.pop(key, None)
        elif value["op"] == "t":
            rows.clear()
        else:
            rows[key] = value["after"]
    return rows


def check_transactions(pipeline: Pipeline, *tables: str) -> None:
    """Every record belongs to a transaction, in its place, once; every END counts what is there."""
    seen: dict[str, list[int]] = {}
    counted: dict[str, int] = {}
    for table in tables:
        for _, value, _, _, _ in pipeline.read(pipeline.topic(table)):
            if value is not None:
                orders = seen.setdefault(value["transaction"]["id"], [])
                orders.append(value["transaction"]["total_order"])
    positions, begun = [], None
    for _, value, _, _, _ in pipeline.read(pipeline.topic("transactions")):
        if value["status"] == "BEGIN":
            assert begun is None
            begun = value["id"]
            positions.append(value["position"])
        else:
            assert value["id"] == begun
            begun = None
            counted[value["id"]] = value["event_count"]
            assert sum(table["event_count"] for table in value["tables"]) == value["event_count"]
    assert begun is None
    assert positions == sorted(positions)
    assert len(set(counted)) == len(positions)
    assert {identity: sorted(orders) for identity, orders in seen.items()} == {
        identity: list(range(1, count + 1)) for identity, count in counted.items() if count
    }


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPostgres]:
    """One PostgreSQL for the whole run; it does not sync, since the machine does not crash."""
    with LocalPostgres(
        tmp_path_factory.mktemp("postgres"), settings={"fsync": "off", "max_connections": "60"}
    ) as server:
        yield server


@pytest.fixture(scope="session")
def pipeline_log(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, str]]:
    """The embedded log or, with `--kafka`, a real Kafka; and the URL of a registry on it."""
    log = request.getfixturevalue("kafka_broker" if request.config.getoption("--kafka") else "mainstem_log")
    connection = Connection(log.bootstrap)
    ensure_internal_topics(connection)
    with running_registry(connection) as url:
        yield connection, url


@pytest.fixture
def pipeline(postgres_server: LocalPostgres, pipeline_log: tuple[Connection, str]) -> Iterator[Pipeline]:
    """Two new databases of one server, and the log."""
    pipeline = Pipeline(postgres_server, *pipeline_log)
    yield pipeline
    pipeline.drop()
