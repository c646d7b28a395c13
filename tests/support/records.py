"""What a read_committed consumer sees of a topic."""

from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.topics import describe


def committed(connection: Connection, topic: str) -> list[Any]:
    """Every committed record of `topic`, partition by partition, as confluent-kafka messages."""
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
    )
    consumer = Consumer(settings | {"group.id": "test", "auto.offset.reset": "earliest"})
    found: list[Any] = []
    left = set(range(describe(connection, topic).partitions))
    consumer.assign([ConfluentPartition(topic, partition, 0) for partition in left])
    while left:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))
