"""A project whose input is idle writes nothing: a control record would wake the next job, and so on for ever."""

import json
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from mainstem.client.reports import read_reports
from mainstem.client.topics import end_offsets, ensure_topic, list_topics
from mainstem.connect.sinks.delta import Lakehouse, LakehouseConfig
from mainstem.connect.sources.file import FileSource
from mainstem.connect.sources.file_config import FileSourceConfig
from tests.support.jobs import driver_of, put_rows, read_rows, run_until, say_end
from tests.support.postgres import Pipeline, running
from tests.support.properties import examples

pytestmark = [
    pytest.mark.spark,
    pytest.mark.hypothesis,
    pytest.mark.timeout(900),
]  # a whole Spark beside whatever else the machine does

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "cents", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]})  # fmt: skip
SETTINGS = '[topics."idle.orders"]\npartitions = 2\nschema = "orders.avsc"\nkey = "id"\nevent_time = "at"\n'
# Names of their own: the log of a test session knows each job once.
JOBS = """
from mainstem.process import changelog, stream, table, topic
from pyspark.sql import functions as F
orders = topic("idle.orders")
hours = changelog("idle.hours", key=["window_start", "window_end"])

@stream(to="idle.paid", key="id")
def idle_paid(orders):
    return orders.filter("cents > 0")

@table(to="idle.hourly", key="hour", watermark=("at", "10 minutes"), state=hours)
def idle_hourly(idle_paid):
    totals = idle_paid.groupBy(F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
    return totals.select(F.col("window.start").alias("hour"), "cents")
"""
HEARTBEAT_MS, SETTLED_S, IDLE_S = 2_000, 5.0, examples(8)


def test_an_idle_project_writes_nothing(spark, log_connection, registry_url, live_registry, postgres_server, tmp_path):
    """All that a project may have, in one process: sources of both kinds that run, jobs, the lakehouse, a replica."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "orders.avsc").write_text(ORDERS)
    (project / "mainstem.toml").write_text(SETTINGS)
    (project / "jobs.py").write_text(JOBS)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    driver.start()
    pipeline = Pipeline(postgres_server, log_connection, registry_url)
    pipeline.source.run("CREATE TABLE stock (id int PRIMARY KEY, n int)", "INSERT INTO stock VALUES (1, 1), (2, 2)")
    ensure_topic(log_connection, "idle.lines", 1)
    (tmp_path / "idle.log").write_text("a line\n")
    lines = FileSource(
        "idle-lines", FileSourceConfig(str(tmp_path / "idle.log"), "idle.lines"), log_connection, live_registry
    )
    made = ("idle.orders", "idle.paid", "idle.hourly", "idle.hours", "idle.lines", f"{pipeline.name}.stock")
    settings = LakehouseConfig(topics="|".join(made))  # the log of a test session has topics of other tests
    tables = tmp_path / "tables"
    lakehouse = Lakehouse(spark.newSession(), log_connection, tables, tmp_path / "lake", settings, name="idle-lake")

    def ends():
        return {topic: end_offsets(log_connection, topic) for topic in list_topics(log_connection)}

    def wal_end():
        """The server writes of its own accord, seconds after others have; its source says then how far it has read."""
        return pipeline.source.run("SELECT pg_current_wal_insert_lsn()")

    def step_until(done, seconds=400):
        def stepped():
            lakehouse.step()
            return done()

        run_until(driver, stepped, seconds=seconds)

    def step_for(seconds):
        end = time.monotonic() + seconds
        step_until(lambda: time.monotonic() > end)

    def step_until_unchanged(what, seconds):
        """The last of what `what` says, which said the same for so long."""
        since, last = time.monotonic(), None

        def unchanged():
            nonlocal since, last
            now = what()
            if now != last:
                since, last = time.monotonic(), now
            return time.monotonic() - since > seconds

        step_until(unchanged)
        return last

    def in_the_lake():
        reports = read_reports(log_connection, list_topics(log_connection))
        return {each.topic for each in reports if each.reader == "idle-lake"}

    try:
        with ExitStack() as stack:
            for task in (pipeline.make_source(heartbeat_ms=HEARTBEAT_MS), lines):
                stack.enter_context(running(task))
            rows = [{"id": n, "cents": n % 3, "at": NOON + timedelta(minutes=n)} for n in range(100)]
            put_rows(log_connection, live_registry, "idle.orders", ORDERS, rows, ("id",))
            step_until(lambda: driver.running.keys() == {"idle_paid@1", "idle_hourly@1"})
            say_end(log_connection, "idle.orders", int((NOON + timedelta(hours=3)).timestamp() * 1000), end=False)
            lakehouse.start()
            pipeline.wait_until_written()
            stack.enter_context(running(pipeline.make_replica(report_interval_ms=1000)))
            pipeline.wait_until_equal("stock")
            step_until(lambda: len(read_rows(log_connection, "idle.hourly")) == 2)  # the heartbeat closed them
            step_until(lambda: in_the_lake() == set(made))
            wal, before, after = None, {}, {}
            while wal != wal_end():
                before, wal = step_until_unchanged(lambda: (ends(), wal_end()), SETTLED_S)
                step_for(IDLE_S)
                after = ends()
            assert after == before
    finally:
        lakehouse.stop()
        driver.stop()
        pipeline.drop()
