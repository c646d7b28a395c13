"""Which row of a batch it was."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from mainstem.process.culprit import FailedBatch, Range, first_that_fails, ranges_of

PARTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=4)


def ranges(parts):
    return tuple(Range("o", "orders", n, start, start + length) for n, (start, length) in enumerate(parts))


def offsets(some):
    return [(each.partition, offset) for each in some for offset in range(each.start, each.end)]


@given(PARTS, st.data())
def test_the_first_row_that_fails_is_found_in_few_steps(parts, data):
    all_of_them = offsets(ranges(parts))
    bad = set(data.draw(st.lists(st.sampled_from(all_of_them), min_size=1, max_size=3)))
    asked = []

    def fails(some):
        asked.append(some)
        return bool(bad & set(offsets(some)))

    found = first_that_fails(ranges(parts), fails)
    assert offsets([found]) == [min(bad)]
    assert len(asked) <= 2 + len(all_of_them).bit_length()


def test_what_does_not_fail_again_is_no_row():
    assert first_that_fails(ranges([(0, 9)]), lambda _: False) is None


@given(PARTS, st.data())
def test_a_search_that_takes_too_long_is_gone_on_with(parts, data):
    """Whoever failed on a busy machine was never told the row."""
    bad = data.draw(st.sampled_from(offsets(ranges(parts))))
    found = None
    for tries in count():
        found = first_that_fails(ranges(parts), lambda some: bad in offsets(some), so_far=found, seconds=-1)
        if isinstance(found, Range):
            break
        assert tries < 10
    assert offsets([found]) == [bad]


def test_one_row_alone():
    assert first_that_fails(ranges([(7, 1)]), lambda _: True) == Range("o", "orders", 0, 7, 8)


def test_what_a_batch_reads():
    start = {"orders": {"orders": {0: 5, 1: 7}}}
    end = {"orders": {"orders": {0: 9, 1: 7}}, "taxes": {"taxes": {0: 2}}}
    found = ranges_of({"orders": "o", "taxes": "t"}, start, end)
    assert found == (Range("o", "orders", 0, 5, 9), Range("t", "taxes", 0, 0, 2))
    assert FailedBatch(3, found).told() == {"batch": "3", "offsets": "orders 0: 5 to 9, taxes 0: 0 to 2"}
