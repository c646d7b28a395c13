"""What the publication must have, and which change of the tables would take something out of the stream."""

import pytest

from mainstem.connect.sources import postgres_catalog as catalog
from mainstem.connect.sources.postgres_catalog import DatabaseRefused
from mainstem.connect.sources.postgres_position import PositionMismatch
from mainstem.connect.sources.postgres_publication import check_published, ensure_publication, find_oids
from tests.support.postgres import Database


@pytest.fixture
def database(postgres_server):
    database = Database(postgres_server.create_database("publication"))
    database.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP PUBLICATION IF EXISTS p")
    return database


@pytest.fixture
def connection(database):
    connection = catalog.connect(database.url)
    connection.autocommit = True
    yield connection
    connection.close()


@pytest.fixture
def tables(database, connection):
    """Published tables a and b: oid by name."""
    database.run("CREATE TABLE a (x int PRIMARY KEY)", "CREATE TABLE b (x int PRIMARY KEY)")
    found = [table.relation for table in catalog.find_tables(connection, ["a", "b"])]
    ensure_publication(connection, "p", found)
    return {f"public.{table.name}": table.oid for table in found}


def test_a_publication_is_created_and_completed(database, connection):
    database.run(
        "CREATE TABLE a (x int PRIMARY KEY)", "CREATE TABLE b (x int PRIMARY KEY)", "DROP PUBLICATION IF EXISTS p"
    )
    tables = [table.relation for table in catalog.find_tables(connection, ["a", "b"])]
    published = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1"
    ensure_publication(connection, "p", tables[:1])
    ensure_publication(connection, "p", tables)
    ensure_publication(connection, "p", tables)
    assert database.run(published) == [("a",), ("b",)]
    database.run("ALTER PUBLICATION p SET TABLE a WHERE (x > 1), b")
    with pytest.raises(DatabaseRefused, match="row filter on a"):
        ensure_publication(connection, "p", tables)
    database.run("DROP PUBLICATION p")


def test_a_publication_that_leaves_out_operations_is_refused(database, connection):
    database.run(
        "CREATE TABLE a (x int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE a WITH (publish = 'insert, delete')"
    )
    tables = [table.relation for table in catalog.find_tables(connection, ["a"])]
    with pytest.raises(DatabaseRefused, match="it leaves out update, truncate") as found:
        ensure_publication(connection, "p", tables)
    assert 'ALTER PUBLICATION "p" SET' in found.value.hint


def test_a_publication_of_partitions_is_refused(database, connection):
    database.run(
        "CREATE TABLE a (x int PRIMARY KEY) PARTITION BY RANGE (x)", "CREATE TABLE a1 PARTITION OF a DEFAULT",
        "CREATE TABLE b (x int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE b",
    )  # fmt: skip
    tables = [table.relation for table in catalog.find_tables(connection, ["a"])]
    with pytest.raises(DatabaseRefused, match=r"expected table public\.a, found its partitions"):
        ensure_publication(connection, "p", tables)
    database.run("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    ensure_publication(connection, "p", tables)


def test_tables_that_are_as_they_were_fit(connection, tables):
    assert check_published(connection, "s", "p", tables) == []
    assert find_oids(connection, "s", list(tables)) == tuple(tables.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["ALTER TABLE a RENAME TO c"], r"expected table public\.a, found that it is now called public\.c"),
        (["CREATE SCHEMA o", "ALTER TABLE a SET SCHEMA o"], r"it is now called o\.a"),
        (["ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"], r"called public\.b"),
        (["CREATE TABLE c (x int)", "DROP TABLE a", "ALTER TABLE c RENAME TO a"], "found another table of that name"),
        (["ALTER PUBLICATION p DROP TABLE a"], "publication p does not have it"),
        (["ALTER PUBLICATION p SET (publish = 'insert')"], "leaves out update, delete, truncate"),
        (["DROP PUBLICATION p"], "expected publication p of insert, update, delete, truncate, found none"),
    ],
)
def test_what_would_take_changes_out_of_the_stream_is_refused(database, connection, tables, changes, reason):
    database.run(*changes)
    with pytest.raises(PositionMismatch, match=reason) as found:
        check_published(connection, "s", "p", tables)
    assert 'on_gap = "snapshot"' in found.value.hint


def test_a_table_that_was_dropped_has_no_changes_to_lose(database, connection, tables):
    database.run("DROP TABLE a")
    assert check_published(connection, "s", "p", tables) == ["public.a"]
    with pytest.raises(PositionMismatch, match=r"expected table public\.a, found none"):
        find_oids(connection, "s", list(tables))
