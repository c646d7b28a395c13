"""What the collector knows of the topics it takes events for: key, event time, and how a value is encoded.

Topics and catalog are read from the log in the background; schemas come from the registry's state, so that a new
version counts from the next request on.
"""

import asyncio
import io
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException

from mainstem.client.catalog import TopicEntry, read_catalog, topic_entries
from mainstem.client.connection import Connection
from mainstem.client.topics import list_topics
from mainstem.connect.sources.http_key import UnfitKey, key_reader
from mainstem.connect.sources.http_values import Convert, Unfit, converter
from mainstem.core import UserError
from mainstem.core.clock import Clock
from mainstem.registry import avro
from mainstem.registry.errors import InvalidSchema, NotFound
from mainstem.registry.quarantine import SUFFIX
from mainstem.registry.records import SchemaValue
from mainstem.registry.schema import AvroType, brief, parse, span
from mainstem.registry.state import State

STALE_SECONDS = 10.0  # after that, topics and catalog are read again in the background

# What a schema ends in that the registry took, or another before it: a default without end, a fixed too small for its
# decimal. A name that is not there may be fastavro's UnknownType, a ValueError.
_UNUSABLE = (InvalidSchema, SchemaParseException, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TO_MS = {"timestamp-millis": 1, "local-timestamp-millis": 1, "timestamp-micros": 1000, "local-timestamp-micros": 1000}
_TO_MS |= {"timestamp-nanos": 1_000_000, "local-timestamp-nanos": 1_000_000}


class UnknownTopic(UserError):
    """There is no such topic to post to; `topics` are those there are."""

    def __init__(self, name: str, topics: list[str]) -> None:
        known = ", ".join(topics[:50]) or "none yet"
        super().__init__(f"topic {name!r}: no such topic", hint=f"topics that take events: {known}")
        self.topics = topics


class NoSchema(UserError):
    """The topic exists, but nobody has said what its events look like."""


class NotAnInput(UserError):
    """The topic is written by a job or another source; events posted to it would not be theirs."""


class Encoded(NamedTuple):
    """An event ready for the log; `event_time_ms` where the topic names a column for it."""

    key: bytes | None
    value: bytes
    event_time_ms: int | None


class Encoder:
    """Encodes events of one topic with one version of its schema."""

    def __init__(self, topic: str, entry: TopicEntry, version: SchemaValue) -> None:
        self.topic = topic
        self.entry = entry
        self.schema_id = version.id
        self.columns: frozenset[str] = frozenset()
        if version.references:
            raise NoSchema(
                f"topic {topic!r}: its schema {version.id} refers to other schemas, with which nothing here can read a value",
                hint=f"register a schema in {version.subject!r} that holds their types itself",
            )
        try:
            schema = parse(version.schema)
            self._convert: Convert = converter(schema)
            self._schema = avro.compiled(version.schema)
        except _UNUSABLE as error:
            raise NoSchema(
                f"topic {topic!r}: nothing can be written with its schema {version.id}: {type(error).__name__}: {error}",
                hint=f"register a mended one in {version.subject!r}",
            ) from error
        self.columns = frozenset(field.name for field in schema.fields)
        for column in (*entry.key, *([entry.event_time] if entry.event_time else [])):
            if column not in self.columns:
                raise NoSchema(
                    f"topic {topic!r}: its schema {version.id} has no field {column!r}, which the catalog names"
                )
        self._prefix = avro.HEADER.pack(avro.MAGIC, version.id)
        self._to_ms = _event_time_reader(schema, entry.event_time)
        try:
            self._key = key_reader(schema, entry.key) if entry.key else None
        except UnfitKey as error:
            raise NoSchema(f"topic {topic!r}: {error}", hint=error.hint) from error

    def encode(self, value: Any) -> Encoded:
        """Raises Unfit: the value does not fit the schema, or a column of the key is null."""
        try:
            row = self._convert(value)
        except RecursionError:
            raise Unfit("nested too deep") from None
        buffer = io.BytesIO()
        buffer.write(self._prefix)
        try:
            fastavro.schemaless_writer(buffer, self._schema, row)
        except (ValueError, TypeError, OverflowError) as error:
            # Our checks should have found it: still answered, with less to say.
            raise Unfit(f"cannot be written: {error}") from error
        try:
            key = self._key(row) if self._key else None
        except avro.UnfitRow as error:
            raise Unfit(str(error), error.column) from error
        except (ValueError, ArithmeticError) as error:  # as above
            raise Unfit(f"no key can be made of it: {error}") from error
        return Encoded(key, buffer.getvalue(), self._to_ms(row) if self._to_ms else None)

    def event_time_of(self, row: Any) -> int | None:
        """Of a row that was read from the log, what `encode` said of it; a day is its first moment. None where it has
        no event time, as a value of others that is no record.
        """
        value = row.get(self.entry.event_time or "") if isinstance(row, Mapping) else None
        if isinstance(value, datetime):  # one without zone counts as UTC, wherever this machine stands
            return (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)
        if isinstance(value, date):
            return (value.toordinal() - _EPOCH.toordinal()) * 86_400_000
        return self._to_ms(row) if self._to_ms and isinstance(value, int) else None  # nanoseconds are read as a number


def _event_time_reader(schema: AvroType, column: str | None) -> Callable[[Any], int | None] | None:
    kinds = [field.type for field in schema.fields if field.name == column]
    if not kinds:
        return None
    branches = kinds[0].branches or (kinds[0],)
    divisor = next((_TO_MS[branch.logical] for branch in branches if branch.logical in _TO_MS), None)
    if divisor is None or column is None:
        return None

    def read(row: Any) -> int | None:
        value = row[column]
        value = value[1] if type(value) is tuple else value
        return None if value is None else int(value // divisor)

    return read


def event_time_ms(value: Any) -> int:
    """An event time as a client states it: ISO 8601 with its zone, or milliseconds since 1970.

    Raises:
        Unfit: neither, or not of the years 1 to 9999.
    """
    millis = value if type(value) is int else _millis(value)
    if millis not in span("timestamp-millis"):
        raise Unfit(f"expected a timestamp of the years 1 to 9999, found {brief(value)}", "event_time")
    return millis


def _millis(text: Any) -> int:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise Unfit(f"expected a timestamp or milliseconds, found {brief(text)}", "event_time") from None
    if found.tzinfo is None:
        raise Unfit(f"expected a timestamp with its zone (add Z for UTC), found {brief(text)}", "event_time")
    return (found - _EPOCH) // timedelta(milliseconds=1)


class Topics:
    """The topics of the log and their catalog entries, read again when they are old or a name is not found."""

    def __init__(self, connection: Connection, schemas: State, clock: Clock) -> None:
        self._connection = connection
        self._schemas = schemas
        self._clock = clock
        self._entries: dict[str, TopicEntry] = {}
        self._read_at = float("-inf")
        self._turn = asyncio.Lock()
        self._encoders: dict[str, Encoder] = {}

    async def refresh(self, *, max_age_seconds: float = 0.0) -> None:
        """Read topics and catalog, unless that was begun less than `max_age_seconds` before this call.

        Who waits for a reading that was begun after his call shares it: a flood of unknown names costs one at a time.
        """
        called_at = self._clock.monotonic()
        async with self._turn:
            if self._read_at < called_at - max_age_seconds or self._read_at == float("-inf"):
                self._read_at = self._clock.monotonic()
                self._entries = await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, TopicEntry]:
        names = list_topics(self._connection)
        known = topic_entries(read_catalog(self._connection))
        return {
            name: known.get(name, TopicEntry()) for name in names if not name.startswith("__") and name != "_schemas"
        }

    async def encoder(self, topic: str) -> Encoder:
        """How to encode events of `topic`, with the latest version of its schema.

        Raises:
            UnknownTopic, NoSchema, NotAnInput: as they say.
        """
        if topic not in self._entries:
            await self.refresh()
        elif self._clock.monotonic() - self._read_at > STALE_SECONDS:
            await self.refresh(max_age_seconds=STALE_SECONDS)
        entry = self._entries.get(topic)
        if entry is None:
            raise UnknownTopic(topic, self.inputs())
        if not _is_input(topic, entry):
            raise NotAnInput(
                f"topic {topic!r} is written by {entry.producer or 'quarantine'}: events cannot be posted to it"
            )
        return self._compiled(topic, entry)

    def inputs(self) -> list[str]:
        """Names of the topics that take events."""
        return sorted(
            name
            for name, entry in self._entries.items()
            if _is_input(name, entry) and self._subject(name, entry) in self._schemas.subjects
        )

    def _subject(self, topic: str, entry: TopicEntry) -> str:
        return entry.subject or f"{topic}-value"

    def _compiled(self, topic: str, entry: TopicEntry) -> Encoder:
        subject = self._subject(topic, entry)
        try:
            version = self._schemas.version(subject, None)
        except NotFound:
            hint = f"register one: POST /subjects/{subject}/versions"
            raise NoSchema(f"topic {topic!r} has no schema: subject {subject!r} is empty", hint=hint) from None
        known = self._encoders.get(topic)
        if known is None or known.schema_id != version.id or known.entry != entry:
            known = Encoder(topic, entry, version)
            self._encoders[topic] = known
        return known


def _is_input(topic: str, entry: TopicEntry) -> bool:
    """Whether events are posted to it: no job, no source and no quarantine writes it."""
    return entry.producer is None and not topic.endswith(SUFFIX)
