"""Slices of a job: each as a whole or not at all, none twice; together what the job makes when it runs by itself."""

import re
import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from mainstem.client.cluster import CLIENT_ID
from mainstem.core import ManualClock, SystemClock, UserError
from mainstem.process.diagnosis import JobFailed
from mainstem.process.project import load_project
from mainstem.process.project_config import load_job_configs
from mainstem.process.slices import Slice, SliceOpen, SliceRefused, SliceRunner
from mainstem.process.versions import assignments, left_over, live_versions
from mainstem.registry.client import Registry
from mainstem.wire.errors import Code
from tests.support.jobs import driver_of, put_rows, read_rows, run_until
from tests.support.raw import RawClient
from tests.support.shop import ORDERS, drivers, order, shop, write_project

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
__all__ = ["drivers", "shop"]  # fixtures
DEMAND = '[jobs.{name}]\nevery = "on demand"\n'


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Sliced:
    """A job that runs on demand, over orders that are put into its topic."""

    def __init__(self, spark, connection, registry_url, shop, directory, name, jobs, settings=""):
        self.spark, self.connection, self.shop, self.name = spark, connection, shop, name
        self.registry, self.data = Registry(registry_url), directory / "data"
        self.project = write_project(directory / "project", shop, jobs, DEMAND.format(name=name) + settings)
        self.url = registry_url
        self.bind()

    def bind(self):
        given = {"jobs": [(self.name, "1")], "settings": load_job_configs(self.project)}
        self.spec = driver_of(self.spark, self.project, self.connection, self.url, self.data, **given).bind(self.name)

    def put(self, *orders) -> int:
        """A time after which the orders come; the next ones come later than all of them."""
        time.sleep(0.002)
        start = now_ms()
        put_rows(self.connection, self.registry, f"{self.shop}.orders", ORDERS, orders, ("customer",))
        time.sleep(0.002)
        return start

    def run(self, start, end, **options):
        return SliceRunner(self.spec, self.spark, self.connection, self.registry, **options).run(Slice(start, end))

    def rows(self, topic):
        return sorted(row["id"] for row in read_rows(self.connection, f"{self.shop}.{topic}"))


@contextmanager
def open_transaction(connection, topic):
    producer = Producer(connection.confluent(transactional_id=uuid.uuid4().hex))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", b"never committed")
    producer.flush(30)
    yield
    producer.abort_transaction(30)


BIG = """
    @stream(to="SHOP.big", key="customer")
    def NAME(orders):
        checked = orders.withColumn("_rejected", F.when(F.col("cents") < 0, "below 0"))
        return checked.where("cents < 0 or cents >= 100")
"""


def test_slices_are_together_what_the_job_makes_and_none_is_there_twice(
    spark, log_connection, registry_url, shop, tmp_path, drivers
):
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "sliced", BIG.replace("NAME", "sliced"))
    first = job.put(order(1, "ann", 0), order(2, "bob", 1, 5), order(3, "eve", 2))
    second = job.put(order(4, "ann", 3), order(5, "bob", 4, -1))
    third = job.put(order(6, "ann", 5))
    end = now_ms()

    done = job.run(second, third)  # in any order
    assert (done.number, done.skipped) == (0, False)
    assert (done.read, done.written) == ({f"{shop}.orders": 2}, {f"{shop}.big": 1, f"{shop}.big.quarantine": 1})
    assert job.rows("big") == [4]
    assert job.run(second, third).skipped
    for start, stop in ((first, third), (first, second + 1), (third - 1, end)):
        with pytest.raises(SliceRefused, match=f"overlaps {Slice(second, third)}"):
            job.run(start, stop)
    job.run(first, second)
    assert job.run(third, end).number == 2
    assert job.rows("big") == [1, 3, 4, 6]
    (refused,) = read_rows(log_connection, f"{shop}.big.quarantine")
    assert (refused["reason"], refused["topic"]) == ("below 0", f"{shop}.orders")

    # The same code that runs by itself makes the same of it.
    live = write_project(tmp_path / "live", shop, BIG.replace("NAME", "lively").replace("SHOP.big", "SHOP.live"))
    driver = driver_of(spark, live, log_connection, registry_url, tmp_path / "other")
    drivers.append(driver)
    driver.start()
    run_until(driver, lambda: job.rows("live") == [1, 3, 4, 6])


