"""Connections: frames from any split of the stream, answers in order, bounds on what a client can make us hold."""

import asyncio
import contextlib
import gc
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

import mainstem
from mainstem.broker import request_memory
from mainstem.broker.answer_memory import PATIENCE_SECONDS, AnswerMemory
from mainstem.broker.answers import Later
from mainstem.broker.arriving_frame import ArrivingFrame
from mainstem.broker.config import BrokerConfig
from mainstem.broker.request_memory import ALLOWANCE
from mainstem.core import ManualClock, SystemClock
from mainstem.records import Record, build_batch
from mainstem.wire import codec
from mainstem.wire.errors import Code
from tests.support.broker import Client, running, until
from tests.support.properties import examples
from tests.support.raw import RawClient


def frame(api_key, version, correlation_id, message, flexible=False):
    head = struct.pack(">hhih", api_key, version, correlation_id, 1) + b"c" + (b"\0" if flexible else b"")
    body = head + bytes(codec.encode_request(api_key, version, message))
    return struct.pack(">i", len(body)) + body


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def read_answer(connection):
    (size,) = struct.unpack(">i", read_exactly(connection, 4))
    data = read_exactly(connection, size)
    return int.from_bytes(data[:4], "big"), data[4:]


def connect(log):
    host, _, port = log.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


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


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 4) + b"abcd",
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),  # no such API
        struct.pack(">ihhih", 10, 3, 99, 1, -1),  # no such version
        struct.pack(">ihhih", 14, 3, 4, 1, -1) + b"\x7f\xff\xff\xff",  # an array of two thousand million topics
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_closes_this_connection_only(mainstem_log, garbage):
    with connect(mainstem_log) as good, connect(mainstem_log) as bad:
        bad.sendall(garbage)
        assert is_closed(bad)
        good.sendall(frame(18, 0, 7, {}))
        assert read_answer(good)[0] == 7


def test_a_request_of_too_many_items_closes_its_connection_with_one_line(tmp_path, monkeypatch):
    logs = structlog.testing.CapturingLogger()
    monkeypatch.setattr("mainstem.broker.connection.log", logs)

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(frame(20, 3, 1, {"topic_names": [""] * 200_000, "timeout": 1}))
            assert await reader.read() == b""
            said = [call.kwargs["reason"] for call in logs.calls if call.args == ("connection_refused",)]
            writer.close()
            assert said == ["byte 15: more than 100000 items in one request"]

    asyncio.run(check(tmp_path))


@settings(max_examples=examples(60))
@given(st.binary(max_size=100))
def test_random_bytes_never_harm_the_broker(mainstem_log, noise):
    with connect(mainstem_log) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    with connect(mainstem_log) as connection:
        connection.sendall(frame(18, 0, 1, {}))
        assert read_answer(connection)[0] == 1


def test_answers_leave_in_the_order_of_the_requests(mainstem_log):
    """A fetch that waits is followed by requests that are done at once."""
    with RawClient(mainstem_log.bootstrap) as raw:
        raw.create_topic("in-order")
        wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
        start = time.monotonic()
        raw.send(1, 4, max_wait=300, min_bytes=1, max_bytes=1000, topics=[{"topic": "in-order", "partitions": wanted}])
        raw.send(18, 0)
        raw.send(3, 4, topics=[])
        assert raw.receive(1, 4).responses[0].partitions[0].records == b""
        assert time.monotonic() - start > 0.25
        assert raw.receive(18, 0).error_code is Code.none
        assert raw.receive(3, 4).topics == ()


def test_wrong_bytes_behind_a_long_poll_end_the_connection_before_the_poll(mainstem_log, monkeypatch):
    """Nobody reads on, so nobody saw that the client had gone: for as long as the poll took, 24 days at most."""
    monkeypatch.setattr("mainstem.broker.connection.GOOD_BYE_SECONDS", 0.3)
    topic = mainstem_log.create_topic("polled") or "polled"
    wanted = [{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]}]
    poll = frame(1, 4, 1, {"max_wait": 2**31 - 1, "min_bytes": 1 << 30, "max_bytes": 1 << 30, "topics": wanted})
    with connect(mainstem_log) as client:
        client.sendall(poll + struct.pack(">i", -1))
        began = time.monotonic()
        assert is_closed(client)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("wrong", [struct.pack(">i", -1), frame(18, 0, 2, {})[:4] + b"\x7f\x7f" + bytes(8)])
@pytest.mark.parametrize("behind", [frame(18, 0, 1, {}), frame(3, 9, 1, {"topics": None}, flexible=True)])
def test_what_was_asked_before_wrong_bytes_is_answered(mainstem_log, wrong, behind):
    """It was lost where both came with one read."""
    with connect(mainstem_log) as client:
        client.sendall(behind + wrong + frame(18, 0, 3, {}))
        assert read_answer(client)[0] == 1
        assert is_closed(client)


@pytest.mark.parametrize("later", [False, True])
def test_an_answer_that_cannot_be_encoded_is_a_failure(tmp_path, later):
    """It was no answer at all, and the next one was taken for it."""

    async def unencodable() -> dict:
        return {"error_code": 2**40}

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            handlers = dict(broker.dispatch.handlers)
            answer = (lambda *_: unencodable()) if later else (lambda *_: {"error_code": 2**40})
            handlers[12] = msgspec.structs.replace(handlers[12], call=answer)
            broker.dispatch.handlers = handlers
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(frame(12, 0, 7, {"group_id": "g", "generation_id": 3, "member_id": "m"}) + frame(18, 0, 8, {}))
            for correlation_id, code in ((7, Code.unknown_server_error), (8, Code.none)):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                body = await reader.readexactly(size)
                assert struct.unpack(">ih", body[:6]) == (correlation_id, code)
            writer.close()

    asyncio.run(check(tmp_path))


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


def test_a_client_of_costly_requests_lets_others_have_their_turn(tmp_path):
    """It was after 32 of them: with fifty such clients a request of another waited for 19 s."""
    order = []

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            handlers = dict(broker.dispatch.handlers)
            metadata = handlers[3]

            def slow(*arguments):
                order.append("other" in repr(arguments))
                time.sleep(0.01)
                return metadata.call(*arguments)

            handlers[3] = msgspec.structs.replace(metadata, call=slow)
            broker.dispatch.handlers = handlers
            costly, other = [await asyncio.open_connection(broker.host, broker.port) for _ in range(2)]
            await until(lambda: len(broker.connections) == 2, "both are there")
            costly[1].write(frame(3, 4, 1, {"topics": []}) * 32)
            other[1].write(frame(3, 4, 1, {"topics": [{"name": "other"}]}))
            await other[0].readexactly(4)
            assert order.index(True) < 5
            for _, writer in (costly, other):
                writer.close()

    asyncio.run(check(tmp_path))


def test_a_client_of_large_costly_requests_lets_others_have_their_turn_after_each(tmp_path):
    """A request that fills its buffer is read and run in one turn of the loop, with the next one behind it: one client
    of 300 KB in 16 requests held the loop for 5 s.
    """
    order = []

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            handlers = dict(broker.dispatch.handlers)
            metadata = handlers[3]

            def slow(request, *arguments):
                name = request.topics[0].name
                order.append(name == "other")
                time.sleep(0.01)
                return metadata.call(request, *arguments)

            handlers[3] = msgspec.structs.replace(metadata, call=slow)
            broker.dispatch.handlers = handlers
            costly, other = [await asyncio.open_connection(broker.host, broker.port) for _ in range(2)]
            await until(lambda: len(broker.connections) == 2, "both are there")
            large = [{"name": f"t{number:0200}"} for number in range(500)]
            sent = frame(3, 4, 1, {"topics": large, "allow_auto_topic_creation": False}) * 12
            costly[1].write(sent)
            other[1].write(frame(3, 4, 1, {"topics": [{"name": "other"}], "allow_auto_topic_creation": False}))
            await other[0].readexactly(4)
            assert order.index(True) < 4
            for _, writer in (costly, other):
                writer.close()

    asyncio.run(check(tmp_path))


LONG_POLL = {
    "max_wait": 2**31 - 1,
    "min_bytes": 1 << 20,
    "max_bytes": 1 << 20,
    "topics": [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}],
}


@pytest.mark.parametrize("is_reset", [False, True])
def test_clients_that_have_gone_while_nobody_read_from_them_are_found(tmp_path, is_reset):
    """A poll of 24 days with as many requests behind it as there may be: nobody read the end of the stream."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0, connections_max_idle_ms=0)) as broker:
            await broker.topics.create("t", 1, {})
            sent = frame(1, 4, 1, LONG_POLL) + frame(18, 0, 2, {}) * 64
            stays, goes = [socket.create_connection((broker.host, broker.port)) for _ in range(2)]
            for each in (stays, goes):
                each.sendall(sent)
            await until(lambda: sum(c._reading_paused for c in broker.connections) == 2, "nobody reads from both")
            if is_reset:
                goes.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            goes.close()
            await until(lambda: any(c.has_gone for c in broker.connections), "it has gone")
            clock.advance_ms(9_999)
            broker.close_idle_connections()
            assert len(broker.connections) == 2
            clock.advance_ms(1)
            broker.close_idle_connections()
            await until(lambda: len(broker.connections) == 1, "one is left")
            assert is_open(stays)
            stays.close()

    asyncio.run(check(tmp_path))


def test_a_client_that_nobody_reads_from_for_long_is_idle_whatever_it_waits_for(tmp_path):
    """It may be gone without a word."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            await broker.topics.create("t", 1, {})
            with socket.create_connection((broker.host, broker.port)) as client:
                client.sendall(frame(1, 4, 1, LONG_POLL) + frame(18, 0, 2, {}) * 64)
                await until(lambda: any(c._reading_paused for c in broker.connections), "nobody reads")
                clock.advance_ms(600_000)
                broker.close_idle_connections()
                await until(lambda: not broker.connections, "it is gone")

    asyncio.run(check(tmp_path))


