"""The topics of a project, made as it declares them."""

from pathlib import Path

from mainstem.client.connection import Connection
from mainstem.client.errors import TopicRefused
from mainstem.client.topics import TopicDescription, ensure_topic, topic_settings
from mainstem.core.config import BadSetting
from mainstem.process.project import FILE, TopicSpec


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
        raise BadSetting(f"{directory / FILE}: [topics.{spec.name}]: {error}", hint=error.hint) from error
