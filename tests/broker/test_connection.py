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
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

import mainstem
from mainstem.broker.answers import Later
from mainstem.broker.config import BrokerConfig
from mainstem.broker.request_memory import ALLOWANCE
from mainstem.core import ManualClock, SystemClock
from mainstem.records import Record, build_batch
from mainstem.wire import codec
from mainstem.wire.errors import Code
from tests.support.broker import frame, running, until
from tests.support.properties import examples
from tests.support.raw import RawClient, connect, is_closed, read_answer


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


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
            assert connection._arrivals.held > 2_700_000
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
                await until(lambda: any(c._arrivals.requests for c in broker.connections), "they wait behind the poll")
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
            assert len(connection._arrivals.requests) + len(connection._unanswered) <= 9 + 32_768 // len(request)
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


def test_what_comes_behind_a_malformed_request_is_not_started_however_much_it_is():
    with mainstem.embedded(broker=BrokerConfig(port=0, queued_max_requests=3)) as log, connect(log) as client:
        malformed = struct.pack(">ihhih", 10, 9999, 0, 1, -1)
        client.sendall(frame(18, 0, 0, {}) + malformed + b"".join(frame(18, 0, number, {}) for number in range(1, 100)))
        assert read_answer(client)[0] == 0
        assert is_closed(client)


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
            await until(
                lambda: any(c._arrivals._arriving is not None for c in broker.connections), "half a request is there"
            )
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
            await until(lambda: connection._arrivals.requests, "its request waits")
            clock.advance_ms(599_999)
            broker.close_idle_connections()
            assert broker.connections
            clock.advance_ms(1)
            broker.close_idle_connections()
            await until(lambda: not broker.connections, "it is gone")
            writer.close()

    asyncio.run(check(tmp_path))


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
