"""The replica is the source: for any changes, at any moment whole transactions, after any stop."""

import random
import threading
import time

import msgspec
import psycopg2
import pytest

from mainstem.client.append import append
from mainstem.client.catalog import write_catalog
from mainstem.client.compacted import read_compacted
from mainstem.client.reports import read_reports
from mainstem.client.topics import CHANGELOG_SETTINGS, delete, end_offsets, ensure_topic, list_topics, topic_ids
from mainstem.client.writer import read_source
from mainstem.connect.sinks import postgres as replica_module
from mainstem.connect.sinks.postgres import (
    KeyUnknown,
    LogMismatch,
    ReplicaInUse,
    SameTables,
    SourceNotReady,
    TopicsLost,
)
from mainstem.connect.sinks.postgres_target import NotEmpty
from mainstem.connect.sources.postgres import transactions_topic
from mainstem.connect.worker import Worker
from mainstem.core import CorruptData, ManualClock
from mainstem.registry import avro
from tests.support.postgres import ALL_TYPES, EXTREMES, Pipeline, Running, run_until_it_fails, running, wait_until
from tests.support.records import committed
from tests.support.subjects import take_any_schema
from tests.support.undecided import DECIDED, VISIBLE, WORDS, undecided

TABLES = ("accounts", "people", "pairs")
SCHEMA = (
    "CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12, 2) NOT NULL)",
    "CREATE TABLE people (name text PRIMARY KEY, born date, notes jsonb, tags text[])",
    "CREATE TABLE pairs (a int, b text, v float8, big text, PRIMARY KEY (b, a))",
    "ALTER TABLE pairs ALTER big SET STORAGE EXTERNAL",
)


def random_statement(chance: random.Random) -> str:
    """One change of one of the tables; keys meet often."""
    number, text = chance.randrange(30), chance.choice(["x", "it''s", "tab\t", "ü \\\\ \\n", ""])
    return chance.choice(
        [
            f"INSERT INTO accounts VALUES ({number}, {chance.randrange(10**6)} / 100.0) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
            f"UPDATE accounts SET balance = balance + 0.01 WHERE id < {number}",
            f"UPDATE accounts SET id = id + 100 WHERE id = {number} AND NOT EXISTS (SELECT FROM accounts WHERE id = {number} + 100)",
            f"DELETE FROM accounts WHERE id % 7 = {number % 7}",
            f"INSERT INTO people VALUES ('{text}{number}', '2000-01-01'::date + {number}, '{{\"n\": {number}}}', '{{a,NULL,\"b c\"}}') ON CONFLICT DO NOTHING",
            f"UPDATE people SET notes = NULL, tags = tags || '{text}'::text WHERE name LIKE '%{number}'",
            f"DELETE FROM people WHERE name LIKE '%{number % 10}'",
            f"INSERT INTO pairs VALUES ({number}, '{text}', {chance.random()}, repeat('y{number}', {chance.choice([1, 4000])})) ON CONFLICT DO NOTHING",
            f"UPDATE pairs SET v = v * 2 WHERE a = {number}",
            f"UPDATE pairs SET b = b || 'z' WHERE a = {number} AND length(b) < 5",
            f"DELETE FROM pairs WHERE a = {number}",
            chance.choice(["TRUNCATE pairs", "TRUNCATE accounts, people", "SELECT 1", "SELECT 1", "SELECT 1"]),
        ]
    )


def random_transactions(pipeline: Pipeline, chance: random.Random, count: int) -> None:
    """Transactions of one to six statements; some are rolled back, some partly."""
    connection = pipeline.source.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        for _ in range(count):
            for _ in range(chance.randrange(1, 7)):
                cursor.execute("SAVEPOINT s")
                try:
                    cursor.execute(random_statement(chance))
                except psycopg2.errors.UniqueViolation:
                    cursor.execute("ROLLBACK TO s")
                if chance.random() < 0.1:
                    cursor.execute("ROLLBACK TO s")
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
    connection.close()


@pytest.mark.parametrize(("seed", "partitions"), [(1, 1), (2, 3)])
def test_the_replica_follows_any_changes(pipeline, seed, partitions):
    chance = random.Random(seed)
    pipeline.source.run(*SCHEMA)
    random_transactions(pipeline, chance, 30)
    with running(pipeline.make_source(partitions=partitions)) as source:
        pipeline.wait_until_written(source)
        for round_number in range(3):
            with running(pipeline.make_replica()) as sink:
                random_transactions(pipeline, chance, 40)
                if round_number == 1:
                    # The server tells of a new column with the next change of the table.
                    pipeline.source.run("ALTER TABLE people ADD COLUMN stars int DEFAULT 3")
                    pipeline.source.run("INSERT INTO people (name) VALUES ('after')")
                pipeline.wait_until_equal(*TABLES, running=sink)
            random_transactions(pipeline, chance, 20)
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal(*TABLES, running=sink)


