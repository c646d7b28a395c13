"""DescribeQuorum, API 55, versions 0-2 (KIP-595, KIP-853).

Behaviour: the quorum that keeps the metadata is the one node; what Kafka calls `__cluster_metadata` is our own
partition of metadata. 1: times. 2: messages, directories, and where the voters are.
"""

from typing import Any, Final

from mainstem.broker.facts import METADATA
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE, THE_CLUSTER
from mainstem.wire.errors import Code

_NAME: Final = "__cluster_metadata"


@handler(55)
def describe_quorum(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DESCRIBE, CLUSTER, THE_CLUSTER)
    asked = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
    listener = ctx.connection.listener
    node = {
        "node_id": ctx.broker.config.node_id,
        "listeners": [{"name": listener.name.upper(), "host": listener.host, "port": listener.port}],
    }
    return {
        "error_code": Code.none,
        "error_message": "",
        "topics": [{"topic_name": name, "partitions": [_partition(ctx, name, number)]} for name, number in asked],
        "nodes": [node] if (_NAME, 0) in asked else [],
    }


def _partition(ctx: RequestContext, name: str, number: int) -> dict[str, Any]:
    if (name, number) != (_NAME, 0):
        message = "This server does not host this topic-partition."
        missing = {"error_code": Code.unknown_topic_or_partition, "error_message": message, "leader_id": 0}
        return {"partition_index": number, "leader_epoch": 0, "high_watermark": 0, **missing}
    store, now = ctx.broker.log.partitions[METADATA], ctx.broker.clock.now_ms()
    voter = {
        "replica_id": ctx.broker.config.node_id,
        "replica_directory_id": None,
        "log_end_offset": store.log_end_offset,
        "last_fetch_timestamp": now,
        "last_caught_up_timestamp": now,
    }
    return {
        "partition_index": number,
        "error_code": Code.none,
        "error_message": "",
        "leader_id": ctx.broker.config.node_id,
        "leader_epoch": store.leader_epoch,
        "high_watermark": store.high_watermark,
        "current_voters": [voter],
        "observers": [],
    }
