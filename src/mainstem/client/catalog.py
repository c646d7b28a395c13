"""The catalog: what every name of a project means. Key `topic:<name>`, `job:<name>`, …; the value is JSON."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from mainstem.client.append import append
from mainstem.client.compacted import NOT_OURS, read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, job_key
from mainstem.client.progress import NextOffsets
from mainstem.core import CorruptData, UserError
from mainstem.core.prepared import prepared

KINDS = ("topic", "job", "source", "sink", "project", "node", "current")
RETIRED = "retired"
"""Of a job's entry: the versions that never run again. Of a sink's: true where its project has it no more."""


VIEW = "view "
"""How the name begins under which a view speaks to the audit; no sink has such a name."""


class TopicEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a topic is, for whoever reads it."""

    kind: str = "stream"  # or "changelog"
    key: tuple[str, ...] = ()  # columns of the key, in order
    event_time: str | None = None  # the column that holds it
    subject: str | None = None  # of its values, in the registry
    producer: str | None = None  # `source:<name>`, `job:<name>` or `splice:<name>`


CURRENT = "current:jobs"
"""The one record that says which versions are current: a cutover of several jobs is read as a whole, or not at all."""


class Cutover(msgspec.Struct, frozen=True):
    """What the record says of one job. Those that were moved together have the same time."""

    version: str
    previous: str  # the one that a revert leads to
    since_ms: int
    at: NextOffsets = {}  # what the version had reached: of what it is made of, and of its output
    ends: NextOffsets = {}  # of a stream that is spliced: where both outputs ended when both versions had read the same


def read_catalog(connection: Connection, *, linearizable: bool = False) -> dict[str, dict[str, Any]]:
    """Every entry by its key, as of now. Whoever changes what is there does it with `catalog_changes`."""
    return read_state(connection, CATALOG, dict[str, Any], linearizable=linearizable)


