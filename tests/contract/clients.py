"""The clients that the suite runs: aiokafka, confluent-kafka and Kafka's Java tools, behind one pair of calls."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import kafka_tools

CLIENTS = ("aiokafka", "confluent", "java")

Headers = tuple[tuple[str, bytes], ...]


class Sent(msgspec.Struct, frozen=True):
    """A record as it is given to a client."""

    value: str | None
    key: str | None = None
    headers: Headers = ()


class Got(msgspec.Struct, frozen=True):
    """A record as a client shows it."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: Headers = ()
    timestamp: int = 0

    @property
    def sent(self) -> Sent:
        return Sent(self.value, self.key, self.headers)


class Log(msgspec.Struct, frozen=True):
    """What is tested: its address, how many replicas it keeps, and the data directory of (one of) its brokers."""

    name: str
    bootstrap: str
    replicas: int
    data: Path

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """Create it and wait until it can be written to; dots of a setting's name are underscores.

        Retention is off: the records of tests are of any time.
        """
        config = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in settings.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, self.replicas, config=config)])[topic].result(30)
        wait_until(lambda: leaders_of(admin, topic) == partitions, f"{topic} has leaders")
        return topic


def leaders_of(admin: AdminClient, topic: str) -> int:
    try:
        found = admin.list_topics(topic, timeout=10).topics[topic]
    except KafkaException:
        return 0
    return sum(partition.leader >= 0 for partition in found.partitions.values())


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not in {seconds} s: {what}"
        time.sleep(0.05)


# --- produce ----------------------------------------------------------------------------------------------------------


def produce(client: str, log: Log, topic: str, records: Sequence[Sent], *, compression: str = "none") -> None:
    """Send `records` in order and return when all are acknowledged by all replicas."""
    {"aiokafka": _aiokafka_produce, "confluent": _confluent_produce, "java": _java_produce}[client](
        log, topic, records, compression
    )


def _aiokafka_produce(log: Log, topic: str, records: Sequence[Sent], compression: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=log.bootstrap,
            acks="all",
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
        )
        async with producer:
            sent = [
                await producer.send(topic, _bytes(one.value), _bytes(one.key), headers=list(one.headers))
                for one in records
            ]
            await asyncio.gather(*sent)

    asyncio.run(run())


def _confluent_produce(log: Log, topic: str, records: Sequence[Sent], compression: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": log.bootstrap,
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 5,
        }
    )
    failed: list[str] = []
    for one in records:
        producer.produce(
            topic,
            one.value,
            one.key,
            headers=list(one.headers),
            on_delivery=lambda error, _: failed.append(error.name()) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, f"{topic}: {failed[0]}"


def _java_produce(log: Log, topic: str, records: Sequence[Sent], compression: str) -> None:
    lines = []
    for one in records:
        headers = ",".join(f"{key}={value.decode()}" for key, value in one.headers) or "∅"
        lines.append("\t".join((headers, "∅" if one.key is None else one.key, "∅" if one.value is None else one.value)))
    kafka_tools.run(
        "kafka-console-producer",
        *("--bootstrap-server", log.bootstrap, "--topic", topic, "--compression-codec", compression),
        *("--command-property", "acks=all"),
        *("--reader-property", "parse.headers=true", "--reader-property", "parse.key=true"),
        *("--reader-property", "null.marker=∅", "--reader-property", "headers.separator=,"),
        *("--reader-property", "headers.key.separator==", "--reader-property", "headers.delimiter=\t"),
        stdin="\n".join(lines) + "\n",
    )


# --- consume ----------------------------------------------------------------------------------------------------------


def consume(client: str, log: Log, topic: str, count: int, *, committed_only: bool = False) -> list[Got]:
    """The first `count` records of the topic's partitions, ordered by partition and offset."""
    got = {"aiokafka": _aiokafka_consume, "confluent": _confluent_consume, "java": _java_consume}[client](
        log, topic, count, "read_committed" if committed_only else "read_uncommitted"
    )
    return sorted(got, key=lambda one: (one.partition, one.offset))


def _aiokafka_consume(log: Log, topic: str, count: int, isolation: str) -> list[Got]:
    async def run() -> list[Got]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=log.bootstrap, isolation_level=isolation, enable_auto_commit=False
        )
        async with consumer:
            partitions = [TopicPartition(topic, number) for number in await _partitions_of(consumer, topic)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            got: list[Got] = []
            while len(got) < count:
                one = await asyncio.wait_for(consumer.getone(), 30)
                got.append(
                    Got(one.partition, one.offset, _text(one.key), _text(one.value), tuple(one.headers), one.timestamp)
                )
            return got

    return asyncio.run(run())


async def _partitions_of(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    await consumer._client.set_topics([topic])  # the public call knows subscribed topics only
    return set(consumer._client.cluster.partitions_for_topic(topic))


def _confluent_consume(log: Log, topic: str, count: int, isolation: str) -> list[Got]:
    from confluent_kafka import OFFSET_BEGINNING
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([Place(topic, number, OFFSET_BEGINNING) for number in partitions])
        got: list[Got] = []
        until = time.monotonic() + 30
        while len(got) < count:
            assert time.monotonic() < until, f"{len(got)} of {count} records"
            for one in consumer.consume(count - len(got), 1.0):
                assert one.error() is None, one.error()
                headers = tuple(one.headers() or ())
                got.append(
                    Got(
                        one.partition(), one.offset(), _text(one.key()), _text(one.value()), headers, one.timestamp()[1]
                    )
                )
        return got
    finally:
        consumer.close()


def _java_consume(log: Log, topic: str, count: int, isolation: str) -> list[Got]:
    shown = ("timestamp", "partition", "offset", "headers", "key")
    result = kafka_tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", log.bootstrap, "--topic", topic, "--from-beginning", "--max-messages", str(count)),
        *("--isolation-level", isolation, "--timeout-ms", "60000"),
        *(part for what in shown for part in ("--formatter-property", f"print.{what}=true")),
        *("--formatter-property", "null.literal=∅", "--formatter-property", "key.separator=\t"),
        *("--formatter-property", "headers.separator=,"),
    )
    return [_java_line(line) for line in result.stdout.splitlines()]


def _java_line(line: str) -> Got:
    timestamp, partition, offset, headers, key, value = line.split("\t")
    return Got(
        int(partition.removeprefix("Partition:")),
        int(offset.removeprefix("Offset:")),
        None if key == "∅" else key,
        None if value == "∅" else value,
        ()
        if headers == "NO_HEADERS"
        else tuple((name, text.encode()) for name, _, text in (one.partition(":") for one in headers.split(","))),
        int(timestamp.partition(":")[2]),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
