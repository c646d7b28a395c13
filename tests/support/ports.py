"""Ports nobody listens on."""

from mainstem.core import address


def free_ports(count: int) -> list[int]:
    """`count` different ports on 127.0.0.1 that were free a moment ago."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def free_port() -> int:
    return address.free_port("127.0.0.1")
