"""Test the jobs of a project with rows: no log, no registry, the same functions; each in less than a second.

    from mainstem.testing import jobs_of

    def test_revenue(mainstem_spark):
        with jobs_of("shop", mainstem_spark).start("revenue_hourly") as revenue:
            assert revenue.feed(orders_enriched=[{"region": "north", "ordered_at": noon, "amount_cents": 5}]) == []
            assert revenue.advance(noon + timedelta(hours=2)) == [{"region": "north", "hour": noon, "revenue_cents": 5}]

A job without state is called with the rows of each batch. One with state is a streaming query that is fed batch by
batch, with the watermark, the state and the late rows that it has on a log. What a log adds, that each batch comes out
once, is not for a project to test.
"""

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from mainstem.core import UserError
from mainstem.process.declare import SINCE, UNTIL, BadDeclaration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mainstem.process.analysis import Analysis
    from mainstem.process.project import Input, Project

Row: TypeAlias = Mapping[str, Any]

_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Compiling code for a batch takes longer than going through some rows without."""
_MOST_MS = 1 << 47  # some thousand years


class UnknownColumns(UserError):
    """What the columns of an input are is said nowhere."""


@contextmanager
def session() -> "Iterator[SparkSession]":
    """A Spark for the tests of this process, two tasks at a time; it takes some seconds to start.

    Raises:
        NoJava, FetchFailed, SparkNotStarted: it cannot.
    """
    from mainstem.process.session import SparkConfig, start_session, stop_session

    with tempfile.TemporaryDirectory(prefix="mainstem-test-", ignore_cleanup_errors=True) as home:
        spark = start_session("tests", SparkConfig(master="local[2]"), directory=Path(home))
        try:
            yield spark
        finally:
            stop_session(spark)


def jobs_of(project: str | Path, spark: "SparkSession", *, columns: Mapping[str, str] | None = None) -> "Jobs":
    """The jobs of the project at `project`.

    Args:
        project: its directory.
        spark: a session that `mainstem.testing.session` gave, or the fixture `mainstem_spark`.
        columns: of topics that have no schema in the project, as Spark writes them: `{"crm.customers": "id long"}`.

    Raises:
        BadSetting, BadDeclaration: the project cannot be loaded.
    """
    from mainstem.process.imports import import_from, link_for_workers, places_of, ship
    from mainstem.process.project import load_project
    from mainstem.process.session import IMPORTS

    loaded = load_project(project)
    places = places_of(loaded.directory)
    import_from(*places)  # its functions may import more of it
    if links := spark.sparkContext.getConf().get(IMPORTS):  # a session of somebody else's has none
        link_for_workers(places, Path(links))
    ship(loaded.modules)
    return Jobs(loaded, spark, columns or {})


class Jobs:
    """The jobs of one project. `start` one, and feed it."""

    def __init__(self, project: "Project", spark: "SparkSession", columns: Mapping[str, str]) -> None:
        self.project = project
        self._spark, self._columns = spark, columns
        self._found: dict[str, tuple[Analysis, dict[str, StructType]]] = {}

    def start(self, name: str) -> "TestedJob":
        """A job that has read nothing yet.

        Raises:
            UnknownColumns: of an input.
            BadDeclaration: it cannot run; with the file and line.
        """
        from mainstem.process.session import job_session

        analysis, types = self._analysis(name)
        session = job_session(self._spark, name, self.project.job_config(name))
        for key, value in _FEW_ROWS.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
        kind = StatefulJob if analysis.stateful else StatelessJob
        return kind(self.project, name, session, analysis, types)

    def _analysis(self, name: str) -> "tuple[Analysis, dict[str, StructType]]":
        """What the job means, and the columns of its inputs; those that other jobs write are found out the same way."""
        from mainstem.process.analysis import analyse

        if name not in self._found:
            project = self.project
            if name not in project.jobs:
                raise UserError(f"job {name}: expected one of {', '.join(project.order)}")
            inputs = project.inputs[name]
            types = {each.parameter: self._type(each) for each in inputs}
            times = {each.parameter: project.topics[each.topic].event_time for each in inputs}
            found = analyse(self._spark, project.jobs[name], inputs, types, times, project.directory)
            self._found[name] = found, types
        return self._found[name]

    def _type(self, each: "Input") -> "StructType":
        from pyspark.sql.types import StructType

        from mainstem.process.prepare import input_type
        from mainstem.registry.spark import TopicSchema

        if each.job is not None:
            job = self.project.jobs[each.job]
            return self._analysis(each.job)[0].results[job.topics.index(each.topic)].columns
        if each.topic in self._columns:
            history = f", {SINCE} timestamp, {UNTIL} timestamp" if each.history is not None else ""
            return cast("StructType", StructType.fromDDL(self._columns[each.topic] + history))
        file = self.project.topics[each.topic].schema_file
        if file is None:
            raise UnknownColumns(
                f"topic {each.topic}: expected a schema in the project, found none",
                hint=f'say its columns: jobs_of(…, columns={{"{each.topic}": "id long, name string"}})',
            )
        return input_type(self._spark, each, TopicSchema(each.topic, file.read_text(), 0, {}))


class TestedJob(ABC):
    """A job that is fed by hand. Rows are dictionaries; a time may be a text of ISO 8601.

    Attributes:
        also: rows of its further topics so far, by topic.
        rejected: rows that it has rejected so far, with the reason under `_rejected`.
        late: rows that came too late for it.
    """

    __test__ = False  # for pytest its name would be that of tests

    def __init__(
        self,
        project: "Project",
        name: str,
        session: "SparkSession",
        analysis: "Analysis",
        types: "Mapping[str, StructType]",
    ) -> None:
        self.also: dict[str, list[dict[str, Any]]] = {each.name: [] for each in project.jobs[name].also}
        self.rejected: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []
        self._job, self._inputs = project.jobs[name], project.inputs[name]
        self._directory, self._session, self._analysis, self._types = project.directory, session, analysis, types
        self._keys = {each.parameter: project.topics[each.topic].key for each in self._inputs}
        self._offset = 0

    @abstractmethod
    def feed(self, **rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Give rows to inputs, by parameter, as one batch; the rows that come out, as dictionaries.

        A row of a table takes the place of that with its key; with `_deleted` it takes it away, and of a table with its
        history `_since` says when. A row of a stream may have `_record`, with a key and headers.

        Raises:
            UserError: there is no such input, or a row has other columns.
            BadDeclaration: the function failed; with the file and line.
        """

    @abstractmethod
    def advance(self, time: datetime | str) -> list[dict[str, Any]]:
        """Nothing that is older than this comes any more: the rows that come out for it."""

    @abstractmethod
    def wait(self, time: timedelta) -> list[dict[str, Any]]:
        """So much time goes by on the clock that timers and times to live of `ProcessingTime` go by: the rows that
        come out for it.
        """

    @abstractmethod
    def finish(self) -> list[dict[str, Any]]:
        """Nothing comes any more: the rows that come out for it."""

    @abstractmethod
    def close(self) -> None:
        """It is over."""

    def __enter__(self) -> "TestedJob":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _checked(self, rows: Mapping[str, Iterable[Row]]) -> dict[str, list[dict[str, Any]]]:
        known = {each.parameter for each in self._inputs}
        if unknown := sorted(rows.keys() - known):
            raise UserError(f"job {self._job.name}: expected inputs {', '.join(sorted(known))}, found {unknown[0]}")
        return {name: [self._row(name, row) for row in given] for name, given in rows.items()}

    def _sort_out(self, results: "tuple[DataFrame, ...]") -> list[dict[str, Any]]:
        """The rows of the first result; the others, and what is rejected, are kept."""
        from mainstem.process.order import with_position
        from mainstem.process.reading import DELETED, OWN, POSITION, REJECTED

        found: list[dict[str, Any]] = []
        for output, result in zip(self._job.outputs, results, strict=True):
            into = found if output.topic == self._job.to else self.also[output.topic]
            placed = with_position(result)
            rows = placed.orderBy(POSITION) if POSITION in placed.columns else placed  # as the sink does
            for row in rows.drop(*(OWN - {REJECTED, DELETED})).collect():
                values = row.asDict(recursive=True)
                if not values.get(DELETED):
                    values.pop(DELETED, None)
                if values.get(REJECTED) is not None:
                    self.rejected.append(values)
                else:
                    values.pop(REJECTED, None)
                    into.append(values)
        return found

    def _placed(self, each: "Input", row: dict[str, Any]) -> dict[str, Any]:
        """A row of a stream with our own columns."""
        from mainstem.process.reading import POSITION, RECORD

        given = row.get(RECORD) or {}
        position = {"partition": 0, "offset": self._offset, "timestamp": datetime.now(UTC)}
        record = {
            "topic": each.topic,
            "key": given.get("key"),
            "value": given.get("value"),
            "headers": given.get("headers"),
        }
        self._offset += 1
        return row | {POSITION: position, RECORD: record}

    def _row(self, parameter: str, row: Row) -> dict[str, Any]:
        types = {field.name: field.dataType for field in self._types[parameter].fields}
        if unknown := sorted(row.keys() - types.keys() - {"_record", "_deleted"}):
            raise UserError(
                f"job {self._job.name}: {parameter}: expected columns {', '.join(types)}, found {unknown[0]}"
            )
        return {name: _value(row.get(name), types[name]) for name in types} | {
            name: row[name] for name in ("_record", "_deleted") if name in row
        }


