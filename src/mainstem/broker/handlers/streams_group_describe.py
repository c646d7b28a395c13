"""StreamsGroupDescribe, API 89, version 0 (KIP-1071).

Behaviour: epochs, topology and members of streams groups, with the tasks that each has and is to have. The topology has
the numbers of partitions that were worked out for it, while it can run; else it is as it was brought. Groups of other
protocols are GROUP_ID_NOT_FOUND, as groups that are not there. One that is asked for many times is told once.

Offsets of tasks are not told, as in Kafka 4.3, and no member is a classic one.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mainstem.broker.group_descriptions import Description
from mainstem.broker.groups.streams.configured import ConfiguredSubtopology
from mainstem.broker.groups.streams.group import StreamsGroup
from mainstem.broker.groups.streams.tasks import Tasks
from mainstem.broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from mainstem.broker.handlers import RequestContext, handler
from mainstem.broker.handlers.streams_group_heartbeat import task_ids

_HIDDEN: Final = "The described group uses topics that the client is not authorized to describe."


@handler(89, failure=lambda request, code: _DESCRIPTION.all_missing(request, code, None))
async def streams_group_describe(request: Any, ctx: RequestContext) -> dict[str, Any]:
    return await _DESCRIPTION.answer(request, ctx, ctx.broker.groups.streams)


def _described(group: StreamsGroup) -> dict[str, Any]:
    return {
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "topology": None if group.topology is None else _topology(group.topology, group),
        "members": [_member(member_id, group) for member_id in group.members],
    }


def _all_topics(group: StreamsGroup) -> Iterable[str]:
    parts = () if group.topology is None else group.topology.subtopologies
    return (name for each in parts for name in each.all_topics)


def _topology(topology: Topology, group: StreamsGroup) -> dict[str, Any]:
    found = group.configured()
    parts: Mapping[str, ConfiguredSubtopology | Subtopology] = (
        found.subtopologies
        if found is not None and found.is_ready
        else {each.subtopology_id: each for each in topology.subtopologies}
    )
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": subtopology_id,
                "source_topics": sorted(part.source_topics),
                "repartition_sink_topics": sorted(part.repartition_sink_topics),
                "state_changelog_topics": _topics(part.changelog_topics),
                "repartition_source_topics": _topics(part.repartition_source_topics),
            }
            for subtopology_id, part in sorted(parts.items())
        ],
    }


def _topics(topics: Iterable[InternalTopic]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "topic_configs": _pairs(topic.configs),
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in pairs]


def _member(member_id: str, group: StreamsGroup) -> dict[str, Any]:
    member, current = group.members[member_id], group.current(member_id)
    endpoint = None if member.endpoint is None else dict(zip(("host", "port"), member.endpoint, strict=True))
    return {
        "member_id": member_id,
        "member_epoch": current.epoch,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process_id,
        "user_endpoint": endpoint,
        "client_tags": _pairs(member.client_tags),
        "task_offsets": [],
        "task_end_offsets": [],
        "assignment": _assignment(current.assigned.without_epochs()),
        "target_assignment": _assignment(group.target(member_id)),
        "is_classic": False,
    }


def _assignment(tasks: Tasks) -> dict[str, Any]:
    return {
        f"{kind}_tasks": task_ids(found)
        for kind, found in zip(("active", "standby", "warmup"), tasks.kinds, strict=True)
    }


_DESCRIPTION: Final[Description[StreamsGroup]] = Description(_described, _all_topics, {"topology": None}, _HIDDEN)
