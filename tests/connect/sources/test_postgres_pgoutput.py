"""decode(encode(x)) = x; cut short, lengthened or random bytes raise CorruptData and nothing else."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.postgres_pgoutput import (
    EPOCH_2000_US,
    UNCHANGED,
    Begin,
    Column,
    Commit,
    CorruptReplicationMessage,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    TypeName,
    Update,
    decode,
    format_lsn,
    parse_lsn,
)
from mainstem.core import CorruptData

lsns = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**55)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
rows = st.lists(st.none() | st.just(UNCHANGED) | st.binary(max_size=50), max_size=8)
columns = st.builds(Column, names, oids, st.integers(-1, 2**31 - 1), st.booleans())
messages = st.one_of(
    st.builds(Begin, lsns, times, oids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Message, st.booleans(), lsns, names, st.binary(max_size=50)),
    st.builds(Origin, lsns, names),
    st.builds(
        Relation, oids, names.filter(bool), names, st.sampled_from("dnfi"), st.lists(columns, max_size=6).map(tuple)
    ),
    st.builds(TypeName, oids, names.filter(bool), names),
    st.builds(Insert, oids, rows),
    st.one_of(
        st.builds(Update, oids, st.none(), st.none(), rows),
        st.builds(Update, oids, rows, st.none(), rows),
        st.builds(Update, oids, st.none(), rows, rows),
    ),
    st.one_of(st.builds(Delete, oids, rows, st.none()), st.builds(Delete, oids, st.none(), rows)),
    st.builds(Truncate, st.lists(oids, max_size=5).map(tuple), st.booleans(), st.booleans()),
)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(kind: bytes, values) -> bytes:
    def column(value) -> bytes:
        return b"n" if value is None else b"u" if value is UNCHANGED else b"t" + struct.pack(">i", len(value)) + value

    return kind + struct.pack(">h", len(values)) + b"".join(map(column, values))


def encode(message) -> bytes:
    match message:
        case Begin(lsn, at, xid):
            return b"B" + struct.pack(">qqI", lsn, at - EPOCH_2000_US, xid)
        case Commit(lsn, end, at):
            return b"C" + struct.pack(">Bqqq", 0, lsn, end, at - EPOCH_2000_US)
        case Message(transactional, lsn, prefix, content):
            return (
                b"M" + struct.pack(">Bq", transactional, lsn) + text(prefix) + struct.pack(">i", len(content)) + content
            )
        case Origin(lsn, name):
            return b"O" + struct.pack(">q", lsn) + text(name)
        case Relation(oid, namespace, name, identity, cols):
            described = b"".join(
                struct.pack(">B", c.in_key) + text(c.name) + struct.pack(">Ii", c.type_oid, c.type_modifier)
                for c in cols
            )
            head = b"R" + struct.pack(">I", oid) + text(namespace) + text(name)
            return head + identity.encode() + struct.pack(">h", len(cols)) + described
        case TypeName(oid, namespace, name):
            return b"Y" + struct.pack(">I", oid) + text(namespace) + text(name)
        case Insert(oid, after):
            return b"I" + struct.pack(">I", oid) + row(b"N", after)
        case Update(oid, key, before, after):
            old = row(b"K", key) if key is not None else row(b"O", before) if before is not None else b""
            return b"U" + struct.pack(">I", oid) + old + row(b"N", after)
        case Delete(oid, key, before):
            return b"D" + struct.pack(">I", oid) + (row(b"K", key) if key is not None else row(b"O", before))
        case Truncate(relations, cascade, restart):
            options = cascade | restart << 1
            return b"T" + struct.pack(f">iB{len(relations)}I", len(relations), options, *relations)
    raise AssertionError(message)


@given(messages)
def test_decode_is_the_inverse_of_encode(message):
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_a_message_cut_short_or_with_bytes_left_over_is_refused(message, data):
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptReplicationMessage):
        decode(whole[:cut])
    with pytest.raises(CorruptReplicationMessage, match="left over"):
        decode(whole + b"\0")


@given(st.binary(max_size=200), st.sampled_from(b"IUDBCRYTMOXS"))
def test_random_bytes_raise_only_corrupt_data(noise, kind):
    with contextlib.suppress(CorruptData):
        decode(bytes([kind]) + noise)


@given(st.integers(0, 2**64 - 1))
def test_a_position_is_printed_as_postgresql_prints_it(lsn):
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_a_position_of_five_gigabytes():
    assert format_lsn(5_368_709_120) == "1/40000000"
