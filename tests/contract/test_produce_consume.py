"""Unmodified clients write and read: what one wrote, every other reads, byte for byte and in order."""

import asyncio
import itertools
import random
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.structs import TopicPartition
from confluent_kafka import OFFSET_END, Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec

from tests.contract.clients import CLIENTS, Log, Sent, consume, produce, wait_until
from tests.support.proxy import CuttingProxy

RECORDS = [
    Sent("first", "k1", (("trace", b"abc"), ("n", b"1"))),
    Sent("ünïcode ✓", "schlüssel"),
    Sent(None, "k1"),  # a tombstone
    Sent("no key"),
    Sent("x" * 20_000, "large"),
    Sent("", ""),
]

_written: dict[tuple[str, str], tuple[str, float, float]] = {}


@pytest.fixture(params=CLIENTS)
def written(request: pytest.FixtureRequest, log: Log, name: str) -> tuple[str, float, float]:
    """A topic with RECORDS by one of the clients, and when they were written; made once for all readers."""
    writer = request.param
    if (log.name, writer) not in _written:
        topic, began = log.create(name), time.time()
        produce(writer, log, topic, RECORDS)
        _written[log.name, writer] = (topic, began, time.time())
    return _written[log.name, writer]


@pytest.mark.parametrize("reader", CLIENTS)
def test_what_one_client_wrote_every_client_reads(log: Log, written: tuple[str, float, float], reader: str) -> None:
    topic, began, ended = written
    got = consume(reader, log, topic, len(RECORDS))
    assert [one.sent for one in got] == RECORDS
    assert [one.offset for one in got] == list(range(len(RECORDS)))
    assert all(began - 1 <= one.timestamp / 1000 <= ended + 1 for one in got)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("writer", ["aiokafka", "confluent"])
def test_compressed_batches_are_read_by_the_other_client(log: Log, topic: str, writer: str, compression: str) -> None:
    records = [Sent(f"value {number} " * 20, f"key {number}") for number in range(200)]
    produce(writer, log, topic, records, compression=compression)
    [reader] = {"aiokafka", "confluent"} - {writer}
    assert [one.sent for one in consume(reader, log, topic, len(records))] == records


@pytest.mark.parametrize("compression", ["snappy", "zstd"])
def test_compressed_batches_of_and_for_java(log: Log, name: str, compression: str) -> None:
    records = [Sent(f"value {number} " * 20) for number in range(50)]
    topic = log.create(name)
    produce("java", log, topic, records, compression=compression)
    assert [one.sent for one in consume("aiokafka", log, topic, 50)] == records
    produce("aiokafka", log, topic, records, compression=compression)
    assert [one.sent for one in consume("java", log, topic, 100)] == records * 2


def test_the_same_key_goes_to_the_same_partition_from_every_client(log: Log, name: str) -> None:
    """aiokafka and Java hash with murmur2; confluent-kafka does when told so."""
    topic = log.create(name, partitions=5)
    keys = [f"key-{number}" for number in range(40)]
    produce("aiokafka", log, topic, [Sent("a", key) for key in keys])
    produce("java", log, topic, [Sent("j", key) for key in keys])
    by_key: dict[str | None, set[int]] = {}
    for one in consume("confluent", log, topic, 80):
        by_key.setdefault(one.key, set()).add(one.partition)
    assert len(by_key) == 40
    assert {len(partitions) for partitions in by_key.values()} == {1}
    assert len(set().union(*by_key.values())) == 5


def test_order_and_offsets_hold_over_many_batches_and_partitions(log: Log, name: str) -> None:
    topic = log.create(name, partitions=3)
    producer = Producer(
        {"bootstrap.servers": log.bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 50}
    )
    expected: dict[int, list[str]] = {0: [], 1: [], 2: []}
    source = random.Random(7)
    for number in range(20_000):
        partition = source.randrange(3)
        expected[partition].append(str(number))
        producer.produce(topic, str(number), partition=partition)
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    got = consume("confluent", log, topic, 20_000)
    for partition, values in expected.items():
        mine = [one for one in got if one.partition == partition]
        assert [one.value for one in mine] == values
        assert [one.offset for one in mine] == list(range(len(values)))


def test_a_record_of_a_megabyte_travels_and_a_larger_one_is_refused(log: Log, topic: str) -> None:
    payload = random.Random(1).randbytes(1_000_000)
    producer = Producer({"bootstrap.servers": log.bootstrap, "message.max.bytes": 5_000_000})
    results: list[object] = []
    for value in (payload, payload * 2):
        producer.produce(topic, value, on_delivery=lambda error, _: results.append(error and error.name()))
    assert producer.flush(60) == 0
    assert results == [None, "MSG_SIZE_TOO_LARGE"]

    async def read() -> bytes:
        consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, max_partition_fetch_bytes=1000)
        async with consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            return bytes((await asyncio.wait_for(consumer.getone(), 30)).value)

    assert asyncio.run(read()) == payload  # larger than what was asked for: it must come nevertheless


