"""LeaveGroup, API 13, versions 0-5.

Behaviour: the members are removed and the rest rebalances; answered when a group left empty is stored as such.

3: several members, each with a code of its own, and removal of a static member by its instance id alone (KIP-345).
5: reason, logged.
"""

from asyncio import Future
from typing import Any

from mainstem.broker.answers import then
from mainstem.broker.groups.errors import UnknownMember
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code

log = get_logger()


@handler(13)
def leave_group(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]] | dict[str, Any]":
    ctx.check(READ, GROUP, request.group_id)
    if ctx.version < 3:
        left = ctx.broker.groups.classic.leave(request.group_id, [(request.member_id, None)])
        return then(left, lambda codes: {"error_code": codes[0]})
    members = [(member.member_id, member.group_instance_id) for member in request.members]
    for member in request.members:
        if getattr(member, "reason", None):
            log.debug("leave_group", group=request.group_id, member_id=member.member_id, reason=member.reason)
    try:
        left = ctx.broker.groups.classic.leave(request.group_id, members)
    except UnknownMember:  # no such group: Kafka says so of each member
        return _fields(members, [Code.unknown_member_id] * len(members))
    return then(left, lambda codes: _fields(members, codes))


def _fields(members: list[tuple[str, str | None]], codes: list[Code]) -> dict[str, Any]:
    return {
        "error_code": Code.none,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(members, codes, strict=True)
        ],
    }
