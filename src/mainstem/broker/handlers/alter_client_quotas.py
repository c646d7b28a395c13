"""AlterClientQuotas, API 49, versions 0-1 (KIP-546).

Behaviour: each entity for itself, its kinds in Kafka's order; durable when answered, in effect for the next request.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import ALTER_CONFIGS, CLUSTER, THE_CLUSTER
from mainstem.broker.security.quotas import Entity, Quotas
from mainstem.wire.errors import Code, RequestError


@handler(49, failure=lambda request, code: {"entries": [_answer(each, code) for each in request.entries]})
async def alter_client_quotas(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(ALTER_CONFIGS, CLUSTER, THE_CLUSTER)
    quotas = ctx.broker.quotas
    async with quotas.changing:
        changes, answers = _changes(request, quotas)
        if not request.validate_only:
            await quotas.change(changes)
    return {"entries": answers}


def _changes(request: Any, quotas: Quotas) -> tuple[dict[Entity, dict[str, float]], list[dict[str, Any]]]:
    """What the entities have set afterwards, and what is answered of each."""
    changes: dict[Entity, dict[str, float]] = {}
    answers = []
    for each in request.entries:
        entity = _entity(each)
        if entity in changes:
            answers.append(_answer(each, Code.invalid_request, "The same entity is altered twice"))
            continue
        try:
            changes[entity] = quotas.after(entity, [(op.key, None if op.remove else op.value) for op in each.ops])
        except RequestError as error:
            answers.append(_answer(each, error.code, str(error)))
        else:
            answers.append(_answer(each, Code.none))
    return changes, answers


def _entity(asked: Any) -> Entity:
    return tuple(sorted(((each.entity_type, each.entity_name) for each in asked.entity), key=lambda each: each[0]))


def _answer(asked: Any, code: int, message: str | None = None) -> dict[str, Any]:
    named = [{"entity_type": kind, "entity_name": name} for kind, name in _entity(asked)]
    return {"error_code": code, "error_message": message, "entity": named}
