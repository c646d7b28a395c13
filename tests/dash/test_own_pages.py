import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from mainstem.dash.own_pages import OwnPages, is_ours, is_same, own_names
from tests.support.serving import served


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:9600", "127.0.0.1:9600", True),
        ("http://LocalHost:9600", "localhost:9600", True),
        ("http://[::1]:9600", "[::1]:9600", True),
        ("http://10.0.0.5", "10.0.0.5:80", True),
        ("https://10.0.0.5:443", "10.0.0.5", True),
        ("http://localhost:8888", "localhost:9600", False),  # a notebook
        ("http://localhost:9600", "127.0.0.1:9600", False),
        ("http://localhost", "localhost:9600", False),
        ("http://evil.example", "127.0.0.1:9600", False),
        ("null", "127.0.0.1:9600", False),
        ("null", "", False),
        ("", "", False),
        ("http://[", "[", False),
        ("http://127.0.0.1:x", "127.0.0.1:x", False),
    ],
)
def test_only_a_page_of_the_same_host_and_port_presses_buttons(origin, host, same):
    assert is_same(origin, host) == same


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:9600", True),
        ("192.168.0.7", True),
        ("[fe80::1]:9600", True),
        ("localhost:9600", True),
        ("Desk:9600", True),
        ("desk.:9600", True),
        ("desk.evil.example:9600", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_and_addresses_are_asked(host, ours):
    assert is_ours(host, {"localhost", "desk"}) == ours


def test_a_machine_has_its_own_name_and_that_of_its_listener():
    name = socket.gethostname()
    assert own_names("Data.example:9600") == {name, name.partition(".")[0], "data.example"}
    assert "0.0.0.0" in own_names("0.0.0.0:9600")


@pytest.fixture(scope="module")
def url():
    async def answer(_):
        return Response("answered")

    app = OwnPages(Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path in ("/", "/x")]), {"Desk"})

    async def http_only(scope, receive, send):
        if scope["type"] == "http":
            await app(scope, receive, send)

    with served(http_only) as url:
        yield url


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("POST", "/x", {}, 200),
        ("POST", "/x", {"origin": "http://localhost:8888"}, 403),
        ("POST", "/x", {"origin": "http://desk:9600", "host": "desk:9600"}, 200),
        ("GET", "/x", {"origin": "http://localhost:8888"}, 200),  # nobody reads its answer there
        ("GET", "/x", {"host": "evil.example:9600"}, 403),
        ("POST", "/x", {"host": "evil.example"}, 403),
        ("GET", "/", {"host": "registry.example", "accept": "application/json"}, 200),
        ("GET", "/", {"host": "evil.example", "accept": "text/html"}, 403),
    ],
)
def test_others_are_refused_with_what_to_do(url, method, path, headers, code):
    answer = httpx.request(method, url + path, headers=headers)
    assert answer.status_code == code
    if code == 403:
        assert answer.json()["error"]["code"] == "other_origin"
        assert answer.json()["error"]["hint"]
