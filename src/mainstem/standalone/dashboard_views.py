"""The views of serving nodes, as the dashboard shows them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from mainstem.client.catalog import view_reader
from mainstem.client.progress import NextOffsets
from mainstem.core.prepared import prepared
from mainstem.core.task import TaskState
from mainstem.dash.nodes import Nodes
from mainstem.dash.state import Edge, Node, View
from mainstem.serve.config import ViewConfig
from mainstem.standalone.view_lines import ViewLine


class _Moving(msgspec.Struct, frozen=True):
    """An index of versions that are to answer next."""

    versions: dict[str, str]
    why: str = ""


class _Told(msgspec.Struct, frozen=True):
    """What a node says of a view."""

    ready: bool
    position: NextOffsets
    state: str
    why: str
    versions: dict[str, str] = {}
    moving: _Moving | None = None


def view_states(
    nodes: Nodes, ends: NextOffsets, lines: Iterable[ViewLine] = (), tasks: Mapping[str, TaskState] | None = None
) -> list[View]:
    """Every view of every node, those of nodes that do not answer too.

    Args:
        nodes: of the project; they are asked now.
        ends: of the topics.
        lines: what `mainstem status` knows of them: their rows.
        tasks: what their processes have said of them, by `view_reader`: what has failed counts, whatever the node says.
    """
    told, rows = nodes.look(), {(line.node, line.view): line.rows for line in lines}
    found = [
        msgspec.structs.replace(_view(node, name, view, told[node], ends), rows=rows.get((node, name), 0))
        for node, config in nodes.configs.items()
        for name, view in config.views.items()
    ]
    return [_said(view, (tasks or {}).get(view_reader(view.view, view.node))) for view in found]


def _said(view: View, task: TaskState | None) -> View:
    if task is None or task.state not in ("waiting", "failed") or view.state == task.state:
        return view
    return msgspec.structs.replace(view, state=task.state, why=task.told)


def view_nodes(views: Sequence[View]) -> tuple[list[Node], set[Edge]]:
    """A node of the path for each view, however many serving nodes keep it; the slowest of them counts."""
    same: dict[tuple[str, str, tuple[str, ...]], list[View]] = {}
    for view in views:
        same.setdefault((view.view, view.kind, tuple(view.topics)), []).append(view)
    nodes, edges = [], set[Edge]()
    for (name, kind, topics), copies in same.items():
        first = copies[0]
        count, lags = min(each.count for each in copies), [each.lag for each in copies]
        bad = next((each for each in copies if each.state != "running" and each.why), None)
        some = f"{sum(each.state == 'running' for each in copies)} of {len(copies)} run"
        node = Node(
            f"view:{first.node}/{name}",
            "view",
            name,
            count,
            lag=None if None in lags else max(each for each in lags if each is not None),
            position=f"{min(each.rows for each in copies):,} rows",
            state=some if len({each.state for each in copies}) > 1 else first.state,
            error="" if bad is None else f"{bad.node}: {bad.why}",
            detail=_detail(kind, copies),
            page=f"/views/{quote(first.node, safe='')}/{quote(name, safe='')}",
        )
        nodes.append(node)
        read = {topic for each in copies for topic in each.reads} or set(topics)
        edges |= {Edge(f"topic:{topic}", node.id) for topic in read}
    return nodes, edges


def _detail(kind: str, copies: Sequence[View]) -> str:
    if moving := next((each.moving for each in copies if each.moving), ""):
        return moving
    of = {version for each in copies for version in each.versions.values()}
    version = f", version {' and '.join(sorted(of))}" if of else ""
    return f"{kind}{version}, {len(copies)} node{'s' * (len(copies) != 1)}"


def _view(node: str, name: str, config: ViewConfig, told: Mapping[str, Any] | str, ends: NextOffsets) -> View:
    view = View(node, name, config.kind, list(config.names))
    if isinstance(told, str):
        return msgspec.structs.replace(view, state="no answer", why=told)
    try:
        about = msgspec.convert(told.get(name), prepared(_Told), strict=False)
    except msgspec.ValidationError as error:
        return msgspec.structs.replace(view, state="no answer", why=f"it does not know this view: {error}")
    return msgspec.structs.replace(
        view,
        reads=sorted(about.position),
        state="reading" if about.state == "running" and not about.ready else about.state,
        why=about.why,
        versions=about.versions,
        moving=_moving(about.moving) if about.moving else "",
        count=sum(offset for offsets in about.position.values() for offset in offsets.values()),
        lag=_lag(about.position, ends) if about.position else None,
    )


def _moving(moving: _Moving) -> str:
    to = ", ".join(f"version {version} of {topic}" for topic, version in sorted(moving.versions.items()))
    return f"moves to {to}{f': {moving.why}' if moving.why else ''}"


def _lag(position: NextOffsets, ends: NextOffsets) -> int:
    """How many offsets lie after `position`; the ends were asked for before it."""
    return sum(
        max(0, offset - position[topic].get(partition, 0))
        for topic in position
        for partition, offset in ends.get(topic, {}).items()
    )
