"""DescribeTopicPartitions, API 75, version 0 (KIP-966): topics in the order of their names, in pages.

Behaviour: at most `response_partition_limit` partitions (and 2,000, one at least) per answer; the cursor names the next
one, of a topic that is asked for. There are no eligible leader replicas beyond the one replica.
"""

from typing import Any, Final

from mainstem.broker.errors import InvalidTopicName
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.metadata import describe_topic
from mainstem.broker.security.acls import DESCRIBE, TOPIC
from mainstem.wire.errors import Code, RequestError

_MOST_PARTITIONS: Final = 2_000


@handler(75, failure=lambda request, code: {"topics": [{"name": t.name, "error_code": code} for t in request.topics]})
def describe_topic_partitions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    limit = max(1, min(request.response_partition_limit, _MOST_PARTITIONS))
    names = {each.name for each in request.topics}
    first_name, first_partition = "", 0
    if request.cursor is not None:
        first_name, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0:
            raise RequestError(Code.invalid_request, f"cursor at partition {first_partition}, expected 0 or more")
        if names and first_name not in names:
            raise RequestError(Code.invalid_request, f"cursor at topic {first_name!r}, which is not asked for")
    if not names:
        names = {each.name for each in ctx.broker.topics if ctx.may(DESCRIBE, TOPIC, each.name)}
    topics: list[dict[str, Any]] = []
    for name in sorted(each for each in names if each >= first_name):
        if limit <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        described = _describe(ctx, name)
        start = first_partition if name == first_name else 0
        partitions = described.get("partitions", [])[start:]
        described["partitions"] = partitions[:limit]
        topics.append(described)
        if len(partitions) > limit:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": start + limit}}
        limit -= len(partitions)
    return {"topics": topics}


def _describe(ctx: RequestContext, name: str) -> dict[str, Any]:
    if not ctx.may(DESCRIBE, TOPIC, name):
        return {"error_code": Code.topic_authorization_failed, "name": name}
    topic = ctx.broker.topics.get(name)
    if topic is not None:
        described = describe_topic(ctx, topic, with_operations=True)
        described["partitions"] = [
            {**each, "eligible_leader_replicas": [], "last_known_elr": []} for each in described["partitions"]
        ]
        return described
    missing = {"name": name, "topic_authorized_operations": ctx.operations(TOPIC, name)}
    try:
        ctx.broker.topics.check_name(name)
    except InvalidTopicName:
        return {"error_code": Code.invalid_topic_exception, **missing}
    return {"error_code": Code.unknown_topic_or_partition, **missing}
