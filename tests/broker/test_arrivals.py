"""What clients send: frames from any split of the stream, and bounds on what they can make us hold of it."""

import asyncio
import contextlib
import socket
import struct
import time

import psutil
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

import mainstem
from mainstem.broker import request_memory
from mainstem.broker.arriving_frame import ArrivingFrame
from mainstem.broker.config import BrokerConfig
from mainstem.core import ManualClock, SystemClock
from mainstem.records import Record, build_batch
from mainstem.wire import codec
from mainstem.wire.errors import Code
from tests.support.broker import frame, running, until
from tests.support.properties import examples
from tests.support.raw import RawClient, connect, is_closed, read_answer


@settings(max_examples=examples(30))
@given(st.data())
def test_any_split_of_the_stream_gives_the_same_frames(mainstem_log, data):
    texts = data.draw(st.lists(st.sampled_from((1, 10, 40_000, 100_000)), min_size=1, max_size=6))
    stream = b"".join(
        frame(11, 6, i, {"protocols": [{"name": "p", "metadata": b"x" * size}]}, flexible=True)
        for i, size in enumerate(texts)
    )
    with connect(mainstem_log) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while stream:
            cut = data.draw(st.integers(1, min(len(stream), 120_000)))
            connection.sendall(stream[:cut])
            stream = stream[cut:]
        for i in range(len(texts)):
            correlation_id, body = read_answer(connection)
            assert correlation_id == i
            assert codec.decode_response(11, 6, body[1:]).error_code is Code.invalid_group_id


@pytest.mark.parametrize(("sent", "said"), [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"\x16\x03\x01\x02\0\1", "TLS")])
def test_who_took_the_port_for_another_ones_is_told_of_with_what_he_sent(tmp_path, monkeypatch, sent, said):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.connection.log", logs)

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check(tmp_path))
    (told,) = (each.kwargs["reason"] for each in logs.calls if each.args == ("connection_refused",))
    assert f"; these bytes are {said}'s" in told


def test_more_requests_than_there_may_be_come_at_once_and_are_all_answered_in_their_order():
    with mainstem.embedded(broker=BrokerConfig(port=0, queued_max_requests=3)) as log, connect(log) as client:
        large = frame(3, 4, 998, {"topics": [{"name": "!" * 250}] * 600})
        client.sendall(b"".join(frame(18, 0, number, {}) for number in range(998)) + large + frame(18, 0, 999, {})[:9])
        assert [read_answer(client)[0] for _ in range(999)] == [*range(999)]
        client.sendall(frame(18, 0, 999, {})[9:])
        assert read_answer(client)[0] == 999


def test_requests_of_a_byte_take_no_more_memory_than_they_have_bytes(tmp_path):
    """Behind one that waits for long, 13,000 came with each read, and were kept as objects: eighteen times as much."""

    async def check(directory) -> None:
        async with running(directory, SystemClock(), BrokerConfig(port=0)) as broker:
            await broker.topics.create("t", 1, {})
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
            fetch = {"max_wait": 3_600_000, "min_bytes": 1, "max_bytes": 1000}
            _, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(frame(1, 4, 1, fetch | {"topics": [{"topic": "t", "partitions": wanted}]}))
            await until(lambda: any(each._unanswered for each in broker.connections), "it waits")
            (connection,) = broker.connections
            writer.write((struct.pack(">i", 1) + b"x") * 100_000)
            await until(lambda: connection._reading_paused, "it has sent enough")
            assert len(connection._arrivals.requests) <= broker.config.queued_max_requests
            assert (
                len(connection._arrivals.requests) + len(connection._arrivals._unsplit)
                <= connection._arrivals.held
                <= 2 * 65_536
            )
            writer.transport.abort()

    asyncio.run(check(tmp_path))


def test_what_is_announced_and_not_sent_gets_little_memory(tmp_path):
    """Four bytes that announce a hundred megabytes got them."""

    async def check(directory) -> None:
        async with running(directory, ManualClock(), BrokerConfig(port=0, queued_max_request_bytes=1 << 20)) as broker:
            connections = [await asyncio.open_connection(broker.host, broker.port) for _ in range(10)]
            for _, writer in connections:
                writer.write(struct.pack(">i", 100_000_000) + b"x")
            await until(
                lambda: sum(c._arrivals._arriving is not None for c in broker.connections) == 10, "all have begun"
            )
            assert sum(len(c._arrivals._arriving.room) for c in broker.connections) == 9 + (1 << 20), "one has its turn"
            for _, writer in connections:
                writer.close()
            await until(lambda: not broker.connections, "they are gone")
            assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))


def test_idle_clients_hold_nothing_of_what_they_have_sent():
    """Each kept its last large request for as long as it was open."""
    with mainstem.embedded(child=True) as log, contextlib.ExitStack() as clients:
        memory = psutil.Process(log.process_id).memory_info
        log.create_topic("t")
        batch = build_batch([Record(0, int(time.time() * 1000), None, bytes(900_000))])
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        before = memory().rss
        for _ in range(150):
            raw = clients.enter_context(RawClient(log.bootstrap))
            raw.call(0, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=data)
        assert memory().rss - before < 50_000_000


