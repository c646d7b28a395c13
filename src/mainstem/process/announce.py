"""Tell the catalog of versions that start: what each writes, and that it is one of its job's."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import TopicEntry
from mainstem.client.catalog_changes import change_if_needed
from mainstem.client.connection import Connection
from mainstem.process.job_spec import JobSpec
from mainstem.process.realtime_rules import guarantee_of
from mainstem.process.versions import is_retired
from mainstem.registry.spark import subject_of


def announce(connection: Connection, data: Path, specs: Iterable[JobSpec]) -> None:
    """Tell the catalog of versions, all at once; nothing is written if it knows. Of one that is retired meanwhile it
    learns nothing: `retire` marks it first, and tells the catalog last.

    Args:
        connection: the log.
        data: the data directory that they start from.
        specs: the versions.
    """
    told = [(spec.fixed.job, spec.fixed.version, _topics(spec), _about(spec)) for spec in specs]

    def change(catalog: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        for job, version, topics, about in told:
            if is_retired(data, job, version):
                continue
            key = f"job:{job}"
            entry = dict(wanted.get(key) or catalog.get(key, {}))
            entry["versions"] = entry.get("versions", {}) | {version: about}
            entry["current"] = entry.get("current") or version
            wanted |= {key: entry} | topics
        return {key: value for key, value in wanted.items() if catalog.get(key) != value}

    change_if_needed(connection, change)


def _topics(spec: JobSpec) -> dict[str, Any]:
    """What there is to say of the topics that it writes."""
    entries = {
        f"topic:{output.topic}": TopicEntry(
            output.kind, output.declared.key, result.event_time, subject_of(output.topic), f"job:{spec.fixed.job}"
        )
        for output, result in zip(spec.outputs, spec.analysis.results, strict=True)
    }
    described: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(entries))
    return described


def _about(spec: JobSpec) -> dict[str, Any]:
    """What there is to say of the version."""
    fixed, analysis = spec.fixed, spec.analysis
    about: dict[str, Any] = {
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
    if fixed.realtime:
        about["guarantee"] = guarantee_of(spec.job, spec.config)
    if fixed.sliced:
        about["sliced"] = True
    if fixed.also:
        about["also"] = {output.declared.topic: output.topic for output in spec.outputs[1:]}
    return about
