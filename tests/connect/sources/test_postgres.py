"""A real database, a real log: the topics hold exactly what the database has, whatever happens on the way."""

import json
import random
import threading
from collections import Counter
from contextlib import contextmanager

import psycopg2
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mainstem.client.catalog import read_catalog
from mainstem.client.errors import RecordRefused, TopicMismatch
from mainstem.client.topics import admin, delete, describe_config, ensure_topic
from mainstem.client.writer import TransactionalWriter, read_source
from mainstem.connect.sources import postgres_catalog
from mainstem.connect.sources.postgres import UnfitName, default_name, mark_position
from mainstem.connect.sources.postgres_catalog import DatabaseRefused, DatabaseUnavailable
from mainstem.connect.sources.postgres_changes import UNCHANGED_HEADER
from mainstem.connect.sources.postgres_position import PositionMismatch, SlotExists
from mainstem.connect.sources.postgres_table import TRUNCATE_KEY, NoKey
from mainstem.connect.sources.postgres_types import UnsupportedValue
from mainstem.registry.errors import IncompatibleSchema
from tests.support.postgres import (
    ALL_TYPES,
    Running,
    check_transactions,
    run_until_it_fails,
    running,
    state_of,
    wait_until,
)
from tests.support.subjects import take_any_schema


def test_snapshot_and_concurrent_writes_are_exactly_the_database(pipeline):
    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY, n int)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 2000) i"
    )
    stop = threading.Event()

    def write(seed):
        chance = random.Random(seed)
        connection = pipeline.source.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                number = chance.randrange(1, 4000)
                cursor.execute(
                    "INSERT INTO a VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET n = a.n + 1"
                    if chance.random() < 0.7
                    else "DELETE FROM a WHERE id = %s",
                    (number,),
                )
        connection.close()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        stop.set()
        for writer in writers:
            writer.join()
        pipeline.wait_until_written(source)
    records = pipeline.read(pipeline.topic("a"))
    rows = {str(number).encode(): {"id": number, "n": n} for number, n in pipeline.source.run("SELECT * FROM a")}
    assert state_of(records) == rows
    assert Counter(value["op"] for _, value, *_ in records if value)["r"] >= 1000
    check_transactions(pipeline, "a")


def test_every_type_is_kept(pipeline):
    pipeline.source.run(ALL_TYPES)
    with running(pipeline.make_source(tables=("kinds",))) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("UPDATE kinds SET small = small")
        pipeline.wait_until_written(source)
    records = pipeline.read(pipeline.topic("kinds"))
    snapshot = {key: value["after"] for key, value, *_ in records if value["op"] == "r"}
    streamed = {key: value["after"] for key, value, *_ in records if value["op"] == "u"}
    assert str(snapshot) == str(streamed)  # as text: NaN is not equal to itself
    assert len(snapshot) == 3
    one = snapshot[b"1"]
    assert str(one["amount"]) == "12345678.9012"
    assert str(one["cost"]) == "9.999"
    assert one["any_number"] == "0.1000000000000000000000000000000001"
    assert json.loads(one["names"]) == ["a b", None, "NULL", 'q"\\', ""]
    assert one["matrix"] == "[[1,2],[3,4]]"
    assert one["feeling"] == "happy"
    assert one["instant"].isoformat() == "2013-01-01T03:00:00+00:00"
    assert one["odd_name"] == "odd"
    assert set(snapshot[b"3"].values()) == {3, None}


