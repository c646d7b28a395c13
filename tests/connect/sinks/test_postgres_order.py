"""However the records of a source's transactions arrive, they are handed out whole and in commit order."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.connect.sinks import postgres_order
from mainstem.connect.sinks.postgres_order import Change, TransactionOrder
from mainstem.core import CorruptData, TopicPartition

TRANSACTIONS = TopicPartition("s.transactions", 0)


def change(offset, transaction, order, operation="c", key=b"k"):
    return Change(offset, f"t{transaction}" if transaction else "", transaction, order, operation, key, ["x"], 1, 7)


class Written:
    """The log as a source writes it: (partition, what is at each offset)."""

    def __init__(self, transactions, partitions):
        """`transactions`: of each, the places (topic, partition) of its changes; "d" adds a tombstone."""
        self.partitions = {TopicPartition(topic, n): [] for topic, count in partitions.items() for n in range(count)}
        self.transactions = []
        for number, places in enumerate(transactions, 1):
            self.transactions.append(("BEGIN", number, {}))
            counts = {}
            for order, (topic, partition, operation) in enumerate(places, 1):
                counts[topic] = counts.get(topic, 0) + 1
                log = self.partitions[TopicPartition(topic, partition)]
                log.append(change(len(log), number, order, operation))
                if operation == "d":
                    log.append(change(len(log), number, order, ""))
            self.transactions.append(("END", number, counts))

    def ends(self):
        return {p: len(log) for p, log in self.partitions.items()} | {TRANSACTIONS: len(self.transactions)}

    def deliver(self, order, partition, offset):
        if partition != TRANSACTIONS:
            order.add(partition, self.partitions[partition][offset])
            return
        status, number, counts = self.transactions[offset]
        if status == "BEGIN":
            order.begin(f"t{number}", number, offset, 1)
        else:
            order.end(f"t{number}", counts, offset, 1)


def starts(written):
    return dict.fromkeys(written.ends(), 0)


def drain(order):
    batches = []
    while (batch := order.next()) is not None:
        batches.append(batch)
    return batches


places = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.sampled_from("cud"))
logs = st.lists(st.lists(places, max_size=5), max_size=6).map(lambda ts: Written(ts, {"a": 2, "b": 2}))
singles = st.lists(st.lists(places.map(lambda p: (p[0], 0, p[2])), max_size=5), max_size=6).map(
    lambda ts: Written(ts, {"a": 1, "b": 1})
)


@given(logs | singles, st.integers(0, 2**32))
def test_every_transaction_comes_whole_and_in_order_also_after_restarts(written, seed):
    chance = random.Random(seed)
    offsets, handed_out = starts(written), []
    order = TransactionOrder(TRANSACTIONS, offsets)
    read = dict(offsets)
    while any(read[p] < end for p, end in written.ends().items()):
        ready = [p for p, end in sorted(written.ends().items()) if read[p] < end]
        partition = chance.choice(ready)
        written.deliver(order, partition, read[partition])
        read[partition] += 1
        for batch in drain(order):
            assert batch.whole
            numbers = {c.position for _, c in batch.changes if c.operation}
            assert len(numbers) <= 1
            handed_out += [(p, c.offset) for p, c in batch.changes]
        if chance.random() < 0.1:  # a crash: the target has the offsets of its last commit
            order, read = TransactionOrder(TRANSACTIONS, order.offsets), dict(order.offsets)
    assert order.offsets == written.ends()
    assert sorted(handed_out) == sorted((p, c.offset) for p, log in written.partitions.items() for c in log)
    positions = [written.partitions[p][offset].position for p, offset in handed_out]
    changes_only = [
        n for n, (p, offset) in zip(positions, handed_out, strict=True) if written.partitions[p][offset].operation
    ]
    assert changes_only == sorted(changes_only)


def test_rows_of_a_topic_with_several_partitions_come_in_the_sources_order():
    written = Written([[("a", 1, "c"), ("a", 0, "t"), ("a", 1, "t"), ("a", 0, "c")]], {"a": 2})
    order = TransactionOrder(TRANSACTIONS, starts(written))
    for partition, end in written.ends().items():
        for offset in range(end):
            written.deliver(order, partition, offset)
    (batch,) = drain(order)
    assert [c.order for _, c in batch.changes] == [1, 2, 3, 4]


def test_a_large_transaction_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(postgres_order, "PIECE_ROWS", 3)
    written = Written([[("a", 0, "c")] * 8], {"a": 1})
    order = TransactionOrder(TRANSACTIONS, starts(written))
    written.deliver(order, TRANSACTIONS, 0)
    sizes = []
    partition = TopicPartition("a", 0)
    for offset in range(8):
        written.deliver(order, partition, offset)
        sizes += [(len(batch.changes), batch.whole) for batch in drain(order)]
    assert sizes == [(3, False), (3, False)]
    written.deliver(order, TRANSACTIONS, 1)
    assert [(len(batch.changes), batch.whole) for batch in drain(order)] == [(2, True)]


def test_a_transaction_of_large_rows_comes_in_pieces(monkeypatch):
    """Rows of 100 KB were 2 GB before there were enough of them."""
    monkeypatch.setattr(postgres_order, "PIECE_BYTES", 250)
    partition = TopicPartition("a", 0)
    order = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0, partition: 0})
    order.begin("t1", 1, 0)
    sizes, waiting = [], []
    for offset in range(8):
        order.add(partition, msgspec.structs.replace(change(offset, 1, offset + 1), size=100))
        waiting.append(order.waiting_bytes(partition))
        sizes += [(len(batch.changes), batch.whole) for batch in drain(order)]
    assert sizes == [(3, False), (3, False)]
    assert waiting == [100, 200, 300] * 2 + [100, 200]


def test_more_is_needed_of_a_transaction_that_is_kept_whole():
    """A partition that was full was read no further, and its transaction never became whole."""
    partitions = [TopicPartition("a", number) for number in range(2)]
    order = TransactionOrder(TRANSACTIONS, dict.fromkeys([TRANSACTIONS, *partitions], 0))
    order.add(partitions[0], change(0, 1, 1))
    assert not order.needs(partitions[0]), "what it belongs to is not known yet"
    order.begin("t1", 1, 0)
    assert [order.needs(each) for each in (*partitions, TRANSACTIONS)] == [True, True, False]
    order.add(partitions[0], change(1, 2, 1))
    assert [order.needs(each) for each in partitions] == [False, True]
    single = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0, partitions[0]: 0})
    single.begin("t1", 1, 0)
    assert not single.needs(partitions[0]), "it is handed out in pieces"
    rebuilt = TransactionOrder(
        TRANSACTIONS, dict.fromkeys([TRANSACTIONS, *partitions], 0), barrier=dict.fromkeys(partitions, 1)
    )
    rebuilt.add(partitions[0], change(0, 1, 1))
    assert [rebuilt.needs(each) for each in partitions] == [False, True]


def test_a_transaction_without_end_belongs_to_the_snapshot_that_follows():
    order = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0, TopicPartition("a", 0): 0})
    order.begin("t1", 1, 0)
    order.add(TopicPartition("a", 0), change(0, 1, 1))
    order.begin("t2", 2, 1)
    order.add(TopicPartition("a", 0), change(1, 2, 1, "t"))
    assert order.next() is None
    order.end("t2", {"a": 1}, 2)
    batch = order.next()
    assert batch is not None
    assert [c.offset for _, c in batch.changes] == [0, 1]
    assert batch.records == 3


def test_an_end_without_begin_is_corrupt():
    order = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0})
    with pytest.raises(CorruptData, match=r"^s\.transactions-0 offset 0: transaction t1 ends"):
        order.end("t1", {}, 0)


@given(singles | logs, st.data())
def test_after_compaction_everything_below_the_barrier_comes_as_one(written, data):
    """Any records but the last of a key may be gone; what is left is handed out once, as one."""
    kept = {
        p: [c for c in log if c is log[-1] or not data.draw(st.booleans(), label=f"{p} {c.offset} is compacted")]
        for p, log in written.partitions.items()
    }
    gone = sum(map(len, written.partitions.values())) - sum(map(len, kept.values()))
    order = TransactionOrder(TRANSACTIONS, starts(written))
    for offset in range(len(written.transactions)):
        written.deliver(order, TRANSACTIONS, offset)
    for partition, log in kept.items():
        for record in log:
            order.add(partition, record)
        order.reached(partition, len(written.partitions[partition]))
    drain(order)
    head = order.incomplete()
    changes_gone = any(c.operation and c not in kept[p] for p, log in written.partitions.items() for c in log)
    assert (head is not None) == changes_gone
    if not changes_gone:
        return
    assert gone
    assert head is not None
    assert order.read_past(head, written.ends())

    rebuilt = TransactionOrder(TRANSACTIONS, starts(written), barrier=written.ends())
    for partition, log in kept.items():
        for record in log:
            rebuilt.add(partition, record)
        rebuilt.reached(partition, len(written.partitions[partition]))
    assert rebuilt.next() is None, "what has been announced is not known yet"
    for offset in range(len(written.transactions)):
        written.deliver(rebuilt, TRANSACTIONS, offset)
    batches = drain(rebuilt)
    assert [batch.whole for batch in batches] == [True]
    assert batches[0].transactions == len(written.transactions) // 2
    assert sorted((p, c.offset) for p, c in batches[0].changes) == sorted(
        (p, c.offset) for p, log in kept.items() for c in log
    )


def test_a_tombstone_without_its_delete_record_shows_compaction():
    partition = TopicPartition("a", 0)
    order = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0, partition: 3})
    order.add(partition, change(3, 1, 1, ""))
    assert not order.compacted, "its delete record is just below where we begin"
    order.add(partition, change(5, 1, 1, ""))
    assert order.compacted


def test_it_is_not_missing_before_the_end_was_read():
    written = Written([[("a", 0, "c")]], {"a": 1})
    order = TransactionOrder(TRANSACTIONS, starts(written))
    written.deliver(order, TRANSACTIONS, 0)
    written.deliver(order, TRANSACTIONS, 1)
    head = order.incomplete()
    assert head is not None
    assert not order.read_past(head, written.ends())
    written.deliver(order, TopicPartition("a", 0), 0)
    assert order.incomplete() is None


def test_a_tombstone_that_arrives_after_its_delete_is_not_left_behind():
    partition = TopicPartition("a", 0)
    order = TransactionOrder(TRANSACTIONS, {TRANSACTIONS: 0, partition: 0})
    order.begin("t1", 1, 0)
    order.end("t1", {"a": 1}, 1)
    order.add(partition, change(0, 1, 1, "d"))
    assert [batch.whole for batch in drain(order)] == [True]
    order.add(partition, change(1, 1, 1, ""))
    assert [len(batch.changes) for batch in drain(order)] == [1]
    assert order.offsets[partition] == 2


def test_its_position_is_past_a_marker_only_where_nothing_waits():
    written = Written([[("a", 0, "c")]], {"a": 1})
    (table,) = written.partitions
    order = TransactionOrder(TRANSACTIONS, starts(written))
    written.deliver(order, table, 0)
    order.reached(table, 2)
    assert (order.position(table), order.position(TRANSACTIONS)) == (0, 0)
    written.deliver(order, TRANSACTIONS, 0)
    written.deliver(order, TRANSACTIONS, 1)
    assert order.position(TRANSACTIONS) == 0
    drain(order)
    assert (order.position(table), order.position(TRANSACTIONS)) == (2, 2)
    assert (order.offsets[table], order.offsets[TRANSACTIONS]) == (1, 2)
