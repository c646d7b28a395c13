"""DescribeClientQuotas, API 48, versions 0-1 (KIP-546).

Behaviour: the quotas of entities that a filter means. Kafka's order of values is that of a hash table, and
clients' tests compare lists: it is kept for up to three of them.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, DESCRIBE_CONFIGS, THE_CLUSTER
from mainstem.broker.security.quotas import CLIENT, EXACT, IP, SPECIFIED, USER
from mainstem.wire.errors import Code, RequestError

_ORDER = ("consumer_byte_rate", "controller_mutation_rate", "request_percentage", "producer_byte_rate")


@handler(48, failure=lambda _, code: {"error_code": code, "entries": None})
def describe_client_quotas(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(DESCRIBE_CONFIGS, CLUSTER, THE_CLUSTER)
    kinds = [each.entity_type for each in request.components]
    for each in request.components:
        if each.entity_type not in (USER, CLIENT, IP):
            raise RequestError(Code.unsupported_version, f"Custom entity type '{each.entity_type}' not supported")
        if not 0 <= each.match_type <= SPECIFIED:
            raise RequestError(Code.invalid_request, f"Unexpected match type {each.match_type}")
        if (each.match is not None) != (each.match_type == EXACT):
            raise RequestError(Code.invalid_request, "a name goes with an exact match, and with no other")
    if len(set(kinds)) < len(kinds) or (IP in kinds and len(kinds) > 1):
        raise RequestError(Code.invalid_request, f"Invalid combination of filter components: {', '.join(kinds)}")
    components = [(each.entity_type, each.match_type, each.match) for each in request.components]
    return {
        "error_code": Code.none,
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in sorted(values.items(), key=_place)],
            }
            for entity, values in ctx.broker.quotas.described(components, strict=request.strict)
        ],
    }


def _place(value: tuple[str, float]) -> int:
    return _ORDER.index(value[0]) if value[0] in _ORDER else len(_ORDER)
