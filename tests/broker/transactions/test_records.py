import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.fields import CorruptCoordinatorRecord, Writer
from mainstem.broker.transactions.records import decode_key, decode_transaction, encode_key, encode_transaction
from mainstem.broker.transactions.transaction import DEAD, EMPTY, ONGOING, Transaction, TransactionState
from mainstem.core import TopicPartition

ids = st.integers(-1, 2**63 - 1)
times = st.integers(-1, 2**62)
partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from(["a", "b.c", "été"]), st.integers(0, 5)))
transactions = st.builds(
    Transaction,
    transactional_id=st.text(max_size=40),
    producer_id=ids,
    producer_epoch=st.integers(-1, 32767),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from([state for state in TransactionState if state not in (EMPTY, DEAD)]),
    partitions=partitions,
    updated_ms=times,
    started_ms=times,
    previous_producer_id=ids,
    next_producer_id=ids,
    client_version=st.integers(0, 2),
)


@given(transactions)
def test_transactions_round_trip(transaction):
    assert decode_key(encode_key(transaction.transactional_id)) == transaction.transactional_id
    assert decode_transaction(transaction.transactional_id, encode_transaction(transaction)) == transaction


def test_the_bytes_are_kafkas():
    """Written down from Kafka's message definitions, not from our encoder."""
    transaction = Transaction(
        transactional_id="t",
        producer_id=7,
        producer_epoch=2,
        timeout_ms=60,
        state=ONGOING,
        partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0)}),
        updated_ms=5,
        started_ms=4,
        previous_producer_id=6,
        client_version=2,
    )
    assert encode_key("t") == b"\0\0\0\1t"
    fields = [
        b"\0\1",  # version
        (7).to_bytes(8, "big"),
        b"\0\2",  # epoch
        b"\0\0\0\x3c",  # timeout
        b"\1",  # Ongoing
        b"\2",  # one topic
        b"\2a",
        b"\3\0\0\0\0\0\0\0\1",  # two partitions
        b"\0",  # no tags
        (5).to_bytes(8, "big"),
        (4).to_bytes(8, "big"),
        b"\2",  # two tags
        b"\0\x08" + (6).to_bytes(8, "big"),
        b"\2\2\0\2",
    ]
    assert encode_transaction(transaction) == b"".join(fields)


def test_version_0_is_read():
    writer = Writer(0)
    writer.int64(7)
    writer.int16(2)
    writer.int32(60)
    writer.int8(EMPTY)
    writer.array(None, writer.int32)
    writer.int64(5)
    writer.int64(-1)
    found = decode_transaction("t", writer.done())
    assert (found.producer_id, found.producer_epoch, found.state, found.partitions) == (7, 2, EMPTY, frozenset())


def test_a_key_of_another_kind_is_left_alone():
    assert decode_key(b"\0\1anything") is None


def test_an_unknown_version_or_state_is_refused():
    with pytest.raises(CorruptCoordinatorRecord, match="version 2"):
        decode_transaction("t", b"\0\2")
    data = bytearray(
        encode_transaction(Transaction(transactional_id="t", producer_id=0, producer_epoch=0, timeout_ms=1))
    )
    data[16] = 99
    with pytest.raises(CorruptCoordinatorRecord, match="state 99"):
        decode_transaction("t", bytes(data))


@given(st.binary(max_size=80))
def test_random_bytes_raise_only_corrupt_data(data):
    for decode in (decode_key, lambda each: decode_transaction("t", each)):
        with contextlib.suppress(CorruptCoordinatorRecord):
            decode(data)
