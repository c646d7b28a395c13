"""Time goes by as a test says."""

from datetime import timedelta

import pytest

from tests.support.tested_jobs import NOON, jobs, order

pytestmark = pytest.mark.spark
__all__ = ["jobs"]  # a fixture


def test_windows_close_as_time_goes_on_and_late_rows_are_told(jobs):
    with jobs.start("hourly") as job:
        assert job.feed(paid=[order(1, "ann", 0, 5), order(2, "ann", 59, 7)]) == []
        assert job.advance("2026-01-01T13:00") == []  # ten minutes may pass
        assert job.advance("2026-01-01T13:10") == [{"hour": NOON, "cents": 12}]
        assert job.feed(paid=[order(3, "ann", 30), order(4, "ann", 65, 1)]) == []
        assert [row["id"] for row in job.late] == [3]
        assert [row["cents"] for row in job.finish()] == [1]


@pytest.mark.parametrize(
    ("name", "late"), [("totals", []), ("whenever", []), ("by_the_clock", []), ("by_its_time", [2])]
)
def test_what_asks_for_no_time_of_its_rows_finds_none_late(jobs, name, late):
    """Rows behind the watermark were told as late, and put into the quarantine, though the totals had them."""
    with jobs.start(name) as job:
        assert [row["id"] for row in job.feed(orders=[order(1, "ann", 0)])] == [1]
        job.advance(NOON + timedelta(hours=1))
        job.feed(orders=[order(3, "bob", 61)])  # late is what is behind the watermark of the batch before
        out = job.feed(orders=[order(2, "ann", 1)])
        assert [row["id"] for row in job.late] == late
        assert [row["id"] for row in out] == ([] if late else [2])
