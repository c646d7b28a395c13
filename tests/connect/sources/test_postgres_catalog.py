"""What the database's catalog says, and what its errors become."""

import traceback

import psycopg2
import pytest

from mainstem.connect.sinks.postgres_config import PostgresReplicaConfig
from mainstem.connect.sources import postgres_catalog as catalog
from mainstem.connect.sources.postgres_catalog import DatabaseRefused, DatabaseUnavailable
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from tests.support.postgres import Database

DOWN = (
    'connect to PostgreSQL: connection to server at "127.0.0.1", port 1 failed: Connection refused '
    "(start the database, or correct `url` in the settings)"
)


@pytest.fixture
def database(postgres_server):
    database = Database(postgres_server.create_database("catalog"))
    database.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return database


@pytest.fixture
def connection(database):
    connection = catalog.connect(database.url)
    connection.autocommit = True
    yield connection
    connection.close()


def test_columns_types_and_keys_of_a_table(database, connection):
    database.run(
        "CREATE DOMAIN small_price AS numeric(8, 2)",
        "CREATE DOMAIN price AS small_price",
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE t (gone int, a int, p price, m mood, ms mood[], n varchar(9)[], twice int GENERATED ALWAYS AS (a * 2) STORED, "
        "v int2vector, PRIMARY KEY (n, a))",
        "ALTER TABLE t DROP COLUMN gone",
    )
    (info,) = catalog.find_tables(connection, ["t"])
    assert [column.name for column in info.relation.columns] == ["a", "p", "m", "ms", "n", "v"]
    assert [(each.name, each.builtin) for each in info.types] == [
        ("integer", True), ("numeric(8,2)", True), ("mood", False), ("mood[]", False), ("character varying(9)[]", True), ("int2vector", True)
    ]  # fmt: skip
    assert info.key == ("n", "a")
    assert [column.in_key for column in info.relation.columns] == [True, False, False, False, True, False]


def test_the_key_is_that_of_the_replica_identity(database, connection):
    database.run(
        "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, c int)",
        "CREATE UNIQUE INDEX by_b ON t (b) INCLUDE (c)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_b",
    )
    assert catalog.find_tables(connection, ["public.t"])[0].key == ("b",)


def test_without_names_all_tables_of_public_are_found(database, connection):
    database.run(
        "CREATE TABLE b (x int)", "CREATE TABLE a (x int)", "CREATE VIEW v AS SELECT 1", "CREATE UNLOGGED TABLE u (x int)",
        "CREATE TABLE parts (x int) PARTITION BY RANGE (x)", "CREATE TABLE part PARTITION OF parts DEFAULT",
    )  # fmt: skip
    assert [table.relation.name for table in catalog.find_tables(connection, [])] == ["a", "b", "parts"]
    with pytest.raises(DatabaseRefused, match=r"public\.missing, other\.t"):
        catalog.find_tables(connection, ["a", "missing", "other.t"])


def test_a_table_that_is_named_twice_is_found_once(database, connection):
    database.run("CREATE TABLE a (x int)", "CREATE TABLE b (x int)")
    assert [table.relation.name for table in catalog.find_tables(connection, ["b", "a", "public.b"])] == ["b", "a"]


def test_what_older_rows_have_in_added_columns(database, connection):
    database.run(
        "CREATE TABLE t (a int PRIMARY KEY)",
        "ALTER TABLE t ADD COLUMN b text DEFAULT 'it''s, {x}', ADD COLUMN c date DEFAULT '2020-02-29', ADD COLUMN d int",
    )
    assert catalog.find_tables(connection, ["t"])[0].missing == {"b": "it's, {x}", "c": "2020-02-29"}


def test_the_present_values_of_a_row(database, connection):
    database.run(
        'CREATE TABLE t ("50% a" int, b date, c text, d text, PRIMARY KEY ("50% a", b))',
        "INSERT INTO t VALUES (1, '2020-01-02', 'ü', NULL)",
    )
    relation = catalog.find_tables(connection, ["t"])[0].relation
    key = {"50% a": "1", "b": "2020-01-02"}
    assert catalog.read_columns(connection, relation, key, ["c", "d"]) == ["ü".encode(), None]
    assert catalog.read_columns(connection, relation, key | {"50% a": "2"}, ["c"]) is None


def test_the_present_values_of_a_row_whose_table_was_altered_since(database, connection):
    database.run("CREATE TABLE t (a text PRIMARY KEY, b text, c text)", "INSERT INTO t VALUES ('1', 'b', 'c')")
    relation = catalog.find_tables(connection, ["t"])[0].relation
    database.run("ALTER TABLE t DROP b")
    assert catalog.read_columns(connection, relation, {"a": "1"}, ["b", "c"]) == [None, b"c"]
    assert catalog.read_columns(connection, relation, {"a": "1"}, ["b"]) == [None]
    assert catalog.read_columns(connection, relation, {"a": "2"}, ["b", "c"]) is None
    database.run("CREATE SCHEMA o", "ALTER TABLE t RENAME TO u", "ALTER TABLE u SET SCHEMA o")
    assert catalog.read_columns(connection, relation, {"a": "1"}, ["c"]) == [b"c"]
    database.run("ALTER TABLE o.u ALTER a TYPE int USING 1")
    assert catalog.read_columns(connection, relation, {"a": "x"}, ["c"]) is None
    database.run("ALTER TABLE o.u RENAME a TO id")
    assert catalog.read_columns(connection, relation, {"a": "1"}, ["c"]) is None
    database.run("DROP TABLE o.u")
    assert catalog.read_columns(connection, relation, {"a": "1"}, ["c"]) is None


def test_a_transaction_is_visible_when_it_has_ended(database, connection):
    other = database.connect()
    other.autocommit = False
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        (xid,) = cursor.fetchone()
    assert not catalog.is_visible(connection, xid)
    ((above,),) = database.run("SELECT pg_current_xact_id()::text::bigint + 1")
    assert [catalog.is_visible(connection, each) for each in (xid, xid + 1, above)] == [False, True, False]
    other.commit()
    other.close()
    assert [catalog.is_visible(connection, each) for each in (xid, above + 7)] == [True, False]


def test_a_slot_is_read_and_dropped(database, connection):
    assert catalog.read_slot(connection, "catalog_slot") is None
    database.run("SELECT pg_create_logical_replication_slot('catalog_slot', 'pgoutput')")
    slot = catalog.read_slot(connection, "catalog_slot")
    assert (slot.plugin, slot.database, slot.active_pid, slot.wal_status) == ("pgoutput", "catalog", None, "reserved")
    assert slot.confirmed_lsn > 0
    catalog.drop_slot(connection, "catalog_slot")
    assert catalog.read_slot(connection, "catalog_slot") is None


def test_the_server_says_who_it_is(database, connection):
    replication = catalog.connect(database.url, replication=True)
    server = catalog.identify(replication)
    replication.close()
    assert server.database == "catalog"
    assert server.system.isdigit()
    assert catalog.emit_message(connection, "mainstem", "x") >= server.wal_end - 8


def test_a_wal_level_that_is_too_low(postgres_server, database, connection, tmp_path):
    from mainstem.connect.local_postgres import LocalPostgres

    catalog.check_wal_level(connection)
    with LocalPostgres(tmp_path / "pg", settings={"wal_level": "replica", "fsync": "off"}) as server:
        low = catalog.connect(server.dsn())
        with pytest.raises(DatabaseRefused, match="wal_level: expected logical, found replica") as found:
            catalog.check_wal_level(low)
        low.close()
    assert "ALTER SYSTEM" in found.value.hint


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT * FROM missing", DatabaseRefused),
        ("SELECT pg_terminate_backend(pg_backend_pid())", DatabaseUnavailable),
        ("SELECT pg_drop_replication_slot('missing')", DatabaseRefused),
    ],
)
def test_errors_are_one_line_and_say_whether_they_may_pass(connection, statement, kind):
    with pytest.raises(kind, match=r"^try it: ") as found, catalog.translated("try it"), connection.cursor() as cursor:
        cursor.execute(statement)
    assert "\n" not in str(found.value)


