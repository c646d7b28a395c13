"""New records of a topic as they come, for pages that show it.

A look a second, from where the last one ended: of a topic that grows faster than anybody reads, the newest records are
shown and the others counted. Nothing is read while no page looks.
"""

import asyncio
import contextlib
import heapq
import threading
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.reader import RangeReader
from mainstem.core import MainstemError, UserError
from mainstem.dash.browse import SHORT_CHARACTERS, Shown, shown
from mainstem.dash.web import number, own_threads
from mainstem.registry.reader import SchemaTexts, typed
from mainstem.web.threads import Overloaded

EVERY_SECONDS = 1.0
MOST_RECORDS = 50  # of one look
MOST_PAGES = 16
THREADS = 4
PATIENCE_SECONDS = 15.0


class News(msgspec.Struct, frozen=True):
    """The newest first. `skipped`: offsets before them that were not looked at; `error`: why there is nothing now."""

    records: list[Shown] = []
    skipped: int = 0
    error: str = ""


class Follower:
    """Looks at a topic again and again; for one thread at a time.

    Args:
        connection: the log.
        topic: what is followed.
        only: one partition, or all.
    """

    def __init__(self, connection: Connection, topic: str, only: int | None = None) -> None:
        self._topic, self._only = topic, only
        self._reader = RangeReader(
            connection, topic, deleted="earliest", name="mainstem.dashboard", patience_seconds=PATIENCE_SECONDS
        )
        self._schemas = SchemaTexts(connection)
        self._places: dict[int, int] | None = None
        self._lock = threading.Lock()

    def look(self) -> News:
        """What has come since the last look; the first one finds nothing.

        Raises:
            UnknownTopic: there is no such topic, or not any more.
            BrokerUnavailable: the log does not answer.
        """
        with self._lock:
            ends = {p: end for p, end in self._reader.ends().items() if self._only in (None, p)}
            if not ends:
                raise UserError(f"topic {self._topic}: expected a partition of it, found {self._only}")
            places = ends if self._places is None else self._places
            # A partition that was not there begins at 0; one that is shorter now is of a topic that was made anew.
            places = {p: min(places.get(p, 0), end) for p, end in ends.items()}
            most = max(1, MOST_RECORDS // len(ends))
            starts = {p: max(place, ends[p] - most) for p, place in places.items()}
            found: dict[int, list[Shown]] = {p: [] for p in ends}
            for message in self._reader.read(starts, ends) if starts != ends else ():
                record = typed(message, self._topic, self._schemas, raw=True)
                found[record.partition].append(shown(record, SHORT_CHARACTERS))
            self._places = ends
        records = heapq.merge(*(reversed(each) for each in found.values()), key=lambda record: -record.timestamp)
        return News(list(records), sum(starts[p] - place for p, place in places.items()))

    def close(self) -> None:
        """Give its connection back, once no look goes on."""
        with self._lock:
            self._reader.close()


class Tails:
    """The pages that follow a topic. For one event loop.

    Args:
        connection: the log.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._threads = own_threads(THREADS)
        self._pages = 0
        self._closed = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        """Server-sent events of one topic.

        Raises:
            UnknownTopic, BrokerUnavailable: it cannot be followed.
            Overloaded: too many pages do.
        """
        only = number(request.query_params.get("partition"), "partition")
        if self._pages >= MOST_PAGES:
            raise Overloaded(f"{self._pages} pages follow topics already", hint="close one, or pause it")
        self._pages += 1  # before anything is waited for: others ask meanwhile
        follower = Follower(self._connection, request.path_params["name"], only)
        try:
            await self._threads.call(follower.look)
        except BaseException:
            self._done(follower)
            raise
        return _Stream(self._events(follower), lambda: self._done(follower))

    def leave(self) -> None:
        """All pages are done."""
        self._closed.set()

    def close(self) -> None:
        """Nothing is read any more."""
        self._threads.close()

    def _done(self, follower: Follower) -> None:
        self._pages -= 1
        self._threads.later(follower.close)

    async def _events(self, follower: Follower) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), EVERY_SECONDS)
                break
            news = await self._look(follower)
            if news != News():
                yield b"data: " + msgspec.json.encode(news) + b"\n\n"

    async def _look(self, follower: Follower) -> News:
        try:
            return await self._threads.call(follower.look)
        except UnknownTopic as error:
            return News(error=f"{error}: it was deleted")
        except MainstemError as error:
            return News(error=str(error))


class _Stream(StreamingResponse):
    """Events; `done` is called once whoever has asked is gone, also before the first of them: then they never begin,
    and nothing in them would be called.
    """

    def __init__(self, events: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()
