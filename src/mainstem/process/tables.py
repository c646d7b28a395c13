"""A changelog as a DataFrame of its rows at one position: pinned, so that a batch and its replay join the same rows.
With its history it has all versions of a row that the log still has, each with the time from which on and before which
it held.

The position is the next offset of every partition. The driver keeps the last value of every key, and when the position
has moved it reads only the records in between: no Spark job, whose set-up would take longer than reading a small table.
Rows at a position can be read again while the log keeps the records up to it, which a changelog's
`min.compaction.lag.ms` decides.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.progress import Seen
from mainstem.client.reader import RangeReader
from mainstem.core import CorruptData, UserError
from mainstem.core.logging import get_logger
from mainstem.process.declare import SINCE, UNTIL
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
    timestamp_ms: int = 0


class _Held(msgspec.Struct, frozen=True):
    """A version of a row. `since`: in microseconds since 1970; 0 where no history is kept. None: there is no row."""

    partition: int
    value: bytes | None
    since: int = 0


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

    def __init__(
        self, schema: TopicSchema, registry: SchemaSource, reader: Reader, *, history: str | None = None
    ) -> None:
        """`history`: the column that says since when a row is so; of change records it is the time of their commit."""
        self.schema = schema
        self.history = history
        self.position: dict[int, int] = {}
        self.moved_from: dict[int, int] = {}
        self.read: Observed | None = None  # what was read since `moved_from`, until somebody takes it for the audit
        self._registry = registry
        self._reader = reader
        self._rows: dict[bytes | None, list[_Held]] = {}  # by key; the last version only, unless there is a history
        self._frame: DataFrame | None = None
        self._is_small = True

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

            time, versions = pyarrow.timestamp("us", "UTC"), [*self._versions()]
            columns = {"value": pyarrow.array([value for value, _, _ in versions], pyarrow.binary())}
            if self.history is not None:
                columns[SINCE] = pyarrow.array([since for _, since, _ in versions], pyarrow.int64()).cast(time)
                columns[UNTIL] = pyarrow.array([until for _, _, until in versions], pyarrow.int64()).cast(time)
            raw = spark.createDataFrame(pyarrow.table(columns))
            rows = decode_values(raw, self.schema).filter(f"{STATUS} = '{DECODED}'")
            self._is_small = len(versions) <= _BROADCAST_ROWS
            own = f"{ROW}.after.*" if self.schema.is_change else f"{ROW}.*"
            self._frame = rows.select(own, *([SINCE, UNTIL] if self.history is not None else [])).persist()
        return self._frame.hint("broadcast") if self._is_small else self._frame

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
            if change.key in self._rows and self._rows[change.key][-1].value is not None:  # else its deletion ended it
                self._end(change.key, change.timestamp_ms * 1000)
            return "tombstones"
        try:
            row = self._decode(change.value) if self.schema.is_change or self.history is not None else None
        except CorruptData as error:
            place = f"{self.schema.topic}-{change.partition} offset {change.offset}"
            log.warning("table_row_left_out", place=place, reason=str(error))
            return "quarantined"
        since = 0 if row is None or self.history is None else _micros(row.get(self.history), change)
        changed = row if self.schema.is_change else None
        if changed is not None and changed["op"] == "t":  # truncated: everything before it is gone
            for key in [key for key, each in self._rows.items() if each[-1].partition == change.partition]:
                self._end(key, since)
        elif changed is not None and changed["after"] is None:
            self._end(change.key, since)
        else:
            held = self._rows.setdefault(change.key, [])
            if self.history is None:
                held.clear()
            held.append(_Held(change.partition, change.value, since))
        return "rows"

    def _end(self, key: bytes | None, since: int) -> None:
        """There is no row of this key since then."""
        if self.history is None:
            self._rows.pop(key, None)
        elif held := self._rows.get(key):
            held.append(_Held(held[-1].partition, None, since))

    def _versions(self) -> Iterator[tuple[bytes, int, int | None]]:
        """(value, since, until) of each version; of two that hold since the same time the later one counts."""
        for held in self._rows.values():
            in_order = [*{each.since: each for each in sorted(held, key=lambda each: each.since)}.values()]
            for each, after in zip_longest(in_order, in_order[1:]):
                if each.value is not None:
                    yield each.value, each.since, None if after is None else after.since

    def _decode(self, value: bytes) -> Any:
        schema_id, _ = avro.split(value)
        if schema_id not in self.schema.writers and schema_id not in self.schema.refused:
            self.schema = with_id(self._registry, self.schema, schema_id)
        if schema_id in self.schema.refused:
            raise avro.BadValue(f"schema {schema_id} is not registered")
        return avro.decode(value, self.schema.writers.__getitem__)


def table_type(row: Any, schema: TopicSchema, history: str | None = None) -> Any:
    """The columns that a table's rows have, given the type of its records.

    Raises:
        UserError: there is no history by this column.
    """
    own = row["after"].dataType if schema.is_change else row
    if history is None:
        return own
    found = row[history].dataType.typeName() if history in row.fieldNames() else "none of that name"
    if found != "timestamp":
        raise UserError(
            f"table {schema.topic}: expected a column {history} of type timestamp for its history, found {found}",
            hint=f"its records have {', '.join(row.fieldNames())}",
        )
    return type(own)([*own.fields, *own.fromDDL(f"{SINCE} timestamp, {UNTIL} timestamp").fields])


def _micros(time: Any, change: Change) -> int:
    """The time of a row, in microseconds since 1970; that of its record where it has none."""
    return change.timestamp_ms * 1000 if time is None else round(time.timestamp() * 1_000_000)


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
            _, time_ms = message.timestamp()
            yield Change(message.partition(), message.offset(), message.key(), message.value(), time_ms)

    def close(self) -> None:
        self._ranges.close()
