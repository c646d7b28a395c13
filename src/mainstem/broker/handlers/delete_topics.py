"""DeleteTopics, API 20, versions 1-6.

Behaviour: durable when answered. Who has the right to delete in the cluster may delete any topic. Internal topics are
kept: the coordinators could store nothing until the next start.

5: error messages. 6: topics by id.
"""

from collections import Counter
from typing import Any, Final

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DELETE, DESCRIBE, THE_CLUSTER, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of

_FIRST_STRICT: Final = 5


def _asked(request: Any) -> list[tuple[str | None, Any]]:
    """Name and topic id of each; from version 6 on one of them is null."""
    if hasattr(request, "topics"):
        return [(each.name, each.topic_id) for each in request.topics]
    return [(name, None) for name in request.topic_names]


def _failure(request: Any, code: int) -> dict[str, Any]:
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code}
            for name, topic_id in dict.fromkeys(_asked(request))
        ]
    }


@handler(20, failure=_failure)
async def delete_topics(request: Any, ctx: RequestContext) -> dict[str, Any]:
    asked = Counter(_asked(request))
    return {"responses": [await _delete(ctx, name, topic_id, asked) for name, topic_id in asked]}


async def _delete(
    ctx: RequestContext, name: str | None, topic_id: Any, asked: Counter[tuple[str | None, Any]]
) -> dict[str, Any]:
    topics = ctx.broker.topics
    try:
        if (times := asked[name, topic_id]) > 1:  # one answer: librdkafka cannot read two of the same name
            raise RequestError(Code.invalid_request, f"topic {name or topic_id!r} is asked for {times} times")
        if (name is None) == (topic_id is None):
            raise RequestError(Code.invalid_request, "name a topic by its name or by its id")
        may_all = ctx.may(DELETE, CLUSTER, THE_CLUSTER)
        if name is not None and not may_all:
            ctx.check(DESCRIBE, TOPIC, name)
        topic = topics.by_name(name) if name is not None else topics.by_id(topic_id)
        if not may_all:
            ctx.check(DESCRIBE, TOPIC, topic.name)
        name = topic.name
        if not may_all:
            ctx.check(DELETE, TOPIC, name)
        if (name, None) in asked and (None, topic.topic_id) in asked:
            raise RequestError(Code.invalid_request, f"topic {name!r} is asked for by its name and by its id")
        topics.check_not_internal(topic.name)
        ctx.mutate(len(topic.logs), strict=ctx.version >= _FIRST_STRICT)
        await topics.delete(topic)
        await ctx.broker.groups.forget_topic(topic.name)  # a new topic of that name starts without offsets
    except MainstemError as error:
        return {"name": name, "topic_id": topic_id, "error_code": code_of(error), "error_message": str(error)}
    return {"name": topic.name, "topic_id": topic.topic_id}
