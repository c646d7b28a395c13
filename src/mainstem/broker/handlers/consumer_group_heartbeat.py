"""ConsumerGroupHeartbeat, API 68, versions 0-1 (KIP-848).

Behaviour: `groups.consumer`; one request joins, lives, reports and leaves. Answered when what it changed is durable.

1: the member chooses its own id (KIP-1082), and may subscribe to a regular expression of RE2. Racks are kept, and not
looked at: there is one node. An expression matches topics that the member that brought it, or that has made it be
resolved anew, may describe, as in Kafka.
"""

from asyncio import Future
from typing import Any

from mainstem.broker.answers import milliseconds, then
from mainstem.broker.groups.consumer.messages import JOIN, LEAVE, LEAVE_FOR_A_WHILE, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.modern.assignors import ASSIGNORS
from mainstem.broker.groups.modern.partitions import Assignment
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.security.acls import DESCRIBE, GROUP, READ, TOPIC
from mainstem.wire.errors import Code, RequestError


@handler(68)
def consumer_group_heartbeat(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]]":
    ctx.check(READ, GROUP, request.group_id)
    for name in request.subscribed_topic_names or ():
        ctx.check(DESCRIBE, TOPIC, name)
    _check(request, ctx.version)
    groups = ctx.broker.groups.consumer
    regex = getattr(request, "subscribed_topic_regex", None)
    told = groups.heartbeat(
        request.group_id,
        Heartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
            client_id=ctx.client_id,
            client_host=ctx.client_host,
            topics=request.subscribed_topic_names,
            regex=regex,
            assignor=request.server_assignor,
            reported=_read(request.topic_partitions),
        ),
        sees=lambda name: ctx.may(DESCRIBE, TOPIC, name),
    )
    return then(told, lambda answer: _fields(answer, groups.settings(request.group_id).heartbeat_interval_ms))


def _check(request: Any, version: int) -> None:
    """Raise RequestError if the request makes no sense, whatever the group is."""
    epoch = request.member_epoch
    if (version >= 1 or epoch > JOIN or epoch == LEAVE) and not request.member_id:
        raise _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOIN:
        if milliseconds(request.rebalance_timeout) == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and getattr(request, "subscribed_topic_regex", None) is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVE_FOR_A_WHILE and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise RequestError(
            Code.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )


def _invalid(message: str) -> RequestError:
    """In Kafka's words: clients show them."""
    return RequestError(Code.invalid_request, message)


def _read(topics: Any) -> Assignment | None:
    if topics is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}


def _fields(answer: HeartbeatAnswer, heartbeat_interval_ms: int) -> dict[str, Any]:
    return {
        "error_code": Code.none,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": 0 if answer.epoch < 0 else heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": topic_partitions(answer.assignment)},
    }


def topic_partitions(assignment: Assignment) -> list[dict[str, Any]]:
    """Partitions as the APIs list them."""
    return [
        {"topic_id": topic_id, "partitions": sorted(partitions)} for topic_id, partitions in sorted(assignment.items())
    ]
