"""StreamsGroupHeartbeat, API 88, version 0 (KIP-1071).

Behaviour: `groups.streams`; one request joins, brings the topology, lives, reports and leaves. Answered when what it
changed is durable. Topics that the topology needs are made beside it, with the rights of who asks.

Refused as Kafka 4.3 refuses them: static members, source topics by regular expression, warm-up tasks, offsets of tasks,
and another topology than the group has. Acceptable recovery lag and offset interval are told as 0, as there.
"""

from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from mainstem.broker.answers import milliseconds, then
from mainstem.broker.groups.streams.configured import InvalidTopology, Status, StatusCode
from mainstem.broker.groups.streams.messages import JOIN, LEAVE, Endpoint, Heartbeat, HeartbeatAnswer
from mainstem.broker.groups.streams.tasks import Tasks, TaskSet
from mainstem.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.create_topics import CLUSTER_METADATA
from mainstem.broker.security.acls import CLUSTER, CREATE, DESCRIBE, GROUP, READ, THE_CLUSTER, TOPIC
from mainstem.core import is_topic_name
from mainstem.wire.errors import Code, RequestError

_STATIC: Final = -2
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state", CLUSTER_METADATA)
_SHOWN: Final = 3
"""Of many topics that could not be made so many are named."""


def _failure(_request: Any, code: int) -> dict[str, Any]:
    kinds = ("active_tasks", "standby_tasks", "warmup_tasks", "partitions_by_user_endpoint")
    return {"error_code": code, "status": [], **dict.fromkeys(kinds)}


@handler(88, failure=_failure)
def streams_group_heartbeat(request: Any, ctx: RequestContext) -> "Future[dict[str, Any]]":
    ctx.check(READ, GROUP, request.group_id)
    topology = None if request.topology is None else _topology(request.topology)
    if topology is not None:
        _check_topics(topology, ctx)
    _check(request)
    groups = ctx.broker.groups.streams
    told = groups.heartbeat(
        request.group_id,
        Heartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            endpoint_epoch=request.endpoint_information_epoch,
            rack_id=request.rack_id,
            rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
            client_id=ctx.client_id,
            client_host=ctx.client_host,
            topology=topology,
            reported=_reported(request),
            process_id=request.process_id,
            endpoint=None
            if request.user_endpoint is None
            else (request.user_endpoint.host, request.user_endpoint.port),
            client_tags=None if request.client_tags is None else _pairs(request.client_tags),
            shuts_down=request.shutdown_application,
        ),
    )
    interval_ms = groups.settings(request.group_id).heartbeat_interval_ms
    return then(told, lambda answer: _fields(_with_topics(answer, request.group_id, ctx), interval_ms))


def _check_topics(topology: Topology, ctx: RequestContext) -> None:
    """Raise RequestError unless the topics may be named by this client, in a topology."""
    names = list(dict.fromkeys(name for each in topology.subtopologies for name in each.all_topics))
    if internal := [name for name in names if name in _INTERNAL]:
        raise InvalidTopology(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        )
    if invalid := [name for name in names if not is_topic_name(name)]:
        raise InvalidTopology(f"Topic names {','.join(invalid)} are not valid topic names.")
    for name in names:
        ctx.check(DESCRIBE, TOPIC, name)


