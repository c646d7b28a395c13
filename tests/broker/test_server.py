"""The broker starts and stops in order, and says what prevents it."""

import asyncio
import errno
import socket
import time

import pytest

import mainstem
from mainstem.broker import listeners
from mainstem.broker.config import BrokerConfig
from mainstem.broker.errors import AddressInUse
from mainstem.broker.server import Broker
from mainstem.core import SystemClock
from mainstem.log import LogConfig, LogDirectory
from mainstem.log.journal import Journal
from tests.log.support import batch
from tests.support.broker import Client, running, until
from tests.support.ports import free_port
from tests.support.raw import RawClient


def test_a_port_in_use_is_found_before_anything_is_written(tmp_path):
    async def check() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            directory = await LogDirectory.open(tmp_path, LogConfig(), clock=SystemClock())
            broker = Broker(BrokerConfig(port=taken.getsockname()[1]), directory)
            with pytest.raises(AddressInUse, match="is in use"):
                await broker.start()
            assert not directory.partitions
            await directory.close()

    asyncio.run(check())


@pytest.mark.parametrize("host", ["203.0.113.77", "no-such-host.invalid"])
def test_an_address_that_is_none_of_ours(tmp_path, host):
    async def check() -> None:
        with pytest.raises(AddressInUse, match="cannot listen"):
            async with running(tmp_path, SystemClock(), BrokerConfig(port=0, host=host)):
                pass

    asyncio.run(check())


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_g9_localhost_listens_on_both_loopbacks_and_advertises_an_address_that_works():
    with mainstem.embedded(broker=BrokerConfig(host="localhost", port=0)) as log:
        host, _, port = log.bootstrap.rpartition(":")
        assert host == "127.0.0.1"
        with RawClient(log.bootstrap) as raw:
            assert raw.call(3, 9, topics=[]).brokers[0].host == "127.0.0.1"
        if has_ipv6_loopback():
            socket.create_connection(("::1", int(port)), timeout=5).close()


@pytest.mark.skipif(not has_ipv6_loopback(), reason="needs IPv6")
def test_a_port_that_is_in_use_on_the_other_loopback_is_in_use(tmp_path):
    """Clients that try ::1 first talked to a stranger."""

    async def check() -> None:
        with socket.socket(socket.AF_INET6) as taken:
            taken.bind(("::1", free_port()))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(AddressInUse, match=rf"\[::1\]:{port} is in use"):
                async with running(tmp_path, SystemClock(), BrokerConfig(host="localhost", port=port)):
                    pass

    asyncio.run(check())


@pytest.mark.parametrize("how", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_localhost_without_ipv6_is_the_other_loopback(tmp_path, monkeypatch, how):
    bound = listeners._bound

    def without_ipv6(family, address, **kinds):
        if address[0] == "::1":
            raise OSError(how, "none here")
        return bound(family, address, **kinds)

    async def check() -> None:
        monkeypatch.setattr(listeners, "_bound", without_ipv6)
        async with running(tmp_path, SystemClock(), BrokerConfig(host="localhost", port=0)) as broker:
            assert [each.getsockname()[0] for each in broker.listeners[0]._sockets] == ["127.0.0.1"]

    asyncio.run(check())


def test_what_is_advertised_can_be_set(tmp_path):
    config = BrokerConfig(port=0, advertised_host="log.example", advertised_port=1234)

    async def check(directory) -> None:
        async with running(directory, SystemClock(), config) as broker:
            assert (broker.host, broker.port) == ("log.example", 1234)

    asyncio.run(check(tmp_path))


def test_stopping_answers_what_waits(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            client = await Client.connect(broker)
            topic = {"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10}]}
            await client.call(3, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(
                    client.call(1, 4, max_wait=3_600_000, min_bytes=1, max_bytes=10, topics=[topic])
                )
                log = broker.topics.by_name("t").logs[0]
                while not log._listeners:
                    await asyncio.sleep(0.001)
                await broker.stop()
                assert waiting.done() or await asyncio.wait_for(waiting, 60), "it would wait for an hour"
            assert waiting.result().responses[0].partitions[0].records == b""
            client.close()

    asyncio.run(check())


def test_stopping_takes_no_further_request_when_an_answer_leaves(tmp_path, monkeypatch):
    """Where the disk was slow, a producer went on until `stop_timeout_ms` was over."""

    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            sync = Journal.sync
            monkeypatch.setattr(Journal, "sync", lambda journal: (time.sleep(0.2), sync(journal)))
            client = await Client.connect(broker)
            records = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}

            async def send(end_offset: int) -> None:
                client.send(0, 9, acks=-1, timeout=30_000, topic_data=[records])
                await until(lambda: log.log_end_offset == end_offset, "it has arrived")

            await send(1)
            await send(2)
            stopping = asyncio.ensure_future(broker.stop())
            await asyncio.sleep(0)
            client.send(0, 9, acks=-1, timeout=30_000, topic_data=[records])
            await stopping
            assert log.log_end_offset == 2
            client.close()

    asyncio.run(check())


def test_stopping_twice_and_a_failed_task_do_no_harm(tmp_path):
    async def check() -> None:
        async with running(tmp_path, SystemClock()) as broker:

            async def fails() -> None:
                raise KeyError("a bug")

            task = broker.spawn(fails(), name="fails")
            await asyncio.wait([task])
            client = await Client.connect(broker)
            assert (await client.call(3, 4, topics=[])).brokers
            client.close()
            await broker.stop()

    asyncio.run(check())


def test_brokers_of_one_process_do_not_know_each_other():
    with (
        mainstem.embedded() as one,
        mainstem.embedded() as two,
        RawClient(one.bootstrap) as first,
        RawClient(two.bootstrap) as second,
    ):
        first.create_topic("only-here")
        assert "only-here" not in [each.name for each in second.call(3, 9, topics=None).topics]
        assert first.call(3, 9, topics=[]).cluster_id != second.call(3, 9, topics=[]).cluster_id
