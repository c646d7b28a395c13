from structlog.testing import capture_logs

from mainstem.core import ManualClock
from mainstem.process.figures import UnderWay, figures_of
from mainstem.process.sink import BatchResult

TOOK = {"latestOffset": 3, "getBatch": 0, "queryPlanning": 40, "walCommit": 9, "addBatch": 120, "commitOffsets": 8,
        "triggerExecution": 183}  # fmt: skip


def test_a_batch_is_told_phase_by_phase():
    figures = figures_of({"durationMs": TOOK, "stateOperators": []}, BatchResult(4, False, 12, {}, 100.4, 15.6))
    assert figures == {
        "batch_ms": 183, "planning_ms": 43, "rows_ms": 100, "commit_ms": 16, "checkpoint_ms": 17, "rows": 12,
    }  # fmt: skip


def test_state_is_added_up_over_its_operators():
    operator = {"numRowsTotal": 5, "memoryUsedBytes": 100, "customMetrics": {"rocksdbSstFileSize": 2000}}
    progress = {"durationMs": TOOK, "stateOperators": [operator, operator | {"customMetrics": {}}]}
    figures = figures_of(progress, BatchResult(4, False))
    assert (figures["state_rows"], figures["state_memory_bytes"], figures["state_disk_bytes"]) == (10, 200, 2000)


def test_a_batch_that_does_not_end_is_told_after_a_minute_and_then_less_and_less_often():
    clock = ManualClock()
    under_way = UnderWay("daily", clock)
    with capture_logs() as logs:
        under_way.tell()
    assert (under_way.ms, logs) == (0, [])  # before the first batch
    with capture_logs() as logs, under_way.batch(7):
        for _ in range(60):
            clock.advance_ms(10_000)
            under_way.tell()
        assert under_way.ms == 600_000
    assert [(each["event"], each["batch"], each["seconds"]) for each in logs] == [
        ("batch_takes_long", 7, seconds) for seconds in (60, 120, 240, 480)
    ]
    with capture_logs() as logs:
        under_way.tell()
    assert (under_way.ms, logs) == (0, [])
