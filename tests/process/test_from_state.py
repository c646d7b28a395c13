"""An edited state function goes on with what its first version knows, from where that one is: no row counts twice."""

import threading
from functools import partial

import pytest

from mainstem.client.progress import read_marker
from mainstem.process.landing import NotLanded
from mainstem.process.reprocess import reprocess
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

JOBS = """
    import pandas as pd
    from pyspark.sql import types as T
    from pyspark.sql.streaming import StatefulProcessor

    class Spent(StatefulProcessor):
        def init(self, handle):
            self.total = handle.getValueState("total", T.StructType([T.StructField("cents", T.LongType())]))

        def handleInputRows(self, key, rows, timerValues):
            total = self.total.get()[0] if self.total.exists() else 0
            total += sum(int(frame["cents"].sum()) for frame in rows)
            self.total.update((total,))
            yield pd.DataFrame({"customer": [key[0]], "total": [total]})

        def close(self):
            pass

    @table(to="SHOP.spent", key="customer", watermark=("at", "1 minute"), emit="changes")
    def SHOP_spent(orders):
        return orders.groupBy("customer").transformWithStateInPandas(
            Spent(), "customer string, total long", "Update", "None"
        )
"""
EDITED = JOBS.replace('"total": [total]}', '"total": [-total]}').replace(
    "        def handleInputRows", '            self.seen = handle.getValueState("seen", T.StructType([T.StructField("n", T.LongType())]))\n\n        def handleInputRows'
).replace("self.total.update((total,))", "self.total.update((total,)); self.seen.update((1,))")  # fmt: skip


def test_an_edited_state_function_goes_on_with_what_was_known(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project, data, name = tmp_path / "project", tmp_path / "data", f"{shop}_spent"
    write_project(project, shop, JOBS)
    put = partial(put_rows, log_connection, live_registry, f"{shop}.orders", ORDERS, key=("customer",))

    def start(version):
        driver = driver_of(spark, project, log_connection, registry_url, data, jobs=[(name, version)])
        drivers.append(driver)
        driver.start()
        return driver

    def last(topic):
        return {row["customer"]: row["total"] for row in read_rows(log_connection, topic)}

    first = start("1")
    put(rows=[order(1, "ann", 0, 5), order(2, "bob", 1, 7)])
    run_until(first, lambda: last(f"{shop}.spent") == {"ann": 5, "bob": 7})
    put(rows=[order(3, "ann", 2, 10)])
    run_until(first, lambda: last(f"{shop}.spent") == {"ann": 15, "bob": 7})
    write_project(project, shop, EDITED)
    with pytest.raises(NotLanded, match="does not run"):
        reprocess(log_connection, project, data, name, state_of="7")

    done = []
    with first_holds_its_lock(data, name):
        asking = threading.Thread(
            target=lambda: done.append(reprocess(log_connection, project, data, name, state_of="1"))
        )
        asking.start()
        run_until(first, lambda: not asking.is_alive())
    (asked,) = done
    assert (asked.version, asked.output) == ("2", f"{shop}.spent.v2")
    before, after = (read_marker(log_connection, name, version) for version in "12")
    assert (after.batch, after.end_offsets, after.written) == (before.batch, before.end_offsets, {})
    assert after.checkpoint != before.checkpoint

    second = start("2")
    put(rows=[order(4, "ann", 3, 100)])
    run_until(first, lambda: last(f"{shop}.spent")["ann"] == 115)
    run_until(second, lambda: last(f"{shop}.spent.v2") == {"ann": -115})  # of bob nothing has come since
    put(rows=[order(5, "bob", 4, 1), order(6, "cid", 4, 2)])
    run_until(second, lambda: last(f"{shop}.spent.v2") == {"ann": -115, "bob": -8, "cid": -2})


def first_holds_its_lock(data, name):
    """What a driver's process does."""
    from mainstem.core.locks import DirectoryLock
    from mainstem.process.versions import read_fixed

    return DirectoryLock(data / "spark" / read_fixed(data / "jobs" / f"{name}@1").sha)
