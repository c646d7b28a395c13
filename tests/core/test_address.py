import random
import socket
from pathlib import Path

import pytest

from mainstem.core.address import format_address, free_port, parse_address
from mainstem.core.config import BadSetting


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_read_and_written(text, address):
    assert parse_address(text, "--listen") == address
    assert format_address(*address) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "here", "here:", ":9092", "a:x", "a:65536", "a:-1", "a:²", "a:" + "9" * 5000),
        *("::1:9092", "[::1]", "[]:1", "[a]:1", "[::1:1", "[[::1]]:1", "a]:1"),
    ],
)
def test_what_is_no_address_is_told_with_what_it_was_given_as(text):
    with pytest.raises(BadSetting, match=r"^--listen: expected HOST:PORT, found '"):
        parse_address(text, "--listen")


def test_nobody_connects_to_port_0():
    with pytest.raises(BadSetting):
        parse_address("a:0", "bootstrap", lowest_port=1)


def test_a_free_port_is_none_that_an_outgoing_connection_gets(monkeypatch):
    """One of those took the port of a log that was about to start, or of a PostgreSQL that was started again."""
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as taken:
        found = iter([taken.getsockname()[1], free := free_port("127.0.0.1")])
        monkeypatch.setattr(random, "choice", lambda _: next(found))
        assert free_port("127.0.0.1") == free < first_of_connections


def test_a_host_that_is_not_of_this_machine_has_no_free_port():
    with pytest.raises(OSError, match="address"):
        free_port("192.0.2.1")  # RFC 5737
