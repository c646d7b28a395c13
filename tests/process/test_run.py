"""A project's jobs on a real log: rows in, rows out, what is said about them, and what happens when things change."""

import json
import re
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from mainstem.client.catalog import read_catalog
from mainstem.client.internal import PROGRESS
from mainstem.client.progress import Progress, read_markers
from mainstem.client.reports import read_reports
from mainstem.client.topics import delete, ensure_topic, list_topics, topic_settings
from mainstem.core import SystemClock
from mainstem.core.config import BadSetting
from mainstem.process import batch_job, sink_checkpoint
from mainstem.process.another_version import start_another
from mainstem.process.declare import BadDeclaration
from mainstem.process.installed import LOCK_FILE
from mainstem.process.offsets import read_plan
from mainstem.process.project import load_project
from mainstem.process.project_config import JobConfig, load_job_configs
from mainstem.process.reprocess import reprocess
from mainstem.process.retire import retire
from mainstem.process.run import _config, _configs
from mainstem.process.sink_commit import BatchCommitter
from mainstem.process.sink_decision import SinkRefused
from mainstem.process.versions import Fixed, assignments, output_topic, write_fixed
from mainstem.registry import avro
from mainstem.registry.reader import TypedReader
from tests.support.jobs import driver_of, put_changes, put_rows, read_rows, rows_so_far, run_until, say_end
from tests.support.shop import CUSTOMERS, NOON, ORDERS, drivers, order, shop, write_project

pytestmark = pytest.mark.timeout(900)  # a whole Spark beside whatever else the machine does
__all__ = ["drivers", "shop"]  # fixtures


def sessions_job(name: str) -> str:
    """A job with windows, under a name that no other job of the log has:
    its rows come out when the watermark has passed.
    """
    return f"""
        @table(to="SHOP.visits", key=["customer", "since"], watermark=("at", "10 minutes"))
        def {name}(orders):
            grouped = orders.groupBy("customer", F.session_window("at", "30 minutes"))
            return grouped.agg(F.min("at").alias("since"), F.count("*").alias("orders")).drop("session_window")
    """


def audit_of(connection, reader, topic) -> dict[str, int]:
    """What a reader states of a topic, over its partitions."""
    reports = read_reports(connection, list_topics(connection))
    mine = [each for each in reports if (each.reader, each.topic) == (reader, topic)]
    return {
        what: sum(getattr(each, what) for each in mine)
        for what in ("rows", "tombstones", "quarantined", "filtered", "late")
    }


def progress_of(connection, job) -> list[Progress]:
    with TypedReader(connection, PROGRESS) as records:
        return [msgspec.convert(r.value, Progress, strict=False) for r in records if r.key == job]


JOBS = """
    @stream(to="SHOP.enriched", key="customer")
    def enriched(orders, customers):
        regions = customers.select(F.col("name").alias("customer"), "region")
        return orders.join(regions, "customer", "left")

    @table(to="SHOP.hourly", key=["region", "hour"], watermark=("at", "30 minutes"))
    def hourly(enriched):
        known = enriched.filter("region is not null")
        totals = known.groupBy("region", F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
        return totals.select("region", F.col("window.start").alias("hour"), "cents")
"""


@pytest.mark.spark
def test_rows_go_through_a_join_with_a_table_and_through_windows(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, JOBS)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    assert "does not exist yet" in driver.waiting["enriched@1"]

    ensure_topic(log_connection, f"{shop}.customers", 1, topic_settings("changelog", {}))
    put_changes(log_connection, live_registry, f"{shop}.customers", CUSTOMERS, "name",
                [("r", {"name": "ann", "region": "north"}), ("r", {"name": "bob", "region": "south"})])  # fmt: skip
    first = [order(1, "ann", 0), order(2, "bob", 10), order(3, "eve", 20), order(4, None, 30), order(5, "ann", 70, 7)]
    put_rows(
        log_connection, live_registry, f"{shop}.orders", ORDERS, [o for o in first if o["customer"]], ("customer",)
    )
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [o for o in first if not o["customer"]], ())
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.enriched")) == 5)

    # The table moves; rows that were joined stay as they are, later ones get the new region.
    put_changes(log_connection, live_registry, f"{shop}.customers", CUSTOMERS, "name",
                [("u", {"name": "ann", "region": "east"}), ("d", {"name": "bob", "region": "south"})])  # fmt: skip
    second = [order(6, "ann", 130), order(7, "bob", 140)]
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, second, ("customer",))
    run_until(driver, lambda: len(read_rows(log_connection, f"{shop}.hourly")) == 2)  # the windows of 12 h are closed
    put_rows(
        log_connection, live_registry, f"{shop}.orders", ORDERS, [order(8, "ann", 20, 5)], ("customer",)
    )  # too late
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.enriched")) == 8)
    regions = {row["id"]: row["region"] for row in read_rows(log_connection, f"{shop}.enriched")}
    assert regions == {1: "north", 2: "south", 3: None, 4: None, 5: "north", 6: "east", 7: None, 8: "east"}

    say_end(log_connection, f"{shop}.orders", int((NOON + timedelta(minutes=140)).timestamp() * 1000))
    run_until(driver, lambda: ended(driver, f"{shop}.hourly"))
    assert driver.running["hourly@1"].late == 1
    hours = {(row["region"], row["hour"].hour): row["cents"] for row in read_rows(log_connection, f"{shop}.hourly")}
    assert hours == {("north", 12): 100, ("south", 12): 100, ("north", 13): 7, ("east", 14): 100}

    # Everything that was read is accounted for, and which rows of the tables it was joined with is on record.
    assert audit_of(log_connection, "enriched@1", f"{shop}.orders")["rows"] == 8
    assert audit_of(log_connection, "enriched@1", f"{shop}.customers") == {
        "rows": 4, "tombstones": 1, "quarantined": 0, "filtered": 0, "late": 0,
    }  # fmt: skip
    assert audit_of(log_connection, "hourly@1", f"{shop}.enriched")["rows"] == 7
    positions = [each.tables[f"{shop}.customers"][0] for each in progress_of(log_connection, "enriched@1")]
    assert positions == sorted(positions)
    assert set(positions) >= {2, 5}
    lock = json.loads((tmp_path / "data" / "jobs" / "hourly@1" / LOCK_FILE).read_text())
    assert {"pyspark", "msgspec"} <= set(lock["used"])  # what it was started with is on record, too
    catalog = read_catalog(log_connection)
    assert catalog[f"topic:{shop}.hourly"]["key"] == ["region", "hour"]
    version = catalog["job:hourly"]["versions"]["1"]
    assert (version["output"], version["windows_by"]) == (f"{shop}.hourly", "at")
    markers = read_markers(log_connection)
    assert (
        markers["hourly@1"].event_time >= int((NOON + timedelta(hours=3)).timestamp() * 1000) + 30 * 60_000
    )  # and the delay
    assert markers["enriched@1"].event_time == 0


