import time
import uuid

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.append import append
from mainstem.client.topics import end_offsets, ensure_topic
from mainstem.connect.sources.http_window import ID_HEADER, Seen, Undecided, Window, content_hash, fill, read_tail, tail
from mainstem.core.clock import ManualClock
from tests.support.records import append_with_strange_header
from tests.support.waiting import wait_until

RECENTLY_MS = int(time.time() * 1000) - 60_000
"""What is older than a week may be deleted before it is read."""


@pytest.fixture
def topic_of(log_connection):
    def make(partitions):
        name = f"window-{uuid.uuid4().hex[:8]}"
        ensure_topic(log_connection, name, partitions)
        return name

    return make


def test_the_oldest_id_leaves_when_the_window_is_full():
    window = Window(2)
    for number in range(3):
        window.add(f"id{number}", Seen(0, number, 0))
    assert [window.get(f"id{number}") is not None for number in range(3)] == [False, True, True]
    assert len(window) == 2


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 20), st.permutations(range(4)))
def test_the_window_is_the_same_after_a_restart(partitions, size, order):
    """It was filled partition by partition: the newest ids of those that were read first fell out."""
    before, lanes = Window(size), {partition: [] for partition in range(4)}
    for number, partition in enumerate(partitions):
        seen = Seen(partition, len(lanes[partition]), number)
        before.add(f"id{number}", seen)
        lanes[partition].append((1000 + number, f"id{number}", seen))
    after = fill(size, [one for partition in order for one in lanes[partition]])
    assert list(after._seen.items()) == list(before._seen.items())


def test_a_clock_that_was_set_back_keeps_the_order_of_a_partition():
    window = fill(2, [(time_ms, f"id{n}", Seen(0, n, 0)) for n, time_ms in enumerate([9, 8, 1, 2])])
    assert [window.get(f"id{n}") is not None for n in range(4)] == [False, False, True, True]


def test_the_content_is_what_follows_the_schema_id():
    assert content_hash(b"\0\0\0\0\1abc"[5:]) == content_hash(memoryview(b"\0\0\0\0\2abc")[5:]) != content_hash(b"abd")


def test_the_tail_of_a_topic_says_what_was_taken_in(log_connection):
    topic = f"window-{uuid.uuid4().hex[:8]}"
    ensure_topic(log_connection, topic, 2)
    assert len(read_tail(log_connection, topic, 10)) == 0
    producer = Producer(log_connection.confluent(transactional_id=topic))
    producer.init_transactions(30)
    for number, commit in enumerate([True, True, False, True]):
        producer.begin_transaction()
        for partition in (0, 1):
            headers = [(ID_HEADER, f"{number}-{partition}".encode())]
            producer.produce(topic, b"\0\0\0\0\1x%d" % number, partition=partition, headers=headers)
        producer.produce(topic, b"without an id", partition=0)
        producer.flush(30)  # an abort drops what is still queued in the client
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"\0\0\0\0\1x", partition=0, headers=[(ID_HEADER, b"y" * 1000)])  # longer than ids may be
    producer.commit_transaction(30)
    window = read_tail(log_connection, topic, 100)
    assert len(window) == 6
    assert window.get("2-0") is None  # aborted
    seen = window.get("3-1")
    assert (seen.partition, seen.content) == (1, content_hash(b"x3"))
    assert window.get("0-1") == Seen(1, 0, content_hash(b"x0"))
    producer.begin_transaction()
    producer.produce(topic, b"\0\0\0\0\1x", partition=0, headers=[(ID_HEADER, b"open")])
    producer.flush(30)
    append(log_connection, topic, [(None, b"behind it")])
    with pytest.raises(Undecided):
        read_tail(log_connection, topic, 100)
    producer.commit_transaction(30)
    wait_until(
        lambda: end_offsets(log_connection, topic, committed=True) == end_offsets(log_connection, topic), "decided"
    )
    assert read_tail(log_connection, topic, 100).get("open") is not None


def test_a_record_whose_headers_no_collector_wrote_hides_no_id(log_connection, topic_of):
    """Every request to its topic, and each that shared a transaction with one, was an error of the gateway."""
    topic = topic_of(1)
    producer = Producer(log_connection.confluent())
    for event_id in (b"first", b"\xff\xfe", b"last"):
        producer.produce(topic, b"\0\0\0\0\1x", headers=[(ID_HEADER, event_id)])
    producer.flush(30)
    append_with_strange_header(log_connection, topic, b"\0\0\0\0\1x")
    assert list(read_tail(log_connection, topic, 10)._seen) == ["first", "last"]


def put(connection, topic, records):
    """Records with ids, as (partition, time in ms)."""
    producer = Producer(connection.confluent())
    for number, (partition, time_ms) in enumerate(records):
        headers = [(ID_HEADER, str(number).encode())]
        producer.produce(topic, b"\0\0\0\0\1x", partition=partition, headers=headers, timestamp=time_ms)
    producer.flush(30)


@pytest.mark.parametrize("last_ones", ["everywhere", "in one partition"])
def test_of_many_partitions_the_last_records_are_read_not_the_last_of_each(log_connection, topic_of, last_ones):
    """After a restart a large topic took longer than a minute, in which no other could be posted to;
    then it was refused.
    """
    topic, now_ms = topic_of(20), int(time.time() * 1000)
    partitions = [n % 20 for n in range(1000)] + [3 if last_ones == "in one partition" else n % 20 for n in range(100)]
    put(log_connection, topic, [(partition, now_ms - 5000 + n) for n, partition in enumerate(partitions)])
    assert len(list(tail(log_connection, topic, 30))) < 150
    assert list(read_tail(log_connection, topic, 30)._seen) == [str(n) for n in range(1070, 1100)]


def test_records_of_one_time_are_read_to_their_number(log_connection, topic_of):
    topic = topic_of(2)
    put(log_connection, topic, [(n % 2, RECENTLY_MS) for n in range(1000)])
    assert len(list(tail(log_connection, topic, 30))) == 120
    assert len(read_tail(log_connection, topic, 30)) == 30


def test_a_tail_may_take_long_as_long_as_it_comes(log_connection, topic_of):
    topic, read, clock = topic_of(1), 0, ManualClock()
    put(log_connection, topic, [(0, RECENTLY_MS)] * 5000)
    for _ in tail(log_connection, topic, 5000, clock=clock):
        clock.advance_ms(100)
        read += 1
    assert (read, clock.monotonic()) == (5000, pytest.approx(500))
