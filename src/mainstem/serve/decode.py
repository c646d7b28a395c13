"""Records of a topic as changes of an index."""

from collections.abc import Callable
from typing import Any

from mainstem.client.catalog import TopicEntry
from mainstem.core import CorruptData
from mainstem.registry import schema as schemas
from mainstem.registry.avro import split
from mainstem.registry.reader import SHORTEST_AVRO, decode_value
from mainstem.serve.index import Change, Row

TRUNCATE = "t"
"""The operation of a change record that says, in each partition, that the table has been emptied."""
DEEPEST = 100
"""Lists and objects inside of each other in a value of JSON, which nobody's schema bounds: it has to be told again."""
PLAIN = "value"
"""The column of what is no record: a text, a number, bytes."""


class Decoder:
    """Decodes one topic. A stream keeps all records; a table the last one of each key, by the record's key."""

    def __init__(self, topic: str, entry: TopicEntry, schema_of: Callable[[int], str]) -> None:
        self.topic = topic
        self.kind = entry.kind
        self.schema_ids: set[int] = set()  # that its values have named
        self._schema_of = schema_of
        self._changes: dict[int, bool] = {}  # schema id -> whether its records are change records

    def change(self, message: Any) -> Change:
        """What a record (confluent's message) does.

        Raises:
            CorruptData: its value or key cannot be decoded, or is nested deeper than `DEEPEST`.
        """
        place = self.topic, message.partition(), message.offset()
        key = self._key(message.key())
        value = message.value()
        row, operation = (None, "") if value is None else self._row(value)
        if self.kind != "changelog":
            return Change(*place, None, row, told_key=key)
        truncates = operation == TRUNCATE
        return Change(*place, None if truncates else key, row, truncates)

    def _key(self, key: bytes | None) -> str | None:
        """Its text; of a stream, where nothing hangs on it, None where it is none."""
        try:
            return None if key is None else key.decode()
        except UnicodeDecodeError as error:
            if self.kind != "changelog":
                return None
            raise CorruptData(f"expected a key of text: {error}") from error

    def _row(self, value: bytes) -> tuple[Row | None, str]:
        """The row, and of a change record its operation."""
        row = decode_value(value, self._schema_of)
        if value[:1] == b"\0" and len(value) >= SHORTEST_AVRO:
            schema_id = split(value)[0]
            self.schema_ids.add(schema_id)
            if self._is_change(schema_id):
                return _changed(row)
        elif value.count(b"[") + value.count(b"{") > DEEPEST and _is_deep(row):
            raise CorruptData(f"expected up to {DEEPEST} lists and objects inside of each other, found more")
        return (row if isinstance(row, dict) else {PLAIN: row}), ""

    def _is_change(self, schema_id: int) -> bool:
        if schema_id not in self._changes:
            self._changes[schema_id] = schemas.is_change(self._schema_of(schema_id))
        return self._changes[schema_id]


def _changed(record: Any) -> tuple[Row | None, str]:
    """The row and the operation of a change record; anybody's schema may say that it is of one."""
    match record:
        case {"op": str(operation), "after": None | dict() as row}:
            return row, operation
    raise CorruptData("expected a change record, with `op` and `after`, found another one")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        parts = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for part in parts for each in part]
    return bool(level)
