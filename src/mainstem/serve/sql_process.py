"""An SQL index in a process of its own, so that no query takes more than it may: neither memory nor time.

DuckDB bounds neither by itself. Its limit of memory does not count the strings of the rows in hand, 2,048 at a time,
and an interrupt does nothing inside of a function: `repeat('a', 100000000)` of 2,000 rows is 200 GB in one step. The
process is killed when it takes too much, or when a query goes on though it was interrupted. That loses nothing: rows
and position are in one commit. The next call opens the index again, and what was under way is asked again, except
for the queries that may have been to blame.
"""

import contextlib
import itertools
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from mainstem.core.errors import MainstemError
from mainstem.core.logging import get_logger
from mainstem.core.process import PARENT, start_child
from mainstem.serve.columns import TableShape
from mainstem.serve.errors import BadQuery, IndexDamaged, IndexUnavailable, UnfitChanges
from mainstem.serve.index import Applied, Change
from mainstem.serve.sql import Answer

log = get_logger()

EXTRA_BYTES = 768 << 20
"""Beside the memory of the queries: the engine and its libraries (150 MB), batches that are applied, and answers."""
GRACE_SECONDS = 1.0
"""Between the interrupt of a query and the end of the process."""
_LOOK_SECONDS = 0.02
"""In which a query takes some 50 MB."""
_CLOSE_SECONDS = 5.0
_TRIES = 3
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNTOLD = (pickle.PicklingError, AttributeError, RecursionError, TypeError, ValueError)
"""What telling ends in that which nests too deep, or is nothing that other processes know."""
_TIME, _MEMORY, _STOPPED = "time", "memory", "stopped"


