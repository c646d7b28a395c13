"""What a table of the replica holds after changes, against a dictionary that takes the same changes."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.connect.sinks import postgres_target
from mainstem.connect.sinks.postgres_order import Change
from mainstem.connect.sinks.postgres_target import NotEmpty, TargetTable, ValueRefused, copy_line, key_texts, shape_of
from mainstem.connect.sources.postgres_snapshot import parse_copy_line
from mainstem.core import CorruptData
from tests.support.postgres import Database
from tests.support.properties import examples


def schema(*columns, key=("id",)):
    fields = [
        {
            "name": name,
            "type": kind if name in key else ["null", kind],
            **({} if name in key else {"default": None}),
            **more,
        }
        for name, kind, more in columns
    ]
    return json.dumps(
        {
            "type": "record", "name": "Change", "mainstem": "change", "key": list(key),
            "fields": [
                {"name": "op", "type": "string"},
                {"name": "before", "type": ["null", {"type": "record", "name": "Row", "fields": fields}]},
                {"name": "after", "type": ["null", "Row"]},
            ],
        }
    )  # fmt: skip


PLAIN = shape_of(schema(("id", "int", {}), ("a", "string", {}), ("b", "int", {})))


def change(operation, key, row=None, unchanged=()):
    return Change(0, "t", 1, 1, operation, str(key).encode(), row, 1, 0, unchanged, size=1)


@pytest.fixture
def target(postgres_server):
    database = Database(postgres_server.create_database("targets"))
    database.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    connection = database.connect()
    connection.autocommit = False
    yield connection
    connection.close()


def rows(connection, query="SELECT * FROM t ORDER BY 1"):
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
keys = st.integers(1, 4)
new_rows = st.tuples(st.none() | texts, st.none() | st.integers(-9, 9))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, new_rows),
        st.tuples(st.just("part"), keys, new_rows),
        st.tuples(st.just("delete"), keys, st.none()),
        st.tuples(st.just("truncate"), keys, st.none()),
        st.tuples(st.sampled_from(["flush", "commit"]), keys, st.none()),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(steps)
def test_a_table_is_what_its_changes_say(target, steps):
    table, expected = TargetTable("public", "t"), {}
    with target.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        target.commit()
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        for step, key, row in steps:
            if step in ("put", "part"):
                text, number = row
                as_text = [str(key), text, None if number is None else str(number)]
                known = key in expected
                if step == "part" and known:  # the source did not know column a: the value that it gives is not used
                    table.apply(cursor, change("u", key, [str(key), "unknown", as_text[2]], ("a",)))
                    expected[key] = (expected[key][0], number)
                else:
                    table.apply(cursor, change("u" if known else "c", key, as_text))
                    expected[key] = row
            elif step == "delete" and key in expected:
                table.apply(cursor, change("d", key))
                table.apply(cursor, change("", key))
                del expected[key]
            elif step == "truncate":
                table.apply(cursor, change("t", "\0truncate"))
                expected.clear()
            elif step in ("flush", "commit"):
                table.flush(cursor)
                if step == "commit":
                    target.commit()
                    table.committed()
        table.flush(cursor)
        assert rows(target) == [(key, *row) for key, row in sorted(expected.items())]
        target.rollback()
    fresh = TargetTable("public", "t")  # as after a crash: what was committed is still there, and the next run goes on
    with target.cursor() as cursor:
        fresh.prepare(cursor, 1, PLAIN, may_have_rows=True)
    target.rollback()


@pytest.mark.parametrize("limit", ["FLUSH_ROWS", "FLUSH_BYTES"])
def test_more_than_fits_is_written_on_the_way(target, monkeypatch, limit):
    monkeypatch.setattr(postgres_target, limit, 10)
    table = TargetTable("public", "t")
    with target.cursor() as cursor:
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        for number in range(95):
            table.apply(cursor, change("r", number, [str(number), "x", "1"]))
        assert len(rows(target)) == 90
        table.apply(cursor, change("d", 3))
        table.flush(cursor)
    assert len(rows(target)) == 94


def test_a_column_that_was_added_with_a_default_has_it_in_older_rows(target):
    wider = shape_of(
        schema(
            ("id", "int", {}),
            ("a", "string", {}),
            ("b", "int", {}),
            ("c", "string", {"postgres": "varchar(9)", "missing": "it's"}),
        )
    )
    table = TargetTable("public", "t")
    with target.cursor() as cursor:
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "x", "1"]))
        table.prepare(cursor, 2, wider, may_have_rows=True)
        table.apply(cursor, change("c", 2, ["2", "x", "1", None]))
        table.flush(cursor)
        assert rows(target) == [(1, "x", 1, "it's"), (2, "x", 1, None)]
        table.prepare(cursor, 1, PLAIN, may_have_rows=True)  # a column that is gone stays, and is null
        table.apply(cursor, change("c", 3, ["3", "x", "1"]))
        table.flush(cursor)
        assert rows(target) == [(1, "x", 1, None), (2, "x", 1, None), (3, "x", 1, None)]


@pytest.mark.parametrize("between", [True, False], ids=["with a change between", "without"])
@pytest.mark.parametrize("kind", ["text", "integer"])
def test_a_column_that_was_dropped_and_added_again_has_no_older_values(target, between, kind):
    first = shape_of(schema(("id", "int", {}), ("a", "string", {"postgres": "text"})))
    dropped = shape_of(schema(("id", "int", {})))
    again = shape_of(schema(("id", "int", {}), ("a", "string", {"postgres": kind, "missing": "7"})))
    with target.cursor() as cursor:
        table = TargetTable("public", "t")
        table.prepare(cursor, 1, first, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "x"]))
        if kind == "text":  # then the column is neither dropped nor made anew
            cursor.execute("CREATE VIEW v AS SELECT id, a FROM t")
        if between:
            table.prepare(cursor, 2, dropped, may_have_rows=True)
            table.apply(cursor, change("c", 2, ["2"]))
            table.flush(cursor)
            assert rows(target) == [(1, None), (2, None)]
            table = TargetTable("public", "t")
            table.resume(cursor, 2, dropped, certain=True)
        table.prepare(cursor, 3, again, may_have_rows=True)
        table.apply(cursor, change("c", 3, ["3", None]))
        table.flush(cursor)
        default = "7" if kind == "text" else 7
        assert rows(target) == [(1, default), *([(2, default)] if between else []), (3, None)]
        # an earlier version did not say which shape it left: what is there stays
        table = TargetTable("public", "t")
        table.resume(cursor, 1, first, certain=False)
        table.prepare(cursor, 3, again, may_have_rows=True)
        assert rows(target)[-1] == (3, None)


def test_a_column_that_changes_its_type(target):
    longer = shape_of(schema(("id", "int", {}), ("a", "string", {}), ("b", "long", {})))
    table = TargetTable("public", "t")
    with target.cursor() as cursor:
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "x", "1"]))
        table.prepare(cursor, 2, longer, may_have_rows=True)
        table.apply(cursor, change("c", 2, ["2", "x", str(2**40)]))
        table.flush(cursor)
    assert rows(target)[1] == (2, "x", 2**40)


def key_of_table(connection):
    query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass AND contype = 'p'"
    return rows(connection, query)


def test_a_key_that_is_renamed_there_and_back(target):
    """The primary key stayed that of the first schema:
    no statement of the next one fitted it, and the sink stood still.
    """
    renamed = shape_of(schema(("number", "int", {}), ("a", "string", {}), ("b", "int", {}), key=("number",)))
    with target.cursor() as cursor:
        table = TargetTable("public", "t")
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        for number in (1, 2):
            table.apply(cursor, change("c", number, [str(number), "x", "1"]))
        table.prepare(cursor, 2, renamed, may_have_rows=True)
        assert key_of_table(target) == [("PRIMARY KEY (number)",)]
        table.apply(cursor, change("u", 1, ["1", "y", "1"]))
        table.apply(cursor, change("d", 2))
        table.apply(cursor, change("c", 3, ["3", "z", "1"]))
        table.flush(cursor)
        assert rows(target, "SELECT id, number, a FROM t ORDER BY 2") == [(None, 1, "y"), (None, 3, "z")]
        table = TargetTable("public", "t")
        table.resume(cursor, 2, renamed, certain=True)
        table.prepare(cursor, 1, PLAIN, may_have_rows=True)
        table.apply(cursor, change("u", 3, ["3", "w", "1"]))
        table.flush(cursor)
        assert rows(target, "SELECT id, number, a FROM t ORDER BY 1") == [(1, None, "y"), (3, None, "w")]
        assert (key_of_table(target), table.lost_by) == ([("PRIMARY KEY (id)",)], "")


def test_a_key_of_other_columns_is_in_the_rows_already(target):
    other = shape_of(schema(("id", "int", {}), ("a", "string", {}), ("b", "int", {}), key=("a",)))
    tenant = ("tenant", "int", {"missing": "7"})
    wider = shape_of(schema(("id", "int", {}), ("a", "string", {}), ("b", "int", {}), tenant, key=("tenant", "a")))
    with target.cursor() as cursor:
        table = TargetTable("public", "t")
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        for number in (1, 2):
            table.apply(cursor, change("c", number, [str(number), f"x{number}", "1"]))
        table.prepare(cursor, 2, other, may_have_rows=True)
        table.apply(cursor, change("u", "x1", [None, "x1", "2"]))
        table.prepare(cursor, 3, wider, may_have_rows=True)
        table.apply(cursor, change("u", '[7,"x2"]', [None, "x2", "2", "7"]))
        table.apply(cursor, change("c", '[8,"x2"]', ["1", "x2", "2", "8"]))
        table.flush(cursor)
        assert rows(target, "SELECT tenant, a, id, b FROM t ORDER BY 1, 2") == [
            (7, "x1", None, 2), (7, "x2", None, 2), (8, "x2", 1, 2)
        ]  # fmt: skip
        assert (key_of_table(target), table.lost_by) == ([("PRIMARY KEY (tenant, a)",)], "")


@pytest.mark.parametrize(
    ("columns", "key"), [((("a", "string", {}), ("b", "int", {}), ("uid", "int", {})), "uid"), (PLAIN.columns, "b")],
    ids=["dropped and added", "not unique"],
)  # fmt: skip
def test_a_key_that_the_log_does_not_say_of_older_rows_needs_them_again(target, columns, key):
    columns = [column if isinstance(column, tuple) else (column.name, "string", {}) for column in columns]
    other = shape_of(schema(*columns, key=(key,)))
    with target.cursor() as cursor:
        table = TargetTable("public", "t")
        table.prepare(cursor, 1, PLAIN, may_have_rows=False)
        for number in (1, 2):
            table.apply(cursor, change("c", number, [str(number), "x", "1"]))
        table.prepare(cursor, 2, other, may_have_rows=True)
        assert table.lost_by.startswith(f"the key of table public.t is now ({key})")
        table.apply(cursor, change("t", "\0truncate"))
        assert table.lost_by == ""
        table.apply(cursor, change("r", 5, ["5", "5", "5"]))
        table.flush(cursor)
        assert len(rows(target)) == 1


def test_names_of_every_kind(target):
    odd = shape_of(schema(("id", "int", {"column": 'the "key" %s'}), ("_2_", "string", {"column": "2'"})))
    table = TargetTable("my schema", 'my "table" 100%')
    with target.cursor() as cursor:
        table.prepare(cursor, 1, odd, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "x"]))
        target.commit()
        table.apply(cursor, change("u", 1, ["1", "y"]))
        table.flush(cursor)
        table.apply(cursor, change("c", 2, ["2", "y"]))
        table.apply(cursor, change("d", 1))
        table.flush(cursor)
    assert rows(target, 'SELECT * FROM "my schema"."my ""table"" 100%"') == [(2, "y")]
    with target.cursor() as cursor:
        cursor.execute('DROP SCHEMA "my schema" CASCADE')
    target.commit()


def test_long_names_of_more_than_one_byte_a_letter(target):
    """The name of the table to write through was cut in the schema's id, and kept the columns of the first schema."""
    longer = shape_of(schema(("id", "int", {}), ("a", "string", {}), ("b", "int", {}), ("c", "int", {})))
    name = "заказы_клиентов_по_регионам_1"
    table, other = TargetTable("public", name), TargetTable("public", name[:-1] + "2")
    with target.cursor() as cursor:
        for each in (table, other):
            each.prepare(cursor, 1, PLAIN, may_have_rows=False)
            each.apply(cursor, change("u", 1, ["1", "x", "1"]))
        for each in (table, other):
            each.prepare(cursor, 2, longer, may_have_rows=True)
            each.apply(cursor, change("u", 1, ["1", "x", "2", "3"]))
            each.flush(cursor)
            assert rows(target, f"SELECT * FROM {each.name}") == [(1, "x", 2, 3)]


