"""Read a compacted topic to its end: the last value of every key is the state."""

import time

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.topics import end_offsets


def read_compacted(connection: Connection | str, topic: str, *, timeout_seconds: float = 75.0) -> dict[bytes, bytes]:
    """The last committed value of every key; a key whose last value is null is left out.

    Everything that was written before the call is taken into account, and what was undecided then is waited for: the
    open transaction of a stranger holds back the last stable offset, and stopping there would miss newer records of
    others that are committed already. Transactions of ours last 60 s at most, hence the default.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: the end was not reached in time.
    """
    connection = Connection(connection) if isinstance(connection, str) else connection
    targets = {partition: end for partition, end in end_offsets(connection, topic).items() if end > 0}
    state: dict[bytes, bytes | None] = {}
    deadline = time.monotonic() + timeout_seconds
    consumer = _reader(connection)
    try:
        consumer.assign([ConfluentPartition(topic, partition, 0) for partition in targets])
        while targets:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{topic}: not decided within {timeout_seconds:.0f} s up to {targets} (partition: offset)",
                    hint="a transaction is open; the broker aborts it when its timeout has passed: try again then",
                )
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    state[message.key() or b""] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    partition, reached = message.partition(), message.offset()
                    if partition in targets and reached is not None and reached >= targets[partition]:
                        del targets[partition]
                else:
                    raise BrokerUnavailable(f"{topic}: {error.str()}")
    finally:
        consumer.close()
    return {key: value for key, value in state.items() if value is not None}


def _reader(connection: Connection) -> Consumer:
    settings = connection.confluent(
        isolation_level="read_committed", enable_auto_commit=False, enable_partition_eof=True
    )
    # `earliest`: a topic whose first records were deleted is read from what is left.
    settings |= {
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
        "group.id": "mainstem.reader",
        "log_level": 2,
    }
    return Consumer(settings)
