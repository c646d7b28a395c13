"""DescribeTopicPartitions: topics in pages."""

import uuid

from mainstem.wire.errors import Code


def pages(raw, names, limit):
    cursor, seen = None, []
    while True:
        answer = raw.call(75, 0, topics=[{"name": n} for n in names], response_partition_limit=limit, cursor=cursor)
        seen += [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
        if answer.next_cursor is None:
            return seen
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


def test_pages_hold_everything_once_in_order(raw):
    names = sorted(f"paged-{uuid.uuid4().hex}" for _ in range(3))
    for count, name in enumerate(names, 1):
        raw.create_topic(name, count)
    everything = [(name, i) for count, name in enumerate(names, 1) for i in range(count)]
    for limit in (1, 2, 3, 4, 100):
        assert pages(raw, names, limit) == everything


def test_no_names_mean_all_topics(raw, topic):
    answer = raw.call(75, 0, topics=[], response_partition_limit=2000)
    assert topic in [each.name for each in answer.topics]


def test_errors(raw):
    answer = raw.call(75, 0, topics=[{"name": "a b"}, {"name": "no-such-topic"}], response_partition_limit=10)
    assert [each.error_code for each in answer.topics] == [
        Code.invalid_topic_exception,
        Code.unknown_topic_or_partition,
    ]


def test_the_cursor_is_at_a_topic_that_is_asked_for(raw, topic):
    raw.create_topic(other := uuid.uuid4().hex)
    for cursor in ({"topic_name": topic, "partition_index": -1}, {"topic_name": other, "partition_index": 0}):
        answer = raw.call(75, 0, topics=[{"name": topic}], response_partition_limit=10, cursor=cursor)
        assert [(each.name, each.error_code) for each in answer.topics] == [(topic, Code.invalid_request)]


def test_a_page_has_one_partition_at_least(raw):
    raw.create_topic(name := uuid.uuid4().hex, 3)
    for limit in (0, -1):
        assert pages(raw, [name], limit) == [(name, 0), (name, 1), (name, 2)]
