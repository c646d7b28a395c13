"""One module per API. A handler is registered by a decorator, with the API's key in the table of `broker.served`.

    @handler(12)
    def heartbeat(request: Any, ctx: RequestContext) -> Response:
        instance_id = getattr(request, "group_instance_id", None)
        ctx.broker.groups.classic.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
        return {"error_code": 0}

- `request` is kio's entity of the version that was asked. A field that does not exist in that version is absent from
  it: read such fields with `getattr(request, "group_instance_id", None)`.
- The answer is a dict of kio's field names, nested dicts and lists, for all versions at once: fields that the asked
  version does not have are left out, missing ones get Kafka's default (`throttle_time` 0, `error_code` 0, "" ...).
  Durations are int milliseconds, an error code is an int or `wire.errors.Code`. A name that no version has is refused.
- A handler is a plain function or a coroutine function. A plain one runs at once, in the order of the requests, and may
  return a future of its answer (`answers.then` makes one of another): then the connection goes on with its next request
  and the answers still leave in order. A coroutine holds the connection's next request back until it is done (as Kafka
  does for every request).
- An error that is raised becomes the answer's top-level `error_code` by the table in `wire.errors`, with its message
  where there is a place for it; an API without a top-level code, or whose answer then has nulls, gives `failure=`, a
  function (request, code) -> answer.
- A handler says what its client needs, item by item, before it tells or does anything: `ctx.check(READ, GROUP, name)`
  raises the error that Kafka has for it, `ctx.may(...)` is for lists. A test asks every API without any right.
- `decode=`, a function (version, frame, position) -> request, replaces kio's reader where a hot path needs it.
"""

import importlib
from asyncio import Future
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from mainstem.broker.security.acls import CODES, OPERATIONS
from mainstem.broker.security.errors import NotAllowed
from mainstem.broker.security.quotas import MUTATION, Meter
from mainstem.broker.served import SERVED
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code, RequestError

if TYPE_CHECKING:
    from mainstem.broker.connection import Connection
    from mainstem.broker.server import Broker

Response: TypeAlias = "dict[str, Any] | bytes | list[Any] | None"
"""The answer: fields, or bytes already encoded, or None for no answer at all (Produce with acks=0)."""

HandlerFunction: TypeAlias = "Callable[[Any, RequestContext], Response | Awaitable[Response] | Future[Response]]"
F = TypeVar("F", bound=Callable[..., Any])


class RequestContext(msgspec.Struct):
    """Who asks, and in which version."""

    broker: "Broker"
    connection: "Connection"
    api_key: int
    version: int
    client_id: str
    meter: Meter | None = None
    """Where some client has a quota."""

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka prints it in member descriptions: `/127.0.0.1`."""
        return self.connection.client_host

    def may(self, operation: int, kind: int, name: str) -> bool:
        """Whether the client may do `operation` to a resource (`security.acls`); all may, without an authorizer."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allows(
            self.connection.principal, self.connection.client_host[1:], operation, kind, name
        )

    def check(self, operation: int, kind: int, name: str) -> None:
        """Refuse who may not.

        Raises:
            NotAllowed: with the code of the kind of resource.
        """
        if not self.may(operation, kind, name):
            facts = {"principal": self.connection.principal, "client": self.client_host, "api": self.api_key}
            log.debug("not_allowed", **facts, operation=operation, kind=kind, name=name)
            raise NotAllowed(CODES[kind])

    def may_some(self, operation: int, kind: int) -> bool:
        """Whether there is any resource of that kind to which the client may do it."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allows_some(
            self.connection.principal, self.connection.client_host[1:], operation, kind
        )

    def mutate(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that are created or deleted (KIP-599); `strict`: the client's version knows the refusal.

        Raises:
            RequestError: the client is over its quota, and has to wait.
        """
        if self.meter is None:
            return
        if not strict:
            self.meter.used(MUTATION, partitions)
        elif not self.meter.may_use(MUTATION, partitions):
            raise RequestError(Code.throttling_quota_exceeded, "The throttling quota has been exceeded.")

    def operations(self, kind: int, name: str) -> int:
        """What the client may do to a resource: a bit for each of Kafka's operations, by its number."""
        return sum(1 << operation for operation in OPERATIONS[kind] if self.may(operation, kind, name))


class Handler(msgspec.Struct, frozen=True):
    """How one API is answered."""

    api_key: int
    min_version: int
    max_version: int
    call: Callable[[Any, RequestContext], Any]
    failure: Callable[[Any, int], dict[str, Any]] | None
    decode: Callable[[int, bytearray, int], Any] | None


log = get_logger()

_registered: dict[int, Handler] = {}


def handler(
    api_key: int,
    *,
    failure: Callable[[Any, int], dict[str, Any]] | None = None,
    decode: Callable[[int, bytearray, int], Any] | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as the handler of `api_key`."""
    served = SERVED[api_key]

    def register(call: F) -> F:
        assert call.__module__ == f"{__name__}.{served.module}", api_key
        _registered[api_key] = Handler(api_key, served.min_version, served.max_version, call, failure, decode)
        return call

    return register


def load_handlers(api_keys: Collection[int] = SERVED.keys()) -> dict[int, Handler]:
    """Import the modules of some APIs, and give their handlers by API key."""
    for api_key in api_keys:
        importlib.import_module(f"{__name__}.{SERVED[api_key].module}")
    return {api_key: _registered[api_key] for api_key in api_keys}
