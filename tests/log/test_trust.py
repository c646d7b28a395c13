"""What was appended lately, by two marks."""

import hypothesis.strategies as st
from hypothesis import given, settings

from mainstem.log.trust import Trust
from tests.support.properties import examples


@given(
    restored=st.integers(0, 100),
    appends=st.lists(st.tuples(st.floats(0, 400), st.integers(1, 100)), max_size=20),
    later=st.floats(0, 400),
)
@settings(max_examples=examples(200))
def test_nothing_older_than_five_minutes_is_trusted_and_what_is_younger_than_a_third_of_that_is(
    restored, appends, later
):
    trust, size, now, times = Trust(restored), restored, 0.0, []
    for wait, count in appends:
        now += wait
        before, size = size, size + count
        trust.appended(size, now)
        times.append((now, before, wait))
    now += later
    begins = trust.begins(size, now)
    assert restored <= begins <= size
    assert all(before < begins for at, before, _ in times if now - at >= 300)
    # After a pause the first append may be as good as old: it is checked once more.
    assert all(begins <= before for at, before, wait in times if now - at < 100 and wait < 100)
