"""Serving nodes: where they are, how their views are, and what somebody asks of a view, passed on.

    browser ──> dashboard ──> the node that the project and the catalog name; no other host, no other path

Calls block: they are for threads.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any
from urllib.parse import quote

import msgspec

from mainstem.client.basis import HEADER
from mainstem.client.catalog import entries
from mainstem.core import Retriable, UserError
from mainstem.core.address import parse_address
from mainstem.core.prepared import prepared
from mainstem.serve.config import ServeConfig, node_names

LOOK_SECONDS = 1.0
ABOUT_SECONDS = 5.0
CONNECT_SECONDS = 2.0
ASK_SECONDS = 75.0  # a query may take 60, after a wait for what its token has seen
MOST_ANSWER_BYTES = 16 << 20
READS = {"row": "GET", "rows": "GET", "search": "GET", "query": "POST"}
"""What may be asked of a view, and how."""


class UnknownView(UserError):
    """The project has no such node, or the node no such view."""


class NoAnswer(Retriable):
    """The node does not answer."""


class NotThere(NoAnswer):
    """Nobody listens at its address."""


class TooMuch(UserError):
    """A browser would have to hold more than is good for it."""


class Answer(msgspec.Struct, frozen=True):
    """What a node said."""

    status: int
    body: bytes
    basis: str = ""  # the token of what the answer shows


class About(msgspec.Struct, frozen=True):
    """What a view can be asked. `key`: the columns of a key-value view's key; `tables`: what a query is about."""

    kind: str
    topics: list[str]
    key: list[str]
    versions: bool
    tables: str


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    required: bool = False


class _Property(msgspec.Struct, frozen=True):
    description: str = ""


class _Schema(msgspec.Struct, frozen=True):
    properties: dict[str, _Property] = {}


class _Content(msgspec.Struct, frozen=True):
    schema: _Schema = _Schema()


class _Body(msgspec.Struct, frozen=True):
    content: dict[str, _Content] = {}


class _Operation(msgspec.Struct, frozen=True, rename={"body": "requestBody"}):
    parameters: list[_Parameter] = []
    body: _Body = _Body()


class _Path(msgspec.Struct, frozen=True):
    get: _Operation = _Operation()
    post: _Operation = _Operation()


class _Document(msgspec.Struct, frozen=True):
    """Of OpenAPI, what is read here."""

    paths: dict[str, _Path]


