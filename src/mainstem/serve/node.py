"""A serving node: its views, what it knows of catalog and jobs, and the waiting in between. On one event loop.

    log ──> keepers (a thread per view) ──┐
        └─> control (catalog, progress) ──┴─> this node's event loop ──> HTTP (`app`)

A read that carries a token is answered in these steps (`covers`):

    1. the catalog is known as far as the token has seen it      2. the view can be asked
    3. for each topic of the view: which position covers the token, through however many jobs
    4. the view has reached these positions
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mainstem.client.basis import Basis, check_log, furthest
from mainstem.client.catalog import TopicEntry, topic_entries, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG
from mainstem.client.lineage import Lineage
from mainstem.client.progress import NextOffsets
from mainstem.client.topics import cluster_id, ensure_internal_topics
from mainstem.core import CorruptData, MainstemError
from mainstem.core.logging import get_logger
from mainstem.core.task import TaskState
from mainstem.serve import control
from mainstem.serve.config import ServeConfig
from mainstem.serve.control import Learned
from mainstem.serve.engines import Engine
from mainstem.serve.keeper import Keeper, News
from mainstem.serve.view import View
from mainstem.serve.waits import Changes, missing

log = get_logger()

STOP_SECONDS = 15.0


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
        self.views = {view: View(view, settings) for view, settings in config.views.items()}
        self.catalog: dict[str, dict[str, Any]] = {}
        self.catalog_position = 0
        self.lineage = Lineage()
        self._connection = connection
        self._directory = directory
        self._on_change = on_change
        self._changes = Changes()
        self._caught_up = False
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

        def tell(learned: Learned) -> None:
            _call(loop, self._learn, learned)

        self._start("control", control.follow, self._connection, tell, self._stop)

    def announce(self, address: str) -> None:
        """Tell the catalog where it answers, for those who look for a view."""
        views = {name: {"kind": view.kind, "topics": list(view.names)} for name, view in self.config.views.items()}
        entry = {f"node:{self.name}": {"address": address, "views": views}}
        self._start("announce", _announce, self._connection, entry)

    async def close(self) -> None:
        """Close the indexes; what was answered is there."""
        self._stop.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, STOP_SECONDS)

    @property
    def states(self) -> list[TaskState]:
        """How each view is."""
        return [
            view.keeper.state if view.keeper is not None else TaskState(self._task(name), "idle", error=view.why)
            for name, view in self.views.items()
        ]

    async def covers(self, view: View, basis: Basis) -> None:
        """Return when the view has all that `basis` has seen; the caller bounds the time. See above.

        Raises:
            OtherLog: the basis is of another log.
        """
        check_log(basis, self.log)
        wanted_catalog = basis.positions.get(CATALOG, {}).get(0, 0)
        while not self._caught_up or self.catalog_position < wanted_catalog:
            await self._changes.next()
        await view.ready()
        for topic in view.topics:
            while (needed := self.lineage.needed(topic, basis.positions)) is None:
                await self._changes.next()
            if needed:
                await view.reached({topic: needed})

    def how_far(self, view: View, basis: Basis) -> str:
        """Where `covers` stands, for people."""
        wanted_catalog = basis.positions.get(CATALOG, {}).get(0, 0)
        if not self._caught_up or self.catalog_position < wanted_catalog:
            return f"the catalog is read up to {self.catalog_position}, the token has seen {wanted_catalog}"
        if not view.is_ready:
            return view.told()
        for topic in view.topics:
            needed = self.lineage.needed(topic, basis.positions)
            if needed is None:
                sources = sorted(self.lineage.upstream(topic) & basis.positions.keys())
                return f"the jobs that make {topic} have not read all of {', '.join(sources)} that the token has seen"
            if behind := missing(view.position, {topic: needed}):
                return f"it has reached (partition: [reached, wanted]) {behind}"
        return "it has reached it just now"

    def seen(self, view: View) -> NextOffsets:
        """What an answer of the view, made just before, may have shown something of."""
        positions: NextOffsets = {CATALOG: {0: self.catalog_position}}
        for topic, position in view.seen().items():
            positions = furthest(positions, self.lineage.seen(topic, position))
        return positions

    # -- news

    def _learn(self, learned: Learned) -> None:
        for key, entry in learned.catalog.items():
            if entry is None:
                self.catalog.pop(key, None)
                continue
            self.catalog[key] = entry
            if key.startswith("job:"):
                self.lineage.see_job(key.partition(":")[2], entry)
        for marker, ends in learned.markers:
            self.lineage.start_from(marker, ends)
        for progress in learned.progress:
            self.lineage.see(progress)
        self.catalog_position = max(self.catalog_position, learned.position)
        if learned.caught_up:
            self._caught_up = True
            if learned.catalog or not all(view.keeper for view in self.views.values()):
                self._start_views()
        self._changes.tell()

    def _start_views(self) -> None:
        try:
            known = topic_entries(self.catalog)
        except CorruptData as error:
            log.warning("catalog_unreadable", error=str(error))
            return
        for view in self.views.values():
            if view.keeper is None:
                topics = {name: name for name in view.config.names}
                self._keep(view, topics, {topic: known[topic] for topic in topics.values() if topic in known})

    def _keep(self, view: View, topics: Mapping[str, str], entries: Mapping[str, TopicEntry]) -> None:
        if unknown := [topic for topic in topics.values() if topic not in entries]:
            view.why = f"topic {unknown[0]} is not in the catalog yet: nothing has written it"
            return
        loop = asyncio.get_running_loop()

        def tell(news: News) -> None:
            _call(loop, view.see, news)

        view.engine = Engine(view.config, topics, entries, self.config.sql_memory)
        view.keeper = Keeper(
            self._task(view.name),
            view.engine,
            self._connection,
            self._directory / "views" / view.name,
            tell=tell,
            on_change=lambda: self._on_change(self.states),
            snapshots=self._directory / "snapshots" / view.name,
            snapshot_every_s=self.config.snapshot_every_s,
        )
        self._start(f"view {view.name}", view.keeper.run, self._stop)

    def _task(self, view: str) -> str:
        return f"view {view}@{self.name}"

    def _start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _announce(connection: Connection, entry: Mapping[str, Any]) -> None:
    try:
        write_catalog(connection, entry)
    except MainstemError as error:  # it answers all the same
        log.warning("node_not_announced", error=str(error), hint=error.hint)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function in the loop soon; where that is closed, nobody is interested any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)
