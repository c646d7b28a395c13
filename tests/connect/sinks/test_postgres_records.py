"""Records as the source writes them, and what somebody else may write in between."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sinks.postgres_order import Change
from mainstem.connect.sinks.postgres_records import Records, TableCount, TransactionRecord
from mainstem.connect.sources.postgres_changes import UNCHANGED_HEADER
from mainstem.connect.sources.postgres_pgoutput import Column, Relation
from mainstem.connect.sources.postgres_table import (
    TRANSACTIONS_SCHEMA,
    Transaction,
    describe_table,
    encode_begin,
    encode_end,
)
from mainstem.connect.sources.postgres_types import ServerType
from mainstem.core import CorruptData, TopicPartition
from mainstem.registry import avro
from mainstem.registry.errors import NotFound

CHANGE, TRANSACTION, ORDER = 1, 2, 3
INT, TEXT = 23, 25
PAID = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"status","type":"string"}]}'
AT = Transaction("7:4096", 4096, 1_700_000_000_000_000)
PLANES, TRANSACTIONS = TopicPartition("shop.planes", 0), TopicPartition("shop.transactions", 0)


def described_planes():
    columns = (Column("id", INT, -1, True), Column("name", TEXT, -1, False))
    relation = Relation(1, "public", "planes", "d", columns)
    types = [ServerType(INT, -1, "integer", builtin=True), ServerType(TEXT, -1, "text", builtin=True)]
    return describe_table("shop", PLANES.topic, relation, types, ["id"])


PLANE = described_planes()
SCHEMAS = {CHANGE: PLANE.schema, TRANSACTION: TRANSACTIONS_SCHEMA, ORDER: PAID}
FORGED = {
    4: '{"mainstem": "change"}',
    5: '{"mainstem": "change", "key": [], "fields": [{"name": "before", "type": []}]}',
}


def schema_of(schema_id):
    try:
        return (SCHEMAS | FORGED)[schema_id]
    except KeyError:
        raise NotFound(f"no schema {schema_id}") from None


@pytest.fixture
def records():
    return Records("copy", schema_of)


def change(operation, row):
    encoder = PLANE.with_schema_id(CHANGE)
    encoded = None if row is None else encoder.row(row)
    return encoder.change(operation, None, encoded, AT.prefix(), 3, AT.suffix())


def taken(records, value, key=b"5", headers=()):
    return records.change(PLANES, 8, key, value, dict(headers), 99)


def test_what_the_source_writes(records):
    value = change("u", [b"5", b"Ida"])
    size = len(value) + 1
    found = taken(records, value, headers={UNCHANGED_HEADER: b'["name"]'})
    assert found == Change(8, "7:4096", 4096, 3, "u", b"5", ["5", "Ida"], CHANGE, 99, ("name",), size)
    assert taken(records, change("d", None)).row is None
    assert records.tombstone(PLANES, 9, b"5", ("7:4096", 4096, 3), 98) == Change(
        9, "7:4096", 4096, 3, "", b"5", None, -1, 98, size=1
    )
    begin, end = encode_begin(TRANSACTION, AT), encode_end(TRANSACTION, AT, {PLANES.topic: 2})
    assert records.transaction(TRANSACTIONS, 0, begin) == TransactionRecord("7:4096", "BEGIN", 4096)
    assert records.transaction(TRANSACTIONS, 1, end).tables == (TableCount(PLANES.topic, 2),)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"{}", "expected 00 and a schema id"),
        (avro.encode(ORDER, PAID, {"id": "1", "status": "paid"}), "schema 3: expected a schema of change records"),
        (b"\0\0\0\0\7\1", "no schema 7"),
        (change("c", [b"5", b"Ida"])[:9], ""),
        (b"\0\0\0\0\4\1", "KeyError"),
        (b"\0\0\0\0\5\1", "ValueError"),
        (change("c", None), "operation 'c' without a row"),
        (change("d", [b"5", b"Ida"]), "operation 'd' with a row"),
    ],
)
def test_what_is_no_change_is_told_with_its_place(records, value, said):
    """A replica ended without a word of where, or with an error that nobody foresaw."""
    with pytest.raises(CorruptData, match=rf"^sink copy: shop\.planes-0 offset 8: expected a change .*{said}") as told:
        taken(records, value)
    assert "look for who else writes to this topic" in told.value.hint


@pytest.mark.parametrize("headers", [{}, {UNCHANGED_HEADER: b"name"}, {UNCHANGED_HEADER: b'[["name"]]'}])
def test_what_comes_with_a_value_may_be_somebody_elses_too(records, headers):
    with pytest.raises(CorruptData, match=r"^sink copy: shop\.planes-0 offset 8: expected a change"):
        taken(records, change("c", [b"5", b"Ida"]), key=b"5" if headers else None, headers=headers)


def test_a_record_with_neither_key_nor_value_is_no_tombstone(records):
    with pytest.raises(CorruptData, match=r"^sink copy: shop\.planes-0 offset 8: .* neither key nor value"):
        records.tombstone(PLANES, 8, None, ("", 0, 0), 99)


@pytest.mark.parametrize(
    "value", [None, b"{}", avro.encode(ORDER, PAID, {"id": "1", "status": "paid"}), change("d", None)]
)
def test_what_is_no_transaction_is_told_with_its_place(records, value):
    """A record of others that has a status, too, was taken for one."""
    with pytest.raises(CorruptData, match=r"^sink copy: shop\.transactions-0 offset 8: expected the beginning or"):
        records.transaction(TRANSACTIONS, 8, value)


@given(st.sampled_from([CHANGE, TRANSACTION, ORDER]), st.binary(max_size=60))
def test_random_bytes_are_corrupt_or_a_record(schema_id, data):
    records, value = Records("copy", schema_of), b"\0\0\0\0" + bytes([schema_id]) + data
    for read in (lambda: taken(records, value), lambda: records.transaction(TRANSACTIONS, 8, value)):
        with contextlib.suppress(CorruptData):
            read()
