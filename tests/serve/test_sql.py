import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from uuid import UUID

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.core import UserError
from mainstem.serve import BadQuery, Change, IndexDamaged, OtherShape
from mainstem.serve.columns import TableShape
from mainstem.serve.errors import IndexUnavailable, UnfitChanges
from mainstem.serve.sql import SqlIndex
from tests.serve.support import TOPIC, applied_after, copy, cuts, fold_rows, histories, rows_of, tear
from tests.support.properties import examples

STREAM = TableShape({"a": "INTEGER", "b": "VARCHAR"}, "stream")
FLIGHT = {
    **dict.fromkeys(["id", "flight", "year", "month", "day", "dep_time", "sched_dep_time", "arr_time"], "INTEGER"),
    "sched_arr_time": "INTEGER",
    **dict.fromkeys(["dep_delay", "arr_delay", "air_time", "distance"], "DOUBLE"),
    **dict.fromkeys(["carrier", "tailnum", "origin", "dest"], "VARCHAR"),
    "fare": "DECIMAL(10,2)",
    "time_hour": "TIMESTAMP WITH TIME ZONE",
}


@contextmanager
def opened(path: Path, tables=None, **options) -> Iterator[SqlIndex]:
    index = SqlIndex.open(path, {TOPIC: STREAM} if tables is None else tables, **options)
    try:
        yield index
    finally:
        index.close()


def fill(index: SqlIndex, changes) -> None:
    index.apply(changes, applied_after(changes))


def rows(index: SqlIndex, sql: str, *parameters, **options) -> list[tuple]:
    return index.query(sql, parameters, **options).rows


def one(number: int = 0, **values) -> Change:
    return Change(TOPIC, 0, number, str(number), values)


@settings(max_examples=examples(12))
@given(st.data())
def test_the_tables_are_the_fold_of_the_changes(data):
    """Any batches, opened again at random: a stream has all rows, a changelog the last of each key."""
    made = data.draw(histories(topics=("s", "c")))
    changes = [msgspec.structs.replace(each, row=plain(each.row)) for each in made]
    shapes = {"s": STREAM, "c": TableShape(STREAM.columns, "changelog")}
    with TemporaryDirectory() as directory:
        index = SqlIndex.open(Path(directory), shapes)
        done: list[Change] = []
        for batch in data.draw(cuts(changes)):
            done += batch
            index.apply(batch, applied_after(done))
            if data.draw(st.integers(0, 3)) == 0:
                index.close()
                index = SqlIndex.open(Path(directory), shapes)
            assert index.applied == applied_after(done)
            for topic in shapes:
                table = rows(index, f"SELECT _partition, _offset, _key, a, b FROM {topic} ORDER BY ALL")
                assert table == model(done, topic)
        index.close()


def plain(row):
    return row and {"a": row["a"], "b": row["b"]}


def model(changes, topic: str) -> list[tuple]:
    of_topic = [change for change in changes if change.topic == topic]
    found = fold_rows(of_topic) if topic == "c" else [each for each in of_topic if each.row is not None]
    return sorted(
        ((each.partition, each.offset, each.key, each.row["a"], each.row["b"]) for each in found),
        key=lambda row: row[:2],
    )


TYPES = {
    "boolean": ("BOOLEAN", True),
    "int": ("INTEGER", -(2**31)),
    "long": ("BIGINT", 2**63 - 1),
    "double": ("DOUBLE", 0.1),
    "text": ("VARCHAR", "a\0ü"),
    "bytes": ("BLOB", b"\0\xff"),
    "decimal": ("DECIMAL(30,2)", Decimal("-1.50")),
    "date": ("DATE", date(2013, 1, 1)),
    "time": ("TIME", time(1, 2, 3, 4)),
    "aware": ("TIMESTAMP WITH TIME ZONE", datetime(2013, 1, 1, 5, 0, 0, 1, UTC)),
    "naive": ("TIMESTAMP", datetime(2013, 1, 1, 5)),
    "uuid": ("UUID", UUID(int=5)),
    "list": ("INTEGER[]", [1, None, 2]),
    "map": ("MAP(VARCHAR, UUID)", {"a": UUID(int=1)}),
    "struct": ('STRUCT("x y" INTEGER, z VARCHAR[])', {"x y": 1, "z": ["a"]}),
    "deep": ("MAP(VARCHAR, STRUCT(x MAP(VARCHAR, INTEGER)[]))", {"k": {"x": [{"y": 1}]}}),
}


