"""ShareAcknowledge, API 79, versions 1-2 (KIP-932).

Behaviour: a member says what it has done with records that it was given (`groups.share.partition`); of each partition
all of that is done, or nothing. Answered when it is durable. The request counts in the member's share session; with
the last one (epoch -1) what it still has is released.

2: more time for records (KIP-1222), and how long that is.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from mainstem.broker.groups.share.partition import Acknowledged, AckType, check_acknowledged
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, SessionPartition
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import GROUP, READ, TOPIC
from mainstem.core import MainstemError
from mainstem.wire.errors import Code, RequestError, code_of

_LONGEST_MEMBER_ID: Final = 36
FIRST_WITH_RENEWALS: Final = 2


class Told(msgspec.Struct, frozen=True):
    """What became of a member's acknowledgements in one partition."""

    code: Code = Code.none
    message: str | None = None


Outcome: TypeAlias = "Told | asyncio.Future[None]"


@handler(79)
async def share_acknowledge(request: Any, ctx: RequestContext) -> dict[str, Any]:
    key = session_key(request, ctx)
    share = ctx.broker.groups.share
    if request.share_session_epoch == INITIAL_EPOCH:
        raise RequestError(Code.invalid_share_session_epoch, "ShareAcknowledge opens no share session")
    if request.share_session_epoch == FINAL_EPOCH:
        share.sessions.known(key)
    else:
        share.sessions.proceed(key, request.share_session_epoch)
    outcomes = acknowledge(request, ctx, key, request.topics)
    if request.share_session_epoch == FINAL_EPOCH:
        share.close_session(key)
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for partition, told in (await settled(outcomes)).items():
        answer = {
            "partition_index": partition.partition,
            "error_code": told.code,
            "error_message": told.message,
            "current_leader": {"leader_id": -1, "leader_epoch": -1},  # nobody else: see `wire.share_fetch`
        }
        topics.setdefault(partition.topic_id, []).append(answer)
    return {
        "error_code": Code.none,
        "acquisition_lock_timeout": share.settings(key.group_id).record_lock_duration_ms,
        "responses": [{"topic_id": topic_id, "partitions": found} for topic_id, found in topics.items()],
    }


def session_key(request: Any, ctx: RequestContext) -> SessionKey:
    """Whose request it is.

    Raises:
        RequestError: nobody's, or not allowed.
    """
    if request.group_id is None:
        raise RequestError(Code.invalid_request, "Invalid group id in the request.")
    ctx.check(READ, GROUP, request.group_id)
    if not request.member_id or len(request.member_id) > _LONGEST_MEMBER_ID:
        raise RequestError(Code.invalid_request, "Invalid member id in the request.")
    return SessionKey(request.group_id, request.member_id)


def acknowledge(
    request: Any, ctx: RequestContext, key: SessionKey, topics: Iterable[Any]
) -> dict[SessionPartition, Outcome]:
    """Do what the member says of each partition, at once; what is a future is done when it is durable."""
    renews = ctx.version >= FIRST_WITH_RENEWALS and request.is_renew_ack
    outcomes: dict[SessionPartition, Outcome] = {}
    for topic in topics:
        topic_id = topic.topic_id or UUID(int=0)
        for partition in topic.partitions:
            where = SessionPartition(topic_id, partition.partition_index)
            try:
                check_readable(ctx, where)
                batches = [_read(batch) for batch in partition.acknowledgement_batches]
                _check(batches, renews=renews)
                outcomes[where] = Told()
                if batches:
                    state_key = PartitionKey(key.group_id, where.topic_id, where.partition)
                    outcomes[where] = ctx.broker.groups.share.partitions.acknowledge(state_key, key.member_id, batches)
            except MainstemError as error:
                outcomes[where] = Told(code_of(error), str(error))
    return outcomes


async def settled(outcomes: dict[SessionPartition, Outcome]) -> dict[SessionPartition, Told]:
    """The same, when all is durable or has failed."""
    stored = {where: each for where, each in outcomes.items() if not isinstance(each, Told)}
    results = await asyncio.gather(*stored.values(), return_exceptions=True)
    failed = {
        where: Told(code_of(error), str(error))
        for where, error in zip(stored, results, strict=True)
        if error is not None
    }
    return {where: each if isinstance(each, Told) else failed.get(where, Told()) for where, each in outcomes.items()}


def check_readable(ctx: RequestContext, where: SessionPartition) -> None:
    """Raise unless there is such a partition, and the client may read it."""
    topic = ctx.broker.topics.by_id(where.topic_id)
    ctx.check(READ, TOPIC, topic.name)
    ctx.broker.topics.partition(topic.name, where.partition)


def _read(batch: Any) -> Acknowledged:
    try:
        types = tuple(AckType(each) for each in batch.acknowledge_types)
    except ValueError as error:
        raise RequestError(Code.invalid_request, f"types of acknowledgements: {error}") from None
    return Acknowledged(batch.first_offset, batch.last_offset, types)


def _check(batches: Sequence[Acknowledged], *, renews: bool) -> None:
    check_acknowledged(batches)
    if not renews and any(AckType.RENEW in batch.types for batch in batches):
        raise RequestError(Code.invalid_request, "a request that renews says so")
