import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.admission import Admission
from mainstem.broker.errors import TooManyConnections

HOSTS = st.sampled_from("abc")


@given(st.lists(st.tuples(st.booleans(), HOSTS)), st.integers(1, 6), st.integers(1, 3))
def test_no_more_are_let_in_than_the_limits_say_and_whoever_leaves_makes_room(moves, most, most_of_one):
    admission = Admission(most, most_of_one)
    there = []
    for comes, host in moves:
        if comes:
            is_full, is_full_of_one = len(there) >= most, there.count(host) >= most_of_one
            if is_full or is_full_of_one:
                setting = "max_connections," if is_full else "max_connections_per_ip"
                with pytest.raises(TooManyConnections, match=setting):
                    admission.enter(host)
            else:
                admission.enter(host)
                there.append(host)
        elif host in there:
            there.remove(host)
            admission.leave(host)