def test_a_statement_that_was_cancelled_may_pass():
    error = psycopg2.errors.QueryCanceled("canceling statement")
    assert isinstance(catalog.translate(error, "x"), DatabaseUnavailable)


@pytest.mark.parametrize(
    "url",
    [
        "postgress://app:S3cret@127.0.0.1:1/shop",
        "app:S3cret@127.0.0.1:1/shop",
        "postgresql://app:S3cret/x@127.0.0.1:1/shop",
        "postgresql://app:x@S3cret@127.0.0.1:1/shop",
        "postgresql://app:S3cret%@127.0.0.1:1/shop",
        "postgresql://app:x@127.0.0.1:1/shop?S3cret=1",
        "host=127.0.0.1 port=1 password='S3cret",
    ],
)
def test_a_password_is_not_told_with_an_address_that_is_wrong(url):
    with pytest.raises(DatabaseRefused) as found:
        catalog.connect(url)
    shown = "".join(traceback.format_exception(found.value))
    assert "`url` is not the address of a database" in str(found.value)
    assert "postgresql://user:password@host" in found.value.hint
    assert found.value.__cause__ is None
    assert "S3cret" not in str(found.value) + shown.replace(url, "")


def test_an_address_where_nobody_is_is_told_without_its_password():
    with pytest.raises(DatabaseUnavailable) as found:
        catalog.connect("postgresql://app:S3cret@127.0.0.1:1/shop?connect_timeout=2")
    assert f"{found.value} ({found.value.hint})" == DOWN


@pytest.mark.parametrize(
    "config",
    [PostgresSourceConfig("postgresql://a:S3cret@h/d"), PostgresReplicaConfig("postgresql://a:S3cret@h/d", "s")],
)
def test_settings_do_not_show_their_password(config):
    assert "S3cret" not in f"{config!r} {config}"


def test_money_has_the_same_text_everywhere(database):
    """Read in another locale, it would be another amount."""
    database.run("ALTER DATABASE catalog SET lc_monetary = 'C.UTF-8'")
    connection = catalog.connect(database.url)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lc_monetary")
            assert cursor.fetchone() == ("C",)
    finally:
        connection.close()
        database.run("ALTER DATABASE catalog RESET lc_monetary")


def test_names():
    assert catalog.quoted("a", 'b"c') == '"a"."b""c"'
    assert catalog.qualified("t") == ("public", "t")
    assert catalog.qualified("s.t") == ("s", "t")
