"""UnregisterBroker, API 64, version 0 (KIP-500).

Behaviour: the one broker is there as long as it answers, and no other was ever.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER, CLUSTER, THE_CLUSTER
from mainstem.wire.errors import Code, RequestError


@handler(64)
def unregister_broker(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER, CLUSTER, THE_CLUSTER)
    if request.broker_id != ctx.broker.config.node_id:
        message = f"Broker ID {request.broker_id} is not currently registered"
        raise RequestError(Code.broker_id_not_registered, message)
    raise RequestError(Code.invalid_request, f"Broker ID {request.broker_id} is the one that answers")
