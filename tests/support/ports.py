"""Ports nobody listens on."""

import random
import socket
from contextlib import ExitStack

# Below the range from which the kernel takes the local ports of outgoing connections (32768 and up): a connection
# of a neighbouring test cannot take the port between our look and the server's bind.
_FIRST, _LAST = 15000, 32000


def free_ports(count: int) -> list[int]:
    """`count` different ports on 127.0.0.1 that were free a moment ago."""
    ports: list[int] = []
    with ExitStack() as held:  # all are held until the last is found, so none is given twice
        while len(ports) < count:
            port = random.randint(_FIRST, _LAST)
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports


def free_port() -> int:
    return free_ports(1)[0]
