"""The state of a job as a table: what Spark's store has is what a reader of the topic has, for each kind of state."""

import json
from functools import partial

import pytest

from mainstem.process.declare import BadDeclaration
from mainstem.registry import avro
from mainstem.registry.client import Registry
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.records import committed
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures

WATERMARK = 'watermark=("at", "1 minute")'
JOBS = f"""
    import pandas as pd
    from pyspark.sql import types as T
    from pyspark.sql.streaming import StatefulProcessor

    hourly_state = changelog("SHOP.hourly.state", key=["window_start", "window_end", "customer"])
    visits_state = changelog("SHOP.visits.state", key=["customer", "session_start_time"])
    first_state = changelog("SHOP.first.state", key="id")
    spent_state = changelog("SHOP.spent.state", key=["customer", "variable", "map_key"])

    @table(to="SHOP.hourly", key=["start", "customer"], {WATERMARK}, state=hourly_state)
    def SHOP_hourly(orders):
        return orders.groupBy(F.window("at", "1 hour"), "customer").agg(
            F.sum("cents").alias("total"), (F.sum("cents") / F.count("id")).alias("ratio"), F.avg("cents").alias("mean")
        ).select(F.col("window.start").alias("start"), "customer", "total", "ratio", "mean")

    @table(to="SHOP.visits", key=["customer", "start"], {WATERMARK}, state=visits_state)
    def SHOP_visits(orders):
        return orders.groupBy(F.session_window("at", "10 minutes"), "customer").agg(
            F.count("id").alias("orders")
        ).select("customer", F.col("session_window.start").alias("start"), "orders")

    @stream(to="SHOP.first", key="id", {WATERMARK}, state=first_state)
    def SHOP_first(orders):
        return orders.dropDuplicatesWithinWatermark(["id"])

    class Spent(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.total = handle.getValueState("total", T.StructType([T.StructField("cents", T.LongType())]))
            self.by_order = handle.getMapState(
                "by_order", T.StructType([T.StructField("id", T.LongType())]),
                T.StructType([T.StructField("cents", T.LongType())]),
            )

        def handleInputRows(self, key, rows, timerValues):
            total = self.total.get()[0] if self.total.exists() else 0
            for frame in rows:
                for each in frame.itertuples():
                    total += each.cents
                    self.by_order.updateValue((each.id,), (each.cents,))
            self.total.update((total,))
            self.handle.registerTimer(1714565100_000)  # 12:05, when nobody looks at it any more
            yield pd.DataFrame({{"customer": [key[0]], "total": [total]}})

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            self.total.clear()
            self.by_order.clear()
            yield pd.DataFrame({{"customer": [key[0]], "total": [-1]}})

        def close(self):
            pass

    @table(to="SHOP.spent", key="customer", {WATERMARK}, emit="changes", state=spent_state)
    def SHOP_spent(orders):
        return orders.groupBy("customer").transformWithStateInPandas(
            Spent(), "customer string, total long", "Update", "EventTime"
        )

    @stream(to="SHOP.rich")
    def SHOP_rich(orders, hourly_state):
        return orders.join(hourly_state.select("customer", "total"), "customer").select("id", "total")
"""
KEYS = {
    "hourly": ("window_start", "window_end", "customer"),
    "visits": ("customer", "session_start_time"),
    "first": ("id",),
    "spent": ("customer", "variable", "map_key"),
}


def table_of(connection, registry_url, topic):
    """What a reader has that follows a changelog to its end: the last row of each key, by that."""
    registry = Registry(registry_url)
    last = {message.key(): message.value() for message in committed(connection, topic)}
    return {key: avro.decode(value, registry.schema) for key, value in last.items() if value is not None}


def kept(spark, homes, job, **options):
    """What Spark's own store has by its last batch."""
    return spark.read.format("statestore").options(**options).load(str(homes[job] / "checkpoint")).collect()


def expected(spark, homes):
    """The tables as they are to be, without their keys' bytes: sorted rows."""
    hourly = [(*row.key.window, row.key.customer, *row.value) for row in kept(spark, homes, "hourly")]
    visits = [
        (row.key.customer, row.key.sessionStartTime, row.value[0].start, row.value[0].end, row.value[2])
        for row in kept(spark, homes, "visits")
    ]
    first = [(row.key.id, row.value.expiresAtMicros) for row in kept(spark, homes, "first")]
    totals = [(row.key.customer, row.value.cents) for row in kept(spark, homes, "spent", stateVarName="total")]
    orders = [
        (row.key.customer, row.user_map_key.id, row.user_map_value.cents)
        for row in kept(spark, homes, "spent", stateVarName="by_order")
    ]
    return {"hourly": hourly, "visits": visits, "first": first, "spent": totals + orders}


def found(connection, registry_url, shop):
    tables = {job: list(table_of(connection, registry_url, f"{shop}.{job}.state").values()) for job in KEYS}
    plain = {job: [tuple(map(bare, row.values())) for row in rows] for job, rows in tables.items()}
    plain["spent"] = [
        (row["customer"], row["total"]["cents"])
        if row["variable"] == "total"
        else (row["customer"], int(json.loads(row["map_key"])["id"]), row["by_order"]["cents"])
        for row in tables["spent"]
    ]
    return plain


