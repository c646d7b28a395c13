"""ShareGroupDescribe, API 77, version 1 (KIP-932).

Behaviour: epochs and members of share groups, with what each reads. Groups of other protocols are GROUP_ID_NOT_FOUND,
as groups that are not there. One that is asked for many times is told once.
"""

from typing import Any, Final

from mainstem.broker.group_descriptions import Description
from mainstem.broker.groups.share.group import ShareGroup
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.consumer_group_describe import assignment

_ASSIGNOR: Final = "simple"


@handler(77, failure=lambda request, code: _DESCRIPTION.all_missing(request, code, ""))
async def share_group_describe(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return await _DESCRIPTION.answer(request, ctx, ctx.broker.groups.share)


def _described(group: ShareGroup) -> dict[str, Any]:
    return {
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": _ASSIGNOR,
        "members": [_member(member_id, group) for member_id in group.members],
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


_DESCRIPTION: Final[Description[ShareGroup]] = Description(
    _described, lambda group: group.subscribed_topics, {"assignor_name": ""}
)