def test_values_of_all_types_come_back(tmp_path):
    shape = TableShape({name: kind for name, (kind, _) in TYPES.items()}, "stream")
    row = {name: value for name, (_, value) in TYPES.items()}
    nothing = dict.fromkeys(row)
    with opened(tmp_path, {TOPIC: shape}) as index:
        fill(index, [one(0, **row), one(1, **nothing), one(2)])
        answer = index.query(f"SELECT * EXCLUDE (_partition, _offset, _key) FROM {TOPIC} ORDER BY _offset")
        assert answer.columns == list(row)
        found = [dict(zip(answer.columns, each, strict=True)) for each in answer.rows]
        assert found == [row, nothing, nothing]
        assert [type(each) for each in found[0].values()] == [type(each) for each in row.values()]


def test_numbers_that_are_none_and_values_of_several_types(tmp_path):
    shape = TableShape({"value": "DOUBLE", "any": "VARCHAR"}, "stream")
    values = [(math.nan, 5), (-math.inf, {"a": [1.5, math.nan]}), (1, None), (2.5, "text"), (None, Decimal("1.50"))]
    with opened(tmp_path, {TOPIC: shape}) as index:
        fill(index, [one(n, value=value, any=any_) for n, (value, any_) in enumerate(values)])
        found = rows(index, f'SELECT value, "any" FROM {TOPIC} ORDER BY _offset')
        assert math.isnan(found[0][0])
        assert [value for value, _ in found[1:]] == [-math.inf, 1.0, 2.5, None]
        assert [text for _, text in found] == ["5", '{"a":[1.5,"NaN"]}', None, "text", '"1.50"']


@pytest.mark.parametrize(
    ("row", "column", "reason"),
    [
        ({"c": 1}, "c", "no such column"),
        ({"a": 2**31}, "a", "int32"),
        ({"a": "x"}, "a", "int32"),
        ({"u": "no uuid"}, "", "UUID"),
        ({"l": "text"}, "l", "expected a list"),
        ({"l": 5}, "l", "list"),
        ({"m": [1]}, "m", "map"),
        ({"s": 5}, "s", "struct"),
        ({"s": {"x": {}}}, "s", "struct"),
    ],
)
def test_a_row_that_does_not_fit_changes_nothing(tmp_path, row, column, reason):
    columns = {"a": "INTEGER", "u": "UUID", "l": "VARCHAR[]", "m": "MAP(VARCHAR, VARCHAR)", "s": "STRUCT(x INTEGER)"}
    shape = TableShape(columns, "changelog")
    with opened(tmp_path, {TOPIC: shape}) as index:
        fill(index, [one(0, a=1)])
        with pytest.raises(UnfitChanges, match=reason) as refused:
            index.apply([one(1, a=5), Change(TOPIC, 0, 2, "0", row)], applied_after([one(2)]))
        assert list(refused.value.reasons) == [1]
        assert f"column '{column}'" in str(refused.value) or not column
        assert rows(index, f"SELECT a FROM {TOPIC}") == [(1,)]
        assert index.applied == applied_after([one(0)])
        fill(index, [one(0, a=1), one(1, a=5)])
        assert len(rows(index, f"FROM {TOPIC}")) == 2


