"""A pinned table is the last row per key at a position, whichever way it came there."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.errors import RecordsDeleted
from mainstem.client.topics import ensure_topic
from mainstem.core import UserError
from mainstem.process.tables import Change, PinnedTable, TableReader, table_type
from mainstem.records.fingerprint import fingerprint_sum
from mainstem.registry import avro
from mainstem.registry.client import Registry
from mainstem.registry.spark import TopicSchema, row_type
from tests.support.jobs import change_schema
from tests.support.properties import examples
from tests.support.records import delete_before
from tests.support.undecided import DECIDED, VISIBLE, undecided

FLAT = json.dumps({"type": "record", "name": "Plane", "fields": [
    {"name": "tail", "type": "string"}, {"name": "seats", "type": ["null", "int"], "default": None}]})  # fmt: skip
CHANGE = change_schema("fleet.planes", [{"name": "tail", "type": "string"}, {"name": "seats", "type": ["null", "int"]}])
REGISTRY = Registry("http://127.0.0.1:1", patience_seconds=0)


class Log:
    """The records of a topic with two partitions, read by range as a broker gives them."""

    def __init__(self) -> None:
        self.records: list[Change] = []
        self._ends = {0: 0, 1: 0}
        self.reads = 0

    def ends(self):
        return dict(self._ends)

    def append(self, partition, key, value):
        self.records.append(Change(partition, self._ends[partition], key, value))
        self._ends[partition] += 1

    def read(self, start, end):
        self.reads += 1
        return [r for r in self.records if start.get(r.partition, 0) <= r.offset < end[r.partition]]

    def close(self):
        pass


def flat(tail, seats):
    return avro.encode(1, FLAT, {"tail": tail, "seats": seats})


def change(op, tail, seats, at=0):
    row = {"tail": tail, "seats": seats}
    record = {"op": op, "before": row if op == "d" else None, "after": None if op in "dt" else row, "position": 1,
              "transaction": None, "committed_at": at}  # fmt: skip
    return avro.encode(2, CHANGE, record)


def rows_of(table, spark):
    return {row["tail"]: row["seats"] for row in table.frame(spark).collect()}


@pytest.mark.spark
def test_rows_at_a_position_then_only_what_is_new(spark):
    log = Log()
    for tail, seats in (("N1", 1), ("N2", 2), ("N1", 3)):
        log.append(0, tail.encode(), flat(tail, seats))
    table = PinnedTable(TopicSchema("planes", FLAT, 1, {1: FLAT}), REGISTRY, log)
    table.move({0: 2, 1: 0})
    assert rows_of(table, spark) == {"N1": 1, "N2": 2}
    table.move({0: 2, 1: 0})
    assert log.reads == 1
    table.read = None  # somebody took it
    log.append(0, b"N2", None)
    log.append(1, b"N9", flat("N9", None))
    table.move()
    assert rows_of(table, spark) == {"N1": 3, "N9": None}
    assert (table.moved_from, table.position) == ({0: 2, 1: 0}, {0: 4, 1: 1})
    assert [(seen.rows, seen.tombstones) for seen in table.read.partitions.values()] == [(1, 1), (1, 0)]
    table.move({0: 2, 1: 0})  # a replay
    assert rows_of(table, spark) == {"N1": 1, "N2": 2}


@pytest.mark.spark
def test_change_records_count_as_rows(spark):
    log = Log()
    for op, tail, seats in (("r", "N1", 1), ("c", "N2", 2), ("u", "N1", 5), ("d", "N2", 2), ("c", "N3", 3)):
        log.append(0, tail.encode(), change(op, tail, seats))
    schema = TopicSchema("fleet.planes", CHANGE, 2, {2: CHANGE})
    table = PinnedTable(schema, REGISTRY, log)
    table.move()
    assert rows_of(table, spark) == {"N1": 5, "N3": 3}
    assert table_type(row_type(spark, schema), schema).simpleString() == "struct<tail:string,seats:int>"
    log.append(0, b"", change("t", "", None))
    log.append(0, b"N7", change("c", "N7", 7))
    table.move()
    assert rows_of(table, spark) == {"N7": 7}


def test_what_cannot_be_decoded_is_counted_and_left_out():
    log = Log()
    log.append(0, b"N1", change("c", "N1", 1))
    log.append(0, b"N1", b"garbage")
    log.append(0, b"N1", change("c", "N1", 1)[:-3])
    table = PinnedTable(TopicSchema("fleet.planes", CHANGE, 2, {2: CHANGE}), REGISTRY, log)
    table.move()
    seen = table.read.partitions[0]
    assert (seen.rows, seen.quarantined, len(table)) == (1, 2, 1)
    assert seen.hash == fingerprint_sum((record.key, record.value) for record in log.records)


def test_what_nobody_took_for_the_audit_stays_in_the_books():
    """A batch that was committed before a crash is skipped; what its table read was not told, and and was WRONG."""
    log = Log()
    for tail in ("N1", "N2"):
        log.append(0, tail.encode(), flat(tail, 1))
    table = PinnedTable(TopicSchema("planes", FLAT, 1, {1: FLAT}), REGISTRY, log)
    table.move()
    log.append(0, b"N1", None)
    log.append(1, b"N9", flat("N9", 9))
    table.move()
    assert (table.moved_from, table.position) == ({}, {0: 3, 1: 1})
    assert [(seen.rows, seen.tombstones) for seen in table.read.partitions.values()] == [(2, 1), (1, 0)]
    sums = (fingerprint_sum((r.key, r.value) for r in log.records if r.partition == p) for p in (0, 1))
    assert [seen.hash for seen in table.read.partitions.values()] == list(sums)
    table.read = None  # taken
    log.append(0, b"N3", flat("N3", 3))
    table.move()
    assert (table.moved_from, table.read.partitions[0].rows) == ({0: 3, 1: 1}, 1)


tails = st.sampled_from(["A", "B", "C", "D"])
operations = st.lists(
    st.tuples(st.sampled_from(["c", "u", "d", "tombstone", "t"]), tails, st.integers(0, 9)), max_size=25
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(operations, st.data())
def test_any_way_to_a_position_gives_the_same_rows(done, data):
    log, model, states = Log(), {0: {}, 1: {}}, [({0: 0, 1: 0}, {})]
    for op, tail, seats in done:
        partition = 0 if tail in "AB" else 1
        log.append(partition, tail.encode(), None if op == "tombstone" else change(op, tail, seats))
        if op == "t":
            model[partition] = {}
        elif op in ("d", "tombstone"):
            model[partition].pop(tail, None)
        else:
            model[partition][tail] = seats
        states.append((log.ends(), model[0] | model[1]))
    table = PinnedTable(TopicSchema("fleet.planes", CHANGE, 2, {2: CHANGE}), REGISTRY, log)
    for _ in range(4):
        position, expected = data.draw(st.sampled_from(states))
        table.move(position)
        last = {key: held[-1].value for key, held in table._rows.items()}
        rows = {key: avro.decode(value, lambda _: CHANGE)["after"]["seats"] for key, value in last.items()}
        assert rows == {tail.encode(): seats for tail, seats in expected.items()}


times = st.integers(0, 6)
timed = st.lists(st.tuples(st.sampled_from("cudt"), st.sampled_from("AB"), st.integers(0, 9), times), max_size=15)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(timed, st.integers(0, 15))
def test_the_history_has_of_each_time_the_row_that_held_then(done, cut):
    """Against the changes laid over each other in the order of their times; of one time in that of their arrival."""
    log = Log()
    for op, tail, seats, at in done:
        log.append(0, tail.encode(), change(op, tail, seats, at))
    schema = TopicSchema("fleet.planes", CHANGE, 2, {2: CHANGE})
    table = PinnedTable(schema, REGISTRY, log, history="committed_at")
    table.move({0: min(cut, len(done)), 1: 0})
    table.move()
    found = [(avro.decode(value, lambda _: CHANGE)["after"], since, until) for value, since, until in table._versions()]
    for now in range(7):
        rows = {
            row["tail"]: row["seats"] for row, since, until in found if since <= now and (until is None or now < until)
        }
        assert rows == held_at(done, now)


def held_at(done, now):
    """The rows at a time. A truncation ends the rows that had arrived before it."""
    seen, changes = [], []
    for op, tail, seats, at in done:
        if op == "t":
            changes += [(at, "d", each, None) for each in seen]
        elif op != "d" or tail in seen:
            changes.append((at, op, tail, seats))
            seen = [*dict.fromkeys([*seen, tail])]
    rows = {}
    for at, op, tail, seats in sorted(changes, key=lambda each: each[0]):
        if at <= now:
            rows.pop(tail, None)
            if op != "d":
                rows[tail] = seats
    return rows


@pytest.mark.spark
def test_a_table_with_its_history_has_all_versions_of_its_rows(spark):
    log = Log()
    at = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for op, seats, time in (("c", 1, at[0]), ("u", 2, at[2]), ("d", 2, at[3])):
        log.append(0, b"N1", change(op, "N1", seats, time))
    log.append(0, b"N1", None)
    schema = TopicSchema("fleet.planes", CHANGE, 2, {2: CHANGE})
    table = PinnedTable(schema, REGISTRY, log, history="committed_at")
    table.move()
    rows = sorted((row["seats"], row["_since"], row["_until"]) for row in table.frame(spark).collect())
    assert rows == [(1, *naive(at[0], at[2])), (2, *naive(at[2], at[3]))]
    kind = table_type(row_type(spark, schema), schema, "committed_at")
    assert kind.simpleString() == "struct<tail:string,seats:int,_since:timestamp,_until:timestamp>"
    with pytest.raises(UserError, match="expected a column seats of type timestamp for its history, found none"):
        table_type(row_type(spark, schema), schema, "seats")


def naive(*times):
    return [time.replace(tzinfo=None) for time in times]


def test_a_key_that_is_an_empty_text_is_counted_as_what_it_is(log_connection):
    """It was counted as no key, and the audit of a job that joins such a table never balanced."""
    ensure_topic(log_connection, "empty-key", 1)
    sent = [(b"", flat("", 1)), (None, flat("none", 2)), (b"", flat("", 3)), (b"a", flat("a", 4)), (b"a", None)]
    append(log_connection, "empty-key", sent)
    table = PinnedTable(
        TopicSchema("empty-key", FLAT, 1, {1: FLAT}), REGISTRY, TableReader(log_connection, "empty-key")
    )
    table.move()
    table.close()
    assert (table.read.partitions[0].hash, len(table)) == (fingerprint_sum(sent), 2)


def test_a_table_has_nothing_of_an_aborted_or_open_transaction(log_connection):
    topic = "table-undecided"
    ensure_topic(log_connection, topic, 1)
    table = PinnedTable(TopicSchema(topic, FLAT, 1, {1: FLAT}), REGISTRY, TableReader(log_connection, topic))
    with undecided(log_connection, topic, lambda word: [(topic, word.encode(), flat(word, 1))]) as commit:
        table.move()
        assert set(table._rows) == {word.encode() for word in VISIBLE}
        commit()
        table.move()
        assert set(table._rows) == {word.encode() for word in DECIDED}
    table.close()


def test_a_table_whose_next_records_were_deleted_is_no_table_with_a_hole(log_connection):
    """It went on from the first record that was left: rows stayed as they were before what had been deleted."""
    topic = "pinned-hole"
    ensure_topic(log_connection, topic, 1)
    append(log_connection, topic, [(b"a", flat("a", 1)), (b"b", flat("b", 1))])
    schema = TopicSchema(topic, FLAT, 1, {1: FLAT})
    table = PinnedTable(schema, REGISTRY, TableReader(log_connection, topic))
    table.move()
    append(log_connection, topic, [(b"a", None)])
    append(log_connection, topic, [(b"c", flat("c", 1))])
    delete_before(log_connection, topic, 3)
    with pytest.raises(RecordsDeleted, match="pinned-hole, partition 0: records were deleted before they were read"):
        table.move()
    table.close()
    anew = PinnedTable(schema, REGISTRY, TableReader(log_connection, topic))
    anew.move()
    anew.close()
    assert [held[-1].value for held in anew._rows.values()] == [flat("c", 1)]
