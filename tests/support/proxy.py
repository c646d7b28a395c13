"""A TCP proxy that cuts connections, to make clients send again what may have arrived, or ask again."""

import asyncio
import contextlib
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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def __enter__(self) -> "CuttingProxy":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        assert error is not None or self.cuts > 0, "nothing was cut: the test proved nothing"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._serve_one, "127.0.0.1", self.port)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the end of the proxy is not an error of a connection
            await self._connection(reader, writer)

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
            writer.transport.abort()
            up_writer.close()


def _api_keys(data: bytes) -> set[int]:
    """Of the requests in `data`, which begins with one."""
    found, at = set(), 0
    while len(data) >= at + 6:
        found.add(int.from_bytes(data[at + 4 : at + 6], "big"))
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    return found
