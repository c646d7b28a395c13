"""A network that can hold back what a node sends to the log, and let it go later.

Kafka's clients follow the addresses that a broker's metadata names; where it is the log's, the relay puts its own.
"""

import asyncio
import threading
from types import TracebackType

from mainstem.core.address import free_port, parse_address

_METADATA = 3  # Kafka's number of the request


class Relay:
    """Forwards to `target`, a log of one broker; `address` is what a node is given instead."""

    def __init__(self, target: str) -> None:
        self._target = parse_address(target, "target")
        self._port = free_port("127.0.0.1")
        self.address = f"127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def __enter__(self) -> "Relay":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hold(self) -> None:
        """From now on nothing that the node sends arrives."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """All of it arrives now, and what follows."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def _serve(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self._port)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        asked: set[bytes] = set()  # the numbers of requests for metadata

        async def requests() -> None:
            while frame := await _frame(reader):
                if int.from_bytes(frame[4:6], "big") == _METADATA:
                    asked.add(frame[8:12])
                await self._open.wait()
                up_writer.write(frame)
                await up_writer.drain()

        async def answers() -> None:
            ours, theirs = (port.to_bytes(4, "big") for port in (self._port, self._target[1]))
            while frame := await _frame(up_reader):
                if frame[4:8] in asked:
                    asked.discard(frame[4:8])
                    frame = frame.replace(theirs, ours)
                writer.write(frame)
                await writer.drain()
            writer.transport.abort()  # which ends the requests, too

        try:
            async with asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(answers())
                await requests()
                answering.cancel()
        except* (ConnectionError, asyncio.CancelledError):  # the end of the relay is no error of a connection
            pass
        finally:
            for each in (writer, up_writer):
                each.transport.abort()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One request or answer with its length before it; empty at the end."""
    try:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(int.from_bytes(head, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
