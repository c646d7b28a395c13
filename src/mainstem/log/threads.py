"""Threads for blocking file work, and the buffer for reads that need none."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FileThreads:
    """Runs blocking calls of the event loop that made it."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="log-files")
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
