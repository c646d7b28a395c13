"""What the dashboard's answers have in common: pages that are files of the package, JSON, errors on one line."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainstem.client.errors import UnknownTopic
from mainstem.core import MainstemError, Retriable, UserError
from mainstem.dash.nodes import UnknownView
from mainstem.web.answers import error_answer
from mainstem.web.threads import Overloaded, Threads

STATIC = Path(__file__).with_name("static")
PAGES = Path(__file__).with_name("pages")
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Nothing but our own files: a record that finds a way into a page as HTML still runs nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
THREADS = 8
MOST_WAITING = 64

Endpoint = Callable[[Request], Awaitable[Response]]


class Busy(Retriable):
    """Such an operation goes on already."""


class Changed(Retriable):
    """What somebody has pressed means something else by now."""


class UnknownJob(UserError):
    """There is no such job."""


class UnknownOperation(UserError):
    """There is no such operation, or it is not kept any more."""


class NoResult(UserError):
    """An operation has found nothing to show, or is not kept any more."""


def own_threads(count: int = THREADS, most_waiting: int = MOST_WAITING) -> Threads:
    """Of the dashboard's own."""
    return Threads("the dashboard", count, most_waiting)


def json_answer(content: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), code, media_type="application/json", headers=HEADERS)


def told(error: MainstemError) -> Response:
    """An error as the pages show it, and programs read it."""
    status, code = _status(error)
    return error_answer(status, code, error, HEADERS)


def _status(error: MainstemError) -> tuple[int, str]:
    match error:
        case UnknownTopic() | UnknownView() | UnknownJob() | UnknownOperation() | NoResult():
            return 404, "not_found"
        case UserError():
            return 400, "bad_request"
        case Overloaded():
            return 429, "overloaded"
        case Busy():
            return 409, "busy"
        case Changed():
            return 409, "changed"
    return 503, "not_reached"


def answering(answer: Endpoint) -> Endpoint:
    """Errors of ours as JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except MainstemError as error:
            return told(error)

    return endpoint


def file(name: str) -> Response:
    """A script, a style or a picture of the package, 404 for any other."""
    path = STATIC / name
    if path.parent != STATIC or not path.is_file():
        return Response("no such file\n", 404, media_type="text/plain")
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=HEADERS)


def page(name: str) -> Endpoint:
    """The page of that name: its main part in the frame that all have, and its script."""
    main = (PAGES / f"{name}.html").read_text()
    frame = Template((PAGES / "frame.html").read_text())
    content = frame.substitute(script=f"{name}.js", main=main)

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type="text/html; charset=utf-8", headers=HEADERS)

    return endpoint


def number(text: str | None, name: str) -> int | None:
    """A parameter that is a number; None where it is not given.

    Raises:
        UserError: it is none.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < len(str(2**63))):
        raise UserError(f"{name}: expected a number, found {text[:40]!r}")
    return int(text)
