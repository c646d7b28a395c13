"""CreatePartitions: topics grow and never shrink."""

import uuid

import pytest

from mainstem.wire.errors import Code


def grow(raw, topic, count, *, version=3, assignments=None, validate_only=False):
    asked = {"name": topic, "count": count, "assignments": assignments}
    return raw.call(37, version, topics=[asked], timeout=1000, validate_only=validate_only).results[0]


def partitions(raw, topic):
    return len(raw.call(3, 9, topics=[{"name": topic}]).topics[0].partitions)


@pytest.mark.parametrize("version", range(4))
def test_every_version_grows(raw, topic, version):
    assert grow(raw, topic, 3, version=version).error_code is Code.none
    assert partitions(raw, topic) == 3
    assert raw.produce(topic, b"x", partition=2) is Code.none


def test_a_dry_run_changes_nothing(raw, topic):
    assert grow(raw, topic, 3, validate_only=True).error_code is Code.none
    assert partitions(raw, topic) == 1


def test_g8_an_empty_list_of_assignments_is_none_at_all(raw, topic):
    assert grow(raw, topic, 2, assignments=[]).error_code is Code.none


def test_g8_no_topics_at_all(raw):
    assert raw.call(37, 3, topics=[], timeout=1000).results == ()


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (1, None, Code.invalid_partitions),
        (0, None, Code.invalid_partitions),
        (2_000_000_000, None, Code.invalid_partitions),
        (3, [{"broker_ids": [1]}], Code.invalid_replica_assignment),
        (2, [{"broker_ids": [9]}], Code.invalid_replica_assignment),
    ],
)
def test_what_is_refused(raw, topic, count, assignments, code):
    assert grow(raw, topic, count, assignments=assignments).error_code is code
    assert partitions(raw, topic) == 1


def test_an_unknown_topic(raw):
    assert grow(raw, "no-such-topic", 3).error_code is Code.unknown_topic_or_partition


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_refuses(raw, name):
    """The next start looked for groups by the new count, and found older commits than the last ones."""
    before = partitions(raw, name)
    for validate_only in (True, False):
        assert grow(raw, name, before + 1, validate_only=validate_only).error_code is Code.invalid_topic_exception
    assert partitions(raw, name) == before


def test_a_topic_that_is_named_twice_is_refused_once(raw, topic):
    asked = [{"name": topic, "count": count, "assignments": None} for count in (2, 3)]
    (found,) = raw.call(37, 3, topics=asked, timeout=30_000).results
    assert (found.name, found.error_code) == (topic, Code.invalid_request)
    assert partitions(raw, topic) == 1


def test_what_a_request_has_beyond_as_many_as_kafka_makes_at_once_is_refused(raw):
    topics = [f"grown-{uuid.uuid4().hex}" for _ in range(3)]
    for each in topics:
        raw.create_topic(each, 1)
    counts = zip(topics, (6_001, 4_002, 2), strict=True)
    asked = [{"name": each, "count": count, "assignments": None} for each, count in counts]
    found = raw.call(37, 3, topics=asked, timeout=1000, validate_only=True).results
    assert [each.error_code for each in found] == [Code.none, Code.policy_violation, Code.policy_violation]
    assert found[1].error_message == "Excessively large number of partitions per request."
