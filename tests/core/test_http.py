import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mainstem.core.http import is_this_machine, open_request
from tests.support.ports import free_port


class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_proxy_is_not_asked_for_this_machine(server, monkeypatch):
    """It was, and so nothing of an installation reached its own gateway."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # it reads the variables once, and keeps them for other tests
    for host in ("127.0.0.1", "localhost"):
        with open_request(urllib.request.Request(f"http://{host}:{server}/"), 5) as answer:
            assert answer.read() == b"hello"
    with pytest.raises(urllib.error.URLError, match="refused"):
        open_request(urllib.request.Request("http://elsewhere.invalid/"), 5)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_is_this_machine(host, own):
    assert is_this_machine(host) is own
