"""Addresses of clients, as Kafka writes and compares them: as Java does (`Inet6Address.getHostAddress`), of an IPv6
address all eight groups, none with leading zeros.
"""

from functools import lru_cache

_GROUPS = 8


@lru_cache(4096)
def host_of(address: str) -> str:
    """The one spelling of an IP address; what is none is left as it is. An IPv4 address within IPv6 is that one."""
    if ":" not in address:
        return address
    from ipaddress import IPv6Address  # 3 ms, which a start over IPv4 does not need

    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    number = int(found)
    groups = ":".join(f"{number >> 16 * place & 0xFFFF:x}" for place in reversed(range(_GROUPS)))
    return f"{groups}%{found.scope_id}" if found.scope_id else groups
