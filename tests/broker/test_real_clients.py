"""Unmodified Python clients: confluent-kafka (librdkafka) and aiokafka."""

import asyncio
import os
import time
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

import mainstem
from mainstem.client.reader import arrived
from mainstem.log import LogConfig

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def bootstrap(mainstem_log) -> str:
    return mainstem_log.bootstrap


@pytest.fixture
def name() -> str:
    return f"real-{uuid.uuid4().hex[:12]}"


def admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap, name, partitions=1, **config):
    new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    client = admin(bootstrap)  # kept: its futures fail when it goes
    for made in client.create_topics([new]).values():
        made.result(30)


def consumer(bootstrap, **settings):
    full = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    return Consumer({**full, "enable.auto.commit": False, **settings})


def read_all(reading, count, seconds=60):
    found, until = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < until:
        for message in arrived(reading, 0.5):
            assert message.error() is None, message.error()
            found.append(message)
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_writes_and_reads_every_codec(bootstrap, name, codec, idempotent):
    create(bootstrap, name, 3)
    failures = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 2}
    )
    for i in range(3000):
        producer.produce(
            name,
            key=b"%d" % i,
            value=b"v%d" % i * 20,
            partition=i % 3,
            headers=[("h", b"%d" % i)],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []
    reading = consumer(bootstrap)
    reading.assign([Place(name, i, 0) for i in range(3)])
    found = read_all(reading, 3000)
    reading.close()
    assert sorted(int(each.key()) for each in found) == list(range(3000))
    for partition in range(3):
        mine = [each for each in found if each.partition() == partition]
        assert [each.offset() for each in mine] == list(range(1000))
        assert [int(each.key()) for each in mine] == list(range(partition, 3000, 3))
        assert all(each.headers() == [("h", each.key())] for each in mine)


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_writes_and_reads_every_codec(bootstrap, name, codec):
    async def run() -> None:
        compression = None if codec == "none" else codec
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=2) as producer:
            sent = [await producer.send(name, b"v%d" % i, key=b"k") for i in range(1000)]
            assert [(await each).offset for each in sent] == list(range(1000))
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as reading:
            reading.assign([TopicPartition(name, 0)])
            values = []
            async with asyncio.timeout(60):
                while len(values) < 1000:
                    for records in (await reading.getmany(timeout_ms=500)).values():
                        values += [each.value for each in records]
            assert values == [b"v%d" % i for i in range(1000)]

    asyncio.run(run())


def test_a_seek_into_the_middle_of_a_batch(bootstrap, name):
    create(bootstrap, name)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for i in range(500):
        producer.produce(name, b"%d" % i)
    assert producer.flush(60) == 0
    reading = consumer(bootstrap)
    reading.assign([Place(name, 0, 321)])
    found = read_all(reading, 179)
    reading.close()
    assert [int(each.value()) for each in found] == list(range(321, 500))


def test_large_records(bootstrap, name):
    create(bootstrap, name, max_message_bytes="20000000")
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20_000_000})
    values = [os.urandom(size) for size in (3_000_000, 10_000_000, 10)]
    for value in values:
        producer.produce(name, value)
    assert producer.flush(60) == 0
    reading = consumer(bootstrap)
    reading.assign([Place(name, 0, 0)])
    found = read_all(reading, 3)
    reading.close()
    assert [each.value() for each in found] == values


