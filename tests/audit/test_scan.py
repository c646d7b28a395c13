from datetime import timedelta

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from mainstem import embedded
from mainstem.audit.books import Count
from mainstem.audit.scan import EMPTY_ANSWERS, FETCH_VERSION, Tally, scan
from mainstem.client.cluster import Api, Cluster
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, RecordsDeleted, UnknownTopic
from mainstem.client.topics import ensure_topic, list_topics
from mainstem.core import TopicPartition
from mainstem.records import Record, build_batch, build_marker, decode_header, fingerprint
from mainstem.records.record import assemble_batch, iter_record_spans, record_bytes
from tests.support.counting import counted
from tests.support.undecided import DECIDED, VISIBLE, undecided

P = TopicPartition("t", 0)


def batch(base, count, producer=-1):
    records = [Record(base + i, 0, b"k%d" % i, b"v%d" % (base + i), ()) for i in range(count)]
    return build_batch(
        records, base_offset=base, producer_id=producer, producer_epoch=0, base_sequence=-1, transactional=producer >= 0
    )


def marker(base, producer, commit):
    return base.to_bytes(8, "big") + build_marker(producer, 0, commit, 0, 0)[8:]


def sums(records):
    return Count(len(records), sum(fingerprint(key, value) for key, value in records) % 2**64)


@given(st.data())
def test_every_offset_is_accounted_for_however_the_batches_are_cut(data):
    """Random transactions of two producers, gaps of compaction, any cut of the bytes into fetches."""
    log, offset, open_since, expected, aborted_list = [], 0, {}, [], []
    pending = {1: [], 2: []}
    control = aborted = compacted = 0
    for _ in range(data.draw(st.integers(0, 12))):
        step = data.draw(st.sampled_from(["plain", "transactional", "end", "gap"]))
        producer = data.draw(st.sampled_from([1, 2]))
        count = data.draw(st.integers(1, 3))
        rows = [(b"k%d" % i, b"v%d" % (offset + i)) for i in range(count)]
        if step == "plain":
            log.append((offset, batch(offset, count)))
            expected += rows
            offset += count
        elif step == "transactional":
            log.append((offset, batch(offset, count, producer)))
            open_since.setdefault(producer, offset)
            pending[producer] += rows
            offset += count
        elif step == "gap":
            compacted += count
            offset += count
        elif producer in open_since:
            commit = data.draw(st.booleans())
            log.append((offset, marker(offset, producer, commit)))
            first = open_since.pop(producer)
            expected, aborted = (
                (expected + pending[producer], aborted) if commit else (expected, aborted + len(pending[producer]))
            )
            if not commit:
                aborted_list.append((first, producer))
            pending[producer] = []
            control += 1
            offset += 1
    end = min(open_since.values(), default=offset)  # the last stable offset
    stable = [entry for entry in log if entry[0] < end]
    tally = Tally(0)
    tally.aborted([each for each in aborted_list if each[0] < end])
    while stable:
        taken = data.draw(st.integers(1, len(stable)))
        tally.feed(b"".join(raw for _, raw in stable[:taken]) + b"\0" * data.draw(st.integers(0, 20)))
        stable = stable[taken:]
    books = tally.books(P, end)
    assert books.accounted == end
    if not open_since:
        assert (books.data, books.control, books.aborted, books.compacted) == (
            sums(expected),
            control,
            aborted,
            compacted,
        )


def test_the_running_count_is_kept_where_a_reader_stands():
    tally = Tally(0, [0, 2, 5, 9])
    tally.feed(batch(0, 3) + batch(3, 3))
    at = tally.books(P, 6).at
    assert [at[p].count for p in (0, 2, 5, 9)] == [0, 2, 5, 6]


