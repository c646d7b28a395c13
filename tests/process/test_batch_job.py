"""A job that goes in batches: one that does not end, one that fails. Whole runs on a log are in test_run."""

import re
import time
from collections import Counter

import pytest

from mainstem.client.progress import read_markers
from mainstem.process import batch_job
from mainstem.process.project_config import load_job_configs
from tests.support.jobs import driver_of, put_rows, read_rows, rows_so_far, run_until
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

HANGS = """
    import pathlib, time
    from pyspark.sql.types import LongType

    @F.udf(LongType())
    def slow(number):
        while pathlib.Path("HANG").exists():
            time.sleep(0.1)
        return number

    @stream(to="SHOP.slow")
    def SHOP_hangs(orders):
        return orders.select(slow("id").alias("id"))

    @stream(to="SHOP.copied")
    def SHOP_copied(orders):
        return orders
"""


def test_a_batch_that_hangs_is_given_up_and_holds_nothing_of_spark_any_more(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    (hang := tmp_path / "hang").touch()
    jobs, settings = HANGS.replace("HANG", str(hang)), f"[jobs.{shop}_hangs]\nbatch_timeout_seconds = 5\n"
    project = write_project(tmp_path / "project", shop, jobs, settings)
    configs = load_job_configs(project)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=configs)
    drivers.append(driver)
    driver.start()
    key, rows = f"{shop}_hangs@1", [order(number, "ann", 0) for number in range(4)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("id",))
    run_until(driver, lambda: driver.running[key].figures()["running_ms"] > 1000)
    run_until(driver, lambda: key in driver.retries.failed)
    failure = driver.retries.failed[key]
    assert failure.error == f"batch {failure.details['batch']} has run for more than 5 s"
    assert (failure.state, failure.needs_a_person) == ("waiting", False)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.copied")) == 4)
    hang.unlink()
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.slow")) == 4)


HOURLY = """
    @table(to="SHOP.hourly", key=["customer", "hour"], watermark=("at", "10 minutes"))
    def SHOP_hourly(orders):
        cents = F.when(F.col("cents") > 0, F.col("cents")).otherwise(F.raise_error("no cents").cast("long"))
        hours = orders.withColumn("cents", cents).groupBy("customer", F.window("at", "1 hour"))
        return hours.agg(F.sum("cents").alias("cents")).select("customer", F.col("window.start").alias("hour"), "cents")
"""


