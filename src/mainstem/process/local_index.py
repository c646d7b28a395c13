"""A local index: what a job keeps beside Spark, of any kind: RocksDB, an index for search, files of its own.

    seen = changelog("shop.seen", key="id")

    class Seen(LocalIndex):
        columns, returns = "id string, times long", "id string, times long"
        ...

    @stream(to="shop.known", key="id", also=[seen])
    def known(orders):
        return indexed(seen, Seen(), by_key=orders)

What is in it are the rows of a table that the job writes in the transaction of its batch, and nothing else: the index
follows that table, and each partition of the table has one of its own. The task that has the rows of a partition brings
its index to where the table was when the batch began, and gives it the rows one by one (`index_task`). So an index is
never ahead of the log, a batch that is tried again finds what it found before, and one that is lost is made anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from mainstem.core import UserError
from mainstem.process.declare import Topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql.types import StructType

    from mainstem.process.index_task import Changes, Place


_WHOLE = {"tinyint", "smallint", "int", "bigint"}
"""Types of which a number is the same text."""


class Change(NamedTuple):
    """A row that was put into an index, or taken out of it: then `row` is None."""

    key: dict[str, Any]
    row: dict[str, Any] | None


class LocalIndex(ABC):
    """What a job keeps of one partition of a table. Each task has one of its own, made by copying what `indexed` is
    given: it keeps nothing in its attributes from one batch to the next.

    Attributes:
        columns: of the table's rows, key included, as Spark writes them: "id string, words array<string>".
        returns: of what `process` gives, likewise.
    """

    columns: str
    returns: str
    _changes: "Changes | None" = None

    @abstractmethod
    def open(self, directory: Path) -> None:
        """Open the index in a directory, which is empty at first. Where it cannot be opened it is deleted and made
        anew.
        """

    @abstractmethod
    def apply(self, changes: Iterable[Change]) -> None:
        """Take over what the table has; durable on return. After a crash the same changes may come once more."""

    @abstractmethod
    def process(self, row: "Row") -> "Iterable[Row | dict[str, Any]]":
        """The results for a row: of `by_key` or of `to_all`, with the columns of both. It may `put` and `remove`."""

    def close(self) -> None:  # noqa: B027 - there may be nothing to close
        """Close it: the next batch may come to another process."""

    def put(self, **row: Any) -> None:
        """Write a row of the table. It is in the index when the next batch begins.

        Raises:
            UserError: it has other columns, or a key that belongs to another partition.
        """
        self._made().put(row)

    def remove(self, **key: Any) -> None:
        """Take the row of this key out of the table. It is in the index until the next batch begins.

        Raises:
            UserError: as `put`.
        """
        self._made().remove(key)

    def owns(self, **key: Any) -> bool:
        """Whether this partition is the key's: of a row that all partitions are given, one may put it."""
        return self._made().owns(key)

    def _made(self) -> "Changes":
        if self._changes is None:
            raise UserError("put, remove and owns belong into process")
        return self._changes


class Indexes(Protocol):
    """What a running job knows of its tables with an index."""

    def place(self, table: Topic, key: tuple[tuple[str, str], ...]) -> "Place":
        """Where the index of `table` lies, and what it follows; `key` are the columns of its key with their types.

        Raises:
            UserError: the job does not write that table.
        """
        ...

    def keep(self, rows: "DataFrame") -> None:
        """What an index gave for a batch: it is used twice, and shall not be asked twice."""
        ...


class KnownIndexes:
    """What `indexed` is told while a job is analysed: nothing is there yet.

    Args:
        tables: what the job writes besides its first result (`also`).
    """

    def __init__(self, tables: Sequence[Topic]) -> None:
        self.used: list[str] = []
        """Names of tables with an index, in the order of their use."""
        self._tables = {each.name: each for each in tables}

    def place(self, table: Topic, key: tuple[tuple[str, str], ...]) -> "Place":
        """As of `Indexes`."""
        from mainstem.process.index_task import new_place

        if self._tables.get(table.name) != table:
            raise UserError(
                f"indexed: the job does not write table {table.name}", hint="add it to also=[…] of its declaration"
            )
        if table.name not in self.used:
            self.used.append(table.name)
        return new_place()

    def keep(self, rows: "DataFrame") -> None:
        """As of `Indexes`."""


_running: ContextVar[Indexes | None] = ContextVar("mainstem_indexes", default=None)


@contextmanager
def running(indexes: Indexes) -> Iterator[None]:
    """Let `indexed` know of these within the block."""
    token = _running.set(indexes)
    try:
        yield
    finally:
        _running.reset(token)