def test_a_table_with_rows_of_somebody_else_is_not_touched(target):
    with target.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
        TargetTable("public", "t").prepare(cursor, 1, PLAIN, may_have_rows=False)
        cursor.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(NotEmpty, match=r"public\.t"):
            TargetTable("public", "t").prepare(cursor, 1, PLAIN, may_have_rows=False)
        TargetTable("public", "t").prepare(cursor, 1, PLAIN, may_have_rows=True)


def test_a_value_that_the_target_does_not_take_is_told_with_its_column_until_that_is_text(target):
    shape = shape_of(schema(("id", "int", {}), ("of", "string", {"postgres": "regclass"})))
    table = TargetTable("public", "t")
    with target.cursor() as cursor:
        table.prepare(cursor, 1, shape, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "missing"]))
        with pytest.raises(
            ValueRefused, match=r'public\.t of the replica, column of: relation "missing" does not exist'
        ):
            table.flush(cursor)
        target.rollback()
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, of text)")
        table = TargetTable("public", "t")
        table.prepare(cursor, 1, shape, may_have_rows=False)
        table.apply(cursor, change("c", 1, ["1", "missing"]))
        table.flush(cursor)
        assert rows(target) == [(1, "missing")]


def test_types_where_the_schema_does_not_name_them(target):
    shape = shape_of(
        schema(
            ("id", "long", {}), ("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, {}),
            ("b", {"type": "int", "logicalType": "date"}, {}), ("c", {"type": "string", "logicalType": "uuid"}, {}),
            ("d", {"type": "long", "logicalType": "timestamp-micros"}, {}), ("e", "bytes", {}), ("f", "boolean", {}),
        )
    )  # fmt: skip
    assert [column.server_type for column in shape.columns] == [
        "bigint", "numeric(9,2)", "date", "uuid", "timestamp with time zone", "bytea", "boolean"
    ]  # fmt: skip


@given(st.lists(st.none() | texts | st.sampled_from(["\\N", "\t", "a\\b\n\r"]), min_size=1, max_size=5))
def test_a_line_is_read_as_it_was_written(row):
    line = copy_line(row).encode() + b"\n"
    assert parse_copy_line(line) == [None if value is None else value.encode() for value in row]


def test_keys():
    assert key_texts(b"a,b", 1) == ["a,b"]
    assert key_texts('["a",1,true,"ü"]'.encode(), 4) == ["a", "1", "t", "ü"]


@pytest.mark.parametrize(("key", "columns"), [(b'["a"]', 2), (b"{}", 2), (b"k", 2), (b"[" * 100_000, 2), (b"\xff", 1)])
def test_a_tombstone_with_a_key_of_somebody_else_is_told_with_its_table(target, key, columns):
    """A rebuild ended with an error that nobody foresaw."""
    shape = shape_of(schema(("id", "int", {}), ("a", "string", {}), key=("id", "a")[:columns]))
    table = TargetTable("public", "t")
    with target.cursor() as cursor:
        table.prepare(cursor, 1, shape, may_have_rows=False)
        table.apply(cursor, Change(0, "t", 1, 1, "", key, None, -1, 0, size=1))
        with pytest.raises(CorruptData, match=rf"^table public\.t of the replica: expected a key of {columns} columns"):
            table.flush(cursor)


def test_a_schema_that_is_not_of_changes_is_corrupt():
    with pytest.raises(CorruptData, match="change records"):
        shape_of('{"type":"record","name":"x","fields":[]}')
