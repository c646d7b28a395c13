"""Clients that send heads without end, against a real server."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from mainstem.web.heads import BoundedProtocol
from tests.support.serving import served


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
