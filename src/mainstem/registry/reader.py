"""Committed records of a topic, decoded by the schemas that `_schemas` holds: no registry has to be up.

A value in Confluent's wire format becomes a row; any other becomes JSON where it is JSON, text where it is text, bytes
otherwise. Keys are text.
"""

import math
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import msgspec

from mainstem.client.compacted import read_compacted
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.reader import PATIENCE_SECONDS, CommittedReader, headers_of
from mainstem.client.topics import end_offsets, start_offsets
from mainstem.core import CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.registry import records

log = get_logger()

_FOLLOWERS_PATIENCE_SECONDS = 15.0  # somebody sits before it

SHORTEST_AVRO = 5
"""Bytes before the value in Confluent's wire format: a record without fields has no more."""


class TypedRecord(msgspec.Struct, frozen=True):
    """A committed record. `timestamp` is ms since 1970: its producer's, or of its append where the topic says so; a
    null `value` deletes its key.

    `undecoded` is the reason why `value` is bytes although the topic's values have a schema.
    """

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: Any
    headers: dict[str, str] = {}
    undecoded: str = ""


def read_schemas(connection: Connection) -> dict[int, str]:
    """Schema id -> text, of every schema ever registered. What is no record of a registry is passed over, and told."""
    schemas: dict[int, str] = {}
    for key, value in read_compacted(connection, SCHEMAS).items():
        try:
            if records.decode_key(key).keytype == "SCHEMA":
                entry = records.decode_schema(value)
                schemas[entry.id] = entry.schema
        except CorruptData as error:  # anybody may have written it, and it must not hold up all topics
            log.warning("registry_record_unreadable", error=str(error), key=repr(key))
    return schemas


class SchemaTexts:
    """Schema id -> text, read again when an id comes up that was registered since."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._schemas: dict[int, str] = {}
        self._end = -1  # of `_schemas`, when they were read
        self._looked = False

    def look_again(self) -> None:
        """More records have come, and they may name schemas that were not there before."""
        self._looked = False

    def __call__(self, schema_id: int) -> str:
        """The text of a schema.

        Raises:
            CorruptData: there is no such id.
        """
        # Every value that begins with a zero, of any format, seems to name an id. A schema is registered before a
        # record names it, so that one look tells of all records that came together.
        if schema_id not in self._schemas and not self._looked:
            end = end_offsets(self._connection, SCHEMAS)[0]
            if end != self._end:
                self._schemas, self._end = read_schemas(self._connection), end
            self._looked = True
        try:
            return self._schemas[schema_id]
        except KeyError:
            raise CorruptData(f"expected schema {schema_id} in {SCHEMAS}, found none") from None


def decode_value(value: bytes, schema_of: Callable[[int], str]) -> Any:
    """A value of any topic: a row where it is in Confluent's wire format, else what JSON it is, text, or bytes.

    Raises:
        CorruptData: it seems to be in that format, and does not fit its schema, or there is none.
    """
    if value[:1] == b"\0" and len(value) >= SHORTEST_AVRO:
        from mainstem.registry import avro  # what it needs comes with an extra, and plain values do without

        return avro.decode(value, schema_of)
    try:
        return msgspec.json.decode(value)
    # no JSON; nested deeper than a document may be; a text in it that is no UTF-8
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def in_json(value: Any) -> Any:
    """The value with a text, as PostgreSQL writes it, for each number that JSON has none for: else it would be null."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: in_json(each) for name, each in value.items()}
        case list():
            return [in_json(each) for each in value]
    return value


def typed(message: Any, topic: str, schema_of: Callable[[int], str], *, raw: bool = False) -> TypedRecord:
    """Confluent's message of `topic` as a record; `raw` as for the reader.

    Raises:
        CorruptData: the value does not fit its schema; unless `raw`.
    """
    key, value = message.key(), message.value()
    headers = {name: (data or b"").decode(errors="replace") for name, data in headers_of(message).items()}
    undecoded = ""
    try:
        decoded = None if value is None else decode_value(value, schema_of)
    except CorruptData as error:
        if not raw:
            place = f"{TopicPartition(topic, message.partition())} offset {message.offset()}"
            raise CorruptData(f"{place}: {error}", hint=error.hint) from error
        decoded, undecoded = value, str(error)
    return TypedRecord(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        None if key is None else key.decode(errors="replace"),
        decoded,
        headers,
        undecoded,
    )


class TypedReader:
    """Iterate over the records of `topic`; partitions are mixed, each is in order.

    Args:
        connection: the log.
        topic: it must exist.
        start: `earliest`, `end`, or an offset (of every partition): its record, or the first one that is left after it.
        follow: go on for ever; otherwise stop at the ends of now,
            open transactions included only once they are decided.
        raw: give a value that cannot be decoded as its bytes, with the reason, instead of raising it.
        decided: stop where the first transaction is open, instead of waiting for it.

    Raises:
        UnknownTopic: there is no such topic.
        BrokerUnavailable: the log is gone; also from the iterator.
        CorruptData: a value does not fit its schema; from the iterator, unless `raw`.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        start: str = "earliest",
        follow: bool = False,
        raw: bool = False,
        decided: bool = False,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._raw = raw
        self._schemas = SchemaTexts(connection)
        self._first = 0 if start in {"earliest", "end"} else int(start)
        if start == "end":
            starts = end_offsets(connection, topic)
        else:
            starts = {each: max(first, self._first) for each, first in start_offsets(connection, topic).items()}
        # What was deleted between our look and our read is left out like what was deleted before.
        self._reader = CommittedReader(
            connection,
            topic,
            starts,
            deleted="earliest",
            follow=follow,
            decided=decided,
            patience_seconds=_FOLLOWERS_PATIENCE_SECONDS if follow else PATIENCE_SECONDS,
        )
        self.undecided = self._reader.undecided
        """Partition to the first offset of an open transaction that a `decided` reader stops at."""

    def __enter__(self) -> "TypedReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[TypedRecord]:
        for messages in self._reader:
            self._schemas.look_again()
            for message in messages:
                if message.offset() >= self._first:
                    yield typed(message, self._topic, self._schemas, raw=self._raw)
