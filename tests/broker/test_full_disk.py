"""A disk without room, as real clients see it: they are told to try again, and
when there is room everything goes on.
"""

import asyncio
import errno
import os

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.broker.transactions.errors import CoordinatorUnavailable
from mainstem.client.reader import arrived
from mainstem.core import SystemClock, TopicPartition
from mainstem.records import Record, build_batch
from tests.log.simulated_disk import SimulatedDisk
from tests.support.broker import committed_records, restarted, start, stop, until
from tests.support.raw import in_thread

GROWING = ("create", "write", "mkdir")
FACTS = TopicPartition("facts", 0)


class FullDisk(SimulatedDisk):
    full = False

    def _changing(self, call, path):
        if self.full and call in GROWING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super()._changing(call, path)


def create(bootstrap, name):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, 2, 1)]).values():
        made.result(30)


def read_all(bootstrap, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([Place("t", 0, 0)])
    found = []
    while len(found) < count:
        found += [message.value() for message in arrived(consumer, 1.0)]
    consumer.close()
    return found


def commit(bootstrap, offset):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        consumer.commit(offsets=[Place("t", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed(bootstrap):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    places = consumer.committed([Place("t", 0)], timeout=30)
    offset = places[0].offset
    consumer.close()
    return offset


def test_producers_wait_for_room_and_topics_can_be_created_again(tmp_path):
    disk = FullDisk(tmp_path)

    async def story():
        broker = await start(tmp_path, SystemClock(), disk=disk)
        bootstrap = f"{broker.host}:{broker.port}"
        await in_thread(create, bootstrap, "t")
        told = []
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "retry.backoff.ms": 20})
        for number in range(30):
            if number == 10:
                disk.full = True
                with pytest.raises(KafkaException) as refused:
                    await in_thread(create, bootstrap, "u")
                assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
            producer.produce("t", b"%d" % number, partition=0, on_delivery=lambda error, _: told.append(error))
            if number < 10:
                await in_thread(producer.flush, 30)
        partition = broker.topics.partition("t", 0)
        await in_thread(producer.flush, 0.5)
        assert (len(told), partition.high_watermark) == (10, 10), "the rest waits"
        disk.full = False
        assert await in_thread(producer.flush, 60) == 0
        assert told == [None] * 30
        await in_thread(create, bootstrap, "u")
        await in_thread(commit, bootstrap, 7)
        assert await in_thread(read_all, bootstrap, 30) == [b"%d" % number for number in range(30)]
        assert broker.log.error is None
        await stop(broker)

    asyncio.run(story())


def test_an_offset_that_finds_no_room_ends_the_log_and_a_start_with_room_goes_on(tmp_path):
    """A coordinator's memory is ahead of its log: only a start puts both right again. Nothing that was told is lost."""
    disk = FullDisk(tmp_path)

    async def story():
        broker = await start(tmp_path, SystemClock(), disk=disk)
        bootstrap = f"{broker.host}:{broker.port}"
        await in_thread(create, bootstrap, "t")
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        producer.produce("t", b"before", partition=0)
        assert await in_thread(producer.flush, 30) == 0
        await in_thread(commit, bootstrap, 1)
        disk.full = True
        with pytest.raises(KafkaException):
            await in_thread(commit, bootstrap, 2)
        await until(lambda: broker.log.error is not None, "the log is offline")
        disk.full = False
        broker = await restarted(broker, SystemClock(), disk.after_kill())
        bootstrap = f"{broker.host}:{broker.port}"
        assert await in_thread(committed, bootstrap) == 1
        assert await in_thread(read_all, bootstrap, 1) == [b"before"]
        await in_thread(commit, bootstrap, 2)
        assert await in_thread(committed, bootstrap) == 2
        await stop(broker)

    asyncio.run(story())


def transactional_batch(producer, value):
    return build_batch(
        [Record(0, 0, b"k", value)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )


def test_a_start_leaves_open_what_it_has_no_room_to_abort(tmp_path):
    """It ended there, at every try, and nothing could be deleted."""

    class FullForFacts(SimulatedDisk):
        full = True

        def _changing(self, call, path):
            if self.full and call in GROWING and path.parent.name == "facts-0":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super()._changing(call, path)

    async def story():
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, SystemClock(), disk=disk)
        await broker.topics.create("facts", 1, {})
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.partition(FACTS).append(transactional_batch(producer, b"of an earlier epoch"))
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.log.checkpoint()  # so that the start has nothing to write again
        full = FullForFacts(tmp_path, disk.after_kill().tree)
        broker = await restarted(broker, SystemClock(), full)
        transactions, facts = broker.transactions, broker.partition(FACTS)
        assert facts.last_stable_offset == 0
        identity = ("t", producer.producer_id, producer.producer_epoch)
        with pytest.raises(CoordinatorUnavailable):  # its commit would be one of both
            transactions.verify_or_add(*identity, FACTS, implicit_add=True)
        full.full = False
        transactions.expire()
        await until(lambda: facts.last_stable_offset == 2, "it is aborted once there is room")
        transactions.verify_or_add(*identity, FACTS, implicit_add=True)
        await facts.append(transactional_batch(producer, b"v"))
        await transactions.end("t", producer, commit=True, version=2)
        assert [record.value for record in await committed_records(facts)] == [b"v"]
        await stop(broker)

    asyncio.run(story())
