"""A job that goes in batches: one that does not end. Whole runs on a log are in test_run."""

import pytest

from mainstem.process.project import load_job_configs
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
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
