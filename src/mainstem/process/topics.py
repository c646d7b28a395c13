"""The topics of a project, made as it declares them, and their schemas."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from mainstem.client.connection import Connection
from mainstem.client.errors import TopicMismatch, TopicRefused
from mainstem.client.topics import (
    TopicDescription,
    alter_command,
    describe_configs,
    ensure_topic,
    list_topics,
    topic_settings,
    what_can_be_lost,
)
from mainstem.core.config import PROJECT_FILE, BadSetting
from mainstem.process.project import Project, TopicSpec
from mainstem.registry.client import Registry
from mainstem.registry.errors import RegistryError
from mainstem.registry.schema import canonical, parse
from mainstem.registry.spark import subject_of

SettingsByTopic: TypeAlias = Mapping[str, Mapping[str, str]]


def create_topic(connection: Connection, spec: TopicSpec, directory: Path, name: str | None = None) -> TopicDescription:
    """Create the topic that `spec` declares unless it exists; on return it has leaders.

    Args:
        connection: the log.
        spec: what the project says of it.
        directory: of the project as its user knows it, for errors.
        name: of the topic, where a version of a job has one of its own.

    Raises:
        BadSetting: the log refuses what the project says of it.
        TopicMismatch: it exists with another number of partitions.
    """
    try:
        return ensure_topic(connection, name or spec.name, spec.partitions, topic_settings(spec.kind, spec.config))
    except TopicRefused as error:
        raise BadSetting(f"{directory / PROJECT_FILE}: [topics.{spec.name}]: {error}", hint=error.hint) from error
    except TopicMismatch as error:
        if spec.producer is None:  # what a job writes goes on where its checkpoint is: it is never made anew under it
            where = ["--bootstrap", connection.bootstrap, "--project", str(directory)]
            delete = shlex.join(["mainstem", "topic", "delete", spec.name, *where])
            error.hint += f"; `{delete}` deletes it with its records"
        raise


def other_settings(connection: Connection, project: Project, found: SettingsByTopic) -> list[str]:
    """One line for each setting that a topic of `project` has otherwise than the project would have made it.

    A topic keeps the settings it was made with. Where a client was first to ask for it, as Kafka's clients may do by
    themselves, those are the log's defaults: a week's retention, by which last year's events are gone on arrival.
    """
    declared = _declared(project)
    return [
        f"topic {name} was made with {key} = {has.get(key)}, and keeps it; the project would have made it with {value}: "
        f"`{alter_command(connection, name, key, value)}` changes it, or write it under [topics.{name}.config]"
        for name, has in found.items()
        for key, value in declared[name].items()
        if has.get(key) != value
    ]


def losses(project: Project, found: SettingsByTopic) -> list[str]:
    """One line for each topic of `project` whose last records our own log loses with the power of its machine.

    Args:
        project: says what a topic is made with.
        found: what those that exist have by now (`settings_of_topics`).
    """
    settings = _declared(project) | dict(found)
    return [line for name, each in settings.items() if (line := what_can_be_lost(name, each)) is not None]


def _declared(project: Project) -> dict[str, dict[str, str]]:
    return {spec.name: topic_settings(spec.kind, spec.config) for spec in project.topics.values()}


def settings_of_topics(connection: Connection, project: Project) -> dict[str, dict[str, str]]:
    """All settings of each topic of `project` that the log has."""
    present = list_topics(connection)
    return describe_configs(connection, [name for name in project.topics if name in present])


def register_schema(registry: Registry, project: Project, spec: TopicSpec, directory: Path) -> str:
    """Register the schema file of the topic `spec`, which has one; its subject.

    Args:
        registry: where.
        project: has the file.
        spec: what it says of the topic.
        directory: of the project as its user knows it, for errors.

    Raises:
        BadSetting: the file cannot be read, is no schema, or does not fit what is registered.
        RegistryUnavailable: no answer.
    """
    subject, text = subject_of(spec.name), read_schema(project, spec, directory)
    try:
        registry.register(subject, text)
    except RegistryError as error:
        raise BadSetting(f"{_schema_place(project, spec, directory)}: {error}", hint=error.hint) from error
    return subject


def read_schema(project: Project, spec: TopicSpec, directory: Path) -> str:
    """The text of the schema file of the topic `spec`, which has one.

    Raises:
        BadSetting: the file cannot be read, or is no schema; the message names it and the topic.
    """
    assert spec.schema_file is not None
    place = _schema_place(project, spec, directory)
    try:
        text = spec.schema_file.read_text(encoding="utf-8")
        parse(text)
        canonical(text)  # what the registry does with it next: it would refuse it when the project is up
    except OSError as error:
        raise BadSetting(f"{place}: expected a file to read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(
            f"{place}: expected UTF-8, found byte 0x{error.object[error.start]:02x} at {error.start}"
        ) from error
    except RegistryError as error:
        raise BadSetting(f"{place}: {error}", hint=error.hint) from error
    return text


def _schema_place(project: Project, spec: TopicSpec, directory: Path) -> str:
    assert spec.schema_file is not None
    file = directory / os.path.relpath(spec.schema_file, project.directory)
    return f"{file}: schema of topic {spec.name}"
