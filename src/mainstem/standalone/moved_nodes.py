"""Whether the views of serving nodes answer by what was made current: each is asked with the token of the command, and
so answers when it has moved.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from mainstem.client.basis import HEADER
from mainstem.client.catalog import entries, plain_name, read_catalog
from mainstem.client.connection import Connection
from mainstem.core.http import open_request
from mainstem.process.cutover import Moves

NODES_SECONDS = 60.0
_GRACE_SECONDS = 5.0
"""A node says itself that the time is over."""


class MovedNode(msgspec.Struct, frozen=True):
    """One view of one node; `why` it does not answer by the versions that came, where it does not."""

    node: str
    view: str
    address: str
    moved: bool
    why: str = ""


def wait_for_nodes(connection: Connection, moves: Moves, *, timeout_seconds: float = NODES_SECONDS) -> list[MovedNode]:
    """The views that these moves change, once all of them have, or the time is over. A node that does not run is not
    waited for: it moves when it does.
    """
    views = views_of(read_catalog(connection), moves)
    if not views:
        return []
    with ThreadPoolExecutor(len(views)) as threads:
        return list(threads.map(lambda view: _asked(view, moves.basis, timeout_seconds), views))


def views_of(catalog: Mapping[str, dict[str, Any]], moves: Moves) -> Sequence[tuple[str, str, str]]:
    """Node, view and address of those that have a moved job's topic by its plain name."""
    names = {plain_name(move.version, move.output) for move in moves.moves}
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
            return MovedNode(node, view, address, False, _told(error.read()) or str(error))
    except (OSError, http.client.HTTPException) as error:
        return MovedNode(node, view, address, False, f"it does not answer: {error}")


def _told(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
