"""AddPartitionsToTxn, API 24, versions 0-3.

Behaviour: the partitions belong to the producer's transaction; durable when answered. If one does not exist, none is
added: it has its code, the others OPERATION_NOT_ATTEMPTED.

2: PRODUCER_FENCED, before it INVALID_PRODUCER_EPOCH. Left out: 4 and 5, which brokers use among themselves to verify.
"""

from typing import Any

from mainstem.broker.answers import by_topic, partition_exists
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import TOPIC, TRANSACTIONAL_ID, WRITE
from mainstem.broker.transactions import Producer
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code, RequestError


def _partitions(request: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions]


def _failure(request: Any, code: int) -> dict[str, Any]:
    return _answer({partition: Code(code) for partition in _partitions(request)})


@handler(24, failure=_failure)
async def add_partitions_to_txn(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
    partitions = _partitions(request)
    # As in Kafka nobody writes to the coordinators' own topics: their markers come by themselves.
    hidden = {each for each in partitions if not ctx.may(WRITE, TOPIC, each.topic) or _is_internal(ctx, each.topic)}
    missing = {each for each in partitions if not partition_exists(ctx.broker.topics, each)} - hidden
    if missing or hidden:
        codes = dict.fromkeys(partitions, Code.operation_not_attempted)
        codes |= dict.fromkeys(missing, Code.unknown_topic_or_partition)
        return _answer(codes | dict.fromkeys(hidden, Code.topic_authorization_failed))
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    try:
        await ctx.broker.transactions.add_partitions(
            request.v3_and_below_transactional_id, producer, frozenset(partitions)
        )
    except RequestError as error:
        old = error.code is Code.producer_fenced and ctx.version < 2
        return _answer(dict.fromkeys(partitions, Code.invalid_producer_epoch if old else error.code))
    return _answer(dict.fromkeys(partitions, Code.none))


def _is_internal(ctx: RequestContext, name: str) -> bool:
    topic = ctx.broker.topics.get(name)
    return topic is not None and topic.internal


def _answer(codes: dict[TopicPartition, Code]) -> dict[str, Any]:
    topics = by_topic(
        codes.items(),
        name="name",
        partitions="results_by_partition",
        index="partition_index",
        code="partition_error_code",
    )
    return {"results_by_topic_v3_and_below": topics}
