"""Threads for blocking file work, and the buffer for reads that need none."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, TypeVar

from mainstem.core.threads import LastingThreads

SWITCH_SECONDS: Final = 0.0001
"""`sys.setswitchinterval` of a process that is all a log's. A busy event loop lets go of the interpreter in each system
call and has it again before a thread that waits for it is awake; who waits asks for it only when nobody has had it for
so long. With Python's 5 ms the writer's thread may wait for a second.
"""

T = TypeVar("T")


class FileThreads:
    """Runs blocking calls of the event loop that made it."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = LastingThreads(count, "log-files")
        self._buffer = memoryview(bytearray(0))

    def run(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Call in a thread; await the result."""
        return self._loop.run_in_executor(self._pool, function, *arguments)

    def buffer(self, size: int) -> memoryview:
        """Memory for a read on the loop; its content holds until the next await."""
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(size))
        return self._buffer[:size]

    def close(self) -> None:
        """Wait for what runs, and let go of the threads."""
        self._pool.shutdown()


class WriterThread:
    """One thread for call after call of the event loop that made it, each told with as little as possible in between:
    a future of an executor costs as much as a small round of the disk.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._calls: SimpleQueue[tuple[Callable[[], None], Callable[[BaseException | None], None]] | None] = (
            SimpleQueue()
        )
        # A program that ends without closing its log does not wait for it: that is a crash like any other.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Call in the thread; then `done` is called on the loop, with the error if there was one."""
        self._calls.put((call, done))

    def _work(self) -> None:
        while (next_call := self._calls.get()) is not None:
            call, done = next_call
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is gone: there is nobody to tell
                self._loop.call_soon_threadsafe(self._tell, done, error)

    def _tell(self, done: Callable[[BaseException | None], None], error: BaseException | None) -> None:
        if not self._closed:
            done(error)

    def close(self) -> None:
        """Wait for what runs, and let go of the thread; a second time is fine.

        Who was not told by now is not told any more: he would go on to use what else is closed.
        """
        self._closed = True
        self._calls.put(None)
        self._thread.join()
