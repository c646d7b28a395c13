"""CreateAcls, API 30, versions 1-3 (KIP-140, KIP-290).

Behaviour: each entry for itself; durable when answered, in effect from the next request on. One that is there already
is no error. Where the log has no authorizer it is SECURITY_DISABLED.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security import acls
from mainstem.wire.errors import Code, RequestError


@handler(30, failure=lambda request, code: {"results": [{"error_code": code} for _ in request.creations]})
async def create_acls(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(acls.ALTER, acls.CLUSTER, acls.THE_CLUSTER)
    authorizer = ctx.broker.authorizer
    results: list[dict[str, Any]] = []
    good: list[acls.Acl] = []
    for each in request.creations:
        acl = acls.Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        if authorizer is None:
            message = "No Authorizer is configured on the broker."
            results.append({"error_code": Code.security_disabled, "error_message": message})
            continue
        try:
            acls.check_acl(acl)
        except RequestError as error:
            results.append({"error_code": error.code, "error_message": str(error)})
        else:
            good.append(acl)
            results.append({"error_code": Code.none})
    if authorizer is not None:
        await authorizer.add(good)
    return {"results": results}
