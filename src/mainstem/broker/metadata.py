"""What several APIs say about topics, partitions and permissions, in one place."""

from typing import TYPE_CHECKING, Any, Final

from mainstem.broker.security.acls import CLUSTER, DESCRIBE, THE_CLUSTER, TOPIC
from mainstem.broker.topics import Topic
from mainstem.log import PartitionLog

if TYPE_CHECKING:
    from mainstem.broker.handlers import RequestContext
    from mainstem.broker.server import Broker

NOT_ASKED: Final = -(2**31)
"""Authorized operations that the client did not ask for."""


def cluster_operations(ctx: "RequestContext", *, asked: bool) -> int:
    """What the client may do to the cluster, where it has asked."""
    if not asked:
        return NOT_ASKED
    return ctx.operations(CLUSTER, THE_CLUSTER) if ctx.may(DESCRIBE, CLUSTER, THE_CLUSTER) else 0


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


def describe_topic(ctx: "RequestContext", topic: Topic, *, with_operations: bool) -> dict[str, Any]:
    """One topic, as Metadata lists them."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(ctx.broker, index, each) for index, each in enumerate(topic.logs)],
        "topic_authorized_operations": ctx.operations(TOPIC, topic.name) if with_operations else NOT_ASKED,
    }
