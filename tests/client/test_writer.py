import re
import time
from contextlib import closing

import pytest

from mainstem.client import Fenced, TransactionFailed, reader
from mainstem.client.errors import RecordRefused
from mainstem.client.topics import alter_config, end_offsets
from mainstem.client.writer import LARGEST_RECORD_BYTES, TransactionalWriter, read_source
from mainstem.core.clock import since_boot
from mainstem.records import fingerprint_sum
from tests.support.records import committed, wait_for_markers


def visible(connection, topic):
    return [(message.key(), message.value(), message.headers()) for message in committed(connection, topic)]


def test_rows_and_position_become_visible_together(connection, topic, name):
    rows = [(b"key-%d" % (number % 5), b"%d" % number) for number in range(50)]
    writer = TransactionalWriter(connection, name)
    assert writer.open() is None
    writer.begin()
    for key, value in rows[:-1]:
        writer.send(topic, None, key, value)
    writer.send(topic, 1, *rows[-1], [("origin", b"here")])
    assert visible(connection, topic) == []
    basis = writer.commit({"lsn": 42})
    writer.close()
    wait_for_markers(connection)  # Apache Kafka acknowledges a commit before it has written them
    assert {partition: end + 1 for partition, end in basis[topic].items()}.items() <= end_offsets(
        connection, topic
    ).items()
    assert set(basis) == {topic}
    assert sorted(row[:2] for row in visible(connection, topic)) == sorted(rows)
    state = read_source(connection, name)
    assert state.position == {"lsn": 42}
    assert state.ends == basis
    written = state.written[topic].values()
    assert sum(part.count for part in written) == 50
    assert sum(part.hash for part in written) % 2**64 == fingerprint_sum(rows)


def test_a_restart_goes_on_from_the_last_commit_and_counts_on(connection, topic, name):
    first = TransactionalWriter(connection, name)
    first.open()
    first.begin()
    first.send(topic, 0, None, b"1")
    first.commit({"at": 1})
    first.begin()
    first.send(topic, 0, None, b"never seen")
    second = TransactionalWriter(connection, name)
    assert second.open().position == {"at": 1}
    second.begin()
    second.send(topic, 0, None, b"2")
    second.send(topic, 2, None, b"3")
    basis = second.commit({"at": 2})
    second.begin()
    second.commit({"at": 3})
    assert sorted(value for _, value, _ in visible(connection, topic)) == [b"1", b"2", b"3"]
    assert read_source(connection, name).written[topic][0].count == 2
    assert read_source(connection, name).ends == basis  # also where the last transaction wrote nothing
    second.forget([topic])
    second.begin()
    second.commit({"at": 4})
    assert read_source(connection, name).ends == {}
    with pytest.raises(Fenced):
        first.commit({"at": 9})
    first.close()
    second.close()


class LosesErrors:
    """A producer whose `flush` fails as confluent-kafka's does when it has lost what it was to raise."""

    def __init__(self, producer):
        self._producer = producer

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def flush(self, seconds):
        self._producer.flush(0)
        raise SystemError("<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception")


def test_a_restart_does_not_go_on_from_what_a_replaced_leader_tells(connection, topic, name, monkeypatch):
    with closing(TransactionalWriter(connection, name)) as first:
        first.open()
        first.begin()
        first.send(topic, 0, None, b"1")
        first.commit({"at": 1})
    monkeypatch.setattr(reader, "end_offsets", lambda *_, **__: {0: 0})
    with closing(TransactionalWriter(connection, name)) as second:
        assert second.open().position == {"at": 1}


def test_an_error_that_got_lost_on_the_way_is_found(connection, topic, name):
    first, second = TransactionalWriter(connection, name), TransactionalWriter(connection, name)
    first.open()
    first.begin()
    first.send(topic, 0, None, b"1")
    first._producer = LosesErrors(first._producer)
    with pytest.raises(TransactionFailed, match=r"returned NULL .*; transaction aborted"):
        first.commit({"at": 1})
    first.begin()
    first.send(topic, 0, None, b"2")
    second.open()
    with pytest.raises(Fenced):
        first.commit({"at": 2})
    assert visible(connection, topic) == []
    first.close()  # also raises within librdkafka, and that is nobody's business any more
    second.close()


def test_an_aborted_transaction_leaves_nothing(connection, topic, name):
    writer = TransactionalWriter(connection, name)
    writer.open()
    writer.begin()
    writer.send(topic, None, b"a", b"1")
    writer.abort()
    writer.begin()
    writer.send(topic, None, b"a", b"2")
    writer.commit({})
    writer.close()
    assert [value for _, value, _ in visible(connection, topic)] == [b"2"]
    assert read_source(connection, name).written[topic].popitem()[1].count == 1


