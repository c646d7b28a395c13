"""CreateTopics, API 19, versions 2-7.

Behaviour: durable when answered. The replication factor is -1 or 1 and assignments name this node: it is the only one.
`max_replication_factor` lets clients ask for more replicas; the answer says that there is one.
-1 partitions means `num_partitions`. A request for more than 10,000 of all its topics together makes none, as in Kafka.
5: the answer tells the settings (KIP-525). 7: the topic id.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from mainstem.broker.config import MOST_PARTITIONS
from mainstem.broker.configs import describe_topic_configs
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.pieces import AT_ONCE, Pieces
from mainstem.broker.security.acls import CLUSTER, CREATE, DESCRIBE_CONFIGS, THE_CLUSTER, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of

CLUSTER_METADATA: Final = "__cluster_metadata"
"""Kafka's own: here there is none, and nobody makes one."""
TOO_MANY: Final = "Excessively large number of partitions per request."
"""Kafka's words; for more than `MOST_PARTITIONS` of all topics of a request together."""
_FIRST_STRICT: Final = 6


@handler(19, failure=lambda request, code: {"topics": [_refused(t.name, code, None) for t in request.topics]})
async def create_topics(request: Any, ctx: RequestContext) -> dict[str, Any] | None:
    times = Counter(topic.name for topic in request.topics)
    named_once = [each for each in request.topics if times[each.name] == 1 and each.name != CLUSTER_METADATA]
    if await _count_new(named_once, ctx) > MOST_PARTITIONS:
        return {"topics": [_refused(name, Code.policy_violation, TOO_MANY) for name in times]}
    with Pieces(ctx, "topics") as answers:
        for name, asked in {topic.name: topic for topic in request.topics}.items():
            try:
                if times[name] > 1:
                    raise RequestError(Code.invalid_request, f"topic {name!r} is asked for {times[name]} times")
                if name == CLUSTER_METADATA:
                    raise RequestError(Code.invalid_request, f"Creation of internal topic {name} is prohibited.")
                check_create(ctx, name)
                answer = await _create(asked, ctx, validate_only=request.validate_only)
            except MainstemError as error:
                answer = _refused(name, code_of(error), str(error))
            if not await answers.add(answer) and request.validate_only:
                return None
    return {"topics": answers.encoded}


def check_create(ctx: RequestContext, name: str) -> None:
    """Refuse who may create neither all topics nor this one.

    Raises:
        NotAllowed: told of the topic.
    """
    if not ctx.may(CREATE, CLUSTER, THE_CLUSTER):
        ctx.check(CREATE, TOPIC, name)


async def _count_new(topics: list[Any], ctx: RequestContext) -> int:
    """Partitions of those that the client may create, whatever else may be wrong of them, as Kafka counts."""
    all_topics, count = ctx.may(CREATE, CLUSTER, THE_CLUSTER), 0
    for number, each in enumerate(topics, start=1):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        if all_topics or ctx.may(CREATE, TOPIC, each.name):
            default = ctx.broker.config.num_partitions if each.num_partitions == -1 else 0
            count += len(each.assignments) or max(each.num_partitions, default)
    return count


def _refused(name: str, code: int, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message, "num_partitions": -1, "replication_factor": -1}


async def _create(asked: Any, ctx: RequestContext, *, validate_only: bool) -> dict[str, Any]:
    topics = ctx.broker.topics
    count = _partition_count(asked, ctx)
    config = read_configs(asked.configs)
    topics.check_new(asked.name, count, config)
    ctx.mutate(count, strict=ctx.version >= _FIRST_STRICT)  # as in Kafka, where nothing is to be made, too
    topic_id = None if validate_only else (await topics.create(asked.name, count, config)).topic_id
    if not ctx.may(DESCRIBE_CONFIGS, TOPIC, asked.name):
        hidden = {"topic_config_error_code": Code.topic_authorization_failed}
        return {"name": asked.name, "topic_id": topic_id, "num_partitions": -1, "replication_factor": -1, **hidden}
    return {
        "name": asked.name,
        "topic_id": topic_id,
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [
            {name: each[name] for name in ("name", "value", "read_only", "config_source", "is_sensitive")}
            for each in describe_topic_configs(topics.settings_of(config), config, ctx.broker.dynamic)
        ],
    }


def read_configs(configs: Any) -> dict[str, str]:
    """Name to value; a null value means the default, so it is left out."""
    values: Mapping[str, str | None] = {each.name: each.value for each in configs}
    return {name: value for name, value in values.items() if value is not None}


def _partition_count(asked: Any, ctx: RequestContext) -> int:
    """The number of partitions, after the check of where they shall be."""
    node = ctx.broker.config.node_id
    if asked.assignments:
        if asked.num_partitions != -1 or asked.replication_factor != -1:
            raise RequestError(Code.invalid_request, "give assignments, or a partition count and replication factor")
        if sorted(each.partition_index for each in asked.assignments) != list(range(len(asked.assignments))):
            raise RequestError(Code.invalid_replica_assignment, "assignments must name partitions 0, 1, ... once each")
        if any(tuple(each.broker_ids) != (node,) for each in asked.assignments):
            raise RequestError(Code.invalid_replica_assignment, f"the only broker is {node}")
        return len(asked.assignments)
    most = ctx.broker.config.max_replication_factor
    if asked.replication_factor != -1 and not 1 <= asked.replication_factor <= most:
        raise RequestError(
            Code.invalid_replication_factor,
            f"replication factor {asked.replication_factor}, there is 1 broker and max_replication_factor is {most}",
        )
    return ctx.broker.config.num_partitions if asked.num_partitions == -1 else int(asked.num_partitions)
