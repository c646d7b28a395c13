"""DescribeShareGroupOffsets, API 90, versions 0-1 (KIP-932).

Behaviour: from which record on each share partition is not done, durably. Null topics: every partition that the group
has state of, and that the client may see. Of what it has no state of, which may not even be there, the offset is -1, as
in Kafka; so it is before a partition is first read. A group that is asked for many times is told once.

1: the lag, which counts the records that are not done (KIP-1226); -1 where the offset is.
"""

from collections.abc import Iterable
from typing import Any

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.state import UNKNOWN, ShareState
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, GROUP, TOPIC
from mainstem.broker.topics import Topic
from mainstem.wire.errors import Code

_NOTHING = ShareState(start_offset=UNKNOWN)


@handler(90, failure=lambda request, code: {"groups": [_refused(each.group_id, code, None) for each in request.groups]})
async def describe_share_group_offsets(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked = {each.group_id: each for each in request.groups}
    return {"groups": [await _group(each, ctx) for each in asked.values()]}


async def _group(request: Any, ctx: RequestContext) -> dict[str, Any]:
    group_id = request.group_id
    if not ctx.may(DESCRIBE, GROUP, group_id):
        return _refused(group_id, Code.group_authorization_failed, None)
    try:
        await ctx.broker.groups.share.settled(group_id)
    except GroupError as error:
        return _refused(group_id, error.code, str(error))
    asked = _all(group_id, ctx) if request.topics is None else _named(request.topics)
    return {
        "group_id": group_id,
        "error_code": Code.none,
        "topics": [_topic(group_id, name, numbers, ctx) for name, numbers in asked.items()],
    }


def _refused(group_id: str, code: int, message: str | None) -> dict[str, Any]:
    return {"group_id": group_id, "topics": [], "error_code": code, "error_message": message}


def _all(group_id: str, ctx: RequestContext) -> dict[str, Iterable[int]]:
    group = ctx.broker.groups.share.get(group_id)
    return {
        each.topic: each.partitions
        for each in (() if group is None else group.state_partitions.initialized)
        if ctx.broker.topics.get_by_id(each.topic_id) is not None and ctx.may(DESCRIBE, TOPIC, each.topic)
    }


def _named(topics: Any) -> dict[str, Iterable[int]]:
    found: dict[str, dict[int, None]] = {}
    for topic in topics:
        found.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
    return dict(found)


def _topic(group_id: str, name: str, numbers: Iterable[int], ctx: RequestContext) -> dict[str, Any]:
    if not ctx.may(DESCRIBE, TOPIC, name):
        hidden = {"start_offset": UNKNOWN, "lag": UNKNOWN, "error_code": Code.topic_authorization_failed}
        partitions = [{"partition_index": number} | hidden for number in numbers]
        return {"topic_name": name, "topic_id": None, "partitions": partitions}
    topic = ctx.broker.topics.get(name)
    return {
        "topic_name": name,
        "topic_id": None if topic is None else topic.topic_id,
        "partitions": [_partition(group_id, topic, number, ctx) for number in numbers],
    }


def _partition(group_id: str, topic: Topic | None, number: int, ctx: RequestContext) -> dict[str, Any]:
    state, lag = _NOTHING, UNKNOWN
    if topic is not None and 0 <= number < len(topic.logs):
        key = PartitionKey(group_id, topic.topic_id, number)
        state = ctx.broker.groups.share.persister.get(key) or _NOTHING
        if state.start_offset != UNKNOWN:
            lag = topic.logs[number].high_watermark - state.start_offset - state.complete
    return {
        "partition_index": number,
        "start_offset": state.start_offset,
        "leader_epoch": state.leader_epoch,
        "lag": lag,
        "error_code": Code.none,
    }
