"""The views of a node over HTTP, in JSON.

    GET  /views, /views/{view}                 what there is, and how far it is
    GET  /views/{view}/row?COLUMN=VALUE...     key-value: the row of a key; 404 where there is none
    GET  /views/{view}/rows?COLUMN=VALUE...    key-value: rows whose key begins so, page by page
    GET  /views/{view}/search?q=WORDS          search: the rows that fit best
    POST /views/{view}/query {"sql": ...}      SQL: rows of one SELECT
    GET  /openapi.json, /health

A request may bring a basis token: header `Mainstem-Basis`, else cookie `mainstem_basis`. Then it is answered when the
view has all that the token has seen, or with 503 and how far it got when `timeout` seconds (10) have passed. Every
answer gives a token back, and says which versions of jobs it is of; `version` asks for another. docs/formats/views.md
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mainstem.client.basis import (
    COOKIE,
    HEADER,
    PREFIX,
    Basis,
    OtherLog,
    answer_headers,
    check_log,
    given_basis,
    parse,
    wait_seconds,
)
from mainstem.client.internal import job_key
from mainstem.core import CorruptData, MainstemError, Retriable, UserError
from mainstem.core.bodies import Bodies, BodiesFull, BodyTooLarge, BodyTooSlow
from mainstem.core.prepared import prepared
from mainstem.serve.build import Build, asked
from mainstem.serve.errors import BadQuery, NotKept
from mainstem.serve.index import to_json
from mainstem.serve.node import Node
from mainstem.serve.openapi import VERSION, document
from mainstem.serve.values import parse_value
from mainstem.serve.view import NoSuchVersion, View
from mainstem.web.answers import check_once, error_answer, json_answer, no_route
from mainstem.web.leaving import Leaving, Stopping
from mainstem.web.origins import OwnOrigins
from mainstem.web.threads import Overloaded, Threads

T = TypeVar("T")
RETRY_AFTER_SECONDS = "1"
MOST_ROWS = 10_000
MOST_BODY_BYTES = 1 << 20
BODY_SECONDS = 30.0
QUERIES, MOST_WAITING_QUERIES = 4, 16
"""Of SQL at once, and that wait for their turn; each may take a minute."""
READS, MOST_WAITING_READS = 8, 256
"""Searches, and pages of rows, which take milliseconds."""
PAGE_SECONDS = 2.0
"""That a page of rows is looked for once it has its turn; it is then cut, and the client goes on."""
_OURS = frozenset({"limit", "after", "at", "timeout", "offset", "q", "version"})
"""Parameters that are no columns; a column of such a name is written with a _ in front."""


class NotFound(UserError):
    """There is no such view, or no row of that key."""


class NotReached(Retriable):
    """The view has not come so far in time."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a query; parameters are those of `?`, `$1` or `$name` in it."""

    sql: str
    parameters: list[Any] | dict[str, Any] = []
    limit: int = 1000
    seconds: float = 10.0


