"""Heartbeats of streams groups (KIP-1071), field by field."""

from collections.abc import Iterable, Mapping
from typing import Any

HEARTBEAT, DESCRIBE = 88, 89

NO_TASKS: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
UNCHANGED = dict.fromkeys(
    (*NO_TASKS, "process_id", "user_endpoint", "client_tags", "task_offsets", "task_end_offsets", "topology")
)


def a_topic(name: str, partitions: int = 0, **fields: Any) -> dict[str, Any]:
    """A repartition topic or a changelog."""
    return {"name": name, "partitions": partitions, "replication_factor": 0, "topic_configs": [], **fields}


def a_part(subtopology_id: str, *sources: str, **fields: Any) -> dict[str, Any]:
    """A subtopology that reads `sources`."""
    lists = ("source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics")
    part = {"subtopology_id": subtopology_id, "source_topics": list(sources), "copartition_groups": []}
    return {**part, **{name: [] for name in lists}, **fields}


def a_topology(*parts: Mapping[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(parts)}


def joins(group: str, member_id: str, topology: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """The first heartbeat of a member."""
    first = {**NO_TASKS, "topology": topology, "process_id": member_id, "rebalance_timeout": 60_000}
    return lives(group, member_id, 0, **{**first, **fields})


def lives(group: str, member_id: str, epoch: int, **fields: Any) -> dict[str, Any]:
    """A later one, with whatever has changed."""
    who = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
    return {**UNCHANGED, **who, "endpoint_information_epoch": -1, "shutdown_application": False, **fields}


def reports(active: Mapping[str, Iterable[int]], standby: Mapping[str, Iterable[int]] | None = None) -> dict[str, Any]:
    """The fields of a member that says which tasks it has."""
    return {**NO_TASKS, "active_tasks": _ids(active), "standby_tasks": _ids(standby or {})}


def _ids(tasks: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    return [{"subtopology_id": name, "partitions": sorted(numbers)} for name, numbers in tasks.items()]


def tasks_of(listed: Any) -> dict[str, list[int]]:
    """Subtopology: its tasks, of what an answer lists."""
    return {each.subtopology_id: sorted(each.partitions) for each in listed}
