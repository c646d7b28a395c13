import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log.epochs import LeaderEpochs, epoch_at


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 0)), (1, (1, 10)), (3, (1, 10)), (4, (4, 15)), (5, (-1, -1)), (-1, (-1, -1)), (-2, (-2, 0))],
)
def test_where_an_epoch_ended(epoch, expected):
    assert LeaderEpochs([(1, 0), (4, 10)]).end_offset_for(epoch, 15) == expected


def test_of_which_epoch_a_batch_is():
    epochs = LeaderEpochs([(1, 3), (4, 10)])
    assert [epoch_at(epochs.known, offset)[0] for offset in (2, 3, 9, 10, 99)] == [1, 1, 1, 4, 4]
    assert epoch_at(epochs.known, 3)[1] == 10
    epochs.assign(6, 20)
    assert epoch_at(epochs.known, 25)[0] == 6
    epochs.truncate_after(20)
    assert epoch_at(epochs.known, 25)[0] == 4


def test_nothing_is_known_of_an_empty_log():
    assert LeaderEpochs().end_offset_for(0, 0) == (-1, -1)


def test_an_epoch_without_a_batch_leaves_no_trace():
    epochs = LeaderEpochs([(0, 0), (1, 5)])
    epochs.assign(2, 5)
    assert epochs.entries() == [(0, 0), (2, 5)]
    epochs.assign(2, 9)
    epochs.assign(1, 9)
    assert epochs.entries() == [(0, 0), (2, 5)]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=8), st.integers(0, 40))
def test_truncation_keeps_the_rest(steps, offset):
    entries, epoch, start = [], 0, 0
    for more_epochs, more_offsets in steps:
        entries.append((epoch, start))
        epoch, start = epoch + more_epochs, start + more_offsets
    after, before = LeaderEpochs(entries), LeaderEpochs(entries)
    after.truncate_after(offset)
    assert after.entries() == [entry for entry in entries if entry[1] < offset]
    before.truncate_before(offset)
    for each, _ in entries:
        if LeaderEpochs(entries).end_offset_for(each, start)[1] > offset:
            assert before.end_offset_for(each, start) == LeaderEpochs(entries).end_offset_for(each, start)
