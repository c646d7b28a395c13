"""TxnOffsetCommit, API 28, versions 0-5.

Behaviour: the offsets wait, durably, for the end of the producer's transaction: a commit makes them visible, an abort
drops them. Member and generation, or member epoch, are checked as in OffsetCommit (KIP-447), but not that the group is
stable.

2: leader epoch. 3: group metadata. 4: TRANSACTION_ABORTABLE, before it INVALID_TXN_STATE. 5: transactions version 2
(KIP-890): the group's partition is added to the transaction here; before, AddOffsetsToTxn has added it.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from mainstem.broker.answers import by_topic
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.offset_commit import check_offset, commit_code, offset_value
from mainstem.broker.security.acls import GROUP, READ, TRANSACTIONAL_ID, WRITE
from mainstem.core import MainstemError, TopicPartition
from mainstem.wire.errors import Code


def _failure(request: Any, code: int) -> dict[str, Any]:
    return _answer(
        {
            TopicPartition(topic.name, each.partition_index): Code(code)
            for topic in request.topics
            for each in topic.partitions
        }
    )


@handler(28, failure=_failure)
async def txn_offset_commit(request: Any, ctx: RequestContext) -> dict[str, Any]:
    ctx.check(WRITE, TRANSACTIONAL_ID, request.transactional_id)
    ctx.check(READ, GROUP, request.group_id)
    now = ctx.broker.clock.now_ms()
    codes: dict[TopicPartition, Code] = {}
    offsets: dict[TopicPartition, OffsetValue] = {}
    for topic in request.topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            codes[partition] = check_offset(ctx, partition, each)
            if codes[partition] is Code.none:
                offsets[partition] = offset_value(each, ctx.broker.topics.by_name(topic.name), now)
    if not request.group_id:
        return _failure(request, Code.invalid_group_id)
    if offsets:
        try:
            gone = await _commit(request, ctx, offsets)
            codes.update(dict.fromkeys(gone, Code.unknown_topic_or_partition))
        except MainstemError as error:
            code = _code(commit_code(error), ctx.version)
            codes.update(dict.fromkeys(offsets, code))
    return _answer(codes)


async def _commit(
    request: Any, ctx: RequestContext, offsets: dict[TopicPartition, OffsetValue]
) -> Iterable[TopicPartition]:
    """Commit them, but for those of topics that are deleted meanwhile: these are returned."""
    groups, topics = ctx.broker.groups, ctx.broker.topics
    commit = Commit(
        member_id=getattr(request, "member_id", ""),
        instance_id=getattr(request, "group_instance_id", None),
        generation=getattr(request, "generation_id", -1),
        partitions=tuple(offsets),
        transactional=True,
    )
    groups.check_transactional_commit(request.group_id, commit)
    asked, ids = offsets, {partition.topic: topics.by_name(partition.topic).topic_id for partition in offsets}
    while offsets:  # the check and the append are one turn of the loop, so no EndTxn comes between
        ending = ctx.broker.transactions.verify_or_add(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            groups.storage.partition_for(request.group_id),
            implicit_add=ctx.version >= 5,
        )
        if ending is None:
            break
        await ending
        # There may be a new topic of that name by now; nobody has read any of it.
        offsets = {each: value for each, value in offsets.items() if topics.get_by_id(ids[each.topic]) is not None}
    if offsets:
        producer = request.producer_id, request.producer_epoch
        await asyncio.shield(groups.commit_transactional(request.group_id, commit, *producer, offsets))
    return asked.keys() - offsets.keys()


def _code(code: Code, version: int) -> Code:
    if code is Code.transaction_abortable and version < 4:
        return Code.invalid_txn_state
    if code is Code.kafka_storage_error:
        return Code.coordinator_not_available
    return code


def _answer(codes: dict[TopicPartition, Code]) -> dict[str, Any]:
    return {
        "topics": by_topic(
            codes.items(), name="name", partitions="partitions", index="partition_index", code="error_code"
        )
    }
