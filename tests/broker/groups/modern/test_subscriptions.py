from mainstem.broker.groups.modern.subscriptions import topics_hash
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