def test_all_rows_that_do_not_fit_are_told_and_the_others_can_be_applied(tmp_path):
    shapes = {
        TOPIC: TableShape({"a": "INTEGER", "u": "UUID"}, "stream"),
        "c": TableShape({"a": "INTEGER"}, "changelog"),
    }
    strange = [{"x": 1}, {"a": "text"}, {"u": "no uuid"}, {"a": 2**40}]
    changes = [one(n, **strange[n // 7 % 4]) if n % 7 == 3 else one(n, a=n, u=None) for n in range(200)]
    changes += [Change("c", 0, n, str(n), {"a": n} if n % 5 else {"a": "text"}) for n in range(20)]
    changes += [Change("c", 0, 20, "1", None), Change("c", 0, 21, None, None, truncates=True)]
    with opened(tmp_path, {TOPIC: TableShape({}, "stream"), "c": shapes["c"]}) as index:
        index.extend(shapes)
        with pytest.raises(UnfitChanges) as refused:
            fill(index, changes)
        unfit = {
            place
            for place, each in enumerate(changes)
            if each.row and ("a" not in each.row or each.row["a"] in ("text", 2**40))
        }
        assert refused.value.reasons.keys() == unfit
        assert index.applied is None
        fill(index, [each for place, each in enumerate(changes) if place not in unfit])
        assert rows(index, f"SELECT count(*) FROM {TOPIC}") == [(sum(each < 200 for each in set(range(200)) - unfit),)]


def test_columns_of_two_schemas_that_come_together_are_all_there(tmp_path):
    with opened(tmp_path) as index:
        index.extend({TOPIC: TableShape({"c": "INTEGER"}, "stream")})
        index.extend({TOPIC: TableShape({"d": "INTEGER"}, "stream")})
        index.extend({TOPIC: TableShape({"c": "BIGINT"}, "stream")})
        index.extend({TOPIC: TableShape({"c": "INTEGER"}, "stream")})
        with pytest.raises(OtherShape, match="expected a column d DATE, found d INTEGER"):
            index.extend({TOPIC: TableShape({"d": "DATE"}, "stream")})
        fill(index, [one(0, a=1, c=2**40), one(1, d=3)])
        assert rows(index, f"SELECT a, c, d FROM {TOPIC} ORDER BY _offset") == [(1, 2**40, None), (None, None, 3)]


def test_columns_that_come_later_and_types_that_grow(tmp_path):
    """In the commit that has the first rows with them; a reader of before still sees the table as it was."""
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1, b="x")])
        later = {TOPIC: TableShape({"a": "BIGINT", "b": "VARCHAR", "c": "DATE"}, "stream")}
        later["new"] = TableShape({"x": "INTEGER"}, "changelog")
        index.extend(later)
        assert index.query(f"FROM {TOPIC}").columns == ["_partition", "_offset", "_key", "a", "b"]
        fill(index, [one(1, a=2**40, c=date(2026, 1, 1)), Change("new", 0, 0, "k", {"x": 1})])
        assert rows(index, f"SELECT a, b, c FROM {TOPIC} ORDER BY a") == [
            (1, "x", None),
            (2**40, None, date(2026, 1, 1)),
        ]
        assert rows(index, "SELECT x FROM new") == [(1,)]
    with opened(tmp_path) as index:  # what is there already stays
        fill(index, [one(2, a=2**41)])
        assert rows(index, f"SELECT a, c FROM {TOPIC} WHERE a > 2 ORDER BY a") == [
            (2**40, date(2026, 1, 1)), (2**41, None),
        ]  # fmt: skip
    grown = {TOPIC: TableShape({"a": "DOUBLE", "d": "INTEGER"}, "stream")}
    with opened(tmp_path, grown) as index:
        assert rows(index, f"SELECT max(a), count(d) FROM {TOPIC}") == [(2.0**41, 0)]


