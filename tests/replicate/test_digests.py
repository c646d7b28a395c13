import pytest

from mainstem.replicate.digests import Digests
from mainstem.replicate.errors import Diverged
from mainstem.replicate.records import Answer


def taken(digests, state, values, first=0):
    for offset, value in enumerate(values, first):
        due = digests.answered(offset, Answer(value))
    assert due
    return digests.take(state)


def three():
    return [Digests(name, 3, every=3) for name in ("a", "b", "c")]


def test_where_all_agree_nothing_happens():
    nodes = three()
    digests = [taken(node, "s", [1, 2, 3]) for node in nodes]
    for node in nodes:
        for digest in digests:
            node.read(digest)
        assert node.disputed == -1


def test_whoever_disagrees_with_more_than_half_stops_at_the_first_answer_that_differs():
    good, other, bad = three()
    digests = [taken(good, "s", [1, 2, 3]), taken(other, "s", [1, 2, 3]), taken(bad, "t", [1, 5, 3])]
    bad.read(digests[0])
    assert bad.disputed == 2  # one against one: nobody knows
    with pytest.raises(
        Diverged, match="the operation at offset 1: expected state s after offset 2, as a says, found t"
    ) as found:
        bad.read(digests[1])
    assert found.value.offset == 1


def test_whoever_is_with_more_than_half_goes_on():
    good, other, bad = three()
    digests = [taken(good, "s", [1, 2, 3]), taken(other, "s", [1, 2, 3]), taken(bad, "t", [1, 5, 3])]
    good.read(digests[2])
    assert good.disputed == 2
    good.read(digests[1])
    assert good.disputed == -1


def test_states_that_differ_without_an_answer_are_told_by_the_range():
    good, other, bad = three()
    digests = [taken(good, "s", [1, 2, 3], 10), taken(other, "s", [1, 2, 3], 10)]
    bad.read(digests[0])
    bad.read(digests[1])  # before it gets there itself
    with pytest.raises(Diverged, match="the operations 10 to 12") as found:
        taken(bad, "t", [1, 2, 3], 10)
    assert found.value.offset == -1


def test_where_no_half_can_agree_all_stop():
    nodes = [Digests(name, 2, every=1) for name in ("a", "b")]
    digests = [taken(node, state, [1]) for node, state in zip(nodes, "st", strict=True)]
    for node, digest in zip(nodes, reversed(digests), strict=True):
        with pytest.raises(Diverged):
            node.read(digest)


def test_what_the_node_said_in_an_earlier_run_is_not_anothers_word():
    node, earlier = Digests("a", 2, every=1), Digests("a", 2, every=1)
    taken(node, "s", [1])
    node.read(taken(earlier, "t", [1]))
    assert node.disputed == -1


def test_without_digests_nothing_is_kept():
    digests = Digests("a", 3, every=0)
    assert not digests.answered(0, Answer(1))
    assert digests.answers == []


def test_only_the_last_digests_are_kept():
    digests = Digests("a", 3, every=1)
    for offset in range(1000):
        taken(digests, "s", [1], offset)
    assert len(digests._own) == 64
