"""Requests to a web site, in windows of time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import stream, table, topic

requests = topic("web.requests", event_time="at")

_MICROSECOND = timedelta(microseconds=1)
VISIT_ENDS_AFTER = timedelta(minutes=30)
_GAP_MICROS = VISIT_ENDS_AFTER // _MICROSECOND


@table(to="web.traffic_per_minute", key=["host", "minute"], watermark=("at", "1 minute"))
def traffic_per_minute(requests: DataFrame) -> DataFrame:
    """A tumbling window: each request counts in one minute."""
    minutes = requests.groupBy("host", F.window("at", "1 minute"))
    traffic = minutes.agg(
        F.count("*").alias("requests"),
        F.sum("bytes").alias("bytes"),
        F.avg("bytes").alias("mean_bytes"),
        F.min("bytes").alias("least_bytes"),
        F.max("bytes").alias("most_bytes"),
        F.percentile("bytes", 0.5).alias("median_bytes"),
        F.percentile("bytes", 0.99).alias("p99_bytes"),
        F.count_if(F.col("status") >= 500).alias("errors"),
    )
    return traffic.withColumn("minute", F.col("window.start")).drop("window")


@table(to="web.errors_lately", key=["host", "until"], watermark=("at", "1 minute"))
def errors_lately(requests: DataFrame) -> DataFrame:
    """A sliding window: the share of errors in the last five minutes, told every minute."""
    lately = requests.groupBy("host", F.window("at", "5 minutes", "1 minute"))
    share = lately.agg(F.avg((F.col("status") >= 500).cast("int")).alias("share"), F.count("*").alias("requests"))
    return share.select("host", F.col("window.end").alias("until"), "share", "requests")


@table(to="web.visits", key=["host", "began"], watermark=("at", "1 minute"))
def visits(requests: DataFrame) -> DataFrame:
    """A session window: a visit ends when nothing came for half an hour."""
    sessions = requests.groupBy("host", F.session_window("at", "30 minutes"))
    told = sessions.agg(
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.count("*").alias("requests"),
        F.min_by("path", "at").alias("entered_by"),
        F.max_by("path", "at").alias("left_by"),
    )
    return told.drop("session_window")


class Visit(StatefulProcessor):
    """Tells of each request of a host to which visit it belongs. Requests wait until the watermark has passed them:
    then none comes any more that was before them, and their visit has begun when it has, for good.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._waiting = handle.getListState("waiting", "micros long, path string")
        self._visit = handle.getValueState("visit", "began long, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self._waiting.appendValue((row["micros"], row["path"]))
            self._wake_after(row["micros"])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        passed = timerValues.getCurrentWatermarkInMs() * 1000
        waiting = sorted(tuple(each) for each in self._waiting.get())
        began, last = self._visit.get() or (None, None)
        for micros, path in waiting:
            if micros > passed:
                break
            if last is None or micros - last > _GAP_MICROS:
                began = micros
            last = micros
            yield Row(host=key[0], visit=_time(began), at=_time(micros), path=path)
        self._keep([each for each in waiting if each[0] > passed], began, last, passed)

    def close(self) -> None:
        pass

    def _keep(self, waiting: list[tuple[Any, ...]], began: int | None, last: int | None, passed: int) -> None:
        """Nothing is kept of a host whose visit is over."""
        if waiting:
            self._waiting.put(waiting)
        else:
            self._waiting.clear()
        if last is None or last + _GAP_MICROS < passed:
            self._visit.clear()
        else:
            self._visit.update((began, last))
            self._wake_after(last + _GAP_MICROS)

    def _wake_after(self, micros: int) -> None:
        """A timer has milliseconds: the first that the time is not after."""
        self._handle.registerTimer(micros // 1000 + 1)


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + micros * _MICROSECOND


@stream(to="web.requests_of_visits", key="host", watermark=("at", "1 minute"))
def requests_of_visits(requests: DataFrame) -> DataFrame:
    """Sessionisation: each request with the visit that it belongs to, as `visits` counts them, in the order of time."""
    return (
        requests.withColumn("micros", F.unix_micros("at"))
        .groupBy("host")
        .transformWithState(
            statefulProcessor=Visit(),
            outputStructType="host string, visit timestamp, at timestamp, path string",
            outputMode="Append",
            timeMode="EventTime",
        )
    )


@stream(to="web.paths_per_minute", watermark=("at", "1 minute"), event_time="minute")
def paths_per_minute(requests: DataFrame) -> str:
    """How often each path was asked for in a minute. It is SQL, as any job may be."""
    return """
        SELECT window.start AS minute, path, count(*) AS requests
        FROM requests
        GROUP BY path, window(at, '1 minute')
    """


@table(to="web.top_paths", key="minute", watermark=("minute", "1 minute"))
def top_paths(paths_per_minute: DataFrame) -> DataFrame:
    """The three paths of a minute that were asked for most: top-N is a second step, over the counts of the first."""
    counted = paths_per_minute.groupBy(F.window("minute", "1 minute"))
    ranked = counted.agg(F.sort_array(F.collect_list(F.struct("requests", "path")), asc=False).alias("ranked"))
    return ranked.select(F.col("window.start").alias("minute"), F.slice("ranked", 1, 3).alias("paths"))
