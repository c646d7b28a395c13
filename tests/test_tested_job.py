import time
from textwrap import dedent

import pytest

from mainstem.core import UserError
from mainstem.testing import jobs_of
from tests.support.tested_jobs import NOON, jobs, order

pytestmark = pytest.mark.spark
__all__ = ["jobs"]  # a fixture


def test_times_may_be_texts(jobs):
    with jobs.start("hourly") as job:
        job.feed(paid=[order(1, "ann", 0) | {"at": "2026-01-01T12:30:00Z"}])
        assert [row["cents"] for row in job.finish()] == [100]


TIMES = """
    from mainstem.process import stream, topic
    from pyspark.sql import functions as F

    events = topic("events")

    @stream(to="times")
    def times(events):
        nested = F.struct(F.array("at").alias("list"), F.create_map(F.lit("k"), "at").alias("map"))
        return events.select("at", nested.alias("in"), F.col("at").cast("timestamp_ntz").alias("zoneless"))
"""


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Tokyo"])
def test_times_come_out_aware_wherever_the_tests_run(spark, tmp_path, monkeypatch, zone):
    """They were those of the clocks there, without a zone."""
    (tmp_path / "jobs.py").write_text(dedent(TIMES))
    (tmp_path / "mainstem.toml").touch()
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with jobs_of(tmp_path, spark, columns={"events": "at timestamp"}).start("times") as job:
            (row,) = job.feed(events=[{"at": NOON}])
            assert row == {
                "at": NOON, "in": {"list": [NOON], "map": {"k": NOON}}, "zoneless": NOON.replace(tzinfo=None),
            }  # fmt: skip
            assert row["at"].tzinfo is not None
            assert job.feed(events=[{"at": "2026-01-01T12:00"}]) == [row]
            assert job.feed(events=[{"at": None}])[0]["at"] is None
    finally:
        monkeypatch.undo()
        time.tzset()


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
