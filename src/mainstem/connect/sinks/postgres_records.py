"""Records of a source's topics as a replica takes them: changes of its tables, and the ends of its transactions.

Any client may write to these topics. Where somebody has, nothing goes on past the record: which row, or which
transaction, it stands for is unknown. It is told with its place.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
from fastavro.schema import SchemaParseException

from mainstem.client.compacted import NOT_OURS
from mainstem.connect.sinks.postgres_order import Change
from mainstem.connect.sinks.postgres_target import TargetShape, shape_of
from mainstem.connect.sources.postgres_changes import UNCHANGED_HEADER
from mainstem.connect.sources.postgres_table import OPERATIONS
from mainstem.core import CorruptData, MainstemError, TopicPartition
from mainstem.core.prepared import prepared
from mainstem.registry import avro
from mainstem.registry.avro import BadValue
from mainstem.registry.errors import NotFound

_FOREIGN = (CorruptData, NotFound, SchemaParseException, msgspec.DecodeError, AttributeError, *avro.UNREADABLE)
_WITHOUT_ROW = ("d", "t")


class TableCount(msgspec.Struct, frozen=True):
    """How many changes a topic has of a transaction."""

    topic: str
    event_count: int


class TransactionRecord(msgspec.Struct, frozen=True):
    """The beginning or the end of a transaction; only the end has `tables`."""

    id: str
    status: Literal["BEGIN", "END"]
    position: int
    tables: tuple[TableCount, ...] = ()


class Records:
    """Decodes the records of one source.

    Args:
        sink: name of the replica, for what is told of an error.
        schema_of: the text of a schema id, as `Registry.schema` gives it.
    """

    def __init__(self, sink: str, schema_of: Callable[[int], str]) -> None:
        self._sink = sink
        self._schema_of = schema_of
        self._shapes: dict[int, TargetShape] = {}

    def shape(self, schema_id: int) -> TargetShape:
        """What a schema of changes says about its table.

        Raises:
            NotFound: no such schema.
            CorruptData: it is another schema.
        """
        found = self._shapes.get(schema_id)
        if found is None:
            try:
                found = shape_of(self._schema_of(schema_id))
            except CorruptData as error:
                raise CorruptData(f"schema {schema_id}: {error}", hint=NOT_OURS) from error
            self._shapes[schema_id] = found
        return found

    def change(
        self,
        partition: TopicPartition,
        offset: int,
        key: bytes | None,
        value: bytes,
        headers: Mapping[str, bytes | None],
        mark: int,
    ) -> Change:
        """A record of a table's topic that has a value; `mark` is its fingerprint.

        Raises:
            CorruptData: it is something else.
        """
        try:
            return self._change(offset, key, value, headers, mark)
        except _FOREIGN as error:
            raise self._foreign(partition, offset, "a change of the table", error) from error

    def tombstone(
        self, partition: TopicPartition, offset: int, key: bytes | None, last: tuple[str, int, int], mark: int
    ) -> Change:
        """A record of a table's topic that has no value; `last` is what the change before it belongs to.

        Raises:
            CorruptData: it has no key either.
        """
        if key is None:
            raise self._foreign(partition, offset, "a tombstone of the table", BadValue("neither key nor value"))
        return Change(offset, *last, "", key, None, -1, mark, size=len(key))

    def transaction(self, partition: TopicPartition, offset: int, value: bytes | None) -> TransactionRecord:
        """A record of the topic of transactions.

        Raises:
            CorruptData: it is something else.
        """
        try:
            return msgspec.convert(avro.decode(value or b"", self._schema_of), prepared(TransactionRecord))
        except _FOREIGN as error:
            raise self._foreign(partition, offset, "the beginning or the end of a transaction", error) from error

    def _change(
        self, offset: int, key: bytes | None, value: bytes, headers: Mapping[str, bytes | None], mark: int
    ) -> Change:
        schema_id, payload = avro.split(value)
        shape = self.shape(schema_id)
        record = shape.decode(payload)
        operation, after, source = record["op"], record["after"], record["transaction"]
        if key is None or source is None:
            raise BadValue("one without a key" if key is None else "one without its transaction")
        if operation not in OPERATIONS or (after is None) != (operation in _WITHOUT_ROW):
            raise BadValue(f"operation {operation!r} {'without' if after is None else 'with'} a row")
        row = None if after is None else shape.texts(after)
        names = headers.get(UNCHANGED_HEADER)
        unchanged = msgspec.json.decode(names, type=tuple[str, ...]) if names else ()
        size = len(key) + len(value)
        belongs = source["id"], record["position"], source["total_order"]
        return Change(offset, *belongs, operation, key, row, schema_id, mark, unchanged, size)

    def _foreign(self, partition: TopicPartition, offset: int, expected: str, error: Exception) -> CorruptData:
        found = str(error) if isinstance(error, MainstemError) else f"{type(error).__name__}: {error}"
        found = " ".join(found.split())
        return CorruptData(
            f"sink {self._sink}: {partition} offset {offset}: expected {expected}, found another record: {found:.200}",
            hint=NOT_OURS,
        )
