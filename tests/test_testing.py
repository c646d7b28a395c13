"""Jobs fed by hand: rows in, rows out, as on a log."""

from datetime import UTC, datetime, timedelta
from textwrap import dedent

import pytest

from mainstem.core import UserError
from mainstem.process.declare import BadDeclaration
from mainstem.testing import UnknownColumns, jobs_of

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    "orders": "id long, customer string, cents long, at timestamp",
    "customers": "customer string, region string",
}
JOBS = """
    from mainstem.process import changelog, stream, table, topic
    from pyspark.sql import Row, functions as F
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    orders = topic("orders", event_time="at")
    customers = changelog("customers", key="customer")
    refunds = topic("refunds", key="id")

    @stream(to="paid", key="id", also=[refunds])
    def paid(orders):
        checked = orders.withColumn("_rejected", F.when(F.col("customer").isNull(), "no customer"))
        return checked.where("cents >= 0"), checked.where("cents < 0").select("id", F.col("_record.key").alias("key"))

    @stream(to="by_region", key="id")
    def by_region(paid, customers):
        return paid.join(customers, "customer", "left").select("id", "region")

    @table(to="hourly", key="hour", watermark=("at", "10 minutes"))
    def hourly(paid):
        hours = paid.groupBy(F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
        return hours.select(F.col("window.start").alias("hour"), "cents")

    @table(to="totals", key="customer", watermark=("at", "10 minutes"), emit="changes")
    def totals(orders):
        return orders.groupBy("customer").agg(F.max("id").alias("id"))

    class Same(StatefulProcessor):
        def init(self, handle):
            pass

        def handleInputRows(self, key, rows, timers):
            return iter([Row(id=row["id"]) for row in rows])

        def close(self):
            pass

    def with_state(orders, time):
        return orders.groupBy("customer").transformWithState(Same(), "id long", "Append", time)

    @stream(to="whenever", watermark=("at", "10 minutes"))
    def whenever(orders):
        return with_state(orders, "None")

    @stream(to="by_the_clock", watermark=("at", "10 minutes"))
    def by_the_clock(orders):
        return with_state(orders, "ProcessingTime")

    @stream(to="by_its_time", watermark=("at", "10 minutes"))
    def by_its_time(orders):
        return with_state(orders, "EventTime")

    @stream(to="halves")
    def halves(orders):
        return orders.select(F.expr("cents div 0").alias("half"))
"""


@pytest.fixture
def jobs(spark, tmp_path):
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / "jobs.py").write_text(dedent(JOBS))
    return jobs_of(tmp_path, spark, columns=COLUMNS)


def order(number, customer, minutes, cents=100):
    return {"id": number, "customer": customer, "cents": cents, "at": NOON + timedelta(minutes=minutes)}


def test_a_job_without_state_gives_its_results_and_what_it_rejects(jobs):
    job = jobs.start("paid")
    out = job.feed(orders=[order(1, "ann", 0), order(2, "bob", 0, -5) | {"_record": {"key": b"k"}}, order(3, None, 0)])
    assert [(row["id"], row["customer"], row["cents"]) for row in out] == [(1, "ann", 100)]
    assert job.also["refunds"] == [{"id": 2, "key": b"k"}]
    assert [(row["id"], row["_rejected"]) for row in job.rejected] == [(3, "no customer")]


def test_tables_are_as_they_are_when_the_rows_come(jobs):
    job = jobs.start("by_region")
    paid = order(1, "ann", 0)
    assert job.feed(paid=[paid]) == [{"id": 1, "region": None}]
    assert job.feed(customers=[{"customer": "ann", "region": "north"}]) == []
    assert job.feed(paid=[paid], customers=[{"customer": "ann", "region": "south"}]) == [{"id": 1, "region": "south"}]
    assert job.feed(customers=[{"customer": "ann", "_deleted": True}], paid=[paid]) == [{"id": 1, "region": None}]


def test_windows_close_as_time_goes_on_and_late_rows_are_told(jobs):
    with jobs.start("hourly") as job:
        assert job.feed(paid=[order(1, "ann", 0, 5), order(2, "ann", 59, 7)]) == []
        assert job.advance("2026-01-01T13:00") == []  # ten minutes may pass
        assert job.advance("2026-01-01T13:10") == [{"hour": NOON.replace(tzinfo=None), "cents": 12}]
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


def test_columns_that_are_said_nowhere_are_asked_for(spark, tmp_path):
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / "jobs.py").write_text(dedent(JOBS))
    jobs = jobs_of(tmp_path, spark, columns={"orders": COLUMNS["orders"]})
    with pytest.raises(UnknownColumns, match="topic customers: expected a schema") as refused:
        jobs.start("by_region")
    assert 'columns={"customers": "id long, name string"}' in refused.value.hint
    with pytest.raises(UserError, match="job payed: expected one of paid, "):
        jobs.start("payed")


def test_what_fails_in_spark_is_told(jobs):
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        jobs.start("halves").feed(orders=[order(1, "ann", 0)])
    assert issubclass(BadDeclaration, UserError)
