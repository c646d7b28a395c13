"""An ASGI application behind a real socket, in a thread of the test."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.ports import free_port


@contextmanager
def served(app: Any, **settings: Any) -> Iterator[str]:
    """The URL at which `app` answers, its lifespan included."""
    settings = {"log_level": "warning", "lifespan": "on", "ws": "none"} | settings
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), **settings))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < until, "the server did not start in 60 s"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.config.port}"
    finally:
        server.should_exit = True
        thread.join()
