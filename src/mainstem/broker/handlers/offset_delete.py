"""OffsetDelete, API 47, version 0 (KIP-496).

Behaviour: offsets of topics that the group does not read are forgotten, durably; of a topic that it reads, the code is
GROUP_SUBSCRIBED_TO_TOPIC. A group of another type than `consumer` must be empty.
"""

from typing import Any

from mainstem.broker.answers import by_topic, partition_exists
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DELETE, GROUP, READ, TOPIC
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code, RequestError


@handler(47)
async def offset_delete(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked = [TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    ctx.check(DELETE, GROUP, request.group_id)
    if not request.group_id:
        raise RequestError(Code.invalid_group_id, "the group id is empty")
    hidden = {partition for partition in asked if not ctx.may(READ, TOPIC, partition.topic)}
    known = [each for each in asked if each not in hidden and partition_exists(ctx.broker.topics, each)]
    codes = await ctx.broker.groups.delete_offsets(request.group_id, known)
    codes |= dict.fromkeys(hidden, Code.topic_authorization_failed)
    answers = [(partition, codes.get(partition, Code.unknown_topic_or_partition)) for partition in asked]
    return {
        "error_code": Code.none,
        "topics": by_topic(answers, name="name", partitions="partitions", index="partition_index", code="error_code"),
    }
