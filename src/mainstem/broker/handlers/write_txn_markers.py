"""WriteTxnMarkers, API 27, versions 1-2.

Behaviour: a marker in each partition, durable when answered. Our coordinator writes its markers without it; it is here
for `kafka-transactions abort`, which ends a transaction that hangs (KIP-664).

2: the transaction version of the marker (KIP-1228), which changes nothing here: the epoch given is the one written.
"""

from typing import Any

from mainstem.broker.answers import by_topic
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, CLUSTER_ACTION, THE_CLUSTER
from mainstem.broker.transactions import Producer
from mainstem.core import MainstemError, TopicPartition
from mainstem.wire.errors import Code, code_of


def _failure(request: Any, code: int) -> dict[str, Any]:
    return {
        "markers": [
            _answer(
                marker,
                {
                    TopicPartition(topic.name, index): Code(code)
                    for topic in marker.topics
                    for index in topic.partition_indexes
                },
            )
            for marker in request.markers
        ]
    }


@handler(27, failure=_failure)
async def write_txn_markers(request: Any, ctx: RequestContext) -> dict[str, Any]:
    if not ctx.may(ALTER, CLUSTER, THE_CLUSTER):
        ctx.check(CLUSTER_ACTION, CLUSTER, THE_CLUSTER)
    return {"markers": [await _write(marker, ctx) for marker in request.markers]}


async def _write(marker: Any, ctx: RequestContext) -> dict[str, Any]:
    producer = Producer(marker.producer_id, marker.producer_epoch)
    codes: dict[TopicPartition, Code] = {}
    for topic in marker.topics:
        for index in topic.partition_indexes:
            partition = TopicPartition(topic.name, index)
            try:
                await ctx.broker.transactions.write_marker(
                    producer,
                    partition,
                    commit=marker.transaction_result,
                    coordinator_epoch=marker.coordinator_epoch,
                )
            except MainstemError as error:
                codes[partition] = code_of(error)
            else:
                codes[partition] = Code.none
    return _answer(marker, codes)


def _answer(marker: Any, codes: dict[TopicPartition, Code]) -> dict[str, Any]:
    topics = by_topic(codes.items(), name="name", partitions="partitions", index="partition_index", code="error_code")
    return {"producer_id": marker.producer_id, "topics": topics}
