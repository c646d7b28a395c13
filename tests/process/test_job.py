"""One job while it runs: what it says of its batches. Whole runs on a log are in test_run."""

import pytest

from tests.support.jobs import driver_of, put_rows, run_until
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    @table(to="SHOP.totals", key="customer", watermark=("at", "1 minute"), emit="changes")
    def SHOP_totals(orders):
        return orders.groupBy("customer").agg(F.sum("cents").alias("cents"))

    @stream(to="SHOP.copied")
    def SHOP_copied(orders):
        return orders
"""


def test_it_says_how_long_a_batch_took_and_how_large_its_state_is(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    driver = driver_of(spark, write_project(tmp_path / "project", shop, JOBS), log_connection, registry_url, tmp_path)
    drivers.append(driver)
    driver.start()
    put_rows(
        log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0), order(2, "bob", 1)], ("customer",)
    )
    totals, copied = (driver.running[f"{shop}_{name}@1"] for name in ("totals", "copied"))
    run_until(driver, lambda: totals.figures().get("state_rows") == 2 and "batch_ms" in copied.figures())
    figures = totals.figures()
    assert 0 < figures["rows_ms"] + figures["commit_ms"] <= figures["batch_ms"]
    assert (figures["rows"], figures["state_memory_bytes"] > 0) == (2, True)
    assert "state_rows" not in copied.figures()
