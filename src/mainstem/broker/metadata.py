"""What several APIs say about topics, partitions and permissions, in one place."""

from typing import TYPE_CHECKING, Any, Final

from mainstem.broker.topics import Topic
from mainstem.log import PartitionLog

if TYPE_CHECKING:
    from mainstem.broker.handlers import RequestContext
    from mainstem.broker.server import Broker

NOT_ASKED: Final = -(2**31)
"""Authorized operations that the client did not ask for."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# Kafka's AclOperation numbers: 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action,
# 10 describe configs, 11 alter configs, 12 idempotent write. Without an authorizer everything is allowed.
TOPIC_OPERATIONS: Final = _bits(3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS: Final = _bits(5, 7, 8, 9, 10, 11, 12)


def describe_node(ctx: "RequestContext") -> dict[str, Any]:
    """The one node, as Metadata lists brokers, at the address of the listener that is asked."""
    listener = ctx.connection.listener
    return {"node_id": ctx.broker.config.node_id, "host": listener.host, "port": listener.port, "rack": None}


def describe_partition(broker: "Broker", index: int, partition_log: PartitionLog) -> dict[str, Any]:
    """One partition, as Metadata and DescribeTopicPartitions list them; the node is leader and only replica."""
    node = [broker.config.node_id]
    return {
        "partition_index": index,
        "leader_id": broker.config.node_id,
        "leader_epoch": partition_log.leader_epoch,
        "replica_nodes": node,
        "isr_nodes": node,
        "offline_replicas": node if partition_log.error is not None else [],
    }


def describe_topic(broker: "Broker", topic: Topic, *, with_operations: bool) -> dict[str, Any]:
    """One topic, as Metadata lists them."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(broker, index, each) for index, each in enumerate(topic.logs)],
        "topic_authorized_operations": TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    }