@pytest.mark.parametrize(
    "shape",
    [
        TableShape({"a": "DATE"}, "stream"),
        TableShape({"A": "INTEGER"}, "stream"),
        TableShape(STREAM.columns, "changelog"),
        TableShape(STREAM.columns, "stream", "other"),
    ],
)
def test_a_table_that_cannot_become_what_is_wanted(tmp_path, shape):
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1)])
        with pytest.raises(OtherShape):
            index.extend({TOPIC: shape})
        index.apply([one(1, a=1)], applied_after([one(1)]))
    with pytest.raises(OtherShape, match=f"topic {TOPIC}: expected a"), opened(tmp_path, {TOPIC: shape}):
        pass
    with opened(tmp_path) as index:
        assert len(rows(index, f"FROM {TOPIC}")) == 2


def test_names_that_are_one_in_sql_are_refused(tmp_path):
    with pytest.raises(UserError, match="one name"):
        SqlIndex.open(tmp_path, {"a.b": STREAM, "a_b": STREAM})


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT a FROM {TOPIC}",
        f"WITH x AS (SELECT * FROM {TOPIC}) SELECT a FROM x;",
        "VALUES (1)",
        f"FROM {TOPIC}",
        f"DESCRIBE {TOPIC}",
        "SHOW TABLES",
        f"SUMMARIZE {TOPIC}",
        f"EXPLAIN SELECT * FROM {TOPIC}",
        f"EXPLAIN ANALYZE SELECT * FROM {TOPIC}",
    ],
)
def test_what_reads_is_answered(tmp_path, sql):
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1)])
        assert index.query(sql).rows


DEEP = {
    "parentheses": "SELECT " + "(" * 500_000,
    "parentheses that end": f"SELECT {'(' * 16_000}1{')' * 16_000}",
    "signs": f"SELECT {'- ' * 16_000}1",
    "NOT": f"SELECT {'NOT ' * 8_000}true",
    "sums": f"SELECT 1{'+1' * 16_000}",
    "lists": "SELECT " + "[" * 32_000,
    "calls": "SELECT " + "f(" * 16_000,
    "subqueries": "SELECT * FROM " + "(SELECT * FROM " * 2_000,
    "CASE": "SELECT " + "CASE WHEN true THEN " * 1_500,
    "fields": f"SELECT x{'.a' * 16_000}",
    "some fields": f"SELECT x{'.a' * 999}",
    "casts": f"SELECT x{'::INT' * 6_000}",
    "joins": f"SELECT * FROM a{' JOIN a' * 4_000}",
    "unions": f"SELECT 1{' UNION ALL SELECT 1' * 1_600} LIMIT nosuch",
}
"""Statements that a parser, or what comes after it, descends in."""


@pytest.mark.parametrize("what", DEEP)
def test_no_query_is_too_deep_for_its_time_and_the_stack(tmp_path, what):
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1, b="x")])
        began = monotonic()
        with pytest.raises(BadQuery) as refused:
            index.query(DEEP[what], seconds=1)
        assert monotonic() - began < 30
        assert "\n" not in str(refused.value)
        assert rows(index, f"SELECT a FROM {TOPIC}") == [(1,)]


def elsewhere(statement: str) -> str:
    """A call that runs a statement on a connection of its own."""
    text = statement.replace("'", "''")
    return f"json_execute_serialized_sql(json_serialize_sql('{text}'))"


