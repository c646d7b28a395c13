"""ListConfigResources, API 74, versions 0-1 (KIP-714, KIP-1142).

Behaviour: what has settings: topics, the broker, and groups for which any are set, whether they are there or not.
Client metrics, of which version 0 asks alone, have none. A kind that does not exist is UNSUPPORTED_VERSION, as Kafka
has it.
"""

from typing import Any, Final

from mainstem.broker import configs
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE_CONFIGS, THE_CLUSTER
from mainstem.wire.errors import Code, RequestError

_KINDS: Final = (configs.TOPIC, configs.BROKER, configs.BROKER_LOGGER, configs.CLIENT_METRICS, configs.GROUP)


@handler(74)
def list_config_resources(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DESCRIBE_CONFIGS, CLUSTER, THE_CLUSTER)
    asked = getattr(request, "resource_types", (configs.CLIENT_METRICS,)) or _KINDS
    for kind in asked:
        if kind not in _KINDS:
            raise RequestError(Code.unsupported_version, f"resource type {kind} does not exist")
    node = str(ctx.broker.config.node_id)
    found = [(node, kind) for kind in (configs.BROKER_LOGGER, configs.BROKER) if kind in asked]
    if configs.TOPIC in asked:
        found += [(topic.name, configs.TOPIC) for topic in ctx.broker.topics]
    if configs.GROUP in asked:
        found += [(group_id, configs.GROUP) for group_id in ctx.broker.groups.settings]
    return {
        "error_code": Code.none,
        "config_resources": [{"resource_name": name, "resource_type": kind} for name, kind in found],
    }
