"""One node of the arithmetic service over HTTP.

    python -m examples.arithmetic.service --model primary-backup --node n1 --listen 127.0.0.1:8001 \\
        --peers n2=127.0.0.1:8002,n3=127.0.0.1:8003 --bootstrap 127.0.0.1:9092

    POST /clients                           {"client": 17}
    POST /ops {"op": "x+=5", "id": "17-1"}  {"op": "x+=5", "value": "5", "basis": 42}
    GET  /x?                                {"op": "x?", "value": "5", "basis": 43}
    GET  /x?level=local&basis=42            what this node has, once it has read everything before offset 42
    GET  /status                            role, term, position, a hash of the state

`id` is `<client>-<number>`, the number from 1: the same request is carried out once, however often and to whichever
node it is sent. Without one an operation that got no answer may have been carried out or not. An answer that is no 200
has an `error`, and `retry`: whether to send the same request again, to the same node or another.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from examples.arithmetic.operations import Arithmetic, BadOperation, parse
from mainstem.client.connection import Connection
from mainstem.core import MainstemError
from mainstem.core.address import parse_address
from mainstem.core.bodies import Bodies, BodiesFull, BodyTooLarge, BodyTooSlow
from mainstem.core.config import BadSetting
from mainstem.core.logging import configure
from mainstem.core.process import die_with_parent
from mainstem.replicate import (
    Answered,
    Lineage,
    Node,
    NotApplied,
    NotPrimary,
    OutcomeUnknown,
    PrimaryBackup,
    Refused,
    Replica,
    Request,
    StateMachine,
    Stopped,
    Timing,
    UnknownRequest,
)
from mainstem.web.origins import OwnOrigins
from mainstem.web.server import WebServer, bound

LARGEST_BODY = 4096
MODELS = ("state-machine", "primary-backup")
_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_STATUS = {
    BadOperation: 400,
    BodyTooLarge: 413,
    BodyTooSlow: 408,
    BodiesFull: 503,
    Refused: 422,
    UnknownRequest: 409,
    NotPrimary: 503,
    NotApplied: 503,
    Stopped: 503,
    OutcomeUnknown: 504,
}
_RETRY = (BodiesFull, NotPrimary, NotApplied, Stopped, OutcomeUnknown)


class Posted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /ops`."""

    op: str
    id: str = ""


class Options(NamedTuple):
    """How a node is started."""

    model: str
    node: str
    listen: str
    peers: dict[str, str]
    bootstrap: str
    topic: str
    data: Path | None = None
    timing: Timing = Timing()
    digest_every: int = 100
    allow_random: bool = False
    fenced: bool = True


class Door:
    """The HTTP side of a node: what is asked, as calls of the node, and what it says, as answers."""

    def __init__(self, node: Node, options: Options) -> None:
        self._node, self._options = node, options
        self._bodies = Bodies(1 << 20, seconds=10.0)
        self.app = Starlette(
            routes=[
                Route("/clients", self._handled(self._open_client), methods=["POST"]),
                Route("/ops", self._handled(self._operate), methods=["POST"]),
                Route("/status", self._handled(self._status)),
                Route("/{variable}", self._handled(self._query)),
            ],
            middleware=[Middleware(OwnOrigins, listen=options.listen)],
        )

    async def _open_client(self, _: HttpRequest) -> Any:
        return {"client": await self._node.open_client()}

    async def _operate(self, request: HttpRequest) -> Any:
        with self._bodies.hold() as held:
            body = await held.read(request.stream(), LARGEST_BODY)
            try:
                posted = msgspec.json.decode(body, type=Posted)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadOperation(f"expected {{'op': 'x+=5', 'id': '17-1'}}: {error}") from error
            operation = parse(posted.op)
            if not operation.sign:
                return _told(posted.op, await self._node.read(operation.variable))
            if operation.number == "random" and not self._options.allow_random:
                raise BadOperation(
                    "expected a number, found random: each node would draw its own", hint="draw it yourself"
                )
            return _told(posted.op, await self._node.write(posted.op, _request(posted.id)))

    async def _query(self, request: HttpRequest) -> Any:
        variable = parse(request.path_params["variable"] + "?").variable
        level, basis = request.query_params.get("level", "barrier"), request.query_params.get("basis", "0")
        if level not in ("barrier", "local") or not re.fullmatch("[0-9]{1,18}", basis):
            raise BadOperation(
                "expected level=barrier or level=local, and basis=OFFSET", hint="GET /x?level=local&basis=42"
            )
        return _told(f"{variable}?", await self._node.read(variable, local=level == "local", basis=int(basis)))

    async def _status(self, _: HttpRequest) -> Any:
        return self._node.status()

    def _handled(self, call: Any) -> Any:
        async def endpoint(request: HttpRequest) -> Response:
            try:
                return _response(200, await call(request))
            except MainstemError as error:
                return self._refusal(request, error)

        return endpoint

    def _refusal(self, request: HttpRequest, error: MainstemError) -> Response:
        body = {"error": str(error), "hint": error.hint, "retry": isinstance(error, _RETRY)}
        if isinstance(error, NotPrimary) and error.primary in self._options.peers:
            address = self._options.peers[error.primary]
            query = f"?{request.url.query}" if request.url.query else ""
            headers = {"location": f"http://{address}{request.url.path}{query}"}
            return _response(307, body | {"primary": error.primary}, headers)
        return _response(_STATUS.get(type(error), 500), body)


def _request(text: str) -> Request | None:
    found = _ID.fullmatch(text)
    if text and (found is None or int(found[2]) < 1):
        raise BadOperation(f"id: expected <client>-<number>, found {text[:60]!r}", hint="POST /clients gives a client")
    return Request(int(found[1]), int(found[2])) if found else None


def _told(op: str, answered: Answered) -> dict[str, Any]:
    return {"op": op, "value": answered.value, "basis": answered.basis}


def _response(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body) + b"\n", status, headers, media_type="application/json")


def make_replica(options: Options) -> Replica:
    """The one line in which the two models differ."""
    if options.model == "state-machine":
        nodes = len(options.peers) + 1
        return StateMachine(options.node, Arithmetic, nodes=nodes, digest_every=options.digest_every)
    return PrimaryBackup(options.node, Arithmetic, timing=options.timing, lineage=Lineage(fenced=options.fenced))


async def serve(options: Options) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        MainstemError: it cannot start, or has stopped by itself.
    """
    with bound(options.listen, "--listen", "--listen") as listener:
        connection = Connection(options.bootstrap)
        async with Node(connection, options.topic, make_replica(options), directory=options.data) as node:

            def ready(address: str) -> None:
                print(f"{options.node}: http://{address} ({options.model}, topic {options.topic})", flush=True)

            server = WebServer(Door(node, options).app, listener, ready)

            async def watch() -> None:
                with contextlib.suppress(MainstemError):
                    await node.wait_stopped()
                server.should_exit = True

            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(watch())
                await server.run_here()
                watcher.cancel()
        if node.problem is not None:
            raise node.problem


def _options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description="One node of the arithmetic service.")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--node", required=True, help="its name")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="on this machine's loopback")
    parser.add_argument("--peers", default="", metavar="NAME=HOST:PORT,…", help="the other nodes")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the log")
    parser.add_argument("--topic", default="", help="default: arithmetic-<model>")
    parser.add_argument(
        "--data", type=Path, help="keep checkpoints there; without it the whole topic is read at a start"
    )
    parser.add_argument("--heartbeat-ms", type=int, default=200)
    parser.add_argument("--silence-ms", type=int, default=1000, help="of the primary, until a backup claims")
    parser.add_argument("--jitter-ms", type=int, default=500, help="that a backup adds to it, at random")
    parser.add_argument("--digest-every", type=int, default=100, help="operations, after which the states are compared")
    parser.add_argument("--allow-random", action="store_true", help="of x+=random, to see what becomes of it")
    parser.add_argument("--unsafe-without-fence", action="store_true", help="loses updates, to see how")
    given = parser.parse_args(arguments)
    host, _ = parse_address(given.listen, "--listen")
    if host != "localhost" and not _is_loopback(host):
        raise BadSetting(
            f"--listen: expected an address of the loopback, found {host}", hint="it asks nobody who they are"
        )
    return Options(
        given.model, given.node, given.listen, _peers(given.peers, given.node), given.bootstrap, given.topic or f"arithmetic-{given.model}",
        data=given.data, digest_every=given.digest_every, allow_random=given.allow_random,
        timing=Timing(given.heartbeat_ms / 1000, given.silence_ms / 1000, given.jitter_ms / 1000),
        fenced=not given.unsafe_without_fence,
    )  # fmt: skip


def _peers(text: str, node: str) -> dict[str, str]:
    """Name to address. One that were dropped would be missing where a majority is counted, and could not be named."""
    peers: dict[str, str] = {}
    for each in text.split(",") if text else []:
        name, _, address = each.strip().partition("=")
        hint = "as in --peers n2=127.0.0.1:8002,n3=127.0.0.1:8003"
        if not name or not address:
            raise BadSetting(f"--peers: expected NAME=HOST:PORT, found {each!r}", hint=hint)
        if name == node or name in peers:
            raise BadSetting(f"--peers: expected each other node once, found {name} again in {text!r}", hint=hint)
        try:
            parse_address(address, "--peers", lowest_port=1)
        except BadSetting as error:
            raise BadSetting(f"{error} of node {name}", hint=hint) from None
        peers[name] = address
    return peers


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main() -> int:
    configure("arithmetic", level="warning")
    try:
        die_with_parent()  # where a demo or a test started it
        asyncio.run(serve(_options()))
    except MainstemError as error:
        print(f"arithmetic: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
