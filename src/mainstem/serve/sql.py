"""SQL over the rows of a view's topics, with DuckDB: a table per topic, all in one file.

    <table>             the columns of the topic, and _partition, _offset, _key
    mainstem.applied    one row: the position, as JSON
    mainstem.topics     topic, table, kind

Rows and position are committed by one transaction, new columns with the rows that have them. A changelog's old rows
are found by joining the batch with the table, not by an index: with one, DuckDB does not give back the room of deleted
rows, and a batch is applied no faster (docs/decisions/serving.md).

A query is one statement that only reads. DuckDB keeps it from files, network, extensions and settings. That it only
reads cannot be told by its kind (`WITH x AS (DELETE …) SELECT …` is a SELECT): it runs in a transaction that cannot
write, and calls no function that could do so outside of it (`sql_reads`).
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from mainstem.serve.columns import KEY, OFFSET, OWN, PARTITION, TableShape, check_shapes, quoted, wider
from mainstem.serve.directory import IndexDirectory
from mainstem.serve.errors import BadQuery, IndexDamaged, IndexUnavailable, OtherShape, UnfitChanges
from mainstem.serve.index import MOST_BYTES, Applied, Change, Row, after_truncates, to_json
from mainstem.serve.sql_reads import check_reads

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from mainstem.registry.avro import UnfitRow

KIND = "sql"
NAME = "index.duckdb"
_TEMPORARY = "temporary"
_LOOK_SECONDS = 0.05
MOST_SQL = 32 << 10
"""Bytes of a statement: the parser cannot be interrupted, and takes half a minute for some of 500 KB. What is long is a
value, as a rule, and goes into a parameter.
"""
MOST_DOTS = 1000
"""In a statement: a name of 16,000 parts takes minutes, which nothing interrupts."""

_BATCH = "mainstem batch"
"""What statements call the rows in hand: no table has this name, a topic has no space."""
_UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a value ends in that is none of a column's type."""


