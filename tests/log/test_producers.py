import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from mainstem.log.producers import (
    Producer,
    Producers,
    after_batch,
    after_marker,
    find_duplicate,
    replay_batch,
    replay_marker,
)
from mainstem.records import Marker, decode_header
from mainstem.records.batch import MAX_SEQUENCE
from tests.log.support import batch


def header(sequence: int, *, count: int = 1, epoch: int = 0, transactional: bool = False, offset: int = 0):
    return decode_header(
        batch(
            *[b"v"] * count, producer_id=1, producer_epoch=epoch, base_sequence=sequence, transactional=transactional,
            base_offset=offset,
        )
    )  # fmt: skip


def appended(*headers, start: Producer | None = None) -> Producer:
    producer, offset = start, 0
    for each in headers:
        producer = after_batch(producer, each, offset, 7_000, "here")
        offset += each.count
    assert producer is not None
    return producer


def test_sequences_follow_each_other():
    producer = appended(header(0, count=3), header(3), header(4, count=2))
    assert producer.last_sequence == 5
    assert producer.last_offset == 5
    with pytest.raises(OutOfOrderSequence, match="here: producer 1 sent sequence 8 of epoch 0, expected 6"):
        after_batch(producer, header(8), 6, 7_000, "here")


def test_an_unknown_producer_may_begin_anywhere():
    """Its records may have gone by retention: Kafka accepts any sequence too."""
    assert appended(header(17)).last_sequence == 17


def test_every_batch_says_when_it_is_of_and_when_it_was_appended():
    """From the second on the time of the append stood in the place of the batch's own."""
    for producer in (appended(header(0)), appended(header(0), header(1)), appended(header(0), header(0, epoch=1))):
        assert (producer.last_timestamp, producer.last_append_ms) == (1_700_000_000_000, 7_000)


def test_sequences_wrap():
    producer = appended(header(MAX_SEQUENCE - 1, count=2))
    assert producer.last_sequence == MAX_SEQUENCE
    assert after_batch(producer, header(0), 2, 7_000, "here").last_sequence == 0
    across = appended(header(MAX_SEQUENCE, count=2))
    assert after_batch(across, header(1), 2, 7_000, "here").last_sequence == 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_the_last_five_batches_are_known_again(counts):
    headers, sequence = [], 0
    for count in counts:
        headers.append(header(sequence, count=count))
        sequence += count
    producer = appended(*headers)
    offset = 0
    for number, each in enumerate(headers):
        found = find_duplicate(producer, each)
        remembered = number >= len(headers) - 5  # Kafka's: so many are in flight at most
        assert (found.base_offset if found else None) == (offset if remembered else None)
        offset += each.count


def test_a_part_of_a_batch_is_no_duplicate():
    producer = appended(header(0, count=3))
    assert find_duplicate(producer, header(0, count=2)) is None
    assert find_duplicate(producer, header(0, count=3, epoch=1)) is None
    assert find_duplicate(None, header(0)) is None


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one():
    producer = appended(header(0), header(1))
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        after_batch(producer, header(2, epoch=1), 2, 7_000, "here")
    newer = after_batch(producer, header(0, epoch=1), 2, 7_000, "here")
    assert len(newer.batches) == 1
    with pytest.raises(InvalidProducerEpoch, match="sent epoch 0, expected 1 or later"):
        after_batch(newer, header(1), 3, 7_000, "here")


def test_a_transaction_begins_with_its_first_batch_and_ends_with_the_marker():
    producer = appended(header(0, transactional=True), header(1, transactional=True))
    assert producer.transaction_first_offset == 0
    with pytest.raises(InvalidTransactionState, match="open since offset 0"):
        after_batch(producer, header(2), 2, 7_000, "here")
    ended = after_marker(producer, Marker(1, 0, True, 3), 9_000, "here")
    assert (ended.transaction_first_offset, ended.coordinator_epoch, ended.last_sequence) == (-1, 3, 1)
    assert after_batch(ended, header(2, transactional=True), 5, 7_000, "here").transaction_first_offset == 5


