from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups.modern.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from mainstem.broker.groups.modern.partitions import each

T, U, V = (UUID(int=number) for number in range(1, 4))


def members(**subscribed):
    return {name: Subscriber(frozenset(topics)) for name, topics in subscribed.items()}


def numbers(found, topic=T):
    return {name: sorted(assignment.get(topic, ())) for name, assignment in found.items()}


def test_the_default_comes_first():
    assert list(ASSIGNORS) == ["uniform", "range"]


def test_range_cuts_each_topic_by_itself():
    """Topics with as many partitions are cut alike, so that records of one key meet in one member."""
    found = assign_range(members(b=(T, U), a=(T, U), c=(T,)), {T: 7, U: 3})
    assert numbers(found) == {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]}
    assert numbers(found, U) == {"a": [0, 1], "b": [2], "c": []}


def test_range_goes_by_instance_id_first():
    group = {
        "a": Subscriber(frozenset((T,))),
        "z": Subscriber(frozenset((T,)), "1"),
        "y": Subscriber(frozenset((T,)), "2"),
    }
    assert numbers(assign_range(group, {T: 3})) == {"z": [0], "y": [1], "a": [2]}


def test_uniform_moves_no_more_than_it_has_to():
    first = assign_uniform(members(a=(T,)), {T: 4})
    assert numbers(first) == {"a": [0, 1, 2, 3]}
    group = {"a": Subscriber(frozenset((T,)), None, first["a"]), "b": Subscriber(frozenset((T,)))}
    assert numbers(assign_uniform(group, {T: 4})) == {"a": [0, 1], "b": [2, 3]}
    assert numbers(assign_uniform(group, {T: 5})) == {"a": [0, 1, 2], "b": [3, 4]}


def test_nobody_and_nothing():
    for assign in ASSIGNORS.values():
        assert assign({}, {}) == {}
        assert assign(members(a=()), {}) == {"a": {}}


@st.composite
def groups(draw):
    partitions = {topic: draw(st.integers(0, 8)) for topic in (T, U, V)}
    alike = draw(st.booleans())
    same = draw(st.frozensets(st.sampled_from((T, U, V))))
    found = {}
    for name in draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1)):
        topics = same if alike else draw(st.frozensets(st.sampled_from((T, U, V))))
        target = {
            topic: frozenset(draw(st.frozensets(st.integers(0, 9), min_size=1)))
            for topic in draw(st.frozensets(st.sampled_from((T, U, V))))
        }
        instance = draw(st.sampled_from((None, f"i{name}")))
        found[name] = Subscriber(topics, instance, target)
    return found, partitions


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_reader_that_is_subscribed(group, name):
    subscribers, partitions = group
    found = ASSIGNORS[name](subscribers, partitions)
    assert found.keys() == subscribers.keys()
    given_out = [(partition, who) for who, assignment in found.items() for partition in each(assignment)]
    assert len({partition for partition, _ in given_out}) == len(given_out)
    assert all(topic in subscribers[who].topics for (topic, _), who in given_out)
    wanted = {topic for subscriber in subscribers.values() for topic in subscriber.topics}
    assert len(given_out) == sum(partitions[topic] for topic in wanted)
    assert all(found for assignment in found.values() for found in assignment.values())


@given(groups())
def test_uniform_is_fair_and_stays_as_it_is(group):
    subscribers, partitions = group
    found = assign_uniform(subscribers, partitions)
    counts = {who: sum(map(len, assignment.values())) for who, assignment in found.items()}
    for who, assignment in found.items():
        for other, subscriber in subscribers.items():
            if assignment.keys() & subscriber.topics:
                assert counts[who] - counts[other] < 2, "it could give one away"
    again = {
        who: Subscriber(subscriber.topics, subscriber.instance_id, found[who])
        for who, subscriber in subscribers.items()
    }
    assert assign_uniform(again, partitions) == found


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_many_members_and_partitions_take_no_time(name):
    """1,000 members and 5,000 partitions: the loop that answers everybody stands still meanwhile."""
    subscribers = {f"m{number}": Subscriber(frozenset((T, U))) for number in range(1000)}
    found = ASSIGNORS[name](subscribers, {T: 2500, U: 2500})
    assert sum(len(parts) for assignment in found.values() for parts in assignment.values()) == 5000
