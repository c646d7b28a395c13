"""EndTxn, API 26, versions 0-5.

Behaviour: answered when every marker is durable: whoever hears of the outcome can read it. A retry of an EndTxn whose
answer was lost is answered like the first.

2: PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH. 5: transactions version 2 (KIP-890): the answer holds the raised
epoch, or a new producer id when the epochs are used up.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import TRANSACTIONAL_ID, WRITE
from mainstem.broker.transactions import Producer
from mainstem.broker.transactions.errors import ProducerFenced
from mainstem.wire.errors import Code, RequestError


@handler(26)
async def end_txn(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(WRITE, TRANSACTIONAL_ID, request.transactional_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        after = await ctx.broker.transactions.end(
            request.transactional_id, producer, commit=request.committed, version=2 if ctx.version >= 5 else 1
        )
    except ProducerFenced as error:
        if ctx.version < 2:
            raise RequestError(Code.invalid_producer_epoch, str(error)) from error
        raise
    return {"error_code": Code.none, "producer_id": after.producer_id, "producer_epoch": after.producer_epoch}
