"""DescribeProducers, API 61, version 0 (KIP-664).

Behaviour: every producer that a partition remembers, and where its open transaction begins: how one finds a transaction
that hangs. A partition that is asked for many times is told once.
"""

from typing import Any

from mainstem.broker.errors import UnknownTopicOrPartition
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import READ, TOPIC
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code


@handler(61)
def describe_producers(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return {
        "topics": [
            {
                "name": name,
                "partitions": [_partition(TopicPartition(name, index), ctx) for index in indexes],
            }
            for name, indexes in asked.items()
        ]
    }


def _partition(partition: TopicPartition, ctx: RequestContext) -> dict[str, Any]:
    if not ctx.may(READ, TOPIC, partition.topic):
        return {"partition_index": partition.partition, "error_code": Code.topic_authorization_failed}
    try:
        log = ctx.broker.partition(partition)
    except UnknownTopicOrPartition as error:
        return {
            "partition_index": partition.partition,
            "error_code": Code.unknown_topic_or_partition,
            "error_message": str(error),
        }
    return {
        "partition_index": partition.partition,
        "error_code": Code.none,
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.transaction_first_offset,
            }
            for producer in log.producers()
        ],
    }
