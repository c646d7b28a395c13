"""What a batch took, phase by phase, and what its state comes to: from what Spark and the sink say of it."""

from collections.abc import Mapping
from typing import Any

from mainstem.process.sink import BatchResult

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