def test_every_type_arrives(pipeline):
    pipeline.source.run(ALL_TYPES, EXTREMES)
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("kinds", running=sink)
        pipeline.source.run("UPDATE kinds SET small = 7")
        pipeline.wait_until_equal("kinds", running=sink)
    kinds = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'kinds'::regclass AND attnum > 0"
    theirs, ours = dict(pipeline.source.run(kinds)), dict(pipeline.target.run(kinds))
    differ = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    assert differ == {"cost": ("price", "numeric(10,3)"), "feeling": ("mood", "text"), "moods": ("mood[]", "text[]")}


def running_when_ready(pipeline, source, **settings):
    pipeline.wait_until_written(source)
    return running(pipeline.make_replica(**settings))


def test_a_reader_never_sees_half_a_transfer(pipeline):
    pipeline.source.run(
        "CREATE TABLE left_side (id int PRIMARY KEY, n int)",
        "CREATE TABLE right_side (id int PRIMARY KEY, n int)",
        "INSERT INTO left_side SELECT i, 100 FROM generate_series(1, 10) i",
        "INSERT INTO right_side SELECT i, 100 FROM generate_series(1, 10) i",
    )
    lefts, sums, stop = set(), set(), threading.Event()

    def read():
        connection = pipeline.target.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT (SELECT sum(n) FROM left_side), (SELECT sum(n) FROM right_side)")
                left, right = cursor.fetchone()
                lefts.add(left)
                sums.add(left + right)
        connection.close()

    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source, commit_interval_ms=0) as sink:
        pipeline.wait_until_equal("left_side", "right_side", running=sink)
        reader = threading.Thread(target=read)
        reader.start()
        chance = random.Random(3)
        connection = pipeline.source.connect()
        connection.autocommit = False
        with connection.cursor() as cursor:
            deadline, transfers = time.monotonic() + 120, 0
            while transfers < 500 or len(lefts) < 20:  # so often at least it was read in the midst of them
                assert time.monotonic() < deadline, f"{len(lefts)} reads in the midst of {transfers} transfers"
                transfers += 1
                amount = chance.randrange(1, 5)
                cursor.execute("UPDATE left_side SET n = n - %s WHERE id = %s", (amount, chance.randrange(1, 11)))
                cursor.execute("UPDATE right_side SET n = n + %s WHERE id = %s", (amount, chance.randrange(1, 11)))
                connection.commit()
        connection.close()
        pipeline.wait_until_equal("left_side", "right_side", running=sink)
        stop.set()
        reader.join()
    assert sums == {2000}


def test_the_books_balance(pipeline):
    pipeline.source.run(*SCHEMA)
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        for _ in range(2):
            with running(pipeline.make_replica(report_interval_ms=0)) as sink:
                random_transactions(pipeline, random.Random(5), 30)
                pipeline.wait_until_written(source)
                pipeline.wait_until_equal(*TABLES, running=sink)
                wait_until(lambda: reported(pipeline) == written(pipeline), "the audit has every record", sink)
    assert reported(pipeline) == written(pipeline)


def test_a_replica_that_has_everything_does_not_lag(pipeline):
    """The marker that ends each of the source's transactions counted as a record that was missing, for ever."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")

    def lags():
        said = read_reports(pipeline.connection, list_topics(pipeline.connection))
        mine = [each for each in said if each.reader == f"{pipeline.name}-replica"]
        return [
            end_offsets(pipeline.connection, each.topic, committed=True)[each.partition] - each.end for each in mine
        ]

    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        for _ in range(2):  # also after a restart, where nothing comes any more
            with running(pipeline.make_replica(report_interval_ms=0)) as sink:
                wait_until(lambda: len(lags()) >= 2 and not any(lags()), "no lag", sink)


def test_what_a_crash_left_untold_is_told_at_the_next_start(pipeline):
    """It used to wait for the next change: on a quiet system the audit said "in flight" for ever."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
    pipeline.target.run("UPDATE mainstem_offsets SET rows = rows + 6, hash = 1")
    machine_just_started = ManualClock()  # on which nothing is an hour ago
    with running(pipeline.make_replica(machine_just_started, report_interval_ms=3_600_000)) as sink:
        wait_until(lambda: (7, 1) in reported(pipeline).values(), "the audit has it", sink)


