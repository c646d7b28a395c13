from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.share.partition import Acquired, Fetched
from mainstem.broker.groups.share.reading import fetched, to_send
from mainstem.log.index import AbortedTransaction
from mainstem.records import Record, build_batch, build_marker, iter_spans


def a_batch(first, count, **options):
    return build_batch([Record(0, 0, b"k", b"v" * 9)] * count, base_offset=first, **options)


def a_marker(offset, producer_id):
    return offset.to_bytes(8, "big") + build_marker(producer_id, 0, False, 0, 0)[8:]


def test_what_was_read():
    pieces = [a_batch(3, 2) + a_batch(7, 1), a_batch(8, 4)]
    assert fetched(pieces) == [Fetched(3, 4), Fetched(7, 7), Fetched(8, 11)]


def test_batches_of_aborted_transactions_are_not_to_be_delivered():
    of = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    pieces = [
        a_batch(0, 1, producer_id=1, **of) + a_batch(1, 1, producer_id=2, **of) + a_batch(2, 1),
        a_marker(3, 1) + a_batch(4, 1, producer_id=1, **of),
        a_batch(5, 1, producer_id=1, producer_epoch=0, base_sequence=0),
    ]
    found = fetched(pieces, [AbortedTransaction(1, 0, 3), AbortedTransaction(2, 40, 50)])
    assert [each.deliverable for each in found] == [False, True, True, True, True, True]
    assert all(each.deliverable for each in fetched(pieces))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=8),
    st.sets(st.integers(0, 40)),
)
def test_the_batches_that_hold_what_was_acquired_are_sent(batches, wanted):
    pieces, offset = [b""], 0
    spans = []
    for gap, count, another_piece in batches:
        if another_piece:
            pieces.append(b"")
        pieces[-1] += a_batch(offset + gap, count)
        spans.append((offset + gap, offset + gap + count - 1))
        offset += gap + count
    acquired = [Acquired(each, each, 1) for each in sorted(wanted)]
    sent = b"".join(to_send(pieces, acquired))
    found = [(span.base_offset, span.last_offset) for span in iter_spans(sent)]
    assert found == [each for each in spans if wanted & set(range(each[0], each[1] + 1))]


def test_neighbours_are_one_chunk_and_nothing_is_copied():
    piece = a_batch(0, 1) + a_batch(1, 1) + a_batch(2, 1)
    (chunk,) = to_send([piece], [Acquired(0, 1, 1)])
    assert chunk.obj is piece
    assert len(to_send([piece], [Acquired(0, 0, 1), Acquired(2, 2, 1)])) == 2
    assert to_send([piece], []) == []
