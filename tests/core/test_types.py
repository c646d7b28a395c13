from mainstem.core.types import TopicPartition, is_topic_name


def test_topic_partitions_are_values_in_order():
    a, b = TopicPartition("a", 1), TopicPartition("a", 2)
    assert a < b
    assert {a: 1}[TopicPartition("a", 1)] == 1
    assert str(b) == "a-2"


def test_topic_names_are_kafkas():
    assert all(is_topic_name(name) for name in ("a", "shop.orders", "_a-1", "a" * 249))
    assert not any(is_topic_name(name) for name in ("", ".", "..", "a b", "ä", "a" * 250, "a\n", None, 3))
