"""Which web pages may talk to the gateway: those of this machine, or of the address at which it is asked.

A browser sends what any page asks it to, also to a loopback address, and names the page's origin with everything but
plain reads; programs leave it out. A host's name says nothing: whoever owns it can have it mean this machine.
"""

import ipaddress
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class OwnOrigins:
    """Answers 403 to requests of other web pages, before anything of them is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not is_own(origin, headers.get("host", "")):
                await _refusal(origin)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_own(origin: str, host: str) -> bool:
    """Whether the page at `origin` is one of this machine, or of the IP address that `host` is; no port counts."""
    name = _host(origin)
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or name == _host(f"//{host}")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _refusal(origin: str) -> Response:
    error = {
        "code": "other_origin",
        "message": f"expected no Origin, or one of this machine, found {origin[:200]!r}: a web page of another host sent this",
        "hint": "send it from the page's server; a proxy that knows who may post leaves the header Origin out",
    }
    return Response(msgspec.json.encode({"error": error}), 403, media_type="application/json")
