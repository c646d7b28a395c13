"""A project whose jobs are fed by hand, some with state and some without."""

from datetime import UTC, datetime, timedelta
from textwrap import dedent

import pytest

from mainstem.testing import jobs_of

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


def write_jobs(directory):
    (directory / "mainstem.toml").touch()
    (directory / "jobs.py").write_text(dedent(JOBS))
    return directory


def order(number, customer, minutes, cents=100):
    return {"id": number, "customer": customer, "cents": cents, "at": NOON + timedelta(minutes=minutes)}


@pytest.fixture
def jobs(spark, tmp_path):
    return jobs_of(write_jobs(tmp_path), spark, columns=COLUMNS)
