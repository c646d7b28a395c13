"""DeleteGroups: empty ones only."""

import uuid

import pytest

from mainstem.wire.errors import Code
from tests.broker.handlers.test_sync_group import a_member


@pytest.mark.parametrize("version", range(3))
def test_every_version(raw, topic, version):
    empty, full = uuid.uuid4().hex, uuid.uuid4().hex
    entry = {"partition_index": 0, "committed_offset": 5}
    raw.call(8, 8, group_id=empty, topics=[{"name": topic, "partitions": [entry]}])
    a_member(raw, full)
    answer = raw.call(42, version, groups_names=[empty, full, "nowhere"])
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        (empty, Code.none),
        (full, Code.non_empty_group),
        ("nowhere", Code.group_id_not_found),
    ]
    assert raw.committed(empty, topic) == (-1, Code.none)


def test_a_group_that_is_named_twice_is_answered_once(raw, topic):
    group = uuid.uuid4().hex
    entry = {"partition_index": 0, "committed_offset": 5}
    raw.call(8, 8, group_id=group, topics=[{"name": topic, "partitions": [entry]}])
    answer = raw.call(42, 2, groups_names=[group, group])
    assert [(each.group_id, each.error_code) for each in answer.results] == [(group, Code.none)]
