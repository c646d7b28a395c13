"""Which web pages may talk to a listener of ours: those of this machine, or of the address at which it is asked.

A browser sends what any page asks it to, also to a loopback address. It names the page's origin with everything but
plain reads, and says of these whether they are of another site (Sec-Fetch-Site); programs leave both out. A host's name
says nothing: whoever owns it can have it mean this machine, and then read what is answered here.
"""

import ipaddress
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class OwnOrigins:
    """Answers 403 to requests of other web pages, before anything of them is read.

    Args:
        app: what answers the others.
        listen: HOST:PORT of the listener.
    """

    def __init__(self, app: ASGIApp, listen: str) -> None:
        self._app = app
        self._listens_on = _host(f"//{listen}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin, host = headers.get("origin"), headers.get("host", "")
            refusal = None
            if origin is not None and not is_own(origin, host):
                refusal = _other_origin(origin)
            elif origin is None and _is_strange(scope["method"], headers):
                refusal = _other_site(headers["sec-fetch-site"])
            elif self._is_on_loopback(scope) and not is_meant(host, self._listens_on):
                refusal = _other_host(host)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_on_loopback(self, scope: Scope) -> bool:
        """Whether nobody outside of this machine reaches the listener: a name in the network may mean any other."""
        listens_on, reached_at = _address(self._listens_on), _address((scope.get("server") or ("",))[0])
        return (
            reached_at is not None
            and reached_at.is_loopback
            and not (listens_on is not None and listens_on.is_unspecified)
        )


def _is_strange(method: str, headers: Headers) -> bool:
    """Whether a page of another site asks for a part of itself, as a picture: such reads have no Origin. Who follows a
    link, or opens a window, may see what we answer, since the page cannot. Another port of this host is of the same
    site, and may ask, as it may with its Origin; older browsers, and programs, do not say.
    """
    follows = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    into_itself = headers.get("sec-fetch-dest") in ("iframe", "frame", "object", "embed")
    return headers.get("sec-fetch-site") == "cross-site" and (not follows or into_itself)


def is_own(origin: str, host: str) -> bool:
    """Whether the page at `origin` is one of this machine, or of the IP address that `host` is; no port counts."""
    name = _host(origin)
    if name == "localhost":
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or name == _host(f"//{host}"))


def is_meant(host: str, listens_on: str) -> bool:
    """Whether a listener on loopback is asked by a name that no page can have. A plain read has no Origin, and its page
    may have had its own name mean this machine; a program of old sends no Host.
    """
    name = _host(f"//{host}")
    return not host or name in ("localhost", listens_on) or _address(name) is not None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _other_origin(origin: str) -> Response:
    return _refusal(
        f"expected no Origin, or one of this machine, found {origin[:200]!r}: a web page of another host sent this",
        "send it from the page's server; a proxy that knows who may post leaves the header Origin out",
    )


def _other_site(site: str) -> Response:
    return _refusal(
        f"expected no Sec-Fetch-Site, or one of this machine, found {site[:40]!r}: a web page of another site asks this",
        "open the address by itself, or ask from the page's server",
    )


def _other_host(host: str) -> Response:
    return _refusal(
        f"expected a Host of localhost, an IP address or the name that `listen` has, found {host[:200]!r}: "
        "it may be a web page's, made to mean this machine",
        "ask for localhost or an IP address; a proxy sets Host to the one that it asks",
    )


def _refusal(message: str, hint: str) -> Response:
    error = {"code": "other_origin", "message": message, "hint": hint}
    return Response(msgspec.json.encode({"error": error}), 403, media_type="application/json")
