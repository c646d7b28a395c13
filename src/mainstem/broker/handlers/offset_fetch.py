"""OffsetFetch, API 9, versions 1-10.

Behaviour: what is committed and durable. A partition without a committed offset has offset -1; a group that is not
there has none at all. With `require_stable` (KIP-447), a partition whose offset an open transaction may still change is
UNSTABLE_OFFSET_COMMIT: the consumer asks again. A group that is asked for many times is told once: the answer could be
any number of times the request.

2: null topics: everything the group has. 5: leader epoch. 7: require_stable. 8: several groups. 9: member id and epoch,
which a group of the consumer protocol checks. 10: topic ids.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, GROUP, TOPIC
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code


def _failure(request: Any, code: int) -> dict[str, Any]:
    """Before version 2 there is no code but that of a partition."""
    topics = [
        {"name": topic.name, "partitions": [_partition(number, None, Code(code)) for number in topic.partition_indexes]}
        for topic in getattr(request, "topics", None) or ()
    ]
    return {"error_code": code, "topics": topics}


@handler(9, failure=_failure)
async def offset_fetch(request: Any, ctx: RequestContext) -> dict[str, Any]:
    stable = getattr(request, "require_stable", False)
    if ctx.version >= 8:
        groups: list[dict[str, Any]] = []
        for group in {each.group_id: each for each in request.groups}.values():
            if groups:
                await asyncio.sleep(0)  # who asks for thousands lets others have their turns
            groups.append(_group(group, ctx, stable))
        return {"groups": groups}
    ctx.check(DESCRIBE, GROUP, request.group_id)
    ctx.broker.groups.storage.check_read(request.group_id)
    return {"error_code": Code.none, "topics": _topics(request, ctx, stable)}


def _group(request: Any, ctx: RequestContext, stable: bool) -> dict[str, Any]:
    if not ctx.may(DESCRIBE, GROUP, request.group_id):
        return {"group_id": request.group_id, "error_code": Code.group_authorization_failed}
    group = ctx.broker.groups.groups.get(request.group_id)
    try:
        ctx.broker.groups.storage.check_read(request.group_id)
        if group is not None:
            group.check_fetch(getattr(request, "member_id", None), getattr(request, "member_epoch", -1))
    except GroupError as error:
        return {"group_id": request.group_id, "error_code": error.code, "topics": []}
    return {"group_id": request.group_id, "error_code": Code.none, "topics": _topics(request, ctx, stable)}


def _topics(request: Any, ctx: RequestContext, stable: bool) -> list[dict[str, Any]]:
    if request.topics is None:
        everything: dict[str, list[int]] = {}
        for partition in ctx.broker.groups.offsets.of_group(request.group_id):
            everything.setdefault(partition.topic, []).append(partition.partition)
        return [
            _topic(request.group_id, name, numbers, ctx, stable)
            for name, numbers in everything.items()
            if ctx.may(DESCRIBE, TOPIC, name)
            if ctx.version < 10 or ctx.broker.topics.get(name) is not None
        ]
    answers = []
    for topic in request.topics:
        if ctx.version < 10:
            answers.append(_topic(request.group_id, topic.name, topic.partition_indexes, ctx, stable))
            continue
        found = ctx.broker.topics.get_by_id(topic.topic_id)
        if found is None:
            unknown = [_partition(number, None, Code.unknown_topic_id) for number in topic.partition_indexes]
            answers.append({"topic_id": topic.topic_id, "partitions": unknown})
        else:
            answers.append(_topic(request.group_id, found.name, topic.partition_indexes, ctx, stable))
    return answers


def _topic(group_id: str, name: str, numbers: Iterable[int], ctx: RequestContext, stable: bool) -> dict[str, Any]:
    offsets = ctx.broker.groups.offsets
    partitions = []
    hidden = not ctx.may(DESCRIBE, TOPIC, name)
    for number in numbers:
        partition = TopicPartition(name, number)
        if hidden:
            partitions.append(_partition(number, None, Code.topic_authorization_failed))
        elif stable and offsets.is_unstable(group_id, partition):
            partitions.append(_partition(number, None, Code.unstable_offset_commit))
        else:
            partitions.append(_partition(number, offsets.get(group_id, partition), Code.none))
    if ctx.version < 10:
        return {"name": name, "partitions": partitions}
    return {"topic_id": ctx.broker.topics.by_name(name).topic_id, "partitions": partitions}


def _partition(number: int, value: OffsetValue | None, code: Code) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": -1 if value is None else value.offset,
        "committed_leader_epoch": -1 if value is None else value.leader_epoch,
        "metadata": "" if value is None else value.metadata,
        "error_code": code,
    }
