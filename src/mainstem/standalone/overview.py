"""What runs and how far it is: for `mainstem status`, `mainstem job`, and whoever shows it in another way."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client import topics
from mainstem.client.catalog import VIEW, current_versions, entries, outputs_of, read_catalog, retired_readers
from mainstem.client.compacted import read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, COMMITS, SOURCES, job_key
from mainstem.client.progress import Marker, NextOffsets, merge_positions
from mainstem.client.reports import Report, read_reports
from mainstem.client.topics import TopicDescription
from mainstem.client.writer import SourceState
from mainstem.connect.sources.file_lines import FilePosition
from mainstem.core import CorruptData, SystemClock, UserError
from mainstem.core.config import PROJECT_FILE, BadSetting, named_tables, overlay_environment, read_toml
from mainstem.core.prepared import prepared
from mainstem.core.task import TaskState
from mainstem.process.realtime_rules import EXACTLY_ONCE
from mainstem.process.versions import all_versions, asked_versions
from mainstem.registry.quarantine import REJECTED_PARTITION, quarantine_topic
from mainstem.standalone.disks import Disk, disk_of
from mainstem.standalone.state import UpState, is_up, load
from mainstem.standalone.tasks import load_tasks
from mainstem.standalone.view_lines import ViewLine, answering_topics, view_lines


class UnknownJob(UserError):
    """No version of a job is known."""


class JobState(msgspec.Struct, frozen=True):
    """One version of a job. `lag` is in offsets, over all inputs; None before its first batch, and of slices.

    `current`: readers of the job's plain name mean it: `job cutover` said so, or it was the first to start.
    `state` and `why` are what its process says of it (`TaskState`); "" where none does. One that has never run is known
    by them alone.
    """

    job: str
    version: str
    current: bool
    inputs: dict[str, str]
    output: str
    code: str
    determinism: str
    reason: str
    batch: int | None
    lag: int | None
    rows: int | None  # written to its outputs; None: not counted, as each is there at least once
    late: int = 0  # rows that were too late for its windows
    read: int = 0  # records of its streams
    rejected: int = 0  # rows that its function rejected
    undecodable: int = 0
    state: str = ""
    why: str = ""
    failure: dict[str, str] = {}  # batch, offsets and row of it, where they are known
    figures: dict[str, int] = {}  # of its last batch and its state, where it runs
    guarantee: str = EXACTLY_ONCE


class SourceLine(msgspec.Struct, frozen=True):
    """One source: where it is in what it reads, in its own words, and how many records it has written.

    `behind_bytes` of its file are not read yet; None where that is not known here: of a database, and of a file that
    has just been rotated.
    """

    source: str
    position: dict[str, Any]
    records: int
    behind_bytes: int | None = None


class ReaderLine(msgspec.Struct, frozen=True):
    """One destination and topic: the offset up to which it has everything, summed over partitions, and its lag."""

    reader: str
    topic: str
    lag: int
    rows: int
    quarantined: int


class Overview(msgspec.Struct, frozen=True):
    """`mainstem status --json`."""

    up: bool
    node: UpState | None = None
    tasks: list[TaskState] = []  # sources, sinks, jobs and views, as the processes that run them say
    sources: list[SourceLine] = []
    jobs: list[JobState] = []
    readers: list[ReaderLine] = []
    views: list[ViewLine] = []
    disk: Disk | None = None  # of the data directory


def overview(data: Path, connection: Connection | None) -> Overview:
    """Everything at once; what the log does not know yet is left out, and all that it knows
    where it does not answer.
    """
    running = is_up(data)
    node = load(data) if running else None
    tasks = tasks_of(data)
    if connection is None:
        return Overview(running, node, tasks, disk=disk_of(data))
    existing = topics.list_topics(connection)
    return Overview(
        running,
        node,
        tasks,
        _sources(connection, {} if node is None else _files(Path(node.project))) if SOURCES in existing else [],
        job_states(connection, tasks),
        *_readers_and_views(connection, existing, tasks),
        disk_of(data),
    )


def tasks_of(data: Path) -> list[TaskState]:
    """What the processes of a project say of their sources, sinks and jobs, where it is up; and the versions of jobs of
    which none does yet: their driver starts, or somebody has only just asked for them.
    """
    node = load(data) if is_up(data) else None
    said = load_tasks(data, [child.pid for child in node.children], SystemClock().now_ms()) if node else []
    there = {task.name for task in said}
    return said + [task for task in _to_start(data, up=node is not None) if task.name not in there]


def _to_start(data: Path, *, up: bool) -> list[TaskState]:
    try:
        if up:
            return [TaskState(f"job {job_key(each.job, each.version)}", "starting") for each in all_versions(data)]
        asked = [job_key(each.job, each.version) for each in asked_versions(data)]
    except CorruptData:  # `up` says so at its next start
        return []
    return [TaskState(f"job {key}", "asked for", error="the next `mainstem up` starts it") for key in asked]


def job_states(connection: Connection, tasks: Sequence[TaskState] = ()) -> list[JobState]:
    """Every version of every job that the catalog or one of `tasks` knows."""
    said = {task.name.removeprefix("job "): task for task in tasks if task.name.startswith("job ")}
    states = []
    for state in _in_catalog(connection):
        task = said.pop(job_key(state.job, state.version), None)
        states.append(state if task is None else _with_task(state, task))
    for key, task in said.items():  # they wait for their first start
        job, _, version = key.rpartition("@")
        states.append(_with_task(JobState(job, version, False, {}, "", "", "", "", None, None, 0), task))
    return sorted(states, key=lambda state: (state.job, state.version))


def _with_task(state: JobState, task: TaskState) -> JobState:
    return msgspec.structs.replace(state, state=task.state, why=task.told, failure=task.details, figures=task.figures)


def _in_catalog(connection: Connection) -> list[JobState]:
    """Those that have started once; nothing is to be read of an input that was deleted."""
    existing = topics.list_topics(connection)
    if COMMITS not in existing:
        return []
    markers = read_state(connection, COMMITS, Marker)
    states: list[JobState] = []
    catalog = read_catalog(connection)
    jobs, current = entries(catalog, "job"), current_versions(catalog)
    versions = [about for entry in jobs.values() for about in entry.get("versions", {}).values()]
    ends = _stable_offsets(
        connection, existing, {topic for about in versions for topic in about.get("inputs", {}).values()}
    )
    for job, entry in sorted(jobs.items()):
        for version, about in sorted(entry.get("versions", {}).items()):
            marker, is_sliced = markers.get(job_key(job, version)), about.get("sliced", False)
            state = JobState(
                job=job,
                version=version,
                current=current[job] == version,
                inputs=about.get("inputs", {}),
                output=about.get("output", ""),
                code=about.get("code", ""),
                determinism=about.get("determinism", ""),
                reason=about.get("reason", ""),
                batch=marker.batch if marker else None,
                lag=lag_of(merge_positions(marker.end_offsets), ends) if marker and not is_sliced else None,
                rows=0,
                state="on demand" if is_sliced else "",
                guarantee=about.get("guarantee", EXACTLY_ONCE),
            )
            states.append(msgspec.structs.replace(state, **_counted(marker, about)) if marker else state)
    return states


def _counted(marker: Marker, about: Mapping[str, Any]) -> dict[str, int | None]:
    """What a version has read and written, as its last commit says."""
    quarantine = marker.written.get(quarantine_topic(about.get("output", "")), {})
    outputs = [marker.written.get(topic, {}) for topic in outputs_of(about).values()]
    streams = [name for name, topic in about.get("inputs", {}).items() if topic not in about.get("tables", ())]
    read = [
        each for name in streams for partitions in marker.read.get(name, {}).values() for each in partitions.values()
    ]
    return {
        "rows": None if "guarantee" in about else sum(each.count for parts in outputs for each in parts.values()),
        "late": sum(each.late for each in read),
        "read": sum(each.count for each in read),
        "rejected": quarantine[REJECTED_PARTITION].count if REJECTED_PARTITION in quarantine else 0,
        "undecodable": sum(each.quarantined for each in read),
    }


def job_state(connection: Connection, job: str, tasks: Sequence[TaskState] = ()) -> list[JobState]:
    """The versions of one job.

    Raises:
        UnknownJob: neither the catalog nor one of `tasks` has such a job.
    """
    found = [state for state in job_states(connection, tasks) if state.job == job]
    if not found:
        raise UnknownJob(f"job {job}: no such job runs, or has run", hint="`mainstem job list` shows the jobs")
    return found


def lag_of(positions: NextOffsets, ends: dict[str, dict[int, int]]) -> int:
    """How many offsets lie between `positions` and `ends`, in the topics that `positions` names."""
    return sum(
        max(0, ends.get(topic, {}).get(partition, 0) - offset)
        for topic, partitions in positions.items()
        for partition, offset in partitions.items()
    )


def _files(project: Path) -> dict[str, Path]:
    """The file of each file source of a project; none where its settings cannot be read any more."""
    where = project / PROJECT_FILE
    try:
        tables = named_tables(overlay_environment(read_toml(where)), "sources", where=where)
    except BadSetting:
        return {}
    return {name: project / str(table["path"]) for name, table in tables.items() if "path" in table}


def _behind_bytes(position: dict[str, Any], file: Path) -> int | None:
    try:
        found, read = file.stat(), msgspec.convert(position, prepared(FilePosition))
    except (OSError, msgspec.ValidationError):
        return None
    return max(0, found.st_size - read.position) if found.st_ino == read.inode else None


def _sources(connection: Connection, files: Mapping[str, Path]) -> list[SourceLine]:
    lines = []
    for name, state in sorted(read_state(connection, SOURCES, SourceState).items()):
        records = sum(total.count for partitions in state.written.values() for total in partitions.values())
        behind = _behind_bytes(state.position, files[name]) if name in files else None
        lines.append(SourceLine(name, state.position, records, behind))
    return lines


def _stable_offsets(
    connection: Connection, existing: Mapping[str, TopicDescription], wanted: Iterable[str]
) -> dict[str, dict[int, int]]:
    there = {topic: existing[topic].partitions for topic in sorted(wanted) if topic in existing}
    return topics.stable_offsets(connection, there)


def _readers_and_views(
    connection: Connection, existing: Mapping[str, TopicDescription], tasks: Sequence[TaskState]
) -> tuple[list[ReaderLine], list[ViewLine]]:
    catalog = read_catalog(connection) if CATALOG in existing else {}
    reports: dict[tuple[str, str], list[Report]] = {}
    of_views: list[Report] = []
    retired = retired_readers(catalog)
    for report in read_reports(connection, existing):
        if report.reader.startswith(VIEW):
            of_views.append(report)
        elif report.reader not in retired:
            reports.setdefault((report.reader, report.topic), []).append(report)
    ends = _stable_offsets(connection, existing, {topic for _, topic in reports} | answering_topics(catalog))
    lines = []
    for (reader, topic), said in sorted(reports.items()):
        if topic not in ends:  # deleted
            continue
        lag = lag_of({topic: {each.partition: each.end for each in said}}, ends)
        rows, quarantined = sum(each.rows for each in said), sum(each.quarantined for each in said)
        lines.append(ReaderLine(reader, topic, lag, rows, quarantined))
    return lines, view_lines(catalog, of_views, ends, tasks)