def ended(driver, topic) -> bool:
    statement = driver.heartbeats.statement(topic)
    return statement is not None and statement.end


@pytest.mark.spark
def test_the_last_windows_close_also_when_spark_is_started_again_before_the_batch_that_closes_them(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, monkeypatch
):
    monkeypatch.setattr(batch_job, "_LOOKS_EVERY_MS", 10_000)
    jobs = sessions_job("last")
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    topic = f"{shop}.orders"
    slow = {"last": JobConfig(every="10 seconds")}  # so long between the batch of the heartbeat and the next
    driver = driver_of(spark, project, log_connection, registry_url, data, settings=slow)
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(1, "ann", 0)], ("customer",))
    run_until(driver, lambda: sum(driver.running["last@1"].processed.get(topic, {}).values()) == 1)
    say_end(log_connection, topic, int(NOON.timestamp() * 1000))

    def has_read_the_heartbeat():
        batches = driver.running["last@1"]._query.recentProgress
        return any(
            source["numInputRows"]
            for batch in batches
            for source in batch["sources"]
            if "File" in source["description"]
        )

    run_until(driver, has_read_the_heartbeat)
    drivers.remove(driver)
    driver.stop()
    assert read_rows(log_connection, f"{shop}.visits") == []

    driver = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(driver)
    driver.start()
    run_until(driver, lambda: ended(driver, f"{shop}.visits"), 120)
    assert [(row["since"], row["orders"]) for row in read_rows(log_connection, f"{shop}.visits")] == [(NOON, 1)]


@pytest.mark.spark
def test_rows_of_a_key_are_in_order_though_the_job_selects_no_position(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, monkeypatch
):
    """With state and without; each of their batches fails once when all of its rows are written."""
    jobs = """
        @stream(to="SHOP.narrow", key="customer")
        def narrow(orders):
            return orders.select("id", "customer").repartition(7)

        @stream(to="SHOP.once", key="customer", watermark=("at", "10 minutes"))
        def once(orders):
            return orders.dropDuplicatesWithinWatermark(["id"]).select("id", "customer")
    """
    project = write_project(tmp_path / "project", shop, jobs)
    few = dict.fromkeys(("narrow", "once"), JobConfig(max_offsets_per_trigger=70))
    commit, failed = BatchCommitter.commit, set()

    def fails_once(self, batch, *read, **more):
        if (self.job.job, batch) not in failed:
            failed.add((self.job.job, batch))
            raise ConnectionError("once")
        return commit(self, batch, *read, **more)

    monkeypatch.setattr(BatchCommitter, "commit", fails_once)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=few)
    drivers.append(driver)
    orders = [order(n, "abc"[n % 3], 0) for n in range(150)]
    driver.start()  # makes the input
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, orders, ("customer",))
    for name in ("narrow", "once"):
        run_until(driver, lambda name=name: len(rows_so_far(log_connection, f"{shop}.{name}")) == 150)
        rows = rows_so_far(log_connection, f"{shop}.{name}")
        for customer in "abc":
            assert [row["id"] for row in rows if row["customer"] == customer] == [*range("abc".index(customer), 150, 3)]
        assert len([job for job, _ in failed if job == name]) >= 3


