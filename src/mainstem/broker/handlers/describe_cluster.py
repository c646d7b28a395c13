"""DescribeCluster, API 60, versions 0-2.

Behaviour: the one node. 1: only brokers can be asked for, there are no controllers (KIP-919). 2: no broker is fenced.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.metadata import cluster_operations, describe_node
from mainstem.wire.errors import Code, RequestError

_BROKERS, _CONTROLLERS = 1, 2


@handler(60)
def describe_cluster(request: Any, ctx: RequestContext) -> dict[str, Any]:
    endpoints = getattr(request, "endpoint_type", _BROKERS)
    if endpoints not in (_BROKERS, _CONTROLLERS):
        raise RequestError(Code.unsupported_endpoint_type, f"endpoint type {endpoints}, expected {_BROKERS}")
    if endpoints != _BROKERS:
        raise RequestError(Code.mismatched_endpoint_type, "this is a broker; there are no controllers")
    node = describe_node(ctx)
    return {
        "cluster_id": ctx.broker.topics.cluster_id,
        "controller_id": node["node_id"],
        "brokers": [{"broker_id": node["node_id"], "host": node["host"], "port": node["port"]}],
        "cluster_authorized_operations": cluster_operations(ctx, asked=request.include_cluster_authorized_operations),
    }