def test_a_record_above_the_topics_limit_is_refused_by_name(bootstrap, name):
    create(bootstrap, name, max_message_bytes="1000")
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, os.urandom(5000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert [each.code() for each in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize("commit", [True, False])
def test_librdkafka_transactions(bootstrap, name, commit):
    create(bootstrap, name)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    for round_ in range(3):
        producer.begin_transaction()
        for i in range(100):
            producer.produce(name, b"%d" % (100 * round_ + i))
        if commit or round_ == 1:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)
    expected = list(range(300)) if commit else list(range(100, 200))
    reading = consumer(bootstrap, **{"isolation.level": "read_committed"})
    reading.assign([Place(name, 0, 0)])
    found = read_all(reading, len(expected))
    assert reading.consume(1, 0.3) == []
    reading.close()
    assert [int(each.value()) for each in found] == expected


def test_g8_aborted_records_reach_no_reader_of_committed_records(bootstrap, name):
    """From wherever it begins to read, and in fetches as small as can be: of two producers one aborts, amid the other's
    records, and a third one's transaction is open.
    """
    create(bootstrap, name, segment_bytes="1000")
    commits, aborts, stays = (
        Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}) for _ in range(3)
    )
    for producer in (commits, aborts, stays):
        producer.init_transactions(60)
    for number in range(12):
        for producer, value in ((commits, b"good %d" % number), (aborts, b"bad %d" % number)):
            producer.begin_transaction()
            producer.produce(name, value)
            producer.flush(60)
        commits.commit_transaction(60)
        commits.begin_transaction()
        commits.produce(name, b"good %d, too" % number)
        commits.flush(60)
        aborts.abort_transaction(60)
        commits.commit_transaction(60)
    stays.begin_transaction()
    stays.produce(name, b"open")
    stays.flush(60)

    expected = [b"good %d%b" % (number, too) for number in range(12) for too in (b"", b", too")]
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.max.bytes": 1_000}
    reading = consumer(bootstrap, **settings, **{"message.max.bytes": 1_000, "fetch.message.max.bytes": 150})
    for start in (0, 2, 5, 41):
        reading.assign([Place(name, 0, start)])
        found = []
        while not found or found[-1].error() is None:
            found += reading.consume(1, 10)
        assert [each.value() for each in found[:-1]] == expected[len(expected) - len(found) + 1 :]
        assert all(each.offset() >= start for each in found[:-1])
    reading.close()
    stays.abort_transaction(60)

    async def run() -> None:
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", max_partition_fetch_bytes=150
        ) as reading:
            reading.assign([TopicPartition(name, 0)])
            await reading.seek_to_beginning()
            async with asyncio.timeout(60):
                assert [(await reading.getone()).value for _ in expected] == expected
            assert await reading.getmany(timeout_ms=300) == {}

    asyncio.run(run())


def test_aiokafka_transactions_with_offsets(bootstrap, name):
    create(bootstrap, name)

    async def run() -> None:
        group = uuid.uuid4().hex
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex) as producer:
            for i in range(5):
                async with producer.transaction():
                    await producer.send(name, b"%d" % i)
                    await producer.send_offsets_to_transaction({TopicPartition(name, 0): i + 1}, group)
            await producer.begin_transaction()
            await producer.send(name, b"never")
            await producer.abort_transaction()
        async with AIOKafkaConsumer(
            name, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
        ) as reading:
            assert await reading.committed(TopicPartition(name, 0)) == 5
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as reading:
            reading.assign([TopicPartition(name, 0)])
            await reading.seek_to_beginning()
            async with asyncio.timeout(60):
                values = [(await reading.getone()).value for _ in range(5)]
            assert values == [b"%d" % i for i in range(5)]
            assert await reading.getmany(timeout_ms=300) == {}

    asyncio.run(run())


def test_a_group_of_two_shares_the_partitions(bootstrap, name):
    create(bootstrap, name, 4)
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(400):
        producer.produce(name, b"%d" % i, partition=i % 4)
    assert producer.flush(60) == 0
    group = uuid.uuid4().hex
    members = [consumer(bootstrap, **{"group.id": group, "session.timeout.ms": 10_000}) for _ in range(2)]
    for each in members:
        each.subscribe([name])
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    until = time.monotonic() + 90
    while time.monotonic() < until and not all(len(each.assignment()) == 2 for each in members):
        for each in members:
            each.poll(0.1)
    assert [len(each.assignment()) for each in members] == [2, 2]
    for each in members:
        each.seek(Place(name, each.assignment()[0].partition, 0))
        seen[members.index(each)] = {place.partition for place in each.assignment()}
        each.close()
    assert seen[0] | seen[1] == {0, 1, 2, 3}


