"""What several APIs say about topics, in one place."""

import asyncio

from mainstem.broker import metadata
from mainstem.core import SystemClock
from mainstem.log import StorageError
from tests.support.broker import running


def test_operations_are_kafkas_bits():
    assert metadata.TOPIC_OPERATIONS == 3576  # what Apache Kafka 4.3.0 answers without an authorizer
    assert metadata.CLUSTER_OPERATIONS == 8096


def test_a_partition_that_is_offline_says_so(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            topic = await broker.topics.create("t", 2, {})
            told = metadata.describe_topic(broker, topic, with_operations=False)
            assert [each["offline_replicas"] for each in told["partitions"]] == [[], []]
            topic.logs[1].go_offline(StorageError("the disk failed"))
            told = metadata.describe_topic(broker, topic, with_operations=True)
            assert [each["offline_replicas"] for each in told["partitions"]] == [[], [1]]
            assert told["topic_authorized_operations"] == metadata.TOPIC_OPERATIONS

    asyncio.run(check())
