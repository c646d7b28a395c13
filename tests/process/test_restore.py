"""A job whose checkpoint is lost goes on from the log, exactly: without state always, with state from its copy."""

import shutil
from functools import partial

import pytest

from mainstem.client.internal import checkpoint_topic
from mainstem.client.topics import list_topics
from mainstem.core import UserError
from mainstem.process.project_config import JobConfig
from mainstem.process.restore import lost_version, restore
from mainstem.process.retire import retire
from mainstem.process.sink_checkpoint import Checkpoint
from tests.support.hurry import Hurry
from tests.support.jobs import driver_of, put_rows, read_rows, run_until, say_end
from tests.support.shop import NOON, ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    @stream(to="SHOP.paid", key="id")
    def SHOP_paid(orders):
        return orders.where("cents > 0")

    @table(to="SHOP.visits", key=["customer", "start"], watermark=("at", "1 minute"))
    def SHOP_visits(orders):
        return orders.groupBy(F.session_window("at", "10 minutes"), "customer").agg(
            F.count("id").alias("orders")
        ).select("customer", F.col("session_window.start").alias("start"), "orders")
"""


def test_jobs_go_on_where_the_log_has_them(spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers):
    """A session is open when the disk is lost; its first orders are in the state alone."""
    project, data = write_project(tmp_path / "project", shop, JOBS), tmp_path / "data"
    put = partial(put_rows, log_connection, live_registry, f"{shop}.orders", ORDERS, key=("customer",))
    names = [f"{shop}_paid", f"{shop}_visits"]

    def start(**settings):
        configs = {name: JobConfig(checkpoint_in_log=True, **settings) for name in names}
        driver = driver_of(spark, project, log_connection, registry_url, data, settings=configs, clock=Hurry())
        drivers.append(driver)
        driver.start()
        return driver

    def paid():
        return sorted(row["id"] for row in read_rows(log_connection, f"{shop}.paid"))

    def processed(driver, rows):
        visits = driver.running.get(f"{shop}_visits@1")
        return visits is not None and sum(visits.processed.get(f"{shop}.orders", {}).values()) == rows

    driver = start()
    for number in range(4):  # in a batch each
        put(rows=[order(number, "ann", number), order(100 + number, "bob", number)])
        run_until(driver, lambda rows=2 * (number + 1): len(paid()) == rows and processed(driver, rows))
    driver.stop()
    homes = {name: data / "jobs" / f"{name}@1" for name in names}
    ids = {name: Checkpoint(home / "checkpoint").query_id() for name, home in homes.items()}

    for name, home in homes.items():
        with pytest.raises(UserError, match="expected no checkpoint, found one"):
            restore(log_connection, home, name, "1")
        with pytest.raises(UserError, match="found none; those that have one: 1"):
            lost_version(data, name)
        shutil.rmtree(home / "checkpoint")
    driver = start()
    keys = {f"{name}@1" for name in names}
    run_until(driver, lambda: driver.retries.failed.keys() == keys, refused=keys)
    assert all(
        f"job restore {each.partition('@')[0]}" in failure.hint for each, failure in driver.retries.failed.items()
    )
    for name, home in homes.items():  # Spark may have begun a new one
        shutil.rmtree(home / "checkpoint", ignore_errors=True)
        assert lost_version(data, name) == "1"
        restore(log_connection, home, name, "1")
        assert Checkpoint(home / "checkpoint").query_id() == ids[name]
    run_until(driver, lambda: processed(driver, 8) and not driver.retries.failed, refused=keys)  # by themselves

    put(rows=[order(4, "ann", 12), order(5, "ann", 60)])
    run_until(driver, lambda: len(paid()) == 10)
    say_end(log_connection, f"{shop}.orders", int(NOON.timestamp() * 1000) + 3_600_000)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.visits")) == 3)
    assert paid() == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103]
    visits = sorted((row["customer"], row["orders"]) for row in read_rows(log_connection, f"{shop}.visits"))
    assert visits == [("ann", 1), ("ann", 5), ("bob", 4)]
    driver.stop()

    # A machine is lost, with all that it had, its injections too; another one has its data elsewhere.
    shutil.rmtree(data)
    data = tmp_path / "elsewhere" / "data"
    put(rows=[order(6, "cid", 61)])
    driver = start()
    run_until(driver, lambda: driver.retries.failed.keys() == keys, refused=keys)
    for name in names:
        home = data / "jobs" / f"{name}@1"
        shutil.rmtree(home / "checkpoint", ignore_errors=True)
        restore(log_connection, home, name, "1")
    run_until(driver, lambda: processed(driver, 11) and not driver.retries.failed, refused=keys)
    run_until(driver, lambda: len(paid()) == 11)
    assert paid() == [0, 1, 2, 3, 4, 5, 6, 100, 101, 102, 103]
    say_end(log_connection, f"{shop}.orders", int(NOON.timestamp() * 1000) + 7_200_000)
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.visits")) == 4)
    driver.stop()

    assert set(list_topics(log_connection)) >= {checkpoint_topic(f"{shop}_visits", "1")}
    (project / "mainstem.toml").unlink()
    retire(log_connection, data, f"{shop}_visits", "1", project, force=True)
    assert checkpoint_topic(f"{shop}_visits", "1") not in list_topics(log_connection)


def test_state_without_a_copy_is_refused(spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers):
    project, data = write_project(tmp_path / "project", shop, JOBS), tmp_path / "data"
    driver = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0)], ())
    name = f"{shop}_visits"
    home = data / "jobs" / f"{name}@1"
    run_until(driver, (home / "checkpoint" / "commits" / "0").exists)
    driver.stop()
    shutil.rmtree(home / "checkpoint")
    with pytest.raises(UserError, match="keeps state, and the log has no copy") as refused:
        restore(log_connection, home, name, "1")
    assert f"job reprocess {name}" in refused.value.hint
    assert not (home / "checkpoint").exists()
    with pytest.raises(UserError, match="was never started here"):
        restore(log_connection, data / "jobs" / "other@1", "other", "1")
    with pytest.raises(UserError, match="it was never started here"):
        lost_version(data, "other")
