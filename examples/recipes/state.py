"""Readings of devices: each once, and an alarm when one has gone silent."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import stream, topic

readings = topic("plant.readings", event_time="at")

SILENT_AFTER_MS = 10 * 60 * 1000


@stream(to="plant.readings_once", key="device", watermark=("at", "1 hour"))
def readings_once(readings: DataFrame) -> DataFrame:
    """What a device sends again within an hour is left out."""
    return readings.dropDuplicatesWithinWatermark(["device", "at"])


class Silence(StatefulProcessor):
    """Tells of a device that has sent nothing for ten minutes, once. A timer goes off when the watermark has passed
    it.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._last.get()
        last = max([int(row["at"].timestamp() * 1000) for row in rows] + ([] if before is None else [before[0]]))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._last.update((last,))
        self._handle.registerTimer(last + SILENT_AFTER_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        for ms in self._last.get() or ():
            yield Row(device=key[0], silent_since=datetime.fromtimestamp(ms / 1000, UTC))
        self._last.clear()

    def close(self) -> None:
        pass


@stream(to="plant.silences", key="device", watermark=("at", "1 minute"))
def silences(readings: DataFrame) -> DataFrame:
    """State of one's own, `transformWithState`, with timers of event time."""
    return readings.groupBy("device").transformWithState(
        statefulProcessor=Silence(),
        outputStructType="device string, silent_since timestamp",
        outputMode="Append",
        timeMode="EventTime",
    )


class Muted(StatefulProcessor):
    """Lets the first of a device's readings through, and none for a day after it: what is kept is forgotten by then, by
    the clock.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._told = handle.getValueState("told", "celsius double", ttlDurationMs=24 * 3600 * 1000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            if not self._told.exists():
                self._told.update((row["celsius"],))
                yield Row(device=key[0], celsius=row["celsius"], at=row["at"])

    def close(self) -> None:
        pass


@stream(to="plant.too_hot", key="device", watermark=("at", "1 minute"))
def too_hot(readings: DataFrame) -> DataFrame:
    """Devices above 90 degrees, each at most once a day: `transformWithState` with a time to live."""
    return (
        readings.where("celsius > 90")
        .groupBy("device")
        .transformWithState(
            statefulProcessor=Muted(),
            outputStructType="device string, celsius double, at timestamp",
            outputMode="Append",
            timeMode="ProcessingTime",
        )
    )
