"""JoinGroup, API 11, versions 0-9.

Behaviour: `groups.classic`; answered when the group's next generation is complete. The connection goes on meanwhile, so
a member that leaves instead need not wait.

1: rebalance timeout, before it the session timeout is taken. 4: a new member gets its id first and joins again with it
(KIP-394). 5: static members (KIP-345). 7: protocol type. 8: reason, logged. 9: a static leader that came back skips the
assignment (KIP-814).
"""

from asyncio import Future
from typing import Any

from mainstem.broker.answers import milliseconds, then
from mainstem.broker.groups.classic.messages import JoinAnswer, JoinRequest, Protocol
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ
from mainstem.core.logging import get_logger

log = get_logger()


@handler(11)
def join_group(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]]":
    ctx.check(READ, GROUP, request.group_id)
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout) if ctx.version >= 1 else session_timeout_ms
    reason = getattr(request, "reason", None)
    if reason:
        log.debug("join_group", group=request.group_id, member_id=request.member_id, reason=reason)
    joined = ctx.broker.groups.classic.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            client_id=ctx.client_id,
            client_host=ctx.client_host,
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(protocol.name, protocol.metadata) for protocol in request.protocols),
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            member_id_required=ctx.version >= 4,
            may_skip_assignment=ctx.version >= 9,
        ),
    )
    return then(joined, lambda answer: _fields(answer, ctx.version))


def _fields(answer: JoinAnswer, version: int) -> dict[str, Any]:
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol if version >= 7 else answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in answer.members
        ],
    }
