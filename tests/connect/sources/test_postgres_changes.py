"""Messages of the server become records: which, in which order, with which counts;
and nothing twice after a restart.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sources.postgres_changes import UNCHANGED_HEADER, ChangeTranslator
from mainstem.connect.sources.postgres_pgoutput import (
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
    Update,
)
from mainstem.connect.sources.postgres_position import SourcePosition
from mainstem.connect.sources.postgres_table import TRANSACTIONS_SCHEMA, TRUNCATE_KEY, describe_table
from mainstem.connect.sources.postgres_types import ServerType
from mainstem.registry import avro

START = SourcePosition("streaming", "77", "shop", "slot", lsn=100, commit_lsn=90)
COLUMNS = (Column("id", 23, -1, True), Column("text", 25, -1, False))
RELATIONS = {oid: Relation(oid, "public", name, "d", COLUMNS) for oid, name in ((1, "a"), (2, "b"))}
FOREIGN = Relation(3, "public", "not_ours", "d", COLUMNS)
TYPES = [ServerType(23, -1, "integer", builtin=True), ServerType(25, -1, "text", builtin=True)]
TABLES = {
    oid: describe_table("s", f"s.{relation.name}", relation, TYPES, ["id"]) for oid, relation in RELATIONS.items()
}


class Log:
    """What was sent, decoded."""

    def __init__(self, position=START, partitions=1, present=(b"present",)):
        self.records = []
        self.present = list(present)
        self.translator = ChangeTranslator(
            position,
            transactions=("s.transactions", 9),
            partitions=partitions,
            send=self.send,
            describe=lambda relation: (
                TABLES[relation.oid].with_schema_id(relation.oid) if relation.oid in TABLES else None
            ),
            read_columns=lambda xid, table, row, places: list(self.present),
        )
        for relation in (*RELATIONS.values(), FOREIGN):
            self.translator.handle(relation)

    def send(self, topic, partition, key, value, headers=()):
        schemas = {oid: table.schema for oid, table in TABLES.items()} | {9: TRANSACTIONS_SCHEMA}
        decoded = None if value is None else avro.decode(value, schemas.__getitem__)
        self.records.append((topic, partition, key, decoded, list(headers)))

    def handle(self, *messages):
        for message in messages:
            self.translator.handle(message)
        return self

    def rows(self):
        """(topic, key, op, before, after) of the tables' records."""
        found = []
        for topic, _, key, value, _ in self.records:
            if topic != "s.transactions":
                op, old, new = (
                    ("tombstone", None, None) if value is None else (value["op"], value["before"], value["after"])
                )
                found.append((topic, key, op, old, new))
        return found

    def transactions(self):
        return [
            (value["id"], value["status"], value["event_count"])
            for topic, _, _, value, _ in self.records
            if topic == "s.transactions"
        ]


def row(number, text="x"):
    return [str(number).encode(), None if text is None else text.encode()]


def transaction(commit_lsn, *changes, xid=5):
    return [
        Begin(commit_lsn, 1_700_000_000_000_000, xid),
        *changes,
        Commit(commit_lsn, commit_lsn + 8, 1_700_000_000_000_000),
    ]


def test_insert_update_and_delete():
    log = Log().handle(
        *transaction(120, Insert(1, row(1)), Update(1, None, None, row(1, "y")), Delete(1, row(1, None), None))
    )
    new, changed = {"id": 1, "text": "x"}, {"id": 1, "text": "y"}
    assert log.rows() == [
        ("s.a", b"1", "c", None, new),
        ("s.a", b"1", "u", None, changed),
        ("s.a", b"1", "d", {"id": 1, "text": None}, None),
        ("s.a", b"1", "tombstone", None, None),
    ]
    assert log.transactions() == [("5:120", "BEGIN", None), ("5:120", "END", 3)]
    assert [r[3]["transaction"]["total_order"] for r in log.records if r[0] == "s.a" and r[3]] == [1, 2, 3]
    assert log.translator.position.lsn == 128
    assert log.translator.position.commit_lsn == 120


def test_with_identity_full_the_old_row_is_there():
    log = Log().handle(*transaction(120, Update(1, None, row(1), row(1, "y")), Delete(1, None, row(1, "y"))))
    assert log.rows()[0][3] == {"id": 1, "text": "x"}
    assert log.rows()[1][3] == {"id": 1, "text": "y"}


def test_a_new_key_is_a_delete_and_an_insert():
    for update in (Update(1, row(1, None), None, row(2)), Update(1, None, row(1), row(2))):
        log = Log().handle(*transaction(120, update))
        assert [(key, op) for _, key, op, _, _ in log.rows()] == [(b"1", "d"), (b"1", "tombstone"), (b"2", "c")]
        assert log.transactions()[-1] == ("5:120", "END", 2)


def test_a_truncate_goes_to_every_partition():
    log = Log(partitions=3).handle(*transaction(120, Truncate((1, 2), False, False), Insert(1, row(1))))
    assert [(r[0], r[1], r[2], r[3]["op"]) for r in log.records if r[0] == "s.b"] == [
        ("s.b", partition, TRUNCATE_KEY, "t") for partition in range(3)
    ]
    assert log.transactions()[-1] == ("5:120", "END", 7)


def test_a_value_that_was_not_sent_again_comes_from_the_old_row_or_from_the_database():
    log = Log().handle(*transaction(120, Update(1, None, row(1, "old"), [b"1", UNCHANGED])))
    assert log.rows()[0][4] == {"id": 1, "text": "old"}
    assert log.records[1][4] == []
    log = Log().handle(*transaction(120, Update(1, None, None, [b"1", UNCHANGED])))
    assert log.rows()[0][4] == {"id": 1, "text": "present"}
    assert log.records[1][4] == [(UNCHANGED_HEADER, b'["text"]')]
    log = Log(present=[None]).handle(*transaction(120, Update(1, None, None, [b"1", UNCHANGED])))
    assert log.rows()[0][4] == {"id": 1, "text": None}


def test_a_key_that_was_not_sent_again_comes_from_the_old_key():
    """A key of 2 kB is stored apart from its row: the update does not have it, and the old key comes with it."""
    log = Log().handle(*transaction(120, Update(1, row(1, None), None, [UNCHANGED, b"new"])))
    assert log.rows() == [("s.a", b"1", "u", None, {"id": 1, "text": "new"})]
    assert log.records[1][4] == []
    log = Log().handle(*transaction(120, Update(1, row(1, None), None, [UNCHANGED, UNCHANGED])))
    assert log.rows() == [("s.a", b"1", "u", None, {"id": 1, "text": "present"})]
    assert log.records[1][4] == [(UNCHANGED_HEADER, b'["text"]')]


def test_a_transaction_without_changes_of_ours_only_moves_the_position():
    log = Log().handle(
        *transaction(120, Origin(1, "elsewhere"), Message(True, 5, "mainstem", b"beat"), Insert(3, row(1)))
    )
    assert log.records == []
    assert log.translator.pending
    assert log.translator.position.lsn == 128


def test_between_transactions_the_position_follows_the_server():
    log = Log()
    log.translator.advance(90)
    assert not log.translator.pending
    log.translator.advance(110)
    assert (log.translator.pending, log.translator.position.lsn) == (True, 110)
    log.handle(Begin(120, 1, 5))
    log.translator.advance(115)
    assert log.translator.position.lsn == 110


def test_what_is_in_the_log_already_is_dropped():
    log = Log().handle(*transaction(92, Insert(1, row(1))), *transaction(120, Insert(1, row(2))))
    assert [key for _, key, *_ in log.rows()] == [b"2"]
    assert log.translator.dropped == 1
    assert log.transactions() == [("5:120", "BEGIN", None), ("5:120", "END", 1)]


@pytest.mark.parametrize(
    "messages",
    [[Insert(1, row(1))], [Begin(1, 1, 1), Begin(2, 1, 1)], [Commit(1, 2, 3)], [Begin(1, 1, 1), Insert(77, row(1))]],
)
def test_messages_out_of_order_are_corrupt(messages):
    with pytest.raises(CorruptReplicationMessage):
        Log().handle(*messages)


changes = st.lists(
    st.one_of(
        st.builds(lambda oid, n: Insert(oid, row(n)), st.sampled_from([1, 2, 3]), st.integers(0, 9)),
        st.builds(lambda oid, n: Update(oid, None, None, row(n, "y")), st.sampled_from([1, 2]), st.integers(0, 9)),
        st.builds(
            lambda oid, n, m: Update(oid, row(n, None), None, row(m)),
            st.sampled_from([1, 2]),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        st.builds(lambda oid, n: Delete(oid, row(n, None), None), st.sampled_from([1, 2]), st.integers(0, 9)),
        st.builds(lambda oid: Truncate((oid,), False, False), st.sampled_from([1, 2])),
    ),
    max_size=8,
)


@given(st.lists(changes, min_size=1, max_size=5), st.data())
def test_a_restart_anywhere_gives_the_same_log(transactions, data):
    """The source commits after any message, is killed after any other, and goes on from the committed position."""
    stream = [m for number, each in enumerate(transactions) for m in transaction(120 + 20 * number, *each)]
    whole = Log().handle(*stream)

    committed, position, at = [], START, 0
    while at < len(stream):
        log = Log(position)
        # The server sends whole transactions that end after the position, from the start of each.
        first = next(
            (i for i, m in enumerate(stream) if isinstance(m, Begin) and m.commit_lsn + 8 > position.lsn), len(stream)
        )
        commit_after = data.draw(st.integers(at + 1, len(stream)), label="commit after")
        log.handle(*stream[first:commit_after])
        committed += log.records
        position = msgspec.json.decode(msgspec.json.encode(log.translator.checkpoint()), type=SourcePosition)
        log.translator.committed()
        log.handle(*stream[commit_after : data.draw(st.integers(commit_after, len(stream)), label="killed after")])
        at = commit_after
    assert committed == whole.records
