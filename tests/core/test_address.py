import pytest

from mainstem.core.address import format_address, parse_address
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