def produce_frame(records, *, acks=-1, correlation_id=1):
    partition = {"index": 0, "records": build_batch([Record(0, 1_700_000_000_000, None, records)])}
    topics = [{"name": "t", "partition_data": [partition]}]
    body = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": topics}
    return frame(0, 9, correlation_id, body, flexible=True)


def test_what_a_client_that_has_gone_has_sent_counts_until_it_is_on_the_disk(tmp_path, monkeypatch):
    """Three thousand who sent 60 KB and left held 192 MB, none of which counted."""
    disk, real = threading.Event(), os.fdatasync
    disk.set()

    def fdatasync(descriptor):
        disk.wait(60)
        real(descriptor)

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=1 << 20)
        async with running(directory, SystemClock(), config) as broker:
            await broker.topics.create("t", 1, {"max.message.bytes": "10000000"})
            monkeypatch.setattr(os, "fdatasync", fdatasync)
            disk.clear()
            small, large = produce_frame(bytes(60_000)), produce_frame(bytes(5_000_000))
            memory, admitted = broker.request_memory, broker.admission
            try:
                with socket.create_connection((broker.host, broker.port)) as client:
                    client.sendall(small)
                    await until(lambda: any(c._unanswered for c in broker.connections), "it is at work")
                await until(lambda: not broker.connections, "it has gone")
                assert memory.held == 0, "it is within what nobody is asked for"
                assert admitted._all == 1, "and counts as a connection"
                _, writer = await asyncio.open_connection(broker.host, broker.port)
                writer.write(large)
                await until(lambda: any(c._unanswered for c in broker.connections), "the large one is at work")
                writer.transport.abort()
                await until(lambda: not broker.connections, "that has gone, too")
                assert memory.held == len(large) - 4 - ALLOWANCE
                assert memory.turn is not None, "nobody else comes in beyond the budget meanwhile"
            finally:
                disk.set()
            await until(lambda: not memory.held, "it is on the disk")
            assert memory.turn is None
            assert admitted._all == 0
            assert broker.topics.by_name("t").logs[0].log_end_offset == 2

    asyncio.run(check(tmp_path))


def test_what_is_done_is_let_go_of_when_the_client_leaves_whatever_it_waited_for(tmp_path):
    """Twenty-five requests behind one that waits for half an hour were 21 MB that nothing counted."""

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {})
            (handler, later) = (broker.dispatch.handlers[3], Later())
            waits = msgspec.structs.replace(handler, call=lambda *_: later)
            broker.dispatch.handlers = {**broker.dispatch.handlers, 3: waits}
            client = socket.create_connection((broker.host, broker.port))
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            topics = {"topics": [], "allow_auto_topic_creation": False}
            await loop.sock_sendall(client, frame(3, 4, 1, topics) + produce_frame(bytes(900_000)) * 3)
            log = broker.topics.by_name("t").logs[0]
            await until(lambda: log.high_watermark == 3, "the records are there")
            (connection,) = broker.connections
            assert connection._held_bytes > 2_700_000
            assert not any(each.request for each in list(connection._unanswered)[1:])
            client.close()
            await until(lambda: not broker.connections, "it is gone")
            assert not connection._unanswered
            assert broker.request_memory.held == broker.admission._all == 0
            later.give(None)

    asyncio.run(check(tmp_path))


def test_records_that_wait_for_no_answer_are_kept_though_their_client_leaves(tmp_path):
    """A topic with a compression of its own takes one after the other, and the end of the stream comes before."""

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {"compression.type": "gzip"})
            with socket.create_connection((broker.host, broker.port)) as client:
                for number in range(40):
                    client.sendall(produce_frame(os.urandom(20_000), acks=0, correlation_id=number))
            await until(lambda: broker.topics.by_name("t").logs[0].log_end_offset == 40, "all are there")
            await until(lambda: not broker.connections, "it is gone")

    asyncio.run(check(tmp_path))


def test_a_client_that_sends_no_more_is_closed_where_nothing_goes_on(tmp_path):
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            await broker.topics.create("t", 1, {})
            with socket.create_connection((broker.host, broker.port)) as client:
                client.sendall(frame(1, 4, 1, LONG_POLL) + frame(18, 0, 2, {}) * 5)
                await until(lambda: any(c._requests for c in broker.connections), "they wait behind the poll")
                client.shutdown(socket.SHUT_WR)
                await until(lambda: any(c._has_ended for c in broker.connections), "it has ended")
                (connection,) = broker.connections
                connection._end_where_nothing_goes_on()
                assert not connection.closed
                clock.advance_ms(5_000)
                connection._end_where_nothing_goes_on()
                await until(lambda: not broker.connections, "it is gone")

    asyncio.run(check(tmp_path))