@pytest.mark.spark
def test_two_streams_are_joined_and_what_has_no_match_comes_when_both_have_ended(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Both had the heartbeats of one source, which Spark refuses: no job with two streams and state could start."""
    jobs = """
        paid = topic("SHOP.paid", event_time="at", schema="orders.avsc")

        @stream(to="SHOP.orders_paid", key="id", watermark=("at", "1 minute"))
        def orders_paid(orders, paid):
            paid = paid.select(F.col("id").alias("order"), F.col("cents").alias("paid"), F.col("at").alias("paid_at"))
            in_time = F.expr("id = order AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR")
            return orders.join(paid, in_time, "left").select("id", "at", "paid")

        @stream(to="SHOP.orders_paid_at", key="id", watermark=("at", "1 minute"))
        def orders_paid_at(orders, paid):  # its state has the position
            paid = paid.select(F.col("id").alias("order"), F.col("cents").alias("paid"), F.col("at").alias("paid_at"))
            return orders.join(paid, F.expr("id = order AND paid_at BETWEEN at AND at + INTERVAL 1 HOUR"))
    """
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    driver = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(driver)
    driver.start()  # makes the inputs
    streams = [f"{shop}.orders", f"{shop}.paid"]
    put_rows(log_connection, live_registry, streams[0], ORDERS, [order(1, "ann", 0), order(2, "bob", 1)], ("customer",))
    put_rows(log_connection, live_registry, streams[1], ORDERS, [order(1, "ann", 5, cents=7)], ("customer",))
    run_until(driver, lambda: read_rows(log_connection, f"{shop}.orders_paid") != [], 120)
    driver.stop()

    again = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(again)
    again.start()
    for topic in streams:
        say_end(log_connection, topic, int((NOON + timedelta(minutes=5)).timestamp() * 1000))
    run_until(again, lambda: ended(again, f"{shop}.orders_paid"), 120)
    rows = read_rows(log_connection, f"{shop}.orders_paid")
    assert sorted((row["id"], row["paid"]) for row in rows) == [(1, 7), (2, None)]
    run_until(again, lambda: ended(again, f"{shop}.orders_paid_at"), 120)
    assert [row["id"] for row in read_rows(log_connection, f"{shop}.orders_paid_at")] == [1]


@pytest.mark.spark
def test_rows_that_were_many_after_all_are_counted_once(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """The driver computes them, leaves them to the workers, and they are computed again."""
    jobs = """
        @stream(to="SHOP.parts", key="customer")
        def parts(orders):
            many = orders.select("id", "customer", F.explode(F.sequence(F.lit(1), F.lit(4000))).alias("part"))
            return many.withColumn("_rejected", F.expr("if(id = 2 AND part < 4, 'not wanted', null)"))

        @table(to="SHOP.per_minute", key=["customer", "minute", "part"], watermark=("at", "1 minute"))
        def per_minute(orders):
            parts = orders.select("customer", "at", F.explode(F.sequence(F.lit(1), F.lit(4000))).alias("part"))
            minutes = parts.groupBy("customer", "part", F.window("at", "1 minute")).agg(F.count("*").alias("orders"))
            return minutes.withColumn("minute", F.col("window.start")).drop("window")
    """
    project = write_project(tmp_path / "project", shop, jobs)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    orders = [order(n, "ann", n) for n in range(1, 7)]
    driver.start()  # makes the input
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, orders, ("customer",))
    say_end(log_connection, f"{shop}.orders", int((NOON + timedelta(minutes=7)).timestamp() * 1000))
    run_until(driver, lambda: ended(driver, f"{shop}.per_minute") and ended(driver, f"{shop}.parts"))
    assert len(rows_so_far(log_connection, f"{shop}.parts")) == 6 * 4000 - 3
    assert {row["orders"] for row in rows_so_far(log_connection, f"{shop}.per_minute")} == {1}
    assert len(rows_so_far(log_connection, f"{shop}.per_minute")) == 6 * 4000
    for job in ("parts@1", "per_minute@1"):
        assert audit_of(log_connection, job, f"{shop}.orders")["rows"] == 6
    marker = read_markers(log_connection)["parts@1"]
    assert sum(each.count for each in marker.written[f"{shop}.parts"].values()) == 6 * 4000 - 3
    assert sum(each.count for each in marker.written[f"{shop}.parts.quarantine"].values()) == 3


@pytest.mark.spark
def test_late_rows_are_counted_exactly_and_a_restart_goes_on(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    jobs = (
        sessions_job("visits")
        + """
        @table(to="SHOP.totals", key="customer", watermark=("at", "10 minutes"), emit="changes")
        def totals(orders):
            return orders.groupBy("customer").agg(F.count("*").alias("orders"))
    """
    )
    place = tmp_path / "a#b?c%41 [d]{e,f}*"  # letters that mean something in URLs, or to Spark
    place.mkdir()
    project = write_project(place / "project", shop, jobs)
    topic = f"{shop}.orders"

    def start():
        driver = driver_of(spark, project, log_connection, registry_url, place / "data")
        drivers.append(driver)
        driver.start()
        return driver

    def processed(driver, rows):
        jobs = [driver.running[name] for name in ("visits@1", "totals@1")]
        return lambda: all(sum(job.processed.get(topic, {}).values()) >= rows for job in jobs)

    driver = start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(1, "ann", 0), order(2, "ann", 200)], ("customer",))
    run_until(driver, processed(driver, 2))
    put_rows(log_connection, live_registry, topic, ORDERS, [order(3, "bob", 400)], ("customer",))
    # Rows are late by the watermark of the batch before: one without rows has to be planned with it.
    known = int((NOON + timedelta(minutes=390)).timestamp() * 1000)
    for job in ("visits@1", "totals@1"):
        plans = place / "data" / "jobs" / job / "checkpoint"
        run_until(
            driver,
            lambda plans=plans: (
                read_plan(plans, max(int(p.name) for p in plans.glob("offsets/[0-9]*"))).watermark == known
            ),
        )
    drivers.remove(driver)
    driver.stop()

    driver = start()
    behind = [order(4, "ann", 1), order(5, "ann", 2), order(6, "bob", 100), order(7, "bob", 401)]
    behind.append(order(8, "bob", 385))  # behind the watermark, 390; its window is still open, and takes it: not late
    put_rows(log_connection, live_registry, topic, ORDERS, behind, ("customer",))
    run_until(driver, processed(driver, 8))
    assert driver.running["visits@1"].late == 3
    say_end(log_connection, topic, int((NOON + timedelta(minutes=401)).timestamp() * 1000))
    run_until(driver, lambda: ended(driver, f"{shop}.visits"))

    found = sorted(
        (row["customer"], row["since"], row["orders"]) for row in read_rows(log_connection, f"{shop}.visits")
    )
    assert found == [
        ("ann", NOON, 1), ("ann", NOON + timedelta(minutes=200), 1), ("bob", NOON + timedelta(minutes=385), 3),
    ]  # fmt: skip
    assert audit_of(log_connection, "visits@1", topic) == {
        "rows": 5, "late": 3, "tombstones": 0, "quarantined": 0, "filtered": 0,
    }  # fmt: skip
    kept = read_rows(log_connection, f"{shop}.visits.quarantine")
    assert {each["error"] for each in kept} == {"late"}
    assert kept[0]["reason"] == "at 2024-05-01 12:01:00: the watermark had reached 2024-05-01 18:30:00"
    # Totals without a window have all of them: once they were in the quarantine all the same.
    totals = {row["customer"]: row["orders"] for row in read_rows(log_connection, f"{shop}.totals")}
    assert totals == {"ann": 4, "bob": 4}
    assert (driver.running["totals@1"].late, audit_of(log_connection, "totals@1", topic)["rows"]) == (0, 8)
    assert f"{shop}.totals.quarantine" not in list_topics(log_connection)
    assert {avro.decode(each["value"], {each["schema_id"]: ORDERS}.__getitem__)["id"] for each in kept} == {4, 5, 6}


@pytest.mark.spark
def test_a_damaged_checkpoint_is_refused_with_its_repair_or_does_no_harm(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Each ended in a failure that was tried again for ever, and named no repair."""
    jobs = sessions_job("damaged")
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    topic, checkpoint = f"{shop}.orders", data / "jobs" / "damaged@1" / "checkpoint"

    def start():
        driver = driver_of(spark, project, log_connection, registry_url, data)
        drivers.append(driver)
        driver.start()
        return driver

    def stop(driver):
        drivers.remove(driver)
        driver.stop()

    def processed(driver, rows):
        return lambda: sum(driver.running["damaged@1"].processed.get(topic, {}).values()) >= rows

    driver = start()
    for number in range(3):
        rows = [order(number, "ann", 200 * number)]
        put_rows(log_connection, live_registry, topic, ORDERS, rows, ("customer",))
        run_until(driver, processed(driver, number + 1))
    stop(driver)
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    put_rows(log_connection, live_registry, topic, ORDERS, [order(4, "ann", 600)], ("customer",))
    copy = shutil.copytree(checkpoint, tmp_path / "copy")

    def refusal(name, cut):
        """What a start says about a checkpoint of which one file was cut; then it is as it was."""
        path = checkpoint / name
        path.write_bytes(cut(path.read_bytes()))
        try:
            driver = driver_of(spark, project, log_connection, registry_url, data)
            drivers.append(driver)
            driver.start()
            run_until(driver, lambda: "damaged@1" in driver.retries.failed)
            stop(driver)
        finally:
            shutil.rmtree(checkpoint)
            shutil.copytree(copy, checkpoint)
        failure = driver.retries.failed["damaged@1"]
        assert failure.needs_a_person
        named = checkpoint / "state" if name.startswith("state") else path
        assert str(named) in failure.error + failure.hint, failure
        return failure.hint

    unchanged = "bring back an unchanged copy of the checkpoint"
    assert unchanged in refusal("metadata", lambda data: data[:10])
    assert unchanged in refusal(f"offsets/{last}", lambda data: data[:20])
    changelogs = sorted(
        (checkpoint / "state").rglob("*.changelog"), key=lambda file: int(file.name.partition(".")[0].partition("_")[0])
    )
    largest = max(
        (file for file in changelogs if file.name.startswith(f"{last + 1}")), key=lambda file: file.stat().st_size
    )
    assert unchanged in refusal(str(largest.relative_to(checkpoint)), lambda data: data[: len(data) // 2])

    # what a power cut leaves of files that nobody synced: the log makes them good
    (checkpoint / "commits" / str(last)).write_bytes(b"")
    driver = start()
    run_until(driver, processed(driver, 4))
    say_end(log_connection, topic, int((NOON + timedelta(minutes=600)).timestamp() * 1000))
    run_until(driver, lambda: ended(driver, f"{shop}.visits"))
    assert sorted(row["since"] for row in read_rows(log_connection, f"{shop}.visits")) == [
        NOON + timedelta(minutes=minutes) for minutes in (0, 200, 400, 600)
    ]


@pytest.mark.spark
@pytest.mark.long
def test_whatever_file_of_a_checkpoint_is_cut_or_gone_it_is_refused_with_its_repair_or_does_no_harm(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Every file, old ones too: what Spark reads, and how it says that it cannot, is its own affair."""
    settings = "[jobs.cut]\nstate_partitions = 1\nspark.'spark.sql.streaming.stateStore.minDeltasForSnapshot' = '1'\n"
    project = write_project(tmp_path / "project", shop, sessions_job("cut"), settings)
    data, topic = tmp_path / "data", f"{shop}.orders"
    checkpoint, good, tried, posted = data / "jobs" / "cut@1" / "checkpoint", tmp_path / "good", set(), 0

    def go_on():
        """Start with one more row; whether it was processed. If not, it is refused, and the refusal names a repair."""
        nonlocal posted
        rows = [order(posted, "ann", 200 * posted)]
        put_rows(log_connection, live_registry, topic, ORDERS, rows, ("customer",))
        posted += 1
        driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
        drivers.append(driver)

        def processed():
            job = driver.running.get("cut@1")
            return job is not None and sum(job.processed.get(topic, {}).values()) >= posted

        def refused():
            failure = driver.retries.failed.get("cut@1")
            return failure is not None and failure.needs_a_person

        try:
            driver.start()
            run_until(driver, lambda: processed() or refused(), refused={"cut@1"})
        except SinkRefused as error:
            return "bring back" in error.hint or "remove " in error.hint
        finally:
            drivers.remove(driver)
            driver.stop()
        if refused():
            failure = driver.retries.failed["cut@1"]
            assert re.search("bring back|remove ", failure.hint), failure
            return False
        shutil.rmtree(good, ignore_errors=True)
        shutil.copytree(checkpoint, good, ignore=shutil.ignore_patterns(".*.tmp*"))  # what is being written
        return True

    def kind(file):
        """What the file is, whatever batch it is of: of the newest (0), of the one before it, or of an older one."""
        found = {int(each.name.split(".")[0]) for each in file.parent.iterdir() if re.match(r"\d+(\.|$)", each.name)}
        age = {str(number): f"<{min(place, 2)}>" for place, number in enumerate(sorted(found, reverse=True))}
        number, _, kind = file.name.partition(".")
        return f"{file.parent.relative_to(good)}/{age.get(number, '' if '-' in number else number)}.{kind}"

    ensure_topic(log_connection, topic, 2)
    for _ in range(4):
        assert go_on()
    harmless = Counter()
    while True:
        files = sorted(file for file in good.rglob("*") if file.is_file() and not file.name.startswith("."))
        left = [(file, how) for file in files for how in ("cut", "gone") if (kind(file), how) not in tried]
        if not left:
            break
        file, how = left[0]
        tried.add((kind(file), how))
        victim = checkpoint / file.relative_to(good)
        if how == "cut":
            victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
        else:
            victim.unlink()
        went_on = go_on()
        harmless[went_on] += 1
        print(kind(file), how, "no harm" if went_on else "refused")
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.copytree(good, checkpoint, dirs_exist_ok=True)  # Spark may still write a snapshot of the state
    assert harmless[True] > 0
    assert harmless[False] > 0

    assert go_on()
    driver = driver_of(spark, project, log_connection, registry_url, data, settings=load_job_configs(project))
    drivers.append(driver)
    driver.start()
    say_end(log_connection, topic, int((NOON + timedelta(minutes=200 * posted)).timestamp() * 1000))
    run_until(driver, lambda: ended(driver, f"{shop}.visits"))
    assert sorted(row["since"] for row in read_rows(log_connection, f"{shop}.visits")) == [
        NOON + timedelta(minutes=200 * number) for number in range(posted)
    ]


@pytest.mark.spark
def test_a_power_cut_takes_nothing_that_the_log_does_not_make_good(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, monkeypatch
):
    """Whatever nobody synced is empty afterwards, as a file system leaves it that gives a file its name first."""
    jobs = sessions_job("cut_off")
    durable: dict[Path, int] = {}
    real = sink_checkpoint._sync

    def sync(path):
        real(path)
        durable[path] = path.stat().st_ino if path.exists() else 0

    monkeypatch.setattr(sink_checkpoint, "_sync", sync)
    project, data, topic = write_project(tmp_path / "project", shop, jobs), tmp_path / "data", f"{shop}.orders"
    checkpoint = data / "jobs" / "cut_off@1" / "checkpoint"
    driver = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(driver)
    driver.start()
    for number in range(3):
        put_rows(log_connection, live_registry, topic, ORDERS, [order(number, "ann", 20 * number)], ("customer",))
        run_until(driver, lambda n=number: sum(driver.running["cut_off@1"].processed.get(topic, {}).values()) > n)
    drivers.remove(driver)
    driver.stop()
    cut = []
    for path in [each for each in checkpoint.rglob("*") if each.is_file()]:
        if durable.get(path) != path.stat().st_ino:
            cut.append(path.relative_to(checkpoint).parts[0])
            path.write_bytes(b"")
    assert "commits" in cut
    # A snapshot comes when it likes.
    for changelogs in {path.parent for path in durable if path.suffix == ".changelog"}:
        newest = max(int(path.name.removesuffix(".changelog")) for path in changelogs.glob("*.changelog"))
        (changelogs / f"{newest}.zip").touch()
    assert any(path.is_relative_to(checkpoint / "state") for path in durable)

    again = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(again)
    again.start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(3, "ann", 60)], ("customer",))
    say_end(log_connection, topic, int((NOON + timedelta(minutes=60)).timestamp() * 1000))
    run_until(again, lambda: ended(again, f"{shop}.visits"))
    assert [(row["since"], row["orders"]) for row in read_rows(log_connection, f"{shop}.visits")] == [(NOON, 4)]


@pytest.mark.spark
def test_what_goes_wrong_in_a_batch_is_told_with_the_users_line_and_stops_that_job_only(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    jobs = """
        @F.udf("long")
        def double(cents):
            return cents * 2 if cents < 1000 else cents / 0

        @stream(to="SHOP.doubled", key="customer")
        def doubled(orders):
            return orders.withColumn("cents", double("cents"))

        @stream(to="SHOP.copied", key="customer")
        def copied(orders):
            return orders

        @stream(to="SHOP.numbered", key="customer")
        def numbered(orders):
            return orders.withColumn("number", F.col("customer").cast("bigint"))
    """
    project = write_project(tmp_path / "project", shop, jobs)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0, 5)], ("customer",))
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.doubled")) == 1)
    run_until(driver, lambda: "numbered@1" in driver.retries.failed)
    assert "[CAST_INVALID_INPUT] The value 'ann' of the type" in driver.retries.failed["numbered@1"].error
    assert '"id": 1' in driver.retries.failed["numbered@1"].details["row"]

    # A producer registers a wider schema: rows of both come in the shape that this version was started with.
    tree = json.loads(ORDERS)
    wider = json.dumps(tree | {"fields": [*tree["fields"], {"name": "gift", "type": "boolean", "default": False}]})
    put_rows(
        log_connection, live_registry, f"{shop}.orders", wider, [order(2, "ann", 1, 6) | {"gift": True}], ("customer",)
    )
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.doubled")) == 2)
    assert [row["cents"] for row in read_rows(log_connection, f"{shop}.doubled")] == [10, 12]
    assert "gift" not in read_rows(log_connection, f"{shop}.doubled")[1]

    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(3, "ann", 2, 5000)], ("customer",))
    run_until(driver, lambda: "doubled@1" in driver.retries.failed)
    line = (project / "jobs.py").read_text().splitlines().index(
        "    return cents * 2 if cents < 1000 else cents / 0"
    ) + 1
    failure = driver.retries.failed["doubled@1"]
    assert failure.error == f"{project / 'jobs.py'}:{line}: ZeroDivisionError: division by zero"
    assert not failure.needs_a_person  # what it calls may have been away
    assert failure.details["row"].endswith('"cents": 5000, "at": "2024-05-01 12:02:00"}')
    assert '"id": 3' in failure.details["row"]
    assert failure.details["offsets"].startswith(f"{shop}.orders ")
    assert failure.hint == "`mainstem job show doubled` shows what it read then"

    # It lags alone, and tries again: the other job goes on.
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(4, "ann", 3, 7)], ("customer",))
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.copied")) == 4)
    run_until(driver, lambda: driver.retries.failed["doubled@1"].failures > 1)
    assert len(read_rows(log_connection, f"{shop}.doubled")) == 2


@pytest.mark.spark
def test_a_job_that_cannot_run_is_told_with_the_users_line_not_that_of_the_frozen_copy(
    spark, log_connection, registry_url, shop, tmp_path, drivers
):
    jobs = """
        @stream(to="SHOP.nothing", key="customer")
        def nothing(orders):
            return orders.select("customer", "nobody")
    """
    project = write_project(tmp_path / "project", shop, jobs)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    line = (project / "jobs.py").read_text().splitlines().index('    return orders.select("customer", "nobody")') + 1
    with pytest.raises(BadDeclaration, match=rf"^{re.escape(str(project / 'jobs.py'))}:{line}: nothing: .*`nobody`"):
        driver.start()


@pytest.mark.spark
def test_a_start_that_is_refused_binds_no_job_to_code_that_has_to_be_mended(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """Those beside the wrong one had not run yet, and went on with that code for life, on a driver of their own."""
    jobs = """
        @stream(to="SHOP.taken", key="customer")
        def taken(orders):
            return orders

        @stream(to="SHOP.wrong", key="customer")
        def wrong(taken):
            return taken.select("customer", "nobody")
    """
    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    drivers.append(driver_of(spark, project, log_connection, registry_url, data))
    with pytest.raises(BadDeclaration, match=r"wrong: .*`nobody`"):
        drivers[0].start()

    write_project(project, shop, jobs.replace("nobody", "cents"))
    (both,) = assignments(project, data, SystemClock())
    assert both.jobs == (("taken", "1"), ("wrong", "1"))
    drivers.append(driver_of(spark, project, log_connection, registry_url, data))
    drivers[1].start()
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0)], ("customer",))
    run_until(drivers[1], lambda: len(rows_so_far(log_connection, f"{shop}.wrong")) == 1)


@pytest.mark.spark
def test_a_job_that_turns_out_wrong_later_lags_alone(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """It ended the driver, and with it all other jobs and the tables, at every start again."""
    jobs = """
        @stream(to="SHOP.kept", key="customer")
        def kept(orders):
            return orders

        @stream(to="SHOP.later", key="customer")
        def later(orders, customers):
            return orders.crossJoin(customers.select("nobody"))

        @stream(to="SHOP.tuned", key="customer")
        def tuned(orders):
            return orders
    """
    settings = '[jobs.tuned]\nspark = { "spark.sql.shuffle.partitions" = "many" }\n'
    project = write_project(tmp_path / "project", shop, jobs, settings)
    now = load_job_configs(project)
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data", settings=now)
    drivers.append(driver)
    driver.start()
    assert "does not exist yet" in driver.waiting["later@1"]
    failed = driver.retries.failed
    assert failed["tuned@1"].error.startswith("[jobs.tuned] spark: spark.sql.shuffle.partitions: ")

    ensure_topic(log_connection, f"{shop}.customers", 1, topic_settings("changelog", {}))
    put_changes(log_connection, live_registry, f"{shop}.customers", CUSTOMERS, "name",
                [("r", {"name": "ann", "region": "north"})])  # fmt: skip
    wrong = ("later@1", "tuned@1")
    run_until(driver, lambda: "later@1" in failed, refused=wrong)
    assert re.match(rf"{re.escape(str(project / 'jobs.py'))}:\d+: later: .*nobody", failed["later@1"].error)
    assert failed["later@1"].needs_a_person
    put_rows(log_connection, live_registry, f"{shop}.orders", ORDERS, [order(1, "ann", 0)], ("customer",))
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.kept")) == 1, refused=wrong)


@pytest.mark.spark
def test_an_output_that_is_made_anew_while_its_job_runs_is_not_gone_on_with(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    """It was written to as if what it had were still there."""
    jobs = """
        @stream(to="SHOP.passing", key="customer")
        def passing(orders):
            return orders
    """
    project, topic = write_project(tmp_path / "project", shop, jobs), f"{shop}.orders"
    driver = driver_of(spark, project, log_connection, registry_url, tmp_path / "data")
    drivers.append(driver)
    driver.start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(1, "ann", 0)], ("customer",))
    run_until(driver, lambda: len(rows_so_far(log_connection, f"{shop}.passing")) == 1)
    delete(log_connection, [f"{shop}.passing"])
    ensure_topic(log_connection, f"{shop}.passing", 2)
    put_rows(log_connection, live_registry, topic, ORDERS, [order(2, "ann", 1)], ("customer",))
    run_until(driver, lambda: "passing@1" in driver.retries.failed, refused=("passing@1",))
    assert f"topic {shop}.passing was deleted with what job passing has" in driver.retries.failed["passing@1"].error
    assert rows_so_far(log_connection, f"{shop}.passing") == []
    # What its hint says, done: the same code, from the beginning, into a topic of its own.
    assert driver.retries.failed["passing@1"].hint == start_another("passing")
    asked = reprocess(log_connection, project, tmp_path / "data", "passing", anyway=True)
    driver.take_on([("passing", asked.version)])
    run_until(driver, lambda: len(rows_so_far(log_connection, asked.output)) == 2, refused=("passing@1",))


@pytest.mark.spark
@pytest.mark.parametrize("changed", ["orders", "customers"])
def test_rows_that_fit_no_more_into_a_versions_shape_stop_it_and_are_read_by_the_next(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers, changed
):
    """They were left out for ever, and counted: a column that nobody asked for was dropped, and no new row came out."""
    job = f"slim_{changed}"
    jobs = f"""
        @stream(to="SHOP.slim", key="customer")
        def {job}(orders, customers):
            return orders.join(customers.select(F.col("name").alias("customer")), "customer").select("id", "customer")
    """
    narrow = {"orders": ORDERS, "customers": CUSTOMERS}

    def put(number):
        person = ("r", {"name": f"ann{number}", "region": "north"})
        put_changes(log_connection, live_registry, f"{shop}.customers", narrow["customers"], "name", [person])
        row = order(number, f"ann{number}", 0)
        put_rows(log_connection, live_registry, f"{shop}.orders", narrow["orders"], [row], ("customer",))

    project, data = write_project(tmp_path / "project", shop, jobs), tmp_path / "data"
    ensure_topic(log_connection, f"{shop}.customers", 1, topic_settings("changelog", {}))
    old = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(old)
    old.start()
    put(1)
    run_until(old, lambda: len(rows_so_far(log_connection, f"{shop}.slim")) == 1)

    wide, column = narrow[changed], {"orders": "cents", "customers": "region"}[changed]
    narrow[changed] = re.sub(rf', {{"name": "{column}", "type": [^{{}}]*}}', "", wide)
    assert column not in narrow[changed] != wide
    put(2)
    run_until(old, lambda: f"{job}@1" in old.retries.failed, refused=(f"{job}@1",))
    failure = old.retries.failed[f"{job}@1"]
    assert re.fullmatch(
        rf"topic {shop}\.{changed}: schema \d+ does not fit into the shape in which this version has read since its "
        rf"start: READER_FIELD_MISSING_DEFAULT_VALUE at \S+: the field '{column}' has no default .*",
        failure.error,
    )
    assert failure.needs_a_person
    assert start_another(job) in failure.hint
    assert len(rows_so_far(log_connection, f"{shop}.slim")) == 1

    write_project(project, shop, jobs, f'[jobs.{job}]\nversion = "2"\n')
    new = driver_of(spark, project, log_connection, registry_url, data, jobs=[(job, "2")])
    drivers.append(new)
    new.start()
    run_until(new, lambda: len(rows_so_far(log_connection, f"{shop}.slim.v2")) == 2)


@pytest.mark.spark
def test_an_edited_version_runs_beside_the_first(
    spark, log_connection, registry_url, live_registry, shop, tmp_path, drivers
):
    jobs = """
        @stream(to="SHOP.euros", key="customer")
        def euros(orders):
            return orders.select("id", "customer", (F.col("cents") / 100).alias("euros"))
    """
    project = write_project(tmp_path / "project", shop, jobs)
    data, topic = tmp_path / "data", f"{shop}.orders"
    old = driver_of(spark, project, log_connection, registry_url, data)
    drivers.append(old)
    old.start()
    put_rows(log_connection, live_registry, topic, ORDERS, [order(1, "ann", 0, 250)], ("customer",))
    run_until(old, lambda: len(rows_so_far(log_connection, f"{shop}.euros")) == 1)

    write_project(project, shop, jobs.replace("/ 100", "/ 100 + 1000"), '[jobs.euros]\nversion = "2"\n')
    current, frozen = assignments(project, data, SystemClock())
    assert (current.jobs, frozen.jobs) == ((("euros", "2"),), (("euros", "1"),))
    new = driver_of(spark, project, log_connection, registry_url, data, jobs=current.jobs)
    drivers.append(new)
    new.start()
    run_until(new, lambda: len(rows_so_far(log_connection, f"{shop}.euros.v2")) == 1)
    put_rows(log_connection, live_registry, topic, ORDERS, [order(2, "ann", 1, 350)], ("customer",))
    run_until(new, lambda: len(rows_so_far(log_connection, f"{shop}.euros.v2")) == 2)
    run_until(old, lambda: len(rows_so_far(log_connection, f"{shop}.euros")) == 2)
    assert [row["euros"] for row in read_rows(log_connection, f"{shop}.euros")] == [2.5, 3.5]
    assert [row["euros"] for row in read_rows(log_connection, f"{shop}.euros.v2")] == [1002.5, 1003.5]
    assert read_catalog(log_connection)["job:euros"]["current"] == "1"

    retire(
        log_connection, data, "euros", "1", project, force=True
    )  # while it runs: its driver stops it and does not fail
    put_rows(log_connection, live_registry, topic, ORDERS, [order(3, "ann", 2, 450)], ("customer",))
    run_until(new, lambda: len(rows_so_far(log_connection, f"{shop}.euros.v2")) == 3)
    run_until(old, lambda: not old.running)
    assert len(read_rows(log_connection, f"{shop}.euros")) == 2
    entry = read_catalog(log_connection)["job:euros"]
    assert (list(entry["versions"]), entry["current"]) == (["2"], "2")
    assert [each.jobs for each in assignments(project, data, SystemClock())] == [(("euros", "2"),)]
    again = driver_of(spark, project, log_connection, registry_url, data, jobs=[("euros", "1")])
    drivers.append(again)
    again.start()  # it was told to run it before
    assert (again.running, again.waiting) == ({}, {})


def test_what_is_fixed_for_the_life_of_a_version_is_not_changed_by_settings_for_another(tmp_path):
    """Who gave a job a new version with other partitions, as the refusal says, stopped the version that ran."""
    write_fixed(tmp_path / "jobs" / "hourly@1", Fixed("hourly", "1", "abc", {}, "hourly", 7, 4))
    settings = JobConfig(version="2", state_partitions=8, every="5 seconds")
    assert _config(settings, "1", tmp_path, "hourly") == JobConfig(version="1", state_partitions=4, every="5 seconds")
    assert _config(settings, "2", tmp_path, "hourly") == settings


def test_what_is_fixed_for_the_life_of_a_version_holds_where_no_settings_name_its_job(tmp_path, shop):
    """A job that is taken out of the code goes on, and its settings must be taken out with it: it was refused then."""
    write_fixed(tmp_path / "jobs" / "visits@1", Fixed("visits", "1", "abc", {}, "visits", 7, 8))
    frozen = load_project(write_project(tmp_path / "frozen", shop, sessions_job("visits")))
    assert _configs(frozen, {}, [("visits", "1")], tmp_path) == {
        "visits@1": ("visits", JobConfig(version="1", state_partitions=8))
    }


def test_the_first_version_writes_to_the_topic_itself():
    assert (output_topic("a.b", "1"), output_topic("a.b", "2")) == ("a.b", "a.b.v2")


def test_a_wrong_schema_is_named_with_its_file_in_the_project_and_its_topic(
    log_connection, registry_url, shop, tmp_path, drivers
):
    project = write_project(tmp_path / "project", shop, "")
    (project / "orders.avsc").write_text(ORDERS.replace('"long"', '"lnog"'))
    drivers.append(driver_of(None, project, log_connection, registry_url, tmp_path / "data"))
    wrong = rf"^{project}/orders\.avsc: schema of topic {shop}\.orders: /fields/0/type: unknown type 'lnog'"
    with pytest.raises(BadSetting, match=wrong):
        drivers[0].start()
