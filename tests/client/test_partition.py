"""A follower hands over what is committed, in order; an appender does not wait."""

import queue
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem import embedded
from mainstem.broker.handlers import fetch
from mainstem.client import Connection
from mainstem.client.append import append
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted
from mainstem.client.partition import PartitionAppender, PartitionFollower
from mainstem.client.topics import admin, delete, ensure_topic
from mainstem.core import TopicPartition


class Taken:
    """What a follower hands over."""

    def __init__(self, connection, place, start=0):
        self.records, self.ends, self.errors = queue.Queue(), queue.Queue(), queue.Queue()
        self.follower = PartitionFollower(connection, place, start, self._take, self.errors.put, name="test")

    def _take(self, records, next_offset):
        for record in records:
            self.records.put(record)
        self.ends.put(next_offset)

    def next(self, count):
        return [self.records.get(timeout=60) for _ in range(count)]

    def wait_for_end(self, offset):
        while self.ends.get(timeout=60) < offset:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.follower.close()


@pytest.fixture
def place(connection, name):
    ensure_topic(connection, name, 1)
    return TopicPartition(name, 0)


def test_what_is_appended_is_handed_over_in_order(connection, place):
    appender = PartitionAppender(connection, place)
    with Taken(connection, place) as taken:
        for number in range(500):
            appender.append(b"%d" % number)
        assert taken.next(500) == [(number, b"%d" % number) for number in range(500)]
    appender.close()


def test_it_begins_where_it_is_told(connection, place):
    append(connection, place.topic, [(None, b"a"), (None, b"b"), (None, None)])
    with Taken(connection, place, 1) as taken:
        assert taken.next(2) == [(1, b"b"), (2, None)]


def test_aborted_records_are_left_out_and_their_offsets_are_told(connection, place):
    producer = Producer(connection.confluent(transactional_id=place.topic))
    producer.init_transactions(60)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(place.topic, value, partition=0)
        producer.flush()
        end()
    with Taken(connection, place) as taken:
        assert taken.next(1) == [(2, b"committed")]
        taken.wait_for_end(4)  # behind the last marker


def test_who_hands_over_is_waited_for(connection, place):
    append(connection, place.topic, [(None, b"a")])
    entered, goes_on = threading.Event(), threading.Event()
    seen = []

    def take(records, next_offset):
        seen.append(records)
        entered.set()
        goes_on.wait(60)

    follower = PartitionFollower(connection, place, 0, take, seen.append, name="test")
    assert entered.wait(60)
    append(connection, place.topic, [(None, b"b")])
    assert len(seen) == 1
    goes_on.set()
    follower.close()


def test_what_comes_behind_an_error_is_not_left_out(name, monkeypatch):
    """The consumer reads on behind an error; what had come in one list with it was given to nobody."""
    read, refused, read_on = fetch._Fetch._read_partition, threading.Event(), threading.Event()

    async def refuse_once(self, wanted, left, *, at_least_one):
        if wanted.offset == 1 and not refused.is_set():
            refused.set()
            return fetch.FetchedPartition(wanted.index, fetch.Code.unknown_server_error)
        if wanted.offset == 4:
            read_on.set()
        return await read(self, wanted, left, at_least_one=at_least_one)

    monkeypatch.setattr(fetch._Fetch, "_read_partition", refuse_once)
    records, ends, goes_on = [], queue.Queue(), threading.Event()

    def take(found, next_offset):
        records.extend(found)
        ends.put(next_offset)
        goes_on.wait(60)

    with embedded() as log:
        connection = Connection(log.bootstrap)
        ensure_topic(connection, name, 1)
        append(connection, name, [(None, b"0")])
        follower = PartitionFollower(connection, TopicPartition(name, 0), 0, take, ends.put, name="test")
        assert ends.get(timeout=60) == 1
        assert refused.wait(60)
        append(connection, name, [(None, b"%d" % number) for number in (1, 2, 3)])
        assert read_on.wait(60)  # the error and the three wait in the consumer
        goes_on.set()
        while ends.get(timeout=60) < 4:
            pass
        follower.close()
    assert records == [(number, b"%d" % number) for number in range(4)]


def test_what_was_handed_over_is_not_again(connection, place):
    append(connection, place.topic, [(None, b"a"), (None, b"b")])
    with Taken(connection, place) as taken:
        goes_back, take = threading.Event(), taken.follower._take

        def go_back(records, next_offset):  # in the thread that reads
            take(records, next_offset)
            if not goes_back.is_set():
                taken.follower._consumer.assign([ConfluentPartition(place.topic, 0, 0)])
                goes_back.set()

        taken.follower._take = go_back
        assert taken.next(2) == [(0, b"a"), (1, b"b")]
        append(connection, place.topic, [(None, b"c")])
        assert taken.next(1) == [(2, b"c")]
        assert goes_back.wait(60)
        append(connection, place.topic, [(None, b"d")])
        assert taken.next(1) == [(3, b"d")]
    assert taken.records.empty()


def test_records_that_were_deleted_are_told(connection, place):
    append(connection, place.topic, [(None, b"a"), (None, b"b")])
    client = admin(connection)
    for future in client.delete_records([ConfluentPartition(place.topic, 0, 1)]).values():
        future.result()
    with Taken(connection, place) as taken:
        assert isinstance(taken.errors.get(timeout=60), RecordsDeleted)


def test_a_topic_that_is_gone_takes_nothing_and_nobody_waits(connection, place):
    appender = PartitionAppender(connection, place, seconds=0.5)
    delete(connection, [place.topic])
    appender.append(b"a")
    appender.close()


def test_too_many_that_wait_are_refused(connection, place, monkeypatch):
    appender = PartitionAppender(connection, place)

    def full(*_, **__):
        raise BufferError

    class Full:
        poll = staticmethod(lambda _: 0)
        produce = staticmethod(full)

    appender.close()
    monkeypatch.setattr(appender, "_producer", Full)
    with pytest.raises(BrokerUnavailable, match="too many records"):
        appender.append(b"a")
