import pytest
from confluent_kafka import Producer

from mainstem import embedded
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.records import read_records
from mainstem.client.topics import ensure_topic


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        yield Connection(log.bootstrap)


def test_committed_records_come_and_aborted_ones_do_not(connection):
    ensure_topic(connection, "t", 1)
    append(connection, "t", [(b"a", b"1"), (b"a", None)])
    producer = Producer(connection.confluent(transactional_id="w"))
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("t", key=b"b", value=end.__name__.encode())
        end()
    assert [(r.key, r.value) for r in read_records(connection, "t")] == [(b"a", b"1"), (b"b", b"commit_transaction")]


def test_an_empty_topic_gives_nothing(connection):
    ensure_topic(connection, "empty", 3)
    assert list(read_records(connection, "empty")) == []


def test_a_missing_topic_is_named(connection):
    with pytest.raises(UnknownTopic, match="no_topic"):
        list(read_records(connection, "no_topic"))
