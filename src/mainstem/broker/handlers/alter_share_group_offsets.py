"""AlterShareGroupOffsets, API 91, version 0 (KIP-932).

Behaviour: where a group without members reads on; what it had done from there on is forgotten. A group that is not
there is made. Durable when answered. An offset may lie beyond the end of the partition; a negative one is where the
group's settings say, when the partition is next read. Of several offsets for one partition the last counts.
"""

from typing import Any

from mainstem.broker.answers import partition_exists
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ, TOPIC
from mainstem.core import MainstemError, TopicPartition
from mainstem.wire.errors import Code, RequestError, code_of


@handler(91, 0, 0)
async def alter_share_group_offsets(request: Any, ctx: RequestContext) -> dict[str, Any]:
    group_id = request.group_id
    ctx.check(READ, GROUP, group_id)
    if not group_id:
        raise GroupError(Code.invalid_group_id, group_id, "a group id is not empty")
    topics: dict[str, list[Any]] = {}
    for each in request.topics:
        topics.setdefault(each.topic_name, []).extend(each.partitions)
    asked = {TopicPartition(name, each.partition_index): each.start_offset for name in topics for each in topics[name]}
    failed: dict[TopicPartition, MainstemError | None] = {each: _refusal(each, ctx) for each in asked}
    ids = {name: None if (topic := ctx.broker.topics.get(name)) is None else topic.topic_id for name in topics}
    keys = {
        PartitionKey(group_id, topic_id, each.partition): each
        for each, refusal in failed.items()
        if refusal is None and (topic_id := ids[each.topic]) is not None
    }
    offsets = {key: asked[each] for key, each in keys.items()}
    for key, error in (await ctx.broker.groups.share.set_offsets(group_id, offsets)).items():
        failed[keys[key]] = error
    return {
        "error_code": Code.none,
        "responses": [
            {
                "topic_name": name,
                "topic_id": ids[name] if ctx.may(READ, TOPIC, name) else None,
                "partitions": [
                    _answer(each.partition_index, failed[TopicPartition(name, each.partition_index)])
                    for each in topics[name]
                ],
            }
            for name in topics
        ],
    }


def _refusal(partition: TopicPartition, ctx: RequestContext) -> RequestError | None:
    if not ctx.may(READ, TOPIC, partition.topic):
        return RequestError(Code.topic_authorization_failed, "Topic authorization failed.")
    if not partition_exists(ctx.broker.topics, partition):
        return RequestError(Code.unknown_topic_or_partition, "This server does not host this topic-partition.")
    return None


def _answer(number: int, error: MainstemError | None) -> dict[str, Any]:
    if error is None:
        return {"partition_index": number, "error_code": Code.none}
    return {"partition_index": number, "error_code": code_of(error), "error_message": str(error)}
