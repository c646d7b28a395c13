"""ListPartitionReassignments, API 46, version 0: there are none on one node; `kafka-topics --describe` asks."""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE, THE_CLUSTER


@handler(46)
def list_partition_reassignments(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DESCRIBE, CLUSTER, THE_CLUSTER)
    return {"topics": []}
