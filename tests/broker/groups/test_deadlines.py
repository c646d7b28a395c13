from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.deadlines import Deadlines

KEYS = st.sampled_from("abc")
CALLS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
    st.tuples(st.just("discard"), KEYS),
    st.tuples(st.just("take"), st.integers(0, 20)),
)


@given(st.lists(CALLS))
def test_it_is_a_table_of_times(calls):
    deadlines, table = Deadlines(), {}
    for call, *arguments in calls:
        if call == "set":
            key, at = arguments
            deadlines.set(key, at)
            table[key] = at
        elif call == "discard":
            deadlines.discard(arguments[0])
            table.pop(arguments[0], None)
        else:
            due = sorted((at, key) for key, at in table.items() if at <= arguments[0])
            taken = deadlines.take_due(arguments[0])
            assert (taken is None) == (not due)
            if taken is not None:
                assert table.pop(taken) == due[0][0]
        assert deadlines.next() == min(table.values(), default=None)
        assert {key: deadlines.get(key) for key in "abc" if key in deadlines} == table


def test_putting_off_makes_no_entries():
    """A member of a large group sends thousands of heartbeats before one of them is late."""
    deadlines = Deadlines()
    for at in range(10_000):
        deadlines.set("a", at)
    assert len(deadlines._heap) == 1
