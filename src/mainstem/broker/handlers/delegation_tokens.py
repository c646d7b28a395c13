"""Create-, Renew-, Expire- and DescribeDelegationToken, APIs 38 to 41 (KIP-48).

Behaviour: what a Kafka without a secret for tokens answers: DELEGATION_TOKEN_AUTH_DISABLED, and to clients that have
not said who they are DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
"""

from typing import Any

from mainstem.broker.connection import ANONYMOUS
from mainstem.broker.handlers import RequestContext, handler
from mainstem.wire.errors import Code


def _refusal(ctx: RequestContext) -> Code:
    if ctx.connection.principal == ANONYMOUS:
        return Code.delegation_token_request_not_allowed
    return Code.delegation_token_auth_disabled


def _time(code: Code) -> int:
    """The token's times where there is none: Kafka answers 0 if tokens are disabled, else -1."""
    return 0 if code is Code.delegation_token_auth_disabled else -1


@handler(38)
def create_delegation_token(request: Any, ctx: RequestContext) -> dict[str, Any]:
    kind, _, name = ctx.connection.principal.partition(":")
    own = {"token_requester_principal_type": kind, "token_requester_principal_name": name}
    owner_kind = getattr(request, "owner_principal_type", None) or kind
    owner = getattr(request, "owner_principal_name", None) or name
    code = _refusal(ctx)
    times = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), _time(code))
    return {"error_code": code, "principal_type": owner_kind, "principal_name": owner, **own, **times}


@handler(39)
def renew_delegation_token(_: Any, ctx: RequestContext) -> dict[str, Any]:
    code = _refusal(ctx)
    return {"error_code": code, "expiry_timestamp": _time(code)}


@handler(40)
def expire_delegation_token(_: Any, ctx: RequestContext) -> dict[str, Any]:
    code = _refusal(ctx)
    return {"error_code": code, "expiry_timestamp": _time(code)}


@handler(41)
def describe_delegation_token(_: Any, ctx: RequestContext) -> dict[str, Any]:
    return {"error_code": _refusal(ctx)}
