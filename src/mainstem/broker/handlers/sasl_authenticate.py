"""SaslAuthenticate, API 36, versions 0-2.

Behaviour: one step of the exchange that SaslHandshake has started: `security.sasl`. What fails is answered after a
delay, and the connection ends.

1: how long the session lasts, if it ends (KIP-368).
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.wire.errors import Code


@handler(36)
async def sasl_authenticate(request: Any, ctx: RequestContext) -> dict[str, Any]:
    authentication = ctx.connection.authentication
    if authentication is None:
        message = "SaslAuthenticate request received after successful authentication"
        return {"error_code": Code.illegal_sasl_state, "error_message": message}
    answer, lifetime_ms = await authentication.step(bytes(request.auth_bytes))
    return {"error_code": Code.none, "auth_bytes": answer, "session_lifetime": lifetime_ms}
