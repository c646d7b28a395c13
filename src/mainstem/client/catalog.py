"""The catalog: what every name of a project means. Key `topic:<name>`, `job:<name>`, …; the value is JSON."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mainstem.client.append import append
from mainstem.client.compacted import NOT_OURS, read_state
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG, job_key
from mainstem.core import CorruptData

KINDS = ("topic", "job", "source", "sink", "project", "node")
RETIRED = "retired"
"""Of a job's entry: the versions that never run again. Of a sink's: true where its project has it no more."""


class TopicEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a topic is, for whoever reads it."""

    kind: str = "stream"  # or "changelog"
    key: tuple[str, ...] = ()  # columns of the key, in order
    event_time: str | None = None  # the column that holds it
    subject: str | None = None  # of its values, in the registry
    producer: str | None = None  # `source:<name>` or `job:<name>`


def read_catalog(connection: Connection) -> dict[str, dict[str, Any]]:
    """Every entry by its key, as of now."""
    return read_state(connection, CATALOG, dict[str, Any])


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


def users_of(catalog: Mapping[str, dict[str, Any]], topic: str) -> tuple[list[str], list[str]]:
    """Who writes a topic and who reads it, as people call them: `source shop`, `job totals@1`, `sink lakehouse`."""
    producer = topic_entries(catalog).get(topic, TopicEntry()).producer or ""
    writers, readers = [producer.replace(":", " ", 1)] if producer.startswith("source:") else [], []
    for job, about in entries(catalog, "job").items():
        for version, each in about.get("versions", {}).items():
            if topic == each.get("output"):
                writers.append(f"job {job_key(job, version)}")
            if topic in each.get("inputs", {}).values():
                readers.append(f"job {job_key(job, version)}")
    for sink, about in sinks_of(catalog).items():
        if topic in about.get("topics", ()) or re.fullmatch(about.get("pattern", ""), topic):
            readers.append(f"sink {sink}")
    return writers, readers


def write_catalog(connection: Connection, changes: Mapping[str, Any]) -> None:
    """Write entries by key; None removes one. Durable on return."""
    for key in changes:
        assert key.partition(":")[0] in KINDS, key
    encode = msgspec.json.encode
    append(connection, CATALOG, [(k.encode(), None if v is None else encode(v)) for k, v in changes.items()])


def _topic_entry(name: str, value: dict[str, Any]) -> TopicEntry:
    try:
        return msgspec.convert(value, TopicEntry)
    except msgspec.ValidationError as error:
        raise CorruptData(
            f"{CATALOG}: key 'topic:{name}': expected JSON as Mainstem writes it: {error}", hint=NOT_OURS
        ) from error
