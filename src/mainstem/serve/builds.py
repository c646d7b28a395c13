"""The indexes of a node's views: which of them answer, which are to come, which are kept for the way back.

A cutover, step by step:

    1. the catalog says it: an index of what the names mean now is begun beside the one that answers
    2. it has come as far: what the log had when it was opened, what the record says, what readers had seen until then
    3. `current.json` says of all views at once which index answers
    4. they answer, all of them from one step of the event loop to the next
    5. an index that nobody can come back to is closed and removed

Killed before the third step a node has moved nothing, and goes on with the index that it had begun; after it, all is
moved. What names mean is one thing: views move together, also where more than one record has come meanwhile.

An index that cannot take a schema that has come is replaced in the same way, by one of the same topics beside it, and
holds up no other view.
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mainstem.client.basis import furthest, reaches
from mainstem.client.catalog import TopicEntry, topic_entries, view_reader
from mainstem.client.connection import Connection
from mainstem.client.lineage import Lineage
from mainstem.client.progress import NextOffsets, Read
from mainstem.core import CorruptData
from mainstem.core.logging import get_logger
from mainstem.core.task import TaskState
from mainstem.serve.build import Build
from mainstem.serve.config import ServeConfig
from mainstem.serve.engines import Engine
from mainstem.serve.keeper import Keeper, News, Outgrown
from mainstem.serve.reports import Books, Reports
from mainstem.serve.saved import NAME, Kept, Saved, load, save
from mainstem.serve.targets import Target, is_kept, places, target
from mainstem.serve.view import View
from mainstem.serve.waits import missing
from mainstem.serve.worker import Worker
from mainstem.web.threads import call_soon

log = get_logger()

STOP_SECONDS = 15.0


class Builds:
    """On the event loop; `learn` what the catalog says, `close` at the end.

    Args:
        node: its name.
        config: its settings.
        connection: the log.
        directory: of its indexes.
        lineage: how far jobs are.
        tell: called when something has changed that a reader may wait for.
        ask: called to have it known of positions what they were made of.
        on_change: called when the state of a view has changed, from any thread.

    Attributes:
        views: by name.
        served: the position of the catalog that the views answer as of; 0 before it is saved which of them answer.
    """

    def __init__(
        self,
        node: str,
        config: ServeConfig,
        connection: Connection,
        directory: Path,
        lineage: Lineage,
        *,
        tell: Callable[[], None],
        ask: Callable[[NextOffsets], None],
        on_change: Callable[[], None],
    ) -> None:
        self.views = {name: View(name, settings) for name, settings in config.views.items()}
        self.served = 0
        self._node, self._config, self._connection, self._directory = node, config, connection, directory
        self._lineage, self._tell, self._ask, self._on_change = lineage, tell, ask, on_change
        self._catalog: Mapping[str, dict[str, Any]] = {}
        self._entries: dict[str, TopicEntry] = {}  # the engines look into it as it is now
        self._position = self._looked = 0  # up to where the catalog is read, and was when views were last looked at
        self._moves: list[int] = []  # offsets of the records that do not count yet
        self._pins: dict[str, NextOffsets] = {}  # what readers had seen of a view when it was to move
        self._saved: Saved | None = None
        self._asked: Saved | None = None  # it is being written
        self._threads: dict[str, threading.Thread] = {}  # by the directory that they have
        self._worker: Worker | None = None
        self._reports: Reports | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what the catalog says

    def learn(self, catalog: Mapping[str, dict[str, Any]], position: int, moves: Iterable[int], log_id: str) -> None:
        """See what names mean now, and begin what is missing.

        Args:
            catalog: its entries.
            position: up to where it is read.
            moves: offsets of the records of current versions that are new in it.
            log_id: the log.
        """
        self._catalog, self._position = catalog, position
        self._moves += moves
        if self._asked is not None:  # what is being written counts first: see `_written`
            return
        try:
            self._entries.update(topic_entries(catalog))
            if begins := self._saved is None:
                self._begin(log_id)
            for view in self.views.values():
                self._look(view)
            self._see_retired()
            if begins:
                self._remove_strangers()
            self._settle()
        except CorruptData as error:
            log.warning("catalog_unreadable", error=str(error))
            self._moves = []  # who has seen that need not wait for it
        self._on_change()

    def go_on(self, position: int) -> None:
        """Jobs, or the end of the catalog, have gone on: there is nothing new in it below `position`."""
        self._position = max(self._position, position)
        if self._asked is None and self._saved is not None:
            self._looked = self._position
            self.served = min(self._moves, default=self._position)
        self.settle()

    def settle(self) -> None:
        """An index has gone on: perhaps one that is to come is far enough."""
        if self._asked is None and any(view.moving for view in self.views.values()):
            self._settle()

    def _begin(self, log_id: str) -> None:
        """As it was left; a view that is new begins with what its names mean now."""
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("current views", self._write)
        self._reports = Reports(self._connection, self._books)
        found = load(self._directory, log_id)
        for view in self.views.values():
            kept = [each for each in found.views.get(view.name, []) if tuple(each.topics) == view.config.names]
            for each in kept:
                view.builds[each.directory] = Build(view.name, view.config, each.directory, each.target)
            if not kept:
                self._build(view, target(self._catalog, view.config.names))
            view.current = next(iter(view.builds.values()))
        self._moves = [each for each in self._moves if each > found.as_of]
        self._saved = found

    def _look(self, view: View) -> None:
        assert view.current is not None
        wanted = target(self._catalog, view.config.names, view.current.target)
        moving = None
        if wanted.topics == view.current.target.topics and not view.current.is_outgrown:
            view.current.target = wanted  # a topic that was there may have become a job's
        else:
            moving = self._build(view, wanted)
        if moving is not view.moving:
            view.moving = moving
            self._pins.pop(view.name, None)
            if moving is not None:
                log.info("view_is_to_move", view=view.name, to=wanted.told)
        for build in list(view.builds.values()):
            if build not in (view.current, view.moving) and not is_kept(self._catalog, build.target):
                continue  # it is dropped next
            self._start(build)
        if moving is not None:
            self._pin(view.name, view.current)

    def _pin(self, view: str, current: Build) -> NextOffsets | None:
        """What readers had seen of a view when it was to move; after a restart, until then. None while that is not
        known: the index that answers is still to be opened.
        """
        if view not in self._pins and (current.was_opened or current.cannot_be_opened):
            self._pins[view] = current.seen()
            self._ask(self._pins[view])
        return self._pins.get(view)

    def _see_retired(self) -> None:
        """Names may mean another version, and no record says that it is current: theirs was retired."""
        assert self._saved is not None
        if not self._moves and any(view.moving and not view.is_rebuilt for view in self.views.values()):
            self._moves.append(max(self._looked, self._saved.as_of + 1, 1))
        self._looked = self._position

    def _build(self, view: View, made_of: Target) -> Build:
        for build in view.builds.values():
            if build.target.topics == made_of.topics and not build.is_outgrown:
                return build
        directory = view.name + made_of.label
        if directory in view.builds:
            directory = beside(directory)
        return view.builds.setdefault(directory, Build(view.name, view.config, directory, made_of))

    # -- moving

    def _settle(self) -> None:
        """What should be saved now. Views move to other topics all together, or not yet; to another index of the same
        topics each by itself.
        """
        assert self._saved is not None
        assert self._worker is not None
        moved = all(self._has_come(view) for view in self.views.values() if not view.is_rebuilt)
        as_of = max(self._moves, default=self._saved.as_of) if moved else self._saved.as_of
        plan = {
            view.name: [_kept(each) for each in self._planned(view, self._has_come(view) if view.is_rebuilt else moved)]
            for view in self.views.values()
        }
        # What counted while no view moved is saved, too: a restart would wait for it with what is still to come.
        if plan != self._saved.views or as_of > self._saved.as_of:
            self._asked = Saved(self._saved.log, as_of, plan)
            self._worker.wake()
        else:
            self._count(as_of)

    def _planned(self, view: View, moved: bool) -> list[Build]:
        """The index that is to answer, and those that are to be kept."""
        assert view.current is not None
        assert self._saved is not None
        first = view.moving if moved and view.moving is not None else view.current
        saved = {each.directory for each in self._saved.views.get(view.name, [])}
        begun = None if view.moving is None or view.moving.directory in saved else view.moving
        others = [each for each in view.builds.values() if each not in (first, begun)]
        kept = [each for each in others if each.target.topics != first.target.topics]
        return [first, *(each for each in kept if is_kept(self._catalog, each.target))]

    def _count(self, as_of: int) -> None:
        """What is saved counts, with the records up to `as_of`: others are still to be moved to."""
        assert self._saved is not None
        self._moves = [each for each in self._moves if each > as_of]
        self.served = min(self._moves, default=self._position)
        for view in self.views.values():
            directories = {each.directory for each in self._saved.views[view.name]}
            for build in [*view.builds.values()]:
                if build.directory not in directories and build is not view.moving:
                    del view.builds[build.directory]
                    build.drop()
                    if build.keeper is None:  # it was not opened in this run
                        self._in_thread(build)

    def _has_come(self, view: View) -> bool:
        """Whether the index that is to come has what the record says, and what readers had seen when that came."""
        build, current = view.moving, view.current
        if build is None or current is None:
            return True
        pin = self._pin(view.name, current)
        if pin is None or not all(self._lineage.knows(topic, position) for topic, position in pin.items()):
            return False
        if not build.is_ready or missing(build.position, places(self._catalog, build.target)):
            return False
        seen = self.seen(pin)
        needed = {topic: self._lineage.needed(topic, seen) for topic in build.topics}
        return all(each is not None and reaches(build.position.get(topic, {}), each) for topic, each in needed.items())

    def _write(self) -> None:
        """In a thread."""
        asked, loop = self._asked, self._loop
        if asked is not None and loop is not None:
            save(self._directory, asked)
            call_soon(loop, self._written, asked)

    def _written(self, asked: Saved) -> None:
        """It is as good as done: here it is done."""
        if asked is not self._asked:
            return
        self._asked, self._saved = None, asked
        for view in self.views.values():
            first = view.builds[asked.views[view.name][0].directory]
            old, view.current = view.current, first
            if old is not None and old is not first:
                view.moving = None
                old.overtake()
                first.take_over()
                log.info("view_moved", view=view.name, to=first.target.told)
        self._count(asked.as_of)
        self.learn(self._catalog, self._position, (), asked.log)
        self._tell()

    # -- indexes

    def _start(self, build: Build) -> None:
        """Have its index kept, once all of its topics are known."""
        if build.keeper is not None:
            return
        if unknown := [topic for topic in build.topics if topic not in self._entries]:
            build.why = f"topic {unknown[0]} is not in the catalog yet: nothing has written it"
            return
        loop = asyncio.get_running_loop()

        def see(news: News) -> None:
            build.see(news)
            if isinstance(news, Outgrown) and self._saved is not None:
                self.learn(self._catalog, self._position, (), self._saved.log)
            if self._reports is not None:
                self._reports.wake()
            self.settle()

        memory, spill = self._config.sql_memory, self._config.sql_spill_bytes
        build.engine = Engine(build.config, build.target.topics, self._entries, memory, spill)
        build.keeper = Keeper(
            self._task(build),
            build.engine,
            self._connection,
            self._directory / "views" / build.directory,
            tell=lambda news: call_soon(loop, see, news),
            on_change=self._on_change,
            snapshots=self._directory / "snapshots" / build.directory,
            snapshot_every_s=self._config.snapshot_every_s,
        )
        build.keeper.answers = build is self.views[build.view].current
        self._in_thread(build)

    def _in_thread(self, build: Build) -> None:
        before = self._threads.get(build.directory)
        thread = threading.Thread(target=self._keep, args=(build, before), name=f"view {build.directory}", daemon=True)
        self._threads[build.directory] = thread
        thread.start()

    def _keep(self, build: Build, before: threading.Thread | None) -> None:
        """In a thread: after the one that had the directory until now."""
        if before is not None:
            before.join()
        if build.keeper is not None:
            build.keeper.run(build.stop)
        if build.dropped:
            for kind in ("views", "snapshots"):
                shutil.rmtree(self._directory / kind / build.directory, ignore_errors=True)
            log.info("index_removed", view=build.view, directory=build.directory)

    def _remove_strangers(self) -> None:
        """What a kill has left of indexes that nobody wants any more."""
        for kind in ("views", "snapshots"):
            for path in (self._directory / kind).glob("*"):
                view = self.views.get(path.name.partition("@")[0].removesuffix("~"))
                if view is not None and not {path.name, beside(path.name)} & view.builds.keys():
                    shutil.rmtree(path, ignore_errors=True)

    # -- what is asked

    def told_moving(self) -> str:
        """Which views are still to move, or that it is still to be saved which indexes answer; for people."""
        if self._asked is not None:
            where = self._directory / NAME
            return f"it is not saved yet which indexes answer: {where}; where that fails the node's log says why"
        told = [
            f"view {view.name} is to move to {view.moving.target.told}"
            + ("" if view.moving.is_ready else f": {view.moving.told()}")
            for view in self.views.values()
            if view.moving is not None
        ]
        return "; ".join(told) or "views are being moved just now"

    def seen(self, shown: NextOffsets) -> NextOffsets:
        """What somebody may have seen something of who has read topics up to `shown`."""
        positions: NextOffsets = {}
        for topic, position in shown.items():
            positions = furthest(positions, self._lineage.seen(topic, position))
        return positions

    def _books(self) -> list[tuple[str, Books]]:
        """For the audit; from any thread."""
        found: list[tuple[str, Books]] = []
        for view in self.views.values():
            books: dict[str, Mapping[int, Read]] = {}
            for build in (view.current, *view.builds.values()):  # of a topic that several read, the one that answers
                if build is not None and build.keeper is not None and build is not view.moving:
                    books = build.keeper.books | books
            found.append((view_reader(view.name, self._node), books))
        return found

    def about(self) -> dict[str, Any]:
        """The views for the catalog: which topics are read for each, and which of them answer; from any thread."""
        found = {}
        for view in self.views.values():
            current, kept = view.current, [each for each in [*view.builds.values()] if each is not view.moving]
            found[view.name] = {
                "kind": view.config.kind,
                "topics": list(view.config.names),
                "reads": sorted({topic for each in kept for topic in each.topics}),
                "current": {} if current is None else current.target.topics,
                "versions": view.versions,
            }
        return found

    @property
    def states(self) -> list[TaskState]:
        """How each index is; from any thread."""
        found = []
        for view in self.views.values():
            current = view.current
            if current is None:
                found.append(TaskState(view_reader(view.name, self._node), "idle", error=view.why))
            found += [build.state(self._task(build)) for build in [*view.builds.values()]]
        return found

    def _task(self, build: Build) -> str:
        """Its name for people: that of the view, and of which version it is where it does not answer."""
        view = self.views[build.view]
        name = view_reader(view.name, self._node)
        return name if build is view.current else f"{name}, of {build.target.told}"

    async def close(self) -> None:
        """Close the indexes; what was answered is there."""
        for view in self.views.values():
            for build in view.builds.values():
                build.stop.set()
        for thread in [*self._threads.values()]:
            await asyncio.to_thread(thread.join, STOP_SECONDS)
        for worker in (self._worker, self._reports):
            if worker is not None:
                await asyncio.to_thread(worker.close, STOP_SECONDS)


def beside(directory: str) -> str:
    """The other one of two directories that an index of the same topics can have."""
    return directory.removesuffix("~") if directory.endswith("~") else f"{directory}~"


def _kept(build: Build) -> Kept:
    return Kept(build.directory, build.target.topics, build.target.versions)
