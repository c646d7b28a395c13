"""One job while it runs: what it says of its batches. Whole runs on a log are in test_run."""

import pytest

from mainstem.client.internal import job_group
from mainstem.client.topics import end_offsets
from tests.support import kafka_tools
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
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
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0)], ("customer",))
    totals, copied = (driver.running[f"{shop}_{name}@1"] for name in ("totals", "copied"))
    # a batch before it may have found the topic empty; after it, one of the other may only have its watermark to move
    run_until(driver, lambda: totals.figures().get("state_rows") == 1 and copied.figures().get("rows") == 1)
    figures = totals.figures()
    assert 0 < figures["rows_ms"] + figures["commit_ms"] <= figures["batch_ms"]
    assert figures["state_memory_bytes"] > 0
    assert "state_rows" not in copied.figures()


def shown_by_kafka(connection, group):
    """Partition -> (offset of the group, end of the log, lag), as Kafka's own tool has it."""
    command = ("kafka-consumer-groups", "--bootstrap-server", connection.bootstrap, "--describe", "--group", group)
    (told,) = kafka_tools.run_together(command)
    head, *lines = [line.split() for line in told.splitlines() if line.startswith(("GROUP", group))]
    rows = [dict(zip(head, line, strict=False)) for line in lines]
    names = ("PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    return {each[0]: tuple(each[1:]) for each in ([int(row[name]) for name in names] for row in rows)}


def test_its_lag_is_right_in_kafkas_own_tool(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, JOBS)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    orders, group = f"{shop}.orders", job_group(f"{shop}_copied", "1")

    def put(numbers):
        rows = [order(number, f"customer {number}", number) for number in numbers]
        put_rows(log_connection, live_registry, orders, ORDERS, rows, ("customer",))
        return end_offsets(log_connection, orders)

    read = put(range(20))
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.copied")) == 20)
    assert shown_by_kafka(log_connection, group) == {at: (end, end, 0) for at, end in read.items()}
    driver.stop()
    ends = put(range(20, 50))
    assert shown_by_kafka(log_connection, group) == {at: (read[at], end, end - read[at]) for at, end in ends.items()}
    assert min(read.values()) > 0
    assert min(ends[at] - read[at] for at in ends) > 0
