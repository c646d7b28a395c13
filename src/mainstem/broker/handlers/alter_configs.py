"""AlterConfigs, API 33, versions 0-2: replaces all that is set for a topic or a group. Deprecated in favour of API 44.

Behaviour: durable when answered, in effect at once. Of the broker those of
`broker.dynamic_settings` can be changed; the others come from its start. A resource that is named twice is refused.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

from mainstem.broker import configs
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.create_topics import read_configs
from mainstem.broker.handlers.describe_configs import all_refused, check_configs
from mainstem.broker.security.acls import ALTER_CONFIGS
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of


@handler(33, failure=lambda request, code: {"responses": all_refused(request, code)})
async def alter_configs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return await alter_settings(request, ctx, _replace)


def _replace(asked: Any, _: Mapping[str, str]) -> dict[str, str]:
    names = Counter(each.name for each in asked.configs)
    if len(names) < len(asked.configs):
        twice = ", ".join(name for name, count in names.items() if count > 1)
        raise RequestError(Code.invalid_request, f"Error due to duplicate config keys: {twice}")
    return read_configs(asked.configs)


async def alter_settings(
    request: Any, ctx: RequestContext, change: Callable[[Any, Mapping[str, str]], dict[str, str]]
) -> dict[str, Any]:
    """The answer, each resource for itself; `change(resource, present settings)` gives the settings to have."""
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    twice = {resource for resource, count in times.items() if count > 1}
    return {
        "responses": [
            await _alter(ctx, each, change, twice=twice, validate_only=request.validate_only)
            for each in request.resources
        ]
    }


async def _alter(
    ctx: RequestContext,
    asked: Any,
    change: Callable[[Any, Mapping[str, str]], dict[str, str]],
    *,
    twice: Set[tuple[int, str]],
    validate_only: bool,
) -> dict[str, Any]:
    which = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        if (asked.resource_type, asked.resource_name) in twice:
            raise RequestError(Code.invalid_request, f"the settings of {asked.resource_name!r} are given twice")
        check_configs(ctx, ALTER_CONFIGS, asked.resource_type, asked.resource_name)
        if asked.resource_type in (configs.GROUP, configs.BROKER):
            settings = ctx.broker.groups.settings if asked.resource_type == configs.GROUP else ctx.broker.dynamic
            name, only = asked.resource_name, validate_only
            await settings.change(name, lambda present: change(asked, present), validate_only=only)
            return which
        _check_is_topic(asked.resource_type)
        ctx.broker.topics.check_name(asked.resource_name)
        topic = ctx.broker.topics.by_name(asked.resource_name)
        if validate_only:
            ctx.broker.topics.check_config(topic, change(asked, topic.config))
        else:
            await ctx.broker.topics.set_config(topic, lambda present: change(asked, present))
    except MainstemError as error:
        return {**which, "error_code": code_of(error), "error_message": str(error)}
    return which


def _check_is_topic(kind: int) -> None:
    """Raise RequestError unless the resource is a topic."""
    if kind != configs.TOPIC:
        raise RequestError(Code.invalid_request, f"resource type {kind} has no settings to alter here")
