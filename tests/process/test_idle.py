"""A project whose input is idle writes nothing: a control record would wake the next job, and so on for ever."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from mainstem.client.internal import INTERNAL_TOPICS
from mainstem.client.topics import end_offsets
from tests.support.jobs import driver_of, put_rows, read_rows, run_until, say_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # a whole Spark beside whatever else the machine does

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "cents", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
SETTINGS = '[topics."idle.orders"]\npartitions = 2\nschema = "orders.avsc"\nkey = "id"\nevent_time = "at"\n'
# Names of their own: the log of a test session knows each job once.
JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F
orders = topic("idle.orders")

@stream(to="idle.paid", key="id")
def idle_paid(orders):
    return orders.filter("cents > 0")

@table(to="idle.hourly", key="hour", watermark=("at", "10 minutes"))
def idle_hourly(idle_paid):
    totals = idle_paid.groupBy(F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
    return totals.select(F.col("window.start").alias("hour"), "cents")
"""
TOPICS = ("idle.orders", "idle.paid", "idle.hourly", *(topic.name for topic in INTERNAL_TOPICS))
SETTLED_S, IDLE_S = 5.0, 15.0


def test_an_idle_project_writes_nothing(spark, log_connection, registry_url, live_registry, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "orders.avsc").write_text(ORDERS)
    (project / "mainstem.toml").write_text(SETTINGS)
    (project / "jobs.py").write_text(JOBS)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    driver.start()

    def ends():
        return {topic: end_offsets(log_connection, topic) for topic in TOPICS}

    def run_until_nothing_has_changed_for(seconds):
        since, last = time.monotonic(), None

        def unchanged():
            nonlocal since, last
            now = ends()
            if now != last:
                since, last = time.monotonic(), now
            return time.monotonic() - since > seconds

        run_until(driver, unchanged, seconds=120)

    try:
        rows = [{"id": n, "cents": n % 3, "at": NOON + timedelta(minutes=n)} for n in range(100)]
        put_rows(log_connection, live_registry, "idle.orders", ORDERS, rows, ("id",))
        run_until(driver, lambda: driver.running.keys() == {"idle_paid@1", "idle_hourly@1"})
        say_end(log_connection, "idle.orders", int((NOON + timedelta(hours=3)).timestamp() * 1000), end=False)
        run_until(driver, lambda: len(read_rows(log_connection, "idle.hourly")) == 2)  # the heartbeat closed them
        run_until_nothing_has_changed_for(SETTLED_S)
        before, began = ends(), time.monotonic()
        run_until(driver, lambda: time.monotonic() - began > IDLE_S)
        assert ends() == before
    finally:
        driver.stop()
