"""ListGroups, API 16, versions 0-5.

Behaviour: every group, also those that only commit offsets (their protocol type is empty). Where a damaged partition
keeps some from being known, COORDINATOR_NOT_AVAILABLE says so beside the others.

4: filter by state. 5: filter by type; `classic` or `consumer`. Filters do not mind upper and lower case.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE, GROUP, THE_CLUSTER
from mainstem.wire.errors import Code


@handler(16)
def list_groups(request: Any, ctx: RequestContext) -> dict[str, Any]:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    everything = ctx.may(DESCRIBE, CLUSTER, THE_CLUSTER)
    return {
        "error_code": Code.none if ctx.broker.groups.storage.knows_all else Code.coordinator_not_available,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": group.kind,
            }
            for group in ctx.broker.groups.groups.values()
            if (everything or ctx.may(DESCRIBE, GROUP, group.group_id))
            and (not states or group.state_name.lower() in states)
            and (not types or group.kind in types)
        ],
    }
