"""A pattern of events: one, then another within a time, and not a third between them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from mainstem.process import stream, topic

steps = topic("shop.steps", key="basket", event_time="at")

WITHIN = timedelta(minutes=30)
_WITHIN_MICROS = WITHIN // timedelta(microseconds=1)


class Bought(StatefulProcessor):
    """Steps of a basket wait until the watermark has passed them: then none comes any more that was before them, and
    they are gone through in the order of their times, whatever order they came in. Of two at the same time, a
    cancellation counts before a filling, and that before a payment.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._waiting = handle.getListState("waiting", "micros long, kind string")
        self._filled = handle.getValueState("filled", "micros long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self._waiting.appendValue((row["micros"], row["kind"]))
            self._wake_after(row["micros"])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        passed = timerValues.getCurrentWatermarkInMs() * 1000
        waiting = sorted(tuple(each) for each in self._waiting.get())
        (filled,) = self._filled.get() or (None,)
        for micros, kind in waiting:
            if micros > passed:
                break
            if kind == "paid" and filled is not None and micros - filled <= _WITHIN_MICROS:
                yield Row(basket=key[0], filled_at=_time(filled), paid_at=_time(micros))
            if kind != "paid" or (filled is not None and micros - filled <= _WITHIN_MICROS):
                filled = micros if kind == "filled" else None
        self._keep([each for each in waiting if each[0] > passed], filled, passed)

    def close(self) -> None:
        pass

    def _keep(self, waiting: list[tuple[Any, ...]], filled: int | None, passed: int) -> None:
        """Nothing is kept of a basket that can be no part of the pattern any more."""
        if waiting:
            self._waiting.put(waiting)
        else:
            self._waiting.clear()
        if filled is None or filled + _WITHIN_MICROS < passed:
            self._filled.clear()
        else:
            self._filled.update((filled,))
            self._wake_after(filled + _WITHIN_MICROS)

    def _wake_after(self, micros: int) -> None:
        """A timer has milliseconds: the first that the time is not after."""
        self._handle.registerTimer(micros // 1000 + 1)


def _time(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


@stream(to="shop.bought", key="basket", watermark=("at", "10 minutes"))
def bought(steps: DataFrame) -> DataFrame:
    """Baskets that were paid within half an hour after they were filled, and not cancelled meanwhile."""
    return (
        steps.withColumn("micros", F.unix_micros("at"))
        .groupBy("basket")
        .transformWithState(
            statefulProcessor=Bought(),
            outputStructType="basket long, filled_at timestamp, paid_at timestamp",
            outputMode="Append",
            timeMode="EventTime",
        )
    )
