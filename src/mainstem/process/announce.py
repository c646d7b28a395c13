"""Tell the catalog of versions that start: what each writes, and that it is one of its job's."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import TopicEntry
from mainstem.client.catalog_changes import change_if_needed
from mainstem.client.connection import Connection
from mainstem.process.job import JobSpec
from mainstem.process.versions import is_retired
from mainstem.registry.spark import subject_of


def announce(connection: Connection, data: Path, kinds: Iterable[tuple[JobSpec, str]]) -> None:
    """Tell the catalog of versions, all at once; nothing is written if it knows. Of one that is retired meanwhile it
    learns nothing: `retire` marks it first, and tells the catalog last.

    Args:
        connection: the log.
        data: the data directory that they start from.
        kinds: the versions, each with the kind of its output: stream or changelog.
    """
    told = [(spec.fixed.job, spec.fixed.version, *_entries(spec, kind)) for spec, kind in kinds]

    def change(catalog: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for job, version, topic, about in told:
            if is_retired(data, job, version):
                continue
            key = f"job:{job}"
            entry = dict(wanted.get(key) or catalog.get(key, {}))
            entry["versions"] = entry.get("versions", {}) | {version: about}
            entry["current"] = entry.get("current") or version
            wanted |= {key: entry, f"topic:{about['output']}": topic}
        return {key: value for key, value in wanted.items() if catalog.get(key) != value}

    change_if_needed(connection, change)


def _entries(spec: JobSpec, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What there is to say of the output, and of the version."""
    fixed, analysis = spec.fixed, spec.analysis
    topic = TopicEntry(kind, spec.job.key, analysis.event_time, subject_of(fixed.output), f"job:{fixed.job}")
    about = {
        "code": fixed.sha,
        "output": fixed.output,
        "inputs": {each.parameter: each.topic for each in spec.inputs},
        "tables": [each.topic for each in spec.inputs if each.kind == "changelog"],
        "determinism": analysis.determinism.value,
        "reason": analysis.reason,
    }
    # What is written whenever it changes is there as soon as it was read: closing a window adds nothing.
    if analysis.stateful and spec.job.watermark is not None and spec.job.emit == "final":
        about["windows_by"] = spec.job.watermark.column
    described: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topic))
    return described, about
