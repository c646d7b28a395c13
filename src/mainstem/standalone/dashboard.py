"""What the dashboard shows: the overview, and who writes and reads what."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from mainstem.client import topics
from mainstem.client.catalog import previous_versions, read_catalog, sinks_of, topic_entries
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, SOURCES, job_key
from mainstem.client.progress import NextOffsets
from mainstem.client.splices import At, source_name
from mainstem.client.writer import SourceState
from mainstem.connect.sources.postgres_pgoutput import format_lsn
from mainstem.core import SystemClock
from mainstem.core.prepared import prepared
from mainstem.core.task import TaskState
from mainstem.dash.graph import layered
from mainstem.dash.nodes import Nodes
from mainstem.dash.state import Edge, JobVersion, Node, Process, State, View
from mainstem.standalone.dashboard_views import view_nodes, view_states
from mainstem.standalone.overview import JobState, Overview, ReaderLine, SourceLine, lag_of, overview
from mainstem.standalone.tasks import whole_tasks

_SPLICES = source_name("")  # how the names begin under which splices keep their positions, beside sources

Part: TypeAlias = tuple[list[Node], set[Edge]]
"""Nodes of one kind, and what leads to them or away from them; also to what is not there."""


def dashboard_state(data: Path, connection: Connection, project: str, nodes: Nodes | None = None) -> State:
    """The state of now. Topics whose names begin with _ are not shown.

    Args:
        data: the project's data directory.
        connection: the log.
        project: its name.
        nodes: its serving nodes.

    Raises:
        BrokerUnavailable: the log does not answer.
    """
    seen = overview(data, connection)
    existing = topics.list_topics(connection)
    catalog = read_catalog(connection) if CATALOG in existing else {}
    partitions = {name: each.partitions for name, each in existing.items() if not name.startswith("_")}
    ends = topics.stable_offsets(connection, partitions)
    tasks = whole_tasks(seen.tasks)
    written = read_state(connection, SOURCES, SourceState) if SOURCES in existing else {}
    views: list[View] = []
    if nodes is not None:
        nodes.see(catalog)
        views = view_states(nodes, ends, seen.views, tasks)
    parts = [
        _topics(ends, catalog),
        _sources(seen, tasks, written),
        _splices(seen, tasks, written, ends),
        _jobs(seen),
        _sinks(seen, tasks, sinks_of(catalog), ends.keys()),
        view_nodes(views),
    ]
    found = [node for cards, _ in parts for node in cards]
    known = {node.id for node in found}
    edges = {edge for _, each in parts for edge in each if {edge.source, edge.target} <= known}
    drawn = sorted(edges, key=lambda edge: (edge.source, edge.target))
    previous = previous_versions(catalog)
    return State(
        SystemClock().now_ms(),
        project,
        layered(found, drawn),
        drawn,
        _processes(seen),
        [_version(job, previous) for job in seen.jobs],
        views,
        str(seen.disk) if seen.disk is not None and seen.disk.is_low else "",
    )


def _topics(ends: NextOffsets, catalog: Mapping[str, dict[str, Any]]) -> Part:
    """All topics, and which source the catalog says writes one."""
    edges = {
        Edge(entry.producer, f"topic:{name}")
        for name, entry in topic_entries(catalog).items()
        if entry.producer is not None and entry.producer.startswith(("source:", _SPLICES))
    }
    return [_topic(name, offsets) for name, offsets in sorted(ends.items())], edges


def _sources(seen: Overview, tasks: Mapping[str, TaskState], written: Mapping[str, SourceState]) -> Part:
    """Those that have written, and those whose process has begun; each with the topics that it has written."""
    lines = {line.source: line for line in seen.sources if not line.source.startswith(_SPLICES)}
    lines |= {name: SourceLine(name, {}, 0) for name in _named(tasks, "source ") if name not in lines}
    edges = {
        Edge(f"source:{name}", f"topic:{topic}") for name in lines if name in written for topic in written[name].written
    }
    return [_source(line, tasks.get(f"source {name}")) for name, line in lines.items()], edges


def _splices(
    seen: Overview, tasks: Mapping[str, TaskState], written: Mapping[str, SourceState], ends: NextOffsets
) -> Part:
    """Each between the output of the version that it passes on and its own topic."""
    records = {line.source.removeprefix(_SPLICES): line.records for line in seen.sources}
    there = (name.removeprefix(_SPLICES) for name in written if name.startswith(_SPLICES))
    nodes, edges = [], set()
    for name in sorted({*there, *_named(tasks, "splice ")}):
        state = written.get(source_name(name))
        at = msgspec.convert(state.position, prepared(At), strict=False) if state is not None else None
        node = Node(f"splice:{name}", "splice", name, records.get(name, 0) if at else 0)
        if at is not None:
            node = msgspec.structs.replace(node, position=_moves(at), lag=lag_of({at.output: at.offsets}, ends))
            edges.add(Edge(f"topic:{at.output}", node.id))
        edges.add(Edge(node.id, f"topic:{name}"))
        nodes.append(_said(node, tasks.get(f"splice {name}")))
    return nodes, edges


def _moves(at: At) -> str:
    return f"version {at.version}" if at.move is None else f"moves to version {at.move.version}"


def _jobs(seen: Overview) -> Part:
    """Each version, with what it reads and writes."""
    nodes, edges = [], set()
    for job in seen.jobs:
        node = _job(job)
        nodes.append(node)
        edges |= {Edge(f"topic:{topic}", node.id) for topic in job.inputs.values()}
        edges.add(Edge(node.id, f"topic:{job.output}"))
    return nodes, edges


def _sinks(
    seen: Overview, tasks: Mapping[str, TaskState], sinks: Mapping[str, dict[str, Any]], topics: Iterable[str]
) -> Part:
    """Those of the catalog, and those whose process has begun; each with the topics that it is told to read, or says
    that it has.
    """
    nodes, edges = [], set()
    jobs = {job_key(job.job, job.version) for job in seen.jobs}
    for name in sorted({*sinks, *_named(tasks, "sink ")}):
        about = sinks.get(name, {})
        reader, pattern = about.get("reader", name), about.get("pattern")
        lines = [line for line in seen.readers if line.reader == reader and line.reader not in jobs]
        nodes.append(_sink(name, lines, tasks.get(f"sink {name}")))
        matched = {topic for topic in topics if pattern is not None and re.fullmatch(pattern, topic)}
        read = matched | set(about.get("topics", ())) | {line.topic for line in lines}
        edges |= {Edge(f"topic:{topic}", f"sink:{name}") for topic in read}
    return nodes, edges


def _named(tasks: Mapping[str, TaskState], kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in tasks if name.startswith(kind)]


def _said(node: Node, task: TaskState | None) -> Node:
    return msgspec.structs.replace(node, state=task.state, error=task.told) if task else node


def _topic(name: str, offsets: dict[int, int]) -> Node:
    count = sum(offsets.values())
    parts = f"{len(offsets)} partition{'s' * (len(offsets) != 1)}"
    return Node(f"topic:{name}", "topic", name, count, position=f"offset {count:,}", detail=parts)


def _source(line: SourceLine, task: TaskState | None) -> Node:
    name, lag = line.source, line.behind_bytes
    node = Node(f"source:{name}", "source", name, line.records, lag=lag, lag_unit="bytes", position=_position(line))
    return _said(node, task)


def _position(line: SourceLine) -> str:
    """In a few words: the whole of it is in `mainstem status`."""
    if "lsn" in line.position:
        return f"lsn {format_lsn(int(line.position['lsn']))}"
    if "position" in line.position:
        return f"byte {line.position['position']:,}"
    return f"{line.records:,} records"


def _job(job: JobState) -> Node:
    key = job_key(job.job, job.version)
    position = "" if job.batch is None else f"batch {job.batch:,}"
    detail = f"version {job.version}{', current' if job.current else ''}"
    return Node(
        f"job:{key}",
        "job",
        job.job,
        job.read if job.rows is None else job.rows,
        lag=job.lag,
        position=position,
        state=job.state,
        error=job.why,
        detail=detail,
    )


def _sink(name: str, lines: list[ReaderLine], task: TaskState | None) -> Node:
    rows, undecodable = sum(line.rows for line in lines), sum(line.quarantined for line in lines)
    lag = sum(line.lag for line in lines) if lines else None
    detail = f"{len(lines)} topic{'s' * (len(lines) != 1)}{f', {undecodable:,} undecodable' if undecodable else ''}"
    node = Node(f"sink:{name}", "sink", name, rows, lag=lag, position=f"{rows:,} rows", detail=detail)
    return _said(node, task)


def _version(job: JobState, previous: Mapping[str, str]) -> JobVersion:
    fields = {name: getattr(job, name) for name in JobVersion.__struct_fields__ if name not in ("previous", "rate")}
    is_previous = previous.get(job.job) == job.version
    return JobVersion(**fields | {"inputs": sorted(job.inputs.values()), "previous": is_previous})


def _processes(seen: Overview) -> list[Process]:
    children = seen.node.children if seen.node else []
    return [
        Process(each.name, each.state, each.pid, each.restarts, "" if each.state == "running" else each.last_error)
        for each in children
    ]
