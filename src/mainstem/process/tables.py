"""A changelog as a DataFrame of its rows at one position: pinned, so that a batch and its replay join the same rows.

The position is the next offset of every partition. The driver keeps the last value of every key, and when the position
has moved it reads only the records in between: no Spark job, whose set-up would take longer than reading a small table.
Rows at a position can be read again while the log keeps the records up to it, which a changelog's
`min.compaction.lag.ms` decides.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.progress import Seen
from mainstem.client.reader import RangeReader
from mainstem.core import CorruptData
from mainstem.core.logging import get_logger
from mainstem.process.reading import Observed
from mainstem.records.fingerprint import MODULUS, fingerprint
from mainstem.registry import avro
from mainstem.registry.spark import DECODED, ROW, STATUS, SchemaSource, TopicSchema, decode_values, with_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = get_logger()

_BROADCAST_ROWS = 200_000
"""A table up to this size goes to every task whole; a larger one is joined by a shuffle."""


class Change(msgspec.Struct, frozen=True):
    """One record of a changelog."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Reader(Protocol):
    """Where a table's records come from."""

    def ends(self) -> dict[int, int]:
        """The position after all that is committed."""
        ...

    def read(self, start: Mapping[int, int], end: Mapping[int, int]) -> Iterable[Change]:
        """The records from `start` (a partition that is missing: from its beginning) to `end`, not included."""
        ...

    def close(self) -> None: ...


class PinnedTable:
    """The rows of one changelog topic, moved forward position by position."""

    def __init__(self, schema: TopicSchema, registry: SchemaSource, reader: Reader) -> None:
        self.schema = schema
        self.position: dict[int, int] = {}
        self.moved_from: dict[int, int] = {}
        self.read: Observed | None = None  # what was read since `moved_from`, until somebody takes it for the audit
        self._registry = registry
        self._reader = reader
        self._rows: dict[bytes | None, tuple[int, bytes]] = {}  # key -> partition, value
        self._frame: DataFrame | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def move(self, position: Mapping[int, int] | None = None) -> None:
        """Read on to `position`, or to all that is committed now; from the beginning again if it lies behind."""
        position = self._reader.ends() if position is None else position
        if dict(position) == self.position:
            return
        if any(offset < self.position.get(partition, 0) for partition, offset in position.items()):
            self.position, self._rows, self.read = {}, {}, None
        if self.read is None:
            self.moved_from, self.read = self.position, Observed({})
        # What nobody has taken stays in it: a batch that is skipped moves the table too.
        counted = {partition: msgspec.structs.asdict(seen) for partition, seen in self.read.partitions.items()}
        for change in self._reader.read(self.position, position):
            books = counted.setdefault(change.partition, {"rows": 0, "tombstones": 0, "quarantined": 0, "hash": 0})
            books[self._apply(change)] += 1
            books["hash"] = (books["hash"] + fingerprint(change.key, change.value)) % MODULUS
        self.position = dict(position)
        self.read = Observed({partition: Seen(**counted.get(partition, {})) for partition in position})
        self._forget_frame()
        log.debug("table_moved", topic=self.schema.topic, position=self.position, rows=len(self))

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The rows, with the columns of the reader schema (of `after`, for change records)."""
        if self._frame is None:
            import pyarrow

            values = pyarrow.array([value for _, value in self._rows.values()], pyarrow.binary())
            raw = spark.createDataFrame(pyarrow.table({"value": values}))
            rows = decode_values(raw, self.schema).filter(f"{STATUS} = '{DECODED}'")
            self._frame = rows.select(f"{ROW}.after.*" if self.schema.is_change else f"{ROW}.*").persist()
        return self._frame.hint("broadcast") if len(self) <= _BROADCAST_ROWS else self._frame

    def close(self) -> None:
        """Give back connections, and the memory that Spark holds."""
        self._reader.close()
        self._forget_frame()

    def _forget_frame(self) -> None:
        if self._frame is not None:
            self._frame.unpersist()
            self._frame = None

    def _apply(self, change: Change) -> str:
        """Lay one change over the rows; returns what the record was."""
        if change.value is None:
            self._rows.pop(change.key, None)
            return "tombstones"
        try:
            row = self._decode(change.value) if self.schema.is_change else None
        except CorruptData as error:
            place = f"{self.schema.topic}-{change.partition} offset {change.offset}"
            log.warning("table_row_left_out", place=place, reason=str(error))
            return "quarantined"
        if row is not None and row["op"] == "t":  # truncated: everything before it is gone
            self._rows = {key: each for key, each in self._rows.items() if each[0] != change.partition}
        elif row is not None and row["after"] is None:
            self._rows.pop(change.key, None)
        else:
            self._rows[change.key] = (change.partition, change.value)
        return "rows"

    def _decode(self, value: bytes) -> Any:
        schema_id, _ = avro.split(value)
        if schema_id not in self.schema.writers and schema_id not in self.schema.refused:
            self.schema = with_id(self._registry, self.schema, schema_id)
        if schema_id in self.schema.refused:
            raise avro.BadValue(f"schema {schema_id} is not registered")
        return avro.decode(value, self.schema.writers.__getitem__)


def table_type(row: Any, schema: TopicSchema) -> Any:
    """The columns that a table's rows have, given the type of its records."""
    return row["after"].dataType if schema.is_change else row


class TableReader:
    """The records of a changelog topic. A table that has been read goes on where it was: it is an error if what follows
    was deleted since, as rows would stay that later records have changed. One that is read from the beginning consists
    of what the log still has.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._ranges = RangeReader(connection, topic, deleted="error", name="mainstem.tables")

    def ends(self) -> dict[int, int]:
        return self._ranges.ends()

    def read(self, start: Mapping[int, int], end: Mapping[int, int]) -> Iterator[Change]:
        """As `RangeReader.read`."""
        for message in self._ranges.read(start, end):
            yield Change(message.partition(), message.offset(), message.key(), message.value())

    def close(self) -> None:
        self._ranges.close()