def test_large_requests_of_many_share_one_budget_and_are_all_answered(tmp_path):
    """Each sends a part first, then they all go on: parts of requests must not fill the budget for ever."""
    limit = 1 << 20
    large = frame(3, 4, 1, {"topics": [{"name": "!" * 250}] * 4000})
    assert len(large) > limit // 2
    most = []

    async def ask(broker, begun) -> None:
        reader, writer = await asyncio.open_connection(broker.host, broker.port)
        writer.write(large[: len(large) // 2])
        await writer.drain()
        await begun.wait()
        writer.write(large[len(large) // 2 :])
        size = int.from_bytes(await reader.readexactly(4), "big")
        most.append(broker.request_memory.held)
        assert len(await reader.readexactly(size)) == size
        writer.close()

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit)
        async with running(directory, ManualClock(), config) as broker, asyncio.TaskGroup() as group:
            begun = asyncio.Event()
            for _ in range(12):
                group.create_task(ask(broker, begun))
            await until(lambda: sum(c._arrivals.waits_for_room for c in broker.connections) == 11, "the others wait")
            begun.set()
        assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))
    assert max(most) <= limit + len(large)


@pytest.mark.parametrize("first", [12_000, 19_531, 40_000, 65_528])
def test_a_request_larger_than_the_room_is_copied_a_few_times_however_it_comes(tmp_path, monkeypatch, first):
    """Four kilobytes at a time, one of 36 MB kept the log busy for a minute."""
    limit = 1 << 20
    large = frame(3, 4, 1, {"topics": [{"name": "!" * 250}] * 6000})
    assert len(large) > 1.4 * limit
    copied, grow = [], ArrivingFrame.grow

    def count(arriving):
        copied.append(len(arriving.room))
        grow(arriving)

    monkeypatch.setattr(ArrivingFrame, "grow", count)

    async def ask(broker) -> None:
        reader, writer = await asyncio.open_connection(broker.host, broker.port)
        writer.write(large[:first])
        await until(lambda: any(each._arrivals._arriving is not None for each in broker.connections), "it has begun")
        for start in range(first, len(large), 50_000):
            writer.write(large[start : start + 50_000])
            await writer.drain()
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert len(await reader.readexactly(size)) == size
        writer.close()

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit)
        async with running(directory, ManualClock(), config) as broker:
            await ask(broker)
            assert sum(copied) < 2 * len(large), "alone"
            copied.clear()
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(ask(broker))
            assert sum(copied) < 4 * 4 * len(large), "four at once"
        assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
def test_clients_that_stop_amid_their_requests_do_not_keep_others_out(tmp_path, monkeypatch, address):
    """Two thousand of them with five bytes each used up the budget, and nobody was read from any more."""
    monkeypatch.setattr(request_memory, "PATIENCE_SECONDS", 1.5)
    limit = 1 << 20
    large = frame(3, 4, 1, {"topics": [{"name": "!" * 250}] * 2000})

    async def ask(reader, writer, request) -> None:
        writer.write(request)
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert len(await reader.readexactly(size)) == size

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit)
        async with running(directory, SystemClock(), config) as broker:
            stalled = [await asyncio.open_connection(broker.host, broker.port) for _ in range(6)]
            for _, writer in stalled:
                writer.write(struct.pack(">i", 600_000) + bytes(200_000))
            await until(
                lambda: sum(c._arrivals.waits_for_room for c in broker.connections) == 4, "one has room, one its turn"
            )
            other = await asyncio.open_connection(broker.host, broker.port, local_addr=(address, 0))
            async with asyncio.timeout(60):
                for number in range(3):
                    await ask(*other, frame(18, 0, number, {}))
                await ask(*other, large)
            for _, writer in stalled:
                writer.close()
            other[1].close()
        assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))


def test_a_request_behind_one_that_waits_for_long_keeps_nobody_out(tmp_path):
    """A fetch that waits for an hour, and behind it more than the budget: nobody else was read from."""
    large = frame(3, 4, 1, {"topics": [{"name": "!" * 250}] * 480})

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=1 << 20)
        async with running(directory, SystemClock(), config) as broker:
            await broker.topics.create("t", 1, {})
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
            topics = [{"topic": "t", "partitions": wanted}]
            fetch = {"max_wait": 3_600_000, "min_bytes": 1, "max_bytes": 1000, "topics": topics}
            _, greedy = await asyncio.open_connection(broker.host, broker.port)
            greedy.write(frame(1, 4, 1, fetch) + struct.pack(">i", 3 << 20) + bytes(3 << 20))
            await until(
                lambda: any(each._arrivals.waits_for_room for each in broker.connections), "there is no room for it"
            )
            reader, writer = await asyncio.open_connection(broker.host, broker.port, local_addr=("127.0.0.2", 0))
            writer.write(large)
            async with asyncio.timeout(20):
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
            writer.close()
            greedy.transport.abort()
        assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))


def test_a_frame_above_the_limit_is_refused():
    with mainstem.embedded(broker=BrokerConfig(port=0, socket_request_max_bytes=1000)) as log:
        with connect(log) as connection:
            connection.sendall(struct.pack(">i", 1001))
            assert is_closed(connection)
        with connect(log) as connection:
            connection.sendall(frame(3, 4, 5, {"topics": [{"name": "x" * 900}]}))
            assert read_answer(connection)[0] == 5