def test_between_two_slices_nothing_is_left_out_whenever_it_came(spark, log_connection, registry_url, shop, tmp_path):
    """What a producer sends late has an older time: it lies behind the end of a slice that has been run."""
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "seamless", BIG.replace("NAME", "seamless"))
    first = job.put(order(1, "ann", 0))
    cut = now_ms()
    job.run(first, cut)
    job.put(order(2, "ann", 1))
    clock = ManualClock(now_ms() + 1_000_000)
    done = job.run(cut, cut + 500_000, clock=clock)  # however long the one before took
    job.put(order(3, "ann", 2))  # of a time within that slice, which is there
    assert done.read == {f"{shop}.orders": 1}
    job.run(cut + 500_000, cut + 1_000_000, clock=clock)
    assert job.rows("big") == [1, 2, 3]


def test_a_slice_that_fails_is_there_as_a_whole_or_not_at_all(spark, log_connection, registry_url, shop, tmp_path):
    jobs = """
        @stream(to="SHOP.halves", key="customer")
        def halves(orders):
            return orders.withColumn("half", F.when(F.col("cents") == 0, F.raise_error("nothing to halve").cast("int")))
    """
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "halves", jobs)
    first = job.put(*(order(n, f"c{n}", 0) for n in range(20)))
    second = job.put(order(20, "ann", 0, 0))
    end = now_ms()
    with pytest.raises(JobFailed, match="nothing to halve"):
        job.run(first, end)
    assert job.rows("halves") == []
    assert job.run(first, second).number == 0  # what failed has left nothing: another one takes its place
    assert job.rows("halves") == list(range(20))


TWO_SECONDS = "transaction_timeout_seconds = 2\n"
SLEEPS = """
    import time
    from pyspark.sql.types import LongType

    @F.udf(LongType())
    def slowly(cents):
        time.sleep(0.8)
        return cents

    @stream(to="SHOP.slow", key="customer")
    def sleeps(orders):
        return orders.withColumn("cents", slowly("cents"))
"""
LARGE = """
    @stream(to="SHOP.large", key="customer")
    def large(orders):
        return orders.select("customer", F.repeat(F.lit("x"), 60_000).alias("much"))
"""


@contextmanager
def few_bytes_a_second(connection, bytes_per_second):
    """All that our writers may, while others may what they like."""

    def alter(**to):
        with RawClient(connection.bootstrap) as raw:
            entry = {
                "entity": [{"entity_type": "client-id", "entity_name": CLIENT_ID}],
                "ops": [{"key": "producer_byte_rate", **to}],
            }
            (answer,) = raw.call(49, 1, entries=[entry], validate_only=False).entries
            assert answer.error_code == Code.none

    alter(value=float(bytes_per_second), remove=False)
    try:
        yield
    finally:
        alter(value=0.0, remove=True)


def test_what_a_slice_computes_takes_none_of_its_transactions_time(spark, log_connection, registry_url, shop, tmp_path):
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "sleeps", SLEEPS, TWO_SECONDS)
    first = job.put(*(order(n, "ann", 0) for n in range(5)))
    began = time.monotonic()
    assert job.run(first, now_ms()).written == {f"{shop}.slow": 5}
    assert time.monotonic() - began > 5 * 0.8