def written(pipeline):
    state = read_source(pipeline.connection, pipeline.name)
    return {(topic, p): (w.count, w.hash) for topic, ps in state.written.items() for p, w in ps.items()}


def reported(pipeline):
    """Count and hash per partition, as the replica states them."""
    reports = read_reports(pipeline.connection, list_topics(pipeline.connection))
    mine = [each for each in reports if each.reader == f"{pipeline.name}-replica"]
    return {(each.topic, each.partition): (each.count, each.hash) for each in mine}


def test_a_restart_leaves_the_types_as_the_changes_made_them(pipeline):
    """Every start went back to the types of the first schema:
    texts were cut, and larger numbers kept it from starting.
    """
    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY, note varchar(10), n int)", "INSERT INTO a VALUES (1, 'short', 1)"
    )
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        for turn in range(3):
            with running(pipeline.make_replica()) as sink:
                pipeline.wait_until_equal("a", running=sink)
                if turn == 0:
                    pipeline.source.run("ALTER TABLE a ALTER note TYPE text, ALTER n TYPE bigint")
                pipeline.source.run(f"INSERT INTO a VALUES ({turn + 2}, repeat('long', 9), 2 ^ 40)")
                pipeline.wait_until_equal("a", running=sink)
        pipeline.source.run("DELETE FROM a WHERE id = 2")  # the first that it sees after a start
        pipeline.target.run("ALTER TABLE mainstem_offsets DROP schema_id")  # as an earlier version left it
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)


def test_types_change_before_the_first_commit_too(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, n int)", "INSERT INTO a VALUES (1, 1)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("ALTER TABLE a ALTER n TYPE bigint", "INSERT INTO a VALUES (2, 2 ^ 40)")
        pipeline.wait_until_written(source)
        with running(pipeline.make_replica(commit_interval_ms=60_000)) as sink:
            pipeline.wait_until_equal("a", running=sink)


@pytest.mark.parametrize("between", [True, False], ids=["with a change between", "without"])
def test_a_column_that_is_added_again_has_what_the_source_has(pipeline, between):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, note text)", "INSERT INTO a VALUES (1, 'old')")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)
            pipeline.source.run("ALTER TABLE a DROP note")
            if between:
                pipeline.source.run("INSERT INTO a VALUES (2)")
                wait_until(lambda: pipeline.target.run("SELECT count(note), count(*) FROM a") == [(0, 2)], "null", sink)
        with running(pipeline.make_replica()) as sink:
            pipeline.source.run("ALTER TABLE a ADD note text DEFAULT 'd'", "INSERT INTO a VALUES (3, NULL)")
            pipeline.wait_until_equal("a", running=sink)
        pipeline.source.run("INSERT INTO a VALUES (4, 'new')")
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)


