"""The process in which one SQL index is: `python -m mainstem.serve.sql_child FD`, started and asked by `sql_process`.

    node ── (number, method, arguments) ──> this process ── (number, result, error, whether the engine has stopped) ──>

One thread writes, some answer queries. It may be killed at any moment, and ends when nobody asks any more.
"""

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mainstem.core.errors import MainstemError
from mainstem.core.process import ParentGone, die_with_parent
from mainstem.serve.columns import TableShape
from mainstem.serve.errors import BadQuery
from mainstem.serve.index import Applied, Change
from mainstem.serve.sql import Answer, SqlIndex

QUERIES = 8
"""At once; the node has fewer at a time."""


class Child:
    """Answers what comes through a connection until that ends."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._writer, self._readers = ThreadPoolExecutor(1), ThreadPoolExecutor(QUERIES)
        self._index: SqlIndex | None = None

    def run(self) -> None:
        calls: dict[str, Callable[..., Any]] = {
            "open": self._open, "extend": self._extend, "apply": self._apply, "snapshot": self._snapshot,
            "close": self._close, "query": self._query,
        }  # fmt: skip
        while True:
            try:
                number, method, arguments = self._connection.recv()
            except (EOFError, OSError):  # the node has ended, or wants no more of it
                return
            threads = self._readers if method == "query" else self._writer
            threads.submit(self._answer, number, calls[method], arguments)

    def _answer(self, number: int, call: Callable[..., Any], arguments: Sequence[Any]) -> None:
        result, error = None, None
        try:
            result = call(*arguments)
        except BaseException as raised:
            error = _told(raised)
        stopped = self._index is not None and self._index.failure is not None
        try:
            told = pickle.dumps((number, result, error, stopped), pickle.HIGHEST_PROTOCOL)
        except Exception as raised:  # a list of lists of lists
            failure = BadQuery(f"query: the answer cannot be told: {' '.join(str(raised).split())}")
            told = pickle.dumps((number, None, failure, stopped))
        with contextlib.suppress(OSError), self._sending:
            self._connection.send_bytes(told)

    @property
    def _opened(self) -> SqlIndex:
        if self._index is None:
            raise AssertionError("it is open before anything else is asked")
        return self._index

    def _open(
        self, path: Path, tables: Mapping[str, TableShape], memory: str, threads: int, spill_bytes: int
    ) -> tuple[Applied | None, int]:
        self._index = SqlIndex.open(path, tables, memory=memory, threads=threads, spill_bytes=spill_bytes)
        return self._index.applied, self._index.memory_bytes

    def _extend(self, tables: Mapping[str, TableShape]) -> None:
        self._opened.extend(tables)

    def _apply(self, changes: Sequence[tuple[Any, ...]], applied: Applied) -> None:
        self._opened.apply([Change(*each) for each in changes], applied)

    def _snapshot(self, directory: Path) -> None:
        self._opened.snapshot(directory)

    def _query(self, sql: str, parameters: Any, limit: int, seconds: float) -> Answer:
        return self._opened.query(sql, parameters, limit=limit, seconds=seconds)

    def _close(self) -> None:
        self._opened.close()


def _told(error: BaseException) -> BaseException:
    """One that can be sent; of a bug with where it is."""
    if not isinstance(error, MainstemError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _is_the_first_to_go() -> None:
    """Where memory runs out, the kernel ends this process, which loses nothing, before others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for all its processes: the node ends this one
    try:
        die_with_parent()
    except ParentGone:
        return
    _is_the_first_to_go()
    gc.set_threshold(100_000)  # a batch is that many objects, none of which is in a cycle
    Child(Connection(int(sys.argv[1]))).run()
    os._exit(0)  # whatever still runs


if __name__ == "__main__":
    main()
