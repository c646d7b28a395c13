"""DescribeGroups, API 15, versions 0-6.

Behaviour: state, protocol and members; what members said about themselves and were assigned only while the group is
stable. A group that is not there is `Dead`, and from version 6 on GROUP_ID_NOT_FOUND (KIP-1043). One that is asked for
many times is told once. A group of another protocol is none of this API's: it is told as one that is not there.

3: authorized operations: without authorization, everything one can do to a group. 4: static members.
"""

from typing import Any, Final

from mainstem.broker.groups.classic.group import STABLE, ClassicGroup
from mainstem.broker.groups.classic.members import Member
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.membership import Group
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, GROUP
from mainstem.wire.errors import Code

_NOT_ASKED: Final = -(2**31)


@handler(15)
def describe_groups(request: Any, ctx: RequestContext) -> dict[str, Any]:
    groups, asked = ctx.broker.groups.groups, getattr(request, "include_authorized_operations", False)
    answers = []
    for group_id in dict.fromkeys(request.groups):
        if ctx.may(DESCRIBE, GROUP, group_id):
            try:
                ctx.broker.groups.storage.check_read(group_id)
            except GroupError as error:
                answers.append({"group_id": group_id, "error_code": error.code})
                continue
            operations = ctx.operations(GROUP, group_id) if asked else _NOT_ASKED
            answers.append(_described(group_id, groups.get(group_id), ctx.version, operations))
        else:
            answers.append({"group_id": group_id, "error_code": Code.group_authorization_failed})
    return {"groups": answers}


def _described(group_id: str, group: Group | None, version: int, operations: int) -> dict[str, Any]:
    if not isinstance(group, ClassicGroup):
        missing = {"group_id": group_id, "group_state": "Dead", "authorized_operations": _NOT_ASKED}
        if version < 6:
            return missing | {"error_code": Code.none, "authorized_operations": operations}
        message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        return missing | {"error_code": Code.group_id_not_found, "error_message": message}
    stable = group.state is STABLE
    return {
        "error_code": Code.none,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if stable else "",
        "members": [_member(member, group.protocol if stable else None) for member in group.members.values()],
        "authorized_operations": operations,
    }


def _member(member: Member, protocol: str | None) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": b"" if protocol is None else member.metadata(protocol),
        "member_assignment": b"" if protocol is None else member.assignment,
    }
