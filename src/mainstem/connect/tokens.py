"""Basis tokens for what was committed in a source's database: `GET /token?source=fleet&lsn=0/16B3748`.

Whoever has committed something there asks for the token of the database's position after that, `pg_current_wal_lsn()`,
and is answered when the log has all up to it. What the source has appended is read from `__mainstem.sources`, where it
says so in the transaction of the rows: whatever process runs the source, on whatever machine.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mainstem.client.basis import COOKIE, HEADER, Basis, answer_headers, given_basis, reaches, wait_seconds
from mainstem.client.compacted import decode_state
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.internal import SOURCES
from mainstem.client.progress import NextOffsets
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import cluster_id, stable_offsets, start_offsets
from mainstem.client.writer import SourceState
from mainstem.connect.sources.postgres_pgoutput import format_lsn, parse_lsn
from mainstem.core import CorruptData, MainstemError, UserError
from mainstem.core.logging import get_logger
from mainstem.web.answers import check_once, error_answer, json_answer
from mainstem.web.leaving import Leaving, Stopping

log = get_logger()

_AGAIN_SECONDS = 1.0
_STABLE_PAUSE_SECONDS = 0.005
_NEW_SECONDS = 1.0
"""So long a source that nobody knows is waited for: what has just been committed is read a little later."""


class Tokens:
    """How far each source is in its database, and those who wait for it. Lives on one event loop.

    Attributes:
        log: the id of the log, known after `open`.
    """

    def __init__(self, connection: Connection) -> None:
        self.log = ""
        self._connection = connection
        self._states: dict[str, SourceState] = {}
        self._waiters: dict[asyncio.Future[SourceState], tuple[str, int]] = {}  # source, lsn
        self._caught_up, self._news = asyncio.Event(), asyncio.Event()
        self._stop = threading.Event()
        self._leaving = Leaving("the gateway")
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Begin to follow the sources; their topic must be there.

        Raises:
            BrokerUnavailable: the log does not answer.
        """
        self.log = await asyncio.to_thread(cluster_id, self._connection)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._follow, args=(loop,), name="tokens", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """The gateway stops: those who wait are told so. Called in its event loop."""
        self._leaving.leave()

    async def close(self) -> None:
        """Stop following."""
        self._stop.set()
        self._leaving.leave()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def routes(self) -> list[BaseRoute]:
        return [Route("/token", self._token, methods=["GET"])]

    def basis(self, request: Request, positions: NextOffsets) -> Basis:
        """What to give back to a request: `positions`, and what it brought.

        Raises:
            BadToken, OtherLog: what it brought is of no use.
        """
        given = given_basis(self.log, request.headers.get(HEADER), request.cookies.get(COOKIE))
        return given.with_positions(positions)

    # -- the question

    async def _token(self, request: Request) -> Response:
        try:
            source, lsn, seconds = _question(request)
            deadline = time.monotonic() + seconds
            async with self._leaving.bounded():
                state = await self._reached(source, lsn, seconds)
                await self.until_stable(state.ends, deadline)
            basis = self.basis(request, state.ends)
        except Stopping as error:
            return error_answer(503, "stopping", error, {"Retry-After": "1"})
        except NotReached as error:
            return error_answer(503, "not_reached", error, {"Retry-After": "1"})
        except NoSuchSource as error:
            return error_answer(404, "unknown_source", error)
        except UserError as error:
            return error_answer(400, "bad_request", error)
        except BrokerUnavailable as error:
            return error_answer(503, "log_unavailable", error, {"Retry-After": "1"})
        reached = _lsn_of(state)
        body = {"source": source, "token": basis.token, "log": self.log, "basis": state.ends}
        return json_answer(
            200, body | ({"lsn": format_lsn(reached)} if reached is not None else {}), answer_headers(basis)
        )

    async def _reached(self, source: str, lsn: int, seconds: float) -> SourceState:
        """The state of the source when it has appended all up to `lsn`."""
        began = time.monotonic()
        try:
            if not self._caught_up.is_set():  # `wait_for` 0 s is too late for what is there already, up to Python 3.11
                await asyncio.wait_for(self._caught_up.wait(), seconds)
        except TimeoutError:
            raise NotReached(f"the sources of the log are not read after {seconds:g} s", hint="ask again") from None
        state = await self._known(source, min(seconds, _NEW_SECONDS))
        if state is None:
            there = ", ".join(sorted(name for name, each in self._states.items() if _tells_ends(each))) or "none yet"
            raise NoSuchSource(f"source {source!r}: no such source has written to this log", hint=f"there are: {there}")
        if not _tells_ends(state):  # a token of its state would stand for nothing
            raise UserError(
                f"source {source}: expected one that says where its records end, found one that does not",
                hint="the answer to each post has the token of what was posted",
            )
        if lsn and _lsn_of(state) is None:
            raise UserError(f"source {source}: expected a database for an lsn, found a source without one")
        if has_appended(state, lsn):
            return state
        waiter: asyncio.Future[SourceState] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = (source, lsn)
        try:
            return await asyncio.wait_for(waiter, seconds - (time.monotonic() - began))
        except TimeoutError:
            reached = format_lsn(_lsn_of(self._states[source]) or 0)
            raise NotReached(
                f"source {source}: expected lsn {format_lsn(lsn)}, the log has all up to {reached} after {seconds:g} s",
                hint="`mainstem status` shows whether the source runs; or the lsn is of another database",
            ) from None
        finally:
            del self._waiters[waiter]

    async def _known(self, source: str, seconds: float) -> SourceState | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while source not in self._states:
                    await self._news.wait()
        return self._states.get(source)

    async def until_stable(self, positions: NextOffsets, deadline: float) -> None:
        """Return when every reader sees what lies below `positions`.

        A commit is answered before its markers are written to all partitions. A job that starts a batch in between is
        joined with a table without that commit, though what it reads came later: it would make an old row of it.

        Raises:
            NotReached: not before the deadline.
        """
        partitions = {topic: max(each) + 1 for topic, each in positions.items() if each}
        while partitions:
            found = await asyncio.to_thread(stable_offsets, self._connection, partitions)
            if all(reaches(each, positions[topic]) for topic, each in found.items()):
                return
            if time.monotonic() > deadline:
                raise NotReached(f"expected {positions} to be readable, found {found}", hint="ask again")
            await asyncio.sleep(_STABLE_PAUSE_SECONDS)

    # -- in the thread

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.is_set():
            try:
                self._read(lambda *news: loop.call_soon_threadsafe(self._see, *news))
            except MainstemError as error:
                log.warning("source_positions_unread", error=str(error), hint=error.hint)
                self._stop.wait(_AGAIN_SECONDS)
            except Exception as error:  # a bug, or the client's own: without this thread no token is given any more
                if loop.is_closed():
                    return
                log.exception("source_positions_unread", error=f"{type(error).__name__}: {error}", hint="")
                self._stop.wait(_AGAIN_SECONDS)

    def _read(self, tell: Callable[[dict[str, SourceState], bool], object]) -> None:
        starts = start_offsets(self._connection, SOURCES)
        with CommittedReader(self._connection, SOURCES, starts, deleted="earliest", follow=True) as reader:
            for messages in reader:
                if self._stop.is_set():
                    return
                found: dict[str, SourceState] = {}
                for message in messages:
                    key, value = message.key() or b"", message.value()
                    try:
                        if value is not None:
                            found[key.decode(errors="replace")] = decode_state(SOURCES, key, value, SourceState)
                    except CorruptData as error:
                        log.warning("source_position_unreadable", error=str(error), offset=message.offset())
                tell(found, not reader.missing)

    def _see(self, found: dict[str, SourceState], caught_up: bool) -> None:
        """In the event loop: new states, in their order."""
        self._states |= found
        news, self._news = self._news, asyncio.Event()
        news.set()
        if caught_up:
            self._caught_up.set()
        for waiter, (source, lsn) in self._waiters.items():
            if source in found and not waiter.done() and has_appended(found[source], lsn):
                waiter.set_result(found[source])