def entries(catalog: Mapping[str, dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """The entries of one kind by name: `entries(catalog, "topic")["shop.orders"]`."""
    assert kind in KINDS, kind
    return {key.partition(":")[2]: value for key, value in catalog.items() if key.startswith(f"{kind}:")}


def topic_entries(catalog: Mapping[str, dict[str, Any]]) -> dict[str, TopicEntry]:
    """What the catalog says of each topic, by its name.

    Raises:
        CorruptData: an entry is not one of ours.
    """
    return {name: _topic_entry(name, value) for name, value in entries(catalog, "topic").items()}


def retired_readers(catalog: Mapping[str, dict[str, Any]]) -> set[str]:
    """Who reads no more, by the names under which they speak to the audit: versions of jobs (`job_key` makes their
    names), and sinks.
    """
    versions = {
        job_key(job, version) for job, about in entries(catalog, "job").items() for version in about.get(RETIRED, ())
    }
    return versions | {sink.get("reader", name) for name, sink in entries(catalog, "sink").items() if sink.get(RETIRED)}


def sinks_of(catalog: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries of the sinks that are not retired, by name."""
    return {name: sink for name, sink in entries(catalog, "sink").items() if not sink.get(RETIRED)}


def view_reader(view: str, node: str) -> str:
    """The name under which a view of a serving node speaks to the audit."""
    return f"{VIEW}{view}@{node}"


def view_reads(catalog: Mapping[str, dict[str, Any]]) -> dict[str, set[str]]:
    """The topics that views of serving nodes read, by the names under which they speak to the audit. What others of
    that kind have said is of views, or of topics of views, that are no more.
    """
    return {
        view_reader(view, node): set(about.get("reads", ()))
        for node, entry in entries(catalog, "node").items()
        for view, about in entry.get("views", {}).items()
    }


def users_of(catalog: Mapping[str, dict[str, Any]], topic: str) -> tuple[list[str], list[str]]:
    """Who writes a topic and who reads it, as people call them: `source shop`, `job totals@1`, `sink lakehouse`,
    `splice totals.all`.
    """
    producer = topic_entries(catalog).get(topic, TopicEntry()).producer or ""
    writers, readers = [producer.replace(":", " ", 1)] if producer.startswith(("source:", "splice:")) else [], []
    jobs = set()  # that write it
    for job, about in entries(catalog, "job").items():
        for version, each in about.get("versions", {}).items():
            if topic in outputs_of(each):
                writers.append(f"job {job_key(job, version)}")
                jobs.add(job)
            if topic in each.get("inputs", {}).values():
                readers.append(f"job {job_key(job, version)}")
    for sink, about in sinks_of(catalog).items():
        if topic in about.get("topics", ()) or re.fullmatch(about.get("pattern", ""), topic):
            readers.append(f"sink {sink}")
    readers += [reader for reader, topics in view_reads(catalog).items() if topic in topics]
    readers += [f"splice {splice}" for splice, job in spliced_jobs(catalog).items() if job in jobs]
    return writers, readers


def outputs_of(version: Mapping[str, Any]) -> dict[str, str]:
    """The topics that a version of a job writes, by what the job's declaration calls them; `output` is the first."""
    first, also = version.get("output"), version.get("also", {})
    return {**({first: first} if first else {}), **also}


def named_outputs(version: str, about: Mapping[str, Any]) -> dict[str, str]:
    """The same by the names that they go by where the version is current."""
    return {plain_name(version, topic): topic for topic in outputs_of(about).values()}


def plain_name(version: str, output: str) -> str:
    """The name that the output of a version goes by where it is current: that of the job's topic."""
    return output if version == "1" else output.removesuffix(f".v{version}")


def cutovers(catalog: Mapping[str, dict[str, Any]]) -> dict[str, Cutover]:
    """What the record of current versions says, by job.

    Raises:
        CorruptData: it is none of ours.
    """
    try:
        return msgspec.convert(catalog.get(CURRENT, {}).get("jobs", {}), prepared(dict[str, Cutover]), strict=False)
    except msgspec.ValidationError as error:
        raise CorruptData(
            f"{CATALOG}: key {CURRENT!r}: expected JSON as Mainstem writes it: {error}", hint=NOT_OURS
        ) from error


def current_versions(catalog: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The version of each job that readers of its plain name mean; "" where none is left.

    The record says it; of a job that it does not name, and of one whose version was retired since, the job's own entry.
    """
    moved = cutovers(catalog)
    found = {}
    for job, entry in entries(catalog, "job").items():
        named = moved[job].version if job in moved else ""
        found[job] = named if named in entry.get("versions", {}) else entry.get("current", "")
    return found


def previous_versions(catalog: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The version of each job that a revert leads to, of those that have one."""
    jobs, current = entries(catalog, "job"), current_versions(catalog)
    return {
        job: each.previous
        for job, each in cutovers(catalog).items()
        if each.previous in jobs.get(job, {}).get("versions", {}) and each.previous != current[job]
    }


def with_cutover(
    catalog: Mapping[str, dict[str, Any]],
    targets: Mapping[str, str],
    at: Mapping[str, NextOffsets],
    now_ms: int,
    ends: Mapping[str, NextOffsets] = MappingProxyType({}),
) -> dict[str, Any]:
    """What to write so that these versions are current, all at once. Each leads back to the one that is current now.

    Args:
        catalog: as it is now.
        targets: the version of each job that is moved.
        at: what each of them has reached.
        now_ms: the time.
        ends: where the outputs of both versions ended at one position, of those that were held there.

    Raises:
        UserError: one was never started, was retired, or is current already.
    """
    jobs, current = entries(catalog, "job"), current_versions(catalog)
    moved = cutovers(catalog)
    for job, version in targets.items():
        check_target(jobs, current, job, version)
        moved[job] = Cutover(version, current[job], now_ms, at.get(job, {}), ends.get(job, {}))
    return {CURRENT: {"jobs": msgspec.to_builtins(moved, str_keys=True)}}


def spliced_jobs(catalog: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The job of each splice that a project on this log has."""
    return {name: job for each in entries(catalog, "project").values() for name, job in each.get("splices", {}).items()}


def way_back(catalog: Mapping[str, dict[str, Any]], jobs: Iterable[str]) -> dict[str, str]:
    """The version that each of these jobs goes back to. A revert is a cutover too: reverted once more, it goes forward.

    Raises:
        UserError: there is none.
    """
    previous, moved, targets = previous_versions(catalog), cutovers(catalog), {}
    for job in jobs:
        if job not in previous:
            gone = f"version {moved[job].previous} was retired" if job in moved else "it was never cut over"
            raise UserError(
                f"job {job}: expected a version to go back to, found none: {gone}",
                hint=f"`mainstem job versions {job}` shows those that there are",
            )
        targets[job] = previous[job]
    return targets


def check_target(jobs: Mapping[str, dict[str, Any]], current: Mapping[str, str], job: str, version: str) -> None:
    """Refuse a version that readers cannot be moved to.

    Raises:
        UserError: it was never started, was retired, or is current already.
    """
    entry, key = jobs.get(job, {}), job_key(job, version)
    if version in entry.get(RETIRED, ()):
        raise retired(job, version)
    if version not in entry.get("versions", {}):
        raise UserError(
            f"job {key} has never started on this log",
            hint=f"`mainstem job versions {job}` shows those that have"
            if entry
            else "`mainstem job list` shows the jobs",
        )
    if current[job] == version:
        raise UserError(f"job {key} is current already", hint=f"`mainstem job versions {job}` shows the others")


def retired(job: str, version: str) -> UserError:
    """Why readers cannot be moved to a version that never runs again."""
    return UserError(
        f"job {job_key(job, version)} was retired, and never runs again",
        hint=f"`mainstem job versions {job}` shows those that run",
    )


def write_catalog(connection: Connection, changes: Mapping[str, Any]) -> int:
    """Write entries by key; None removes one. Durable on return, which is the catalog's next offset after them.

    It is for an entry that its one writer knows as a whole: a source's, a serving node's. What others may have changed
    is changed with `catalog_changes`.
    """
    return append(connection, CATALOG, encoded(changes)).get(0, 0)


def encoded(changes: Mapping[str, Any]) -> list[tuple[bytes, bytes | None]]:
    """Entries as the catalog's records have them, key and value."""
    for key in changes:
        assert key.partition(":")[0] in KINDS, key
    encode = msgspec.json.encode
    return [(key.encode(), None if value is None else encode(value)) for key, value in changes.items()]


def _topic_entry(name: str, value: dict[str, Any]) -> TopicEntry:
    try:
        return msgspec.convert(value, prepared(TopicEntry))
    except msgspec.ValidationError as error:
        raise CorruptData(
            f"{CATALOG}: key 'topic:{name}': expected JSON as Mainstem writes it: {error}", hint=NOT_OURS
        ) from error
