from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.share.state import Change, RecordState, ShareState, StateBatch, laid_over, one_change

KEPT = st.sampled_from((RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))


@st.composite
def ordered(draw):
    found, offset = [], 0
    for gap, size, state, count in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), KEPT, st.integers(0, 3)), max_size=8)
    ):
        found.append(StateBatch(offset + gap, offset + gap + size - 1, state, count))
        offset += gap + size
    return found


def single(batches):
    return {n: (each.state, each.delivery_count) for each in batches for n in range(each.first, each.last + 1)}


@given(ordered(), ordered(), st.integers(0, 30))
def test_updates_are_laid_over_what_was_there(batches, updates, start):
    found = laid_over(batches, updates, start)
    expected = {n: what for n, what in (single(batches) | single(updates)).items() if n >= start}
    assert single(found) == expected
    for one, other in pairwise(found):
        assert one.last < other.first
        alike = (one.state, one.delivery_count) == (other.state, other.delivery_count)
        assert not (alike and one.last + 1 == other.first)


def test_a_change_moves_the_start_and_never_back():
    state = ShareState(start_offset=5, batches=(StateBatch(7, 9, RecordState.ARCHIVED, 1),))
    state = state.updated(Change(8, 2))
    assert (state.start_offset, state.complete, state.batches) == (8, 2, (StateBatch(8, 9, RecordState.ARCHIVED, 1),))
    assert state.updated(Change(-1, 0)).start_offset == 8


@given(ordered(), st.lists(st.builds(Change, st.integers(0, 30), st.integers(0, 9), ordered().map(tuple)), min_size=1))
def test_changes_are_one_change(batches, changes):
    state = one_after_other = ShareState(start_offset=0, batches=tuple(batches))
    for change in changes:
        one_after_other = one_after_other.updated(change)
    assert state.updated(one_change(changes)) == one_after_other


def test_what_is_not_in_the_log_any_more_is_not_done():
    state = ShareState(
        start_offset=5,
        state_epoch=3,
        complete=4,
        batches=(
            StateBatch(6, 7, RecordState.ACKNOWLEDGED, 1),
            StateBatch(8, 8, RecordState.AVAILABLE, 2),
            StateBatch(9, 10, RecordState.ARCHIVED, 5),
        ),
    )
    assert state.end_offset == 11
    cut = state.below(10, 0)
    assert (cut.start_offset, cut.state_epoch, cut.complete, cut.end_offset) == (5, 3, 3, 10)
    assert cut.batches == (*state.batches[:2], StateBatch(9, 9, RecordState.ARCHIVED, 5))
    assert state.below(3, 2) == ShareState(start_offset=3, state_epoch=3, leader_epoch=2)
    assert state.below(11, 0) == state
