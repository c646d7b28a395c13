"""Serving an ASGI application over HTTP: the listener, the server, its end. Each process that answers HTTP uses it."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from mainstem.core.address import format_address, parse_address
from mainstem.core.config import BadSetting
from mainstem.core.errors import UserError
from mainstem.web.heads import BoundedProtocol

GRACE_SECONDS = 10


class AddressInUse(UserError):
    """Somebody else listens on the address."""


class WebServer(uvicorn.Server):
    """Serves `app` on `listener` until SIGINT or SIGTERM, or `should_exit`; requests under way are answered first.

    Unlike uvicorn's own it tells when it answers, and ends without the signal's own exit code when it was asked to.

    Args:
        app: with its lifespan.
        listener: a listening socket.
        on_ready: told the address (`host:port`) once requests are answered.
        on_leave: called when it stops, to end the answers that would go on for ever.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        on_ready: Callable[[str], None] = lambda _: None,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        settings = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
        )
        super().__init__(settings)
        self._listener = listener
        self._on_ready = on_ready
        self._on_leave = on_leave

    async def run_here(self) -> None:
        """Serve on the event loop of the caller."""
        await self.serve(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self._listener.getsockname()[:2]
            self._on_ready(format_address(host, port))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_leave()  # it waits for the answers under way
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bound(address: str, what: str, option: str) -> socket.socket:
    """A listening socket.

    Args:
        address: HOST:PORT.
        what: the setting that says so, for errors: `[gateway] listen`.
        option: how another one is chosen: `--gateway, or [gateway] listen`.

    Raises:
        BadSetting: not HOST:PORT, or no such host.
        AddressInUse: taken.
    """
    host, port = parse_address(address, what)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise BadSetting(f"{what}: {address!r}: {error}") from None
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = f"stop what listens there, or choose another address: {option}"
        raise AddressInUse(f"{address}: {reason}", hint=hint) from None
