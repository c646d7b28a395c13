"""ListTransactions, API 66, versions 0-2 (KIP-664).

Behaviour: every transactional id that passes the filters; state names that do not exist are given back. Where a damaged
partition keeps some from being known, COORDINATOR_NOT_AVAILABLE says so beside the others.

1: only transactions that have run longer than a duration (KIP-994). 2: a regular expression for the transactional id
(KIP-1152). It is RE2's, as in Kafka: Python's `re` takes minutes for `(a+)+` and forty letters. What RE2 needs may
still be seconds for one long id, so it runs in a thread, and only for as long as the client is there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.patterns import BadPattern, whole_match
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
        matching = partial(_matching, pattern, found, lambda: ctx.connection.closed)
        found = await ctx.broker.loop.run_in_executor(ctx.broker.pattern_threads, matching)
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


def _matching(pattern: str, transactions: "list[Transaction]", has_gone: Callable[[], bool]) -> "list[Transaction]":
    """Those whose id the pattern matches as a whole; in a thread, so nothing else of them is looked at. Once the client
    has gone, no further one is.
    """
    found: list[Transaction] = []
    if has_gone():  # while others had the threads
        return found
    try:
        matches = whole_match(pattern)
    except BadPattern as error:
        raise RequestError(Code.invalid_regular_expression, str(error)) from None
    for each in transactions:
        if has_gone():
            break
        if matches(each.transactional_id):
            found.append(each)
    return found
