"""Reading from offsets that are there, are not there yet, and are not there any more."""

import pytest
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.append import append
from mainstem.client.compacted import read_compacted
from mainstem.client.errors import RecordsDeleted
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import admin, end_offsets, ensure_topic
from mainstem.core import UserError
from tests.support.undecided import DECIDED, VISIBLE, undecided


@pytest.fixture
def shortened(connection, name):
    """A topic of ten records, of which the first six are deleted."""
    ensure_topic(connection, name, 1)
    for number in range(10):
        append(connection, name, [(b"k%d" % number, b"v")])
    delete_before(connection, name, 6)
    return name


def delete_before(connection, topic, offset):
    client = admin(connection)
    for future in client.delete_records([ConfluentPartition(topic, 0, offset)]).values():
        future.result()


def keys(connection, topic, start, **options):
    with CommittedReader(connection, topic, {0: start}, **options) as reader:
        return [message.key() for messages in reader for message in messages]


def test_nothing_of_an_aborted_or_open_transaction_is_read(connection, name):
    ensure_topic(connection, name, 1)
    shown, decided = ([word.encode() for word in words] for words in (VISIBLE, DECIDED))
    with undecided(connection, name, lambda word: [(name, word.encode(), b"v")]) as commit:
        assert keys(connection, name, 0, deleted="error", decided=True) == shown
        found = []
        with CommittedReader(connection, name, {0: 0}, deleted="error", follow=True) as reader:
            lists = iter(reader)
            while len(found) < len(shown):
                found += [message.key() for message in next(lists)]
            assert found == shown
            commit()
            while len(found) < len(decided):
                found += [message.key() for message in next(lists)]
        assert found == decided
    assert keys(connection, name, 0, deleted="error") == decided
    assert set(read_compacted(connection, name)) == set(decided)


def test_what_is_there_is_read_to_the_end_of_now(connection, shortened):
    assert keys(connection, shortened, 8, deleted="error") == [b"k8", b"k9"]
    assert keys(connection, shortened, end_offsets(connection, shortened)[0], deleted="error") == []
    assert keys(connection, shortened, 1000, deleted="error") == []


def test_records_that_were_deleted_are_an_error_where_the_reader_says_so(connection, shortened):
    """librdkafka's default goes on at the end of the topic: everything was skipped, and nobody was told."""
    with pytest.raises(RecordsDeleted, match="deleted before they were read") as raised:
        keys(connection, shortened, 2, deleted="error")
    assert isinstance(raised.value, UserError)
    assert "earliest" in raised.value.hint


def test_and_else_what_is_left_is_read(connection, shortened):
    assert keys(connection, shortened, 2, deleted="earliest") == [b"k6", b"k7", b"k8", b"k9"]
    assert set(read_compacted(connection, shortened)) == {b"k6", b"k7", b"k8", b"k9"}


def test_a_follower_that_retention_overtakes_is_told(connection, shortened):
    with CommittedReader(connection, shortened, {0: 9}, deleted="error", follow=True) as reader:
        found = []
        lists = iter(reader)
        while not found:
            found = next(lists)
        assert [message.key() for message in found] == [b"k9"]
    with CommittedReader(connection, shortened, {0: 50}, deleted="error", follow=True) as reader:
        lists = iter(reader)
        next(lists)
        append(connection, shortened, [(b"new", b"v")])
        found = []
        while not found:
            found = next(lists)
        assert [message.key() for message in found] == [b"new"]
