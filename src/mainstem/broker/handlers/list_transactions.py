"""ListTransactions, API 66, versions 0-2 (KIP-664).

Behaviour: every transactional id that passes the filters; state names that do not exist are given back. Where a damaged
partition keeps some from being known, COORDINATOR_NOT_AVAILABLE says so beside the others.

1: only transactions that have run longer than a duration (KIP-994). 2: a regular expression for the transactional id
(KIP-1152). It is RE2's, as in Kafka: Python's `re` takes minutes for `(a+)+` and forty letters. What RE2 needs may
still be seconds for one long id, so it runs in a thread, in turns with others, and only while the client is there.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.patterns import BadPattern
from mainstem.broker.security.acls import DESCRIBE, TRANSACTIONAL_ID
from mainstem.broker.transactions.transaction import Transaction, TransactionState
from mainstem.wire.errors import Code, RequestError


@handler(66)
async def list_transactions(request: Any, ctx: RequestContext) -> dict[str, Any] | None:
    names = {state.label for state in TransactionState}
    states, producer_ids = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    now, duration = ctx.broker.clock.now_ms(), getattr(request, "duration_filter", -1)

    def passes(each: Transaction) -> bool:
        if states and each.state.label not in states:
            return False
        if producer_ids and each.producer_id not in producer_ids:
            return False
        return duration < 0 or now - each.started_ms > duration  # as in Kafka: one that never began did so in 1969

    found = [each for each in ctx.broker.transactions.all_transactions() if passes(each)]
    found = [each for each in found if ctx.may(DESCRIBE, TRANSACTIONAL_ID, each.transactional_id)]
    if pattern := getattr(request, "transactional_id_pattern", None):
        ids = [each.transactional_id for each in found]
        try:
            matching = await ctx.broker.id_patterns.matching(pattern, ids, lambda: not ctx.connection.closed)
        except BadPattern as error:
            raise RequestError(Code.invalid_regular_expression, str(error)) from None
        found = [each for each in found if each.transactional_id in matching]
        if ctx.connection.closed:
            return None
    return {
        "error_code": Code.none if ctx.broker.transactions.storage.knows_all else Code.coordinator_not_available,
        "unknown_state_filters": [name for name in request.state_filters if name not in names],
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state.label,
            }
            for each in found
        ],
    }
