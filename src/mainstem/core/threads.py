"""Threads that go on for as long as the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeAlias, TypeVar

Calls: TypeAlias = "SimpleQueue[Callable[[], None] | None]"
P = ParamSpec("P")
T = TypeVar("T")


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        del future, call  # the error refers to this frame, and would by it to itself, and to what it was called with
    else:
        future.set_result(result)


class LastingThreads(Executor):
    """As `ThreadPoolExecutor`, whose threads Python ends with the main thread, and which refuses calls then. A program
    may have more to do: in other threads, which Python waits for, and in what it has registered with `atexit`.

    Nobody waits for these threads: a program that ends without `shutdown` leaves undone what they do. One is started at
    once, others when they are needed and can be had: not when the main thread has ended (Python 3.12 and later).
    """

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        """So many at a time."""
        self._name = name
        self._calls: Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_shut_down = False
        self._start_one()
        self._idle.release()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call in a thread.

        Raises:
            RuntimeError: after `shutdown`.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError(f"the threads {self._name} are shut down")
            if not self._idle.acquire(blocking=False) and len(self._threads) < self.most:
                with suppress(RuntimeError):
                    self._start_one()
            self._calls.put(partial(_run, future, partial(fn, *args, **kwargs)))
        return future

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls, self._idle), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait`, those that were taken are done on return."""
        with self._lock:
            if not self._is_shut_down:
                self._is_shut_down = True
                for _ in self._threads:
                    self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __del__(self) -> None:
        self.shutdown(wait=False)  # where nobody has


def _work(calls: Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # and what its caller holds
        idle.release()