def test_of_a_batch_of_a_job_with_state_that_fails_the_offsets_are_told_and_no_row(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Its function cannot be called with some of the rows: what it makes of them depends on those before."""
    project = write_project(tmp_path / "project", shop, HOURLY)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0, 0)], ("customer",))
    key = f"{shop}_hourly@1"
    run_until(driver, lambda: key in driver.retries.failed)
    failure = driver.retries.failed[key]
    assert "no cents" in failure.error
    assert list(failure.details) == ["batch", "offsets"]
    assert re.fullmatch(rf"{shop}.orders [01]: 0 to 1", failure.details["offsets"])


def test_a_batch_that_hangs_leaves_most_of_spark_to_others(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """One with as many partitions as Spark has places held all others up, for an hour."""
    (hang := tmp_path / "hang").touch()
    places = spark.sparkContext.defaultParallelism
    project = write_project(tmp_path / "project", shop, HANGS.replace("HANG", str(hang)))
    settings = project / "mainstem.toml"
    settings.write_text(settings.read_text().replace("partitions = 2", f"partitions = {places}"))
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    rows, more = ([order(number, "ann", 0) for number in range(first, first + 10 * places)] for first in (0, 1000))
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("id",))
    run_until(driver, lambda: driver.running[f"{shop}_hangs@1"].figures()["running_ms"] > 1000)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.copied")) == len(rows))
    tracker = spark.sparkContext.statusTracker()
    run_until(driver, lambda: len(tracker.getActiveStageIds()) == 1)  # what was copied may not be committed yet
    (stage,) = tracker.getActiveStageIds()
    assert tracker.getStageInfo(stage).numTasks == places // 3
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, more, ("id",))
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.copied")) == len(rows) + len(more))
    assert read_rows(log_connection, f"{shop}.slow") == []
    hang.unlink()
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.slow")) == len(rows) + len(more))
    for name in ("slow", "copied"):
        found = rows_so_far(log_connection, f"{shop}.{name}")
        assert Counter(row["id"] for row in found) == Counter(row["id"] for row in rows + more)


RUN_AGAIN = """
    @table(to="SHOP.same", key="customer", watermark=("at", "10 minutes"), emit="changes")
    def SHOP_same(orders):
        return orders.groupBy("customer").agg(F.max("id").alias("id"))

    @table(to="SHOP.other", key="customer", watermark=("at", "10 minutes"), emit="changes")
    def SHOP_other(orders):
        return orders.withColumn("number", F.randn()).groupBy("customer").agg(F.sum("number").alias("number"))
"""


def test_a_batch_that_is_run_again_for_its_state_and_makes_other_rows_is_told(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, monkeypatch
):
    told = []
    monkeypatch.setattr(batch_job.log, "warning", lambda event, **facts: told.append((event, facts)))
    project, names = write_project(tmp_path / "project", shop, RUN_AGAIN), [f"{shop}_same", f"{shop}_other"]
    rows = [order(1, "ann", 0), order(2, "bob", 0)]

    def last(name, log):
        found = (tmp_path / "data" / "jobs" / f"{name}@1" / "checkpoint" / log).glob("[0-9]*")
        return max((int(each.name) for each in found), default=-1)

    def ends_with_rows():
        """One without any may follow, for the watermark; it may also be planned only."""
        driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
        drivers.append(driver)
        driver.start()
        before = [len(read_rows(log_connection, f"{shop}.{name}")) for name in ("same", "other")]
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("id",))
        for name, count in zip(("same", "other"), before, strict=True):
            topic = f"{shop}.{name}"
            run_until(driver, lambda topic=topic, count=count: len(read_rows(log_connection, topic)) >= count + 2)
        drivers.remove(driver)
        driver.stop()
        markers = read_markers(log_connection)
        return all(
            markers[f"{name}@1"].outputs
            and last(name, "offsets") == last(name, "commits") == markers[f"{name}@1"].batch
            for name in names
        )

    assert any(ends_with_rows() for _ in range(10))
    for name in names:  # Spark had no time to write down that its last batch has ended
        ends, number = tmp_path / "data" / "jobs" / f"{name}@1" / "checkpoint" / "commits", last(name, "commits")
        for each in (ends / str(number), ends / f".{number}.crc"):
            each.unlink()
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    for name in names:
        run_until(driver, lambda name=name: driver.running[f"{name}@1"].has_worked())
    ((event, facts),) = told
    assert (event, facts["job"], facts["topic"]) == ("batch_differs", f"{names[1]}@1", f"{shop}.other")
    assert facts["written"] == facts["again"] > 0
    assert facts["reason"].startswith("batch-dependent: ")


PACED = """
    @stream(to="SHOP.copied")
    def SHOP_copied(orders):
        return orders

    @table(to="SHOP.sums", key="hour", watermark=("at", "10 minutes"))
    def SHOP_sums(orders):
        hours = orders.groupBy(F.window("at", "1 hour")).agg(F.sum("id").alias("ids"))
        return hours.select(F.col("window.start").alias("hour"), "ids")
"""


def test_a_job_with_a_long_pace_catches_up_at_once_and_then_keeps_its_pace(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """It read one batch each time: with a pace of a day a hundred thousand records a day, whatever waited."""
    settings = f'[jobs.{shop}_NAME]\nevery = "1 hour"\nmax_offsets_per_trigger = 20\n'
    settings = "".join(settings.replace("NAME", name) for name in ("copied", "sums"))
    project = write_project(tmp_path / "project", shop, PACED, settings)

    def put(first, last):
        rows = [order(number, "ann", 0) for number in range(first, last)]
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("id",))

    def read(name):
        job = driver.running.get(f"{shop}_{name}@1")
        return 0 if job is None else sum(job.processed.get(f"{shop}.orders", {}).values())

    configs = load_job_configs(project)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=configs)
    drivers.append(driver)
    driver.start()
    put(0, 70)
    run_until(driver, lambda: min(read("copied"), read("sums")) > 50)
    assert len(read_rows(log_connection, f"{shop}.copied")) == read("copied")

    put(70, 19 + min(read("copied"), read("sums")))  # one too few for a batch
    before, until = (read("copied"), read("sums")), time.monotonic() + 4
    run_until(driver, lambda: time.monotonic() > until)
    assert (read("copied"), read("sums")) == before


HANGS_IN_THE_DRIVER = """
    import pathlib, time

    @stream(to="SHOP.slow")
    def SHOP_hangs(orders):
        while pathlib.Path("HANG").exists():
            time.sleep(0.1)
        return orders.select("id")

    @stream(to="SHOP.copied")
    def SHOP_copied(orders):
        if pathlib.Path("FAIL").exists():
            raise ValueError("not now")
        return orders
"""


def test_a_function_that_hangs_in_the_driver_holds_up_no_other_job(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Whoever stopped it waited for it: nobody saw any more that other jobs had failed, or started them again."""
    hang, fail = tmp_path / "hang", tmp_path / "fail"
    jobs = HANGS_IN_THE_DRIVER.replace("HANG", str(hang)).replace("FAIL", str(fail))
    project = write_project(tmp_path / "project", shop, jobs, f"[jobs.{shop}_hangs]\nbatch_timeout_seconds = 3\n")
    configs = load_job_configs(project)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=configs)
    drivers.append(driver)
    driver.start()
    hung, other = f"{shop}_hangs@1", f"{shop}_copied@1"

    def put(*numbers):
        rows = [order(number, "ann", 0) for number in numbers]
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("id",))

    put(0)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.slow")) == 1)
    hang.touch()
    put(1, 2)
    run_until(driver, lambda: hung in driver.retries.failed)
    assert "has run for more than 3 s" in driver.retries.failed[hung].error
    assert "hangs in the driver" in driver.retries.failed[hung].hint
    fail.touch()
    lines = (project / "jobs.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "ValueError" in text)
    put(3)
    run_until(driver, lambda: other in driver.retries.failed, refused=[other])
    assert driver.retries.failed[other].error == f"{project / 'jobs.py'}:{line}: {shop}_copied: ValueError: not now"
    fail.unlink()
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.copied")) == 4, refused=[other])
    assert hung in driver.waiting
    hang.unlink()
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.slow")) == 4, refused=[other])
