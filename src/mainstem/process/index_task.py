"""The tasks' side of a local index: the rows of a partition, given to its index one by one.

in    _given int: the partition that a row is given to, in its order      the columns of the job's rows
out   _result struct | null      _change struct | null: a row of the table, or its key      _deleted boolean

    <directory>/<partition>/index/      what the user's class makes
    <directory>/<partition>/position    {"offset": 1234, "at_ms": ...}: up to where it has followed its table
    <directory>/<partition>/lock        one task at a time
"""

import copy
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.partitioner import partition_for
from mainstem.client.reader import RangeReader
from mainstem.core import MainstemError, UserError
from mainstem.core.causes import one_line
from mainstem.core.files import make_directory, write_atomically
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.core.prepared import prepared
from mainstem.process.local_index import Change, LocalIndex
from mainstem.process.reading import DELETED, POSITION
from mainstem.registry import avro

if TYPE_CHECKING:
    import pyarrow

log = get_logger()

GIVEN = "_given"
"""The column of a row with the partition that it is given to."""

_ROWS = 1000  # of a piece of the results, and of what an index takes over at once
_PATIENCE_SECONDS = 60.0


class Table(msgspec.Struct, frozen=True):
    """The table that an index follows, and what it gives."""

    name: str
    key: tuple[str, ...]
    columns: Any  # a StructType
    returns: Any  # likewise


class History(Protocol):
    """Where the changes of a table come from.

    Attributes:
        kept_ms: for how long it says which rows are gone. An index that was behind for longer has to begin anew.
    """

    @property
    def kept_ms(self) -> int: ...

    def end(self, partition: int) -> int:
        """How far a partition goes."""
        ...

    def read(self, partition: int, start: int) -> Iterator[tuple[int, Change]]:
        """The changes from `start` on, each with the position after it."""
        ...


class ListedHistory(msgspec.Struct, frozen=True):
    """That of a table whose changes are all here, in one partition."""

    changes: tuple[Change, ...] = ()
    kept_ms: int = 1 << 62

    def end(self, partition: int) -> int:
        return len(self.changes)

    def read(self, partition: int, start: int) -> Iterator[tuple[int, Change]]:
        return ((number, change) for number, change in enumerate(self.changes[start:], start + 1))


class TopicHistory(msgspec.Struct, frozen=True):
    """That of a topic, up to the ends that it had when the batch began.

    Args:
        connection: the log.
        topic: of the table.
        ends: of its partitions.
        schema_id: of its rows.
        schema: the same, as Avro.
        key: columns of its key, and their types as Spark calls them.
        kept_ms: how long a removal stays in it.
    """

    connection: Connection
    topic: str
    ends: dict[int, int]
    schema_id: int
    schema: str
    key: tuple[tuple[str, str], ...]
    kept_ms: int

    def end(self, partition: int) -> int:
        return self.ends[partition]

    def read(self, partition: int, start: int) -> Iterator[tuple[int, Change]]:
        """As of the protocol.

        Raises:
            RecordsDeleted: not all of them are there any more.
            BadValue: a record is none of this job's.
        """
        reader = RangeReader(self.connection, self.topic, deleted="error", name="mainstem.indexes")
        names = [name for name, _ in self.key]
        try:
            for message in reader.read({partition: start} if start else {}, {partition: self.ends[partition]}):
                value = message.value()
                row = None if value is None else avro.decode(value, {self.schema_id: self.schema}.__getitem__)
                key = avro.key_values(message.key(), self.key) if row is None else {name: row[name] for name in names}
                yield message.offset() + 1, Change(key, row)
        finally:
            reader.close()


class Place(msgspec.Struct, frozen=True):
    """Where the indexes of a table lie, one for each of its partitions: below the directory that Spark has on the host
    of the task, where `directory` is a relative one. Where there is none they last as long as the task.
    """

    directory: str
    partitions: int
    history: History


def new_place() -> Place:
    """That of a table which is written for the first time, and by nobody but this."""
    return Place("", 1, ListedHistory())


