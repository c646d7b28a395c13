"""A directory and its broker are opened and closed together."""

import asyncio
import socket
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.broker.config import BrokerConfig
from mainstem.broker.errors import AddressInUse
from mainstem.broker.node import serving
from mainstem.client.reader import arrived
from mainstem.log import LogConfig, LogDirectoryInUse, SystemDisk
from mainstem.log.disk import File

ANY_PORT = BrokerConfig(port=0)


def test_a_directory_serves_one_broker_at_a_time_and_again_afterwards(tmp_path):
    async def check() -> None:
        async with serving(tmp_path, ANY_PORT, LogConfig()) as broker:
            cluster_id = broker.topics.cluster_id
            with pytest.raises(LogDirectoryInUse):
                async with serving(tmp_path, ANY_PORT, LogConfig()):
                    pass
        async with serving(tmp_path, ANY_PORT, LogConfig()) as broker:
            assert broker.topics.cluster_id == cluster_id

    asyncio.run(check())


def test_a_broker_that_cannot_listen_lets_go_of_the_directory(tmp_path):
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(AddressInUse):
                async with serving(tmp_path, BrokerConfig(port=taken.getsockname()[1]), LogConfig()):
                    pass
        async with serving(tmp_path, ANY_PORT, LogConfig()):
            pass

    asyncio.run(check())


MANY = 2_000


class OpenedSegments(SystemDisk):
    """Which segments of topic `many` were opened."""

    def __init__(self) -> None:
        self.opened: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> File:
        if path.suffix == ".log" and path.parent.name.startswith("many-"):
            self.opened.append(path)
        return super().open(path, create=create)


def produce_to_all(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    failures = []
    for number in range(MANY):
        producer.produce(
            "many", value, partition=number, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []


def read_all(bootstrap: str, each: int) -> dict[int, list[bytes]]:
    """What is in each partition, until each has so many."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "many", "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition("many", number, 0) for number in range(MANY)])
    found: dict[int, list[bytes]] = {}
    until = time.monotonic() + 60
    while sum(map(len, found.values())) < each * MANY and time.monotonic() < until:
        for message in arrived(consumer, 0.5):
            found.setdefault(message.partition(), []).append(message.value())
    consumer.close()
    return found


def test_two_thousand_partitions_are_made_written_and_there_after_a_restart(tmp_path):
    """By a client; a clean start reads none of their segments."""

    def make(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("many", MANY, 1)])["many"].result(60)
        produce_to_all(bootstrap, b"before")

    async def check() -> None:
        async with serving(tmp_path, ANY_PORT, LogConfig()) as broker:
            await asyncio.to_thread(make, f"127.0.0.1:{broker.port}")
        disk = OpenedSegments()
        async with serving(tmp_path, ANY_PORT, LogConfig(), disk=disk) as broker:
            assert broker.log.recovered_cleanly
            assert disk.opened == []
            bootstrap = f"127.0.0.1:{broker.port}"
            await asyncio.to_thread(produce_to_all, bootstrap, b"after")
            found = await asyncio.to_thread(read_all, bootstrap, 2)
            assert found == {number: [b"before", b"after"] for number in range(MANY)}

    asyncio.run(check())
