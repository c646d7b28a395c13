"""What a batch took, phase by phase, and what its state comes to: from what Spark and the sink say of it; and how long
the one that runs has taken.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mainstem.core import Clock
from mainstem.core.logging import get_logger
from mainstem.process.sink import BatchResult

log = get_logger()

_LONG_SECONDS = 60.0

_PLANNING = ("latestOffset", "getBatch", "queryPlanning")
_CHECKPOINT = ("walCommit", "commitOffsets")


def figures_of(progress: Mapping[str, Any], result: BatchResult) -> dict[str, int]:
    """Of one batch, in ms and bytes.

    Args:
        progress: what Spark says of it, as `StreamingQueryProgress` has it.
        result: what became of it in the sink.

    Returns:
        `batch_ms`, of which `planning_ms` to see what there is and how to do it, `rows_ms` to compute and write rows,
        `commit_ms` for the transaction, `checkpoint_ms` for Spark's own notes; `rows` written; of a job with state
        `state_rows`, `state_memory_bytes` and `state_disk_bytes`.
    """
    took = progress["durationMs"]
    figures = {
        "batch_ms": took.get("triggerExecution", 0),
        "planning_ms": sum(took.get(phase, 0) for phase in _PLANNING),
        "rows_ms": round(result.write_ms),
        "commit_ms": round(result.commit_ms),
        "checkpoint_ms": sum(took.get(phase, 0) for phase in _CHECKPOINT),
        "rows": result.rows,
    }
    if operators := progress["stateOperators"]:
        figures |= {
            "state_rows": sum(each["numRowsTotal"] for each in operators),
            "state_memory_bytes": sum(each["memoryUsedBytes"] for each in operators),
            "state_disk_bytes": sum(each["customMetrics"].get("rocksdbSstFileSize", 0) for each in operators),
        }
    return figures


class UnderWay:
    """The batch of a job that runs now, if one does: a function that hangs fails nothing.

    Args:
        job: its name.
        clock: what the batch's time is measured with.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self.number = -1
        self._since: float | None = None
        self._tell_at = 0.0

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """It runs within the block."""
        self.number, self._tell_at = number, _LONG_SECONDS
        self._since = self._clock.monotonic()
        try:
            yield
        finally:
            self._since = None

    @property
    def ms(self) -> int:
        """For how long it has run; 0: none does."""
        since = self._since
        return 0 if since is None else max(1, round((self._clock.monotonic() - since) * 1000))

    def tell(self) -> None:
        """Log a batch that takes long: after a minute, then after twice as long each time."""
        seconds = self.ms / 1000
        if seconds and seconds >= self._tell_at:
            self._tell_at = 2 * seconds
            log.warning("batch_takes_long", job=self._job, batch=self.number, seconds=round(seconds))
