"""Make the topics that a project declares: their partitions, their schemas, their entries in the catalog.

Every step can be repeated: what exists and agrees is left alone, what disagrees is refused.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mainstem.client.catalog import RETIRED, TopicEntry, entries, read_catalog, sinks_of, write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import ensure_internal_topics
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.process import Project
from mainstem.process.topics import create_topic, register_schema
from mainstem.registry.client import Registry
from mainstem.standalone.config import NodeConfig
from mainstem.standalone.ends import COLLECTOR, source_of


def declare_topics(project: Project, config: NodeConfig, connection: Connection, registry_url: str) -> None:
    """Create the input topics of `project`, register their schemas, tell the catalog, also which source writes one: the
    collector takes no events for that. Outputs are made by their jobs. A sink that the project has no more is retired:
    the audit expects nothing of it until it comes back.

    Raises:
        BadSetting: the log refuses what the project says of a topic, or a schema file is wrong or does not fit what is
            registered.
        TopicMismatch: a topic exists with another number of partitions.
        Retriable: the log or the registry does not answer.
    """
    ensure_internal_topics(connection)
    registry = Registry(registry_url)
    known = read_catalog(connection)
    changes: dict[str, object] = {}
    for topic in project.topics.values():
        if topic.producer is not None:
            continue
        create_topic(connection, topic, project.directory)
        subject = None
        if topic.schema_file is not None:
            subject = register_schema(registry, project, topic, project.directory)
        before = known.get(f"topic:{topic.name}", {}).get("producer")
        entry = TopicEntry(topic.kind, topic.key, topic.event_time, subject, _producer(topic.name, config, before))
        key, value = f"topic:{topic.name}", msgspec.to_builtins(entry)
        if subject is not None and known.get(key) != msgspec.json.decode(msgspec.json.encode(value)):
            changes[key] = value
    changes |= _sinks(project.name, config, known)
    if changes:
        write_catalog(connection, changes)


def _sinks(project: str, config: NodeConfig, known: Mapping[str, dict[str, Any]]) -> dict[str, object]:
    """What the catalog has to learn of the sinks that the project has, and of those that it had."""
    key, now = f"project:{project}", sorted([*config.connect_sinks, *config.lakehouses])
    before = known.get(key, {}).get("sinks", [])
    others = {name for each in entries(known, "project").items() if each[0] != project for name in each[1]["sinks"]}
    gone = set(before) - set(now) - others
    changes: dict[str, object] = {
        f"sink:{name}": sink | {RETIRED: True} for name, sink in sinks_of(known).items() if name in gone
    }
    if before != now:
        changes[key] = {"sinks": now}
    return changes


def _producer(topic: str, config: NodeConfig, before: str | None) -> str | None:
    """The source that writes `topic`; `before` is what the catalog says. A source of a whole database says itself which
    tables it has: a topic that has its name in front may be the collector's.
    """
    writer = source_of(topic, config)
    if writer == COLLECTOR:
        return None
    source = config.sources[writer.removeprefix("source ")]
    producer = writer.replace(" ", ":", 1)
    return None if isinstance(source, PostgresSourceConfig) and not source.tables and before != producer else producer
