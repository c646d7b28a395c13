"""Transactions with unmodified clients: all or nothing, fenced, together with the offsets they were made from."""

import asyncio
import re
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place

from tests.contract.clients import CLIENTS, Log, Sent, consume, produce, wait_until
from tests.support import kafka_tools


def transactional(log: Log, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": log.bootstrap, "transactional.id": name, "linger.ms": 0, **settings})
    producer.init_transactions(60)
    return producer


def write(producer: Producer, topic: str, *values: str, commit: bool) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


@pytest.mark.parametrize("reader", CLIENTS)
def test_a_committed_reader_sees_whole_transactions_and_nothing_of_aborted_ones(
    log: Log, name: str, reader: str
) -> None:
    topic = log.create(name)
    producer = transactional(log, name)
    write(producer, topic, "a", "b", commit=True)
    write(producer, topic, "never", "seen", commit=False)
    write(producer, topic, "c", commit=True)
    produce("confluent", log, topic, [Sent("plain")])
    committed = consume(reader, log, topic, 4, committed_only=True)
    assert [one.value for one in committed] == ["a", "b", "c", "plain"]
    everything = consume(reader, log, topic, 6)
    assert [one.value for one in everything] == ["a", "b", "never", "seen", "c", "plain"]
    # A transaction's end takes an offset of its own: 0 a, 1 b, 2 end, 3 never, 4 seen, 5 end, 6 c, 7 end, 8 plain.
    assert [one.offset for one in committed] == [0, 1, 6, 8]


def test_a_committed_reader_waits_for_the_end_of_an_open_transaction(log: Log, topic: str, name: str) -> None:
    producer = transactional(log, name)
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(30)
    produce("confluent", log, topic, [Sent("after")])
    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    assert consumer.consume(2, 1.0) == []
    assert consumer.get_watermark_offsets(Place(topic, 0), timeout=10) == (0, 0)  # the last stable offset
    producer.commit_transaction(30)
    got: list[bytes] = []
    wait_until(lambda: bool(got.extend(m.value() for m in consumer.consume(2, 0.5)) or len(got) == 2), "both come")
    assert got == [b"open", b"after"]
    consumer.close()


def test_a_transaction_spans_topics_and_partitions(log: Log, name: str) -> None:
    topics = [log.create(f"{name}-{number}", partitions=3) for number in range(2)]

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=name) as producer:
            for attempt in range(4):
                await producer.begin_transaction()
                for topic in topics:
                    for partition in range(3):
                        await producer.send(topic, str(attempt).encode(), partition=partition)
                await (producer.commit_transaction() if attempt % 2 == 0 else producer.abort_transaction())

    asyncio.run(run())
    for topic in topics:
        got = consume("confluent", log, topic, 6, committed_only=True)
        assert [(one.partition, one.value) for one in got] == [(p, v) for p in range(3) for v in ("0", "2")]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_are_committed_with_the_records_or_not_at_all(log: Log, name: str, commit: bool) -> None:
    source, target = log.create(f"{name}-in"), log.create(f"{name}-out")
    produce("confluent", log, source, [Sent(str(number)) for number in range(5)])
    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = transactional(log, name)
    producer.begin_transaction()
    until, moved = time.monotonic() + 60, 0
    while moved < 5 and time.monotonic() < until:
        for message in consumer.consume(5 - moved, 1.0):
            producer.produce(target, message.value() + b"!")
            moved += 1
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
    )
    (producer.commit_transaction if commit else producer.abort_transaction)(30)

    committed = consumer.committed([Place(source, 0)], timeout=30)
    assert committed[0].offset == (5 if commit else -1001)
    consumer.close()
    if commit:
        assert [one.value for one in consume("aiokafka", log, target, 5, committed_only=True)] == [
            f"{n}!" for n in range(5)
        ]


