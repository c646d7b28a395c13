"""Clients that send heads without end, or do not read what they asked for, against a real server."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mainstem.web.heads import BoundedProtocol
from tests.support.serving import served
from tests.support.waiting import wait_until


class Quick(BoundedProtocol):
    head_seconds = 0.2


@contextmanager
def connected(protocol):
    async def length(request):
        return Response(str(len(await request.body())))

    async def nothing(_):
        return Response("ok")

    routes = [Route("/length", length, methods=["POST"]), Route("/nothing", nothing, methods=["POST"])]
    with served(Starlette(routes=routes), http=protocol) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            yield client


def answered(client):
    """All that comes until the server closes the connection."""
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionResetError:  # it left what we sent unread
        pass
    return found


def flood(client, line):
    """Send `line` until the server has had enough."""
    try:
        for _ in range(1000):
            client.sendall(line * 1000)
    except (BrokenPipeError, ConnectionResetError):
        return
    raise AssertionError("it took all of it")


CHUNKED = b"POST /%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\na: ",
        b"GET /",
        CHUNKED % b"length" + b"1\r\nx\r\n0\r\n",
        CHUNKED % b"nothing" + b"1\r\nx\r\n0\r\n",
    ],
    ids=["many headers", "a long one", "a long path", "trailers", "trailers that nobody reads"],
)
def test_a_head_without_end_is_refused(head):
    """One connection could fill the memory."""
    with connected(BoundedProtocol) as client:
        client.sendall(head)
        flood(client, b"a" * 100 if not head.endswith(b"\n") else b"a: " + b"b" * 95 + b"\r\n")


def test_it_is_told_why():
    with connected(BoundedProtocol) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
        assert answered(client).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", CHUNKED % b"nothing" + b"5\r\nx"])
def test_a_request_that_does_not_go_on_ends_the_connection(sent):
    """It was held open for ever."""
    with connected(Quick) as client:
        client.sendall(sent)
        assert answered(client) == b"" or sent.startswith(b"POST")


def test_bodies_and_further_requests_have_no_such_bounds():
    with connected(BoundedProtocol) as client:
        for size in (1_000_000, 10, 0):
            client.sendall(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            found = b""
            while not found.endswith(b"\r\n\r\n%d" % size):
                found += client.recv(1 << 16)
        pieces = CHUNKED % b"length" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
        client.sendall(pieces)
        found = b""
        while not found.endswith(b"\r\n\r\n100000"):
            found += client.recv(1 << 16)


class Watched(BoundedProtocol):
    """Keeps the most requests, and the most of a body, that waited for their turn at once."""

    requests = body = 0

    def on_headers_complete(self):
        super().on_headers_complete()
        type(self).requests = max(self.requests, len(self.pipeline))

    def on_body(self, body):
        super().on_body(body)
        if self.pipeline:
            type(self).body = max(self.body, len(self.cycle.body))


REQUEST = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def test_requests_that_nobody_waits_for_do_not_fill_the_memory():
    """With the end of each head the count began anew, and with each answer thousands more were read."""
    with connected(protocol := type("P", (Watched,), {})) as client:
        flood(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert protocol.requests == protocol.waiting_requests


def test_a_body_is_not_read_while_others_are_answered():
    """With each of their answers one more piece of it was."""
    with connected(protocol := type("P", (Watched,), {})) as client:
        client.sendall((REQUEST % 0) * 90 + REQUEST % (40 << 20) + bytes(40 << 20))
        found = b""
        while not found.endswith(b"\r\n\r\n%d" % (40 << 20)):
            found += client.recv(1 << 16)
    assert found.count(b"HTTP/1.1 200") == 91
    assert protocol.requests == 90
    assert protocol.body <= 256 << 10  # one read


def test_nothing_is_left_of_a_connection_that_ends_while_requests_wait():
    """What it was to wait for never came, and it looked again every 30 s for as long as the process ran."""
    protocols, lost, answered = [], threading.Event(), threading.Event()

    class Ended(Quick):
        def connection_made(self, transport):
            super().connection_made(transport)
            protocols.append(self)

        def connection_lost(self, exc):
            super().connection_lost(exc)
            lost.set()

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not lost.is_set():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body"})
        answered.set()

    with served(endless, http=Ended, lifespan="off") as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + REQUEST % 10 + b"x")
            assert client.recv(1 << 10)
        assert answered.wait(60)
        assert protocols[0]._timer is None


LARGE = 60 << 20


class Kept(BoundedProtocol):
    """Keeps its connections in the `protocols` of a class of its own, and those in `lost` that have ended."""

    protocols: list
    lost: list

    def connection_made(self, transport):
        super().connection_made(transport)
        self.protocols.append(self)

    def connection_lost(self, exc):
        super().connection_lost(exc)
        self.lost.append(self)


async def large(_):
    return Response(bytes(LARGE))


async def large_and_no_more(_):
    return Response(bytes(LARGE), headers={"Connection": "close"})


async def events(_):
    async def endless():
        while True:
            yield b"data: " + bytes(1 << 16) + b"\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(endless(), media_type="text/event-stream")


@contextmanager
def asked(answer, seconds):
    """A client that has asked for `answer`, and the server's side of its connection."""
    protocol = type("P", (Kept,), {"unread_seconds": seconds, "protocols": [], "lost": []})
    with served(Starlette(routes=[Route("/", answer)]), http=protocol) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: protocol.protocols, "it is connected")
            yield client, protocol.protocols[0]


@pytest.mark.parametrize("answer", [large, large_and_no_more, events])
def test_an_answer_that_nobody_reads_is_given_up(answer):
    """Ten connections held 600 MB of answers for as long as they liked."""
    with asked(answer, 0.2) as (client, connection):
        wait_until(lambda: connection.lost, "the server has ended it")
        assert connection.transport.get_write_buffer_size() == 0
        assert len(answered(client)) < LARGE


def test_an_answer_that_is_read_bit_by_bit_goes_on():
    """However little is read, as long as it goes on."""
    with asked(large, 3600) as (client, connection):

        def look():
            looked = threading.Event()

            def at_its_time():
                if connection._reading is not None:
                    connection._look()
                looked.set()

            connection.loop.call_soon_threadsafe(at_its_time)
            assert looked.wait(60)

        wait_until(lambda: connection.flow.write_paused, "what was sent is not all read")
        for _ in range(4):
            read = 0
            while read < LARGE // 10:
                read += len(client.recv(1 << 20))
            look()
            assert not connection.lost
        while not connection.lost:
            look()
        assert connection._reading is None


def test_an_answer_that_is_read_leaves_nothing_behind():
    with asked(large, 3600) as (client, connection):
        read = 0
        while read < LARGE:
            read += len(client.recv(1 << 20))
        wait_until(lambda: connection._reading is None, "nothing waits")
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1 << 10)
        wait_until(lambda: connection._reading is not None, "the next answer is watched, too")
        client.close()
        wait_until(lambda: connection.lost, "it ends")
        assert connection._reading is None