class NotReached(MainstemError):
    """What was waited for has not come in time."""


class NoSuchSource(UserError):
    """No source of that name has written to this log."""


def has_appended(state: SourceState, lsn: int) -> bool:
    """Whether all that was committed in the database up to `lsn` is in the log. During a snapshot nothing is."""
    return lsn == 0 or (state.position.get("state") == "streaming" and (_lsn_of(state) or 0) >= lsn)


def _tells_ends(state: SourceState) -> bool:
    """The collector does not: each of its answers does."""
    return bool(state.ends or not state.written)


def _lsn_of(state: SourceState) -> int | None:
    """How far a database source is; None of another one."""
    return int(state.position.get("lsn", 0)) if "slot" in state.position else None


def _question(request: Request) -> tuple[str, int, float]:
    """Source, LSN (0: none) and how long to wait."""
    check_once(request)
    query = request.query_params
    source = query.get("source")
    if not source:
        raise UserError("expected ?source=NAME, found none", hint="/token?source=fleet&lsn=0/16B3748")
    return source, _lsn(query.get("lsn")), wait_seconds(query.get("timeout"))


def _lsn(text: str | None) -> int:
    try:
        lsn = 0 if text is None else parse_lsn(text) if "/" in text else int(text)
    except ValueError:
        lsn = -1
    if lsn not in range(1 << 64):
        raise UserError(
            f"lsn: expected a position as PostgreSQL prints it, or a number of bytes, found {str(text)[:40]!r}",
            hint="SELECT pg_current_wal_lsn()",
        )
    return lsn
