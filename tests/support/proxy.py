"""A TCP proxy that cuts connections, to make clients send again what may have arrived, or ask again."""

import asyncio
import socket
import threading
from types import TracebackType

from tests.support.ports import free_port


class CuttingProxy:
    """Forwards to `target`; every connection is cut after `cut_after_bytes` from the client, answers in flight lost.

    Or the connections of the first `most_cuts` requests with API key `cut_before_api` are cut, the requests lost.

    Kafka clients follow the address that metadata names, so answers are rewritten: the target's port becomes ours.
    """

    def __init__(
        self, target: str, *, cut_after_bytes: int = 1 << 62, cut_before_api: int = -1, most_cuts: int = 1 << 62
    ) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._limit = cut_after_bytes
        self._api = cut_before_api
        self._most_cuts = most_cuts
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.cuts = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._ready = threading.Event()

    def __enter__(self) -> "CuttingProxy":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        assert error is not None or self.cuts > 0, "nothing was cut: the test proved nothing"

    async def _serve(self) -> None:
        """Servers of asyncio, and its `sock_accept`, leave open whom they accept in the turn in which they end."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        clients: dict[asyncio.Task[None], socket.socket] = {}

        def accept() -> None:
            client, _ = listener.accept()
            client.setblocking(False)
            clients[asyncio.create_task(self._serve_one(client))] = client

        with socket.create_server(("127.0.0.1", self.port)) as listener:
            listener.setblocking(False)
            self._loop.add_reader(listener, accept)
            self._ready.set()
            await self._stop.wait()
            self._loop.remove_reader(listener)
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            for client in clients.values():  # one whose task had not begun yet
                client.close()

    async def _serve_one(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            await self._connection(reader, writer)
        finally:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        ours, theirs = self.port.to_bytes(4, "big"), self._target[1].to_bytes(4, "big")

        async def answers() -> None:
            while head := await up_reader.read(4):
                head += await up_reader.readexactly(4 - len(head))
                body = await up_reader.readexactly(int.from_bytes(head, "big"))
                writer.write(head + body.replace(theirs, ours))
                await writer.drain()

        try:
            async with asyncio.TaskGroup() as tasks:
                answering = tasks.create_task(answers())
                passed = 0
                while data := await reader.read(4096):
                    if self._api in _api_keys(data) and self.cuts < self._most_cuts:
                        self.cuts += 1
                        break
                    up_writer.write(data)
                    await up_writer.drain()
                    passed += len(data)
                    if passed > self._limit:
                        self.cuts += 1
                        break
                answering.cancel()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            up_writer.transport.abort()


def _api_keys(data: bytes) -> set[int]:
    """Of the requests in `data`, which begins with one."""
    found, at = set(), 0
    while len(data) >= at + 6:
        found.add(int.from_bytes(data[at + 4 : at + 6], "big"))
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    return found
