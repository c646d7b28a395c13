"""A job without state in a test: its function is called with the rows of each batch."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainstem.process.declare import SINCE, UNTIL
from mainstem.tested_job import Row, TestedJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from mainstem.process.project import Input


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


def _in_order(row: dict[str, Any], kind: "StructType") -> tuple[Any, ...]:
    return tuple(row.get(name) for name in kind.fieldNames())
