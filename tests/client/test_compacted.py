import threading
import time
from typing import Any

import pytest

from mainstem.client import BrokerUnavailable, UnknownTopic, reader
from mainstem.client.append import append
from mainstem.client.compacted import decode_state, read_compacted, read_state
from mainstem.client.topics import ensure_topic
from mainstem.client.transaction import SharedTransaction
from mainstem.core import CorruptData, TopicPartition


def test_the_last_value_of_each_key_is_the_state(connection, topic):
    append(connection, topic, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None)])
    assert read_compacted(connection, topic) == {b"a": b"3", b"b": b"2"}
    assert read_compacted(connection.bootstrap, topic) == {b"a": b"3", b"b": b"2"}


def test_an_empty_topic_is_empty_state_and_a_missing_one_an_error(connection, topic, name):
    assert read_compacted(connection, topic) == {}
    with pytest.raises(UnknownTopic):
        read_compacted(connection, f"{name}.missing")


def test_a_leader_that_was_replaced_and_does_not_know_it_is_not_believed(connection, name, monkeypatch):
    """It tells the ends of before."""
    ensure_topic(connection, name, 1)
    append(connection, name, [(b"a", b"1"), (b"b", b"2")])
    monkeypatch.setattr(reader, "end_offsets", lambda *_, **__: {0: 0})
    assert read_compacted(connection, name) == {}
    assert read_compacted(connection, name, linearizable=True) == {b"a": b"1", b"b": b"2"}


def open_transaction(connection, name, key):
    transaction = SharedTransaction(connection, name)
    transaction.fence()
    with transaction.writer(transaction.begin()) as writer:
        writer.append(TopicPartition(name, 0), [key], [b"undecided"], None, int(time.time() * 1000))
        writer.finish()
    return transaction


def test_what_is_undecided_is_waited_for_and_what_is_aborted_is_not_seen(connection, topic):
    """Stopping at the last stable offset would miss what others committed behind a stranger's open transaction."""
    transaction = open_transaction(connection, topic, b"stranger")
    append(connection, topic, [(key, b"behind it") for key in (b"a", b"b", b"c", b"d")])
    with pytest.raises(BrokerUnavailable, match="not decided within"):
        read_compacted(connection, topic, timeout_seconds=0.5)
    assert b"stranger" not in read_compacted(connection, topic, timeout_seconds=5, decided=True)
    timer = threading.Timer(0.3, transaction.abort)
    timer.start()
    assert set(read_compacted(connection, topic)) == {b"a", b"b", b"c", b"d"}
    timer.join()
    transaction.close()


def test_a_state_that_somebody_else_wrote_into_is_told_with_topic_and_key(connection, topic):
    append(connection, topic, [(b"a", b'{"x": 1}'), (b"\xff", b'{"x": 2}')])
    assert read_state(connection, topic, dict[str, int]) == {"a": {"x": 1}, r"\xff": {"x": 2}}
    append(connection, topic, [(b"b", b"nonsense")])
    with pytest.raises(CorruptData, match=f"{topic}: key b'b': expected JSON as Mainstem writes it: JSON is malformed"):
        read_state(connection, topic, dict[str, int])
    for bad in (b"", b"[]", b'{"x": "y"}', b'{"x\xff": 1}', b"[" * 5000):
        with pytest.raises(CorruptData, match="t: key b'k': expected JSON"):
            decode_state("t", b"k", bad, dict[str, int])
    with pytest.raises(CorruptData, match="t: key b'k': expected JSON"):
        decode_state("t", b"k", b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}", dict[str, Any])
