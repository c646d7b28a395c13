"""DescribeUserScramCredentials, API 50, version 0 (KIP-554).

Behaviour: which mechanisms a user has credentials for, and their iterations; never a key. Users of the settings are
not among them.
"""

from collections import Counter
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE, THE_CLUSTER
from mainstem.wire.errors import Code


@handler(50)
def describe_user_scram_credentials(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DESCRIBE, CLUSTER, THE_CLUSTER)
    users = ctx.broker.credentials.described()
    times = Counter(each.name for each in request.users or ()) or dict.fromkeys(users, 1)
    return {"results": [_described(user, users.get(user), count) for user, count in times.items()]}


def _described(user: str, kept: list[tuple[int, int]] | None, times: int) -> dict[str, Any]:
    code, message = Code.none, None
    if times > 1:
        code = Code.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif kept is None:
        code = Code.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return {
        "user": user,
        "error_code": code,
        "error_message": message,
        "credential_infos": []
        if code is not Code.none or kept is None
        else [{"mechanism": number, "iterations": iterations} for number, iterations in kept],
    }
