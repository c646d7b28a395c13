"""A job that a test feeds by hand: what it takes and gives, whichever way it is run."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from mainstem.core import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from mainstem.process.analysis import Analysis
    from mainstem.process.project import Input, Project

Row: TypeAlias = Mapping[str, Any]


class TestedJob(ABC):
    """A job that is fed by hand. Rows are dictionaries. A time may be given as a text of ISO 8601, or without a
    zone, for UTC. One that comes out is aware, in UTC, wherever the tests run.

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
        unused = OWN - {POSITION, REJECTED, DELETED}
        for output, result in zip(self._job.outputs, results, strict=True):
            into = found if output.topic == self._job.to else self.also[output.topic]
            placed = with_position(result).drop(*unused)
            rows = [_aware(row.asDict(recursive=True), placed.schema) for row in placed.collect()]
            for values in sorted(rows, key=_place):  # as the sink does
                values.pop(POSITION, None)
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


def _place(values: dict[str, Any]) -> tuple[int, int]:
    """In the input; -1 where a row has none, as the sink takes it."""
    from mainstem.process.reading import POSITION

    place = values.get(POSITION) or {}
    partition, offset = (place.get(name) for name in ("partition", "offset"))
    return -1 if partition is None else partition, -1 if offset is None else offset


def _value(value: Any, kind: Any) -> Any:
    """A time that was given as a text is a time."""
    from pyspark.sql.types import DateType, TimestampType

    if isinstance(value, str) and isinstance(kind, TimestampType):
        return time_of(value)
    if isinstance(value, str) and isinstance(kind, DateType):
        return datetime.fromisoformat(value).date()
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _aware(value: Any, kind: Any) -> Any:
    """The times in it with their zone: Spark gives them as the clocks where it runs, without one."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)
    if isinstance(kind, ArrayType):
        return [_aware(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {_aware(key, kind.keyType): _aware(each, kind.valueType) for key, each in value.items()}
    if isinstance(kind, StructType):
        return {field.name: _aware(value[field.name], field.dataType) for field in kind.fields}
    return value


def time_of(time: datetime | str) -> datetime:
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    return found if found.tzinfo else found.replace(tzinfo=UTC)
