"""What a batch of the lakehouse holds of each topic, and what the log says of the schemas and kinds of its topics."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries
from mainstem.client.connection import Connection
from mainstem.registry.reader import read_schemas
from mainstem.registry.schema import is_change

NO_SCHEMA = -1  # a value without Confluent's first byte


class Slice(msgspec.Struct, frozen=True):
    """What a batch holds of one partition with one schema id; None for null values."""

    partition: int
    schema_id: int | None
    records: int
    hash: int
    size: int = 0  # bytes of keys and values


STARTS = Path("sources", "0", "0")  # in a query's checkpoint: where it begins


def ids_of(slices: Iterable[Slice]) -> set[int]:
    """The schema ids in use; neither null values nor values without an id."""
    return {each.schema_id for each in slices if each.schema_id is not None and each.schema_id != NO_SCHEMA}


class Topics:
    """The schemas and the kinds of topics, as far as batches have needed them.

    Attributes:
        schemas: the text of each schema, by its id.
    """

    def __init__(self, connection: Connection) -> None:
        self.schemas: dict[int, str] = {}
        self._connection = connection
        self._catalog: dict[str, TopicEntry] = {}

    def learn(self, slices: Mapping[str, list[Slice]]) -> None:
        """Know those of a batch; the log is asked only where one is new."""
        if not ids_of(each for mine in slices.values() for each in mine) <= self.schemas.keys():
            self.schemas = read_schemas(self._connection)
        if not slices.keys() <= self._catalog.keys():
            entries = topic_entries(read_catalog(self._connection))
            self._catalog |= {topic: entries.get(topic, TopicEntry()) for topic in slices}

    def is_changelog(self, topic: str, slices: Iterable[Slice]) -> bool:
        """Whether the last record of a key is the key's row."""
        return self._entry(topic).kind == "changelog" or self.has_changes(slices)

    def has_changes(self, slices: Iterable[Slice]) -> bool:
        """Whether there are canonical change records among them."""
        return any(is_change(self.schemas.get(schema_id, "{}")) for schema_id in ids_of(slices))

    def is_typed(self, topic: str, slices: Iterable[Slice]) -> bool:
        """Whether all values of the topic should have a schema. Bytes of any format may seem to name one."""
        return self._entry(topic).subject is not None or not self.schemas.keys().isdisjoint(ids_of(slices))

    def _entry(self, topic: str) -> TopicEntry:
        return self._catalog.get(topic, TopicEntry())


def begin_at(checkpoint: Path, starts: Mapping[str, Mapping[str, int]]) -> None:
    """Make a new checkpoint for a query that reads each partition of `starts` (topic -> partition -> offset) from
    there, and what it does not name from its first record.

    With the option `startingOffsets` instead, a query fails where a topic has come since they were asked for. The file
    of Spark 4.2 is a zero byte, a line with the version, and the offsets.
    """
    if checkpoint.exists():
        shutil.rmtree(checkpoint)  # or fail: with old offsets left, the query would go on from those, past the tables
    file = checkpoint / STARTS
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x00v1\n" + msgspec.json.encode(starts))


def batch_starts(checkpoint: Path, number: int) -> dict[str, dict[int, int]]:
    """Where batch `number` begins: where the one before it ends, or the query."""
    if number > 0:
        return batch_ends(checkpoint, number - 1)
    return msgspec.json.decode((checkpoint / STARTS).read_bytes().splitlines()[1], type=dict[str, dict[int, int]])


def batch_ends(checkpoint: Path, number: int) -> dict[str, dict[int, int]]:
    """Where batch `number` of a query of one source ends: next offset by topic and partition, past markers too.

    Spark writes it to the checkpoint before it runs the batch: a line of version, one of metadata, one for each source.
    """
    return msgspec.json.decode(
        (checkpoint / "offsets" / str(number)).read_text().splitlines()[2], type=dict[str, dict[int, int]]
    )


def offsets_between(starts: Mapping[str, Mapping[int, int]], ends: Mapping[str, Mapping[int, int]]) -> int:
    """How many there are, at least as many as records; what `starts` does not name has come since, and begins at 0."""
    return sum(
        max(0, end - starts.get(topic, {}).get(number, 0))
        for topic, mine in ends.items()
        for number, end in mine.items()
    )
