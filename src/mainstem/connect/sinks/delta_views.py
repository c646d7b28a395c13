"""Views of a lakehouse: beside its tables, each job's plain name leads to the table of its current version.

    tables/delays_hourly   tables/delays_hourly.v2      what versions write
    .views-7/delays_hourly -> ../tables/delays_hourly.v2
    views -> .views-7                                   what readers open: views/delays_hourly

All names move in one step: a new directory of links is made, and `views` is renamed over to lead there. A name moves
once its table has what the cutover says that the version had reached, so that no reader of the table goes back in time;
what was moved in one cutover moves together.
"""

import contextlib
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.basis import reaches
from mainstem.client.catalog import current_versions, cutovers, entries, named_outputs, read_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.internal import CATALOG
from mainstem.client.topics import end_offsets
from mainstem.connect.sinks.delta_log import is_table, last_commit
from mainstem.core import CorruptData, SystemClock
from mainstem.core.files import sync_directory
from mainstem.core.logging import get_logger
from mainstem.core.task import Attempts, TaskState

log = get_logger()

LOOK_EVERY_SECONDS = 1.0
STOP_SECONDS = 5.0  # a log that has gone away is waited for much longer


class View(msgspec.Struct, frozen=True):
    """Where a job's name should lead to, and from what position of that table on."""

    name: str
    table: str
    at: dict[int, int] = {}
    since_ms: int = 0  # the same for those that were moved together; 0: it was never moved


def views_directory(tables: Path) -> Path:
    """Where the views of a lakehouse are: `views` beside `tables`, `lake-views` beside `lake`."""
    return tables.with_name("views" if tables.name == "tables" else f"{tables.name}-views")


def wanted_views(catalog: Mapping[str, dict[str, Any]], topics: str) -> list[View]:
    """Where names should lead to, of the jobs whose outputs fit the expression `topics` of a lakehouse."""
    moved, current, found = cutovers(catalog), current_versions(catalog), []
    for job, entry in entries(catalog, "job").items():
        version = current[job]
        cut = moved[job] if job in moved and moved[job].version == version else None
        for name, topic in named_outputs(version, entry.get("versions", {}).get(version, {})).items():
            if re.fullmatch(topics, topic):
                found.append(View(name, topic, cut.at.get(topic, {}), cut.since_ms) if cut else View(name, topic))
    return found


def read_views(views: Path) -> dict[str, str]:
    """Name to table, as readers see it now."""
    try:
        return {link.name: link.readlink().name for link in sorted(views.iterdir()) if link.is_symlink()}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def next_views(tables: Path, present: Mapping[str, str], wanted: list[View]) -> dict[str, str]:
    """Where names can lead to now: to the table that is wanted once it is far enough, until then to that of before.

    A version that has written nothing has no table, and holds nobody up. A name whose table is gone is left out.
    """
    moving = [each for each in wanted if present.get(each.name) != each.table]
    held = {each.since_ms for each in moving if each.since_ms and not _is_ready(tables, each)}
    new = {each.name: each.table for each in moving if each.since_ms not in held and is_table(tables / each.table)}
    names = {each.name for each in wanted}
    old = {name: table for name, table in present.items() if name in names and is_table(tables / table)}
    return dict(sorted((old | new).items()))


def _is_ready(tables: Path, view: View) -> bool:
    if not any(view.at.values()):
        return True
    try:
        found = last_commit(tables / view.table)
    except (CorruptData, OSError):  # the lakehouse says so, of the table
        return False
    return found is not None and reaches({p: b.next for p, b in found.commit.partitions.items()}, view.at)


def write_views(tables: Path, views: Path, links: Mapping[str, str]) -> None:
    """Let the names lead to these tables; whatever is killed meanwhile, readers see all of before or all of this.

    1. Remove what is not read any more, 2. make a directory of links beside it, 3. rename over `views` a link to that.

    Raises:
        OSError: it cannot be written, or a directory that is none of ours has the name.
    """
    # Those of another lakehouse may begin with the same name: `.views-b-views-1` is of `views-b`.
    numbered = re.compile(rf"\.{re.escape(views.name)}-([0-9]+)")
    found = [(each, numbered.fullmatch(each.name)) for each in views.parent.iterdir()]
    made = {each: int(match[1]) for each, match in found if match}
    read = views.readlink().name if views.is_symlink() else ""
    for each in made:
        if each.name != read:
            shutil.rmtree(each, ignore_errors=True)
    place = views.with_name(f".{views.name}-{max(made.values(), default=0) + 1}")
    place.mkdir()
    for name, table in links.items():
        (place / name).symlink_to(Path("..", tables.name, table))
    sync_directory(place)
    neighbour = views.with_name(f".{views.name}.new")
    with contextlib.suppress(FileNotFoundError):  # of one that was killed
        neighbour.unlink()
    neighbour.symlink_to(place.name)
    neighbour.rename(views)
    sync_directory(views.parent)


class Views:
    """Keeps the views of one lakehouse, in a thread: the log is asked for the end of the catalog once a second, and the
    catalog is read where that has moved. `start`, then `stop`. For whoever alone writes the tables.

    Args:
        connection: the log.
        tables: of the lakehouse.
        topics: the expression of those that become tables.
        name: of the sink.
    """

    def __init__(self, connection: Connection, tables: Path, topics: str, *, name: str) -> None:
        self._connection, self._tables, self._topics, self._name = connection, tables, topics, name
        self._views = views_directory(tables)
        self._attempts = Attempts(f"sink {name}: views", SystemClock())
        self._end: dict[int, int] | None = None
        self._wanted: list[View] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def states(self) -> list[TaskState]:
        """How they are, where they cannot be kept."""
        state = self._attempts.state
        return [state] if state.error else []

    def start(self) -> None:
        """Begin to follow the catalog."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._follow, name=f"views {self._name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is being written; who waits for an answer of the log then writes nothing any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def look(self) -> None:
        """See what the catalog says now, and move what can be moved."""
        try:
            end = end_offsets(self._connection, CATALOG, committed=True)
        except UnknownTopic:
            return
        if end != self._end:
            self._wanted = wanted_views(read_catalog(self._connection), self._topics)
            self._end = end
        present = read_views(self._views)
        links = next_views(self._tables, present, self._wanted)
        if links != present and not self._stopping.is_set():
            write_views(self._tables, self._views, links)
            log.info("views_moved", sink=self._name, views=links)

    def _follow(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_SECONDS):
            if not self._attempts.is_due:
                continue
            try:
                self.look()
            except Exception as error:
                state = self._attempts.fail(str(error), f"{self._views} has to be for Mainstem alone, and writable")
                log.warning("views_failed", sink=self._name, reason=str(error), again_in_seconds=state.retry_seconds)
            else:
                if self._attempts.state.error:
                    self._attempts.go_on()