class Changes:
    """What a partition's index has put and removed in a batch; of each key the last counts."""

    def __init__(self, table: Table, partition: int, partitions: int) -> None:
        self._table, self._partition, self._partitions = table, partition, partitions
        self._known = set(table.columns.fieldNames())
        self._made: dict[bytes, tuple[dict[str, Any], bool]] = {}

    def put(self, row: Mapping[str, Any]) -> None:
        """As of `LocalIndex`."""
        if unknown := sorted(row.keys() - self._known):
            raise UserError(f"put: expected the columns {', '.join(sorted(self._known))}, found {unknown[0]}")
        self._made[self._own_key("put", row)] = dict(row), False

    def remove(self, key: Mapping[str, Any]) -> None:
        """As of `LocalIndex`."""
        text = self._own_key("remove", key)
        self._made[text] = {name: key[name] for name in self._table.key}, True

    def owns(self, key: Mapping[str, Any]) -> bool:
        """As of `LocalIndex`."""
        return self._place(avro.key_text(key, self._table.key)) == self._partition

    def __iter__(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Each row, and whether it is gone."""
        return iter(self._made.values())

    def _own_key(self, what: str, row: Mapping[str, Any]) -> bytes:
        text = avro.key_text(row, self._table.key)
        if (place := self._place(text)) != self._partition:
            raise UserError(
                f"{what}: key {text.decode()!r} of table {self._table.name} belongs to partition {place}, this is the "
                f"index of {self._partition}",
                hint="give the rows by_key, with the columns of that key; of rows that go to_all ask whether it owns one",
            )
        return text

    def _place(self, text: bytes) -> int:
        return partition_for(text, self._partitions)


class Process(msgspec.Struct, frozen=True):
    """The function for `mapInArrow`."""

    index: LocalIndex
    table: Table
    place: Place
    kind: Any  # a StructType: of what it gives

    def __call__(self, batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        rows = (row for batch in batches for row in batch.to_pylist())
        for partition, given in groupby(rows, lambda row: int(row.pop(GIVEN))):
            with self._opened(partition) as index:
                yield from self._pieces(self._process(index, partition, given))

    def _process(self, index: LocalIndex, partition: int, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        from pyspark.sql import Row

        changes = index._changes = Changes(self.table, partition, self.place.partitions)
        known = set(self.table.returns.fieldNames())
        position = None
        for row in rows:
            position = row.pop(POSITION, None)
            for result in index.process(Row(**row)) or ():
                values = result.asDict() if isinstance(result, Row) else dict(result)
                if unknown := sorted(values.keys() - known):
                    raise UserError(
                        f"process: expected the columns {self.table.returns.simpleString()}, found {unknown[0]}"
                    )
                yield {"_result": values, POSITION: position}
        for row, gone in changes:
            yield {"_change": row, DELETED: gone, POSITION: position}

    def _pieces(self, rows: Iterator[dict[str, Any]]) -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.kind, timezone="UTC")
        piece: list[dict[str, Any]] = []
        for row in rows:
            piece.append(row)
            if len(piece) == _ROWS:
                yield pyarrow.RecordBatch.from_pylist(piece, schema=schema)
                piece = []
        if piece:
            yield pyarrow.RecordBatch.from_pylist(piece, schema=schema)

    @contextmanager
    def _opened(self, partition: int) -> Iterator[LocalIndex]:
        """The index of a partition, where its table was when the batch began."""
        with _directory(self.place.directory, partition) as directory, _locked(directory):
            index = copy.deepcopy(self.index)
            kept = KeptIndex(index, directory, self.table.name)
            kept.follow(partition, self.place.history)
            try:
                yield index
            finally:
                index.close()


class KeptIndex:
    """An index in its directory, which nobody else uses meanwhile.

    Args:
        index: of the user's class.
        directory: has it, and its position.
        name: of its table.
    """

    def __init__(self, index: LocalIndex, directory: Path, name: str) -> None:
        self._index, self._directory, self._name = index, directory, name

    def follow(self, partition: int, history: History) -> None:
        """Open it, and bring it to the end of `history`; anew where it is damaged, or ahead, or was away for too long.

        Raises:
            Any: it cannot be opened, or does not take the changes.
        """
        position, end = self._position(), history.end(partition)
        behind_ms = time.time_ns() // 1_000_000 - position.at_ms if position.offset < end else 0
        if position.offset > end or behind_ms > history.kept_ms:
            position = self._forget("it is ahead" if position.offset > end else "it was away for too long", position)
        try:
            self._open(partition, history, position.offset)
        except MainstemError:
            raise
        except Exception as error:
            if not position.offset:
                raise
            with suppress(Exception):  # what it was is told already
                self._index.close()
            self._forget(one_line(error), position)
            self._open(partition, history, 0)

    def _open(self, partition: int, history: History, start: int) -> None:
        self._index.open(self._own())
        end = history.end(partition)
        if start == end:
            return
        piece: list[Change] = []
        for position, change in history.read(partition, start):
            piece.append(change)
            if len(piece) == _ROWS:
                self._apply(piece, position)
                piece = []
        self._apply(piece, end)

    def _apply(self, piece: list[Change], position: int) -> None:
        if piece:
            self._index.apply(piece)
        kept = _Position(position, time.time_ns() // 1_000_000)
        write_atomically(self._directory / "position", msgspec.json.encode(kept))

    def _own(self) -> Path:
        own = self._directory / "index"
        own.mkdir(exist_ok=True)
        return own

    def _position(self) -> "_Position":
        try:
            return msgspec.json.decode((self._directory / "position").read_bytes(), type=prepared(_Position))
        except (OSError, msgspec.MsgspecError):  # the table has all that is in it
            return self._forget("it has no position", _Position())

    def _forget(self, reason: str, position: "_Position") -> "_Position":
        """Begin anew."""
        if position.offset:
            log.warning("index_made_anew", table=self._name, directory=str(self._directory), reason=reason)
        shutil.rmtree(self._directory / "index", ignore_errors=True)
        (self._directory / "position").unlink(missing_ok=True)
        return _Position()


class _Position(msgspec.Struct, frozen=True):
    offset: int = 0
    at_ms: int = 0


@contextmanager
def _directory(directory: str, partition: int) -> Iterator[Path]:
    if directory:
        own = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0], directory, str(partition))
        make_directory(own)
        yield own
    else:
        with tempfile.TemporaryDirectory(prefix="mainstem-index-") as temporary:
            yield Path(temporary)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One task at a time: another one may be left of a driver that was killed, for a moment."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            lock = DirectoryLock(directory)
            break
        except DirectoryInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.release()