class StatelessJob(TestedJob):
    """Called with each batch; a table is as it is by then."""

    def __init__(self, *arguments: Any) -> None:
        from mainstem.process.job_indexes import ListedIndexes

        super().__init__(*arguments)
        self._tables = {
            each.parameter: _Table(self._keys[each.parameter], each.history)
            for each in self._inputs
            if each.kind == "changelog"
        }
        self._indexes = ListedIndexes(self._job.also)

    def feed(self, **rows: Iterable[Row]) -> list[dict[str, Any]]:
        from mainstem.process.calling import call
        from mainstem.process.local_index import running

        given = self._checked(rows)
        for name, table in self._tables.items():
            for row in given.get(name, ()):
                table.put(row)
        frames = {
            each.parameter: self._stream(each, given.get(each.parameter, []))
            if each.kind == "stream"
            else self._frame(self._tables[each.parameter].rows(), self._types[each.parameter])
            for each in self._inputs
        }
        with running(self._indexes):
            results = call(self._job, frames, self._directory)
        found = self._sort_out(results)
        self._indexes.release()
        self._indexes.follow(self.also)
        return found

    def advance(self, time: datetime | str) -> list[dict[str, Any]]:
        return []

    def wait(self, time: timedelta) -> list[dict[str, Any]]:
        return []

    def finish(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        self._indexes.close()

    def _stream(self, each: "Input", rows: list[dict[str, Any]]) -> "DataFrame":
        from mainstem.process.reading import with_own

        return self._frame([self._placed(each, row) for row in rows], with_own(self._types[each.parameter]))

    def _frame(self, rows: list[dict[str, Any]], kind: "StructType") -> "DataFrame":
        return self._session.createDataFrame([_in_order(row, kind) for row in rows], kind)


class _Table:
    """The rows of a table by key; with a history all versions of them."""

    def __init__(self, key: tuple[str, ...], history: str | None) -> None:
        self._key, self._history = key, history
        self._rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def put(self, row: dict[str, Any]) -> None:
        held = self._rows.setdefault(tuple(row[column] for column in self._key), [])
        if self._history is None:
            held.clear()
        held.append(row)

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for held in self._rows.values():
            by_time = {self._since(row): row for row in sorted(held, key=self._since)}
            for (since, row), until in zip(by_time.items(), [*[*by_time][1:], None], strict=True):
                if not row.get("_deleted"):
                    found.append(row | ({SINCE: since, UNTIL: until} if self._history is not None else {}))
        return found

    def _since(self, row: dict[str, Any]) -> Any:
        return 0 if self._history is None else row.get(SINCE) or row[self._history]


class StatefulJob(TestedJob):
    """A streaming query over files of rows: a batch for each time that it is fed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._home = Path(tempfile.mkdtemp(prefix="mainstem-test-"))
        self._out: list[dict[str, Any]] = []
        self._files = self._given = 0
        self._read: dict[int, int] = {}  # rows by batch
        watermark = self._job.watermark
        assert watermark is not None
        self._column, self._delay = watermark.column, watermark.delay
        self._query = self._start()
        self._clock = _own_clock(self._session, self._query)

    def feed(self, **rows: Iterable[Row]) -> list[dict[str, Any]]:
        given = self._checked(rows)
        self.late += self._too_late(given)
        for each in self._inputs:
            if given.get(each.parameter):
                self._put(each, given[each.parameter])
        return self._processed()

    def advance(self, time: datetime | str) -> list[dict[str, Any]]:
        self._beat(int(_time(time).timestamp() * 1000) + 1)
        return self._processed()

    def wait(self, time: timedelta) -> list[dict[str, Any]]:
        self._clock.advance(round(time.total_seconds() * 1000))
        return self._processed(since_ms=self._clock.getTimeMillis() if self._by_the_clock else 0)

    def finish(self) -> list[dict[str, Any]]:
        from mainstem.process.durations import milliseconds

        found: list[dict[str, Any]] = []
        step = self._analysis.horizon + (milliseconds(self._delay) or 0)
        while self._windows_left() and step < _MOST_MS:
            self._beat(self._watermark() + step)
            found += self._processed()
            step *= 4
        return found

    def close(self) -> None:
        self._query.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _start(self) -> Any:
        from mainstem.process.calling import call
        from mainstem.process.injections import with_heartbeats
        from mainstem.process.reading import with_own

        beats = self._beats()
        frames = {}
        for each in self._inputs:
            place = self._home / each.parameter
            place.mkdir()
            rows = self._session.readStream.schema(with_own(self._types[each.parameter])).parquet(str(place))
            frames[each.parameter] = with_heartbeats(rows, beats, self._column, self._delay, each.parameter)
        (result,) = call(self._job, frames, self._directory)
        # By the clock a state function may have something to do at any time: its query never has nothing to do.
        self._by_the_clock = "ProcessingTime" in result._jdf.queryExecution().analyzed().toString()
        mode = "update" if self._job.emit == "changes" else "append"
        writer = result.writeStream.outputMode(mode).foreachBatch(lambda rows, _: self._take(rows))
        return writer.option("checkpointLocation", str(self._home / "checkpoint")).start()

    def _beats(self) -> "DataFrame":
        from pyspark.sql import functions as F

        from mainstem.process.injections import HEARTBEAT

        (self._home / "beats").mkdir()
        lines = self._session.readStream.format("text").load(str(self._home / "beats"))
        time = F.timestamp_millis(F.col("value").cast("long")).alias(self._column)
        return lines.select(time, F.lit(True).alias(HEARTBEAT))

    def _take(self, rows: "DataFrame") -> None:
        self._out += self._sort_out((rows,))

    def _processed(self, since_ms: int = 0) -> list[dict[str, Any]]:
        """Wait until all that it was given is processed, by a batch that began then or later; what came out."""
        from pyspark.errors import StreamingQueryException

        from mainstem.process.calling import place_of, reason_of

        try:
            if self._by_the_clock:
                self._await_rows(since_ms)
            else:
                self._query.processAllAvailable()
        except StreamingQueryException as error:
            place = place_of(error, self._directory) or self._job.location
            raise BadDeclaration(place, f"{self._job.name}: {reason_of(error)}") from error
        out, self._out = self._out, []
        return out

    def _await_rows(self, since_ms: int) -> None:
        while self._query.exception() is None:
            progress = [_decoded(each) for each in self._query._jsq.recentProgress()]
            self._read |= {each["batchId"]: each["numInputRows"] for each in progress}
            began = _time(progress[-1]["timestamp"]).timestamp() * 1000 if progress else -1
            if sum(self._read.values()) >= self._given and began >= since_ms:
                return
            time.sleep(0.01)
        self._query.processAllAvailable()  # raises it

    def _put(self, each: "Input", rows: list[dict[str, Any]]) -> None:
        from pyarrow import Table, parquet
        from pyspark.sql.pandas.types import to_arrow_schema

        from mainstem.process.reading import with_own

        kind = with_own(self._types[each.parameter])
        table = Table.from_pylist(
            [self._placed(each, row) for row in rows], schema=to_arrow_schema(kind, timezone="UTC")
        )
        self._files, self._given = self._files + 1, self._given + len(rows)
        name = f"{self._files}.parquet"
        parquet.write_table(table, self._home / name)  # outside: Spark takes whatever appears there
        (self._home / name).rename(self._home / each.parameter / name)

    def _beat(self, time_ms: int) -> None:
        self._files, self._given = self._files + 1, self._given + 1
        name = f"{self._files}.txt"
        (self._home / name).write_text(f"{time_ms}\n")
        (self._home / name).rename(self._home / "beats" / name)

    def _too_late(self, given: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows that the watermark, as it is now, leaves out."""
        from pyspark.sql import functions as F

        from mainstem.process.late import is_late

        if not self._analysis.leaves_out_late:
            return []
        limit = self._watermark()
        rows = [row for rows in given.values() for row in rows if row[self._column] is not None]
        behind = [row for row in rows if int(row[self._column].timestamp() * 1000) <= limit]
        if not behind:
            return []
        times = self._session.createDataFrame(
            [(number, row[self._column]) for number, row in enumerate(behind)], "number long, time timestamp"
        )
        late = times.filter(is_late(F.col("time"), self._analysis.windows, limit)).collect()
        return [behind[row["number"]] for row in late]

    def _watermark(self) -> int:
        """In ms since 1970; 0 before the first row."""
        progress = self._last_progress()
        text = progress.get("eventTime", {}).get("watermark")
        return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0

    def _windows_left(self) -> bool:
        progress = self._last_progress()
        return any(each["numRowsTotal"] for each in progress.get("stateOperators", ()))

    def _last_progress(self) -> dict[str, Any]:
        """Nothing before the first batch."""
        found = self._query._jsq.lastProgress()
        return {} if found is None else _decoded(found)


def _own_clock(session: "SparkSession", query: Any) -> Any:
    """Give a query the clock of Spark's own tests, which stands still but for its `advance`; no setting does."""
    jvm, execution = cast("Any", session)._jvm, query._jsq.streamingQuery()
    clock = jvm.org.apache.spark.util.ManualClock(execution.triggerClock().getTimeMillis())
    kind = execution.getClass()
    while kind.getSimpleName() != "StreamExecution":
        kind = kind.getSuperclass()
    field = kind.getDeclaredField("triggerClock")
    field.setAccessible(True)
    field.set(execution, clock)
    return clock


def _decoded(progress: Any) -> dict[str, Any]:
    """What Spark says of a batch. PySpark's own reader wants a rate, and there is none where no time goes by."""
    return cast("dict[str, Any]", msgspec.json.decode(progress.json()))


def _in_order(row: dict[str, Any], kind: "StructType") -> tuple[Any, ...]:
    return tuple(row.get(name) for name in kind.fieldNames())


def _value(value: Any, kind: Any) -> Any:
    """A time that was given as a text is a time."""
    from pyspark.sql.types import DateType, TimestampType

    if isinstance(value, str) and isinstance(kind, TimestampType):
        return _time(value)
    if isinstance(value, str) and isinstance(kind, DateType):
        return datetime.fromisoformat(value).date()
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _time(time: datetime | str) -> datetime:
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    return found if found.tzinfo else found.replace(tzinfo=UTC)
