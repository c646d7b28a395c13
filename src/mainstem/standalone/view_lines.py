"""How far the views of serving nodes are, by what their nodes say: in the catalog, to the audit, and as tasks."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mainstem.client.catalog import entries, view_reader
from mainstem.client.progress import NextOffsets
from mainstem.client.reports import Report
from mainstem.core.task import TaskState


class ViewLine(msgspec.Struct, frozen=True):
    """One view of one node.

    Attributes:
        view, node, kind: which it is.
        topics: that it answers from, by its settings' name for each.
        versions: of those that jobs write.
        position: up to where these are applied, as the node said last.
        lag: offsets to their ends; None before it has said anything.
        rows, quarantined: how many records were rows, and could not be decoded.
        state, why: what its process says of it (`TaskState`); "" where none does.
    """

    view: str
    node: str
    kind: str
    topics: dict[str, str]
    versions: dict[str, str]
    position: NextOffsets
    lag: int | None
    rows: int
    quarantined: int
    state: str = ""
    why: str = ""


def answering_topics(catalog: Mapping[str, dict[str, Any]]) -> set[str]:
    """The topics that views answer from."""
    return {
        topic
        for about in entries(catalog, "node").values()
        for view in about.get("views", {}).values()
        for topic in view.get("current", {}).values()
    }


def view_lines(
    catalog: Mapping[str, dict[str, Any]], reports: Iterable[Report], ends: NextOffsets, tasks: Iterable[TaskState]
) -> list[ViewLine]:
    """Every view of every node that the catalog has.

    Args:
        catalog: its entries.
        reports: what readers have told the audit.
        ends: of the topics that views answer from.
        tasks: of the project that is up.
    """
    said = {(each.reader, each.topic, each.partition): each for each in reports}
    states = {task.name: task for task in tasks}
    found = []
    for node, about in sorted(entries(catalog, "node").items()):
        for view, each in sorted(about.get("views", {}).items()):
            reader = view_reader(view, node)
            topics = each.get("current", {})
            books = [
                said[reader, topic, partition]
                for topic in topics.values()
                for partition in ends.get(topic, {})
                if (reader, topic, partition) in said
            ]
            position: NextOffsets = {}
            for read in books:
                position.setdefault(read.topic, {})[read.partition] = read.end
            lag = sum(
                max(0, end - position.get(topic, {}).get(partition, 0))
                for topic in topics.values()
                for partition, end in ends.get(topic, {}).items()
            )
            task = states.get(reader)
            found.append(
                ViewLine(
                    view,
                    node,
                    each["kind"],
                    topics,
                    each.get("versions", {}),
                    position,
                    lag if books or not lag else None,
                    sum(read.rows for read in books),
                    sum(read.quarantined for read in books),
                    task.state if task else "",
                    task.told if task else "",
                )
            )
    return found
