"""DeleteGroups, API 42, versions 0-2.

Behaviour: each group once. A group without members is forgotten with all its offsets; durable when answered. One with
members is NON_EMPTY_GROUP, one that is not there GROUP_ID_NOT_FOUND.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DELETE, GROUP
from mainstem.wire.errors import Code, RequestError


@handler(42)
async def delete_groups(request: Any, ctx: RequestContext) -> dict[str, Any]:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        code = Code.none
        try:
            ctx.check(DELETE, GROUP, group_id)
            await ctx.broker.groups.delete_group(group_id)
        except RequestError as error:
            code = error.code
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}
