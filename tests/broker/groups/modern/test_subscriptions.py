import pytest

from mainstem.broker.groups.modern.subscriptions import InvalidExpression, matching, topics_hash
from mainstem.wire.errors import Code
from tests.support.topics import FakeTopics


def test_the_hash_changes_with_the_topics_that_are_read():
    topics = FakeTopics(t=1, u=1)
    first = topics_hash(["t", "gone"], topics)
    assert first == topics_hash(["gone", "t"], topics) != 0
    topics.grow("u")
    assert topics_hash(["t"], topics) == first
    topics.grow("t")
    grown = topics_hash(["t"], topics)
    topics.delete("t")
    assert topics_hash(["t"], topics) == 0
    topics.create("t", 2)
    assert len({first, grown, topics_hash(["t"], topics), 0}) == 4


def test_an_expression_matches_whole_names():
    assert matching("a.*|b", ["a1", "xa1", "b", "bb"]) == {"a1", "b"}


def test_what_is_no_expression_of_re2_is_refused():
    for expression in ("(", "(?=a)", "*", "a" * 32_768):
        with pytest.raises(InvalidExpression) as refused:
            matching(expression, ["a"])
        assert refused.value.code is Code.invalid_regular_expression


def test_an_expression_that_is_slow_elsewhere_is_not_slow():
    assert matching("(a+)+b", ["a" * 249] * 100) == frozenset()
