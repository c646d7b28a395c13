import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from mainstem.web.origins import OwnOrigins, is_meant, is_own
from tests.support.serving import served


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:3000", "127.0.0.1:9600", True),
        ("http://127.0.0.1:9600", "localhost:9600", True),
        ("http://[::1]:9600", "[::1]:9600", True),
        ("http://10.0.0.5:3000", "10.0.0.5:9600", True),
        ("http://10.0.0.6", "10.0.0.5:9600", False),
        ("https://evil.example", "127.0.0.1:9600", False),
        ("http://evil.example:9600", "evil.example:9600", False),  # a name that was made to mean this machine
        ("http://127.0.0.1.evil.example", "127.0.0.1:9600", False),
        ("http://localhost@evil.example", "127.0.0.1:9600", False),
        ("null", "127.0.0.1:9600", False),
        ("http://[", "[", False),
        ("", "", False),
    ],
)
def test_only_pages_of_this_machine_or_address_are_own(origin, host, own):
    assert is_own(origin, host) == own


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("", True),  # HTTP/1.0
        ("localhost:9600", True),
        ("LocalHost", True),
        ("127.0.0.1:9600", True),
        ("[::1]:9600", True),
        ("10.0.0.5:9600", True),
        ("Here.example:9600", True),  # as it listens
        ("there.example:9600", False),
        ("here.example.evil.example:9600", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9600", False),
        ("[", False),
    ],
)
def test_only_a_name_that_no_page_has_means_a_listener_on_loopback(host, meant):
    assert is_meant(host, "here.example") == meant


def application(listen):
    async def taken(_):
        return Response("taken")

    routes = [Route("/", taken, methods=["GET", "POST"])]
    return Starlette(routes=routes, middleware=[Middleware(OwnOrigins, listen=listen)])


def test_what_a_page_of_another_host_sends_is_refused_with_the_reason():
    """It needs no leave for a body without a content type, which counts as JSON: any page could post to a loopback."""

    with served(application("127.0.0.1:9600")) as url:
        for headers in ({}, {"Origin": url}):
            assert httpx.post(url, content=b"[1]", headers=headers).text == "taken"
        answer = httpx.post(url, content=b"[1]", headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_origin")
    assert "https://evil.example" in answer.json()["error"]["message"]


def test_a_page_whose_name_was_made_to_mean_this_machine_cannot_read():
    """Its own script reads what it gets from its own name, and a plain read has no Origin."""
    with served(application("127.0.0.1:9600")) as url:
        for host in ("localhost:9600", "127.0.0.1"):
            assert httpx.get(url, headers={"Host": host}).text == "taken"
        answer = httpx.get(url, headers={"Host": "evil.example:9600"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_origin")
        assert "'evil.example:9600'" in answer.json()["error"]["message"]
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as old:
            old.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert old.recv(1 << 10).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://localhost:1"}, 200),
    ],
)
def test_a_plain_read_that_a_page_of_another_site_makes_for_itself_is_refused(headers, code):
    """A picture whose address is a search: it has no Origin, and cost the reader's machine what the page liked."""
    with served(application("127.0.0.1:9600")) as url:
        answer = httpx.get(url, headers=headers)
        assert answer.status_code == code
        posted = httpx.post(url, headers=headers)
        assert posted.status_code == (
            403 if headers["Sec-Fetch-Site"] == "cross-site" and "Origin" not in headers else 200
        )


def test_where_others_reach_the_listener_any_name_may_be_its_own():
    with served(application("0.0.0.0:9600"), host="0.0.0.0") as url:
        assert httpx.get(url, headers={"Host": "data.example:9600"}).text == "taken"
