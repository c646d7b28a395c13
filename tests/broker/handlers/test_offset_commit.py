"""OffsetCommit: what is committed is there afterwards."""

import asyncio
import uuid

import pytest

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.core import ManualClock
from mainstem.wire.errors import Code
from tests.support.broker import Client, running


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version(raw, topic, version):
    group = uuid.uuid4().hex
    entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
    if version >= 6:
        entry["committed_leader_epoch"] = 3
    identity = {"name": topic}
    if version >= 10:
        identity = {"topic_id": raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id}
    asked = {"retention_time": -1} if version <= 4 else {}
    answer = raw.call(8, version, group_id=group, topics=[identity | {"partitions": [entry]}], **asked)
    (found,) = answer.topics
    assert [(each.partition_index, each.error_code) for each in found.partitions] == [(0, Code.none)]
    (kept,) = raw.call(9, 5, group_id=group, topics=None).topics[0].partitions
    assert (kept.committed_offset, kept.metadata) == (5, "m")
    assert kept.committed_leader_epoch == (3 if version >= 6 else -1)


def test_an_old_client_may_say_how_long_its_offset_is_kept(raw, topic):
    group = uuid.uuid4().hex
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    answer = raw.call(8, 2, group_id=group, retention_time=3_600_000, topics=topics)
    assert answer.topics[0].partitions[0].error_code is Code.none
    assert raw.committed(group, topic) == (5, Code.none)


def test_commits_in_flight_at_once_are_answered_in_order(raw, topic):
    group = uuid.uuid4().hex
    for offset in range(100):
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        raw.send(8, 8, group_id=group, topics=topics)
    for _ in range(100):
        assert raw.receive(8, 8).topics[0].partitions[0].error_code is Code.none
    assert raw.committed(group, topic) == (99, Code.none)


def test_a_topic_made_anew_starts_without_offsets(raw, topic):
    group = uuid.uuid4().hex
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    raw.call(8, 8, group_id=group, topics=topics)
    raw.call(20, 4, topic_names=[topic], timeout=10_000)
    raw.create_topic(topic)
    assert raw.committed(group, topic) == (-1, Code.none)


def test_a_commit_that_is_too_large_is_refused_by_partition(tmp_path):
    """The connection was closed without a word: the API has no code for the whole request."""

    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            await broker.topics.create("t", 1, {})
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "1"})
            client = await Client.connect(broker)
            partitions = [{"partition_index": 0, "committed_offset": 5}, {"partition_index": 1, "committed_offset": 5}]
            answer = await client.call(8, 8, group_id="g", topics=[{"name": "t", "partitions": partitions}])
            assert [each.error_code for each in answer.topics[0].partitions] == [
                Code.invalid_commit_offset_size,
                Code.unknown_topic_or_partition,
            ]
            client.close()

    asyncio.run(story())


def test_a_commit_of_nothing_that_may_be_committed_makes_no_group(raw, topic):
    """Administrators saw it, and a share group of that name could not be had."""
    group = uuid.uuid4().hex
    entry = {"partition_index": 7, "committed_offset": 5}
    for topics in ([], [{"name": topic, "partitions": [entry]}], [{"name": "no-such-topic", "partitions": [entry]}]):
        answer = raw.call(8, 8, group_id=group, topics=topics)
        codes = {each.error_code for found in answer.topics for each in found.partitions}
        assert codes <= {Code.unknown_topic_or_partition}
    assert raw.call(42, 2, groups_names=[group]).results[0].error_code is Code.group_id_not_found
