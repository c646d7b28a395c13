"""DescribeAcls, API 29, versions 1-3 (KIP-140, KIP-290).

Behaviour: the entries that a filter means, by resource. Where the log has no authorizer it is SECURITY_DISABLED.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security import acls
from mainstem.wire.errors import Code, RequestError


@handler(29)
def describe_acls(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(acls.DESCRIBE, acls.CLUSTER, acls.THE_CLUSTER)
    authorizer = ctx.broker.authorizer
    if authorizer is None:
        raise RequestError(Code.security_disabled, "No Authorizer is configured on the broker")
    wanted = acls.filter_of(request).check()
    resources: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for acl in authorizer:
        if wanted.means(acl):
            fields = acls.described(acl)
            resource = (fields.pop("resource_type"), fields.pop("resource_name"), fields.pop("pattern_type"))
            resources.setdefault(resource, []).append(fields)
    return {
        "error_code": Code.none,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": entries}
            for (kind, name, pattern), entries in resources.items()
        ],
    }
