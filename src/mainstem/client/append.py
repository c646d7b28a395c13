"""Append a few records outside of a transaction: catalog entries, heartbeats, reports."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.partitioner import partition_for
from mainstem.client.topics import describe


def append(
    connection: Connection,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timeout_seconds: float = 30.0,
) -> dict[int, int]:
    """Append (key, value) records in their order; on return all are as durable as the topic promises.

    Keys choose their partition as in Kafka; records without a key go to partition 0. It is for topics whose last value
    of a key counts: where an acknowledgement was lost, records may be there twice, still in their order. An idempotent
    producer would see to that, but librdkafka takes half a second until a new one has its id.

    Returns:
        The next offset after what was written, by partition.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: not all of them were acknowledged in time; some may have been appended.
    """
    partitions = describe(connection, topic).partitions
    producer = Producer(connection.confluent(acks="all", max_in_flight=1, linger_ms=0, log_level=2))
    ends: dict[int, int] = {}
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error.str())
        else:
            ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

    for key, value in records:
        partition = 0 if key is None else partition_for(key, partitions)
        producer.produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)
    left = producer.flush(timeout_seconds)
    if left or failures:
        raise BrokerUnavailable(
            f"{topic}: {left + len(failures)} records not acknowledged: {(failures or ['timeout'])[0]}"
        )
    return ends