def test_a_marker_with_a_raised_epoch_fences_and_forgets_the_batches():
    """Transactions version 2: EndTxn raises the epoch, the next batch starts at sequence 0."""
    producer = appended(header(0, transactional=True))
    ended = after_marker(producer, Marker(1, 1, True, 0), 9_000, "here")
    assert (ended.producer_epoch, ended.batches) == (1, ())
    with pytest.raises(InvalidProducerEpoch):
        after_batch(ended, header(1, transactional=True), 2, 7_000, "here")
    assert after_batch(ended, header(0, epoch=1, transactional=True), 2, 7_000, "here").last_sequence == 0


def test_old_markers_are_refused():
    producer = after_marker(appended(header(0, epoch=2)), Marker(1, 2, True, 5), 9_000, "here")
    with pytest.raises(InvalidProducerEpoch):
        after_marker(producer, Marker(1, 1, True, 5), 9_000, "here")
    with pytest.raises(CoordinatorFenced, match="coordinator epoch 4, expected 5"):
        after_marker(producer, Marker(1, 2, True, 4), 9_000, "here")


def test_a_replay_refuses_nothing():
    producer = replay_batch(appended(header(0, epoch=2)), header(9, epoch=2, offset=7), 7_000)
    assert (producer.last_sequence, producer.last_offset) == (9, 7)
    assert replay_marker(None, Marker(1, 0, False, 0), 1, 2).producer_epoch == 0


def test_what_is_undone_is_put_in_order_once(monkeypatch):
    """Ten thousand producers whose transactions had begun, on a full disk: the log stood still for a minute."""
    producers = Producers()
    befores = []
    for producer_id in range(100):
        producers.put(Producer(producer_id, 0, transaction_first_offset=producer_id))
        befores.append((producer_id, producers.get(producer_id)))
        producers.put(Producer(producer_id, 0))
    sorts = []
    monkeypatch.setattr("builtins.sorted", lambda each, key, put=sorted: sorts.append(1) or put(each, key=key))
    producers.undo(reversed(befores), 1000)
    assert list(producers.open_transactions.items()) == [(each, each) for each in range(100)]
    assert len(sorts) == 1


def test_the_oldest_open_transaction():
    producers = Producers()
    for producer_id, first in ((1, 10), (2, 20), (3, 30)):
        producers.put(Producer(producer_id, 0, transaction_first_offset=first))
    assert producers.first_open_offset() == 10
    before = producers.get(1)
    producers.put(Producer(1, 0))
    assert producers.first_open_offset() == 20
    producers.undo([(1, before)], 40)
    assert producers.first_open_offset() == 10
    producers.undo([(1, None)], 40)
    assert producers.get(1) is None
    assert dict(producers.open_transactions) == {2: 20, 3: 30}
    assert len(producers) == len(list(producers)) == 2


def test_a_producer_is_forgotten_unless_its_transaction_is_open():
    producers = Producers()
    producers.put(Producer(1, 0, last_timestamp=900, last_append_ms=100))
    producers.put(Producer(2, 0, last_append_ms=100, transaction_first_offset=5))
    producers.put(Producer(3, 0, last_timestamp=1, last_append_ms=300))
    producers.put(Producer(4, 0, last_timestamp=300))  # from a checkpoint that did not say when
    producers.put(Producer(5, 0, last_timestamp=100))
    assert producers.expire(200) == 2
    assert [producer.producer_id for producer in producers] == [2, 3, 4]


def test_a_replayed_batch_that_begins_anew_forgets_what_an_expired_producer_had_sent():
    """After a crash, a batch that it sent then was answered as one of long ago, and never appended."""
    producer = None
    for offset, sequence in ((0, 0), (1, 1), (2, 0)):
        producer = replay_batch(producer, header(sequence, offset=offset), append_ms=0)
    assert producer is not None
    assert [(b.base_sequence, b.base_offset) for b in producer.batches] == [(0, 2)]
    assert find_duplicate(producer, header(1)) is None