def _check(request: Any) -> None:
    """Raise RequestError if the request makes no sense, whatever the group is, or asks for what there is not."""
    epoch, tasks = request.member_epoch, (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    for name in ("task_offsets", "task_end_offsets"):
        if getattr(request, name) is not None:
            raise _invalid(f"{name.title().replace('_', '')} are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    subtopologies = () if request.topology is None else request.topology.subtopologies
    if any(each.source_topic_regex for each in subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")
    if not request.member_id:
        raise _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOIN:
        _check_join(request)
    elif epoch == _STATIC:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(each is None for each in tasks) and any(each is not None for each in tasks):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_join(request: Any) -> None:
    if milliseconds(request.rebalance_timeout) == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for kind in ("Active", "Standby", "Warmup"):
        tasks = getattr(request, f"{kind.lower()}_tasks")
        if tasks is None or tasks:
            raise _invalid(f"{kind}Tasks must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    for each in request.topology.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions != 0:
                raise InvalidTopology(
                    f"Changelog topic {topic.name} must have an undefined partition count, "
                    f"but it is set to {topic.partitions}."
                )


def _invalid(message: str) -> RequestError:
    """In Kafka's words: clients show them."""
    return RequestError(Code.invalid_request, message)


# --- from kio's classes -----------------------------------------------------------------------------------------------


def _topology(told: Any) -> Topology:
    return Topology(
        told.epoch,
        tuple(
            Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                source_topic_regexes=each.source_topic_regex,
                changelog_topics=_internal(each.state_changelog_topics),
                repartition_sink_topics=each.repartition_sink_topics,
                repartition_source_topics=_internal(each.repartition_source_topics),
                copartition_groups=tuple(
                    CopartitionGroup(one.source_topics, one.source_topic_regex, one.repartition_source_topics)
                    for one in each.copartition_groups
                ),
            )
            for each in told.subtopologies
        ),
    )


def _internal(topics: Any) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(topic.name, topic.partitions, topic.replication_factor, _pairs(topic.topic_configs))
        for topic in topics
    )


def _pairs(pairs: Any) -> tuple[tuple[str, str], ...]:
    return tuple((pair.key, pair.value) for pair in pairs)


def _reported(request: Any) -> Tasks | None:
    if request.active_tasks is None:
        return None
    return Tasks(*(_read(tasks) for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks)))


def _read(tasks: Any) -> TaskSet:
    found: dict[str, frozenset[int]] = {}
    for each in tasks:
        if each.partitions:
            found[each.subtopology_id] = found.get(each.subtopology_id, frozenset()).union(each.partitions)
    return found


# --- the answer -------------------------------------------------------------------------------------------------------


def _with_topics(answer: HeartbeatAnswer, group_id: str, ctx: RequestContext) -> HeartbeatAnswer:
    """Make what is missing, if the client may; and say why it will be missing still."""
    if not answer.missing:
        return answer
    refused: list[str] = []
    if not ctx.may(CREATE, CLUSTER, THE_CLUSTER):
        refused = [topic.name for topic in answer.missing if not ctx.may(CREATE, TOPIC, topic.name)]
    if refused:
        return _with_detail(answer, f"; Unauthorized to CREATE on topics {', '.join(refused)}.")
    failed = ctx.broker.groups.streams.make_topics(group_id, answer.missing, partial(ctx.mutate, strict=True))
    if not failed:
        return answer
    told = ", ".join(f"{name} ({reason})" for name, reason in list(failed.items())[:_SHOWN])
    more = len(failed) - _SHOWN
    return _with_detail(answer, f"; Creation failed: {told}" + (f" and {more} more" if more > 0 else "") + ".")


def _with_detail(answer: HeartbeatAnswer, detail: str) -> HeartbeatAnswer:
    def told(status: Status) -> Status:
        missing = status.code is StatusCode.MISSING_INTERNAL_TOPICS
        return Status(status.code, status.detail + detail) if missing else status

    return msgspec.structs.replace(answer, status=tuple(told(each) for each in answer.status))


def _fields(answer: HeartbeatAnswer, heartbeat_interval_ms: int) -> dict[str, Any]:
    tasks = answer.tasks
    return {
        "error_code": Code.none,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": 0 if answer.epoch < 0 else heartbeat_interval_ms,
        "status": [{"status_code": status.code, "status_detail": status.detail} for status in answer.status],
        "active_tasks": None if tasks is None else task_ids(tasks.active),
        "standby_tasks": None if tasks is None else task_ids(tasks.standby),
        "warmup_tasks": None if tasks is None else task_ids(tasks.warmup),
        "endpoint_information_epoch": answer.endpoint_epoch,
        "partitions_by_user_endpoint": None if answer.endpoints is None else _endpoints(answer.endpoints),
    }


def task_ids(tasks: TaskSet) -> list[dict[str, Any]]:
    """Tasks as the APIs list them."""
    return [{"subtopology_id": name, "partitions": sorted(numbers)} for name, numbers in sorted(tasks.items())]


def _endpoints(endpoints: Sequence[Endpoint]) -> list[dict[str, Any]]:
    def partitions(read: TaskSet) -> list[dict[str, Any]]:
        return [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in sorted(read.items())]

    return [
        {
            "user_endpoint": {"host": each.host, "port": each.port},
            "active_partitions": partitions(each.active),
            "standby_partitions": partitions(each.standby),
        }
        for each in endpoints
    ]
