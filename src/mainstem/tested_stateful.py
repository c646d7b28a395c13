"""A job with state in a test: a streaming query that is fed batch by batch, and whose clock stands still."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mainstem.process.declare import BadDeclaration
from mainstem.tested_job import Row, TestedJob, time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mainstem.process.project import Input

_MOST_MS = 1 << 47  # some thousand years


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
        self._beat(int(time_of(time).timestamp() * 1000) + 1)
        return self._processed()

    def wait(self, time: timedelta) -> list[dict[str, Any]]:
        self._clock.advance(round(time.total_seconds() * 1000))
        return self._processed(since_ms=self._clock.getTimeMillis() if self._analysis.by_the_clock else 0)

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
            if self._analysis.by_the_clock:
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
            began = time_of(progress[-1]["timestamp"]).timestamp() * 1000 if progress else -1
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