class App:
    """The ASGI application of a node: `app`."""

    def __init__(self, node: Node, listen: str) -> None:
        self._node = node
        self._queries = Threads("this node", QUERIES, MOST_WAITING_QUERIES)
        self._reads = Threads("this node", READS, MOST_WAITING_READS)
        self._leaving = Leaving("this node")
        self._bodies = Bodies(16 * MOST_BODY_BYTES, seconds=BODY_SECONDS)
        reads: dict[str, tuple[str, Callable[..., Any]]] = {
            "row": ("GET", self._row),
            "rows": ("GET", self._rows),
            "search": ("GET", self._search),
            "query": ("POST", self._query),
        }
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/openapi.json", self._openapi),
                Route("/views", self._list),
                Route("/views/{view}", self._guarded(self._show)),
                *(
                    Route(f"/views/{{view}}/{name}", self._guarded(call), methods=[method])
                    for name, (method, call) in reads.items()
                ),
            ],
            middleware=[Middleware(OwnOrigins, listen=listen)],
            exception_handlers={HTTPException: no_route},
            lifespan=self._lifespan,
        )

    def leave(self) -> None:
        """The node stops: who waits for a position, or for a query, is told so. Called in its event loop."""
        self._leaving.leave()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._queries.close()
            self._reads.close()
            await self._node.close()

    # -- what there is

    async def _health(self, _: Request) -> Response:
        """200 while every view can be asked."""
        views = {name: _about(view) for name, view in self._node.views.items()}
        why = self._node.why
        ready = not why and all(view.is_ready for view in self._node.views.values())
        body = {"status": "ok" if ready else "not ready", "why": why, "node": self._node.name, "log": self._node.log}
        return json_answer(200 if ready else 503, body | {"views": views})

    async def _list(self, _: Request) -> Response:
        return json_answer(200, {"views": {name: _about(view) for name, view in self._node.views.items()}})

    async def _openapi(self, _: Request) -> Response:
        return json_answer(200, document(self._node))

    async def _show(self, request: Request) -> Response:
        view = self._view(request)

        async def tell(_: Build) -> Any:
            return _about(view)

        return await self._answer(request, view, tell)

    # -- reads

    async def _row(self, request: Request) -> Response:
        view = self._view(request, "key-value")

        async def get(build: Build) -> Any:
            index = build.index()
            key = _key(request, build, index.key_columns)
            if len(key) < len(index.key_columns):
                raise BadQuery(
                    f"expected a value of every column of the key ({', '.join(index.key_columns)}), found {len(key)}",
                    hint="`rows` answers with all whose key begins so",
                )
            found = await _now(index.get, key, await self._at(request, build))
            if found is None:
                return None
            return {"row": to_json(found.row), "partition": found.partition, "offset": found.offset}

        return await self._answer(request, view, get)

    async def _rows(self, request: Request) -> Response:
        view = self._view(request, "key-value")
        limit, after = _number(request, "limit", 100, MOST_ROWS), _after(request)

        async def scan(build: Build) -> Any:
            index = build.index()
            key, at = _key(request, build, index.key_columns), await self._at(request, build)
            asking = (self._reads, _patience(request), index.scan, key, after, limit, at)
            page = await asked(*asking, seconds=PAGE_SECONDS)
            following = None if page.after is None else base64.urlsafe_b64encode(page.after).decode()
            return {"rows": [to_json(each.row) for each in page.rows], "after": following}

        return await self._answer(request, view, scan)

    async def _search(self, request: Request) -> Response:
        view = self._view(request, "search")
        words = request.query_params.get("q")
        if not words:
            raise BadQuery("expected ?q=WORDS, found none", hint="q=boeing, q=manufacturer:boeing, q=boeing AND 737")
        limit, offset = _number(request, "limit", 10, 1000), _number(request, "offset", 0, 1 << 20)

        async def search(build: Build) -> Any:
            find = build.index().search
            found = await asked(self._reads, _patience(request), find, words, limit=limit, offset=offset)
            names = build.names
            hits = [{"topic": names.get(h.topic, h.topic), "score": h.score, "row": to_json(h.row)} for h in found.hits]
            return {"total": found.total, "hits": hits} | ({"cut": True} if found.cut else {})

        return await self._answer(request, view, search)

    async def _query(self, request: Request) -> Response:
        view = self._view(request, "sql")
        query = await self._read_query(request)

        async def run(build: Build) -> Any:
            ask = build.index().query
            async with self._leaving.bounded():
                asking = (self._queries, _patience(request), ask, query.sql, query.parameters)
                answer = await asked(*asking, limit=query.limit, seconds=query.seconds)
            return {"columns": answer.columns, "rows": to_json(answer.rows), "more": answer.more}

        return await self._answer(request, view, run)

    async def _read_query(self, request: Request) -> Query:
        with self._bodies.hold() as held:
            try:
                expected = int(request.headers.get("content-length") or 0)
                async with self._leaving.bounded():
                    body = await held.read(request.stream(), MOST_BODY_BYTES, expected=expected)
            except (BodyTooLarge, BodyTooSlow) as error:
                raise BadQuery(str(error), hint=error.hint) from None
        try:
            query = msgspec.json.decode(body, type=prepared(Query))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadQuery(
                f'expected {{"sql": "SELECT …"}}, found something else: {error}',
                hint="beside `sql` it may have `parameters`, `limit` and `seconds`",
            ) from None
        if not 1 <= query.limit <= MOST_ROWS or not 0 < query.seconds <= 60:
            raise BadQuery(f"expected a limit of 1 to {MOST_ROWS} and 0 to 60 seconds")
        return query

    async def _answer(self, request: Request, view: View, ask: Callable[[Build], Awaitable[Any]]) -> Response:
        """1. wait until the view has all that the token has seen  2. ask the index that answers then  3. wait until it
        is known what the answer was made of  4. say which version that is, and what the answer may have shown.
        """
        basis = given_basis(self._node.log, request.headers.get(HEADER), request.cookies.get(COOKIE))
        build = await self._covered(
            request, view, self._node.covers(view, basis, request.query_params.get("version")), basis
        )
        with build.held():
            body = await ask(build)
            shown = self._node.shown(build)
        if not self._node.is_told(shown):
            late = f"view {view.name}: it is not known what the answer was made of"
            await self._wait(request, self._node.told(shown), late, lambda: self._node.how_told(shown))
        headers = answer_headers(basis.with_positions(self._node.seen(shown)))
        versions = build.target.versions
        if versions:
            headers[VERSION] = ", ".join(job_key(name, version) for name, version in versions.items())
        if body is None:
            nothing = NotFound(
                f"view {view.name}: no row has this key",
                hint=f"to see what was just written, bring its token: header {HEADER}",
            )
            return error_answer(404, "not_found", nothing, headers)
        return json_answer(200, body | ({"versions": versions} if versions else {}), headers)

    async def _covered(self, request: Request, view: View, wait: Coroutine[Any, Any, T], basis: Basis) -> T:
        late = f"view {view.name}: not as far as the token"
        version = request.query_params.get("version")
        return await self._wait(request, wait, late, lambda: self._node.how_far(view, basis, version))

    async def _wait(self, request: Request, wait: Coroutine[Any, Any, T], late: str, how_far: Callable[[], str]) -> T:
        try:
            seconds = wait_seconds(request.query_params.get("timeout"))
            async with self._leaving.bounded(seconds):
                return await wait
        except TimeoutError:
            raise NotReached(
                f"{late} after {seconds:g} s: {how_far()}",
                hint="ask again; `mainstem status` shows what is behind",
            ) from None
        finally:
            wait.close()  # where it has not begun

    async def _at(self, request: Request, build: Build) -> dict[int, int] | None:
        """The position of `?at=`, a token or `partition:offset,…`; the index has reached it on return."""
        text = request.query_params.get("at")
        if text is None:
            return None
        (topic,) = build.topics
        if text.startswith(PREFIX):
            basis = parse(text)
            check_log(basis, self._node.log)
        else:
            basis = Basis(self._node.log, {topic: _places(text)})
        await self._covered(request, self._node.views[build.view], self._node.covered(build, basis), basis)
        oldest = self._node.lineage.forgotten(topic, basis.positions)
        if oldest is not None:
            raise NotKept(
                f"view {build.view}: at: expected a token of what the job that makes {oldest.output} has read after its "
                f"batch {oldest.batch}, the oldest that this node knows, found one of before",
                hint=f"name the position in {topic} itself, at=partition:offset,…, or bring a token of a later moment",
            )
        return build.records_below(topic, self._node.lineage.needed(topic, basis.positions) or {})

    def _view(self, request: Request, kind: str | None = None) -> View:
        name = request.path_params["view"]
        view = self._node.views.get(name)
        if view is None:
            there = ", ".join(sorted(self._node.views)) or "none"
            raise NotFound(f"view {name!r}: no such view on node {self._node.name}", hint=f"there are: {there}")
        if kind is not None and view.config.kind != kind:
            asks = {"key-value": "row or rows", "search": "search", "sql": "query"}[view.config.kind]
            raise NotFound(
                f"view {name}: expected a {kind} view for this, found a {view.config.kind} view", hint=f"it has: {asks}"
            )
        return view

    def _guarded(self, call: Callable[[Request], Awaitable[Response]]) -> Any:
        """Every error as JSON with a code, a line and what to do; those worth a retry say when."""

        async def endpoint(request: Request) -> Response:
            try:
                check_once(request)
                return await call(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except asyncio.CancelledError:  # by a server that is patient no longer
                if not self._leaving.is_set:
                    raise
                return error_answer(503, "stopping", self._leaving.told(), {"Retry-After": RETRY_AFTER_SECONDS})
            except MainstemError as error:
                status, code = _status(error)
                headers = {"Retry-After": RETRY_AFTER_SECONDS} if status in (429, 503) else {}
                return error_answer(status, code, error, headers)

        return endpoint


def _status(error: MainstemError) -> tuple[int, str]:
    match error:
        case NotFound() | NoSuchVersion():
            return 404, "not_found"
        case OtherLog():
            return 409, "other_log"
        case NotKept():
            return 410, "not_kept"
        case BodiesFull() | Overloaded():
            return 429, "overloaded"
        case NotReached():
            return 503, "not_reached"
        case Stopping():
            return 503, "stopping"
        case UserError():
            return 400, "bad_request"
        case Retriable() | CorruptData():
            return 503, "not_ready"
    return 500, "failed"


def _about(view: View) -> dict[str, Any]:
    state = view.keeper.state if view.keeper is not None else None
    about: dict[str, Any] = {
        "kind": view.config.kind,
        "topics": list(view.config.names),
        "ready": view.is_ready,
        "position": view.position,
        "state": "waiting" if state is None else state.state,
        "why": view.why if state is None else state.told,
    }
    if left_out := view.left_out:
        about["left_out"] = {"records": left_out, "last": view.keeper.left_out if view.keeper else ""}
    if view.versions:
        about["versions"] = view.versions
    if view.moving is not None:
        moving = view.moving
        about["moving"] = {
            "versions": moving.target.versions,
            "position": moving.position,
            "why": "" if moving.is_ready else moving.told(),
        }
    return about


def _key(request: Request, build: Build, columns: tuple[str, ...]) -> list[Any]:
    """The values of the key's leading columns that the request names."""
    (types,) = build.columns.values() or ({},)
    given = {_column(name): text for name, text in request.query_params.items() if name not in _OURS}
    if unknown := [name for name in given if name not in columns]:
        raise BadQuery(
            f"{unknown[0][:100]}: expected columns of the key ({', '.join(columns)}), found another one",
            hint="by other columns a search or an SQL view finds rows",
        )
    key = []
    for column in columns:
        if column not in given:
            break
        key.append(parse_value(given[column], column, types.get(column, "VARCHAR")))
    if len(key) < len(given):
        raise BadQuery(f"expected the leading columns of the key ({', '.join(columns)}), found {', '.join(given)}")
    return key


def _patience(request: Request) -> float:
    """Seconds that a request waits, for its turn too."""
    return wait_seconds(request.query_params.get("timeout"))


def _column(name: str) -> str:
    return name[1:] if name.startswith("_") and name[1:] in _OURS else name


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    number = default if text is None else int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not 0 <= number <= most:
        raise BadQuery(f"{name}: expected a number up to {most}, found {str(text)[:40]!r}")
    return number


def _after(request: Request) -> bytes | None:
    text = request.query_params.get("after")
    if text is None:
        return None
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        raise BadQuery(f"after: expected what the page before has, found {text[:40]!r}") from None


def _places(text: str) -> dict[int, int]:
    """`0:17,1:4`: partition -> next offset."""
    places: dict[int, int] = {}
    for part in text.split(","):
        partition, _, offset = part.partition(":")
        if (
            not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit())
            or len(part) > 40
        ):
            raise BadQuery(f"at: expected a token, or partition:offset of each partition, found {text[:60]!r}")
        if int(partition) >= 2**31 or int(offset) >= 2**63:
            raise BadQuery(f"at: expected a partition below 2**31 and an offset below 2**63, found {part!r}")
        if int(partition) in places:
            raise BadQuery(f"at: expected each partition once, found {int(partition)} again")
        places[int(partition)] = int(offset)
    return places


async def _now(call: Any, *arguments: Any) -> Any:
    """What takes microseconds is asked here: to wake a thread would take longer."""
    try:
        return call(*arguments)
    except MainstemError:
        raise
    except Exception as error:  # the engine's own: it was closed while it was asked
        raise NotReached(f"the index was closed while it was asked: {error}", hint="ask again") from error