def attacks(file: str) -> list[str]:
    """What a query must not do; `file` is there, and must not be read, written or found."""
    return [
        *(f"SELECT * FROM {function}('{file}')" for function in (
            "read_csv", "read_text", "read_blob", "read_json", "read_parquet", "sniff_csv", "parquet_metadata", "glob",
            "read_duckdb", "read_csv_auto", "read_ndjson_objects", "parquet_schema",
        )),
        f"SELECT * FROM '{file}'",
        f"SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
        f"SELECT * FROM query_table(['{file}'])",
        "SELECT * FROM 'https://127.0.0.1:1/x.csv'",
        "SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')",
        "SELECT * FROM read_csv('s3://bucket/x.csv')",
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM secret_rows",
        "SELECT * FROM enable_logging(storage := 'file')",
        "SELECT * FROM force_checkpoint('index')",
        f"COPY t TO '{file}.copy'",
        f"COPY (SELECT 1) TO '{file}.copy'",
        f"COPY t FROM '{file}'",
        f"EXPORT DATABASE '{file}.copy'",
        f"IMPORT DATABASE '{file}'",
        f"ATTACH '{file}.copy' AS other",
        "ATTACH ':memory:' AS other",
        "DETACH index",
        "USE memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        f"LOAD '{file}'",
        "SET threads = 1",
        "SET enable_external_access = true",
        "SET VARIABLE x = 1",
        "RESET threads",
        "PRAGMA database_list",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "CREATE TABLE x (a INTEGER)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "CREATE SECRET s (TYPE http)",
        "CREATE MACRO f() AS 1",
        "DROP TABLE t",
        "ALTER TABLE t ADD COLUMN x INTEGER",
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET a = 1",
        "DELETE FROM t",
        "TRUNCATE t",
        "MERGE INTO t USING (SELECT 1 AS x) ON false WHEN NOT MATCHED THEN INSERT (a) VALUES (1)",
        "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
        "WITH x AS (INSERT INTO t (a) VALUES (9) RETURNING *) SELECT * FROM x",
        "WITH x AS (UPDATE t SET a = 9 RETURNING *) SELECT * FROM x",
        *("SELECT * FROM " + elsewhere(statement) for statement in (
            "SELECT 7", "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
            "WITH x AS (UPDATE mainstem.applied SET state = 'x' RETURNING *) SELECT * FROM x",
        )),
        f"EXPLAIN ANALYZE SELECT * FROM {elsewhere('SELECT 7')}",
        f"SELECT (SELECT count(*) FROM system.main.{elsewhere('SELECT 7').upper()})",
        "SELECT * FROM query('SELECT * FROM json_exec' || 'ute_serialized_sql(json_serialize_sql(''SELECT 7''))')",
        "SELECT * FROM checkpoint()",
        "SELECT * FROM truncate_duckdb_logs()",
        "EXPLAIN ANALYZE DELETE FROM t",
        "EXPLAIN ANALYZE UPDATE mainstem.applied SET state = NULL",
        "PREPARE p AS DELETE FROM t",
        "BEGIN",
        "COMMIT",
        "SELECT 1; DELETE FROM t",
        "SELECT 1; SELECT 2",
        "COMMIT; DELETE FROM t",
        "",
        ";",
        "-- nothing",
        "SELEC 1",
    ]  # fmt: skip


SECRET = "what nobody may read"


@pytest.mark.parametrize("number", range(len(attacks(""))))
def test_no_query_reads_files_or_writes_or_sets(tmp_path, number, monkeypatch):
    import pyarrow

    # A variable of the module would be found as a table.
    monkeypatch.setattr("mainstem.serve.sql.secret_rows", pyarrow.table({"secret": [SECRET]}), raising=False)
    file = tmp_path / "secret.csv"
    file.write_text(SECRET)
    with opened(tmp_path / "index") as index:
        fill(index, [one(0, a=1, b="x")])
        before = index.query("SELECT * FROM duckdb_settings() ORDER BY name").rows
        with pytest.raises(BadQuery) as refused:
            index.query(attacks(str(file))[number])
        assert SECRET not in str(refused.value)
        assert "\n" not in str(refused.value)
        assert rows(index, f"SELECT a, b FROM {TOPIC}") == [(1, "x")]
        assert index.query("SELECT * FROM duckdb_settings() ORDER BY name").rows == before
        fill(index, [one(0), one(1, a=2)])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["index", "secret.csv"]


