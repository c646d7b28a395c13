"""What the table's encoder writes is what an Avro reader reads, by the schema that goes to the registry."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.postgres_pgoutput import Column, Relation
from mainstem.connect.sources.postgres_table import (
    TRANSACTIONS_SCHEMA,
    NoKey,
    Transaction,
    avro_name,
    describe_table,
    encode_begin,
    encode_end,
    field_names,
    key_of,
)
from mainstem.connect.sources.postgres_types import ServerType, UnsupportedValue
from mainstem.registry import avro
from mainstem.registry.compatibility import can_read
from mainstem.registry.schema import parse

INT, TEXT, DATE = 23, 25, 1082
NAMES = {INT: "integer", TEXT: "text", DATE: "date"}
TRANSACTION = Transaction("7:4096", 4096, 1_700_000_000_000_000)
AT = datetime.fromtimestamp(1_700_000_000, UTC)


def table(columns, key, **options):
    relation = Relation(1, "public", "planes", "d", tuple(Column(name, oid, -1, name in key) for name, oid in columns))
    types = [ServerType(oid, -1, NAMES[oid], builtin=True) for _, oid in columns]
    return describe_table("shop", "shop.planes", relation, types, key, **options)


def read(described, value: bytes):
    return avro.decode(value, lambda _: described.schema)


def change(encoder, operation, before, after, order=1):
    old = None if before is None else encoder.row(before)
    new = None if after is None else encoder.row(after)
    return encoder.change(operation, old, new, TRANSACTION.prefix(), order, TRANSACTION.suffix())


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
values = st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | texts, st.none() | st.dates())


@given(st.none() | values, st.none() | values, st.sampled_from("rcudt"), st.integers(0, 2**40))
def test_a_change_is_read_as_it_was_written(before, after, operation, order):
    described = table([("id", INT), ("name", TEXT), ("born", DATE)], ["id"])

    def server_row(row):
        return None if row is None else [None if value is None else str(value).encode() for value in row]

    value = change(described.with_schema_id(7), operation, server_row(before), server_row(after), order)
    fields = ("id", "name", "born")
    assert value[:5] == b"\0\0\0\0\7"
    assert read(described, value) == {
        "op": operation,
        "before": None if before is None else dict(zip(fields, before, strict=True)),
        "after": None if after is None else dict(zip(fields, after, strict=True)),
        "position": 4096,
        "transaction": {"id": "7:4096", "total_order": order},
        "committed_at": AT,
    }


def test_the_schema_says_what_it_is():
    schema = json.loads(table([("id", INT), ("name", TEXT)], ["id"]).schema)
    assert schema["mainstem"] == "change"
    assert schema["key"] == ["id"]
    assert (schema["namespace"], schema["name"]) == ("shop.planes", "Change")


def test_a_key_of_one_column_is_its_text_and_of_several_a_json_array():
    assert table([("id", INT), ("name", TEXT)], ["name"]).with_schema_id(1).key([b"1", "ü".encode()]) == "ü".encode()
    several = table([("id", INT), ("name", TEXT)], ["name", "id"]).with_schema_id(1)
    assert several.key([b"1", b'a"b']) == b'["a\\"b",1]'


def test_a_table_without_a_key_is_refused():
    with pytest.raises(NoKey, match=r"public\.planes.*primary key"):
        table([("id", INT)], [])


def test_an_unsupported_value_names_its_column_and_the_repair():
    encoder = table([("id", INT), ("born", DATE)], ["id"]).with_schema_id(1)
    with pytest.raises(UnsupportedValue, match=r"public\.planes, column born: the value infinity") as found:
        encoder.row([b"1", b"infinity"])
    assert 'as_text = ["planes.born"]' in found.value.hint


def test_names_that_avro_does_not_allow_are_kept_beside_the_field():
    described = table([("id", INT), ("odd name", TEXT), ("odd-name", TEXT), ("2nd", TEXT)], ["id"])
    row = json.loads(described.schema)["fields"][1]["type"][1]
    assert [field["name"] for field in row["fields"]] == ["id", "odd_name", "odd_name_", "_2nd"]
    assert [field.get("column") for field in row["fields"]] == [None, "odd name", "odd-name", "2nd"]
    assert read(described, change(described.with_schema_id(1), "c", None, [b"1", b"a", b"b", b"c"]))["after"] == {
        "id": 1,
        "odd_name": "a",
        "odd_name_": "b",
        "_2nd": "c",
    }


@given(st.lists(st.text(min_size=1, max_size=5), max_size=6, unique=True))
def test_field_names_are_names_and_stay_apart(columns):
    names = field_names(columns)
    assert len(set(names)) == len(columns)
    assert all(name == avro_name(name) for name in names)


def test_an_added_column_is_a_compatible_schema_with_what_older_rows_have():
    before = table([("id", INT)], ["id"])
    after = table([("id", INT), ("stars", INT)], ["id"], missing={"stars": "5"})
    assert can_read(parse(after.schema), parse(before.schema)) == []
    row = json.loads(after.schema)["fields"][1]["type"][1]
    assert row["fields"][1]["missing"] == "5"


@given(st.dictionaries(st.sampled_from(["shop.a", "shop.b", "shop.ü"]), st.integers(1, 10**6)))
def test_begin_and_end(counts):
    begin = avro.decode(encode_begin(3, TRANSACTION), lambda _: TRANSACTIONS_SCHEMA)
    assert begin == {
        "id": "7:4096", "status": "BEGIN", "position": 4096, "event_count": None, "tables": [], "committed_at": AT
    }  # fmt: skip
    end = avro.decode(encode_end(3, TRANSACTION, counts), lambda _: TRANSACTIONS_SCHEMA)
    assert (end["status"], end["event_count"]) == ("END", sum(counts.values()))
    assert {table["topic"]: table["event_count"] for table in end["tables"]} == counts


def test_the_key_is_found_in_the_schema():
    described = table([("2nd part", INT), ("name", TEXT), ("id", INT)], ["id", "2nd part"])
    assert key_of(described.schema) == ("id", "2nd part") == described.key_columns
