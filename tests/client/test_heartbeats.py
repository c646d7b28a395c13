import pytest
from confluent_kafka import Producer

from mainstem.client.compacted import read_compacted
from mainstem.client.heartbeats import Statement, decode, encode, statement_about, write_heartbeats
from mainstem.client.internal import HEARTBEATS
from mainstem.client.topics import end_offsets, topic_ids
from mainstem.core import CorruptData


@pytest.mark.parametrize(
    "heartbeat",
    [Statement("t", {0: 5, 1: 0}, 1_700_000_000_000, end=True), Statement("t", {}, 1, topic_id="x")],
)
def test_a_heartbeat_comes_back_as_what_it_was(heartbeat):
    assert decode(encode(heartbeat)) == heartbeat


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b'{"topic": "t"}', b"\xff", b'{"topic": "\xff"}', b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}"],
)
def test_anything_else_is_corrupt(value):
    with pytest.raises(CorruptData):
        decode(value)


def test_heartbeats_can_be_read_on_return(connection):
    """A record can be read when it is durable, not before."""
    statements = [Statement("t", {0: 1}, 1), Statement("u", {0: 1}, 2)]
    write_heartbeats(connection, statements)
    kept = read_compacted(connection, HEARTBEATS, decided=True)
    assert [decode(kept[each.key]) for each in statements] == statements


def test_a_statement_covers_what_was_committed_before_its_marker_was_written(connection, topic):
    """Apache Kafka answers a commit first. Windows were closed without the last records, as long as the last stable
    offset lay before them: here an open transaction keeps it there.
    """
    producer = Producer(connection.confluent(transactional_id=topic))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    said = statement_about(connection, topic, 5000, end=True)
    assert end_offsets(connection, topic, committed=True)[0] == 0
    assert said == Statement(topic, end_offsets(connection, topic), 5000, True, topic_ids(connection, [topic])[topic])
    assert said.positions[0] == 1
    producer.abort_transaction(30)
