"""Who may ask the dashboard: its own pages, programs, and nobody's page under another name.

A page of any port of this machine is not ours: a notebook's, say. What its buttons may do runs the project's code. And
where the listener is not on loopback, a name in the network may mean any machine: its owner's page could have it mean
this one, and read what is answered here.
"""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mainstem.dash.web import json_answer

_READS = ("GET", "HEAD")
_PORTS = {"http": 80, "https": 443}


class OwnPages:
    """Answers 403 to what other pages ask, before anything of it is read; programs send no Origin.

    Args:
        app: what answers the others.
        names: those of this machine, beside `localhost` and IP addresses.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        is_read = scope["method"] in _READS
        if host and not is_ours(host, self._names) and not _is_public(scope, headers):
            message = f"expected a Host of this machine or an IP address, found {host[:200]!r}: it may be a web page's"
            hint = (
                "ask for the IP address, or for localhost through a tunnel; a proxy sets Host to the one that it asks"
            )
        elif not is_read and origin is not None and not is_same(origin, host):
            message = f"expected the Origin of the dashboard's own pages, {host[:200]}, found {origin[:200]!r}"
            hint = "press it on the dashboard's page; a program leaves the header Origin out"
        else:
            await self._app(scope, receive, send)
            return
        error = {"code": "other_origin", "message": message, "hint": hint}
        await json_answer({"error": error}, 403)(scope, receive, send)


def own_names(listen: str) -> set[str]:
    """The names that this machine has for others: its own, with and without its domain, and that of HOST:PORT."""
    name = socket.gethostname()
    return {name, name.partition(".")[0], _named(f"//{listen}")[0]}


def is_ours(host: str, names: Iterable[str]) -> bool:
    """Whether `host`, HOST or HOST:PORT as a browser sends it, is one of these names or an IP address."""
    name, _ = _named(f"//{host}")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same(origin: str, host: str) -> bool:
    """Whether the page at `origin` is of the host and port that are asked."""
    scheme = origin.partition(":")[0].lower()
    name, port = _named(origin)
    return bool(name) and scheme in _PORTS and (name, port) == _named(f"{scheme}://{host}")


def _is_public(scope: Scope, headers: Headers) -> bool:
    """Clients of registries ask for the root, and are told nothing."""
    return bool(scope["path"] == "/" and "text/html" not in headers.get("accept", ""))


def _named(url: str) -> tuple[str, int | None]:
    """Host and port of a URL; an empty host where it has none, or is no URL."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", None