def test_the_second_producer_of_a_name_fences_the_first(log: Log, topic: str, name: str) -> None:
    first = transactional(log, name)
    first.begin_transaction()
    first.produce(topic, "of the first")
    first.flush(30)
    second = transactional(log, name)  # ends the first one's open transaction
    write(second, topic, "of the second", commit=True)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(30)
    assert caught.value.args[0].name() in ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    assert [one.value for one in consume("java", log, topic, 1, committed_only=True)] == ["of the second"]


def test_aiokafka_is_fenced_too(log: Log, topic: str, name: str) -> None:
    async def run() -> None:
        first = AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=name)
        second = AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=name)
        async with first:
            await first.begin_transaction()
            await first.send_and_wait(topic, b"of the first")
            async with second:
                async with second.transaction():
                    await second.send_and_wait(topic, b"of the second")
                with pytest.raises((ProducerFenced, KafkaError)):
                    await first.commit_transaction()

    asyncio.run(run())
    assert [one.value for one in consume("confluent", log, topic, 1, committed_only=True)] == ["of the second"]


def test_a_transaction_that_is_left_open_is_aborted_by_its_timeout(log: Log, topic: str, name: str) -> None:
    producer = transactional(log, name, **{"transaction.timeout.ms": 2000})
    producer.begin_transaction()
    producer.produce(topic, "forgotten")
    producer.flush(30)
    produce("confluent", log, topic, [Sent("plain")])
    got = consume("confluent", log, topic, 1, committed_only=True)  # Kafka looks every 10 s
    assert [one.value for one in got] == ["plain"]


def test_javas_transactional_producer_and_the_transactions_tool(log: Log, topic: str, name: str) -> None:
    kafka_tools.run(
        "kafka-producer-perf-test",
        *("--bootstrap-server", log.bootstrap, "--topic", topic, "--num-records", "2000", "--record-size", "50"),
        *("--throughput", "-1", "--transactional-id", name, "--transaction-duration-ms", "50"),
    )
    assert len(consume("confluent", log, topic, 2000, committed_only=True)) == 2000
    listed, described, producers = kafka_tools.run_together(
        ("kafka-transactions", "--bootstrap-server", log.bootstrap, "list"),
        ("kafka-transactions", "--bootstrap-server", log.bootstrap, "describe", "--transactional-id", name),
        (
            "kafka-transactions",
            "--bootstrap-server",
            log.bootstrap,
            "describe-producers",
            "--topic",
            topic,
            "--partition",
            "0",
        ),
    )
    assert re.search(rf"^{name}\s+\d+\s+\d+\s+CompleteCommit", listed, re.MULTILINE)
    assert "CompleteCommit" in described
    assert len(producers.splitlines()) == 2  # a heading and the one producer


def test_many_small_transactions_in_a_row(log: Log, topic: str, name: str) -> None:
    """One that begins right after another's end meets the coordinator while it is busy: clients must not notice."""
    producer = transactional(log, name)
    for number in range(100):
        write(producer, topic, str(number), commit=number % 5 != 0)
    expected = [str(number) for number in range(100) if number % 5]
    assert [one.value for one in consume("confluent", log, topic, 80, committed_only=True)] == expected


def test_a_reader_that_joins_in_the_middle_knows_the_aborted_ones(log: Log, topic: str, name: str) -> None:
    """The list of aborted transactions comes with each fetch, from whatever offset it starts."""
    first, second = transactional(log, f"{name}-1"), transactional(log, f"{name}-2")
    for producer in (first, second):
        producer.begin_transaction()
    for number in range(20):
        (first if number % 2 else second).produce(topic, str(number))
        (first if number % 2 else second).flush(30)
    first.abort_transaction(30)
    second.commit_transaction(30)

    async def read_from(offset: int, count: int) -> list[str]:
        consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, isolation_level="read_committed")
        async with consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, offset)
            return [(await asyncio.wait_for(consumer.getone(), 30)).value.decode() for _ in range(count)]

    assert asyncio.run(read_from(9, 5)) == ["10", "12", "14", "16", "18"]
