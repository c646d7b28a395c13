"""SyncGroup, API 14, versions 0-5.

Behaviour: `groups.classic`; answered when the leader's assignment is durable.

3: static members (KIP-345). 5: protocol type and name are checked against the group's.
"""

from asyncio import Future
from typing import Any

from mainstem.broker.answers import then
from mainstem.broker.groups.classic.messages import SyncAnswer, SyncRequest
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ
from mainstem.wire.errors import Code


@handler(14)
def sync_group(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]] | dict[str, Any]":
    ctx.check(READ, GROUP, request.group_id)
    protocol_type, protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if ctx.version >= 5 and (protocol_type is None or protocol is None):
        return {"error_code": Code.inconsistent_group_protocol}
    asked = SyncRequest(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=protocol_type,
        protocol=protocol,
        assignments={each.member_id: each.assignment for each in request.assignments},
    )
    return then(ctx.broker.groups.classic.sync(request.group_id, asked), _fields)


def _fields(answer: SyncAnswer) -> dict[str, Any]:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }
