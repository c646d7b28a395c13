import pytest

from mainstem.core import UserError
from tests.support.tested_jobs import jobs, order

pytestmark = pytest.mark.spark
__all__ = ["jobs"]  # a fixture


def test_times_may_be_texts(jobs):
    with jobs.start("hourly") as job:
        job.feed(paid=[order(1, "ann", 0) | {"at": "2026-01-01T12:30:00Z"}])
        assert [row["cents"] for row in job.finish()] == [100]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"order": []}, "job paid: expected inputs orders, found order"),
        ({"orders": [{"idd": 1}]}, "job paid: orders: expected columns id, customer, cents, at, found idd"),
    ],
)
def test_what_is_not_there_is_refused(jobs, rows, message):
    with pytest.raises(UserError, match=message):
        jobs.start("paid").feed(**rows)
