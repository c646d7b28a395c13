"""The pages and what they ask for.

/                     the path as a graph, live; for programs, what the registry answers there
/topics/<name>        its records; /topics/<name>/about, /topics/<name>/records and, as server-sent events,
                      /topics/<name>/live are what the page asks for
/jobs/...             versions of jobs, and what can be done to them: `jobs`
/views/...            views, and what their nodes answer: `views`
/events               the state, as server-sent events
POST /audit           count the whole log, once at a time; the result comes with the next event
/static/<file>        scripts and styles

Pages are files of the package: all that is data comes later, and scripts put it in as text.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from mainstem.audit.report import audit
from mainstem.client.connection import Connection
from mainstem.core.clock import Clock, SystemClock
from mainstem.dash import browse
from mainstem.dash.books import summed_up
from mainstem.dash.jobs import Jobs, NoCommands
from mainstem.dash.live import Live
from mainstem.dash.nodes import Nodes
from mainstem.dash.operations import Commands, Operations
from mainstem.dash.own_pages import OwnPages, own_names
from mainstem.dash.state import AuditResult, State
from mainstem.dash.tails import Tails
from mainstem.dash.views import Views
from mainstem.dash.web import Endpoint, answering, file, json_answer, number, own_threads, page

T = TypeVar("T")

PAGE_RECORDS = 50


class Dashboard:
    """A door of the gateway.

    Args:
        connection: the log.
        read: the state, without rates; it blocks.
        nodes: the serving nodes that views are asked of.
        commands: what can be done to jobs.
        clock: what rates are measured with.
        listen: HOST:PORT of the gateway.
    """

    def __init__(
        self,
        connection: Connection,
        read: Callable[[], State],
        nodes: Nodes | None = None,
        commands: Commands | None = None,
        clock: Clock | None = None,
        listen: str = "",
    ) -> None:
        self._connection, self._listen = connection, listen
        self._threads = own_threads()
        self._nodes = nodes or Nodes({}, dict)
        self._views = Views(self._nodes, self._threads)
        self._tails = Tails(connection)
        self._clock = clock or SystemClock()
        self._live = Live(read, self._clock)
        commands = commands or NoCommands()
        self._operations = Operations(commands, self._live.operated, self._clock)
        self._jobs = Jobs(commands, self._operations, self._threads, self._running)
        self._auditing: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    def routes(self) -> Sequence[BaseRoute]:
        names = own_names(self._listen)
        found = [
            Route("/", _root()),
            Route("/static/{file}", _static),
            Route("/topics/{name}", page("topic")),
            Route("/topics/{name}/about", self._asked(self._about)),
            Route("/topics/{name}/records", self._asked(self._records)),
            Route("/topics/{name}/live", answering(self._tails.answer)),
            *self._jobs.routes(),
            *self._views.routes(),
            Route("/events", self._events),
            Route("/audit", self._audit, methods=["POST"]),
        ]
        for route in found:
            route.app = OwnPages(route.app, names)  # the other doors of the gateway take programs under any name
        return found

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as self._tasks:
            reading = self._tasks.create_task(self._live.run())
            try:
                yield
            finally:
                reading.cancel()
                self._operations.close()
                self._tails.close()
                self._threads.close()

    def leave(self) -> None:
        self._live.leave()
        self._nodes.close()
        self._operations.close()
        self._tails.leave()

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

    def _running(self) -> asyncio.TaskGroup:
        assert self._tasks is not None
        return self._tasks

    async def _audit(self, _: Request) -> Response:
        if self._auditing is None or self._auditing.done():
            self._auditing = self._running().create_task(self._examine())
        return Response(status_code=202)

    async def _examine(self) -> None:
        before = self._live.audit or AuditResult(0)
        self._live.audited(msgspec.structs.replace(before, running=True, error=""))
        began = self._clock.monotonic()
        try:
            lines = await self._threads.call(audit, self._connection)
        except Exception as error:  # told on the page
            self._live.audited(AuditResult(self._clock.now_ms(), error=str(error) or type(error).__name__))
            return
        self._live.audited(summed_up(lines, self._clock.now_ms(), self._clock.monotonic() - began))

    def _about(self, request: Request) -> browse.About:
        return browse.about(self._connection, request.path_params["name"])

    def _records(self, request: Request) -> browse.Page:
        topic, asked = request.path_params["name"], request.query_params
        only = number(asked.get("partition"), "partition")
        if (offset := number(asked.get("offset"), "offset")) is not None:
            return browse.one(self._connection, topic, only or 0, offset)
        limit = max(1, min(number(asked.get("limit"), "limit") or PAGE_RECORDS, browse.MOST_RECORDS))
        if "from" in asked:
            return browse.from_offset(self._connection, topic, limit, browse.positions(asked["from"]), only)
        before = browse.positions(asked["before"]) if "before" in asked else None
        return browse.newest(self._connection, topic, limit, before, only)

    def _asked(self, ask: Callable[[Request], T]) -> Endpoint:
        async def answer(request: Request) -> Response:
            return json_answer(await self._threads.call(ask, request))

        return answering(answer)


def _root() -> Endpoint:
    path = page("path")

    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return await path(request)
        return json_answer({})  # clients of registries ask this of one

    return root


async def _static(request: Request) -> Response:
    return file(request.path_params["file"])
