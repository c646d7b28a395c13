"""A serving node: its views, what it knows of catalog and jobs, and the waiting in between. On one event loop.

    log ──> keepers (a thread per view) ──┐
        └─> control (catalog, progress) ──┴─> this node's event loop ──> HTTP (`app`)

A read that carries a token is answered in these steps (`covers`):

    1. the catalog is known as far as the token has seen it      2. the view can be asked
    3. for each topic of the view: which position covers the token, through however many jobs
    4. the view has reached these positions

What an answer gives back names what its rows were made of. The rows of a batch may be visible before it is read here
what the batch had read, which is in the same transaction: the answer waits for that (`told`).

To know the catalog is to answer as it says: of a cutover that the token has seen, by the versions that came (`builds`).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstem.client.basis import Basis, check_log, furthest
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.internal import CATALOG, PROGRESS
from mainstem.client.lineage import Lineage
from mainstem.client.progress import NextOffsets
from mainstem.client.topics import cluster_id, end_offsets, ensure_internal_topics
from mainstem.core.logging import get_logger
from mainstem.core.task import TaskState
from mainstem.serve import control
from mainstem.serve.build import Build
from mainstem.serve.builds import Builds
from mainstem.serve.config import ServeConfig
from mainstem.serve.control import Learned
from mainstem.serve.view import View
from mainstem.serve.waits import Changes, Overtaken, missing
from mainstem.serve.worker import Worker
from mainstem.web.threads import call_soon

log = get_logger()

STOP_SECONDS = 15.0
_NOT_READ = "the catalog, and what jobs say, are not read yet"


class Node:
    """`open`, then ask, then `close`.

    Args:
        name: of the node.
        config: its settings.
        connection: the log.
        directory: of its indexes.
        on_change: called with the states of all views when one has changed, from any thread.
    """

    def __init__(
        self,
        name: str,
        config: ServeConfig,
        connection: Connection,
        directory: Path,
        *,
        on_change: Callable[[list[TaskState]], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.config = config
        self.log = ""  # id of the log; known after `open`
        self.catalog: dict[str, dict[str, Any]] = {}
        self.catalog_position = 0
        self.lineage = Lineage()
        self._connection = connection
        self._changes = Changes()
        self._on_change = on_change
        self._worker: Worker | None = None  # tells the states
        self._announcer: Worker | None = None
        self._asker: Worker | None = None  # asks where what jobs say ends
        self._untold: NextOffsets = {}  # shown, while it was not known of which batches
        self._claimed: NextOffsets = {}  # likewise what tokens say
        self._asked: list[tuple[int, NextOffsets]] = []  # the end that was found after it was shown
        self._progress_position = 0
        self._builds = Builds(
            name,
            config,
            connection,
            directory,
            self.lineage,
            tell=self._changes.tell,
            ask=self._ask,
            on_change=self._changed,
        )
        self.views = self._builds.views
        self._caught_up = False
        self._news = False  # in the catalog, since the views were told
        self._moves: list[int] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    async def open(self) -> None:
        """Begin to follow the log.

        Raises:
            BrokerUnavailable: it does not answer.
        """
        await asyncio.to_thread(ensure_internal_topics, self._connection)
        self.log = await asyncio.to_thread(cluster_id, self._connection)
        loop = asyncio.get_running_loop()
        self._worker = Worker("states", lambda: self._on_change(self.states))

        def tell(learned: Learned) -> None:
            call_soon(loop, self._learn, learned)

        self._asker = Worker("end of progress", lambda: self._ask_end(loop))
        self._start("control", control.follow, self._connection, tell, self._stop)

    def announce(self, address: str) -> None:
        """Tell the catalog where it answers, for those who look for a view."""
        self._announced: dict[str, Any] = {}

        def announce() -> None:
            entry = {"address": address, "views": self._builds.about()}
            if entry != self._announced:
                write_catalog(self._connection, {f"node:{self.name}": entry})
                self._announced = entry

        self._announcer = Worker("announce", announce)
        self._announcer.wake()

    async def close(self) -> None:
        """Close the indexes; what was answered is there."""
        self._stop.set()
        await self._builds.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, STOP_SECONDS)
        for worker in (self._worker, self._announcer, self._asker):
            if worker is not None:
                await asyncio.to_thread(worker.close, STOP_SECONDS)

    def _changed(self) -> None:
        """The state of a view has; from any thread."""
        for worker in (self._worker, self._announcer):
            if worker is not None:
                worker.wake()

    @property
    def states(self) -> list[TaskState]:
        """How each view is; from any thread."""
        return self._builds.states

    @property
    def why(self) -> str:
        """Why no view can be asked, for people; empty where that is up to each view."""
        if not self._caught_up:
            return _NOT_READ
        return "" if self._builds.served else self._builds.told_moving()

    async def covers(self, view: View, basis: Basis, version: str | None = None) -> Build:
        """Return when the view has all that `basis` has seen, with the index to ask; the caller bounds the time. See
        above.

        Args:
            view: that is asked.
            basis: of the token.
            version: the one to ask; None: the one that is current.

        Raises:
            OtherLog: the basis is of another log.
            NoSuchVersion: the view has no index of that version.
        """
        check_log(basis, self.log)
        wanted_catalog = _wanted_catalog(basis)
        while True:
            while not self._caught_up or self._builds.served < wanted_catalog:
                await self._changes.next()
            build = view.chosen(version)
            if build is None:
                await self._changes.next()
                continue
            with contextlib.suppress(Overtaken):
                await self.covered(build, basis)
                if build is view.chosen(version):
                    return build

    async def covered(self, build: Build, basis: Basis) -> None:
        """Return when an index has all that `basis` has seen."""
        is_old = build.is_overtaken  # the version before was asked for
        await build.ready()
        for topic in build.topics:
            if self.lineage.needed(topic, basis.positions) is None:
                self._ask_of_token(basis)
            while (needed := self.lineage.needed(topic, basis.positions)) is None:
                await self._changes.next()
                if build.dropped or (build.is_overtaken and not is_old):
                    raise Overtaken("another index answers now")
            if needed:
                await build.reached({topic: needed})

    def how_far(self, view: View, basis: Basis, version: str | None = None) -> str:
        """Where `covers` stands, for people."""
        wanted_catalog = _wanted_catalog(basis)
        if not self._caught_up:
            return _NOT_READ
        if self.catalog_position < wanted_catalog:
            return f"the catalog is read up to {self.catalog_position}, the token has seen {wanted_catalog}"
        if self._builds.served < wanted_catalog:
            return self._builds.told_moving()
        build = view.chosen(version)
        if build is None or not build.is_ready:
            return view.told() if build is None else build.told()
        for topic in build.topics:
            needed = self.lineage.needed(topic, basis.positions)
            if needed is None:
                sources = sorted(self.lineage.upstream(topic) & basis.positions.keys())
                return f"the jobs that make {topic} have not read all of {', '.join(sources)} that the token has seen"
            if behind := missing(build.position, {topic: needed}):
                return f"it has reached (partition: [reached, wanted]) {behind}"
        return "it has reached it just now"

    def shown(self, build: Build) -> NextOffsets:
        """What an answer of an index, made just before, may have shown."""
        return {CATALOG: {0: self._builds.served}} | build.seen()

    def seen(self, shown: NextOffsets) -> NextOffsets:
        """`shown`, and what it was made of; all of that once it is `told`."""
        return self._builds.seen(shown)

    def is_told(self, shown: NextOffsets) -> bool:
        """Whether it is known what it was made of."""
        return all(self.lineage.knows(topic, position) for topic, position in shown.items())

    async def told(self, shown: NextOffsets) -> None:
        """Return when it is known what `shown` was made of; the caller bounds the time.

        What was written by no batch, or by one that nobody knows of any more, is told when all is read that jobs had
        said by now: that is where a wait for what will not come ends.
        """
        self._ask(shown)
        while not self.is_told(shown):
            await self._changes.next()

    def _ask(self, shown: NextOffsets) -> None:
        """Have it known what `shown` was made of."""
        if not self.is_told(shown):
            assert self._asker is not None
            self._untold = furthest(self._untold, shown)
            self._asker.wake()

    def _ask_of_token(self, basis: Basis) -> None:
        """Have it known what that was made of which a token has seen; also of what nobody reads through this node."""
        claimed = {topic: each for topic, each in basis.positions.items() if not self.lineage.knows(topic, each)}
        if claimed:
            assert self._asker is not None
            self._claimed = furthest(self._claimed, claimed)
            self._asker.wake()

    def how_told(self, shown: NextOffsets) -> str:
        """Where `told` stands, for people."""
        behind = missing({topic: self.lineage.told(topic) for topic in shown}, shown)
        left = {topic: each for topic, each in behind.items() if not self.lineage.knows(topic, shown[topic])}
        if not left:
            return "it is known just now"
        return f"what jobs say of it is read up to (partition: [read, shown]) {left}"

    # -- news

    def _learn(self, learned: Learned) -> None:
        for key, entry in learned.catalog.items():
            if entry is None:
                self.catalog.pop(key, None)
                continue
            self.catalog[key] = entry
            if key.startswith("job:"):
                self.lineage.see_job(key.partition(":")[2], entry)
        for progress in learned.progress:  # first: what is before a last commit is passed over after it
            self.lineage.see(progress)
        for marker in learned.markers:
            self.lineage.start_from(marker)
        self._progress_position = max(self._progress_position, learned.progress_position)
        self._settle_told()
        self.catalog_position = max(self.catalog_position, learned.position)
        self._moves += learned.moves
        self._news |= bool(learned.catalog)
        if learned.caught_up and (self._news or not self._caught_up):
            self._caught_up, self._news = True, False
            moves, self._moves = self._moves, []
            self._builds.learn(self.catalog, self.catalog_position, moves, self.log)
        elif self._caught_up:
            self._builds.go_on(self.catalog_position)
        self._changes.tell()

    def _ask_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread."""
        shown, claimed = self._untold, self._claimed
        if (shown or claimed) and not self._stop.is_set():
            there = self._there(claimed)
            # With what is not decided: a commit may be visible in one partition before it is in another.
            end = end_offsets(self._connection, PROGRESS)[0]
            call_soon(loop, self._found_end, end, shown, claimed, there)

    def _there(self, claimed: NextOffsets) -> NextOffsets:
        """As much of what tokens say as is committed; they may say anything."""
        found: NextOffsets = {}
        for topic, position in claimed.items():
            with contextlib.suppress(UnknownTopic):
                ends = end_offsets(self._connection, topic, committed=True)
                found[topic] = {each: min(offset, ends.get(each, 0)) for each, offset in position.items()}
        return found

    def _found_end(self, end: int, shown: NextOffsets, claimed: NextOffsets, there: NextOffsets) -> None:
        if self._untold is shown:
            self._untold = {}
        if self._claimed is claimed:
            self._claimed = {}
        self._asked.append((end, furthest(shown, there)))
        self._settle_told()
        self._changes.tell()

    def _settle_told(self) -> None:
        """What was shown before an end that is read by now."""
        for end, shown in self._asked:
            if end <= self._progress_position:
                self.lineage.told_all(shown)
        self._asked = [each for each in self._asked if each[0] > self._progress_position]

    def _start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _wanted_catalog(basis: Basis) -> int:
    """The position of the catalog that views are to answer as of; 0 is before it is saved which indexes answer."""
    return max(1, basis.positions.get(CATALOG, {}).get(0, 0))
