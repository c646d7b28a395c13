import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.admission import Admission
from mainstem.broker.errors import TooManyConnections

HOSTS = st.sampled_from("abc")


@given(st.lists(st.tuples(st.booleans(), HOSTS, st.booleans())), st.integers(1, 6), st.integers(1, 3))
def test_no_more_are_let_in_than_the_limits_say_and_whoever_leaves_makes_room(moves, most, most_of_one):
    """One of another address leaves where it must; for whom his own address has too many, nobody does."""
    admission = Admission(most, most_of_one)
    there = []

    def leave(host):
        there.remove(host)
        admission.leave(host)

    for comes, host, one_may_leave in moves:

        def make_room(comer, may=one_may_leave):
            if may:
                leave(next((each for each in there if each != comer), comer))
            return may

        if comes:
            is_full, is_full_of_one = len(there) >= most, there.count(host) >= most_of_one
            if is_full_of_one or (is_full and not one_may_leave):
                setting = "max_connections_per_ip" if is_full_of_one else "max_connections,"
                before = list(there)
                with pytest.raises(TooManyConnections, match=setting):
                    admission.enter(host, make_room)
                assert there == before
            else:
                admission.enter(host, make_room)
                there.append(host)
        elif host in there:
            leave(host)
    assert len(there) <= most
