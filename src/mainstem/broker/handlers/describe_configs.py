"""DescribeConfigs, API 32, versions 1-4.

Behaviour: every setting with its value and where it comes from, for topics, for the broker and for groups; a list of
names that is empty means every setting, as null does. A group need not be there. Client metrics and loggers have no
settings. What is asked for many times is told once. 1: synonyms. 3: types, documentation.
"""

from typing import Any

from mainstem.broker import configs
from mainstem.broker.dynamic_settings import ALL_BROKERS
from mainstem.broker.groups.settings import SETTINGS
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.pieces import Pieces
from mainstem.broker.security.acls import CLUSTER, DESCRIBE_CONFIGS, GROUP, THE_CLUSTER, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of


def all_refused(request: Any, code: int) -> list[dict[str, Any]]:
    """The code, for each resource of a request for settings or of one that changes them."""
    return [
        {"resource_type": each.resource_type, "resource_name": each.resource_name, "error_code": code}
        for each in request.resources
    ]


@handler(32, failure=lambda request, code: {"results": all_refused(request, code)})
async def describe_configs(request: Any, ctx: RequestContext) -> dict[str, Any] | None:
    asked = {(each.resource_type, each.resource_name): each for each in request.resources}
    with_documentation = getattr(request, "include_documentation", False)
    with Pieces(ctx, "results") as results:
        for each in asked.values():
            result = _describe(ctx, each, with_synonyms=request.include_synonyms)
            if with_documentation:
                result["configs"] = [_documented(each) for each in result.get("configs", ())]
            if not await results.add(result):
                return None
    return {"results": results.encoded}


def _documented(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "documentation": configs.documentation(entry["name"])}


def check_configs(ctx: RequestContext, operation: int, kind: int, name: str) -> None:
    """Refuse who may not see, or change, settings; those of all but topics and groups are the cluster's.

    Raises:
        NotAllowed: told of the kind of resource.
    """
    if kind == configs.TOPIC:
        ctx.check(operation, TOPIC, name)
    elif kind == configs.GROUP:
        ctx.check(operation, GROUP, name)
    else:
        ctx.check(operation, CLUSTER, THE_CLUSTER)


def _describe(ctx: RequestContext, asked: Any, *, with_synonyms: bool) -> dict[str, Any]:
    which = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        check_configs(ctx, DESCRIBE_CONFIGS, asked.resource_type, asked.resource_name)
        entries = _entries(ctx, asked.resource_type, asked.resource_name)
    except MainstemError as error:
        return {**which, "error_code": code_of(error), "error_message": str(error)}
    keys = frozenset(asked.configuration_keys or ())
    chosen = [each for each in entries if not keys or each["name"] in keys]
    return {**which, "configs": chosen if with_synonyms else [{**each, "synonyms": []} for each in chosen]}


def _entries(ctx: RequestContext, kind: int, name: str) -> list[dict[str, Any]]:
    config = ctx.broker.config
    if kind == configs.TOPIC:
        ctx.broker.topics.check_name(name)
        topic = ctx.broker.topics.by_name(name)
        dynamic = None if topic.internal else ctx.broker.dynamic
        return configs.describe_topic_configs(topic.logs[0].config, topic.config, dynamic)
    if kind == configs.BROKER:
        if name == ALL_BROKERS:
            return configs.describe_all_brokers(ctx.broker.dynamic)
        ctx.broker.dynamic.of(name)  # raises where there is no such broker
        return configs.describe_broker_configs(config, ctx.broker.dynamic)
    if kind == configs.GROUP:
        if not name:
            raise RequestError(Code.invalid_request, "there are no settings for all groups: name one")
        settings = ctx.broker.groups.settings
        return configs.describe_group_configs(
            {one: settings.default(one) for one in SETTINGS}, settings.overrides(name)
        )
    if kind == configs.CLIENT_METRICS or (kind == configs.BROKER_LOGGER and name == str(config.node_id)):
        return []
    raise RequestError(Code.invalid_request, f"resource type {kind} has no settings here")
