"""Clients that send heads without end, against a real server."""

import socket
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from mainstem.connect.heads import BoundedProtocol
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
