"""CreatePartitions, API 37, versions 0-3.

Behaviour: grows topics; durable when answered. Assignments, where given, name this node for every new partition.
A topic that is named twice is refused; so is an internal one: by the count of its partitions a coordinator finds a
group's or a transactional id's records. So is, with POLICY_VIOLATION, the topic with which a request has more than
10,000 new partitions, and those behind it: Kafka says UNKNOWN_SERVER_ERROR, and makes the first of that topic's.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from mainstem.broker.config import MOST_PARTITIONS
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.create_topics import TOO_MANY
from mainstem.broker.security.acls import ALTER, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of

_FIRST_STRICT: Final = 3


@handler(37, failure=lambda request, code: {"results": [{"name": t.name, "error_code": code} for t in request.topics]})
async def create_partitions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    times = Counter(each.name for each in request.topics)
    asked = {each.name: each for each in request.topics}
    new = 0

    def check_total(partitions: int) -> None:
        nonlocal new
        new += partitions
        if new > MOST_PARTITIONS:
            raise RequestError(Code.policy_violation, TOO_MANY)

    return {
        "results": [
            await _grow(ctx, each, check_total, times=times[name], validate_only=request.validate_only)
            for name, each in asked.items()
        ]
    }


async def _grow(
    ctx: RequestContext, asked: Any, check_total: Callable[[int], None], *, times: int, validate_only: bool
) -> dict[str, Any]:
    topics, node = ctx.broker.topics, ctx.broker.config.node_id
    try:
        if times > 1:
            raise RequestError(Code.invalid_request, f"topic {asked.name!r} {times} times")
        ctx.check(ALTER, TOPIC, asked.name)
        topic = topics.by_name(asked.name)
        topics.check_not_internal(asked.name)
        topics.check_growth(topic, asked.count)
        if asked.assignments:  # some clients send an empty list where others send null
            if len(asked.assignments) != asked.count - len(topic.logs):
                raise RequestError(
                    Code.invalid_replica_assignment,
                    f"{len(asked.assignments)} assignments for {asked.count - len(topic.logs)} new partitions",
                )
            if any(tuple(each.broker_ids) != (node,) for each in asked.assignments):
                raise RequestError(Code.invalid_replica_assignment, f"the only broker is {node}")
        check_total(asked.count - len(topic.logs))
        ctx.mutate(asked.count - len(topic.logs), strict=ctx.version >= _FIRST_STRICT)  # as in create_topics
        if not validate_only:
            await topics.add_partitions(topic, asked.count)
    except MainstemError as error:
        return {"name": asked.name, "error_code": code_of(error), "error_message": str(error)}
    return {"name": asked.name}