def test_what_happens_to_rows_is_told_as_it_happened(pipeline):
    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE f (x int, y text, PRIMARY KEY (y, x))"
    )
    pipeline.source.run("ALTER TABLE f REPLICA IDENTITY FULL")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        for table, columns in (("a", "(1, 'x')"), ("f", "(1, 'x')")):
            pipeline.source.run(f"INSERT INTO {table} VALUES {columns}")
        pipeline.source.run(
            "UPDATE a SET t = 'y'", "UPDATE f SET y = 'y'", "DELETE FROM a", "DELETE FROM f", "TRUNCATE a, f"
        )
        pipeline.wait_until_written(source)
    told = [
        (key, value and (value["op"], value["before"], value["after"]))
        for key, value, *_ in pipeline.read(pipeline.topic("a"))
    ]
    assert told == [
        (b"1", ("c", None, {"id": 1, "t": "x"})),
        (b"1", ("u", None, {"id": 1, "t": "y"})),
        (b"1", ("d", {"id": 1, "t": None}, None)),
        (b"1", None),
        (TRUNCATE_KEY, ("t", None, None)),
    ]
    told = [
        (key, value and (value["op"], value["before"], value["after"]))
        for key, value, *_ in pipeline.read(pipeline.topic("f"))
    ]
    old, new = {"x": 1, "y": "x"}, {"x": 1, "y": "y"}
    assert told == [
        (b'["x",1]', ("c", None, old)),
        (b'["x",1]', ("d", old, None)),
        (b'["x",1]', None),
        (b'["y",1]', ("c", None, new)),
        (b'["y",1]', ("d", new, None)),
        (b'["y",1]', None),
        (TRUNCATE_KEY, ("t", None, None)),
    ]
    check_transactions(pipeline, "a", "f")


