"""The topic that tests of the coordinators write to."""

from mainstem.broker.server import Broker
from mainstem.core import TopicPartition

TOPIC = "facts"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


async def a_topic(broker: Broker) -> None:
    """Make it, with two partitions."""
    await broker.topics.create(TOPIC, 2, {})