@pytest.mark.parametrize("producer", [-1, 7])
def test_a_log_that_starts_in_the_middle_of_a_batch_is_counted_from_there(producer):
    """DeleteRecords goes to any offset; the whole batch was counted, and the books were WRONG."""
    tally = Tally(5, [5, 7])
    tally.aborted([(0, 7)])
    tally.feed(batch(0, 10, producer) + marker(10, 7, commit=False) + batch(12, 2))
    books = tally.books(P, 14)
    rows = [(b"k%d" % i, b"v%d" % i) for i in range(5, 10)] if producer < 0 else []
    assert books.data == sums([*rows, (b"k0", b"v12"), (b"k1", b"v13")])
    assert (books.control, books.aborted, books.compacted) == (1, 5 - len(rows), 1)
    assert books.accounted == books.end - books.start
    assert [books.at[p].count for p in (5, 7)] == ([0, 2] if producer < 0 else [0, 0])


@given(st.sets(st.integers(0, 5)), st.integers(0, 5))
def test_what_compaction_took_before_the_log_start_is_not_counted(kept, start):
    whole = batch(0, 6)
    header, data = decode_header(whole), record_bytes(decode_header(whole), whole)
    spans = list(iter_record_spans(header, data))
    rest = b"".join(data[spans[offset][0] : spans[offset][1]] for offset in sorted(kept))
    tally = Tally(start)
    tally.feed(assemble_batch(msgspec.structs.replace(header, count=len(kept)), rest))
    books = tally.books(P, 6)
    left = [(b"k%d" % offset, b"v%d" % offset) for offset in kept if offset >= start]
    assert (books.data, books.compacted) == (sums(left), 6 - start - len(left))
    assert books.accounted == books.end - books.start


@pytest.fixture(scope="module")
def connection():
    with embedded() as log:
        yield Connection(log.bootstrap)


def test_a_partition_with_commits_and_aborts_adds_up(connection):
    ensure_topic(connection, "t", 1)
    producer = Producer(connection.confluent(transactional_id="writer"))
    producer.init_transactions()
    kept = []
    for number in range(6):
        producer.begin_transaction()
        for i in range(50):
            producer.produce("t", key=b"%d" % i, value=b"%d" % number)
        producer.flush()  # an abort would drop what is still queued in the client
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            kept += [(b"%d" % i, b"%d" % number) for i in range(50)]
    (books,) = scan(connection, {P: {0, 51}})
    assert books.accounted == books.end - books.start
    assert books.data == sums(kept)
    assert (books.control, books.aborted) == (6, 150)
    assert books.at[51].count == 50


def test_records_of_an_open_transaction_are_not_counted(connection):
    topic = "undecided"
    ensure_topic(connection, topic, 1)
    with undecided(connection, topic, lambda word: [(topic, word.encode(), b"v")]) as commit:
        for visible in (VISIBLE, DECIDED):
            (books,) = scan(connection, {TopicPartition(topic, 0): set()})
            assert books.data == sums([(word.encode(), b"v") for word in visible])
            assert books.aborted == 1
            if visible == VISIBLE:
                commit()


def test_offsets_of_all_topics_are_asked_for_at_once(connection, monkeypatch):
    """Three times each topic: an audit of a thousand took a minute before it counted."""
    partitions = {}
    for number in range(3):
        name = f"scanned-{number}"
        ensure_topic(connection, name, 2)
        partitions |= {TopicPartition(name, each): set() for each in range(2)}
    calls = counted(monkeypatch)
    assert [books.accounted for books in scan(connection, partitions)] == [0] * 6
    assert calls.count("list_offsets") == 2
    with pytest.raises(UnknownTopic, match="never-there"):
        scan(connection, {TopicPartition("never-there", 0): set()})


def test_a_partition_whose_records_were_deleted_up_to_the_middle_of_a_batch_adds_up(connection):
    ensure_topic(connection, "cut", 1)
    producer = Producer(connection.confluent() | {"linger.ms": 1000})
    for number in range(10):
        producer.produce("cut", key=b"k", value=b"%d" % number)
    producer.flush()
    admin = AdminClient(connection.confluent())
    for moved in admin.delete_records([Place("cut", 0, 5)]).values():
        assert moved.result(30).low_watermark == 5
    (books,) = scan(connection, {TopicPartition("cut", 0): {7}})
    assert books.accounted == books.end - books.start == 5
    assert books.data == sums([(b"k", b"%d" % number) for number in range(5, 10)])
    assert books.at[7].count == 2


