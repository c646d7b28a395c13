"""One index of a view, made of the topics that the view's names mean: whether it can be asked, how far it is, who waits
for it. On the event loop; its keeper runs in a thread and tells what becomes of the index.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from mainstem.client.progress import NextOffsets
from mainstem.core import MainstemError, Retriable
from mainstem.core.task import TaskState
from mainstem.serve.config import ViewConfig
from mainstem.serve.engines import Engine
from mainstem.serve.errors import IndexUnavailable
from mainstem.serve.index import Index
from mainstem.serve.keeper import Keeper, Lost, News, Opened, Outgrown, Reached
from mainstem.serve.targets import Target
from mainstem.serve.waits import Changes, Waits, missing
from mainstem.web.threads import Threads


class NotReady(Retriable):
    """The view cannot be asked now: it is not open, or still reads what the log had when it was opened."""


class Build:
    """One index of a view.

    Attributes:
        view: its name.
        directory: the name of the index's directory.
        target: what it is made of.
        engine, keeper: None until the catalog knows its topics; then `why` says what is missing.
        stop: ends the keeper.
        dropped: nobody will ask it any more: its files are removed once it is closed.
        is_overtaken: another one answers, or it is dropped.
        is_outgrown: it goes on no further, and another one of the same topics is to be built.
        was_opened: it could be asked since the node was started.
        readers: how many ask it just now.
    """

    def __init__(self, view: str, config: ViewConfig, directory: str, target: Target) -> None:
        self.view = view
        self.config = config
        self.directory = directory
        self.target = target
        self.engine: Engine | None = None
        self.keeper: Keeper | None = None
        self.why = "its topics are not known yet"
        self.stop = threading.Event()
        self.dropped = self.is_overtaken = self.is_outgrown = self.was_opened = False
        self.readers = 0
        self.waits = Waits()
        self.columns: dict[str, dict[str, str]] = {}
        self._index: Index | None = None
        self._ends: NextOffsets = {}
        self._is_ready = False
        self._changes = Changes()

    @property
    def topics(self) -> list[str]:
        """That it reads."""
        return list(self.target.topics.values())

    @property
    def names(self) -> dict[str, str]:
        """The view's name for each topic."""
        return {topic: name for name, topic in self.target.topics.items()}

    @property
    def position(self) -> NextOffsets:
        """All below it is applied, and visible."""
        return self.waits.position

    @property
    def is_ready(self) -> bool:
        return self._index is not None and self._is_ready

    @property
    def cannot_be_opened(self) -> bool:
        """Something is missing for it, or a person has to mend something: it may never be opened."""
        return self.keeper is None or self.keeper.state.state in ("idle", "failed")

    @property
    def behind(self) -> dict[str, dict[int, list[int]]]:
        """What is missing until it is ready: topic -> partition -> [reached, wanted]."""
        return missing(self.position, self._ends)

    def state(self, name: str) -> TaskState:
        """How it is, for people, under a name."""
        if self.keeper is None:
            return TaskState(name, "idle", error=self.why)
        return msgspec.structs.replace(self.keeper.state, name=name)

    def see(self, news: News) -> None:
        """News of the keeper, in their order."""
        match news:
            case Opened(index, position, ends, columns):
                self.was_opened = True
                self._index, self._ends, self._is_ready, self.columns = index, ends, False, columns
                self.waits.begin_again(position)
            case Reached(position):
                self.waits.advance(position)
            case Lost():
                self._index = None
            case Outgrown():
                self.is_outgrown = True
        if self._index is not None and not self._is_ready and not self.behind:
            self._is_ready = True
        self._changes.tell()

    async def ready(self) -> None:
        """Return when it can be asked; the caller bounds the time.

        Raises:
            Overtaken: another index answers now.
        """
        while not self.is_ready:
            await self._changes.next()

    async def reached(self, wanted: NextOffsets) -> None:
        """Return when all below `wanted` is applied and visible; the caller bounds the time.

        Raises:
            Overtaken: another index answers now.
        """
        keeper = self.keeper
        if keeper is not None and missing(self.position, wanted):
            keeper.hurry = True
            keeper.look |= any(p not in self.position.get(topic, {}) for topic, each in wanted.items() for p in each)
        try:
            await self.waits.reached(wanted)
        finally:
            if keeper is not None and not len(self.waits):
                keeper.hurry = False

    def records_below(self, topic: str, position: Mapping[int, int]) -> dict[int, int]:
        """`position`, which is reached, as the index itself counts: it knows of no marker behind its last record."""
        applied = None if self._index is None else self._index.applied
        if applied is None or missing(self.position, {topic: position}):  # it was opened again meanwhile
            return dict(position)
        reads = applied.reads.get(topic, {})
        return {each: min(offset, reads[each].end if each in reads else 0) for each, offset in position.items()}

    def overtake(self) -> None:
        """Another index answers from now on: who waits for this one is told."""
        self.is_overtaken = True
        if self.keeper is not None:
            self.keeper.answers = False
        self.waits.overtake()
        self._changes.overtake()

    def take_over(self) -> None:
        """It answers, as it may have done before."""
        self.is_overtaken = False
        if self.keeper is not None:
            self.keeper.answers = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """While somebody asks it, it is not closed."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1
            if self.dropped and not self.readers:
                self.stop.set()

    def drop(self) -> None:
        """Close it, once nobody asks it any more, and remove its files."""
        self.dropped = True
        self.overtake()
        if not self.readers:
            self.stop.set()

    def index(self) -> Any:
        """What is asked.

        Raises:
            NotReady: it is not open, or not as new as the log was when it was opened.
        """
        if not self.is_ready:
            raise NotReady(f"view {self.view}: {self.told()}", hint="ask again; `mainstem status` shows how far it is")
        return self._index

    def seen(self) -> NextOffsets:
        """Nobody has seen anything of it beyond this. Ask after the answer was made."""
        return self.keeper.upper if self.keeper is not None else {}

    def told(self) -> str:
        """Why it cannot be asked, for people."""
        if self._index is None:
            return self.why if self.keeper is None else self.keeper.state.error or "its index is being opened"
        return f"it still reads its topics (partition: [reached, wanted]): {self.behind}"


async def asked(threads: Threads, seconds: float, call: Any, /, *arguments: Any, **options: Any) -> Any:
    """The answer of an index that may take long, from one of `threads`.

    Raises:
        Overloaded: too many ask already, or the turn of this one did not come in so many `seconds`.
        IndexUnavailable: it was closed meanwhile; the rest as the index does.
    """
    try:
        return await threads.call(partial(call, *arguments, **options), within=seconds)
    except MainstemError:
        raise
    except Exception as error:
        raise IndexUnavailable(f"the index was closed while it was asked: {error}") from error
