"""ListTransactions, API 66, versions 0-2 (KIP-664).

Behaviour: every transactional id that passes the filters; state names that do not exist are given back.

1: only transactions that have run longer than a duration (KIP-994). 2: a regular expression for the transactional id
(KIP-1152), which Kafka reads as RE2 and here as Python's `re`.
"""

import re
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.transactions.transaction import DEAD, IDLE, Transaction, TransactionState
from mainstem.wire.errors import Code


@handler(66, 0, 2)
def list_transactions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    names = {state.label for state in TransactionState if state is not DEAD}
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        matches = re.compile(pattern) if pattern else None
    except re.error:
        return {"error_code": Code.invalid_regular_expression}
    now, duration = ctx.broker.clock.now_ms(), getattr(request, "duration_filter", -1)

    def passes(each: Transaction) -> bool:
        if request.state_filters and each.state.label not in request.state_filters:
            return False
        if request.producer_id_filters and each.producer_id not in request.producer_id_filters:
            return False
        if duration >= 0 and (each.state in IDLE or now - each.started_ms <= duration):
            return False
        return matches is None or matches.fullmatch(each.transactional_id) is not None

    return {
        "error_code": Code.none,
        "unknown_state_filters": [name for name in request.state_filters if name not in names],
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state.label,
            }
            for each in ctx.broker.transactions.list()
            if passes(each)
        ],
    }
