"""SaslHandshake, API 17, versions 0-1.

Behaviour: starts an exchange of the mechanism that is asked for. One that the listener does not have is
UNSUPPORTED_SASL_MECHANISM, with those that it has, and the connection ends. Without SASL, or by a client that is known
for good, it is ILLEGAL_SASL_STATE.

1: what follows are SaslAuthenticate requests; before, bytes without a header.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.wire.errors import Code, RequestError


@handler(17)
def sasl_handshake(request: Any, ctx: RequestContext) -> dict[str, Any]:
    authentication = ctx.connection.authentication
    if authentication is None:
        return {"error_code": Code.illegal_sasl_state, "mechanisms": []}
    offered = list(ctx.connection.listener.mechanisms)
    try:
        authentication.begin(request.mechanism, bare=ctx.version == 0)
    except RequestError as error:
        return {"error_code": error.code, "mechanisms": offered}
    return {"error_code": Code.none, "mechanisms": offered}
