"""OffsetForLeaderEpoch, API 23, versions 2-4.

Behaviour: where a leader epoch ended, so that a consumer notices that records it has read were lost with the machine
(KIP-320). Who may act on the cluster, as another broker would, may ask for every topic.

2: the current leader epoch is checked. 3: replica id, not looked at.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.leadership import check_leader_epoch
from mainstem.broker.security.acls import CLUSTER, CLUSTER_ACTION, DESCRIBE, THE_CLUSTER, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import code_of


def _failure(request: Any, code: int) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [{"partition": each.partition, "error_code": code} for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


@handler(23, failure=_failure)
def offset_for_leader_epoch(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [_end_of_epoch(ctx, topic.topic, each) for each in topic.partitions]}
            for topic in request.topics
        ]
    }


def _end_of_epoch(ctx: RequestContext, name: str, asked: Any) -> dict[str, Any]:
    try:
        if not ctx.may(CLUSTER_ACTION, CLUSTER, THE_CLUSTER):
            ctx.check(DESCRIBE, TOPIC, name)
        partition_log = ctx.broker.topics.partition(name, asked.partition)
        check_leader_epoch(partition_log, asked.current_leader_epoch)
        epoch, end_offset = partition_log.end_offset_for_epoch(asked.leader_epoch)
    except MainstemError as error:
        return {"partition": asked.partition, "error_code": code_of(error)}
    return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}
