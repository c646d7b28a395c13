"""`mainstem.embedded()`: a whole log in a thread of this process."""

import asyncio
import socket
import threading

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

import mainstem
from mainstem.broker.config import BrokerConfig
from mainstem.broker.errors import AddressInUse
from mainstem.log import LogDirectoryInUse
from tests.support.raw import RawClient


def test_a_client_writes_and_reads():
    async def write_and_read(bootstrap: str) -> bytes:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait("t", b"value", key=b"key")
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    with mainstem.embedded() as log:
        assert asyncio.run(write_and_read(log.bootstrap)) == b"value"
        assert log.data.is_dir()
    assert not log.data.exists()


def test_a_given_directory_is_kept_and_served_again(tmp_path):
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("kept")
        raw.produce("kept", b"x")
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        assert raw.produce("kept", b"y") == 0
        asked = [{"name": "kept", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        assert raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0].offset == 2


def test_two_at_once_and_no_thread_is_left():
    before = threading.active_count()
    with mainstem.embedded() as one, mainstem.embedded() as two:
        assert one.bootstrap != two.bootstrap
    assert threading.active_count() == before


def test_what_prevents_the_start_is_raised_here(tmp_path):
    with mainstem.embedded(tmp_path), pytest.raises(LogDirectoryInUse), mainstem.embedded(tmp_path):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse), mainstem.embedded(broker=BrokerConfig(port=port)):
            pass


def test_an_error_of_the_program_passes_through_and_the_log_stops():
    with pytest.raises(KeyError), mainstem.embedded() as log:
        raise KeyError("the program's own")
    host, _, port = log.bootstrap.rpartition(":")
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=5)


def test_a_topic_is_made_with_its_settings():
    with mainstem.embedded() as log:
        log.create_topic("orders", partitions=3, config={"cleanup.policy": "compact"})
        admin = AdminClient({"bootstrap.servers": log.bootstrap})
        assert len(admin.list_topics("orders", timeout=30).topics["orders"].partitions) == 3
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"
        with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
            log.create_topic("orders")
