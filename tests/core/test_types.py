from mainstem.core.types import TopicPartition


def test_topic_partitions_are_values_in_order():
    a, b = TopicPartition("a", 1), TopicPartition("a", 2)
    assert a < b
    assert {a: 1}[TopicPartition("a", 1)] == 1
    assert str(b) == "a-2"
