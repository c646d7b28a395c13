"""OffsetFetch: what is committed, in every version's form."""

import uuid

import pytest

from mainstem.wire.errors import Code


@pytest.fixture
def group(raw, topic):
    name = uuid.uuid4().hex
    entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
    raw.call(8, 8, group_id=name, topics=[{"name": topic, "partitions": [entry]}])
    return name


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version(raw, topic, group, version):
    identity = {"name": topic}
    if version >= 10:
        identity = {"topic_id": raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id}
    asked = [identity | {"partition_indexes": [0, 7]}]
    if version >= 8:
        (answer,) = raw.call(9, version, groups=[{"group_id": group, "topics": asked}]).groups
    else:
        answer = raw.call(9, version, group_id=group, topics=asked)
    if version >= 2:
        assert answer.error_code is Code.none
    (found,) = answer.topics
    partitions = [(each.partition_index, each.committed_offset, each.metadata) for each in found.partitions]
    assert partitions == [(0, 5, "m"), (7, -1, "")]


@pytest.mark.parametrize("version", range(2, 11))
def test_null_topics_are_all_that_is_committed(raw, topic, group, version):
    if version >= 8:
        (answer,) = raw.call(9, version, groups=[{"group_id": group, "topics": None}]).groups
    else:
        answer = raw.call(9, version, group_id=group, topics=None)
    assert [[each.committed_offset for each in found.partitions] for found in answer.topics] == [[5]]


def test_several_groups_and_one_that_is_not_there(raw, topic, group):
    asked = [{"group_id": each, "topics": None} for each in (group, "nowhere")]
    answer = raw.call(9, 8, groups=asked, require_stable=True)
    assert [(each.group_id, len(each.topics), each.error_code) for each in answer.groups] == [
        (group, 1, Code.none),
        ("nowhere", 0, Code.none),
    ]


def test_a_group_that_is_asked_for_many_times_is_told_once(raw, topic, group):
    asked = [{"group_id": group, "topics": None}, {"group_id": "nobody", "topics": None}]
    answer = raw.call(9, 8, groups=1_000 * asked)
    assert [(each.group_id, len(each.topics)) for each in answer.groups] == [(group, 1), ("nobody", 0)]
