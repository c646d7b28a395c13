"""Whether the views of the lakehouses lead to what was made current."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from mainstem.connect.sinks.delta_views import read_views, views_directory
from mainstem.core import Clock, SystemClock
from mainstem.process.cutover import Move
from mainstem.standalone.config import load_config, table_directories
from mainstem.standalone.state import is_up

VIEWS_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.1


class MovedView(msgspec.Struct, frozen=True):
    """One name of one lakehouse: `path` is what readers open, `table` what it should lead to."""

    lakehouse: str
    path: str
    table: str
    moved: bool


def wait_for_views(
    project: Path,
    data: Path,
    moves: Sequence[Move],
    *,
    timeout_seconds: float = VIEWS_SECONDS,
    clock: Clock | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> list[MovedView]:
    """The views that these moves change, once all of them have, or the time is over. None where the project is not up:
    they follow when it is.

    Raises:
        BadSetting: the project cannot be read.
    """
    if not is_up(data):
        return []
    clock, config = clock or SystemClock(), load_config(project)
    places = table_directories(config, data)
    patterns = {name: sink.topics for name, sink in config.lakehouses.items()}
    deadline = clock.monotonic() + timeout_seconds
    while True:
        found = moved_views(places, patterns, moves)
        if all(each.moved for each in found) or clock.monotonic() >= deadline:
            return found
        pause(LOOK_EVERY_SECONDS)


def moved_views(places: Mapping[str, Path], patterns: Mapping[str, str], moves: Sequence[Move]) -> list[MovedView]:
    """How the views are now. A version that has written nothing has no table yet.

    Args:
        places: of the tables of each lakehouse.
        patterns: of the topics that it has tables of.
        moves: what was made current.
    """
    found = []
    for lakehouse, tables in places.items():
        views = views_directory(tables)
        links = read_views(views)
        for move in moves:
            for name, topic in move.named.items():
                if re.fullmatch(patterns[lakehouse], topic) and any(move.at.get(topic, {}).values()):
                    moved = links.get(name) == topic
                    found.append(MovedView(lakehouse, str(views / name), str(tables / topic), moved))
    return found