def test_polls_hold_what_they_want_and_not_all_that_they_have_said(tmp_path):
    """62 KB of names without partitions were 1.5 MB of objects, as long as the poll waited."""

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {})
            told = []
            begin = broker.dispatch.begin

            def counting(connection, sent):
                told.append(broker.beginning_bytes)
                return begin(connection, sent)

            broker.dispatch.begin = counting
            poll = LONG_POLL | {"topics": LONG_POLL["topics"] + [{"topic": "ab", "partitions": []}] * 7_000}
            sent = frame(1, 4, 1, poll)
            clients = [await asyncio.open_connection(broker.host, broker.port) for _ in range(30)]
            for _, writer in clients:
                writer.write(sent)
            log = broker.topics.by_name("t").logs[0]
            await until(lambda: len(log._listeners) == 30, "all wait")
            (entity,) = {type(each) for each in codec.decode_request(1, 4, bytearray(sent[4:]), 11).topics}
            left = [each for each in gc.get_objects() if isinstance(each, entity)]
            assert len(left) == 0
            assert max(told) <= 262_144 + len(sent)
            assert broker.beginning_bytes == 0
            for _, writer in clients:
                writer.close()

    asyncio.run(check(tmp_path))


def test_a_client_that_takes_nothing_is_gone_some_time_after_it_was_told_to_go(tmp_path, monkeypatch):
    """With less than is worth a pause left to send, it kept its descriptor for ever."""
    monkeypatch.setattr("mainstem.broker.connection.GOOD_BYE_SECONDS", 0.3)

    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            with socket.create_connection((broker.host, broker.port)):
                await until(lambda: broker.connections, "it is there")
                (connection,) = broker.connections
                while not connection.unsent_bytes:
                    connection._transport.write(bytes(1000))
                connection.end()
                await asyncio.sleep(0.1)
                assert connection in broker.connections  # it has a while to take what is left
                await until(lambda: not broker.connections, "it is gone", seconds=5)

    asyncio.run(check(tmp_path))


def test_a_client_that_sends_and_does_not_read_is_not_read_from(tmp_path):
    """What one client can make the broker hold is bounded: the rest stays in its own socket."""
    names = [{"name": f"!{number:0200}"} for number in range(500)]
    request = frame(3, 4, 1, {"topics": names})  # the answer is as large as the request

    async def check(directory) -> None:
        async with running(directory, SystemClock(), BrokerConfig(port=0, queued_max_requests=8)) as broker:
            _, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.transport.set_write_buffer_limits(high=0)
            sent = 0
            for _ in range(2000):  # 200 MB, were they all read
                writer.write(request)
                try:
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    break
                sent += len(request)
            else:
                pytest.fail("the broker read everything")
            (connection,) = broker.connections
            assert len(connection._requests) + len(connection._unanswered) <= 9 + 32_768 // len(request)
            writer.transport.abort()

    asyncio.run(check(tmp_path))


def test_requests_beyond_the_limit_wait_in_the_socket_and_are_answered_later():
    with mainstem.embedded(broker=BrokerConfig(port=0, queued_max_requests=2)) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        for i in range(40):
            records = build_batch([Record(0, int(time.time() * 1000), None, b"%d" % i)])
            data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
            raw.send(0, 9, acks=-1, timeout=1000, topic_data=data)
        offsets = [raw.receive(0, 9).responses[0].partition_responses[0].base_offset for _ in range(40)]
        assert offsets == list(range(40))


def started_requests(broker, monkeypatch):
    """The connection of each request that the broker starts from here on."""
    started = []
    begin = broker.dispatch.begin

    def counted(connection, frame):
        started.append(connection)
        return begin(connection, frame)

    monkeypatch.setattr(broker.dispatch, "begin", counted)
    return started


def test_others_have_their_turn_beside_a_client_with_thousands_of_requests(tmp_path, monkeypatch):
    """All that had come from one client was answered before anybody else was."""
    request = frame(18, 0, 1, {})

    async def check(directory) -> None:
        loop = asyncio.get_running_loop()
        async with running(directory, ManualClock(), BrokerConfig(port=0)) as broker:
            with contextlib.ExitStack() as stack:
                many, one = (
                    stack.enter_context(socket.create_connection((broker.host, broker.port))) for _ in range(2)
                )
                await until(lambda: len(broker.connections) == 2, "they are not there")
                started = started_requests(broker, monkeypatch)
                many.sendall(request * 1_000)  # nothing runs until both have sent
                one.sendall(request)
                one.setblocking(False)
                await loop.sock_recv(one, 1)
                assert len(started) <= 200
                await until(lambda: len(started) == 1_001, "what is left over is not started")

    asyncio.run(check(tmp_path))


def test_what_a_client_sent_before_it_left_is_started(tmp_path, monkeypatch):
    """A producer that waits for no answers may send its last records and go."""

    async def check(directory) -> None:
        async with running(directory, ManualClock(), BrokerConfig(port=0, queued_max_requests=1_000)) as broker:
            started = started_requests(broker, monkeypatch)
            with socket.create_connection((broker.host, broker.port)) as client:
                await until(lambda: len(broker.connections) == 1, "it is not there")
                client.sendall(frame(18, 0, 1, {}) * 300)
                client.shutdown(socket.SHUT_WR)
                await until(lambda: not broker.connections, "it is still there")
                assert len(started) == 300

    asyncio.run(check(tmp_path))