class Nodes:
    """The serving nodes of a project.

    Args:
        tables: `[serve.<name>]` of the project: nobody else is asked.
        read_catalog: the catalog as it is now; it says where they answer.
    """

    def __init__(
        self, tables: Mapping[str, ServeConfig], read_catalog: Callable[[], Mapping[str, dict[str, Any]]]
    ) -> None:
        self.configs = {node: config for name, config in tables.items() for node in node_names(name, config)}
        self._read_catalog = read_catalog
        self._addresses: dict[str, str] = {}
        self._open: set[HTTPConnection] = set()

    def close(self) -> None:
        """End what is asked now; its callers get an error."""
        for connection in list(self._open):
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def see(self, catalog: Mapping[str, dict[str, Any]]) -> None:
        """Learn where the nodes are from a catalog that was read anyway."""
        known = entries(catalog, "node")
        self._addresses = {node: str(known[node].get("address", "")) for node in self.configs if node in known}

    def look(self) -> dict[str, dict[str, Any] | str]:
        """What each node says of its views, asked at once; of one that does not answer, why."""
        if not self.configs:
            return {}
        with ThreadPoolExecutor(min(8, len(self.configs)), "dashboard-nodes") as threads:
            return dict(zip(self.configs, threads.map(self._views, self.configs), strict=True))

    def about(self, node: str, view: str) -> About:
        """What a view can be asked.

        Raises:
            UnknownView, NoAnswer: as they say.
        """
        config = self._config(node, view).views[view]
        answer = self._asked(node, "GET", "/openapi.json", seconds=ABOUT_SECONDS)
        try:
            document = msgspec.json.decode(answer.body, type=prepared(_Document))
        except msgspec.DecodeError as error:
            raise NoAnswer(f"node {node}: expected an OpenAPI document, found something else: {error}") from None
        parameters = document.paths.get(f"/views/{view}/row", _Path()).get.parameters
        key = [each.name for each in parameters if each.required]
        query = document.paths.get(f"/views/{view}/query", _Path()).post.body.content.get(
            "application/json", _Content()
        )
        sql = query.schema.properties.get("sql", _Property())
        return About(config.kind, list(config.names), key, config.versions, sql.description)

    def ask(self, node: str, view: str, read: str, query: str, body: bytes | None, basis: str | None) -> Answer:
        """One of `READS` of a view.

        Args:
            node: that is asked.
            view: of it.
            read: one of `READS`.
            query: of the address, as the browser has sent it.
            body: of a POST.
            basis: a token that the answer has to cover.

        Raises:
            UnknownView, NoAnswer: as they say.
        """
        self._config(node, view)
        path = f"/views/{quote(view, safe='')}/{read}" + (f"?{query}" if query else "")
        return self._asked(node, READS[read], path, body, basis, seconds=ASK_SECONDS)

    def _config(self, node: str, view: str) -> ServeConfig:
        if node not in self.configs or view not in self.configs[node].views:
            there = ", ".join(f"{name}/{each}" for name, config in self.configs.items() for each in config.views)
            raise UnknownView(f"view {node}/{view}: the project has no such view", hint=f"there are: {there or 'none'}")
        return self.configs[node]

    def _views(self, node: str) -> dict[str, Any] | str:
        if not self._addresses.get(node):
            return "it has not told the log yet where it answers"
        try:
            answer = self._at(node, self._addresses[node], "GET", "/views", seconds=LOOK_SECONDS)
            return dict(msgspec.json.decode(answer.body)["views"])
        except (NoAnswer, UserError, msgspec.DecodeError, KeyError, TypeError) as error:
            return str(error)

    def _asked(
        self, node: str, method: str, path: str, body: bytes | None = None, basis: str | None = None, *, seconds: float
    ) -> Answer:
        """Asked where it was last; where nobody answers there, the catalog is read for where it is now."""
        before = self._addresses.get(node)
        with contextlib.suppress(NotThere):
            if before:
                return self._at(node, before, method, path, body, basis, seconds=seconds)
        self.see(self._read_catalog())
        if not (address := self._addresses.get(node)):
            raise NoAnswer(
                f"node {node}: it has not told the log yet where it answers", hint="is `mainstem up` running?"
            )
        return self._at(node, address, method, path, body, basis, seconds=seconds)

    def _at(
        self,
        node: str,
        address: str,
        method: str,
        path: str,
        body: bytes | None = None,
        basis: str | None = None,
        *,
        seconds: float,
    ) -> Answer:
        connection = _connected(node, address)
        self._open.add(connection)
        try:
            return _asked(connection, f"node {node} at {address}", method, path, body, basis, seconds)
        finally:
            self._open.discard(connection)
            connection.close()


def _connected(node: str, address: str) -> HTTPConnection:
    host, port = parse_address(address, f"address of node {node}", lowest_port=1)
    connection = HTTPConnection(host, port, timeout=CONNECT_SECONDS)
    try:
        connection.connect()
    except OSError as error:
        raise NotThere(
            f"node {node} at {address}: no answer: {error.strerror or error}",
            hint="`mainstem status` shows its process",
        ) from None
    return connection


def _asked(
    connection: HTTPConnection, who: str, method: str, path: str, body: bytes | None, basis: str | None, seconds: float
) -> Answer:
    """The answer, whatever its status; a redirection is one like any other.

    Raises:
        NoAnswer: it took too long, was too large, or ended in the middle.
    """
    deadline = time.monotonic() + seconds
    headers = ({HEADER: basis} if basis else {}) | ({"content-type": "application/json"} if body is not None else {})
    try:
        connection.sock.settimeout(seconds)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        body = b"".join(_parts(response, connection, deadline))
    except TimeoutError:
        raise NoAnswer(f"{who}: no answer within {seconds:g} s", hint="ask for less") from None
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"{who}: it ended in the middle: {error!r}", hint="ask again") from None
    return Answer(response.status, body, response.headers.get(HEADER, ""))


def _parts(response: HTTPResponse, connection: HTTPConnection, deadline: float) -> Iterable[bytes]:
    size = 0
    while part := response.read1(1 << 16):
        yield part
        size += len(part)
        left = deadline - time.monotonic()
        if size > MOST_ANSWER_BYTES:
            raise TooMuch(f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB", hint="ask for less, with a limit")
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:  # else all has come
            connection.sock.settimeout(left)
    if response.length:  # `read1` says nothing of it
        raise IncompleteRead(b"", response.length)
