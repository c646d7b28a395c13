"""InitProducerId, API 22, versions 0-5.

Behaviour: without a transactional id, a new producer id. With one, the id is taken over: its epoch is raised, who had
it before is fenced, and an open transaction of its is aborted first. Kafka sends the client away meanwhile
(CONCURRENT_TRANSACTIONS); here the answer waits until the abort is complete.

3: the producer may say who it was, to go on after an error without fencing itself (KIP-360). 4: PRODUCER_FENCED, before
it INVALID_PRODUCER_EPOCH. 5: transactions version 2 (KIP-890). Left out: 6, two-phase commit (KIP-939), which Kafka 4.3
does not enable either.
"""

from typing import Any

from mainstem.broker.answers import milliseconds
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import CLUSTER, IDEMPOTENT_WRITE, THE_CLUSTER, TOPIC, TRANSACTIONAL_ID, WRITE
from mainstem.broker.transactions import Producer
from mainstem.broker.transactions.errors import ProducerFenced
from mainstem.wire.errors import Code, RequestError


@handler(22, failure=lambda _, code: {"error_code": code, "producer_id": -1, "producer_epoch": -1})
async def init_producer_id(request: Any, ctx: RequestContext) -> dict[str, Any]:
    transactions = ctx.broker.transactions
    if request.transactional_id is not None:
        ctx.check(WRITE, TRANSACTIONAL_ID, request.transactional_id)
    elif not ctx.may_some(WRITE, TOPIC):
        ctx.check(IDEMPOTENT_WRITE, CLUSTER, THE_CLUSTER)
    expected = _expected(request)
    if request.transactional_id is None:
        return _fields(Producer(await transactions.new_producer_id(), 0))
    timeout_ms = milliseconds(request.transaction_timeout)
    try:
        return _fields(await transactions.initialize(request.transactional_id, timeout_ms, expected))
    except ProducerFenced as error:
        if ctx.version < 4:
            raise RequestError(Code.invalid_producer_epoch, str(error)) from error
        raise


def _expected(request: Any) -> Producer | None:
    producer_id, producer_epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if (producer_id == -1) is not (producer_epoch == -1):
        raise RequestError(Code.invalid_request, f"producer id {producer_id} with epoch {producer_epoch}")
    return None if producer_id == -1 else Producer(producer_id, producer_epoch)


def _fields(producer: Producer) -> dict[str, Any]:
    return {
        "error_code": Code.none,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