def test_the_limit_of_requests_is_of_one_connection():
    """Kafka's is of the broker: there, who waits for records takes a place from all."""
    config = BrokerConfig(port=0, queued_max_requests=1)
    with mainstem.embedded(broker=config) as log, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(RawClient(log.bootstrap)) for _ in range(3)]
        waiting[0].create_topic("t")
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        topics = [{"topic": "t", "partitions": partitions}]
        limits = {"max_wait": 600_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
        for each in waiting:
            each.send(1, 11, topics=topics, **limits)
        other = stack.enter_context(RawClient(log.bootstrap))
        assert other.produce("t", b"v") is Code.none
        for each in waiting:
            assert each.receive(1, 11).responses[0].partitions[0].records


def test_bytes_beyond_the_limit_wait_in_the_socket_and_are_answered_later():
    config = BrokerConfig(port=0, queued_max_request_bytes=1000)
    with mainstem.embedded(broker=config) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("t")
        for i in range(20):
            records = build_batch([Record(0, int(time.time() * 1000), None, b"%d" % i * 5000)])
            data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
            raw.send(0, 9, acks=-1, timeout=1000, topic_data=data)
        offsets = [raw.receive(0, 9).responses[0].partition_responses[0].base_offset for _ in range(20)]
        assert offsets == list(range(20))


def test_more_requests_than_there_may_be_come_at_once_and_are_all_answered_in_their_order():
    with mainstem.embedded(broker=BrokerConfig(port=0, queued_max_requests=3)) as log, connect(log) as client:
        large = frame(3, 4, 998, {"topics": [{"name": "!" * 250}] * 600})
        client.sendall(b"".join(frame(18, 0, number, {}) for number in range(998)) + large + frame(18, 0, 999, {})[:9])
        assert [read_answer(client)[0] for _ in range(999)] == [*range(999)]
        client.sendall(frame(18, 0, 999, {})[9:])
        assert read_answer(client)[0] == 999


def test_what_comes_behind_a_malformed_request_is_not_started_however_much_it_is():
    with mainstem.embedded(broker=BrokerConfig(port=0, queued_max_requests=3)) as log, connect(log) as client:
        malformed = struct.pack(">ihhih", 10, 9999, 0, 1, -1)
        client.sendall(frame(18, 0, 0, {}) + malformed + b"".join(frame(18, 0, number, {}) for number in range(1, 100)))
        assert read_answer(client)[0] == 0
        assert is_closed(client)


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
            assert len(connection._requests) <= broker.config.queued_max_requests
            assert len(connection._requests) + len(connection._unsplit) <= connection._held_bytes <= 2 * 65_536
            writer.transport.abort()

    asyncio.run(check(tmp_path))


def test_what_is_announced_and_not_sent_gets_little_memory(tmp_path):
    """Four bytes that announce a hundred megabytes got them."""

    async def check(directory) -> None:
        async with running(directory, ManualClock(), BrokerConfig(port=0, queued_max_request_bytes=1 << 20)) as broker:
            connections = [await asyncio.open_connection(broker.host, broker.port) for _ in range(10)]
            for _, writer in connections:
                writer.write(struct.pack(">i", 100_000_000) + b"x")
            await until(lambda: sum(c._arriving is not None for c in broker.connections) == 10, "all have begun")
            assert sum(len(c._arriving.room) for c in broker.connections) == 9 + (1 << 20), "one has its turn"
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
            await until(lambda: sum(c._waits_for_room for c in broker.connections) == 11, "the others wait")
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
        await until(lambda: any(each._arriving is not None for each in broker.connections), "it has begun")
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
            await until(lambda: sum(c._waits_for_room for c in broker.connections) == 4, "one has room, one its turn")
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
            await until(lambda: any(each._waits_for_room for each in broker.connections), "there is no room for it")
            reader, writer = await asyncio.open_connection(broker.host, broker.port, local_addr=("127.0.0.2", 0))
            writer.write(large)
            async with asyncio.timeout(20):
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
            writer.close()
            greedy.transport.abort()
        assert broker.request_memory.held == 0

    asyncio.run(check(tmp_path))


def test_connections_beyond_the_limit_are_closed_at_once():
    with mainstem.embedded(broker=BrokerConfig(port=0, max_connections=2)) as log:
        first, second = connect(log), connect(log)
        for each in (first, second):
            each.sendall(frame(18, 0, 1, {}))
            assert read_answer(each)[0] == 1
        with connect(log) as third:
            assert is_closed(third)
        first.close()
        until_time = time.monotonic() + 30
        while True:
            with connect(log) as again:
                again.sendall(frame(18, 0, 2, {}))
                if not is_closed(again):
                    break
            assert time.monotonic() < until_time
        second.close()


def test_connections_of_one_address_beyond_the_limit_are_closed_at_once():
    with mainstem.embedded(broker=BrokerConfig(port=0, max_connections_per_ip=1)) as log:
        host, _, port = log.bootstrap.rpartition(":")
        elsewhere = socket.create_connection((host, int(port)), timeout=30, source_address=("127.0.0.2", 0))
        with elsewhere, connect(log) as first, connect(log) as second:
            for each in (first, elsewhere):
                each.sendall(frame(18, 0, 1, {}))
                assert read_answer(each)[0] == 1
            assert is_closed(second)


WITH_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import mainstem
with mainstem.embedded() as log:
    print(log.bootstrap, flush=True)
    sys.stdin.read()
"""


def test_connections_leave_room_for_the_segments_files():
    """A client that leaked connections took the log offline:
    no segment could be opened, and it ended, again and again.
    """
    command = [sys.executable, "-c", WITH_FEW_FILES]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        log = SimpleNamespace(bootstrap=process.stdout.readline().strip())
        raw = stack.enter_context(RawClient(log.bootstrap))
        raw.create_topic("t", 8)
        leaked = [stack.enter_context(connect(log)) for _ in range(300)]
        until_time = time.monotonic() + 30
        while sum(map(is_open, leaked)) > 200 - 100 - 25 - 1:  # half is for segments, an eighth for the rest
            assert time.monotonic() < until_time
            time.sleep(0.05)
        assert [raw.produce("t", b"v", partition=number) for number in range(8)] == [Code.none] * 8
        assert any(map(is_open, leaked))
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_connection_that_asks_nothing_for_long_is_closed(tmp_path):
    """A fetch that waits is no idleness; half a request is, and so is a client that takes no answers."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            await broker.topics.create("t", 1, {})
            idle, half, waits, asks = [await asyncio.open_connection(broker.host, broker.port) for _ in range(4)]
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
            topics = [{"topic": "t", "partitions": wanted}]
            fetch = {"max_wait": 2**31 - 1, "min_bytes": 1, "max_bytes": 1000, "topics": topics}
            waits[1].write(frame(1, 4, 1, fetch))
            log = broker.topics.by_name("t").logs[0]
            await until(lambda: log._listeners, "the fetch waits")
            half[1].write(frame(3, 4, 1, {"topics": []})[:-1])
            await until(lambda: any(c._arriving is not None for c in broker.connections), "half a request is there")
            clock.advance_ms(599_999)
            broker.close_idle_connections()
            asks[1].write(frame(18, 0, 7, {}))
            await asks[0].readexactly(4)
            clock.advance_ms(1)
            broker.close_idle_connections()
            assert await idle[0].read() == await half[0].read() == b""
            await until(lambda: len(broker.connections) == 2, "two are left")
            for _, writer in (idle, half, waits, asks):
                writer.close()
            await until(lambda: not broker.connections, "all are gone")

    asyncio.run(check(tmp_path))


def test_bytes_that_drip_keep_no_connection(tmp_path):
    """A client that sends a request byte by byte would hold its place, and its part of the request, for ever."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            for byte in frame(3, 4, 1, {"topics": []})[:7]:
                assert len(broker.connections) == 1
                clock.advance_ms(86_000)
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
                broker.close_idle_connections()
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            await until(lambda: not broker.connections, "it is gone")

    asyncio.run(check(tmp_path))


async def who_takes_little(broker, address=None):
    """A connection whose client reads nothing, and has little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    if address is not None:
        client.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(client, (broker.host, broker.port))
    return client


def unsent(broker):
    """What the broker holds of answers."""
    return sum(
        c._transport.get_write_buffer_size() + sum(len(chunk) for each in c._unanswered for chunk in each.chunks)
        for c in broker.connections
    )


def test_clients_that_take_nothing_of_a_fetch_share_one_budget_and_are_cut_off_where_it_is_wanted(tmp_path):
    """Each kept up to 57 MB, for as long as it liked."""
    clock, limit, batch, slow_ones = ManualClock(), 8 << 20, 900_000, 6

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 4)
        async with running(directory, clock, config) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            for _ in range(24):
                await log.append(build_batch([Record(0, 1, None, b"x" * batch)]))
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
            topics = [{"topic": "t", "partitions": wanted}]
            fetch = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50_000_000, "topics": topics}
            slow = [await who_takes_little(broker) for _ in range(slow_ones)]
            for client in slow:
                await asyncio.get_running_loop().sock_sendall(client, frame(1, 4, 1, fetch))
            for client in slow:  # one byte says that the answer is made
                await asyncio.get_running_loop().sock_recv(client, 1)
            assert any(c._writing_paused for c in broker.connections)
            assert unsent(broker) <= limit + (slow_ones + 1) * (batch + 1000)
            client = await Client.connect(broker)

            async def fetched():
                answer = await client.call(1, 4, **fetch)
                return len(answer.responses[0].partitions[0].records)

            assert batch <= await fetched() < limit, "one batch goes out whatever is held"
            for _ in range(2):  # the sockets may have taken some more before the first look
                clock.advance_ms(int(PATIENCE_SECONDS * 1000))
                await fetched()
            await until(lambda: broker.fetched_memory.held == 0, "those who took nothing are cut off")
            assert await fetched() > limit - 2 * batch
            for each in slow:
                each.close()
            client.close()

    asyncio.run(check(tmp_path))