def test_a_waiting_reader_gets_a_record_as_soon_as_it_is_written(log: Log, topic: str) -> None:
    async def run() -> float:
        consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, fetch_max_wait_ms=20_000)
        producer = AIOKafkaProducer(bootstrap_servers=log.bootstrap, acks="all")
        async with consumer, producer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            loop = asyncio.get_running_loop()
            first = loop.create_future()

            async def read() -> None:
                for _ in range(2):
                    one = await consumer.getone()
                    if not first.done():
                        first.set_result(one)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(read())
                await producer.send_and_wait(topic, b"wakes the reader")
                await asyncio.wait_for(asyncio.shield(first), 15)
                began = loop.time()
                await producer.send_and_wait(topic, b"and again")
            return loop.time() - began

    assert asyncio.run(run()) < 10  # far below the 20 s that the reader is ready to wait


def test_offsets_are_found_by_time(log: Log, topic: str) -> None:
    producer = Producer({"bootstrap.servers": log.bootstrap})
    base = int(time.time() * 1000) - 20 * 60_000  # retention takes what is older than a week
    for minute in range(10):
        producer.produce(topic, str(minute), timestamp=base + minute * 60_000)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "none"})

    def offset_at(timestamp: int) -> int:
        [found] = consumer.offsets_for_times([Place(topic, 0, timestamp)], timeout=10)
        return int(found.offset)

    assert offset_at(0) == 0
    assert offset_at(base + 3 * 60_000) == 3
    assert offset_at(base + 3 * 60_000 + 1) == 4
    assert offset_at(base + 60 * 60_000) == OFFSET_END
    assert consumer.get_watermark_offsets(Place(topic, 0), timeout=10) == (0, 10)
    consumer.close()
    admin = log.admin()
    place = Place(topic, 0)
    latest = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(10)
    assert (latest.offset, latest.timestamp) == (9, base + 9 * 60_000)


def test_a_reader_beyond_the_end_is_told_so(log: Log, topic: str) -> None:
    produce("confluent", log, topic, [Sent("one")])

    async def read() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=log.bootstrap, auto_offset_reset="none")
        async with consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 1000)
            await asyncio.wait_for(consumer.getone(), 30)

    with pytest.raises(OffsetOutOfRangeError):
        asyncio.run(read())


def test_an_unknown_topic_is_an_error_and_asking_does_not_make_it(log: Log, name: str) -> None:
    for _ in range(2):
        found = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "none"}).list_topics(name, timeout=10)
        error = found.topics[name].error
        assert error is not None
        assert error.name() == "UNKNOWN_TOPIC_OR_PART"


def test_an_idempotent_producer_that_repeats_itself_writes_once(
    log: Log, name: str, request: pytest.FixtureRequest
) -> None:
    """The connection is cut again and again while batches are in flight; what may have arrived is sent again."""
    if log.replicas > 1:  # several brokers name their own addresses: no proxy can stand between
        log = Log("kafka", request.getfixturevalue("kafka_broker").bootstrap, 1, log.data)
    topic = log.create(name)
    values = [f"{number:<100}" for number in range(4000)]
    with CuttingProxy(log.bootstrap, cut_after_bytes=40_000) as proxy:
        producer = Producer(
            {
                "bootstrap.servers": proxy.address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        for value in values:
            producer.produce(topic, value)
            producer.poll(0)
        assert producer.flush(60) == 0
    assert [one.value for one in consume("confluent", log, topic, len(values))] == values


def test_records_keep_coming_while_several_readers_and_writers_work(log: Log, name: str) -> None:
    topic = log.create(name, partitions=2)
    count = 2000

    async def run() -> list[list[bytes]]:
        async def write(writer: int) -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=log.bootstrap, enable_idempotence=True, linger_ms=1
            ) as producer:
                for number in range(count):
                    await producer.send(topic, f"{writer}-{number}".encode(), partition=writer % 2)

        async def read() -> list[bytes]:
            async with AIOKafkaConsumer(bootstrap_servers=log.bootstrap) as consumer:
                places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
                consumer.assign(places)
                await consumer.seek_to_beginning(*places)
                return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(3 * count)]

        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read()) for _ in range(2)]
            for writer in range(3):
                tasks.create_task(write(writer))
        return [reader.result() for reader in readers]

    for got in asyncio.run(run()):
        for writer, numbers in itertools.groupby(
            sorted(got, key=lambda v: int(v.split(b"-")[0])), lambda v: v.split(b"-")[0]
        ):
            assert [int(value.split(b"-")[1]) for value in numbers] == list(range(count)), writer


def test_a_topic_made_again_under_its_name_begins_at_zero(log: Log, name: str) -> None:
    admin = log.admin()
    for value in ("of the first", "of the second"):
        log.create(name)
        produce("confluent", log, name, [Sent(value), Sent(value)])
        assert [(one.offset, one.value) for one in consume("confluent", log, name, 2)] == [(0, value), (1, value)]
        admin.delete_topics([name])[name].result(30)
        wait_until(lambda: name not in admin.list_topics(timeout=10).topics, "the topic is gone")
