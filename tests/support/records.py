"""What a read_committed consumer sees of a topic, and what it does not see any more."""

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition

from mainstem.client.connection import Connection
from mainstem.client.reader import arrived
from mainstem.client.topics import admin, describe
from mainstem.records import Record, build_batch, decode_header
from mainstem.records.record import assemble_batch, encode_record
from tests.support.raw import RawClient


def committed(connection: Connection, topic: str) -> list[Any]:
    """Every committed record of `topic`, partition by partition, as confluent-kafka messages."""
    wait_for_markers(connection)
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


def wait_for_markers(connection: Connection) -> None:
    """Until every transaction that was ended has its markers in its partitions: readers see no more than those do, and
    Apache Kafka answers before it writes them. Our log does not, and it is the only one that the tests read over TLS.
    """
    if connection.security.protocol != "PLAINTEXT":
        return
    until = time.monotonic() + 30
    for address in connection.bootstrap.split(","):
        try:
            raw = RawClient(address)
        except ConnectionRefusedError:  # a test took the broker down: another one has its transactions
            continue
        with raw:
            while (found := raw.call(66, 0, state_filters=["PrepareCommit", "PrepareAbort"])).transaction_states:
                assert time.monotonic() < until, found
                time.sleep(0.01)


def delete_before(connection: Connection, topic: str, offset: int) -> None:
    """Delete the records of partition 0 below `offset`."""
    for future in admin(connection).delete_records([ConfluentPartition(topic, 0, offset)]).values():
        future.result()


def append_with_strange_header(connection: Connection, topic: str, value: bytes) -> None:
    """A record in partition 0 with a header whose name is not UTF-8, which confluent-kafka does not write."""
    record = Record(0, int(time.time() * 1000), b"key", value, (("??", b"x"),))
    header = decode_header(build_batch([record]))
    batch = assemble_batch(header, encode_record(record, 0, 0).replace(b"??", b"\xff\xfe"))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    with RawClient(connection.bootstrap) as raw:
        answer = raw.call(0, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 0
