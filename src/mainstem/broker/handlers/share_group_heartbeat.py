"""ShareGroupHeartbeat, API 76, version 1 (KIP-932).

Behaviour: `groups.share`; one request joins, lives and leaves. Answered when what it changed is durable. The member
chooses its own id, of 36 characters at most. Racks are kept, and not looked at: there is one node.
"""

from asyncio import Future
from typing import Any, Final

from mainstem.broker.answers import then
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat, HeartbeatAnswer
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.consumer_group_heartbeat import topic_partitions
from mainstem.broker.security.acls import DESCRIBE, GROUP, READ, TOPIC
from mainstem.wire.errors import Code, RequestError

_LONGEST_MEMBER_ID: Final = 36


@handler(76)
def share_group_heartbeat(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]]":
    ctx.check(READ, GROUP, request.group_id)
    for name in request.subscribed_topic_names or ():
        ctx.check(DESCRIBE, TOPIC, name)
    _check(request)
    groups = ctx.broker.groups.share
    told = groups.heartbeat(
        request.group_id,
        Heartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            rack_id=request.rack_id,
            client_id=ctx.client_id,
            client_host=ctx.client_host,
            topics=request.subscribed_topic_names,
        ),
    )
    return then(told, lambda answer: _fields(answer, groups.settings(request.group_id).heartbeat_interval_ms))


def _check(request: Any) -> None:
    """Raise RequestError if the request makes no sense, whatever the group is. In Kafka's words: clients show them."""
    if not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    if len(request.member_id) > _LONGEST_MEMBER_ID:
        raise _invalid(f"MemberId can't be longer than {_LONGEST_MEMBER_ID} characters.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN:
        if not request.subscribed_topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> RequestError:
    return RequestError(Code.invalid_request, message)


def _fields(answer: HeartbeatAnswer, heartbeat_interval_ms: int) -> dict[str, Any]:
    return {
        "error_code": Code.none,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": 0 if answer.epoch == LEAVE else heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": topic_partitions(answer.assignment)},
    }
