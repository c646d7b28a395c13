import duckdb
import pytest

from mainstem.serve.errors import BadQuery
from mainstem.serve.sql_reads import TABLE_FUNCTIONS, check_reads


@pytest.fixture
def cursor():
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
        yield connection


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "VALUES (1), (?)",
        "FROM t TABLESAMPLE 10%",
        "TABLE t",
        "DESCRIBE t",
        "SUMMARIZE t",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "/* why */ EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT $a",
        "UNPIVOT t ON a, b INTO NAME n VALUE v",
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r WHERE x < 3) FROM r",
        "SELECT * FROM range(3) AS r(x), LATERAL (SELECT * FROM unnest([r.x]))",
        'SELECT * FROM duckdb_columns, information_schema.tables, range(1) AS "{x}"',
        """SELECT '"type":"TABLE_FUNCTION"' AS "function" """,
        "SELECT " + "(" * 900 + "1" + ")" * 900,
        "SELECT " + " OR ".join(f"a = {n}" for n in range(900)) + " FROM t",
    ],
)
def test_what_only_reads_is_let_through(cursor, sql):
    assert check_reads(cursor, sql).query.strip() in sql


def test_of_all_functions_that_stand_for_a_table_only_those_that_are_known_to_give_rows_are_called(cursor):
    """Also of an engine that has learned new ones."""
    kinds = "function_type LIKE 'table%'"
    names = {
        name for (name,) in cursor.execute(f"SELECT function_name FROM duckdb_functions() WHERE {kinds}").fetchall()
    }
    assert names > TABLE_FUNCTIONS
    for name in names:
        for spelled in (name, name.upper(), f'system.main."{name}"'):
            sql = f"SELECT 1 WHERE 1 IN (FROM {spelled}(1))"
            if name in TABLE_FUNCTIONS:
                check_reads(cursor, sql)
            else:
                with pytest.raises(BadQuery, match=f"found {name}$") as refused:
                    check_reads(cursor, sql)
                assert "unnest" in refused.value.hint


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT t ON a USING sum(b)",
        "EXPLAIN (ANALYZE) SELECT 1",
        "EXPLAIN (FORMAT json) SELECT * FROM checkpoint()",
        "EXPLAIN/**/ANALYZE SELECT * FROM checkpoint()",
        "EXPLAIN ANALYZE DELETE FROM t",
        "DESCRIBE FROM query('SELECT 1')",
        "SELECT * FROM (SUMMARIZE FROM query('SELECT 1'))",
        "WITH x AS MATERIALIZED (FROM query('SELECT 1')) SELECT 1",
        "SELECT * FROM t AT (VERSION => (SELECT max(a) FROM query('SELECT 1 AS a')))",
    ],
)
def test_what_may_do_more_is_refused(cursor, sql):
    with pytest.raises(BadQuery) as refused:
        check_reads(cursor, sql)
    assert "\n" not in str(refused.value)
