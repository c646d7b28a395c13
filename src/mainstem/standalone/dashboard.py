"""What the dashboard shows: the overview, and who writes and reads what."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mainstem.client import topics
from mainstem.client.catalog import previous_versions, read_catalog, sinks_of, topic_entries
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, SOURCES, job_key
from mainstem.client.writer import SourceState
from mainstem.connect.sources.postgres_pgoutput import format_lsn
from mainstem.core import SystemClock
from mainstem.core.task import TaskState
from mainstem.dash.graph import layered
from mainstem.dash.nodes import Nodes
from mainstem.dash.state import Edge, JobVersion, Node, Process, State, View
from mainstem.standalone.dashboard_views import view_nodes, view_states
from mainstem.standalone.overview import JobState, Overview, ReaderLine, SourceLine, overview


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
    tasks = {task.name: task for task in seen.tasks}
    found = [_topic(name, offsets) for name, offsets in sorted(ends.items())]
    edges: set[Edge] = set()

    written = read_state(connection, SOURCES, SourceState) if SOURCES in existing else {}
    sources = {line.source: line for line in seen.sources}
    sources |= {name: SourceLine(name, {}, 0) for name in _named(tasks, "source ") if name not in sources}
    for name, line in sources.items():
        found.append(_source(line, tasks.get(f"source {name}")))
        edges |= {Edge(f"source:{name}", f"topic:{topic}") for topic in getattr(written.get(name), "written", {})}
    for name, entry in topic_entries(catalog).items():
        if (entry.producer or "").startswith("source:"):
            edges.add(Edge(str(entry.producer), f"topic:{name}"))

    for job in seen.jobs:
        found.append(_job(job))
        edges |= {Edge(f"topic:{topic}", found[-1].id) for topic in job.inputs.values()}
        edges.add(Edge(found[-1].id, f"topic:{job.output}"))

    jobs = {job_key(job.job, job.version) for job in seen.jobs}
    sinks = sinks_of(catalog)
    for name in sorted({*sinks, *_named(tasks, "sink ")}):
        about = sinks.get(name, {})
        reader = about.get("reader", name)
        lines = [line for line in seen.readers if line.reader == reader and line.reader not in jobs]
        found.append(_sink(name, lines, tasks.get(f"sink {name}")))
        pattern = about.get("pattern")
        matched = {topic for topic in ends if pattern is not None and re.fullmatch(pattern, topic)}
        read = matched | set(about.get("topics", ())) | {line.topic for line in lines}
        edges |= {Edge(f"topic:{topic}", f"sink:{name}") for topic in read}

    previous = previous_versions(catalog)
    views: list[View] = []
    if nodes is not None:
        nodes.see(catalog)
        views = view_states(nodes, ends, seen.views)
        cards, reads = view_nodes(views)
        found += cards
        edges |= reads

    known = {node.id for node in found}
    drawn = sorted((e for e in edges if {e.source, e.target} <= known), key=lambda edge: (edge.source, edge.target))
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


def _named(tasks: dict[str, TaskState], kind: str) -> list[str]:
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
        job.rows,
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
