"""OffsetCommit, API 8, versions 2-10.

Behaviour: answered when the commits are durable. Metadata is kept to the letter; null is kept as "", as in Kafka. A
partition that does not exist is refused by itself, the others are committed, all or none of them: they are one batch.

2-4: retention time of the commit, later the broker's alone. 6: leader epoch. 7: static members. 9: a group that is not
there is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION; members of the consumer protocol commit with their epoch
(KIP-848). 10: topic ids.
"""

from asyncio import Future
from collections.abc import Iterator
from typing import Any

from mainstem.broker.answers import milliseconds, partition_exists
from mainstem.broker.groups.errors import GroupError
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ, TOPIC
from mainstem.broker.topics import Topic
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code, code_of


def check_offset(ctx: RequestContext, partition: TopicPartition, asked: Any) -> Code:
    """Whether an offset may be committed, as far as the partition and the metadata go."""
    if not ctx.may(READ, TOPIC, partition.topic):
        return Code.topic_authorization_failed
    if not partition_exists(ctx.broker.topics, partition):
        return Code.unknown_topic_or_partition
    if len(asked.committed_metadata or "") > ctx.broker.config.offset_metadata_max_bytes:
        return Code.offset_metadata_too_large
    return Code.none


def offset_value(asked: Any, topic: Topic, now_ms: int, expires_ms: int = -1) -> OffsetValue:
    """What is kept of an offset in a request."""
    leader_epoch = getattr(asked, "committed_leader_epoch", -1)
    metadata = asked.committed_metadata or ""
    return OffsetValue(asked.committed_offset, leader_epoch, metadata, now_ms, expires_ms, topic.topic_id)


def _failure(request: Any, code: int) -> dict[str, Any]:
    topics = []
    for topic in request.topics:
        partitions = [{"partition_index": each.partition_index, "error_code": code} for each in topic.partitions]
        identity = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}
        topics.append(identity | {"partitions": partitions})
    return {"topics": topics}


def commit_code(error: BaseException) -> Code:
    """The code of an error; of a commit that is too large, the one that clients expect there."""
    code = code_of(error)
    return Code.invalid_commit_offset_size if code is Code.message_too_large else code


@handler(8, failure=_failure)
def offset_commit(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]] | dict[str, Any]":
    ctx.check(READ, GROUP, request.group_id)
    now = ctx.broker.clock.now_ms()
    retention_ms = milliseconds(request.retention_time) if ctx.version <= 4 else -1
    expires_ms = now + retention_ms if retention_ms >= 0 else -1
    codes: dict[TopicPartition, Code] = {}
    offsets: dict[TopicPartition, OffsetValue] = {}
    for partition, each in _partitions(request, ctx):
        codes[partition] = check_offset(ctx, partition, each)
        if codes[partition] is Code.none:
            offsets[partition] = offset_value(each, ctx.broker.topics.by_name(partition.topic), now, expires_ms)
    if not offsets:
        return _answer(request, ctx, codes, Code.none)
    try:
        committed = ctx.broker.groups.commit(
            request.group_id,
            Commit(
                member_id=request.member_id,
                instance_id=getattr(request, "group_instance_id", None),
                generation=request.generation_id_or_member_epoch,
                partitions=tuple(offsets),
                knows_epochs=ctx.version >= 9,
            ),
            offsets,
            unknown_group=Code.group_id_not_found if ctx.version >= 9 else Code.illegal_generation,
        )
    except GroupError as error:
        return _answer(request, ctx, codes, error.code)
    answer: Future[dict[str, Any]] = ctx.broker.loop.create_future()

    def done(finished: "Future[None]") -> None:
        code = Code.none
        if finished.cancelled():
            code = Code.coordinator_not_available
        elif (error := finished.exception()) is not None:
            code = commit_code(error)
        if not answer.done():
            answer.set_result(_answer(request, ctx, codes, code))

    committed.add_done_callback(done)
    return answer


def _topic_name(topic: Any, ctx: RequestContext) -> str | None:
    if ctx.version < 10:
        return str(topic.name)
    found = ctx.broker.topics.get_by_id(topic.topic_id)
    return None if found is None else found.name


def _partitions(request: Any, ctx: RequestContext) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in request.topics:
        name = _topic_name(topic, ctx)
        if name is not None:
            for each in topic.partitions:
                yield TopicPartition(name, each.partition_index), each


def _answer(request: Any, ctx: RequestContext, codes: dict[TopicPartition, Code], code: Code) -> dict[str, Any]:
    """`code` for every partition that has no error of its own."""
    topics = []
    for topic in request.topics:
        name = _topic_name(topic, ctx)
        partitions = []
        for each in topic.partitions:
            own = Code.unknown_topic_id if name is None else codes[TopicPartition(name, each.partition_index)]
            partitions.append(
                {"partition_index": each.partition_index, "error_code": code if own is Code.none else own}
            )
        identity = {"topic_id": topic.topic_id} if ctx.version >= 10 else {"name": topic.name}
        topics.append(identity | {"partitions": partitions})
    return {"topics": topics}
