"""ShareGroupDescribe, API 77, version 1 (KIP-932).

Behaviour: epochs and members of share groups, with what each reads. Groups of other protocols are GROUP_ID_NOT_FOUND,
as groups that are not there. One that is asked for many times is told once.
"""

from typing import Any, Final

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.group import ShareGroup
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.consumer_group_describe import HIDDEN, assignment, missing
from mainstem.broker.metadata import NOT_ASKED
from mainstem.broker.security.acls import DESCRIBE, GROUP, TOPIC
from mainstem.wire.errors import Code

_ASSIGNOR: Final = "simple"


@handler(77, 1, 1, failure=lambda request, code: {"groups": [missing(each, code, "") for each in request.group_ids]})
async def share_group_describe(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked = request.include_authorized_operations
    return {"groups": [await _described(each, ctx, asked=asked) for each in dict.fromkeys(request.group_ids)]}


async def _described(group_id: str, ctx: RequestContext, *, asked: bool) -> dict[str, Any]:
    groups = ctx.broker.groups
    if not ctx.may(DESCRIBE, GROUP, group_id):
        return missing(group_id, Code.group_authorization_failed, None)
    if not group_id:
        return missing(group_id, Code.invalid_group_id, None)
    try:
        await groups.share.settled(group_id)
    except GroupError as error:
        return missing(group_id, error.code, str(error))
    group = groups.share.get(group_id)
    if group is None:
        reason = "not found" if group_id not in groups.groups else "is not a share group"
        return missing(group_id, Code.group_id_not_found, f"Group {group_id} {reason}.")
    if not all(ctx.may(DESCRIBE, TOPIC, name) for name in group.subscribed_topics):
        return missing(group_id, Code.topic_authorization_failed, HIDDEN)
    return {
        "error_code": Code.none,
        "group_id": group_id,
        "group_state": group.state_name,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": _ASSIGNOR,
        "members": [_member(member_id, group) for member_id in group.members],
        "authorized_operations": ctx.operations(GROUP, group_id) if asked else NOT_ASKED,
    }


def _member(member_id: str, group: ShareGroup) -> dict[str, Any]:
    member, current = group.members[member_id], group.current(member_id)
    return {
        "member_id": member_id,
        "rack_id": member.rack_id,
        "member_epoch": current.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topics),
        "assignment": assignment(current.assigned, group.topics),
    }
