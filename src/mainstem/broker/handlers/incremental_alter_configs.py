"""IncrementalAlterConfigs, API 44, versions 0-1 (KIP-339).

Behaviour: sets, deletes, appends to and subtracts from settings of a topic, of a group, or of the broker (those of
`broker.dynamic_settings`); durable when answered, in effect at once. One that is named twice is refused.
"""

from collections.abc import Mapping
from typing import Any

from mainstem.broker import configs
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.alter_configs import alter_settings
from mainstem.broker.handlers.describe_configs import all_refused


@handler(44, failure=lambda request, code: {"responses": all_refused(request, code)})
async def incremental_alter_configs(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return await alter_settings(request, ctx, _apply)


def _apply(asked: Any, present: Mapping[str, str]) -> dict[str, str]:
    return configs.apply_operations(present, [(each.name, each.config_operation, each.value) for each in asked.configs])