def indexed(
    table: Topic, index: LocalIndex, *, by_key: "DataFrame | None" = None, to_all: "DataFrame | None" = None
) -> "tuple[DataFrame, DataFrame]":
    """The results of a local index for rows, and what it has put into its table: return both, the second for `table`,
    which is among what the job writes (`also`).

    Outside of a running job, as in a test, the index is empty at the beginning.

    Args:
        table: declared by `changelog`.
        index: of a class of the project's.
        by_key: rows with the columns of the table's key: each goes to the partition that its key belongs to.
        to_all: rows of which every partition is given each.

    Raises:
        UserError: the index has no such key, or there are no rows.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType, StructField, StructType

    from mainstem.process.index_task import Process, Table, new_place
    from mainstem.process.reading import DELETED, POSITION, POSITION_TYPE

    given = [each for each in (by_key, to_all) if each is not None]
    if table.kind != "changelog" or not given:
        raise UserError("indexed: expected a declared changelog, and rows as by_key=… or to_all=…")
    columns, returns = _struct(index.columns), _struct(index.returns)
    if absent := [name for name in table.key if name not in columns.fieldNames()]:
        raise UserError(
            f"indexed: {type(index).__name__}.columns: expected the key of {table.name}, {', '.join(table.key)}, "
            f"found no {absent[0]}"
        )
    indexes = _running.get()
    key = tuple((name, columns[name].dataType.simpleString()) for name in table.key)
    place = new_place() if indexes is None else indexes.place(table, key)
    rows = _placed(table, columns, place.partitions, by_key, to_all)
    has_position = POSITION in rows.columns
    own = [POSITION] if has_position else []
    kind = StructType(
        [
            StructField("_result", returns),
            StructField("_change", columns),
            StructField(DELETED, BooleanType()),
            *(_struct(POSITION_TYPE).fields if has_position else []),
        ]
    )
    process = Process(index, Table(table.name, table.key, columns, returns), place, kind)
    found = rows.mapInArrow(process, kind)
    if indexes is not None and not found.isStreaming:
        indexes.keep(found)
    results = found.filter(F.col("_result").isNotNull()).select("_result.*", *own)
    changes = found.filter(F.col("_change").isNotNull()).select("_change.*", DELETED, *own)
    return results, changes


def _struct(ddl: str) -> "StructType":
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(ddl))


def _placed(
    table: Topic, columns: Any, partitions: int, by_key: "DataFrame | None", to_all: "DataFrame | None"
) -> "DataFrame":
    """The rows in the order of their input, each in the task that has its partition."""
    from pyspark.sql import functions as F

    from mainstem.process.index_task import GIVEN
    from mainstem.process.order import with_position
    from mainstem.process.reading import POSITION

    parts = []
    if by_key is not None:
        kept = with_position(by_key)
        parts.append(kept.withColumn(GIVEN, _partition_of(table, columns, kept, partitions)))
    if to_all is not None:
        every = F.sequence(F.lit(0), F.lit(partitions - 1))
        parts.append(with_position(to_all).withColumn(GIVEN, F.explode(every)))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    tasks = min(partitions, rows.sparkSession.sparkContext.defaultParallelism)
    order = [GIVEN, *([f"{POSITION}.partition", f"{POSITION}.offset"] if POSITION in rows.columns else [])]
    return rows.repartitionById(tasks, F.col(GIVEN) % tasks).sortWithinPartitions(*order)


def _partition_of(table: Topic, columns: Any, rows: "DataFrame", partitions: int) -> "Column":
    """The partition that a row's key belongs to, as the log has it."""
    from pyspark.sql import functions as F

    from mainstem.process.murmur2 import partition_by
    from mainstem.registry.spark import key_bytes

    if absent := [name for name in table.key if name not in rows.columns]:
        raise UserError(f"indexed: by_key: expected the columns {', '.join(table.key)}, found no {absent[0]}")
    for name in table.key:
        found, expected = (each[name].dataType.simpleString() for each in (rows.schema, columns))
        if found != expected and not {found, expected} <= _WHOLE:
            raise UserError(f"indexed: by_key: column {name} is {found}, the index has {expected}", hint="cast it")
    message = F.lit(f"indexed: a row has no key ({', '.join(table.key)}) of table {table.name}")
    key = F.coalesce(key_bytes(rows.schema, table.key), F.raise_error(message).cast("binary"))
    return partition_by(rows.sparkSession, key, partitions)
