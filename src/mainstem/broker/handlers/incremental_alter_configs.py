"""IncrementalAlterConfigs, API 44, versions 0-1: set, delete, append to and subtract from settings of a topic (KIP-339).

Behaviour: durable when answered, in effect at once. The broker's own settings come from its start.
"""

from typing import Any

from mainstem.broker import configs
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.alter_configs import check_is_topic
from mainstem.core import MainstemError
from mainstem.log import TopicConfig
from mainstem.wire.errors import code_of


@handler(44, 0, 1, failure=lambda _request, _code: {"responses": []})
async def incremental_alter_configs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return {"responses": [await _alter(ctx, each, validate_only=request.validate_only) for each in request.resources]}


async def _alter(ctx: RequestContext, asked: Any, *, validate_only: bool) -> dict[str, Any]:
    which = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        check_is_topic(asked.resource_type)
        topic = ctx.broker.topics.by_name(asked.resource_name)
        changes = [(each.name, each.config_operation, each.value) for each in asked.configs]
        if validate_only:
            TopicConfig.from_kafka(configs.apply_operations(topic.config, changes))
        else:
            await ctx.broker.topics.set_config(topic, lambda current: configs.apply_operations(current, changes))
    except MainstemError as error:
        return {**which, "error_code": code_of(error), "error_message": str(error)}
    return which
