"""A log inside this process: `with mainstem.embedded() as log:` and any Kafka client connects to `log.bootstrap`.

It is the whole broker with its files, on an event loop in a thread of its own; nothing is mocked and nothing is
installed. A second one in the same process has its own directory and port.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from mainstem.broker.config import BrokerConfig
from mainstem.broker.node import serving
from mainstem.core.address import format_address
from mainstem.core.logging import configure
from mainstem.log import LogConfig


class EmbeddedLog:
    """A running log: its address and its directory."""

    def __init__(self, bootstrap: str, data: Path) -> None:
        self.bootstrap = bootstrap
        """`host:port`, for any client's bootstrap servers."""
        self.data = data


@contextmanager
def embedded(
    data: Path | None = None, *, broker: BrokerConfig | None = None, log: LogConfig | None = None
) -> Iterator[EmbeddedLog]:
    """Run a log for as long as the context lasts.

    Args:
        data: its directory, kept afterwards; None makes a temporary one that is removed.
        broker: settings; the default listens on 127.0.0.1 on a free port.
        log: settings of the log directory.

    Raises:
        LogDirectoryInUse: `data` belongs to another process.
        AddressInUse: the port that was asked for is taken.
    """
    broker = broker if broker is not None else BrokerConfig(port=0)
    log = log if log is not None else LogConfig()
    directory = Path(tempfile.mkdtemp(prefix="mainstem-log-")) if data is None else data
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()
    thread = threading.Thread(
        target=_run, args=(directory, broker, log, started), name="mainstem-embedded-log", daemon=True
    )
    try:
        thread.start()
        loop, stop, address = started.result()
        try:
            yield EmbeddedLog(address, directory)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
    finally:
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)


def _run(
    directory: Path,
    broker: BrokerConfig,
    log: LogConfig,
    started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]]",
) -> None:
    """The thread: a loop that serves until `stop` is set; what prevents the start is raised in the caller."""
    import structlog
    import uvloop

    if not structlog.is_configured():  # a program that says nothing about logs gets warnings only, on stderr
        configure("embedded-log", level="warning")

    async def serve() -> None:
        stop = asyncio.Event()
        async with serving(directory, broker, log) as running:
            started.set_result((asyncio.get_running_loop(), stop, format_address(running.host, running.port)))
            await stop.wait()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
