import asyncio

import pytest

from mainstem.client import BrokerUnavailable, Connection, UnknownTopic
from mainstem.client.cluster import Api, Cluster, Coordinator
from mainstem.core import TopicPartition
from tests.support.proxy import CuttingProxy


def run(connection, work):
    async def within():
        cluster = Cluster(connection)
        try:
            await cluster.open()
            return await work(cluster)
        finally:
            await cluster.close()
            await asyncio.sleep(0)

    return asyncio.run(within())


def test_the_clusters_features_are_known_after_open(connection):
    async def features(cluster):
        return cluster.features

    assert run(connection, features)["transaction.version"] == 2


def test_a_broker_that_ends_before_it_answers_is_passed_over(connection):
    async def features(cluster):
        return cluster.features

    with CuttingProxy(connection.bootstrap, cut_before_api=Api.API_VERSIONS, most_cuts=1) as proxy:
        assert run(Connection(proxy.address), features)["transaction.version"] == 2


def test_leaders_and_coordinators_are_found_and_connections_shared(connection, topic):
    async def ask(cluster):
        leaders = [await cluster.leader(TopicPartition(topic, partition)) for partition in range(3)]
        cluster.forget_leaders(topic)
        again = await cluster.leader(TopicPartition(topic, 0))
        while True:  # a fresh cluster makes the coordinators' topics only when it is asked
            try:
                coordinators = [await cluster.coordinator(kind, topic) for kind in Coordinator]
                break
            except BrokerUnavailable:
                await asyncio.sleep(0.1)
        cluster.forget_coordinator(Coordinator.GROUP, topic)
        return len({id(found) for found in (*leaders, again)}), all(c.connected() for c in coordinators)

    assert run(connection, ask) == (1, True)


def test_a_topic_that_is_missing_is_named(connection, name):
    async def ask(cluster):
        await cluster.leader(TopicPartition(name, 0))

    with pytest.raises(UnknownTopic, match=name):
        run(connection, ask)


def test_a_version_that_the_broker_lacks_is_told(connection):
    async def ask(cluster):
        await cluster.call(await cluster.coordinator(Coordinator.GROUP, "g"), Api.FIND_COORDINATOR, 99)

    with pytest.raises(Exception, match="99"):
        run(connection, ask)


def test_nobody_there_is_one_line():
    async def nothing(cluster):
        return None

    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        run(Connection("127.0.0.1:1"), nothing)


def test_a_broken_connection_is_opened_again(connection, topic):
    async def ask(cluster):
        first = await cluster.leader(TopicPartition(topic, 0))
        first.close()
        with pytest.raises(BrokerUnavailable):
            await cluster.call(first, Api.API_VERSIONS, 3, client_software_name="test", client_software_version="0")
        second = await cluster.leader(TopicPartition(topic, 0))
        return second is not first and second.connected()

    assert run(connection, ask)


def test_a_connection_to_a_broker_that_hangs_is_cut_off_at_the_end(connection):
    """What the broker did not take kept it open, and it was left to whoever collected it."""
    held = asyncio.Event()

    async def forward(reader, writer):
        while (data := await reader.read(65_536)) and not held.is_set():
            writer.write(data)
        await asyncio.Event().wait()

    async def hang(reader, writer):
        to_broker = await asyncio.open_connection(*connection.addresses[0])
        try:
            await asyncio.gather(forward(reader, to_broker[1]), forward(to_broker[0], writer))
        finally:
            for each in (to_broker[1], writer):
                each.transport.abort()

    async def within():
        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            cluster = Cluster(Connection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            await cluster.open()
            opened = await cluster._any()
            transport = opened._writer.transport
            held.set()
            transport.write(bytes(64 << 20))
            await cluster.close()
            await asyncio.sleep(0)
            return transport.get_extra_info("socket").fileno()

    assert asyncio.run(within()) == -1
