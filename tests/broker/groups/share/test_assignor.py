from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.modern.assignors import Subscriber
from mainstem.broker.groups.share.assignor import assign_simple

T, U = UUID(int=1), UUID(int=2)


def members(names, topics=(T,), target=None):
    return {name: Subscriber(frozenset(topics), target=(target or {}).get(name, {})) for name in names}


def numbers(found):
    return {name: sorted(assignment.get(T, ())) for name, assignment in found.items()}


def test_fewer_members_than_partitions():
    assert numbers(assign_simple(members("ab"), {T: 3})) == {"a": [0, 1], "b": [2]}


def test_more_members_than_partitions():
    """Two members for each partition is the least with which nobody has nothing."""
    assert numbers(assign_simple(members("abcd"), {T: 2})) == {"a": [0], "b": [1], "c": [0], "d": [1]}


def test_who_has_a_partition_keeps_it():
    target = {"a": {T: frozenset((2,))}, "b": {T: frozenset((0, 1))}}
    assert numbers(assign_simple(members("ab", target=target), {T: 4})) == {"a": [2, 3], "b": [0, 1]}


def test_a_topic_that_nobody_is_subscribed_to_any_more():
    target = {"a": {U: frozenset((0,))}}
    assert assign_simple(members("a", target=target), {T: 1, U: 1}) == {"a": {T: frozenset((0,))}}


@given(
    st.lists(st.frozensets(st.sampled_from((T, U))), max_size=9),
    st.integers(1, 7),
    st.integers(1, 7),
    st.lists(st.frozensets(st.integers(0, 8)), min_size=9, max_size=9),
)
def test_every_partition_is_read_and_every_subscriber_reads(subscribed, many, few, before):
    group = {
        f"m{place}": Subscriber(topics, target={T: before[place]} if before[place] else {})
        for place, topics in enumerate(subscribed)
    }
    partitions = {T: many, U: few}
    found = assign_simple(group, partitions)
    assert found.keys() == group.keys()
    for topic, count in partitions.items():
        subscribers = [name for name, member in group.items() if topic in member.topics]
        own = {name: assignment[topic] for name, assignment in found.items() if topic in assignment}
        assert own.keys() <= set(subscribers)
        if not subscribers:
            continue
        assert set().union(*own.values()) == set(range(count))
        assert all(own.get(name) for name in subscribers)
        sizes = [len(each) for each in own.values()]
        assert max(sizes) - min(sizes) <= 1
        stable = assign_simple({name: Subscriber(group[name].topics, target=found[name]) for name in group}, partitions)
        assert stable == found