def test_a_column_that_is_added_is_a_new_version_of_the_schema(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("ALTER TABLE a ADD COLUMN n int NOT NULL DEFAULT 5", "INSERT INTO a VALUES (2, 6)")
        pipeline.source.run("ALTER TABLE a DROP COLUMN n", "INSERT INTO a VALUES (3)")
        pipeline.wait_until_written(source)
    rows = [value["after"] for _, value, *_ in pipeline.read(pipeline.topic("a"))]
    assert rows == [{"id": 1}, {"id": 2, "n": 6}, {"id": 3}]
    assert pipeline.registry.latest(f"{pipeline.topic('a')}-value").version >= 2


def test_large_values_that_did_not_change_are_never_lost(pipeline):
    large = "repeat(md5(random()::text), 2000)"
    pipeline.source.run(
        "CREATE TABLE d (id int PRIMARY KEY, n int, t text)", "ALTER TABLE d ALTER t SET STORAGE EXTERNAL"
    )
    pipeline.source.run("CREATE TABLE f (LIKE d INCLUDING ALL)", "ALTER TABLE f REPLICA IDENTITY FULL")
    for table in "df":
        pipeline.source.run(f"INSERT INTO {table} SELECT 1, 1, {large}")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("UPDATE d SET n = 2", "UPDATE f SET n = 2")
        pipeline.wait_until_written(source)
    for table, headers in (("d", [(UNCHANGED_HEADER, b'["t"]')]), ("f", None)):
        _, value, found, *_ = pipeline.read(pipeline.topic(table))[-1]
        assert (value["op"], value["after"]["n"]) == ("u", 2)
        assert pipeline.source.run(f"SELECT t FROM {table}") == [(value["after"]["t"],)]
        assert found == headers


def test_a_large_value_is_not_read_before_its_transaction_is_visible(pipeline, monkeypatch):
    """The stream has a commit before other sessions see it: the row with the new key is not there yet."""
    pipeline.source.run("CREATE TABLE d (id int PRIMARY KEY, t text)", "ALTER TABLE d ALTER t SET STORAGE EXTERNAL")
    pipeline.source.run("INSERT INTO d VALUES (1, repeat('large', 1000))")
    pipeline.source.run(f'ALTER DATABASE "{pipeline.name}" SET synchronous_commit = local')
    answers, is_visible = [], postgres_catalog.is_visible

    def asked(*arguments):
        answers.append(is_visible(*arguments))
        return answers[-1]

    monkeypatch.setattr(postgres_catalog, "is_visible", asked)
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        with no_synchronous_standby(pipeline):
            waiting = pipeline.source.connect()
            with waiting.cursor() as cursor:
                cursor.execute("SET synchronous_commit = on")
                change = threading.Thread(target=cursor.execute, args=("UPDATE d SET id = 2",))
                change.start()
                wait_until(lambda: len(answers) >= 3, "it has the commit, and asks whether others see it")
                assert not any(answers)
                assert change.is_alive()
                assert len(pipeline.read(pipeline.topic("d"))) == 1
                waiting.cancel()  # the commit stands, only its session waits no longer
                change.join()
            waiting.close()
        pipeline.wait_until_written(source)
    assert pipeline.read(pipeline.topic("d"))[-1][1]["after"] == {"id": 2, "t": "large" * 1000}


@contextmanager
def no_synchronous_standby(pipeline):
    """A commit waits for a standby that there is not."""
    pipeline.source.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    wait_until(lambda: pipeline.source.run("SHOW synchronous_standby_names") == [("nobody",)], "the setting is read")
    # Commits wait from when the checkpointer has read it, which may be amid a checkpoint: with the next it has.
    pipeline.source.run("CHECKPOINT")
    try:
        yield
    finally:
        pipeline.source.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        wait_until(lambda: pipeline.source.run("SHOW synchronous_standby_names") == [("",)], "the setting is read")


def test_a_transaction_that_is_too_large_is_committed_in_parts(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source(max_transaction_rows=100)) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO a SELECT generate_series(1, 1050)")
        pipeline.wait_until_written(source)
    records = pipeline.read(pipeline.topic("a"))
    assert [value["after"]["id"] for _, value, *_ in records] == list(range(1, 1051))
    assert records[-1][4] > 1050 + 8, "its parts are divided by commit markers, which take offsets"
    check_transactions(pipeline, "a")


def test_several_partitions_and_schemas(pipeline):
    pipeline.source.run("CREATE SCHEMA other", "CREATE TABLE other.a (id int PRIMARY KEY)")
    with running(pipeline.make_source(tables=("other.a",), partitions=3)) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO other.a SELECT generate_series(1, 50)", "DELETE FROM other.a WHERE id > 40")
        pipeline.wait_until_written(source)
    records = pipeline.read(pipeline.topic("other.a"))
    assert {partition for *_, partition, _ in records} == {0, 1, 2}
    assert len(state_of(records)) == 40
    check_transactions(pipeline, "other.a")


def test_a_stopped_source_goes_on_where_the_log_is(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (0)")
    for number in range(1, 4):
        with running(pipeline.make_source()) as source:
            pipeline.source.run(f"INSERT INTO a VALUES ({10 * number})")
            pipeline.wait_until_written(source)
        pipeline.source.run(f"INSERT INTO a VALUES ({10 * number + 1})")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    ids = [value["after"]["id"] for _, value, *_ in pipeline.read(pipeline.topic("a"))]
    assert ids == [0, 10, 11, 20, 21, 30, 31]
    state = read_source(pipeline.connection, pipeline.name)
    assert state.written[pipeline.topic("a")][0].count == 7


def test_an_idle_database_lets_go_of_its_wal(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE not_replicated (t text)")
    with running(pipeline.make_source(tables=("a",), heartbeat_wal_bytes=1000)) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO not_replicated SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
        written = pipeline.source.run("SELECT pg_current_wal_lsn()")[0][0]
        confirmed = f"SELECT confirmed_flush_lsn >= '{written}' FROM pg_replication_slots WHERE slot_name = '{default_name(pipeline.name)}'"
        wait_until(lambda: pipeline.source.run(confirmed) == [(True,)], "the slot is confirmed", source)


def test_the_log_has_all_up_to_an_lsn_behind_which_nothing_was_written_for_the_source(pipeline):
    """Whoever waits for what they committed names the end of the WAL, where others may have written since."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE not_replicated (t text)")
    with running(pipeline.make_source(tables=("a",), heartbeat_ms=3_600_000)) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO a VALUES (1)", "INSERT INTO not_replicated VALUES ('x')")
        end = pipeline.source.run("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0]
        wait_until(lambda: pipeline.position()["lsn"] >= end, "the position is beyond the end", source)
        assert pipeline.position()["commit_lsn"] < end


def test_the_slot_is_never_confirmed_beyond_the_log(pipeline):
    """psycopg2's own reader would confirm what a keepalive says while an earlier transaction is not in the log yet."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source(heartbeat_ms=20, heartbeat_wal_bytes=0)) as source:
        pipeline.wait_until_written(source)
        late = pipeline.source.connect()
        late.autocommit = False
        for number in range(1, 9):
            with late.cursor() as cursor:  # begins before the others, ends after them
                cursor.execute(f"INSERT INTO a SELECT {-1000 * number} - i FROM generate_series(1, 100) i")
            pipeline.source.run(f"INSERT INTO a VALUES ({number})")
            late.commit()
            position = pipeline.position()["lsn"]
            confirmed = pipeline.source.run(
                "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots "
                f"WHERE slot_name = '{default_name(pipeline.name)}'"
            )[0][0]
            assert confirmed <= max(position, pipeline.position()["lsn"])
        late.close()
        pipeline.wait_until_written(source)
    assert len(state_of(pipeline.read(pipeline.topic("a")))) == 8 * 101


def test_the_catalog_says_what_the_topics_are(pipeline):
    pipeline.source.run("CREATE TABLE a (x int, y int, PRIMARY KEY (y, x))")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    catalog = read_catalog(pipeline.connection)
    topic = catalog[f"topic:{pipeline.topic('a')}"]
    assert (topic["kind"], topic["key"], topic["producer"]) == ("changelog", ["y", "x"], f"source:{pipeline.name}")
    assert catalog[f"source:{pipeline.name}"]["topics"] == [pipeline.topic("a")]


# --------------------------------------------------------------------------- the catalog is of now, the changes of then


def large_rows(pipeline):
    pipeline.source.run(
        "CREATE TABLE d (id int PRIMARY KEY, n int, t text)", "ALTER TABLE d ALTER t SET STORAGE EXTERNAL"
    )
    pipeline.source.run("INSERT INTO d VALUES (1, 1, repeat('large', 1000))")


def test_a_large_column_that_is_dropped_with_its_last_update_is_null(pipeline):
    """The source asked for the column for ever: it is gone once the transaction is visible."""
    large_rows(pipeline)
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run(
            "ALTER TABLE d ADD head text, ADD u text", "UPDATE d SET head = left(t, 5), u = n", "ALTER TABLE d DROP t",
            transaction=True,
        )  # fmt: skip
        pipeline.source.run("UPDATE d SET n = 2")
        pipeline.wait_until_written(source)
    (_, first, headers, *_), (_, last, *_) = pipeline.read(pipeline.topic("d"))[-2:]
    assert first["after"] == {"id": 1, "n": 1, "t": None, "head": "large", "u": "1"}
    assert headers == [(UNCHANGED_HEADER, b'["t"]')]
    assert last["after"] == {"id": 1, "n": 2, "head": "large", "u": "1"}


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE d",
        "ALTER TABLE d RENAME t TO u",
        "ALTER TABLE d RENAME id TO d_id",
        "ALTER TABLE d ALTER id TYPE date USING now()",
    ],
)
def test_a_large_value_that_cannot_be_read_any_more_is_null(pipeline, change):
    large_rows(pipeline)
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("UPDATE d SET n = 2", change, transaction=True)
        pipeline.wait_until_written(source)
    _, value, headers, *_ = pipeline.read(pipeline.topic("d"))[-1]
    assert value["after"] == {"id": 1, "n": 2, "t": None}
    assert headers == [(UNCHANGED_HEADER, b'["t"]')]


def test_a_key_that_is_itself_a_large_value(pipeline):
    key = "substr(string_agg(md5(i::text), ''), 1, 2600)"
    pipeline.source.run(
        "CREATE TABLE d (k text PRIMARY KEY, n int, t text)",
        "ALTER TABLE d ALTER t SET STORAGE EXTERNAL",
        "ALTER TABLE d ALTER k SET STORAGE EXTERNAL",
    )
    pipeline.source.run(f"INSERT INTO d SELECT {key}, 1, repeat('large', 1000) FROM generate_series(1, 100) i")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("UPDATE d SET n = 2")
        pipeline.wait_until_written(source)
    ((key,),) = pipeline.source.run("SELECT k FROM d")
    found, value, headers, *_ = pipeline.read(pipeline.topic("d"))[-1]
    assert (found.decode(), value["op"], value["after"]) == (key, "u", {"k": key, "n": 2, "t": "large" * 1000})
    assert headers == [(UNCHANGED_HEADER, b'["t"]')]


@pytest.mark.parametrize(
    ("identity", "drop"),
    [("FULL", "DROP TABLE f"), ("DEFAULT", "DROP TABLE f"), ("DEFAULT", "ALTER TABLE f DROP CONSTRAINT f_pkey")],
)
def test_a_dropped_table_or_key_with_its_old_rows_in_the_stream_keeps_its_key(pipeline, identity, drop):
    """With replica identity FULL only the catalog says which columns are the key, else their order;
    it has forgotten.
    """
    pipeline.source.run(
        'CREATE TABLE f (x int, "the y" int, PRIMARY KEY ("the y", x))',
        f"ALTER TABLE f REPLICA IDENTITY {identity}",
        "CREATE TABLE a (id int PRIMARY KEY)",
    )
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("INSERT INTO f VALUES (1, 2)", drop, "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [key for key, *_ in pipeline.read(pipeline.topic("f"))] == [b"[2,1]"]
    assert len(pipeline.read(pipeline.topic("a"))) == 1


def test_a_schema_of_somebody_else_under_the_name_of_a_table_is_passed_over_where_its_key_is_looked_for(pipeline):
    """It ended the source with an error that nobody foresaw, again and again."""
    pipeline.source.run("CREATE TABLE f (x int, y int, PRIMARY KEY (y, x))", "CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    subject = f"{pipeline.topic('f')}-value"
    take_any_schema(pipeline.registry, subject)
    pipeline.registry.register(subject, '{"type": "record", "name": "Other", "fields": []}')
    pipeline.source.run("INSERT INTO f VALUES (1, 2)", "DROP TABLE f")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [key for key, *_ in pipeline.read(pipeline.topic("f"))] == [b"[2,1]"]


def test_a_key_that_is_renamed_while_the_source_is_away(pipeline):
    """A renamed key is a new required field, which the registry refuses unless told otherwise;
    what is older goes on.
    """
    pipeline.source.run("CREATE TABLE f (x int PRIMARY KEY)", "ALTER TABLE f REPLICA IDENTITY FULL")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("INSERT INTO f VALUES (1)", "ALTER TABLE f RENAME x TO y", "INSERT INTO f VALUES (2)")
    assert isinstance(run_until_it_fails(pipeline.make_source(commit_interval_ms=0)), IncompatibleSchema)
    assert [key for key, *_ in pipeline.read(pipeline.topic("f"))] == [b"1"]
    take_any_schema(pipeline.registry, f"{pipeline.topic('f')}-value")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [key for key, *_ in pipeline.read(pipeline.topic("f"))] == [b"1", b"2"]
    pipeline.source.run("INSERT INTO f VALUES (3)", "ALTER TABLE f RENAME y TO x", "INSERT INTO f VALUES (4)")
    pipeline.source.run("ALTER TABLE f RENAME x TO z")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [key for key, *_ in pipeline.read(pipeline.topic("f"))] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("change", "as_text", "told"),
    [
        ("INSERT INTO f VALUES (2, 'infinity')", ["f.d"], "d (date -> string)"),
        ("ALTER TABLE f ALTER d TYPE boolean USING true", [], "d (date -> boolean)"),
        ("ALTER TABLE f RENAME id TO number", [], "number (new in the key)"),
    ],
)
def test_a_type_that_the_schemas_do_not_allow_is_told_with_its_column_and_what_allows_it(
    pipeline, change, as_text, told
):
    pipeline.source.run("CREATE TABLE f (id int PRIMARY KEY, d date)", "INSERT INTO f VALUES (1, '2000-01-01')")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run(change, "INSERT INTO f VALUES (3)")
    subject = f"{pipeline.topic('f')}-value"
    error = run_until_it_fails(pipeline.make_source(as_text=as_text))
    assert str(error) == f"table public.f: the schemas of {subject} do not allow what became of {told}"
    assert f"curl -X PUT {pipeline.registry.url}/config/{subject} " in error.hint
    take_any_schema(pipeline.registry, subject)
    with running(pipeline.make_source(as_text=as_text)) as source:
        pipeline.wait_until_written(source)
    assert pipeline.read(pipeline.topic("f"))[-1][0] == b"3"


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_table_without_a_key_is_refused(pipeline):
    pipeline.source.run("CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, NoKey)
    assert "public.a, public.b" in str(error)


def test_tables_that_cannot_have_a_topic_of_their_own_are_refused_before_anything_is_made(pipeline):
    """The broker's refusal was told as a broker that does not answer; `transactions` never got beyond its schema."""
    pipeline.source.run(
        'CREATE TABLE "Order Items" (id int PRIMARY KEY)', "CREATE TABLE transactions (id int PRIMARY KEY)",
        "CREATE TABLE a_b (id int PRIMARY KEY)", 'CREATE TABLE "a.b" (id int PRIMARY KEY)',
        "CREATE TABLE fit (id int PRIMARY KEY)", "INSERT INTO fit VALUES (1)",
    )  # fmt: skip
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, UnfitName)
    name = pipeline.name
    assert str(error).partition("found ")[2].split("), ") == [
        f"public.Order Items ({name}.Order Items is no name of a topic: 1 to 249 of a-z A-Z 0-9 . _ -",
        f"public.a_b (topic {name}.a_b is like that of public.a.b",
        f"public.transactions (topic {name}.transactions is like that of the source's transactions)",
    ]
    assert pipeline.source.run("SELECT FROM pg_publication") == []
    with running(pipeline.make_source(tables=("fit", "a_b"))) as source:
        pipeline.wait_until_written(source)
    assert len(pipeline.read(pipeline.topic("fit"))) == 1


@pytest.mark.parametrize("tables", [("missing",), ("other.missing",)])
def test_a_table_that_does_not_exist_is_refused(pipeline, tables):
    error = run_until_it_fails(pipeline.make_source(tables=tables))
    assert isinstance(error, DatabaseRefused)
    assert "missing" in str(error)


def test_the_rows_of_tables_that_inherit_and_of_partitions_are_in_the_snapshot_once(pipeline):
    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (a)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE p1 PARTITION OF p DEFAULT",
        "INSERT INTO a VALUES (1)", "INSERT INTO child VALUES (2)", "INSERT INTO p VALUES (3)",
    )  # fmt: skip
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO a VALUES (4)", "INSERT INTO child VALUES (5)", "INSERT INTO p VALUES (6)")
        pipeline.wait_until_written(source)
    rows = {
        table: [value["after"]["id"] for _, value, *_ in pipeline.read(pipeline.topic(table))]
        for table in ("a", "child", "p")
    }
    assert rows == {"a": [1, 4], "child": [2, 5], "p": [3, 6]}


def test_rows_that_a_policy_hides_are_an_error(pipeline):
    role = f"{pipeline.name}_limited"
    pipeline.source.run(
        "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)",
        "ALTER TABLE a ENABLE ROW LEVEL SECURITY", "CREATE POLICY half ON a USING (id = 1)",
        f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON a TO {role}",
        "CREATE PUBLICATION ours FOR TABLE a",
    )  # fmt: skip
    url = pipeline.source.url.replace("postgres@", f"{role}@")
    error = run_until_it_fails(pipeline.make_source(url=url, publication="ours"))
    assert isinstance(error, DatabaseRefused)
    assert "row-level security" in str(error)
    assert "BYPASSRLS" in error.hint


def test_a_role_that_may_not_replicate_is_refused(pipeline):
    role = f"{pipeline.name}_plain"
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN")
    url = pipeline.source.url.replace("postgres@", f"{role}@")
    error = run_until_it_fails(pipeline.make_source(url=url))
    assert isinstance(error, DatabaseRefused)
    assert "REPLICATION" in error.hint
    assert "\n" not in str(error)


def test_a_database_that_does_not_exist_is_refused_and_one_that_is_down_may_come_back(pipeline):
    error = run_until_it_fails(pipeline.make_source(url=pipeline.source.url + "_missing"))
    assert isinstance(error, DatabaseRefused)
    error = run_until_it_fails(pipeline.make_source(url="postgresql://postgres:s3cret@127.0.0.1:1/shop"))
    assert isinstance(error, DatabaseUnavailable)
    assert f"{error} ({error.hint})" == (
        'connect to PostgreSQL: connection to server at "127.0.0.1", port 1 failed: Connection refused '
        "(start the database, or correct `url` in the settings)"
    )


def test_a_slot_that_the_log_does_not_know_is_refused(pipeline):
    slot = default_name(pipeline.name)
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.source.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    assert isinstance(run_until_it_fails(pipeline.make_source()), SlotExists)


def test_a_lost_slot_is_refused_and_a_new_snapshot_repairs(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.drop()
    pipeline.source.run("DELETE FROM a WHERE id = 1", "INSERT INTO a VALUES (3)")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, PositionMismatch)
    assert "are missing" in str(error)
    with running(pipeline.make_source(on_gap="snapshot")) as source:
        pipeline.wait_until_written(source)
        pipeline.source.run("INSERT INTO a VALUES (4)")
        pipeline.wait_until_written(source)
    records = pipeline.read(pipeline.topic("a"))
    assert sorted(row["id"] for row in state_of(records).values()) == [2, 3, 4]
    check_transactions(pipeline, "a")


@pytest.mark.parametrize("table", ["a", "transactions"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_a_topic_that_is_deleted_is_refused_and_a_new_snapshot_fills_it(pipeline, table, again):
    """It was made with the log's own retention, and had none of the rows that did not change."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1), (2)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    delete(pipeline.connection, [pipeline.topic(table)])
    if again:
        ensure_topic(pipeline.connection, pipeline.topic(table), 1, {"cleanup.policy": "compact,delete"})
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, PositionMismatch)
    assert f"{pipeline.topic(table)} was deleted" in str(error)
    if again:
        error = run_until_it_fails(pipeline.make_source(on_gap="snapshot"))
        assert isinstance(error, TopicMismatch), "nothing keeps what it writes"
        delete(pipeline.connection, [pipeline.topic(table)])
    with running(pipeline.make_source(on_gap="snapshot")) as source:
        pipeline.source.run("INSERT INTO a VALUES (3)")
        pipeline.wait_until_written(source)
    assert sorted(row["id"] for row in state_of(pipeline.read(pipeline.topic("a"))).values()) == [1, 2, 3]
    policy = "compact" if table == "a" else "delete"
    assert describe_config(pipeline.connection, pipeline.topic(table))["cleanup.policy"] == policy
    written = read_source(pipeline.connection, pipeline.name).written[pipeline.topic(table)][0]
    assert written.count == len(pipeline.read(pipeline.topic(table))), "the books are of the new topic"


def test_a_position_of_an_earlier_version_learns_the_topics(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    position = pipeline.position()
    topics = position.pop("topics")
    writer = TransactionalWriter(pipeline.connection, pipeline.name)
    writer.open()
    writer.begin()
    writer.commit(position)
    writer.close()
    with running(pipeline.make_source()) as source:
        pipeline.source.run("INSERT INTO a VALUES (2)")
        pipeline.wait_until_written(source)
    assert pipeline.position()["topics"] == topics
    assert sorted(topics) == [pipeline.topic("a"), pipeline.topic("transactions")]
    assert [value["op"] for _, value, *_ in pipeline.read(pipeline.topic("a"))] == ["r", "c"]


def test_a_slot_that_somebody_moved_is_refused(pipeline):
    slot = default_name(pipeline.name)
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("INSERT INTO a VALUES (1)")

    def moved():
        try:
            pipeline.source.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        except psycopg2.errors.ObjectInUse:
            return False
        return True

    wait_until(moved, "the slot is free")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, PositionMismatch)
    assert "was moved" in str(error)


def test_a_value_that_cannot_be_kept_stops_the_source_until_the_column_is_text(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, d date)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("INSERT INTO a VALUES (1, 'infinity')")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, UnsupportedValue)
    assert "public.a, column d" in str(error)
    assert pipeline.read(pipeline.topic("a")) == []


def test_a_row_that_is_too_large_for_its_topic_goes_on_when_the_topic_takes_it(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY, t text)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("INSERT INTO a VALUES (1, repeat('x', 2000000)), (2, 'small')")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, RecordRefused)
    assert f"topic {pipeline.topic('a')}: expected batches of at most 1048588 bytes (max.message.bytes)" in str(error)
    entry = ConfigEntry("max.message.bytes", "3000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, pipeline.topic("a"), incremental_configs=[entry])
    admin(pipeline.connection).incremental_alter_configs([resource])[resource].result(30)
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [len(value["after"]["t"]) for _, value, *_ in pipeline.read(pipeline.topic("a"))] == [2_000_000, 5]
    check_transactions(pipeline, "a")


def test_a_table_that_is_added_to_the_settings_later_is_refused(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with running(pipeline.make_source(tables=("a",))) as source:
        pipeline.wait_until_written(source)
    error = run_until_it_fails(pipeline.make_source(tables=("a", "b")))
    assert isinstance(error, DatabaseRefused)
    assert "begun with public.a" in str(error)


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
def test_other_partitions_are_refused_and_a_new_snapshot_makes_them(pipeline, before, after):
    """Older rows stayed where nobody writes any more; a truncate went to partitions that were not there."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a SELECT generate_series(1, 9)")
    with running(pipeline.make_source(partitions=before)) as source:
        pipeline.wait_until_written(source)
    for gap in ("refuse", "snapshot"):
        error = run_until_it_fails(pipeline.make_source(partitions=after, on_gap=gap))
        assert isinstance(error, TopicMismatch)
        assert f"`partitions` is {after}, but the log was begun with {before}" in str(error)
    delete(pipeline.connection, [pipeline.topic("a"), pipeline.topic("transactions")])
    with running(pipeline.make_source(partitions=after, on_gap="snapshot")) as source:
        pipeline.source.run("DELETE FROM a WHERE id < 5")
        pipeline.wait_until_written(source)
    assert len(state_of(pipeline.read(pipeline.topic("a")))) == 5


def test_a_table_that_is_renamed_stops_the_source_and_nothing_is_lost_when_it_is_renamed_back(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    pipeline.source.run("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (1)", "INSERT INTO b VALUES (1)")
    error = run_until_it_fails(pipeline.make_source())
    assert isinstance(error, PositionMismatch)
    assert "expected table public.a, found that it is now called public.c" in str(error)
    pipeline.source.run("ALTER TABLE c RENAME TO a")
    run = Running(pipeline.make_source())
    run.thread.start()
    pipeline.wait_until_written(run)
    pipeline.source.run("CREATE SCHEMA o", "ALTER TABLE a SET SCHEMA o", "INSERT INTO o.a VALUES (2)")
    wait_until(lambda: run.error is not None, "the running source sees it too")
    run.stop()
    assert "now called o.a" in str(run.error)
    pipeline.source.run("ALTER TABLE o.a SET SCHEMA public")
    with running(pipeline.make_source()) as source:
        pipeline.wait_until_written(source)
    assert [value["after"]["id"] for _, value, *_ in pipeline.read(pipeline.topic("a"))] == [1, 2]
    check_transactions(pipeline, "a", "b")


def test_a_table_that_another_one_replaces_stops_the_source_and_a_new_snapshot_repairs(pipeline):
    """The new table is not in the publication: the stream says nothing of it, and the position would move past it."""
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    run = Running(pipeline.make_source(tables=("a",)))
    run.thread.start()
    pipeline.wait_until_written(run)
    pipeline.source.run("CREATE TABLE a_new (id int PRIMARY KEY)", "INSERT INTO a_new VALUES (2)")
    pipeline.source.run("DROP TABLE a", "ALTER TABLE a_new RENAME TO a", transaction=True)
    pipeline.source.run("INSERT INTO a VALUES (3)")
    mark = mark_position(pipeline.source.url)
    wait_until(lambda: run.error is not None, "the source has stopped")
    run.stop()
    assert isinstance(run.error, PositionMismatch)
    assert "expected table public.a in the stream, found another table of that name" in str(run.error)
    assert pipeline.position()["lsn"] < mark
    assert isinstance(run_until_it_fails(pipeline.make_source(tables=("a",))), PositionMismatch)
    with running(pipeline.make_source(tables=("a",), on_gap="snapshot")) as source:
        pipeline.wait_until_written(source)
    assert sorted(row["id"] for row in state_of(pipeline.read(pipeline.topic("a"))).values()) == [2, 3]


def test_a_mark_lies_after_what_was_committed(pipeline):
    pipeline.source.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    committed = pipeline.source.run("SELECT (pg_current_wal_lsn() - '0/0')::bigint")[0][0]
    assert mark_position(pipeline.source.url) >= committed
