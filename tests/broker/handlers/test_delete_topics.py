"""DeleteTopics: by name, by id, and the records are gone."""

import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_deletes(raw, topic, version):
    raw.produce(topic, b"x")
    asked = {"topics": [{"name": topic}]} if version >= 6 else {"topic_names": [topic]}
    (deleted,) = raw.call(20, version, timeout=1000, **asked).responses
    assert (deleted.name, deleted.error_code) == (topic, Code.none)
    (again,) = raw.call(20, version, timeout=1000, **asked).responses
    assert again.error_code is Code.unknown_topic_or_partition
    raw.create_topic(topic)
    offsets = raw.call(
        2, 5, replica_id=-1, topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    )
    assert offsets.topics[0].partitions[0].offset == 0


def test_by_id(raw, topic):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": uuid.uuid4()}]
    first, unknown = raw.call(20, 6, topics=asked, timeout=1000).responses
    assert (first.name, first.error_code) == (topic, Code.none)
    assert unknown.error_code is Code.unknown_topic_id


@pytest.mark.parametrize("version", [5, 6])
def test_what_is_asked_for_twice_is_answered_once_and_kept(raw, topic, version):
    asked = {"topics": [{"name": topic}] * 2} if version >= 6 else {"topic_names": [topic] * 2}
    (refused,) = raw.call(20, version, timeout=1000, **asked).responses
    assert (refused.name, refused.error_code) == (topic, Code.invalid_request)
    assert raw.call(3, 12, topics=[{"name": topic}]).topics[0].error_code is Code.none


def test_an_id_asked_for_twice_is_kept(raw, topic):
    asked = [{"name": None, "topic_id": raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id}] * 2
    (refused,) = raw.call(20, 6, topics=asked, timeout=1000).responses
    assert (refused.topic_id, refused.error_code) == (asked[0]["topic_id"], Code.invalid_request)


def test_one_asked_for_by_its_name_and_by_its_id_is_kept(raw, topic):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    asked = [{"name": topic, "topic_id": None}, {"name": None, "topic_id": topic_id}]
    answers = raw.call(20, 6, topics=asked, timeout=1000).responses
    assert [each.error_code for each in answers] == [Code.invalid_request] * 2
    assert raw.call(3, 12, topics=[{"name": topic}]).topics[0].error_code is Code.none


def test_by_both_or_neither(raw, topic):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    asked = [{"name": topic, "topic_id": topic_id}, {"name": None, "topic_id": None}]
    answers = raw.call(20, 6, topics=asked, timeout=1000).responses
    assert [each.error_code for each in answers] == [Code.invalid_request] * 2


def test_internal_topics_are_kept(raw):
    (refused,) = raw.call(20, 5, timeout=1000, topic_names=["__consumer_offsets"]).responses
    assert refused.error_code is Code.invalid_topic_exception