class _Ended(Exception):
    """The process has ended before it answered; `why`: what it was killed for."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class _Asked(msgspec.Struct, eq=False):
    """What the process is asked, and has not answered yet."""

    answer: "Future[Any]"
    method: str
    until: float  # on the monotonic clock: then the process is killed


class _Child:
    """One process: `ask` from any thread, `kill`, `wait`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process: subprocess.Popen[bytes] = start_child(
                [sys.executable, "-P", "-m", "mainstem.serve.sql_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, PARENT: str(os.getpid())},
            )
        self.most_bytes = 0  # 0: no bound yet
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._sending, self._changing = threading.Lock(), threading.Lock()
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count()
        self._why = ""
        self._over, self._busy = threading.Event(), threading.Event()
        for target in (self._read, self._watch):
            threading.Thread(target=target, name="sql", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def is_ending(self) -> bool:
        """Whether it was killed, or is over already."""
        return self._over.is_set() or bool(self._why)

    @property
    def is_asked(self) -> bool:
        """Whether a query is under way."""
        with self._changing:
            return any(each.method == "query" for each in self._asked.values())

    def ask(self, method: str, *arguments: Any, seconds: float = float("inf")) -> Any:
        """What it answers; after `seconds` it is killed.

        Raises:
            _Ended: there is no answer.
            _UNTOLD: the arguments cannot be told; the rest as the index does.
        """
        number, asked = next(self._numbers), _Asked(Future(), method, monotonic() + seconds)
        told = pickle.dumps((number, method, arguments), pickle.HIGHEST_PROTOCOL)  # what cannot be told is not asked
        with self._changing:
            if self._over.is_set():
                raise _Ended(self._why or _STOPPED)
            self._asked[number] = asked
        self._busy.set()
        with contextlib.suppress(OSError), self._sending:  # it has ended: `_read` finds that, too
            self._connection.send_bytes(told)
        return asked.answer.result()

    def kill(self, why: str) -> None:
        self._why = self._why or why
        self.process.kill()

    def wait(self) -> None:
        """Return when it has ended: then its locks are free."""
        self._over.wait()

    def _read(self) -> None:
        while True:
            try:
                number, result, error, stopped = self._connection.recv()
            except (EOFError, OSError):
                break
            except Exception:  # else those who wait would do so for ever
                log.exception("sql_answer_unread", pid=self.process.pid)
                break
            if stopped:  # the engine answers nothing more until it is opened again
                self.kill(_STOPPED)
            with self._changing:
                asked = self._asked.pop(number)
            if error is None:
                asked.answer.set_result(result)
            else:
                asked.answer.set_exception(error)
        self.process.kill()
        self.process.wait()
        with self._changing:
            self._over.set()
            left = list(self._asked.values())
        self._busy.set()
        with self._sending:
            self._connection.close()
        for each in left:
            each.answer.set_exception(_Ended(self._why or _STOPPED))

    def _watch(self) -> None:
        while not self._over.is_set():
            self._busy.wait()
            with self._changing:
                until = min((each.until for each in self._asked.values()), default=None)
                if until is None and not self._over.is_set():
                    self._busy.clear()
                    continue
            if until is not None and monotonic() >= until:
                self.kill(_TIME)
            if self.is_asked and self.most_bytes and _held(self.process.pid) > self.most_bytes:
                self.kill(_MEMORY)  # not for what is applied, which would only come again
            self._over.wait(_LOOK_SECONDS)


class SqlProcess:
    """As `SqlIndex`, which is in another process; `apply` commits."""

    pending = False

    def __init__(
        self, path: Path, tables: Mapping[str, TableShape], memory: str, threads: int, spill_bytes: int
    ) -> None:
        self.path = path
        self.failure: MainstemError | None = None
        self._tables = dict(tables)
        self._extended: list[dict[str, TableShape]] = []
        self._memory, self._threads, self._spill_bytes = memory, threads, spill_bytes
        self._applied: Applied | None = None
        self._applying: Applied | None = None
        self._opening = threading.Lock()
        self._is_free = threading.Event()  # for queries
        self._is_free.set()
        self._closed = False
        self._child: _Child | None = None

    @staticmethod
    def open(
        path: Path,
        tables: Mapping[str, TableShape],
        *,
        memory: str = "512MB",
        threads: int = 2,
        spill_bytes: int = 1 << 30,
    ) -> "SqlProcess":
        """As `SqlIndex.open`. The process takes up to `memory` and `EXTRA_BYTES`.

        Raises:
            As there.
        """
        index = SqlProcess(path, tables, memory, threads, spill_bytes)
        index._living()
        return index

    @property
    def applied(self) -> Applied | None:
        """As in `Index`."""
        return self._applied

    def extend(self, tables: Mapping[str, TableShape]) -> None:
        """As `SqlIndex.extend`.

        Raises:
            As there.
        """
        self._retried("extend", dict(tables))
        self._extended.append(dict(tables))

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """As in `Index`.

        Raises:
            As `SqlIndex.apply`.
        """
        told = [msgspec.structs.astuple(change) for change in changes]
        self._applying = applied
        try:
            for again in range(_TRIES):
                if again:  # queries may have been why it ended: the next ones wait
                    self._is_free.clear()
                child = self._living()
                if self._applied == applied and changes:  # the commit was there before the process ended
                    return
                with contextlib.suppress(_Ended):
                    child.ask("apply", told, applied)
                    self._applied = applied
                    return
        except _UNTOLD as error:
            raise UnfitChanges(_untold(told) or {0: f"it cannot be told: {error}"}) from error
        finally:
            self._applying = None
            self._is_free.set()
        raise self._unavailable("it ended again and again while changes were applied")

    def commit(self) -> None:
        """Nothing waits for it."""

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, limit: int = 1000, seconds: float = 10.0
    ) -> Answer:
        """As `SqlIndex.query`.

        Raises:
            BadQuery: as there; or the process took more than it may while this was one of its queries.
            IndexUnavailable: the process has ended meanwhile, not because of this query: ask again.
        """
        end, left = monotonic() + seconds, seconds
        for _ in range(_TRIES):
            if not self._is_free.is_set():
                self._is_free.wait(left)
                left = round(end - monotonic(), 1)
                if left <= 0:
                    raise self._unavailable("it applies what it could not beside queries")
            child = self._living(failing=True)
            asked = (sql, parameters, limit, left)
            try:
                return child.ask("query", *asked, seconds=left + GRACE_SECONDS)  # type: ignore[no-any-return]
            except _UNTOLD as error:
                raise BadQuery(f"query: the parameters cannot be told: {' '.join(str(error).split())}") from error
            except _Ended as ended:
                if ended.why == _MEMORY:
                    raise BadQuery(
                        f"query: the queries of this view need more than the {self._memory} of memory that there is",
                        hint="ask for less, or again; `sql_memory` of the node says how much there is",
                    ) from None
                if ended.why == _STOPPED:  # perhaps by this one
                    break
                left = round(end - monotonic(), 1)
                if left <= 0:
                    raise BadQuery(f"query: it took longer than {seconds:g} s") from None
        raise self._unavailable("it ended while it was asked")

    def snapshot(self, directory: Path) -> None:
        """As in `Index`."""
        self._retried("snapshot", directory, removing=directory)

    def close(self) -> None:
        """As in `Index`; queries that are under way are given up."""
        with self._opening:
            self._closed = True
            child = self._child
        if child is None or child.is_over:
            return
        try:
            if not child.is_asked:
                with contextlib.suppress(_Ended, MainstemError):
                    child.ask("close", seconds=_CLOSE_SECONDS)
        finally:
            child.kill(_STOPPED)
            child.wait()

    def _retried(self, method: str, *arguments: Any, removing: Path | None = None) -> None:
        for _ in range(_TRIES):
            with contextlib.suppress(_Ended):
                self._living().ask(method, *arguments)
                return
            if removing is not None:
                shutil.rmtree(removing, ignore_errors=True)
        raise self._unavailable("it ended again and again")

    def _living(self, *, failing: bool = False) -> _Child:
        """The process, opened again where it has ended. `failing`: whoever keeps the index is to hear of an error."""
        with self._opening:
            if self._closed:
                raise self._unavailable("it is closed")
            if self._child is None or self._child.is_ending:
                try:
                    if self._child is not None:
                        self._child.wait()
                    self._child = self._opened()
                except MainstemError as error:
                    if failing:
                        self.failure = error
                        raise self._unavailable(str(error)) from error
                    raise
            return self._child

    def _opened(self) -> _Child:
        for _ in range(_TRIES):
            with contextlib.suppress(_Ended):
                return self._started()
        # The engine ends the process where its files are such that it cannot go on.
        raise IndexDamaged(f"{self.path}: its process ended {_TRIES} times while it was opened")

    def _started(self) -> _Child:
        child = _Child()
        with _ended_with(child):
            found, memory = child.ask("open", self.path, self._tables, self._memory, self._threads, self._spill_bytes)
            for tables in self._extended:
                child.ask("extend", tables)
        child.most_bytes = memory + EXTRA_BYTES
        expected = [self._applied] if self._applying is None else [self._applied, self._applying]
        if self._child is not None and found not in expected:
            child.kill(_STOPPED)
            child.wait()
            raise IndexDamaged(f"{self.path}: it is not where it was when its process ended")
        self._applied = found
        return child

    def _unavailable(self, why: str) -> IndexUnavailable:
        return IndexUnavailable(f"{self.path}: the process of the index: {why}", hint="ask again")


@contextlib.contextmanager
def _ended_with(child: _Child) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.kill(_STOPPED)
        child.wait()
        raise


def _untold(changes: Sequence[tuple[Any, ...]]) -> dict[int, str]:
    """Which changes cannot be told, and why."""
    found = {}
    for place, each in enumerate(changes):
        try:
            pickle.dumps(each)
        except _UNTOLD as error:
            found[place] = f"it cannot be told: {' '.join(str(error).split())}"
    return found


def _held(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where nobody says."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, LookupError, ValueError):
        return 0
