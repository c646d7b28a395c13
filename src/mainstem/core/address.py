"""Addresses as people write them: HOST:PORT, an IPv6 address in brackets."""

import errno
import random
import socket

from mainstem.core.config import BadSetting

# Below the range from which the kernel takes the local ports of outgoing connections (32768 and up): one of those
# could take the port before a server is there, or while it is away.
_FREE = range(15_000, 32_000)


def parse_address(text: str, what: str, *, lowest_port: int = 0) -> tuple[str, int]:
    """Host, without brackets, and port of `text`.

    Args:
        text: `127.0.0.1:9092`, `localhost:0`, `[::1]:9092`.
        what: the option or setting that it was given as, for the error.
        lowest_port: 0 where port 0 means a free one; 1 for an address to connect to.

    Raises:
        BadSetting: it is no address.
    """
    host, _, port = text.strip().rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if in_brackets else host
    is_host = bool(bare) and (":" in bare) == in_brackets and not set(bare) & set("[]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and lowest_port <= int(port) <= 65_535
    if not (is_host and is_port):
        raise BadSetting(f"{what}: expected HOST:PORT, found {text!r}", hint="as in 127.0.0.1:9092 or [::1]:9092")
    return bare, int(port)


def format_address(host: str, port: int) -> str:
    """`HOST:PORT` that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str) -> int:
    """A port of `host` that nobody listens on now, for a server that binds it later.

    Raises:
        OSError: `host` is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            with socket.create_server((host, random.choice(_FREE)), family=family) as probe:
                return int(probe.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
