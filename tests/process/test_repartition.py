"""A state is moved into another number of partitions: totals go on, wherever the move is cut off."""

from functools import partial

import pytest

from mainstem.process import batch_job
from mainstem.process.offsets import read_plan
from mainstem.process.project_config import JobConfig
from mainstem.process.repartition import Change, change_of
from mainstem.process.sink import BatchSink
from mainstem.process.versions import read_fixed
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    kept = changelog("SHOP.totals.state", key="customer")

    @table(to="SHOP.totals", key="customer", watermark=("at", "1 minute"), emit="changes", state=kept)
    def SHOP_totals(orders):
        return orders.groupBy("customer").agg(F.sum("cents").alias("cents"))
"""
NAMES = [f"customer {number}" for number in range(20)]


class Cut(Exception):
    """Here the driver is gone."""


def cut_in_spark(patched):
    """Spark has begun, and has not ended: of its last file, the end of the batch, nothing is there."""
    whole = batch_job.repartition

    def part(session, checkpoint, change):
        whole(session, checkpoint, change)
        for name in (str(change.batch), f".{change.batch}.crc"):
            (checkpoint / "commits" / name).unlink()
        raise Cut

    patched.setattr(batch_job, "repartition", part)


def cut_before_the_marker(patched):
    patched.setattr(BatchSink, "write", lambda *_, **__: (_ for _ in ()).throw(Cut()))


def cut_before_it_is_written_down(patched):
    patched.setattr(batch_job, "write_fixed", lambda *_: (_ for _ in ()).throw(Cut()))


@pytest.mark.parametrize("cut", [None, cut_in_spark, cut_before_the_marker, cut_before_it_is_written_down])
def test_totals_go_on_in_other_partitions(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, monkeypatch, cut
):
    project = write_project(tmp_path / "project", shop, JOBS, f"[jobs.{shop}_totals]\nstate_partitions = 2\n")
    put = partial(put_rows, log_connection, live_registry, f"{shop}.orders", ORDERS, key=("customer",))
    name = f"{shop}_totals@1"
    home = tmp_path / "data" / "jobs" / name

    def start(partitions):
        settings = {f"{shop}_totals": JobConfig(state_partitions=partitions)}
        driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=settings)
        drivers.append(driver)
        driver.start()
        return driver

    def last(topic):
        return {row["customer"]: row["cents"] for row in read_rows(log_connection, f"{shop}.{topic}")}

    def go_to(driver, cents):
        put(rows=[order(number, each, number, 1) for number, each in enumerate(NAMES)])
        wanted = dict.fromkeys(NAMES, cents)
        run_until(driver, lambda: last("totals") == wanted and last("totals.state") == wanted)

    driver = start(2)
    go_to(driver, 1)
    driver.stop()
    if cut is not None:
        with monkeypatch.context() as patched:
            cut(patched)
            driver = start(5)
            run_until(driver, lambda: name in driver.retries.failed)
            driver.stop()
    driver = start(5)
    go_to(driver, 2)
    newest = max(int(path.name) for path in (home / "checkpoint" / "offsets").glob("[0-9]*"))
    assert read_plan(home / "checkpoint", newest).partitions == 5
    assert read_fixed(home).state_partitions == 5
    driver.stop()
    if cut is None:
        go_to(start(1), 3)


def test_a_move_that_has_begun_is_finished_first(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()

    def plan(batch, partitions):
        text = f'v1\n{{"conf":{{"spark.sql.shuffle.partitions":"{partitions}"}}}}\n-'
        (tmp_path / "offsets" / str(batch)).write_text(text)

    plan(6, 4)
    plan(7, 4)
    assert change_of(tmp_path, 7, 4) is None
    assert change_of(tmp_path, 7, 8) == Change(8, 8)
    plan(8, 4)  # that of a batch like others, which the log does not have
    assert change_of(tmp_path, 7, 4) is None
    assert change_of(tmp_path, 7, 8) == Change(8, 8)
    plan(8, 6)
    assert change_of(tmp_path, 7, 4) == Change(8, 6)
    (tmp_path / "commits" / "8").touch()
    assert change_of(tmp_path, 7, 6) == Change(8, 6, done=True)