class Answer(msgspec.Struct, frozen=True):
    """The rows of a query; `more`: there would have been more than the limit."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool


class SqlIndex:
    """Tables of one or more topics; `apply` commits."""

    pending = False

    def __init__(self, directory: IndexDirectory, memory: str, threads: int, spill_bytes: int) -> None:
        self.directory = directory
        self._memory = memory
        self._threads = threads
        self._spill_bytes = spill_bytes
        self.failure: IndexUnavailable | None = None
        self._tables: dict[str, TableShape] = {}
        self._arrow: dict[str, pyarrow.Schema] = {}
        self._applied: Applied | None = None
        self._changed = False

    @staticmethod
    def open(
        path: Path,
        tables: Mapping[str, TableShape],
        *,
        memory: str = "512MB",
        threads: int = 2,
        spill_bytes: int = 1 << 30,
    ) -> "SqlIndex":
        """Open the index, or begin one; `tables` by topic. Queries together get `memory` and `threads`; what does not
        fit goes to files in the directory, up to `spill_bytes`.

        Raises:
            UserError: names in `tables` contradict each other.
            OtherShape: a table is of another kind, or has a column of a type that cannot become the one it should have.
            IndexDamaged, IndexInUse, IndexUnavailable: see there.
        """
        check_shapes(tables)
        directory = IndexDirectory.open(path, KIND, {})
        try:
            index = SqlIndex(directory, memory, threads, spill_bytes)
            with index._explained():
                index._open(tables)
        except BaseException:
            directory.close()
            raise
        return index

    @property
    def path(self) -> Path:
        """As in `Index`."""
        return self.directory.path

    @property
    def applied(self) -> Applied | None:
        """As in `Index`."""
        return self._applied

    def extend(self, tables: Mapping[str, TableShape]) -> None:
        """The next `apply` begins by giving its tables these columns: new ones, and wider types. Others stay, those of
        an `extend` before as well.

        Raises:
            UserError, OtherShape: as `open`; nothing is changed.
        """
        shapes = {topic: self._extended(topic, shape) for topic, shape in tables.items()}
        check_shapes({**self._tables, **shapes})
        with self._explained(), self._transaction():
            self._steps(shapes)
        self._tables.update(shapes)
        self._changed = True

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """As in `Index`.

        Raises:
            UnfitChanges: rows with a column that their table has not, or a value that does not fit there.
        """
        from mainstem.registry.avro import UnfitRow

        by_topic: dict[str, list[Change]] = {}
        for change in changes:
            by_topic.setdefault(change.topic, []).append(change)
        with self._explained():
            try:
                with self._transaction():
                    if self._changed:
                        self._shape(self._tables)
                    for topic, of_topic in by_topic.items():
                        self._apply(topic, of_topic)
                    self._writer.execute("UPDATE mainstem.applied SET state = ?", [applied.encode().decode()])
            except UnfitRow as error:
                raise UnfitChanges(self._unfit(changes) or {0: str(error)}) from error
        self._changed = False
        self.directory.committed()
        self._applied = applied

    @property
    def memory_bytes(self) -> int:
        """What the engine gives its queries, and its writer."""
        ((text,),) = self._writer.execute("SELECT current_setting('memory_limit')").fetchall()
        number, unit = text.split()  # as `488.2 MiB`, however it was set
        return int(float(number) * 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB").index(unit))

    def commit(self) -> None:
        """Nothing waits for it."""

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, limit: int = 1000, seconds: float = 10.0
    ) -> Answer:
        """Up to `limit` rows of one statement that only reads (`sql_reads`): SELECT, WITH, VALUES, DESCRIBE, EXPLAIN.

        It sees the rows of one commit. Parameters are those of `?`, `$1` or `$name`.

        Raises:
            BadQuery: it is no such statement, or fails, or takes longer than `seconds`, or more memory than there is.
        """
        if limit < 1:
            raise BadQuery(f"limit: expected 1 or more, found {limit}")
        if (size := len(sql.encode(errors="replace"))) > MOST_SQL:
            raise BadQuery(
                f"query: expected up to {MOST_SQL} bytes of SQL, found {size}", hint="give long values as parameters"
            )
        if (dots := sql.count(".")) > MOST_DOTS:
            raise BadQuery(f"query: expected up to {MOST_DOTS} dots, found {dots}", hint="give values as parameters")
        with self._cursor() as cursor, self._explained_to_asker(seconds), self._bounded(seconds, cursor):
            statement = check_reads(cursor, sql)
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            cursor.execute(statement, _parameters(parameters))
            return _answer(cursor, limit)

    def snapshot(self, directory: Path) -> None:
        """As in `Index`: what is in the log file of the database is written to it first, then it is copied."""
        with self._explained():
            with contextlib.suppress(_duckdb().TransactionException):  # a query runs: the log is copied with it
                self._writer.execute("CHECKPOINT")
            self.directory.copy_description(directory)
            target = directory / self.directory.files.name
            target.mkdir()
            for name in (NAME, NAME + ".wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self.directory.files / name, target / name)

    def close(self) -> None:
        """As in `Index`."""
        with self._explained():
            self._writer.close()
            self._database.close()
        self.directory.close()

    def _open(self, tables: Mapping[str, TableShape]) -> None:
        path = self.directory.files / NAME
        if self.directory.description.committed and not path.is_file():
            raise IndexDamaged(f"{path}: it is missing")
        self._database = _connect(path, self._memory, self._threads)
        try:
            self._writer = self._database.cursor()
            with self._transaction():
                self._read_state()
                self._shape(tables)
            self._tables = dict(tables)
        except BaseException:
            self._database.close()
            raise

    def _read_state(self) -> None:
        self._writer.execute("CREATE SCHEMA IF NOT EXISTS mainstem")
        self._writer.execute("CREATE TABLE IF NOT EXISTS mainstem.applied (state VARCHAR)")
        self._writer.execute(
            'CREATE TABLE IF NOT EXISTS mainstem.topics (topic VARCHAR, "table" VARCHAR, kind VARCHAR)'
        )
        rows = self._writer.execute("SELECT state FROM mainstem.applied").fetchall()
        if not rows:
            self._writer.execute("INSERT INTO mainstem.applied VALUES (NULL)")
        elif len(rows) > 1:
            raise IndexDamaged(f"{self.directory.path}: expected one position, found {len(rows)}")
        elif rows[0][0] is not None:
            try:
                self._applied = Applied.decode(rows[0][0])
            except msgspec.MsgspecError as error:
                raise IndexDamaged(f"{self.directory.path}: its position: {error}") from error
        self.directory.check_found(self._applied is not None)

    def _shape(self, tables: Mapping[str, TableShape]) -> None:
        """Give the tables their columns, in the open transaction."""
        for statement, *values in self._steps(tables):
            self._writer.execute(statement, values)
        self._arrow.clear()

    def _extended(self, topic: str, shape: TableShape) -> TableShape:
        if topic not in self._tables:
            return shape
        columns = dict(self._tables[topic].columns)
        spelled = {column.lower(): column for column in columns}
        for column, kind in shape.columns.items():
            widest = wider(columns.get(column, kind), kind)
            there = spelled.get(column.lower(), column)
            if widest is None or there != column:
                raise OtherShape(f"topic {topic}: expected a column {column} {kind}, found {there} {columns[there]}")
            columns[column] = widest
        return msgspec.structs.replace(shape, columns=columns)

    def _steps(self, tables: Mapping[str, TableShape]) -> list[list[str]]:
        """The statements that do that, with their parameters."""
        steps = []
        for topic, shape in tables.items():
            name = shape.table(topic)
            self._writer.execute('SELECT "table", kind FROM mainstem.topics WHERE topic = ?', [topic])
            found = next(iter(self._writer.fetchall()), None)  # to the end: else the next statement is refused
            if found is None:
                columns = ", ".join(f"{quoted(column)} {kind}" for column, kind in {**OWN, **shape.columns}.items())
                steps.append([f"CREATE TABLE {quoted(name)} ({columns})"])
                steps.append(["INSERT INTO mainstem.topics VALUES (?, ?, ?)", topic, name, shape.kind])
            elif found != (name, shape.kind):
                raise OtherShape(f"topic {topic}: expected a {shape.kind} {name}, found a {found[1]} {found[0]}")
            else:
                steps += [[step] for step in self._column_steps(topic, name, shape.columns)]
        return steps

    def _column_steps(self, topic: str, name: str, columns: Mapping[str, str]) -> Iterator[str]:
        self._writer.execute(
            "SELECT lower(column_name), column_name, data_type FROM duckdb_columns() "
            "WHERE schema_name = 'main' AND table_name = ?", [name],
        )  # fmt: skip
        there = {lower: (column, kind) for lower, column, kind in self._writer.fetchall()}
        for column, kind in columns.items():
            ((wanted,),) = self._writer.execute(f"SELECT typeof(CAST(NULL AS {kind}))").fetchall()
            old, found = there.get(column.lower(), ("", ""))
            widest = wider(found, wanted)
            if not old:
                yield f"ALTER TABLE {quoted(name)} ADD COLUMN {quoted(column)} {kind}"
            elif widest is None or old != column:
                raise OtherShape(f"topic {topic}: expected a column {column} {wanted}, found {old} {found}")
            elif widest != found:
                yield f"ALTER TABLE {quoted(name)} ALTER {quoted(column)} TYPE {widest}"

    def _apply(self, topic: str, changes: Sequence[Change]) -> None:
        shape = self._tables[topic]
        table = quoted(shape.table(topic))
        if shape.kind == "changelog":
            if emptied := {change.partition for change in changes if change.truncates}:
                self._writer.execute(f"DELETE FROM {table} WHERE {PARTITION} IN ({', '.join(map(str, emptied))})")  # noqa: S608
            changes = after_truncates(changes)
            # without a key all are kept
            last = {index if change.key is None else change.key: change for index, change in enumerate(changes)}
            changes = list(last.values())
            keys = [change.key for change in changes if change.key is not None]
            old = _pyarrow().table({KEY: _pyarrow().array(keys, _pyarrow().string())})
            self._with_batch(f"DELETE FROM {table} WHERE {KEY} IN (SELECT {KEY} FROM {quoted(_BATCH)})", old)  # noqa: S608
        rows = [change for change in changes if change.row is not None]
        if rows:
            self._insert(topic, rows)

    def _insert(self, topic: str, changes: Sequence[Change]) -> None:
        batch, table = self._batch(topic, changes), quoted(self._tables[topic].table(topic))
        try:
            self._with_batch(f"INSERT INTO {table} BY NAME SELECT * FROM {quoted(_BATCH)}", batch)  # noqa: S608
        except _duckdb().DataError as error:  # of a text that should be a UUID, say
            raise _unfit(f"{topic}: {_line(error)}", "") from error

    # A batch is looked at as a whole, which costs nothing where all fits; only one that does not is taken apart.

    def _unfit(self, changes: Sequence[Change]) -> dict[int, str]:
        """Which rows do not fit their tables, by their place, and why."""
        if self._changed:  # by itself: new columns do no harm without rows
            with self._transaction():
                self._shape(self._tables)
            self._changed = False
        reasons: dict[int, str] = {}
        for topic in {change.topic for change in changes}:
            known = self._schema(topic).names
            places = []
            for place, change in enumerate(changes):
                if change.topic == topic and change.row is not None:
                    if strange := change.row.keys() - known:
                        reasons[place] = str(_no_column(topic, min(strange)))
                    else:
                        places.append(place)
            self._find_unfit(topic, places, changes, reasons)
        return reasons

    def _find_unfit(self, topic: str, places: list[int], changes: Sequence[Change], reasons: dict[int, str]) -> None:
        reason = self._misfit(topic, [changes[place] for place in places])
        if reason and len(places) == 1:
            reasons[places[0]] = reason
        elif reason:
            for half in (places[: len(places) // 2], places[len(places) // 2 :]):
                self._find_unfit(topic, half, changes, reasons)

    def _misfit(self, topic: str, changes: Sequence[Change]) -> str:
        """Why these rows do not fit together; "" where they do."""
        from mainstem.registry.avro import UnfitRow

        try:
            self._batch(topic, changes)
            self._writer.begin()
            try:
                self._insert(topic, changes)
            finally:
                self._writer.rollback()
        except UnfitRow as error:
            return str(error)
        return ""

    def _with_batch(self, statement: str, batch: "pyarrow.Table") -> None:
        self._writer.register(_BATCH, batch)
        self._writer.execute(statement)
        self._writer.unregister(_BATCH)  # after an error the transaction takes it along

    def _batch(self, topic: str, changes: Sequence[Change]) -> "pyarrow.Table":
        schema = self._schema(topic)
        rows: list[Row] = [change.row for change in changes if change.row is not None]
        known = dict.fromkeys(schema.names).keys()
        for row in rows:
            if not row.keys() <= known:
                raise _no_column(topic, min(row.keys() - known))
        own: dict[str, list[Any]] = {
            PARTITION: [change.partition for change in changes],
            OFFSET: [change.offset for change in changes],
            KEY: [change.told_key if change.key is None else change.key for change in changes],
        }
        columns = []
        for field in schema:
            values = own.get(field.name) or [row.get(field.name) for row in rows]
            columns.append(_column(topic, field, values))
        return _pyarrow().table(columns, schema=schema)

    def _schema(self, topic: str) -> "pyarrow.Schema":
        schema = self._arrow.get(topic)
        if schema is None:
            table = quoted(self._tables[topic].table(topic))
            schema = self._writer.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema  # noqa: S608
            self._arrow[topic] = schema
        return schema

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.begin()
        try:
            yield
            self._writer.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                self._writer.rollback()
            self._arrow.clear()
            raise

    @contextlib.contextmanager
    def _cursor(self) -> "Iterator[duckdb.DuckDBPyConnection]":
        cursor = self._database.cursor()
        try:
            yield cursor
        finally:
            cursor.close()  # what it has begun is rolled back

    @contextlib.contextmanager
    def _bounded(self, seconds: float, cursor: "duckdb.DuckDBPyConnection") -> Iterator[None]:
        """Interrupt what `cursor` does when the time is over, or when queries take more of the disk than they may:
        again and again, since between two steps it would be lost. DuckDB has a bound of its own for the disk, which
        does not count large blocks: of 20 MB it let a query take 1.3 GB.
        """
        done, full = threading.Event(), threading.Event()
        end = monotonic() + seconds

        def watch() -> None:
            while not done.wait(max(0.0, min(end - monotonic(), _LOOK_SECONDS))):
                if self._spilled() > self._spill_bytes:
                    full.set()
                if full.is_set() or monotonic() >= end:
                    cursor.interrupt()
                    done.wait(_LOOK_SECONDS)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        except _duckdb().InterruptException as error:
            if not full.is_set():
                raise
            raise BadQuery(
                f"query: the queries of this view need more than the {self._spill_bytes >> 20} MiB of the disk that there is",
                hint="ask for less, or again; `sql_spill_bytes` of the node says how much there is",
            ) from error
        finally:
            done.set()
            watcher.join()

    def _spilled(self) -> int:
        size = 0
        with contextlib.suppress(FileNotFoundError):  # of the directory: nothing was written yet
            for each in os.scandir(self.directory.files / _TEMPORARY):
                with contextlib.suppress(FileNotFoundError):
                    size += each.stat().st_size
        return size

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        errors = _duckdb()
        with self.directory.explained():
            try:
                yield
            except (errors.OutOfMemoryException, errors.BinderException, errors.ParserException) as error:
                # The last two are of our statements: to build the index anew would cost it, and mend nothing.
                raise IndexUnavailable(f"{self.directory.path}: {_line(error)}") from error

    @contextlib.contextmanager
    def _explained_to_asker(self, seconds: float) -> Iterator[None]:
        errors = _duckdb()
        try:
            yield
        except errors.InterruptException as error:
            raise BadQuery(f"query: it took longer than {seconds:g} s") from error
        except errors.OutOfMemoryException as error:
            raise BadQuery(
                f"query: it needs more memory than the {self._memory} that there is",
                hint="ask for less; `sql_memory` of the node says how much there is",
            ) from error
        except (errors.FatalException, errors.InternalException) as error:  # the engine stops until it is opened again
            self.failure = IndexUnavailable(f"{self.directory.path}: {_line(error)}")
            raise self.failure from error
        except (errors.IOException, errors.SerializationException) as error:
            raise self.directory.meaning(error) from error
        except (errors.Error, ValueError, OverflowError) as error:
            raise BadQuery(f"query: {_line(error)}") from error


def _connect(path: Path, memory: str, threads: int) -> "duckdb.DuckDBPyConnection":
    """Shut off from everything but its own file."""
    database: duckdb.DuckDBPyConnection = _duckdb().connect(
        str(path),
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",  # our variables are no tables; the first line forbids that, too
            "memory_limit": memory,
            "threads": str(threads),
            "temp_directory": str(path.with_name(_TEMPORARY)),
        },
    )
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET GLOBAL lock_configuration = true")
    return database


def _parameters(parameters: Sequence[Any] | Mapping[str, Any]) -> Any:
    return dict(parameters) if isinstance(parameters, Mapping) else list(parameters)


def _answer(cursor: "duckdb.DuckDBPyConnection", limit: int) -> Answer:
    columns = [column[0] for column in cursor.description or ()]
    rows: list[tuple[Any, ...]] = []
    size = 0
    while (row := cursor.fetchone()) is not None:
        if len(rows) == limit:
            return Answer(columns, rows, more=True)
        size += _size(row)
        if size > MOST_BYTES:
            raise BadQuery(f"query: its answer is larger than {MOST_BYTES >> 20} MB")
        rows.append(row)
    return Answer(columns, rows, more=False)


def _size(value: Any) -> int:
    match value:
        case str() | bytes():
            return 50 + len(value)
        case list() | tuple():
            return 50 + sum(map(_size, value))
        case dict():
            return 50 + sum(map(_size, value.keys())) + sum(map(_size, value.values()))
    return 30


def _column(topic: str, field: "pyarrow.Field", values: list[Any]) -> "pyarrow.Array":
    arrow = _pyarrow()
    convert = _converter(field.type, values)
    try:
        return arrow.array(values if convert is None else [convert(value) for value in values], field.type)
    except (arrow.ArrowException, *_UNFIT) as error:
        raise _unfit(f"{topic}: expected values of type {field.type}: {_line(error)}", field.name) from error


def _converter(kind: "pyarrow.DataType", values: Sequence[Any]) -> Callable[[Any], Any] | None:
    """What makes of a value one that Arrow takes for a type; None: it takes them as they are."""
    from pyarrow import types

    if types.is_string(kind):
        return None if {str, type(None)}.issuperset(map(type, values)) else _text
    if types.is_list(kind):
        return _list_converter(kind)
    if types.is_map(kind):
        return _map_converter(kind)
    if types.is_struct(kind):
        return _struct_converter(kind)
    return None


def _text(value: Any) -> str | None:
    """A UUID, as its type has it in Arrow; what has no one type in SQL, as JSON."""
    match value:
        case None | str():
            return value
        case UUID():
            return str(value)
    return msgspec.json.encode(to_json(value)).decode()


def _part(kind: "pyarrow.DataType") -> Callable[[Any], Any]:
    """As `_converter`, for parts of values, which are not looked at before."""
    return _converter(kind, (0,)) or (lambda value: value)


def _list_converter(kind: Any) -> Callable[[Any], Any]:
    item = _part(kind.value_type)

    def convert(value: Any) -> Any:
        if isinstance(value, str | bytes | dict):  # of which parts could be taken, too
            raise TypeError(f"expected a list, found {type(value).__name__}")
        return None if value is None else [item(each) for each in value]

    return convert


def _map_converter(kind: Any) -> Callable[[Any], Any]:
    item = _part(kind.item_type)
    return lambda value: None if value is None else [(name, item(each)) for name, each in value.items()]


def _struct_converter(kind: Any) -> Callable[[Any], Any]:
    parts = {field.name: _part(field.type) for field in kind}
    return lambda value: None if value is None else {name: part(value.get(name)) for name, part in parts.items()}


def _no_column(topic: str, column: str) -> "UnfitRow":
    return _unfit(f"{topic}: its table has no such column", column[:100])


def _unfit(message: str, column: str) -> "UnfitRow":
    from mainstem.registry.avro import UnfitRow

    return UnfitRow(f"column {column!r} of {message}" if column else message, column=column)


def _line(error: BaseException) -> str:
    """The first line of what DuckDB says: a picture of the query follows."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def _duckdb() -> Any:
    import duckdb

    return duckdb


def _pyarrow() -> Any:
    import pyarrow

    return pyarrow
