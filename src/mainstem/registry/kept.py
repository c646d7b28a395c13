"""What `_schemas` holds, asked as a registry is asked, where none has to be up."""

from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import start_offsets
from mainstem.core import CorruptData
from mainstem.core.logging import get_logger
from mainstem.registry.client import RegisteredSchema
from mainstem.registry.errors import NotFound
from mainstem.registry.state import State

log = get_logger()


class KeptSchemas:
    """The subjects and ids of a log as they were when this was made; its topic `_schemas` must exist."""

    def __init__(self, connection: Connection) -> None:
        self._state = State()
        starts = start_offsets(connection, SCHEMAS)
        with CommittedReader(connection, SCHEMAS, starts, deleted="earliest", decided=True) as reader:
            for messages in reader:
                for message in messages:
                    try:
                        self._state.apply(message.key(), message.value())
                    except CorruptData as error:  # anybody may have written it
                        log.warning("registry_record_unreadable", error=str(error), key=repr(message.key()))

    def schema(self, schema_id: int) -> str:
        """The text of a schema id.

        Raises:
            NotFound: no such id.
        """
        return self._state.schema_by_id(schema_id).schema

    def texts(self, subject: str) -> set[str]:
        """Of all versions that a subject ever had; none where there is no such subject."""
        try:
            numbers = self._state.versions(subject, deleted=True)
        except NotFound:
            return set()
        return {self._state.version(subject, number, deleted=True).schema for number in numbers}

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject.

        Raises:
            NotFound: no such subject.
        """
        return self.version(subject, "latest")

    def version(self, subject: str, number: int | str) -> RegisteredSchema:
        """One version of a subject; `number` may be `latest`.

        Raises:
            NotFound: no such subject or version.
        """
        found = self._state.version(subject, None if number == "latest" else int(number))
        return RegisteredSchema(subject, found.version, found.id, found.schema)
