"""AlterPartitionReassignments, API 45, versions 0-1 (KIP-455).

Behaviour: every partition is on the one node and stays there: to say so again is no error, another assignment is. There
is no reassignment to cancel. 1: whether the number of replicas may change; it cannot.
"""

from typing import Any

from mainstem.broker.answers import partition_exists
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code


def _failure(request: Any, code: int) -> dict[str, Any]:
    """Told of each partition, too."""
    return {
        "error_code": code,
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


@handler(45, failure=_failure)
def alter_partition_reassignments(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    return {
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "responses": [
            {"name": topic.name, "partitions": [_result(ctx, topic.name, each) for each in topic.partitions]}
            for topic in request.topics
        ],
    }


def _result(ctx: RequestContext, name: str, asked: Any) -> dict[str, Any]:
    code, message = _refusal(ctx, TopicPartition(name, asked.partition_index), asked.replicas)
    return {"partition_index": asked.partition_index, "error_code": code, "error_message": message}


def _refusal(ctx: RequestContext, partition: TopicPartition, replicas: Any) -> tuple[Code, str | None]:
    """In Kafka's words."""
    node = ctx.broker.config.node_id
    if ctx.broker.topics.get(partition.topic) is None:
        return Code.unknown_topic_or_partition, f"Unable to find a topic named {partition.topic}."
    if not partition_exists(ctx.broker.topics, partition):
        found = f"Unable to find partition {partition.topic}:{partition.partition}."
        return Code.unknown_topic_or_partition, found
    if replicas is None:
        return Code.no_reassignment_in_progress, None
    assignment = "The manual partition assignment includes"
    if not replicas:
        return Code.invalid_replica_assignment, f"{assignment} an empty replica list."
    for broker in replicas:
        if broker != node:
            return Code.invalid_replica_assignment, f"{assignment} broker {broker}, but no such broker is registered."
    if len(replicas) > 1:
        return Code.invalid_replica_assignment, f"{assignment} the broker {node} more than once."
    return Code.none, None