def test_who_leaves_in_the_midst_holds_nobody_back(connection, topic, name):
    """A snapshot that broke off held back all readers of its tables for a quarter of an hour."""
    writer = TransactionalWriter(connection, name, transaction_timeout_ms=900_000)
    writer.open()
    writer.begin()
    writer.send(topic, 0, None, b"never seen")
    writer._producer.flush(60)
    writer.close()
    wait_for_markers(connection)
    ends = end_offsets(connection, topic)
    assert ends[0] == 2, "the record, and the marker of its abort"
    deadline = time.monotonic() + 60
    while end_offsets(connection, topic, committed=True) != ends:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert visible(connection, topic) == []


def test_records_without_key_take_turns(connection, topic, name):
    writer = TransactionalWriter(connection, name)
    writer.open()
    writer.begin()
    for number in range(9):
        writer.send(topic, None, None, b"%d" % number)
    basis = writer.commit({})
    writer.close()
    assert set(basis[topic]) == {0, 1, 2}


def test_a_transaction_that_outlived_its_timeout_is_no_rival_and_a_new_writer_goes_on(connection, topic, name):
    """The broker aborts it and raises the epoch: the source failed for good, as if another writer were running."""
    writer = TransactionalWriter(connection, name, transaction_timeout_ms=1_000)
    writer.open()
    writer.begin()
    writer.send(topic, 0, None, b"too late")
    writer._producer.flush(5)
    deadline = time.monotonic() + 60
    while end_offsets(connection, topic)[0] < 2:  # the record, and the broker's marker
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(TransactionFailed, match=r"took \d+ s, more than its timeout of 1 s: aborted") as caught:
        writer.commit({"at": 1})
    assert not isinstance(caught.value, Fenced)
    with pytest.raises(TransactionFailed, match="more than its timeout"):  # librdkafka does not go on after it
        writer.begin()
    writer.close()
    writer = TransactionalWriter(connection, name)
    assert writer.open() is None
    writer.begin()
    writer.send(topic, 0, None, b"again")
    writer.commit({"at": 1})
    writer.close()
    assert [value for _, value, _ in visible(connection, topic)] == [b"again"]


def test_the_seconds_in_which_the_machine_sleeps_count(connection, topic, name, monkeypatch):
    writer = TransactionalWriter(connection, name)
    writer.open()
    writer.begin()
    writer.send(topic, 0, None, b"before")
    monkeypatch.setattr("mainstem.client.writer.since_boot", lambda: since_boot() + 61)
    after = TransactionalWriter(connection, name)
    after.open()
    with pytest.raises(TransactionFailed, match="more than its timeout of 60 s"):
        writer.commit({"at": 1})
    writer.close()
    after.close()


@pytest.mark.parametrize(("size", "limit"), [(2_000_000, 1_048_588), (150_000_000, 99_000_000), (50_000, 40_000)])
def test_a_record_that_is_too_large_is_refused_with_what_to_do(connection, topic, name, size, limit):
    """It was told as a broker that does not answer, and tried for ever."""
    if size < 1_000_000:
        alter_config(connection, topic, {"max.message.bytes": str(limit)})
    writer = TransactionalWriter(connection, name)
    writer.open()
    writer.begin()
    writer.send(topic, 1, b"k", b"small")
    writer._producer.flush(5)
    told = rf"{topic}: expected batches of at most {limit} bytes.*, found a record of {size + 1}( in a batch of up to 262144)?$"
    with pytest.raises(RecordRefused, match=told) as refused:
        send_and_commit(writer, topic, size)
    assert end_offsets(connection, topic, committed=True) == end_offsets(connection, topic), "it is aborted"
    writer.close()
    if size < LARGEST_RECORD_BYTES:
        (setting,) = re.findall(
            f"`mainstem topic alter {topic} max.message.bytes=(.*) --bootstrap ", refused.value.hint
        )
        alter_config(connection, topic, {"max.message.bytes": setting})
        writer = TransactionalWriter(connection, name)
        writer.open()
        writer.begin()
        send_and_commit(writer, topic, size)
        writer.close()


def send_and_commit(writer, topic, size):
    """The answer comes with any of the later records, or with the commit."""
    writer.send(topic, 0, b"k", b"x" * size)
    for _ in range(100):
        writer.send(topic, 1, b"k", b"small")
        time.sleep(0.01)
    writer.commit({"at": 0})


def test_a_record_is_as_large_as_its_topic_allows(connection, topic, name):
    """The client had a limit of its own, a million bytes, which no setting of the topic raised."""
    alter_config(connection, topic, {"max.message.bytes": "20000000"})
    writer = TransactionalWriter(connection, name)
    writer.open()
    writer.begin()
    for size in (1, 15_000_000, 2):
        writer.send(topic, 0, b"k", b"x" * size)
    writer.commit({"at": 1})
    writer.close()
    assert [len(value) for _, value, _ in visible(connection, topic)] == [1, 15_000_000, 2]
