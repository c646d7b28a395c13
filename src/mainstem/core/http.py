"""Requests over HTTP with the standard library alone, which also Spark's workers have."""

import ipaddress
import urllib.parse
import urllib.request
from http.client import HTTPResponse
from typing import cast

_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_request(request: urllib.request.Request, timeout_seconds: float) -> HTTPResponse:
    """The answer to `request`, whose body is yet to be read. Variables like `http_proxy` count, but not for this
    machine: a proxy elsewhere cannot reach it, and urllib asks one for it all the same.

    Raises:
        HTTPError: the status is an error; it has the body.
        OSError, HTTPException: no answer.
    """
    host = urllib.parse.urlsplit(request.full_url).hostname or ""
    opened = _PAST_PROXIES.open if is_this_machine(host) else urllib.request.urlopen
    return cast("HTTPResponse", opened(request, timeout=timeout_seconds))


def is_this_machine(host: str) -> bool:
    """Whether `host` is a name or a number that every machine has for itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
