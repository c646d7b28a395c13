"""What several APIs say about topics, in one place."""

import asyncio

from mainstem.broker import metadata
from mainstem.broker.connection import Connection
from mainstem.broker.handlers import RequestContext
from mainstem.broker.security.acls import TOPIC
from mainstem.core import SystemClock
from mainstem.log import StorageError
from tests.support.broker import running


def context(broker) -> RequestContext:
    return RequestContext(broker, Connection(broker, broker.listeners[0], "/127.0.0.1"), 3, 9, "c")


def test_operations_are_kafkas_bits(tmp_path):
    """What Apache Kafka 4.3.0 answers without an authorizer."""

    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            assert context(broker).operations(TOPIC, "t") == 3576
            assert metadata.cluster_operations(context(broker), asked=True) == 8096
            assert metadata.cluster_operations(context(broker), asked=False) == -(2**31)

    asyncio.run(check())


def test_a_partition_that_is_offline_says_so(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            topic = await broker.topics.create("t", 2, {})
            told = metadata.describe_topic(context(broker), topic, with_operations=False)
            assert [each["offline_replicas"] for each in told["partitions"]] == [[], []]
            topic.logs[1].go_offline(StorageError("the disk failed"))
            told = metadata.describe_topic(context(broker), topic, with_operations=True)
            assert [each["offline_replicas"] for each in told["partitions"]] == [[], [1]]
            assert told["topic_authorized_operations"] == 3576

    asyncio.run(check())