def test_a_key_that_is_renamed(pipeline):
    """No table of the replica went on any more."""
    pipeline.source.run("CREATE TABLE f (x int PRIMARY KEY, n int)", "INSERT INTO f VALUES (1, 1), (2, 2)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("f", running=sink)
        take_any_schema(pipeline.registry, f"{pipeline.topic('f')}-value")
        pipeline.source.run(
            "ALTER TABLE f RENAME x TO y", "UPDATE f SET n = 3 WHERE y = 1", "INSERT INTO f VALUES (4, 4)"
        )
        wait_until(lambda: replicated(pipeline, "f", "y, n"), "the key has its new name", sink)
    pipeline.source.run("DELETE FROM f WHERE y = 2")
    with running(pipeline.make_source()), running(pipeline.make_replica()) as sink:
        wait_until(lambda: replicated(pipeline, "f", "y, n"), "it goes on after a start", sink)


def replicated(pipeline, table, columns):
    try:
        return pipeline.source.rows(table, columns) == pipeline.target.rows(table, columns)
    except psycopg2.errors.UndefinedColumn:
        return False


def test_a_key_that_older_rows_have_nothing_in_is_told_and_a_new_snapshot_mends_it(pipeline):
    pipeline.source.run("CREATE TABLE f (x int PRIMARY KEY, n int)", "INSERT INTO f VALUES (1, 1), (2, 2)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("f", running=sink)
        sink.stop()
        take_any_schema(pipeline.registry, f"{pipeline.topic('f')}-value")
        pipeline.source.run("ALTER TABLE f DROP x, ADD y serial PRIMARY KEY", "INSERT INTO f VALUES (9)")
        pipeline.wait_until_written(source)
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, KeyUnknown)
    assert "the key of table public.f is now (y)" in str(error)
    assert f"SELECT pg_drop_replication_slot('mainstem_{pipeline.name}')" in error.hint
    assert "stop `mainstem up`" in error.hint  # nothing stops one source
    assert len(pipeline.target.rows("f")) == 2, "nothing was taken away"
    pipeline.drop()
    with (
        running(pipeline.make_source(on_gap="snapshot")) as source,
        running_when_ready(pipeline, source) as sink,
    ):
        wait_until(lambda: replicated(pipeline, "f", "y, n"), "every row has its key", sink)


@pytest.mark.parametrize(
    ("change", "kind"),
    [("ALTER w TYPE int USING length(w)", "integer"), ("ALTER d TYPE bigint USING 7", "bigint")],
    ids=["a value that does not fit", "types without a cast"],
)
def test_a_column_that_the_source_made_anew_is_told_and_a_new_snapshot_mends_it(pipeline, change, kind):
    """The cast ended the replica, again and again, without a word of the table."""
    pipeline.source.run(
        "CREATE TABLE f (x int PRIMARY KEY, w text, d date)", "INSERT INTO f VALUES (1, 'a', '2000-01-01')"
    )
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("f", running=sink)
        sink.stop()
        take_any_schema(pipeline.registry, f"{pipeline.topic('f')}-value")
        pipeline.source.run(f"ALTER TABLE f {change}", "INSERT INTO f VALUES (9)")
        pipeline.wait_until_written(source)
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, KeyUnknown)
    assert f"of table public.f is now {kind}" in str(error)
    assert len(pipeline.target.rows("f")) == 1, "nothing was taken away"
    pipeline.drop()
    with (
        running(pipeline.make_source(on_gap="snapshot")) as source,
        running_when_ready(pipeline, source) as sink,
    ):
        pipeline.wait_until_equal("f", running=sink)


def test_a_tombstone_that_is_read_after_the_key_has_changed(pipeline):
    """Its delete record was applied before, with all of its transaction; its own key fits no column any more."""
    pipeline.source.run("CREATE TABLE f (x int PRIMARY KEY, n int)", "INSERT INTO f SELECT generate_series(1, 9), 1")
    with running(pipeline.make_source(partitions=3)) as source:
        pipeline.wait_until_written(source)
        take_any_schema(pipeline.registry, f"{pipeline.topic('f')}-value")
        pipeline.source.run("DELETE FROM f WHERE x > 1", "ALTER TABLE f DROP CONSTRAINT f_pkey, ADD PRIMARY KEY (n, x)")
        pipeline.source.run("INSERT INTO f VALUES (10, 10)")
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("f", running=sink)
        last = {partition: (value, offset) for _, value, _, partition, offset in pipeline.read(pipeline.topic("f"))}
        partition, offset = next((number, offset) for number, (value, offset) in last.items() if value is None)
        topic = pipeline.topic("f")
        pipeline.target.run(
            f"UPDATE mainstem_offsets SET next_offset = {offset} WHERE topic = '{topic}' AND partition = {partition}"
        )
        with running(pipeline.make_replica()) as sink:
            pipeline.source.run("INSERT INTO f VALUES (11, 11)")
            pipeline.wait_until_equal("f", running=sink)


@pytest.mark.parametrize("foreign", [None, b"{}", b"\0\0\0\0\1\0"], ids=["no value", "JSON", "another schema"])
def test_what_is_no_transaction_of_the_source_is_told_with_its_place(pipeline, foreign):
    """It was an error that nobody foresaw."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    topic = transactions_topic(pipeline.name)
    append(pipeline.connection, topic, [(b"k", foreign)])
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, CorruptData)
    assert f"{topic}-0 offset " in str(error)
    assert "look for who else writes to this topic" in error.hint


@pytest.mark.parametrize("foreign", [b"{}", b"\0\0\0\0\0\1\0", None], ids=["JSON", "another schema", "cut short"])
def test_what_is_no_change_of_the_table_is_told_with_its_place(pipeline, foreign):
    """It was told without one, or as an error that nobody foresaw, and tried again as if that would pass."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    (first,) = committed(pipeline.connection, pipeline.topic("a"))
    append(pipeline.connection, pipeline.topic("a"), [(b"k", first.value()[:7] if foreign is None else foreign)])
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, CorruptData)
    assert f"{pipeline.topic('a')}-0 offset " in str(error)
    assert "look for who else writes to this topic" in error.hint


