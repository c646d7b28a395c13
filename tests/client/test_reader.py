"""Reading from offsets that are there, are not there yet, and are not there any more."""

import pytest
from confluent_kafka import Producer

from mainstem import embedded
from mainstem.client import topics
from mainstem.client.append import append
from mainstem.client.compacted import read_compacted
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted, UnknownTopic
from mainstem.client.partitioner import partition_for
from mainstem.client.reader import CommittedReader, RangeReader, headers_of
from mainstem.client.topics import delete, end_offsets, ensure_topic
from mainstem.core import UserError
from tests.support.records import append_with_strange_header, committed, delete_before, wait_for_markers
from tests.support.undecided import DECIDED, VISIBLE, undecided


@pytest.fixture
def shortened(connection, name):
    """A topic of ten records, of which the first six are deleted."""
    ensure_topic(connection, name, 1)
    for number in range(10):
        append(connection, name, [(b"k%d" % number, b"v")])
    delete_before(connection, name, 6)
    return name


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


def test_a_reader_of_what_is_decided_says_where_it_stops(connection, name):
    ensure_topic(connection, name, 2)
    with undecided(connection, name, lambda word: [(name, word.encode(), b"v")]):
        wait_for_markers(connection)
        first = end_offsets(connection, name, committed=True)[0]
        for options, starts, expected in [
            ({"decided": True}, {0: 0, 1: 0}, {0: first}),
            ({"decided": True}, {0: first + 1}, {0: first}),
            ({"decided": True}, end_offsets(connection, name), {}),
            ({}, {0: 0, 1: 0}, {}),
        ]:
            with CommittedReader(connection, name, starts, deleted="error", **options) as reader:
                assert (options, reader.undecided) == (options, expected)


def test_a_reader_of_what_is_decided_waits_for_it_only_so_long(connection, name):
    """It waited for ever, as `mainstem plan` did for a log that was killed meanwhile."""
    ensure_topic(connection, name, 1)
    append(connection, name, [(b"k", b"v")])
    with CommittedReader(connection, name, {0: 0}, deleted="error", decided=True, patience_seconds=0.1) as reader:
        reader.missing[0] = 5
        with pytest.raises(BrokerUnavailable, match=rf"{name}: nothing came for 0 s before the ends {{0: 5}}"):
            list(reader)


@pytest.mark.parametrize("follow", [True, False])
def test_a_log_that_is_gone_is_an_error_for_those_who_wait(name, follow, monkeypatch):
    """`mainstem tail` was silent for ever."""
    monkeypatch.setattr(topics, "TIMEOUT_SECONDS", 0.5)
    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_topic(connection, name, 1)
        append(connection, name, [(b"k", b"v")])
        reader = CommittedReader(connection, name, {0: 0}, deleted="error", follow=follow, patience_seconds=0.1)
        reader.missing[0] = 5
    with reader, pytest.raises(BrokerUnavailable, match=connection.bootstrap):
        list(reader)


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


def test_a_range_is_read_up_to_its_end_and_not_beyond(connection, name):
    ensure_topic(connection, name, 2)
    append(connection, name, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    producer = Producer(connection.confluent(transactional_id=f"{name}-test") | {"log_level": 0})
    reader = RangeReader(connection, name, deleted="error")
    try:
        producer.init_transactions(60)
        for value in (b"4", b"5"):
            producer.begin_transaction()
            producer.produce(name, key=b"a", value=value, partition=partition_for(b"a", 2))
            producer.flush()
            if value == b"4":
                producer.commit_transaction(60)
        # What is undecided is not there yet; the commit marker of what is decided is no record.
        ends = reader.ends()
        assert ends == end_offsets(connection, name, committed=True)
        assert sum(ends.values()) == 5
        found = list(reader.read({}, ends))
        assert sorted(record.value() for record in found) == [b"1", b"2", b"3", b"4"]
        assert [record.value() for record in found if record.key() == b"a"] == [b"1", b"3", b"4"]
        assert list(reader.read(ends, ends)) == []
        place = next(record.partition() for record in found if record.key() == b"a")
        (second,) = reader.read({place: 1}, {place: 2})
        assert (second.partition(), second.offset()) == (place, 1)
    finally:
        producer.abort_transaction(60)
        reader.close()


def test_a_range_whose_first_records_were_deleted_is_an_error_or_what_is_left(connection, shortened):
    for deleted in ("error", "earliest"):
        reader = RangeReader(connection, shortened, deleted=deleted)
        try:
            assert [message.key() for message in reader.read({}, {0: 8})] == [b"k6", b"k7"]
            if deleted == "earliest":
                assert [message.key() for message in reader.read({0: 2}, {0: 8})] == [b"k6", b"k7"]
            else:
                with pytest.raises(RecordsDeleted, match="deleted before they were read"):
                    list(reader.read({0: 2}, {0: 8}))
                assert [message.key() for message in reader.read({0: 7}, {0: 8})] == [b"k7"]
        finally:
            reader.close()


def test_a_range_that_does_not_come_is_an_error(connection, name):
    ensure_topic(connection, name, 1)
    reader = RangeReader(connection, name, deleted="error", patience_seconds=0.1)
    try:
        with pytest.raises(BrokerUnavailable, match="nothing came"):
            list(reader.read({0: 0}, {0: 5}))
    finally:
        reader.close()


def test_the_ends_of_a_topic_that_was_deleted_are_an_error(connection, name):
    """They were none at all, and a table kept the rows of the topic that was gone."""
    ensure_topic(connection, name, 1)
    reader = RangeReader(connection, name, deleted="error")
    try:
        assert reader.ends() == {0: 0}
        delete(connection, [name])
        with pytest.raises(UnknownTopic, match=f"topic {name}: no such topic"):
            reader.ends()
    finally:
        reader.close()


def test_headers_of_a_name_that_is_no_text_are_none(connection, name):
    """confluent-kafka raised SystemError for them, where each reader ended; later in its life the process crashed."""
    ensure_topic(connection, name, 1)
    producer = Producer(connection.confluent())
    producer.produce(name, b"v", headers=[("a", b"1"), ("b", None), ("a", b"2")])
    for _ in range(100):
        producer.produce(name, b"v", headers=[("a", b"1")])
    producer.produce(name, b"v")
    producer.flush(30)
    for _ in range(3):
        append_with_strange_header(connection, name, b"v")
    found = [headers_of(message) for message in committed(connection, name)]
    assert found == [{"a": b"2", "b": None}, *[{"a": b"1"}] * 100, *[{}] * 4]
