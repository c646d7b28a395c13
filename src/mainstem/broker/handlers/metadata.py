"""Metadata, API 3, versions 0-13.

Behaviour: the one node and the topics that were asked for, or all. A topic that does not exist is created where the
request and `auto_create_topics_enable` allow it, and the answer already has it (Kafka's first answer is an error). Of
topics with more than 10,000 partitions together none is created, as in Kafka: each is unknown. A topic that is asked
for many times is described once, as in Kafka: the answer could be any number of times the request.

1: null means all topics, an empty list none. 2: cluster id. 4: `allow_auto_topic_creation`. 7: leader epochs.
8: authorized operations. 10: topic ids in the answer. 12: topics by id. 13: top-level code, always 0.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from mainstem.broker.config import MOST_PARTITIONS
from mainstem.broker.errors import InvalidTopicName, TopicAlreadyExists
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.create_topics import CLUSTER_METADATA, TOO_MANY, check_create
from mainstem.broker.metadata import NOT_ASKED, cluster_operations, describe_node, describe_topic
from mainstem.broker.security.acls import DESCRIBE, TOPIC
from mainstem.broker.topics import COORDINATOR_TOPICS
from mainstem.core import MainstemError
from mainstem.core.logging import get_logger
from mainstem.wire.errors import Code, RequestError, code_of

_FIRST_BY_ID: Final = 12

log = get_logger()


def _failure(request: Any, code: int) -> dict[str, Any]:
    """Without a broker a client asks again; before version 13 there is no code but that of a topic."""
    topics = [
        {"name": each.name or "", "topic_id": getattr(each, "topic_id", None), "error_code": code}
        for each in request.topics or ()
    ]
    return {"error_code": code, "topics": topics, "brokers": []}


@handler(3, failure=_failure)
def metadata(request: Any, ctx: RequestContext) -> dict[str, Any] | Coroutine[Any, Any, dict[str, Any] | None]:
    if request.topics is None or (ctx.version == 0 and not request.topics):
        shown = [each.name for each in ctx.broker.topics if ctx.may(DESCRIBE, TOPIC, each.name)]
        return _answer(request, ctx, [_describe(request, ctx, name, None) for name in shown])
    if ctx.version < _FIRST_BY_ID and any(
        each.name is None or getattr(each, "topic_id", None) for each in request.topics
    ):
        raise RequestError(Code.invalid_request, f"version {ctx.version} asks for topics by name alone")
    asked = list({getattr(each, "topic_id", None) or each.name: each for each in request.topics}.values())
    missing = [each.name for each in asked if _may_create(request, ctx, each)]
    if missing:
        return _create_and_answer(request, ctx, asked, missing)
    return _answer(
        request, ctx, [_describe(request, ctx, each.name, getattr(each, "topic_id", None)) for each in asked]
    )


# Created by those who keep their state there, with settings that keep it: made by a client that only asks for them,
# they would lose what is older than a week.
_STATE = (*COORDINATOR_TOPICS, CLUSTER_METADATA, "_schemas")


def _may_create(request: Any, ctx: RequestContext, asked: Any) -> bool:
    allowed = getattr(request, "allow_auto_topic_creation", True) and ctx.broker.config.auto_create_topics_enable
    name = asked.name
    if not allowed or not name or name in _STATE or name.startswith("__mainstem."):
        return False
    return ctx.broker.topics.get(name) is None and ctx.may(DESCRIBE, TOPIC, name)


async def _create_and_answer(
    request: Any, ctx: RequestContext, asked: list[Any], missing: list[str]
) -> dict[str, Any] | None:
    failed: dict[str, Code] = {}
    partitions, creatable = ctx.broker.config.num_partitions, []
    # While the broker starts, groups may still have offsets of a topic of that name that was deleted.
    if not ctx.broker.all_is_read.done():
        await asyncio.wait([ctx.broker.all_is_read, ctx.broker.stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ctx.broker.all_is_read.done():
            missing = []  # the start is broken off, and waits for the answer: they are unknown
    for name in missing:
        try:
            check_create(ctx, name)
            ctx.broker.topics.check_name(name)
            creatable.append(name)
        except MainstemError as error:
            failed[name] = code_of(error)
    if len(creatable) * partitions > MOST_PARTITIONS:
        log.warning("topics_not_created", topics=len(creatable), client=ctx.client_host, reason=TOO_MANY)
        creatable = []
    for name in creatable:
        if ctx.connection.closed:
            return None
        try:
            ctx.mutate(partitions, strict=False)
            await ctx.broker.topics.create(name, partitions, {})
        except TopicAlreadyExists:  # another request was faster
            continue
        except MainstemError as error:
            failed[name] = code_of(error)
    return _answer(
        request,
        ctx,
        [
            {"error_code": failed[each.name], "name": each.name}
            if each.name in failed
            else _describe(request, ctx, each.name, getattr(each, "topic_id", None))
            for each in asked
        ],
    )


def _describe(request: Any, ctx: RequestContext, name: str | None, topic_id: Any) -> dict[str, Any]:
    topics = ctx.broker.topics
    with_operations = getattr(request, "include_topic_authorized_operations", False)
    if topic_id is not None:
        topic = topics.get_by_id(topic_id)
        if topic is not None and not ctx.may(DESCRIBE, TOPIC, topic.name):  # the name stays hidden
            return {"error_code": Code.topic_authorization_failed, "name": None, "topic_id": topic_id}
        if topic is None:
            return {"error_code": Code.unknown_topic_id, "name": None, "topic_id": topic_id}
    else:
        if not ctx.may(DESCRIBE, TOPIC, name or ""):
            return {"error_code": Code.topic_authorization_failed, "name": name or ""}
        topic = topics.get(name or "")
        if topic is None:
            operations = ctx.operations(TOPIC, name or "") if with_operations else NOT_ASKED
            missing = {"error_code": _why_missing(ctx, name or ""), "name": name or ""}
            return missing | {"topic_authorized_operations": operations}
    return describe_topic(ctx, topic, with_operations=with_operations)


def _why_missing(ctx: RequestContext, name: str) -> Code:
    try:
        ctx.broker.topics.check_name(name)
    except InvalidTopicName:
        return Code.invalid_topic_exception
    return Code.unknown_topic_or_partition


def _answer(request: Any, ctx: RequestContext, topics: list[dict[str, Any]]) -> dict[str, Any]:
    node = ctx.broker.config.node_id
    with_operations = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "brokers": [describe_node(ctx)],
        "cluster_id": ctx.broker.topics.cluster_id,
        "controller_id": node,
        "topics": topics,
        "cluster_authorized_operations": cluster_operations(ctx, asked=with_operations),
    }
