"""AddOffsetsToTxn, API 25, versions 0-4.

Behaviour: the partition of `__consumer_offsets` that keeps the group belongs to the producer's transaction; durable
when answered.

2: PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH. 4: the version that clients of transactions version 2 have; they
do not need it, since TxnOffsetCommit 5 adds the partition.
"""

from typing import Any

from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ, TRANSACTIONAL_ID, WRITE
from mainstem.broker.transactions import Producer
from mainstem.broker.transactions.errors import ProducerFenced
from mainstem.wire.errors import Code, RequestError


@handler(25)
async def add_offsets_to_txn(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(WRITE, TRANSACTIONAL_ID, request.transactional_id)
    ctx.check(READ, GROUP, request.group_id)
    ctx.broker.groups.storage.check_read(request.group_id)  # a damaged partition takes no marker: it would never end
    partition = ctx.broker.groups.storage.partition_for(request.group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        await ctx.broker.transactions.add_partitions(request.transactional_id, producer, {partition})
    except ProducerFenced as error:
        if ctx.version < 2:
            raise RequestError(Code.invalid_producer_epoch, str(error)) from error
        raise
    return {"error_code": Code.none}
