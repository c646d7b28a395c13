"""Heartbeat, API 12, versions 0-4.

Behaviour: prolongs the member's session; REBALANCE_IN_PROGRESS asks it to join again.

3: static members (KIP-345).
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ
from mainstem.wire.errors import Code


@handler(12)
def heartbeat(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(READ, GROUP, request.group_id)
    instance_id = getattr(request, "group_instance_id", None)
    ctx.broker.groups.classic.heartbeat(request.group_id, request.member_id, instance_id, request.generation_id)
    return {"error_code": Code.none}
