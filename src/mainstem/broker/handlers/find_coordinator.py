"""FindCoordinator, API 10, versions 0-6.

Behaviour: there is one node, so it coordinates every group and every transaction; the internal topics are there since
the broker's start. An unknown kind of key is INVALID_REQUEST, a share group too: there are none.

1: kinds of keys (0 group, 1 transactional id). 4: several keys in one request (KIP-699). 6: share groups (KIP-932).
"""

from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, GROUP, TRANSACTIONAL_ID
from mainstem.wire.errors import Code, RequestError

_KINDS: Final = {0: GROUP, 1: TRANSACTIONAL_ID}


@handler(10, 0, 6)
def find_coordinator(request: Any, ctx: RequestContext) -> dict[str, Any]:
    kind = getattr(request, "key_type", 0)
    if ctx.version < 4:
        return _coordinator(ctx, kind, request.key)
    return {"coordinators": [{"key": key} | _coordinator(ctx, kind, key) for key in request.coordinator_keys]}


def _check(ctx: RequestContext, kind: int, key: str) -> None:
    if kind not in _KINDS:
        raise RequestError(Code.invalid_request, "key type: expected 0 (group) or 1 (transactional id)")
    ctx.check(DESCRIBE, _KINDS[kind], key)


def _coordinator(ctx: RequestContext, kind: int, key: str) -> dict[str, Any]:
    try:
        _check(ctx, kind, key)
    except RequestError as error:
        return {"error_code": error.code, "error_message": str(error), "node_id": -1, "host": "", "port": -1}
    listener = ctx.connection.listener
    return {
        "error_code": Code.none,
        "error_message": "" if ctx.version >= 4 else "NONE",  # as Kafka has it
        "node_id": ctx.broker.config.node_id,
        "host": listener.host,
        "port": listener.port,
    }
