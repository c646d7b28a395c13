"""Source and replica are killed again and again under load: nothing is lost, nothing comes twice, nothing is half.

The checker counts every change by its place (transaction, total order), so a loss and a duplicate cannot cancel out;
a reader of the replica adds up two tables between which the load moves amounts.
"""

import random
import threading
import time

import psycopg2
import pytest

from mainstem.client.topics import list_topics
from tests.support.connect import ConnectProcess
from tests.support.postgres import (
    Pipeline,
    check_transactions,
    pipeline,
    pipeline_log,
    postgres_server,
    state_of,
    wait_until,
)

__all__ = ["pipeline", "pipeline_log", "postgres_server"]

ACCOUNTS = 200
TABLES = ("savings", "checking", "journal")


class Load:
    """Two sessions that move amounts between two tables and write it down, until they are stopped."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._stop = threading.Event()
        self.transactions = 0
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in (1, 2)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        connection = self._pipeline.source.connect()
        connection.autocommit = False
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                amount, size = chance.randrange(1, 9), 20 if chance.random() < 0.05 else 1
                first = chance.randrange(ACCOUNTS - size)
                try:
                    cursor.execute(
                        "UPDATE savings SET n = n - %s WHERE id BETWEEN %s AND %s", (amount, first, first + size)
                    )
                    cursor.execute(
                        "UPDATE checking SET n = n + %s WHERE id BETWEEN %s AND %s", (amount, first, first + size)
                    )
                    cursor.execute("INSERT INTO journal (what) VALUES (%s)", (f"{amount} of {first}",))
                    if chance.random() < 0.2:
                        cursor.execute("DELETE FROM journal WHERE id %% 50 = %s", (chance.randrange(50),))
                    connection.commit()
                    self.transactions += 1
                except psycopg2.errors.DeadlockDetected:
                    connection.rollback()
                time.sleep(0.04)
        connection.close()


class SumReader:
    """Reads both tables of the replica in one statement, in a loop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._stop = threading.Event()
        self.sums: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "SumReader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = self._pipeline.target.connect()
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                try:
                    cursor.execute("SELECT (SELECT sum(n) FROM savings) + (SELECT sum(n) FROM checking)")
                    (found,) = cursor.fetchone()
                    self.sums.extend([int(found)] if found is not None else [])
                except psycopg2.errors.UndefinedTable:
                    pass
                time.sleep(0.002)
        connection.close()


def prepare(pipeline: Pipeline) -> None:
    pipeline.source.run(
        "CREATE TABLE savings (id int PRIMARY KEY, n bigint)",
        "CREATE TABLE checking (id int PRIMARY KEY, n bigint)",
        "CREATE TABLE journal (id bigserial PRIMARY KEY, what text, at timestamptz DEFAULT now())",
        f"INSERT INTO savings SELECT i, 1000 FROM generate_series(0, {ACCOUNTS - 1}) i",
        f"INSERT INTO checking SELECT i, 1000 FROM generate_series(0, {ACCOUNTS - 1}) i",
    )


def processes_of(pipeline: Pipeline, tmp_path) -> tuple[ConnectProcess, ConnectProcess]:
    where = pipeline.connection.bootstrap, pipeline.registry.url
    source = ConnectProcess(
        "source", pipeline.name, *where, tmp_path / "source.log",
        url=pipeline.source.url, commit_interval_ms=30, max_transaction_rows=25, heartbeat_ms=200, heartbeat_wal_bytes=0,
    )  # fmt: skip
    sink = ConnectProcess(
        "sink", f"{pipeline.name}-replica", *where, tmp_path / "sink.log",
        url=pipeline.target.url, source=pipeline.name, commit_interval_ms=20,
    )  # fmt: skip
    return source, sink


def source_progress(pipeline: Pipeline) -> int:
    return pipeline.position().get("lsn", 0)


def sink_progress(pipeline: Pipeline) -> int:
    return int(pipeline.target.run("SELECT coalesce(sum(next_offset), 0) FROM mainstem_offsets")[0][0])


def kill_under_load(pipeline: Pipeline, tmp_path, kills: int, seed: int) -> None:
    prepare(pipeline)
    chance = random.Random(seed)
    source, sink = processes_of(pipeline, tmp_path)
    source.start()
    sink.start()
    try:
        with Load(pipeline) as load, SumReader(pipeline) as reader:
            wait_until(lambda: bool(reader.sums), "the replica has its first rows")
            for _ in range(kills):
                victim, progress = chance.choice([(source, source_progress), (sink, sink_progress)])
                if chance.random() < 0.7:  # at work; the others are killed at any moment, also while they start
                    before = progress(pipeline)
                    wait_until(lambda at=before, of=progress: of(pipeline) > at, "the victim works")
                time.sleep(chance.uniform(0, 0.7))
                victim.kill()
                time.sleep(chance.choice([0, 0, 0.5]))
                victim.start()
            pipeline.wait_until_written()
        pipeline.wait_until_written()
        pipeline.wait_until_equal(*TABLES)
    finally:
        codes = source.stop(), sink.stop()
    assert codes == (0, 0)
    assert load.transactions > 50
    assert len(reader.sums) > 50
    assert set(reader.sums) == {2000 * ACCOUNTS}
    check_transactions(pipeline, *TABLES)
    for table in TABLES:
        rows = state_of(pipeline.read(pipeline.topic(table)))
        assert sorted(row["id"] for row in rows.values()) == sorted(
            n for (n,) in pipeline.source.run(f"SELECT id FROM {table}")
        )


def test_killed_at_random_under_load(pipeline, tmp_path):
    kill_under_load(pipeline, tmp_path, kills=8, seed=11)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_killed_many_times(pipeline, tmp_path, seed):
    kill_under_load(pipeline, tmp_path, kills=60, seed=100 + seed)


def test_killed_in_its_snapshot(pipeline, tmp_path):
    """What a cut snapshot wrote is never visible, and the slot that it left behind is replaced."""
    rows = 30_000
    pipeline.source.run(
        "CREATE TABLE savings (id int PRIMARY KEY, n bigint)",
        f"INSERT INTO savings SELECT i, 1 FROM generate_series(1, {rows}) i",
    )
    source, _ = processes_of(pipeline, tmp_path)
    topic = pipeline.topic("savings")
    for pause in (0.0, 0.05, 0.1, 0.2, 0.4):
        source.start()
        deadline = time.monotonic() + 60
        while topic not in list_topics(pipeline.connection) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(pause)
        source.kill()
        pipeline.source.run("UPDATE savings SET n = n + 1 WHERE id <= 10")
    source.start()
    pipeline.wait_until_written()
    assert source.stop() == 0
    records = pipeline.read(topic)
    snapshots = [value for _, value, *_ in records if value is not None and value["op"] == "r"]
    assert len(snapshots) == rows
    assert len({value["transaction"]["id"] for value in snapshots}) == 1
    assert {row["id"]: row["n"] for row in state_of(records).values()} == dict(
        pipeline.source.run("SELECT id, n FROM savings")
    )
    check_transactions(pipeline, "savings")