def test_no_further_request_is_started_while_there_is_much_to_send(tmp_path):
    """A few bytes ask for all groups; 64 such requests were answered before anything was sent."""

    async def check(directory) -> None:
        async with running(directory, ManualClock(), BrokerConfig(port=0)) as broker:
            for number in range(10_000):
                broker.groups.group(f"group-{number}")
            client = await who_takes_little(broker)
            await asyncio.get_running_loop().sock_sendall(client, frame(16, 0, 1, {}) * 40)
            await until(lambda: any(c._writing_paused for c in broker.connections), "it is stuck")
            assert unsent(broker) <= 2 << 20
            client.close()

    asyncio.run(check(tmp_path))


def test_answers_that_nobody_knows_the_size_of_before_are_held_as_far_as_there_is_room(tmp_path):
    """Each connection was given its own, until who took nothing was cut off after half a minute."""
    limit, size = 40_000_000, 9_000_000
    join = {"group_id": "g", "session_timeout": 600_000, "rebalance_timeout": 600_000, "protocol_type": "x"}
    describe = frame(15, 0, 1, {"groups": ["g"]})

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 2, group_initial_rebalance_delay_ms=0)
        async with running(directory, SystemClock(), config) as broker:
            client = Client(*await asyncio.open_connection(broker.host, broker.port, limit=2 * size))
            protocols = [{"name": "p", "metadata": bytes(size)}]
            member = await client.call(11, 3, member_id="", protocols=protocols, **join)
            joined = {"group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id}
            await client.call(14, 2, **joined, assignments=[{"member_id": member.member_id, "assignment": b""}])
            slow = [await who_takes_little(broker) for _ in range(12)]
            for each in slow:
                await asyncio.get_running_loop().sock_sendall(each, describe)
            await until(lambda: broker.unasked_memory.held >= limit, "they do not take it")
            assert (await client.call(12, 3, **joined)).error_code == Code.none
            assert broker.unasked_memory.held >= limit, "what has a small answer did not wait"
            elsewhere = Client(
                *await asyncio.open_connection(broker.host, broker.port, limit=2 * size, local_addr=("127.0.0.2", 0))
            )
            for each in (elsewhere, client):  # the latter is of their address, and waits
                described = await each.call(15, 0, groups=["g"])
                assert len(described.groups[0].members[0].member_metadata) == size
                assert broker.unasked_memory.held <= 2 * limit + size
            assert len(broker.connections) < 2 + len(slow), "who takes nothing is cut off"
            elsewhere.close()
            for each in (client, *slow):
                each.close()

    asyncio.run(check(tmp_path))


def test_what_is_answered_later_is_made_in_several_turns_of_the_loop_too(tmp_path, monkeypatch):
    """Members that join are answered together: 113 of 122 clients were cut off, after 1.8 GB had been made at once."""
    size, made, hold = 3_000_000, [], AnswerMemory.hold

    def counted(self, taker, size):
        hold(self, taker, size)
        made.append(self._made)

    monkeypatch.setattr(AnswerMemory, "hold", counted)
    join = {"group_id": "g", "session_timeout": 600_000, "rebalance_timeout": 600_000, "protocol_type": "x"}

    async def check(directory) -> None:
        config = BrokerConfig(port=0, group_initial_rebalance_delay_ms=0)
        async with running(directory, SystemClock(), config) as broker:
            leader, member = [
                Client(*await asyncio.open_connection(broker.host, broker.port, limit=2 * size)) for _ in range(2)
            ]
            small = [{"name": "p", "metadata": b"a"}]
            first = await leader.call(11, 3, member_id="", protocols=small, **join)
            member.send(11, 3, member_id="", protocols=[{"name": "p", "metadata": bytes(size)}], **join)
            await until(lambda: len(broker.groups.groups["g"].members) == 2, "the second one joins")
            await leader.call(11, 3, member_id=first.member_id, protocols=small, **join)
            again = frame(11, 3, 1, {"member_id": first.member_id, "protocols": small, **join})
            made.clear()
            others = [await who_takes_little(broker) for _ in range(16)]
            for each in others:
                await asyncio.get_running_loop().sock_sendall(each, again)
            await until(lambda: len(made) == len(others), "all are answered")
            assert max(made) < broker.unasked_memory.limit / 8 + 2 * size
            for each in (leader, member, *others):
                each.close()

    asyncio.run(check(tmp_path))


def test_who_is_answered_behind_an_answer_that_is_not_taken_goes_on_when_there_is_room(tmp_path):
    """Nobody told it, when it had found that it was to take its answers first."""
    join = {"group_id": "g", "session_timeout": 300_000, "rebalance_timeout": 300_000, "protocol_type": "x"}

    async def check(directory) -> None:
        config = BrokerConfig(port=0, group_initial_rebalance_delay_ms=3_000_000)
        async with running(directory, ManualClock(), config) as broker:
            for number in range(1_000):
                broker.groups.group(f"group-{number}")
            client = await Client.connect(broker)
            client.send(11, 3, member_id="", protocols=[{"name": "p", "metadata": b""}], **join)
            client.send(16, 0)
            await until(lambda: broker.unasked_memory.held, "the second answer is made")
            broker.unasked_memory.take(broker.unasked_memory.limit)
            client.send(18, 0)
            (connection,) = broker.connections
            await until(lambda: connection._requests, "it is to take that first")
            broker.unasked_memory.give(broker.unasked_memory.limit)
            await until(lambda: not connection._requests, "it is told that it need not")
            client.close()

    asyncio.run(check(tmp_path))


def test_answers_behind_a_request_that_waits_make_room_for_others(tmp_path):
    """Their client did not even have to keep from reading: two of them had all the room for half an hour."""
    clock, limit, batch = ManualClock(), 4 << 20, 900_000

    async def check(directory) -> None:
        config = BrokerConfig(port=0, queued_max_request_bytes=limit // 4, group_initial_rebalance_delay_ms=3_000_000)
        async with running(directory, clock, config) as broker:
            log = (await broker.topics.create("t", 1, {})).logs[0]
            for _ in range(5):
                await log.append(build_batch([Record(0, 1, None, b"x" * batch)]))
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
            fetch = {"max_bytes": 50_000_000, "topics": [{"topic": "t", "partitions": wanted}]}
            join = {"group_id": "g", "session_timeout": 300_000, "rebalance_timeout": 300_000, "protocol_type": "x"}
            behind = await Client.connect(broker)
            behind.send(11, 3, **join, protocols=[{"name": "p", "metadata": b""}])
            behind.send(1, 4, max_wait=0, min_bytes=1, **fetch)
            await until(lambda: broker.fetched_memory.held >= limit - batch, "its answer is made")
            client = await Client.connect(broker)

            async def fetched():
                answer = await client.call(1, 4, max_wait=0, min_bytes=1, **fetch)
                return len(answer.responses[0].partitions[0].records)

            assert await fetched() < 2 * batch
            for _ in range(2):
                clock.advance_ms(int(PATIENCE_SECONDS * 1000))
                await fetched()
            await until(lambda: broker.fetched_memory.held == 0, "it is cut off")
            assert await fetched() > limit - 2 * batch
            for each in (behind, client):
                each.close()

    asyncio.run(check(tmp_path))


def test_a_client_that_takes_no_answers_is_idle_in_the_end(tmp_path):
    """It was closed once it had taken what it did not take: never."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            for number in range(30_000):
                broker.groups.group(f"group-{number}")
            client = await who_takes_little(broker)
            await asyncio.get_running_loop().sock_sendall(client, frame(16, 0, 1, {}) * 20)
            await until(lambda: any(c._writing_paused for c in broker.connections), "it is stuck")
            clock.advance_ms(600_000)
            broker.close_idle_connections()
            await until(lambda: not broker.connections, "it is gone")
            assert broker.fetched_memory.held == 0
            client.close()

    asyncio.run(check(tmp_path))


def test_a_client_over_its_quota_that_has_sent_more_is_idle_in_the_end(tmp_path):
    """Nobody reads from it, so it may have gone; it kept its place for as long as its quota told it to wait."""
    clock = ManualClock()

    async def check(directory) -> None:
        async with running(directory, clock, BrokerConfig(port=0)) as broker:
            _, writer = await asyncio.open_connection(broker.host, broker.port)
            await until(lambda: broker.connections, "it is there")
            (connection,) = broker.connections
            connection.mute(3600)
            writer.write(frame(18, 0, 1, {}))
            await until(lambda: connection._requests, "its request waits")
            clock.advance_ms(599_999)
            broker.close_idle_connections()
            assert broker.connections
            clock.advance_ms(1)
            broker.close_idle_connections()
            await until(lambda: not broker.connections, "it is gone")
            writer.close()

    asyncio.run(check(tmp_path))


def test_a_frame_above_the_limit_is_refused():
    with mainstem.embedded(broker=BrokerConfig(port=0, socket_request_max_bytes=1000)) as log:
        with connect(log) as connection:
            connection.sendall(struct.pack(">i", 1001))
            assert is_closed(connection)
        with connect(log) as connection:
            connection.sendall(frame(3, 4, 5, {"topics": [{"name": "x" * 900}]}))
            assert read_answer(connection)[0] == 5


def test_a_client_that_leaves_ends_its_long_poll(tmp_path):
    async def check(directory) -> None:
        async with running(directory, SystemClock()) as broker:
            await broker.topics.create("t", 1, {})
            log = broker.topics.by_name("t").logs[0]
            _, writer = await asyncio.open_connection(broker.host, broker.port)
            wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
            topics = [{"topic": "t", "partitions": wanted}]
            writer.write(frame(1, 4, 1, {"max_wait": 2**31 - 1, "min_bytes": 1, "max_bytes": 1000, "topics": topics}))
            async with asyncio.timeout(10):
                while not log._listeners:
                    await asyncio.sleep(0.01)
                writer.transport.abort()
                while log._listeners:
                    await asyncio.sleep(0.01)

    asyncio.run(check(tmp_path))
