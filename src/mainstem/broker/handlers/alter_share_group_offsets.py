"""AlterShareGroupOffsets, API 91, version 0 (KIP-932).

Behaviour: where a group without members reads on; what it had done from there on is forgotten. A group that is not
there is made. Durable when answered. An offset may lie beyond the end of the partition; a negative one is where the
group's settings say, when the partition is next read. Of several offsets for one partition the last counts.
"""

from typing import Any

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of

UNKNOWN = "This server does not host this topic-partition."
HIDDEN = "Topic authorization failed."
"""In Kafka's words: tools show them."""


@handler(91)
async def alter_share_group_offsets(request: Any, ctx: RequestContext) -> dict[str, Any]:
    group_id = request.group_id
    ctx.check(READ, GROUP, group_id)
    if not group_id:
        raise GroupError(Code.invalid_group_id, group_id, "a group id is not empty")
    topics: dict[str, list[Any]] = {}
    for each in request.topics:
        topics.setdefault(each.topic_name, []).extend(each.partitions)
    hidden = {name for name in topics if not ctx.may(READ, TOPIC, name)}
    there = {name: None if name in hidden else ctx.broker.topics.get(name) for name in topics}
    offsets = {
        PartitionKey(group_id, topic.topic_id, each.partition_index): each.start_offset
        for name, topic in there.items()
        for each in topics[name]
        if topic is not None and 0 <= each.partition_index < len(topic.logs)
    }
    failed = await ctx.broker.groups.share.set_offsets(group_id, offsets)

    def outcome(name: str, number: int) -> MainstemError | None:
        if name in hidden:
            return RequestError(Code.topic_authorization_failed, HIDDEN)
        topic, unknown = there[name], RequestError(Code.unknown_topic_or_partition, UNKNOWN)
        return unknown if topic is None else failed.get(PartitionKey(group_id, topic.topic_id, number), unknown)

    return {
        "error_code": Code.none,
        "responses": [
            {
                "topic_name": name,
                "topic_id": None if topic is None else topic.topic_id,
                "partitions": [
                    _answer(each.partition_index, outcome(name, each.partition_index)) for each in topics[name]
                ],
            }
            for name, topic in there.items()
        ],
    }


def _answer(number: int, error: MainstemError | None) -> dict[str, Any]:
    if error is None:
        return {"partition_index": number, "error_code": Code.none}
    return {"partition_index": number, "error_code": code_of(error), "error_message": str(error)}
