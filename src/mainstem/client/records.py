"""Read a topic from its start to its end of now: the committed records, as bytes."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.topics import end_offsets, start_offsets


class RawRecord(msgspec.Struct, frozen=True):
    """One committed record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes


def read_records(connection: Connection, topic: str, *, timeout_seconds: float = 75.0) -> Iterator[RawRecord]:
    """Every committed record that was written before the call, tombstones left out; each partition in order.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: nothing came for so long: an open transaction holds the end back, or the broker is away.
    """
    starts, ends = start_offsets(connection, topic), end_offsets(connection, topic)
    open_partitions = {partition for partition, end in ends.items() if end > starts[partition]}
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
    )
    settings |= {"group.id": "mainstem.reader", "fetch.wait.max.ms": 20, "log_level": 2}
    consumer = Consumer(settings)
    deadline = time.monotonic() + timeout_seconds
    try:
        consumer.assign([ConfluentPartition(topic, partition, starts[partition]) for partition in open_partitions])
        while open_partitions:
            messages: list[Any] = consumer.consume(1000, 0.2)
            for message in messages:
                error = message.error()
                if error is None:
                    deadline = time.monotonic() + timeout_seconds
                    if message.value() is not None:
                        yield RawRecord(message.partition(), message.offset(), message.key(), message.value())
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise BrokerUnavailable(f"{topic}: {error.str()}")
                elif message.offset() >= ends[message.partition()]:
                    open_partitions.discard(message.partition())
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{topic}: nothing within {timeout_seconds:.0f} s before the end {ends}")
    finally:
        consumer.close()
