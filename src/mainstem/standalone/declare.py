"""Make the topics that a project declares: their partitions, their schemas, their entries in the catalog; and retire
the sinks that it has no more.

Every step can be repeated: what exists and agrees is left alone, what disagrees is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mainstem.client.catalog import RETIRED, TopicEntry, entries, read_catalog, sinks_of
from mainstem.client.catalog_changes import Catalog, change_catalog, change_if_needed
from mainstem.client.connection import Connection
from mainstem.client.internal import CATALOG
from mainstem.client.topics import ensure_internal_topics, list_topics
from mainstem.connect.sources.postgres_config import PostgresSourceConfig
from mainstem.core import UserError
from mainstem.core.config import PROJECT_FILE, BadSetting
from mainstem.process import Project
from mainstem.process.topics import create_topic, register_schema
from mainstem.registry.client import Registry
from mainstem.serve.config import node_names
from mainstem.standalone.config import NodeConfig, load_config
from mainstem.standalone.ends import COLLECTOR, source_of


def declare_topics(project: Project, config: NodeConfig, connection: Connection, registry_url: str, owner: str) -> None:
    """Create the input topics of `project`, register their schemas, tell the catalog, also which source writes one: the
    collector takes no events for that. Outputs are made by their jobs. A sink that the project has no more, and that no
    other has, is retired: the audit expects nothing of it until it comes back.

    Args:
        project: as `load_project` gave it.
        config: its settings.
        connection: the log.
        registry_url: where its schemas are registered.
        owner: of its sinks, the id of its data directory: other projects on this log may have the same name.

    Raises:
        BadSetting: the log refuses what the project says of a topic, or a schema file is wrong or does not fit what is
            registered.
        TopicMismatch: a topic exists with another number of partitions.
        Retriable: the log or the registry does not answer.
    """
    for name in config.splices:
        if name in project.topics:
            raise BadSetting(
                f"{project.directory / PROJECT_FILE}: [splices.{name}]: the project has a topic of that name",
                hint="a splice has a topic of its own: give it another name",
            )
    ensure_internal_topics(connection)
    registry = Registry(registry_url)
    subjects: dict[str, str] = {}
    for topic in project.topics.values():
        if topic.producer is not None:
            continue
        create_topic(connection, topic, project.directory)
        if topic.schema_file is not None:
            subjects[topic.name] = register_schema(registry, project, topic, project.directory)

    def change(known: Catalog) -> dict[str, object]:
        changes: dict[str, object] = {}
        for name, subject in subjects.items():
            topic, key = project.topics[name], f"topic:{name}"
            producer = _producer(name, config, known.get(key, {}).get("producer"))
            entry = TopicEntry(topic.kind, topic.key, topic.event_time, subject, producer)
            value = msgspec.json.decode(msgspec.json.encode(entry))
            if known.get(key) != value:
                changes[key] = value
        return changes | _sinks(project.name, owner, config, known)

    change_if_needed(connection, change)


def _sinks(project: str, owner: str, config: NodeConfig, known: Mapping[str, dict[str, Any]]) -> dict[str, object]:
    """What the catalog has to learn of the sinks and serving nodes that the project has, and of those that it had and
    nobody else has. Of a node that is no more there is nothing to keep: its views read no more.
    """
    key, now = f"project:{owner}", {*config.connect_sinks, *config.lakehouses}
    nodes = _nodes(config)
    gone, gone_nodes = _gone(known, owner, "sinks", now), _gone(known, owner, "nodes", nodes)
    changes: dict[str, object] = {
        f"sink:{name}": sink | {RETIRED: True} for name, sink in sinks_of(known).items() if name in gone
    }
    changes |= {f"node:{name}": None for name in entries(known, "node") if name in gone_nodes}
    splices = {name: each.job for name, each in config.splices.items()}
    entry: dict[str, object] | None = None
    if now or nodes or splices:
        entry = {"name": project, "sinks": sorted(now)}
    if entry is not None and splices:
        entry["splices"] = splices
    if entry is not None and nodes:
        entry["nodes"] = sorted(nodes)
    if entry != known.get(key):
        changes[key] = entry
    return changes


def _gone(known: Mapping[str, dict[str, Any]], owner: str, what: str, now: set[str]) -> set[str]:
    """Those that the project had, and neither it nor another one has."""
    projects = _by_owner(known, what)
    return projects.pop(owner, set()) - now - set().union(*projects.values())


def _by_owner(known: Mapping[str, dict[str, Any]], what: str) -> dict[str, set[str]]:
    """The `sinks` or `nodes` of each project. An entry without a name is of an earlier version, and is not kept up."""
    return {owner: set(each.get(what, ())) for owner, each in entries(known, "project").items() if "name" in each}


def retire_sink(connection: Connection, name: str, directory: Path) -> None:
    """Tell the catalog that no project has sink `name` any more, where none says so itself: it ran before projects
    listed their sinks, or its project is gone. The audit expects nothing of it until it comes back.

    Args:
        connection: the log that it ran on.
        name: of the sink.
        directory: of the project. Where there is none any more, it has no sinks.

    Raises:
        UserError: there is no such sink, or the project has it.
    """
    known = read_catalog(connection) if CATALOG in list_topics(connection) else {}
    sinks = entries(known, "sink")
    if name not in sinks:
        raise UserError(f"sink {name}: no such sink", hint=f"there are: {', '.join(sorted(sinks)) or 'none yet'}")
    settings = directory / PROJECT_FILE
    if settings.exists():
        config = load_config(directory)
        if name in config.connect_sinks or name in config.lakehouses:
            hint = f"take [sinks.{name}] out of it; the next `mainstem up` does the rest"
            raise UserError(f"sink {name} is what {settings} asks for", hint=hint)
    change_catalog(
        connection,
        lambda now: {f"sink:{name}": now.get(f"sink:{name}", {}) | {RETIRED: True}, **_unlisted(now, "sinks", name)},
    )


def retire_node(connection: Connection, name: str, directory: Path) -> None:
    """Tell the catalog that no project has the serving node `name` any more, as `retire_sink` does of a sink.

    Raises:
        UserError: there is no such node, or the project has it.
    """
    known = read_catalog(connection) if CATALOG in list_topics(connection) else {}
    nodes = entries(known, "node")
    if name not in nodes:
        raise UserError(f"node {name}: no such node", hint=f"there are: {', '.join(sorted(nodes)) or 'none yet'}")
    settings = directory / PROJECT_FILE
    if settings.exists() and name in _nodes(load_config(directory)):
        hint = "take it out of [serve]; the next `mainstem up` does the rest"
        raise UserError(f"node {name} is what {settings} asks for", hint=hint)
    change_catalog(connection, lambda now: {f"node:{name}": None, **_unlisted(now, "nodes", name)})


def _unlisted(known: Mapping[str, dict[str, Any]], what: str, name: str) -> dict[str, object]:
    """A project that is gone would say for ever that it has it, and no other could retire it at its start."""
    listed = {f"project:{owner}": left - {name} for owner, left in _by_owner(known, what).items() if name in left}
    return {key: known[key] | {what: sorted(left)} for key, left in listed.items()}


def _nodes(config: NodeConfig) -> set[str]:
    return {node for name, settings in config.serve.items() for node in node_names(name, settings)}


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
