"""DeleteShareGroupOffsets, API 92, version 0 (KIP-932).

Behaviour: a group without members forgets what it has read of topics, durably: it begins with them anew. A topic that
it has no state of is UNKNOWN_TOPIC_OR_PARTITION, as one that is not there. One that is named many times is told once.
"""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from mainstem.broker.groups.errors import GroupError
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.alter_share_group_offsets import HIDDEN, UNKNOWN
from mainstem.broker.security.acls import DELETE, GROUP, READ, TOPIC
from mainstem.wire.errors import Code, RequestError


@handler(92)
async def delete_share_group_offsets(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DELETE, GROUP, request.group_id)
    if not request.group_id:
        raise GroupError(Code.invalid_group_id, request.group_id, "a group id is not empty")
    groups = ctx.broker.groups.share
    group = groups.known(request.group_id)
    answers, doomed, known = [], [], group.topics_with_state
    for name in dict.fromkeys(each.topic_name for each in request.topics):
        try:
            topic_id = _topic_id(name, known, ctx)
        except RequestError as error:
            refused = {"topic_id": None, "error_code": error.code, "error_message": str(error)}
            answers.append({"topic_name": name, **refused})
        else:
            doomed.append(topic_id)
            answers.append({"topic_name": name, "topic_id": topic_id, "error_code": Code.none})
    await groups.delete_offsets(request.group_id, doomed)
    return {"error_code": Code.none, "responses": answers}


def _topic_id(name: str, known: Collection[UUID], ctx: RequestContext) -> UUID:
    """Of a topic that the group has state of."""
    if not ctx.may(READ, TOPIC, name):
        raise RequestError(Code.topic_authorization_failed, HIDDEN)
    topic = ctx.broker.topics.get(name)
    if topic is None:
        raise RequestError(Code.unknown_topic_or_partition, UNKNOWN)
    if topic.topic_id not in known:
        raise RequestError(Code.unknown_topic_or_partition, "There is no offset information to delete.")
    return topic.topic_id
