"""Recommendations that do not show one thing over and over: after some impressions a job rests for its viewer."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import stream, table, topic

candidates = topic("recommendation.candidates", event_time="at")

MOST_IMPRESSIONS = 3
WITHIN = timedelta(days=7)
_WITHIN_MS = WITHIN // timedelta(milliseconds=1)


class Impressions(StatefulProcessor):
    """The last impressions of a job on a viewer. The oldest of them says until when the job rests; a timer forgets them
    once none of them counts any more.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "ms array<long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (before,) = self._last.get() or ([],)
        last = sorted([*before, *(row["ms"] for row in rows)])[-MOST_IMPRESSIONS:]
        self._last.update((last,))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last[-1] + _WITHIN_MS)
        if len(last) == MOST_IMPRESSIONS and last[-1] - last[0] < _WITHIN_MS:
            rests_until = datetime.fromtimestamp((last[0] + _WITHIN_MS) / 1000, UTC)
            yield Row(viewer_id=key[0], job_id=key[1], rests_until=rests_until)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        self._last.clear()
        return iter(())

    def close(self) -> None:
        pass


@table(to="recommendation.caps", key=["viewer_id", "job_id"], watermark=("at", "1 day"), emit="changes")
def impression_caps(job_views: DataFrame) -> DataFrame:
    """Jobs that were shown to a viewer three times within a week, and until when they rest."""
    impressions = job_views.where("kind = 'impression'").withColumn("ms", F.unix_millis("at"))
    return impressions.groupBy("viewer_id", "job_id").transformWithState(
        statefulProcessor=Impressions(),
        outputStructType="viewer_id long, job_id long, rests_until timestamp",
        outputMode="Update",
        timeMode="EventTime",
    )


@stream(to="recommendation.recommended", key="viewer_id")
def recommended(candidates: DataFrame, impression_caps: DataFrame) -> DataFrame:
    """Candidates without those that rest, as is known by now."""
    joined = candidates.join(impression_caps, ["viewer_id", "job_id"], "left")
    return joined.where("rests_until IS NULL OR at >= rests_until").drop("rests_until")