def bare(value):
    """Spark gives times of the session's zone, which is UTC, without it."""
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def test_what_spark_keeps_is_in_the_topic_and_goes_with_it(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """In several batches, over a restart, and once all windows are closed."""
    project = write_project(tmp_path / "project", shop, JOBS)

    def start():
        driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
        drivers.append(driver)
        driver.start()
        return driver

    homes = {job: tmp_path / "data" / "jobs" / f"{shop}_{job}@1" for job in KEYS}

    def until(driver, is_there):
        """The topics have what Spark has, and that is what is expected."""

        def compared():
            if not all((home / "checkpoint" / "commits" / "0").exists() for home in homes.values()):
                return False
            there = found(log_connection, registry_url, shop)
            if not is_there(there):
                return False
            sorted_ = {job: sorted(rows) for job, rows in expected(spark, homes).items()}  # Spark takes seconds for it
            return {job: sorted(rows) for job, rows in there.items()} == sorted_

        run_until(driver, compared)

    def customers(there, at=0, job="visits"):
        return {row[at] for row in there[job]}

    driver = start()
    put = partial(put_rows, log_connection, live_registry, f"{shop}.orders", ORDERS, key=("customer",))
    put(rows=[order(1, "ann", 0, 5), order(2, "bob", 1, 7), order(3, "ann", 2, 8)])
    until(
        driver,
        lambda there: (
            {row[2:4] for row in there["hourly"]} == {("ann", 13), ("bob", 7)}
            and {("ann", 13), ("ann", 1, 5), ("ann", 3, 8), ("bob", 7), ("bob", 2, 7)} == {*there["spent"]}
            and customers(there) == {"ann", "bob"}
            and customers(there, job="first") == {2, 3}
        ),
    )
    driver.stop()
    put(rows=[order(4, "ann", 30, 1), order(5, "cid", 31)])
    driver = start()
    until(driver, lambda there: customers(there) == {"ann", "cid"} and customers(there, job="first") == {4, 5})
    put(rows=[order(6, "ann", 200)])  # whatever was before is closed
    until(
        driver,
        lambda there: (
            customers(there) == {"ann"} and customers(there, 2, "hourly") == {"ann"} and len(there["first"]) == 1
        ),
    )
    put(rows=[order(7, "ann", 201)])  # others read it as a table
    run_until(driver, lambda: read_rows(log_connection, f"{shop}.rich"))


FOR_A_TIME = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    spent_state = changelog("SHOP.spent.state", key=["customer", "variable"])

    class Spent(StatefulProcessor):
        def init(self, handle):
            self.total = handle.getValueState("total", "cents long", ttlDurationMs=3_600_000)

        def handleInputRows(self, key, rows, timerValues):
            total = (self.total.get()[0] if self.total.exists() else 0) + sum(row.cents for row in rows)
            self.total.update((total,))
            yield Row(customer=key[0], total=total)

        def close(self):
            pass

    @table(to="SHOP.spent", key="customer", watermark=("at", "1 minute"), emit="changes", state=spent_state)
    def SHOP_spent(orders):
        return orders.groupBy("customer").transformWithState(
            Spent(), "customer string, total long", "Update", "ProcessingTime"
        )
"""


def test_what_is_kept_for_a_time_is_as_what_is_kept_for_ever(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, FOR_A_TIME)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0, 5)], ("customer",))
    wanted = [{"customer": "ann", "variable": "total", "total": {"cents": 5}}]
    topic = f"{shop}.spent.state"
    run_until(driver, lambda: [*table_of(log_connection, registry_url, topic).values()] == wanted)


def test_a_variable_with_the_name_of_a_key_column_is_told_with_the_users_line(
    spark, log_connection, registry_url, shop, tmp_path, drivers
):
    """It was a traceback of Java's."""
    jobs = FOR_A_TIME.replace('getValueState("total"', 'getValueState("customer"')
    project = write_project(tmp_path / "project", shop, jobs)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    said = rf"jobs\.py:\d+: table {shop}\.spent\.state: .* a key column, customer"
    with pytest.raises(BadDeclaration, match=said):
        driver.start()


LISTS = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    basket_state = changelog("SHOP.basket.state", key=["customer", "variable"])

    class Basket(StatefulProcessor):
        def init(self, handle):
            self.ids = handle.getListState("ids", "id long", TTL)

        def handleInputRows(self, key, rows, timerValues):
            for row in rows:
                if row.cents == 0:
                    self.ids.clear()
                elif row.cents < 0:
                    self.ids.put([(row.id,), (-row.id,)])
                else:
                    self.ids.appendValue((row.id,))
            yield Row(customer=key[0])

        def close(self):
            pass

    @table(to="SHOP.basket", key="customer", watermark=("at", "1 minute"), emit="changes", state=basket_state)
    def SHOP_basket(orders):
        return orders.groupBy("customer").transformWithState(Basket(), "customer string", "Update", "ProcessingTime")
"""


@pytest.mark.parametrize("ttl", [None, 3_600_000])
def test_a_list_is_there_as_a_whole_whichever_way_it_has_changed(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, ttl
):
    """Of a list that was put Spark's changes have the first row alone, of one that has grown the new ones."""
    project = write_project(tmp_path / "project", shop, LISTS.replace("TTL", repr(ttl)))
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    topic = f"{shop}.basket.state"

    def then(rows, lists):
        put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, rows, ("customer",))

        def found():
            table = table_of(log_connection, registry_url, topic).values()
            return {row["customer"]: [each["id"] for each in row["ids"]] for row in table}

        run_until(driver, lambda: found() == lists)

    then([order(1, "ann", 0, 5), order(2, "bob", 0, -1)], {"ann": [1], "bob": [2, -2]})
    then([order(3, "ann", 1, 5), order(4, "bob", 1, 5), order(5, "cid", 1, 5)],
         {"ann": [1, 3], "bob": [2, -2, 4], "cid": [5]})  # fmt: skip
    then([order(6, "ann", 2, -1), order(7, "bob", 2, 0)], {"ann": [6, -6], "cid": [5]})