def test_a_second_process_of_the_same_sink_is_kept_out(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
        assert isinstance(run_until_it_fails(pipeline.make_replica()), ReplicaInUse)


def test_a_predecessor_whose_connection_closes_is_waited_for(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
        successor = pipeline.make_replica()
        with running(successor) as second:
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until(lambda: pipeline.target.run(waiting) != [], "the successor waits", running=second)
            sink.stop()
            pipeline.source.run("INSERT INTO a VALUES (1)")
            pipeline.wait_until_equal("a", running=second)


def test_before_the_source_has_started_it_waits(pipeline):
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, SourceNotReady)
    assert "is the name of a table [sources.NAME] of type postgres" in error.hint


def test_a_source_that_does_not_come_may_have_a_name_with_a_typo(pipeline):
    """It was waited for without a word about what to do."""
    name = f"crm{pipeline.name}"
    write_catalog(pipeline.connection, {f"source:{name}": {"type": "postgres", "topics": ["t"]}})
    error = run_until_it_fails(pipeline.make_replica(source=name.replace("crm", "crmm")))
    write_catalog(pipeline.connection, {f"source:{name}": None})
    assert str(error).endswith(f"source crmm{pipeline.name} is not in the catalog yet")
    assert error.hint.endswith(f"; did you mean {name}?")


def test_a_target_that_is_down_is_one_line_without_its_password(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    told, stop = [], threading.Event()

    def on_change(states):
        told.extend(state.told for state in states if state.state == "waiting")
        if told:
            stop.set()

    replica = pipeline.make_replica(url="postgresql://postgres:s3cret@127.0.0.1:1/shop")
    Worker({"sink copy": replica}, on_change=on_change).run(stop)
    (line,) = told
    assert line == (
        'connect to PostgreSQL: connection to server at "127.0.0.1", port 1 failed: Connection refused '
        "(start the database, or correct `url` in the settings); retry in 0.5 s"
    )


def test_a_target_with_rows_of_somebody_else_is_refused(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    pipeline.target.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (7)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert isinstance(run_until_it_fails(pipeline.make_replica()), NotEmpty)
    assert pipeline.target.run("SELECT * FROM a") == [(7,)]


def test_the_tables_of_the_source_are_no_target_unless_in_another_schema(pipeline):
    """Empty ones were taken: each row that came was applied to where it was from, and came again as a change."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        error = run_until_it_fails(pipeline.make_replica(url=pipeline.source.url))
        assert isinstance(error, SameTables)
        assert "found the source's own public.a" in str(error)
        with running(pipeline.make_replica(url=pipeline.source.url, schema="copy")) as sink:
            pipeline.source.run("INSERT INTO a VALUES (1)")
            wait_until(lambda: replicated_to(pipeline.source, "copy.a"), "it is copied", sink)


def replicated_to(database, table):
    try:
        return len(database.rows(table)) == 1
    except psycopg2.errors.UndefinedTable:
        return False


def test_offsets_of_another_log_are_refused(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
        wait_until(lambda: pipeline.target.run("SELECT count(*) > 0 FROM mainstem_offsets")[0][0], "offsets", sink)
    pipeline.target.run("UPDATE mainstem_offsets SET next_offset = next_offset + 1000")
    assert isinstance(run_until_it_fails(pipeline.make_replica()), LogMismatch)
    pipeline.target.run("UPDATE mainstem_offsets SET next_offset = 0, log_id = 'other'")
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, LogMismatch)
    assert "DELETE FROM mainstem_offsets" in error.hint


def test_a_large_transaction_is_applied_in_pieces_but_seen_whole(pipeline, monkeypatch):
    monkeypatch.setattr(replica_module, "_FETCH_RECORDS", 500)
    monkeypatch.setattr("mainstem.connect.sinks.postgres_order.PIECE_ROWS", 1000)
    monkeypatch.setattr("mainstem.connect.sinks.postgres_target.FLUSH_ROWS", 700)
    counts, stop = set(), threading.Event()

    def read():
        connection = pipeline.target.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT count(*) FROM a")
                counts.add(cursor.fetchone()[0])
        connection.close()

    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 4000)")
    with (
        running(pipeline.make_source(max_transaction_rows=900)) as source,
        running_when_ready(pipeline, source) as sink,
    ):
        pipeline.wait_until_equal("a", running=sink)
        reader = threading.Thread(target=read)
        reader.start()
        pipeline.source.run("INSERT INTO a SELECT generate_series(4001, 12000)")
        pipeline.wait_until_equal("a", running=sink)
        stop.set()
        reader.join()
    assert counts <= {4000, 12000}


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(("limit", "piece"), [("MAX_WAITING", "PIECE_ROWS"), ("MAX_WAITING_BYTES", "PIECE_BYTES")])
def test_a_transaction_of_more_than_may_wait_is_applied(pipeline, monkeypatch, partitions, limit, piece):
    monkeypatch.setattr(replica_module, "_FETCH_RECORDS", 50)
    monkeypatch.setattr(replica_module, limit, 200)
    monkeypatch.setattr(f"mainstem.connect.sinks.postgres_order.{piece}", 100)
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 2000)")
    with (
        running(pipeline.make_source(partitions=partitions)) as source,
        running_when_ready(pipeline, source) as sink,
    ):
        pipeline.wait_until_equal("a", running=sink)
        pipeline.source.run("UPDATE a SET id = id + 10000", "DELETE FROM a WHERE id > 11000")
        pipeline.wait_until_equal("a", running=sink)


def test_a_new_snapshot_of_the_source_replaces_what_is_there(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
    pipeline.drop()
    pipeline.source.run("DELETE FROM a WHERE id = 1", "INSERT INTO a VALUES (3)")
    with running(pipeline.make_source(on_gap="snapshot")) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)


def test_a_table_that_joins_the_source_is_filled(pipeline):
    """A replica that ran when it came committed past the snapshot that has its rows; the table was empty for ever."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        sink = Running(pipeline.make_replica())
        pipeline.wait_until_written(source)
        sink.thread.start()
        pipeline.wait_until_equal("a", running=sink)
    pipeline.drop()
    pipeline.source.run("CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO c VALUES (1)")
    try:
        with running(pipeline.make_source(on_gap="snapshot")) as source:
            pipeline.wait_until_written(source)
            pipeline.source.run("INSERT INTO c VALUES (2)", "INSERT INTO a VALUES (2)")
            pipeline.wait_until_equal("a", "c", running=sink)
    finally:
        sink.stop()


def test_a_table_that_joined_while_an_earlier_version_ran_is_filled_at_the_next_start(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY)")
    pipeline.source.run("INSERT INTO a VALUES (1)", "INSERT INTO c VALUES (1)")
    with running(pipeline.make_source()) as source:
        with running_when_ready(pipeline, source) as sink:
            pipeline.wait_until_equal("a", "c", running=sink)
        topic = pipeline.topic("c")
        pipeline.target.run(f"DELETE FROM mainstem_offsets WHERE topic = '{topic}'", "DROP TABLE c")
        pipeline.source.run("INSERT INTO c VALUES (2)")
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", "c", running=sink)


def test_a_table_that_joined_without_rows_needs_no_rebuild(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY)")
    pipeline.source.run("INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        with running_when_ready(pipeline, source) as sink:
            pipeline.wait_until_equal("a", "c", running=sink)
        topic = pipeline.topic("c")
        pipeline.target.run(f"DELETE FROM mainstem_offsets WHERE topic = '{topic}'", "DELETE FROM a")
        with running(pipeline.make_replica()) as sink:
            pipeline.source.run("INSERT INTO a VALUES (2)")
            wait_until(lambda: pipeline.target.rows("a"), "it follows", sink)
            pipeline.source.run("INSERT INTO c VALUES (1)")
            pipeline.wait_until_equal("c", running=sink)
    assert pipeline.target.run("SELECT id FROM a") == [(2,)], "nothing was read again"


@pytest.mark.parametrize("drop", ["DROP TABLE a", "ALTER TABLE a DROP n"])
@pytest.mark.parametrize("earlier", [False, True], ids=["", "of an earlier version"])
def test_what_somebody_drops_in_the_target_comes_again_with_its_rows(pipeline, drop, earlier):
    """It was made again, empty, and only rows that changed later came into it."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, n int)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    with running(pipeline.make_source()) as source:
        with running_when_ready(pipeline, source) as sink:
            pipeline.wait_until_equal("a", running=sink)
        if earlier:
            pipeline.target.run("UPDATE mainstem_offsets SET schema_id = NULL")
        pipeline.target.run(drop)
        pipeline.source.run("INSERT INTO a VALUES (3, 3)")
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)


@pytest.mark.parametrize("settings", [None, CHANGELOG_SETTINGS], ids=["gone", "made anew"])
def test_a_topic_that_is_deleted_is_told_until_a_new_snapshot_has_filled_it(pipeline, settings):
    """The rows that did not change were nowhere any more, and nobody said so."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
    delete(pipeline.connection, [pipeline.topic("a")])
    if settings is not None:
        ensure_topic(pipeline.connection, pipeline.topic("a"), 1, settings)
    error = run_until_it_fails(pipeline.make_replica())
    assert isinstance(error, TopicsLost)
    assert f"{pipeline.topic('a')} was deleted" in str(error)
    assert len(pipeline.target.rows("a")) == 2, "nothing was taken away"
    with (
        running(pipeline.make_source(on_gap="snapshot")) as source,
        running_when_ready(pipeline, source, report_interval_ms=0) as sink,
    ):
        pipeline.source.run("INSERT INTO a VALUES (3)")
        pipeline.wait_until_equal("a", running=sink)
        wait_until(lambda: reported(pipeline) == written(pipeline), "the audit has every record", sink)


def test_a_target_of_an_earlier_version_goes_on(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    with running(pipeline.make_source()) as source:
        with running_when_ready(pipeline, source) as sink:
            pipeline.wait_until_equal("a", running=sink)
        pipeline.target.run("ALTER TABLE mainstem_offsets DROP topic_id", "DELETE FROM a WHERE id = 1")
        with running(pipeline.make_replica()) as sink:
            pipeline.source.run("INSERT INTO a VALUES (3)")
            wait_until(lambda: len(pipeline.target.rows("a")) == 2, "it goes on, and reads nothing again", sink)
    ids = topic_ids(pipeline.connection, [pipeline.topic("a"), pipeline.topic("transactions")])
    assert dict(pipeline.target.run("SELECT topic, topic_id FROM mainstem_offsets")) == ids


def test_topics_that_the_source_no_longer_has_are_left_out(pipeline):
    """What the log has of them is from before its last snapshot."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.source.run("INSERT INTO b VALUES (1)")
        pipeline.wait_until_written(source)
    pipeline.drop()
    pipeline.source.run("DROP TABLE b", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source(on_gap="snapshot")) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)


def test_a_topic_that_the_source_had_and_has_again_is_filled(pipeline):
    """It was left out for as long as the replica ran, since it was not the source's when its old rows went by."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.source.run("INSERT INTO b VALUES (1)")
        pipeline.wait_until_written(source)
    pipeline.drop()
    pipeline.source.run("INSERT INTO a VALUES (1)")
    sink = Running(pipeline.make_replica())
    try:
        with running(pipeline.make_source(tables=("a",), on_gap="snapshot")) as source:
            pipeline.wait_until_written(source)
            sink.thread.start()
            pipeline.wait_until_equal("a", running=sink)
        pipeline.drop()
        with running(pipeline.make_source(tables=("a", "b"), on_gap="snapshot")):
            pipeline.wait_until_equal("a", "b", running=sink)
    finally:
        sink.stop()


def set_policy(admin, topic, policy):
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_records_that_retention_removed_lead_to_a_rebuild(pipeline):
    """What compaction removes it removes after a day; deleting the head of a topic leaves the same hole at once."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY, n int)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 5) i"
    )
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)
        for number in range(1, 6):
            pipeline.source.run(f"UPDATE a SET n = {number}")
        pipeline.wait_until_written(source)
        topic = pipeline.topic("a")
        end = end_offsets(pipeline.connection, topic)[0]
        admin = AdminClient(pipeline.connection.confluent())
        set_policy(admin, topic, "delete")  # Kafka deletes no records by offset from a compacted topic
        for future in admin.delete_records([TopicPartition(topic, 0, end - 6)]).values():  # the last update of all rows
            future.result()
        set_policy(admin, topic, "compact")
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)
            pipeline.source.run("INSERT INTO a VALUES (6, 6)")
            pipeline.wait_until_equal("a", running=sink)


def test_a_database_that_goes_away_and_comes_back(pipeline, tmp_path):
    """Source and sink end with an error that may pass; the next run goes on."""
    from mainstem.connect.local_postgres import LocalPostgres
    from mainstem.connect.sources.postgres_catalog import DatabaseUnavailable
    from tests.support.postgres import Running

    with LocalPostgres(tmp_path / "own", settings={"fsync": "off"}) as server:
        own = Pipeline(server, pipeline.connection, pipeline.registry.url)
        own.source.run("CREATE TABLE a (id int PRIMARY KEY)")
        for number in range(3):
            source, sink = Running(own.make_source()), Running(own.make_replica())
            source.thread.start()
            own.wait_until_written(source)
            sink.thread.start()
            own.source.run(f"INSERT INTO a VALUES ({number})")
            own.wait_until_equal("a", running=sink)
            began = time.monotonic()
            (server.kill if number else server.stop)()
            assert time.monotonic() - began < 20, "it waits for the source, which has to say that it has everything"
            source.thread.join(30)
            assert isinstance(source.error, DatabaseUnavailable), source.error
            sink.stop()  # with nothing to write it need not have noticed
            assert sink.error is None or isinstance(sink.error, DatabaseUnavailable), sink.error
            server.start()
        own.drop()


def test_offsets_are_the_targets_own(pipeline):
    """What the target has not committed is read again: kill the connection in the middle of a transaction."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, n int)", "INSERT INTO a VALUES (1, 0)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as first:
        pipeline.wait_until_equal("a", running=first)
        first.stop()
        blocker = pipeline.target.connect()
        blocker.autocommit = False
        with blocker.cursor() as cursor:
            cursor.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        pipeline.source.run("UPDATE a SET n = 1")
        error = []

        def cut():
            deadline = time.monotonic() + 30
            while not error and time.monotonic() < deadline:
                waiting = pipeline.server.dsn()
                connection = psycopg2.connect(waiting)
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = %s AND wait_event_type = 'Lock'",
                        (f"mainstem {pipeline.name}-replica",),
                    )
                    if cursor.fetchall():
                        error.append("cut")
                connection.close()
                time.sleep(0.02)

        cutter = threading.Thread(target=cut)
        cutter.start()
        failed = run_until_it_fails(pipeline.make_replica())
        cutter.join()
        blocker.rollback()
        blocker.close()
        assert error == ["cut"], failed
        with running(pipeline.make_replica()) as sink:
            pipeline.wait_until_equal("a", running=sink)


def test_the_catalog_knows_the_sink(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source, running_when_ready(pipeline, source) as sink:
        pipeline.wait_until_equal("a", running=sink)
    entry = read_compacted(pipeline.connection, "__mainstem.catalog")[f"sink:{pipeline.name}-replica".encode()]
    assert msgspec.json.decode(entry)["source"] == pipeline.name


def test_nothing_of_an_aborted_or_open_transaction_of_the_log_is_applied(pipeline):
    """Whole transactions of the source, by a writer that was killed before it committed them to the log."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (0)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO a VALUES (1)")
        pipeline.wait_until_written(source)
    change = committed(pipeline.connection, pipeline.topic("a"))[-1]
    begin, end = committed(pipeline.connection, pipeline.topic("transactions"))[-2:]
    numbers = {word: number for number, word in enumerate(WORDS, 2)}

    def transaction(word):
        """The one that inserted row 1, as one that inserts the word's number."""
        number = numbers[word]

        def edited(message, edit):
            schema_id, _ = avro.split(message.value())
            schema = pipeline.registry.schema(schema_id)
            record = avro.decode(message.value(), pipeline.registry.schema)
            edit(record)
            record["position"] += number
            return avro.encode(schema_id, schema, record)

        def inserts(record):
            record["after"]["id"] = number
            record["transaction"]["id"] = word

        yield pipeline.topic("transactions"), None, edited(begin, lambda record: record.update(id=word))
        yield pipeline.topic("a"), b'{"id":%d}' % number, edited(change, inserts)
        yield pipeline.topic("transactions"), None, edited(end, lambda record: record.update(id=word))

    def applied():
        there = pipeline.target.run("SELECT to_regclass('a')") != [(None,)]
        rows = {number for (number,) in pipeline.target.run("SELECT id FROM a")} if there else set()
        return tuple(word for word, number in numbers.items() if number in rows)

    with (
        undecided(pipeline.connection, pipeline.name, transaction) as commit,
        # So much later the target's transaction is committed that it would have whatever the log showed.
        running(pipeline.make_replica(commit_interval_ms=1000)) as sink,
    ):
        wait_until(lambda: "between" in applied(), "it has read past what was aborted", sink)
        assert applied() == VISIBLE
        commit()
        wait_until(lambda: "after" in applied(), "it goes on", sink)
        assert applied() == DECIDED
