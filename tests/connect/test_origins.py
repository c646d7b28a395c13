import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from mainstem.connect.origins import OwnOrigins, is_own
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


def test_what_a_page_of_another_host_sends_is_refused_with_the_reason():
    """It needs no leave for a body without a content type, which counts as JSON: any page could post to a loopback."""

    async def taken(_):
        return Response("taken")

    app = Starlette(routes=[Route("/", taken, methods=["POST"])], middleware=[Middleware(OwnOrigins)])
    with served(app) as url:
        for headers in ({}, {"Origin": url}):
            assert httpx.post(url, content=b"[1]", headers=headers).text == "taken"
        answer = httpx.post(url, content=b"[1]", headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "other_origin")
    assert "https://evil.example" in answer.json()["error"]["message"]