def test_a_table_may_be_called_as_anything_of_ours_is(tmp_path):
    topics = ("batch", "applied", "mainstem", "duckdb_tables")
    shapes = {topic: TableShape({"a": "INTEGER"}, "changelog") for topic in topics}
    with opened(tmp_path, shapes) as index:
        for value in (1, 2):
            changes = [Change(topic, 0, value, "key", {"a": value}) for topic in topics]
            index.apply(changes, applied_after(changes))
        for topic in topics:
            assert rows(index, f'SELECT a FROM "{topic}"') == [(2,)]


def test_parameters_are_values(tmp_path):
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1, b="it's"), one(1, a=2, b="x")])
        assert rows(index, f"SELECT a FROM {TOPIC} WHERE b = ?", "it's") == [(1,)]
        assert index.query(f"SELECT a FROM {TOPIC} WHERE a = $a", {"a": 2}).rows == [(2,)]
        for parameters in ((), (1, 2), {"x": 1}):
            with pytest.raises(BadQuery, match=r"^query: .+$"):
                index.query(f"SELECT a FROM {TOPIC} WHERE a = ?", parameters)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM nosuch",
        "SELECT nosuch FROM t",
        "SELECT 'x'::INTEGER",
        "SELECT error('no')",
        "SELECT sum(b) FROM t",
    ],
)
def test_a_query_that_fails_says_why_in_one_line(tmp_path, sql):
    with opened(tmp_path) as index:
        fill(index, [one(0, a=1, b="x")])
        with pytest.raises(BadQuery, match=r"^query: .+$"):
            index.query(sql)


def test_an_answer_is_bounded(tmp_path):
    with opened(tmp_path, memory="200MB") as index:
        answer = index.query("SELECT * FROM range(1000000000000)", limit=3)
        assert (answer.rows, answer.more, answer.columns) == ([(0,), (1,), (2,)], True, ["range"])
        assert not index.query("SELECT * FROM range(3)", limit=3).more
        with pytest.raises(BadQuery, match="larger than 64 MB"):
            index.query("SELECT repeat('x', 1000000) FROM range(100)")
        with pytest.raises(BadQuery, match="more memory than the 200MB"):
            index.query("SELECT list(range) FROM range(1000000000)", seconds=60)
        with pytest.raises(BadQuery, match="1 or more"):
            index.query("SELECT 1", limit=0)


def test_queries_take_no_more_of_the_disk_than_they_may(tmp_path):
    text = "SELECT md5(range::VARCHAR) || md5((range + 1)::VARCHAR) || md5((range + 2)::VARCHAR) t FROM range(4000000)"
    sql = f"SELECT sum(length(l)) FROM (SELECT lag(t) OVER (ORDER BY t) l FROM ({text}))"
    with opened(tmp_path, memory="100MB", spill_bytes=20 << 20) as index:
        fill(index, [one(0, a=1)])
        with pytest.raises(BadQuery, match="more than the 20 MiB of the disk") as refused:
            index.query(sql, seconds=60)
        assert "`sql_spill_bytes`" in refused.value.hint
        assert rows(index, f"SELECT a FROM {TOPIC}") == [(1,)]
        assert not any(each.stat().st_size for each in (tmp_path / "index" / "temporary").iterdir())


def test_an_engine_that_has_stopped_is_noted_where_a_query_finds_it(tmp_path, monkeypatch):
    def stop(*_):
        raise duckdb.FatalException("FATAL Error: it has stopped")

    with opened(tmp_path) as index:
        assert index.failure is None
        monkeypatch.setattr("mainstem.serve.sql.check_reads", stop)
        with pytest.raises(IndexUnavailable, match="it has stopped"):
            index.query("SELECT 1")
        assert "it has stopped" in str(index.failure)


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_query_that_takes_too_long_is_interrupted(tmp_path, seconds):
    with opened(tmp_path) as index:
        with pytest.raises(BadQuery, match="longer than"):
            index.query(
                "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range % 7 = b.range",
                seconds=seconds,
            )
        assert rows(index, "SELECT 1") == [(1,)]


