"""FindCoordinator, API 10, versions 0-6.

Behaviour: there is one node, so it coordinates every group, transaction and share partition; the internal topics are
there since the broker's start. An unknown kind of key is INVALID_REQUEST. Where the internal topic's partition that has
the key is damaged, it is COORDINATOR_NOT_AVAILABLE: clients ask again until it is repaired.

1: kinds of keys (0 group, 1 transactional id). 4: several keys in one request (KIP-699). 6: share partitions, whose
keys are `group:topic id:partition` (KIP-932); brokers ask for them, clients find a share group as any other.
"""

import base64
import re
from typing import Any, Final

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, CLUSTER_ACTION, DESCRIBE, GROUP, THE_CLUSTER, TRANSACTIONAL_ID
from mainstem.broker.transactions.errors import TransactionError
from mainstem.wire.errors import Code, RequestError

_KINDS: Final = {0: GROUP, 1: TRANSACTIONAL_ID}
_SHARE: Final = 2
_PARTITION: Final = re.compile(r"[+-]?\d{1,10}", re.ASCII)


@handler(10)
def find_coordinator(request: Any, ctx: RequestContext) -> dict[str, Any]:
    kind = getattr(request, "key_type", 0)
    if ctx.version < 4:
        return _coordinator(ctx, kind, request.key)
    return {"coordinators": [{"key": key} | _coordinator(ctx, kind, key) for key in request.coordinator_keys]}


def _check(ctx: RequestContext, kind: int, key: str) -> None:
    if kind == _SHARE and ctx.version >= 6:
        ctx.check(CLUSTER_ACTION, CLUSTER, THE_CLUSTER)
        if not _is_share_partition(key):
            raise RequestError(Code.invalid_request, "key: expected group:topic id:partition")
        return
    if kind not in _KINDS:
        raise RequestError(Code.invalid_request, "key type: expected 0 (group), 1 (transactional id) or 2 (share)")
    ctx.check(DESCRIBE, _KINDS[kind], key)


def _is_share_partition(key: str) -> bool:
    """A topic id is 16 bytes as URL-safe base64, which need not end with `==`. A group's id may have colons."""
    group, topic_id, partition = ["", "", *key.rsplit(":", 2)][-3:]
    if not group.strip() or not _PARTITION.fullmatch(partition) or not -(2**31) <= int(partition) < 2**31:
        return False
    try:
        return len(base64.b64decode(topic_id.rstrip("=") + "==", altchars="-_", validate=True)) == 16
    except ValueError:
        return False


def _coordinator(ctx: RequestContext, kind: int, key: str) -> dict[str, Any]:
    try:
        _check(ctx, kind, key)
        if kind == 1:
            ctx.broker.transactions.storage.check_read(key)
        else:
            ctx.broker.groups.storage.check_read(key.rsplit(":", 2)[0] if kind == _SHARE and ctx.version >= 6 else key)
    except (RequestError, GroupError, TransactionError) as error:
        return {"error_code": error.code, "error_message": str(error), "node_id": -1, "host": "", "port": -1}
    listener = ctx.connection.listener
    return {
        "error_code": Code.none,
        "error_message": "" if ctx.version >= 4 else "NONE",  # as Kafka has it
        "node_id": ctx.broker.config.node_id,
        "host": listener.host,
        "port": listener.port,
    }
