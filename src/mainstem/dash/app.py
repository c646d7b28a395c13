"""The pages and what they ask for.

/                     the path as a graph, live; for programs, what the registry answers there
/topics/<name>        its records; /topics/<name>/about and /topics/<name>/records are what the page asks for
/jobs/<name>          its versions
/events               the state, as server-sent events
POST /audit           count the whole log, once at a time; the result comes with the next event
/static/<file>        scripts and styles

Pages are files of the package: all that is data comes later, and scripts put it in as text.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from mainstem.audit.report import audit
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.core import MainstemError, UserError
from mainstem.core.clock import Clock, SystemClock
from mainstem.dash import browse
from mainstem.dash.books import summed_up
from mainstem.dash.live import Live
from mainstem.dash.state import AuditResult, State

T = TypeVar("T")

STATIC = Path(__file__).with_name("static")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
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
PAGE_RECORDS = 50


class Dashboard:
    """A door of the gateway.

    Args:
        connection: the log.
        read: the state, without rates; it blocks.
        clock: what rates are measured with.
    """

    def __init__(self, connection: Connection, read: Callable[[], State], clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._live = Live(read, self._clock)
        self._auditing: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/", _root),
            Route("/static/{file}", _static),
            Route("/topics/{name}", _page("topic.html")),
            Route("/topics/{name}/about", self._answer(self._about)),
            Route("/topics/{name}/records", self._answer(self._records)),
            Route("/jobs/{name}", _page("job.html")),
            Route("/events", self._events),
            Route("/audit", self._audit, methods=["POST"]),
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as self._tasks:
            reading = self._tasks.create_task(self._live.run())
            yield
            reading.cancel()

    def leave(self) -> None:
        self._live.leave()

    async def _events(self, _: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"retry: 1000\n\n"
            states = self._live.listen()
            try:
                async for state in states:
                    yield b"data: " + state.encoded() + b"\n\n"
            finally:
                await states.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _audit(self, _: Request) -> Response:
        assert self._tasks is not None
        if self._auditing is None or self._auditing.done():
            self._auditing = self._tasks.create_task(self._examine())
        return Response(status_code=202)

    async def _examine(self) -> None:
        before = self._live.audit or AuditResult(0)
        self._live.audited(msgspec.structs.replace(before, running=True, error=""))
        began = self._clock.monotonic()
        try:
            lines = await asyncio.to_thread(audit, self._connection)
        except Exception as error:  # told on the page
            self._live.audited(AuditResult(self._clock.now_ms(), error=str(error) or type(error).__name__))
            return
        self._live.audited(summed_up(lines, self._clock.now_ms(), self._clock.monotonic() - began))

    def _about(self, request: Request) -> browse.About:
        return browse.about(self._connection, request.path_params["name"])

    def _records(self, request: Request) -> browse.Page:
        topic, asked = request.path_params["name"], request.query_params
        only = _number(asked.get("partition"), "partition")
        if (offset := _number(asked.get("offset"), "offset")) is not None:
            return browse.one(self._connection, topic, only or 0, offset)
        limit = max(1, min(_number(asked.get("limit"), "limit") or PAGE_RECORDS, browse.MOST_RECORDS))
        if "from" in asked:
            return browse.from_offset(self._connection, topic, limit, browse.positions(asked["from"]), only)
        before = browse.positions(asked["before"]) if "before" in asked else None
        return browse.newest(self._connection, topic, limit, before, only)

    def _answer(self, ask: Callable[[Request], T]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return _json(await asyncio.to_thread(ask, request))
            except MainstemError as error:
                code = 404 if isinstance(error, UnknownTopic) else 400 if isinstance(error, UserError) else 503
                return _json({"error": {"message": str(error), "hint": error.hint}}, code)

        return endpoint


def _number(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < len(str(2**63))):
        raise UserError(f"{name}: expected a number, found {text[:40]!r}")
    return int(text)


def _json(content: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), code, media_type="application/json", headers=HEADERS)


def _file(name: str) -> Response:
    path = STATIC / name
    if path.parent != STATIC or not path.is_file():
        return Response("no such file\n", 404, media_type="text/plain")
    return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers=HEADERS)


async def _root(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return _file("path.html")
    return _json({})  # clients of registries ask this of one


async def _static(request: Request) -> Response:
    return _file(request.path_params["file"])


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return _file(name)

    return page
