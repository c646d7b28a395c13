"""What a read_committed consumer sees of a topic."""

from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.reader import arrived
from mainstem.client.topics import describe


def committed(connection: Connection, topic: str) -> list[Any]:
    """Every committed record of `topic`, partition by partition, as confluent-kafka messages."""
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
    )
    # The broker answers at the end of a partition only after this long: the default is half a second for each read.
    settings |= {"fetch.wait.max.ms": 20, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    found: list[Any] = []
    left = set(range(describe(connection, topic).partitions))
    consumer.assign([ConfluentPartition(topic, partition, 0) for partition in left])
    try:
        while left:
            for message in arrived(consumer, 1.0):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    left.discard(message.partition())
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))