def test_queries_beside_the_writer_see_whole_commits(tmp_path):
    """Each commit has 100 rows, and says so in its position."""
    changes = rows_of(4000)
    seen, failed = set(), []
    with opened(tmp_path, {TOPIC: TableShape(FLIGHT, "stream")}) as index:
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                sql = f"SELECT count(*), (SELECT json_extract(state, '$.reads.t.0.to') FROM mainstem.applied) FROM {TOPIC}"
                ((count, position),) = rows(index, sql)
                seen.add(count)
                if count != int(position or 0) or count % 100:
                    failed.append((count, position))

        reader = threading.Thread(target=look)
        reader.start()
        for start in range(0, 4000, 100):
            index.apply(changes[start : start + 100], applied_after(changes[: start + 100]))
        done.set()
        reader.join()
    assert failed == []
    assert len(seen) > 1


def killed(path: Path) -> None:
    """As after a kill: with a database file that has some commits, and a log that has more."""
    live, changes = path.with_name("live"), rows_of(3000)
    shape = {TOPIC: TableShape(FLIGHT, "changelog")}
    with opened(live, shape) as index:
        fill(index, changes[:1000])
    with opened(live, shape) as index:
        for start in range(1000, 3000, 500):
            index.apply(changes[start : start + 500], applied_after(changes[: start + 500]))
        copy(live, path)


@pytest.mark.parametrize("how", ["missing", "cut in half", "empty"])
def test_a_torn_directory_is_refused_or_as_it_once_was(tmp_path, how):
    """Without the log of the database, or a part of it, the rows are those of an earlier position."""
    killed(tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in sorted((tmp_path / "whole").rglob("*")) if path.is_file()]
    assert [name.name for name in files] == ["index.duckdb", "index.duckdb.wal", "index.json", "lock"]
    refused = []
    for number, name in enumerate(files):
        torn = copy(tmp_path / "whole", tmp_path / str(number))
        tear(torn / name, how)
        try:
            with opened(torn, {TOPIC: TableShape(FLIGHT, "changelog")}) as index:
                assert index.applied is not None
                end = index.applied.position[TOPIC][0]
                assert rows(index, f"SELECT id FROM {TOPIC} ORDER BY id", limit=5000) == [(n,) for n in range(end)]
                assert end == 3000 or name.name.endswith(".wal")
        except IndexDamaged:
            refused.append(name.name)
    assert refused[:1] == ["index.duckdb"]
    assert refused[-1] == "index.json"


def test_a_snapshot_is_an_index_of_its_own(tmp_path):
    changes = rows_of(60)
    shape = {TOPIC: TableShape(FLIGHT, "changelog")}
    with opened(tmp_path / "live", shape) as index:
        fill(index, changes[:40])
        index.snapshot(tmp_path / "copy")
        fill(index, changes)
        assert rows(index, f"SELECT count(*) FROM {TOPIC}") == [(60,)]
    with opened(tmp_path / "copy", shape) as index:
        assert index.applied == applied_after(changes[:40])
        assert rows(index, f"SELECT id FROM {TOPIC} ORDER BY id") == [(n,) for n in range(40)]
        index.apply(changes[40:50], applied_after(changes[:50]))
        assert rows(index, f"SELECT count(*), sum(fare) FROM {TOPIC}") == [(50, Decimal("12.25"))]


def test_all_files_are_in_the_directory(tmp_path, monkeypatch):
    """Also those of a query that needs more memory than it may have."""
    monkeypatch.chdir(tmp_path)
    with opened(tmp_path / "index", memory="100MB") as index:
        sql = "SELECT count(*) FROM (SELECT range, hash(range) AS h FROM range(10000000) ORDER BY h)"
        assert rows(index, sql, seconds=60) == [(10_000_000,)]
        index.query(
            "SELECT * FROM (SELECT hash(range) AS h, repeat('x', 20) FROM range(5000000) ORDER BY h)",
            limit=1,
            seconds=60,
        )
    assert [each.name for each in tmp_path.iterdir()] == ["index"]
