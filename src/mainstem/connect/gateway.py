"""The gateway: registry, collector, tokens and health in one ASGI process.

/subjects, /schemas, /config, /mode, /compatibility, /contexts   the registry, Confluent's API
/v1/topics/...                                                   the collector
/token                                                           basis tokens of databases
/health                                                          200 while the log answers, the registry reads its topic
                                                                 and no newer gateway has the collector; else 503
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS, SOURCES
from mainstem.client.topics import end_offsets, ensure_internal_topics
from mainstem.connect.gateway_config import GatewayConfig
from mainstem.connect.sources.http import Collector
from mainstem.connect.sources.http_append import TakenOver
from mainstem.connect.tokens import Tokens
from mainstem.core import MainstemError, Superseded
from mainstem.core.logging import get_logger
from mainstem.registry.app import routes as registry_routes
from mainstem.registry.store import Store
from mainstem.web.answers import no_route
from mainstem.web.origins import OwnOrigins
from mainstem.web.server import WebServer, bound

log = get_logger()

LOG_SECONDS = 2.0  # what `/health` waits for the log; what it said counts for a second


class GatewayTakenOver(Superseded):
    """A newer gateway took the collector's transactional id: this one has stopped."""


class Door(Protocol):
    """What a room above this one answers in the gateway's process."""

    def routes(self) -> Sequence[BaseRoute]:
        """They come first: where two have one path, a door's counts."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """What goes on while the gateway runs."""
        ...

    def leave(self) -> None:
        """The gateway stops: end the answers that would go on for ever. Called in its event loop."""
        ...


class _Probe:
    """Whether the log answers: one question at a time, however many ask for their health."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked_at = 0.0
        self._answer: asyncio.Future[str] | None = None

    async def problem(self) -> str:
        """Why the log cannot be used now; empty if it can."""
        if self._answer is None or (self._answer.done() and time.monotonic() - self._asked_at >= 1):
            self._asked_at = time.monotonic()
            self._answer = asyncio.get_running_loop().run_in_executor(None, self._ask)
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), LOG_SECONDS)
        except TimeoutError:
            return f"the log did not answer within {LOG_SECONDS:.0f} s"

    def _ask(self) -> str:
        try:
            end_offsets(self._connection, SOURCES)
        except MainstemError as error:
            return str(error)
        return ""


class Gateway:
    """The application and what it holds. One per process and event loop."""

    def __init__(
        self,
        connection: Connection,
        config: GatewayConfig,
        *,
        on_taken_over: Callable[[], None],
        doors: Sequence[Door] = (),
    ) -> None:
        self._connection = connection
        self._doors = doors
        self._store = Store(connection)
        self._tokens = Tokens(connection)
        self._collector = Collector(connection, self._store, config.collector, self._tokens)
        self._probe = _Probe(connection)
        self._on_taken_over = on_taken_over
        self._is_open = False
        self.app = Starlette(
            routes=[
                *(route for door in doors for route in door.routes()),
                Route("/health", self._health),
                *self._tokens.routes(),
                *self._collector.routes(),
                *registry_routes(self._store),
            ],
            middleware=[Middleware(OwnOrigins, listen=config.listen)],
            exception_handlers={HTTPException: no_route},
            lifespan=self._lifespan,
        )

    async def open(self) -> None:
        """1. internal topics  2. schemas, read to the end  3. follow the sources  4. fence older collectors. Called by
        the application itself when it starts, unless somebody wants to know first why it cannot.

        Raises:
            BrokerUnavailable, StoreUnavailable: the log does not answer.
        """
        await asyncio.to_thread(ensure_internal_topics, self._connection)
        await self._store.open()
        await self._tokens.open()
        await self._collector.open()
        self._is_open = True

    def leave(self) -> None:
        """It stops: end the answers that would go on for long. Called in its event loop."""
        self._tokens.leave()
        for door in self._doors:
            door.leave()

    async def close(self) -> None:
        """Let go of the log; what was answered is there."""
        await self._tokens.close()
        await self._collector.close()
        await self._store.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            if not self._is_open:
                await self.open()
            async with contextlib.AsyncExitStack() as running, asyncio.TaskGroup() as tasks:
                for door in self._doors:
                    await running.enter_async_context(door.running())
                work = tasks.create_task(self._collect())
                yield
                work.cancel()
        finally:
            await self.close()

    async def _collect(self) -> None:
        try:
            await self._collector.run()
        except TakenOver:
            self._on_taken_over()

    async def _health(self, _: Request) -> Response:
        problems = []
        if problem := await self._probe.problem():
            problems.append(f"log: {problem}")
        if not self._store.follows:
            problems.append(f"registry: it reads no more of {SCHEMAS}; start the gateway again")
        if self._collector.appender.fenced:
            problems.append("collector: a newer gateway took over")
        state = self._store.state
        body = {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "registry": {"subjects": len(state.subjects), "max_id": state.max_id, "unreadable": state.unreadable},
            "collector": {"name": self._collector.appender.name, "transactions": self._collector.appender.committed},
        }
        return Response(msgspec.json.encode(body), 503 if problems else 200, media_type="application/json")


def run(
    connection: Connection,
    config: GatewayConfig,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
    doors: Sequence[Door] = (),
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are answered first.

    Args:
        connection: the log.
        config: the gateway's settings.
        on_ready: told the address (`host:port`) once requests are answered.
        doors: what else is answered here.

    Raises:
        AddressInUse, BadSetting: the address cannot be bound.
        BrokerUnavailable, StoreUnavailable: the log does not answer.
        GatewayTakenOver: a newer gateway of the same name runs.
    """
    listener = bound(config.listen, "[gateway] listen", "--gateway, or [gateway] listen")
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if runner.run(_serve(connection, config, listener, on_ready, doors)):
            raise GatewayTakenOver(
                f"collector {config.collector.name}: a newer gateway took over, this one has stopped",
                hint="run one gateway per collector name, or give this one another [gateway.collector] name, and start it again",
            )


async def _serve(
    connection: Connection,
    config: GatewayConfig,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    doors: Sequence[Door],
) -> bool:
    """Serve on `listener`; true if a newer gateway took over."""
    taken_over = False

    def stop() -> None:
        nonlocal taken_over
        taken_over = True
        server.should_exit = True

    gateway = Gateway(connection, config, on_taken_over=stop, doors=doors)

    server = WebServer(gateway.app, listener, on_ready, gateway.leave)
    try:
        await gateway.open()
    except BaseException:
        await gateway.close()
        raise
    await server.run_here()
    return taken_over
