"""Whether the views of serving nodes answer by what was made current: each is asked with the token of the command, and
so answers when it has moved.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import msgspec

from mainstem.client.basis import HEADER
from mainstem.client.catalog import entries, read_catalog
from mainstem.client.connection import Connection
from mainstem.core import Clock, SystemClock
from mainstem.core.http import open_request
from mainstem.process.cutover import Moves

NODES_SECONDS = 60.0
ROUND_SECONDS = 1.0
"""So long a node is asked to wait for its view; whoever gives up waits for no more than the round that goes on."""
LOOK_EVERY_SECONDS = 0.1
_GRACE_SECONDS = 5.0
"""A node says itself that the time is over."""


class MovedNode(msgspec.Struct, frozen=True):
    """One view of one node; `why` it does not answer by the versions that came, where it does not."""

    node: str
    view: str
    address: str
    moved: bool
    why: str = ""
    is_late: bool = False  # it answers, and may have moved a moment later


def wait_for_nodes(
    connection: Connection,
    moves: Moves,
    *,
    timeout_seconds: float = NODES_SECONDS,
    clock: Clock | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> list[MovedNode]:
    """The views that these moves change, once all of them have, or the time is over. A node that does not run is not
    waited for: it moves when it does. `pause` is called between two rounds of questions; what it raises ends them.
    """
    clock = clock or SystemClock()
    views = views_of(read_catalog(connection), moves)
    if not views:
        return []
    deadline = clock.monotonic() + timeout_seconds
    found: dict[tuple[str, str, str], MovedNode] = {}
    late = list(views)
    with ThreadPoolExecutor(len(views)) as threads:
        while late:
            seconds = max(0.0, min(ROUND_SECONDS, deadline - clock.monotonic()))
            asked = [threads.submit(_asked, view, moves.basis, seconds) for view in late]
            found |= {view: each.result() for view, each in zip(late, asked, strict=True)}
            late = [view for view in late if found[view].is_late]
            if clock.monotonic() >= deadline:
                break
            pause(LOOK_EVERY_SECONDS)
    return [found[view] for view in views]


def views_of(catalog: Mapping[str, dict[str, Any]], moves: Moves) -> Sequence[tuple[str, str, str]]:
    """Node, view and address of those that have a moved job's topic by its plain name."""
    names = {name for move in moves.moves for name in move.named}
    return [
        (node, view, str(about["address"]))
        for node, about in sorted(entries(catalog, "node").items())
        for view, settings in sorted(about.get("views", {}).items())
        if about.get("address") and names.intersection(settings["topics"])
    ]


def _asked(where: tuple[str, str, str], basis: str, seconds: float) -> MovedNode:
    node, view, address = where
    url = f"http://{address}/views/{urllib.parse.quote(view)}?timeout={seconds:g}"
    try:
        with open_request(urllib.request.Request(url, headers={HEADER: basis}), seconds + _GRACE_SECONDS):
            return MovedNode(node, view, address, True)
    except urllib.error.HTTPError as error:
        with error:
            is_late = error.code == HTTPStatus.SERVICE_UNAVAILABLE
            return MovedNode(node, view, address, False, _told(error.read()) or str(error), is_late)
    except (OSError, http.client.HTTPException) as error:
        return MovedNode(node, view, address, False, f"it does not answer: {error}")


def _told(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
