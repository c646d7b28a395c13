from mainstem.audit.books import Line, Verdict
from mainstem.core import TopicPartition
from mainstem.dash.books import summed_up


def test_the_worst_verdict_of_a_topic_counts():
    lines = [
        Line(TopicPartition("a", 0), "log", "offsets", Verdict.BALANCED, 5, 5),
        Line(TopicPartition("a", 1), "reader", "lake", Verdict.WRONG, 5, 4, "one less"),
        Line(TopicPartition("a", 2), "reader", "lake", Verdict.IN_FLIGHT, 5, 4),
        Line(TopicPartition("b", 0), "log", "offsets", Verdict.BALANCED, 1, 1),
    ]
    found = summed_up(lines, 7, 0.5)
    assert found.topics == {"a": "WRONG", "b": "balanced"}
    assert found.counts == {"balanced": 2, "WRONG": 1, "in flight": 1}
    assert found.wrong == ["a-1 reader lake: expected 5, found 4 one less"]