def test_librdkafka_admin(bootstrap, name):
    client = admin(bootstrap)
    create(bootstrap, name, 1, retention_ms="5000")
    assert len(client.list_topics(name, timeout=30).topics[name].partitions) == 1
    for grown in client.create_partitions([NewPartitions(name, 3)]).values():
        grown.result(30)
    resource = ConfigResource(ResourceType.TOPIC, name)
    (described,) = client.describe_configs([resource]).values()
    assert described.result(30)["retention.ms"].value == "5000"
    assert client.describe_cluster().result(30).cluster_id
    client = admin(bootstrap)  # the old one keeps what it knew: one partition
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(10):
        producer.produce(name, b"x", partition=2, timestamp=int(time.time() * 1000) - 1000 + i)
    assert producer.flush(30) == 0
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 10), (OffsetSpec.max_timestamp(), 9)):
        (found,) = client.list_offsets({Place(name, 2): spec}).values()
        assert found.result(30).offset == offset
    (deleted,) = client.delete_records([Place(name, 2, 4)]).values()
    assert deleted.result(30).low_watermark == 4
    for gone in client.delete_topics([name]).values():
        gone.result(30)
    with pytest.raises(KafkaException):
        client.create_topics([NewTopic("no/slash", 1, 1)])["no/slash"].result(30)


@pytest.fixture(scope="module")
def tidy():
    """A log that looks for what may go all the time."""
    with mainstem.embedded(log=LogConfig(housekeeping_interval_ms=20)) as log:
        yield log.bootstrap


def write(bootstrap, name, records, *, ms_ago=0):
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for key, value in records:
        producer.produce(name, key=key, value=value, timestamp=int(time.time() * 1000) - ms_ago)
        producer.flush(30)


def wait_for(condition, what, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def kept(bootstrap, name):
    """Offset, key and value of all that a consumer from the earliest offset finds."""
    reading = consumer(bootstrap, **{"enable.partition.eof": True})
    reading.assign([Place(name, 0, OFFSET_BEGINNING)])
    found = []
    while True:
        for message in arrived(reading, 1.0):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                reading.close()
                return found
            found.append((message.offset(), message.key(), message.value()))


def first_offset(bootstrap, name):
    reading = consumer(bootstrap)
    low, _ = reading.get_watermark_offsets(Place(name, 0), timeout=30)
    reading.close()
    return low


@pytest.mark.parametrize("limit", [{"retention_bytes": "1000"}, {"retention_ms": "600000"}])
def test_what_retention_removes_is_gone_for_a_client_and_the_rest_is_not(tidy, name, limit):
    create(tidy, name, segment_bytes="500", **limit)
    write(tidy, name, [(b"k", b"%03d" % number * 30) for number in range(40)], ms_ago=3_600_000)
    write(tidy, name, [(b"k", b"last")])
    wait_for(lambda: first_offset(tidy, name) >= 30, "retention has removed the first segments")
    found = kept(tidy, name)
    assert found[-1] == (40, b"k", b"last")
    assert [offset for offset, _, _ in found] == list(range(found[0][0], 41))
    assert all(value == b"%03d" % offset * 30 for offset, _, value in found[:-1])


def test_what_compaction_leaves_is_the_last_value_of_each_key_for_a_client(tidy, name):
    create(tidy, name, cleanup_policy="compact", segment_bytes="500", min_cleanable_dirty_ratio="0.0",
           delete_retention_ms="0")  # fmt: skip
    records = [(b"%d" % (number % 3), b"%03d" % number * 10) for number in range(60)]
    records += [(b"1", None), *[(b"filler", b"%02d" % number * 20) for number in range(10)]]
    write(tidy, name, records)
    wait_for(lambda: len(kept(tidy, name)) < 25, "compaction has removed most")
    found = kept(tidy, name)
    assert all(records[offset] == (key, value) for offset, key, value in found), "every record keeps its offset"
    state = {key: value for _, key, value in found if value is not None}
    assert {key: state.get(key) for key in (b"0", b"2", b"filler")} == {
        b"0": b"057" * 10,
        b"2": b"059" * 10,
        b"filler": b"09" * 20,
    }
    last = {key: value for _, key, value in found}
    assert last.get(b"1") is None
