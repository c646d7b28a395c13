"""DeleteAcls, API 31, versions 1-3 (KIP-140, KIP-290).

Behaviour: the entries that each filter means are removed, and told; durable when answered. Where the log has no
authorizer it is SECURITY_DISABLED.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security import acls
from mainstem.wire.errors import Code, RequestError


@handler(31, failure=lambda request, code: {"filter_results": [{"error_code": code} for _ in request.filters]})
async def delete_acls(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(acls.ALTER, acls.CLUSTER, acls.THE_CLUSTER)
    authorizer = ctx.broker.authorizer
    if authorizer is None:
        raise RequestError(Code.security_disabled, "No Authorizer is configured on the broker.")
    results: list[dict[str, Any]] = []
    gone: list[acls.Acl] = []
    for each in request.filters:
        try:
            wanted = acls.filter_of(each).check()
        except RequestError as error:
            results.append({"error_code": error.code, "error_message": str(error)})
            continue
        meant = [acl for acl in authorizer if wanted.means(acl)]
        gone += meant
        results.append({"error_code": Code.none, "matching_acls": [acls.described(acl) for acl in meant]})
    await authorizer.remove(gone)
    return {"filter_results": results}
