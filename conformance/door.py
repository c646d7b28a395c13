"""The port that clients of a broker know, for as long as a suite runs, however often the broker itself is started."""

import asyncio
import socket
import threading
from types import TracebackType

import uvloop

CHUNK = 1 << 18


class Door:
    """Forwards every connection to whoever listens on port `target`; where nobody does, a connection waits.

    Where a broker is away, connections to its port are refused, and franz-go gives some requests up at the first that
    is, its tests with them. Behind a door they see a connection that breaks, and one that takes a moment.
    """

    def __init__(self) -> None:
        self.target = 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def __enter__(self) -> "Door":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, sock=self._socket, limit=CHUNK)
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await self._behind()
        except asyncio.CancelledError:  # the end of the door is not an error of a connection
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_forward(reader, behind_writer))
                tasks.create_task(_forward(behind_reader, writer))
        except* (OSError, RuntimeError, asyncio.CancelledError):  # uvloop's of a transport that has just closed
            pass
        finally:
            writer.transport.abort()
            behind_writer.transport.abort()

    async def _behind(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self.target, limit=CHUNK)
            except OSError:
                await asyncio.sleep(0.02)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the one side ends, which ends the other.

    Raises:
        ConnectionError: always, so that the other direction ends as well.
    """
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("one side has closed")
