"""DescribeTransactions, API 65, version 0 (KIP-664).

Behaviour: how far each transactional id's transaction has come, and which partitions belong to it; once,
however often it is asked for.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, TOPIC, TRANSACTIONAL_ID
from mainstem.broker.transactions.errors import TransactionError
from mainstem.wire.errors import Code


@handler(65)
def describe_transactions(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return {"transaction_states": [_described(each, ctx) for each in dict.fromkeys(request.transactional_ids)]}


def _described(transactional_id: str, ctx: RequestContext) -> dict[str, Any]:
    if not ctx.may(DESCRIBE, TRANSACTIONAL_ID, transactional_id):
        code = Code.transactional_id_authorization_failed
        return {"transactional_id": transactional_id, "error_code": code, "transaction_start_time": 0}
    try:
        found = ctx.broker.transactions.describe(transactional_id)
    except TransactionError as error:
        code = error.code if transactional_id else Code.invalid_request
        return {"transactional_id": transactional_id, "error_code": code, "transaction_start_time": 0}
    topics: dict[str, list[int]] = {}
    for partition in sorted(each for each in found.partitions if ctx.may(DESCRIBE, TOPIC, each.topic)):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return {
        "error_code": Code.none,
        "transactional_id": transactional_id,
        "transaction_state": found.state.label,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
    }