NINE = TopicPartition("nine", 0)
NOTHING = {
    "partition_index": 0, "error_code": ErrorCode.none, "high_watermark": 9, "last_stable_offset": 9,
    "log_start_offset": 0, "aborted_transactions": (), "preferred_read_replica": -1, "records": None,
}  # fmt: skip


def fetched(*partitions, throttle_ms=0):
    kinds = load_payload_module(Api.FETCH, FETCH_VERSION, EntityType.response)
    found = tuple(kinds.PartitionData(**NOTHING | each) for each in partitions)
    return kinds.FetchResponse(
        throttle_time=timedelta(milliseconds=throttle_ms),
        error_code=ErrorCode.none,
        session_id=0,
        responses=(kinds.FetchableTopicResponse(topic="nine", partitions=found),) if found else (),
    )


@pytest.fixture
def answers(connection, monkeypatch):
    """What fetches are answered before the log is asked."""
    planned = []

    class Planned(Cluster):
        async def call(self, connection, api, version, **fields):
            if api == Api.FETCH and planned:
                return planned.pop(0)
            return await super().call(connection, api, version, **fields)

    if NINE.topic not in list_topics(connection):
        ensure_topic(connection, NINE.topic, 1)
        producer = Producer(connection.confluent())
        for number in range(9):
            producer.produce(NINE.topic, key=b"k", value=b"%d" % number)
        producer.flush()
    monkeypatch.setattr("mainstem.audit.scan.Cluster", Planned)
    monkeypatch.setattr("mainstem.audit.scan.PAUSE_SECONDS", 0.0)
    return planned


@pytest.mark.parametrize(
    "answer",
    [
        fetched(throttle_ms=1),  # a quota: Kafka names no topic at all
        fetched(),
        fetched({}),
        fetched({"last_stable_offset": 3}),  # a new leader that has not heard of all that is committed
        fetched({"error_code": ErrorCode.not_leader_or_follower}),
    ],
)
def test_a_fetch_without_records_is_asked_again(connection, answers, answer):
    """Of a log with quotas the audit ended with an IndexError, or called records compacted: that fits any number."""
    answers += [answer] * 3
    (books,) = scan(connection, {NINE: set()})
    assert not answers
    assert (books.data.count, books.compacted) == (9, 0)


def test_what_an_empty_fetch_says_again_and_again_is_compacted(connection, answers):
    answers += [fetched({})] * EMPTY_ANSWERS
    (books,) = scan(connection, {NINE: set()})
    assert (books.data.count, books.compacted) == (0, 9)


def test_a_leader_that_stays_behind_is_told(connection, answers, monkeypatch):
    monkeypatch.setattr("mainstem.audit.scan.WAIT_SECONDS", 0.0)
    for answer, text in [
        (fetched({"last_stable_offset": 3}), "nine-0: fetch at offset 0: expected records up to 9, the leader has 3"),
        (fetched({"error_code": ErrorCode.not_leader_or_follower}), "nine-0: fetch at offset 0: not_leader"),
    ]:
        answers[:] = [answer] * 3
        with pytest.RaisesGroup(pytest.RaisesExc(BrokerUnavailable, match=text)):
            scan(connection, {NINE: set()})


def test_records_that_go_while_they_are_counted_are_told_of_at_once(connection, answers):
    answers.append(fetched({"error_code": ErrorCode.offset_out_of_range}))
    with pytest.RaisesGroup(pytest.RaisesExc(RecordsDeleted, match="nine-0: fetch at offset 0: its records were")):
        scan(connection, {NINE: set()})