def test_a_slice_that_takes_too_long_to_be_written_says_which_setting_to_raise(
    spark, log_connection, registry_url, shop, tmp_path
):
    """Its tasks know of their rows only that they were refused, as those of an older driver are."""
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "large", LARGE, TWO_SECONDS)
    first = job.put(*(order(n, "ann", 0) for n in range(60)))
    end = now_ms()
    with few_bytes_a_second(log_connection, 150_000), pytest.raises(JobFailed) as failed:
        job.run(first, end)
    wanted = f"slice {Slice(first, end)}: expected its rows to be written within 2 s, found "
    assert re.fullmatch(rf"\S+jobs.py:\d+: {re.escape(wanted)}[\d.]+ s: nothing of it is there", str(failed.value))
    assert failed.value.hint == (
        "raise transaction_timeout_seconds under [jobs.large], to 900 at most, or take shorter slices"
    )
    assert read_rows(log_connection, f"{shop}.large") == []


def test_a_slice_ends_in_the_past_and_waits_for_open_transactions(spark, log_connection, registry_url, shop, tmp_path):
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "closed", BIG.replace("NAME", "closed"))
    first = job.put(order(1, "ann", 0))
    with pytest.raises(SliceOpen, match="is not over"):
        job.run(first, now_ms() + 60_000)
    with open_transaction(log_connection, f"{shop}.orders"):
        time.sleep(0.01)
        with pytest.raises(SliceOpen, match="a transaction within the slice is open"):
            job.run(first, now_ms(), wait_seconds=0.3)
    assert job.run(first, now_ms()).written == {f"{shop}.big": 1}


def test_a_version_is_sliced_or_runs_by_itself(spark, log_connection, registry_url, shop, tmp_path, drivers):
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "either", BIG.replace("NAME", "either"))
    (fixed,) = live_versions(job.data)
    assert fixed.sliced
    assert [each.jobs for each in assignments(job.project, job.data, SystemClock())] == []
    assert left_over(load_project(job.project), job.data) == []
    live = write_project(tmp_path / "live", shop, BIG.replace("NAME", "itself").replace("SHOP.big", "SHOP.live"))
    driver = driver_of(spark, live, log_connection, registry_url, tmp_path / "other")
    drivers.append(driver)
    driver.start()
    with pytest.raises(UserError, match="job itself@1 runs by itself"):
        driver_of(spark, live, log_connection, registry_url, tmp_path / "other").bind("itself")


def test_a_slice_says_its_times_in_utc():
    noon = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp() * 1000)
    assert str(Slice(noon, noon + 1500)) == "2026-11-27T12:00:00Z to 2026-11-27T12:00:01.500000Z"
    assert Slice(1, 3).overlaps(Slice(2, 9))
    assert not Slice(1, 3).overlaps(Slice(3, 9))


FIRSTS = """
    from pyspark.sql import Row
    from mainstem.process import LocalIndex, indexed

    known = changelog("SHOP.known", key="customer")

    class Known(LocalIndex):
        columns, returns = "customer string", "id long"

        def open(self, directory):
            self.file = directory / "known"
            self.known = set(self.file.read_text().split()) if self.file.exists() else set()

        def apply(self, changes):
            self.known |= {change.key["customer"] for change in changes}
            self.file.write_text(" ".join(self.known))

        def process(self, row):
            if row.customer not in self.known:
                self.put(customer=row.customer)
                yield Row(id=row.id)

    @stream(to="SHOP.firsts", also=[known])
    def firsts(orders):
        return indexed(known, Known(), by_key=orders)
"""


def test_a_slice_finds_in_a_local_index_what_those_before_it_have_put_there(
    spark, log_connection, registry_url, shop, tmp_path
):
    job = Sliced(spark, log_connection, registry_url, shop, tmp_path, "firsts", FIRSTS)
    first = job.put(order(1, "ann", 0), order(2, "bob", 1))
    second = job.put(order(3, "ann", 2), order(4, "eve", 3))
    end = now_ms()
    job.run(first, second)
    done = job.run(second, end)
    assert done.written == {f"{shop}.firsts": 1, f"{shop}.known": 1}
    assert job.rows("firsts") == [1, 2, 4]
