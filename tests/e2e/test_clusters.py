"""A project, as it is on a laptop, on a standalone cluster of Spark: a real master and workers, whose executors are
processes that know nothing of the project's directory.
"""

import json
import os
import random
import signal
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from mainstem.registry import avro
from tests.support.commands import mainstem
from tests.support.node import Node
from tests.support.spark_cluster import spark_cluster
from tests.support.waiting import wait_until

SETTINGS = """
[topics.orders]
partitions = 3
key = "customer"
event_time = "at"
schema = "order.avsc"
"""
LAKE = """
[sinks.lake]
type = "delta"
"""
ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "cents", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}  # fmt: skip
JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

orders = topic("orders")


@F.udf(StringType())
def size(cents):
    from sizes.words import word  # a worker finds it, wherever it runs

    return word(cents)


@stream(to="sized", key="customer")
def sized(orders):
    refused = F.when(F.col("cents") < 0, F.lit("it costs less than nothing"))
    return orders.withColumn("size", size("cents")).withColumn("_rejected", refused)


@table(to="hourly", key=["customer", "hour"], watermark=("at", "10 minutes"))
def hourly(sized):
    per_hour = sized.groupBy("customer", F.window("at", "1 hour"))
    sums = per_hour.agg(F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("orders"))
    return sums.select("customer", F.col("window.start").alias("hour"), "cents", "orders")
"""
NUMBERED = """
import json
from mainstem.process import LocalIndex, changelog, indexed
from pyspark.sql import Row

counts = changelog("counts", key="customer")


class Counts(LocalIndex):
    columns, returns = "customer string, orders long", "id long, customer string, number long"

    def open(self, directory):
        self.file = directory / "counts.json"
        self.counts = json.loads(self.file.read_text()) if self.file.exists() else {}

    def apply(self, changes):
        self.counts |= {change.key["customer"]: change.row["orders"] for change in changes}
        self.file.write_text(json.dumps(self.counts))

    def process(self, row):
        number = self.counts[row.customer] = self.counts.get(row.customer, 0) + 1
        self.put(customer=row.customer, orders=number)
        yield Row(id=row.id, customer=row.customer, number=number)

    def close(self):
        pass


@stream(to="numbered", key="customer", also=[counts])
def numbered(orders):
    return indexed(counts, Counts(), by_key=orders)
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CUSTOMERS = ("ada", "bob", "eve", "kim", "lee")
ROUND = 200


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    (directory / "sizes").mkdir(parents=True)
    (directory / "mainstem.toml").write_text(SETTINGS)
    (directory / "order.avsc").write_text(json.dumps(ORDER))
    (directory / "jobs.py").write_text(JOBS)
    (directory / "sizes" / "__init__.py").write_text("")
    (directory / "sizes" / "words.py").write_text("def word(cents):\n    return 'big' if cents >= 500 else 'small'\n")
    return directory


def orders_of(number):
    """Orders of one round: ten minutes of event time, some of them refused."""
    chance = random.Random(number)
    return [
        {
            "id": number * ROUND + n,
            "customer": chance.choice(CUSTOMERS),
            "cents": chance.randint(-50, 1000),
            "at": (NOON + timedelta(minutes=number * 20, seconds=chance.uniform(0, 600))).isoformat(),
        }
        for n in range(ROUND)
    ]


def truth(orders):
    """What the jobs make of them, in plain Python."""
    kept = [each for each in orders if each["cents"] >= 0]
    sized = Counter((each["id"], "big" if each["cents"] >= 500 else "small") for each in kept)
    hours = defaultdict(lambda: [0, 0])
    for each in kept:
        hour = datetime.fromisoformat(each["at"]).replace(minute=0, second=0, microsecond=0)
        hours[each["customer"], hour][0] += each["cents"]
        hours[each["customer"], hour][1] += 1
    refused = Counter(each["id"] for each in orders if each["cents"] < 0)
    return sized, Counter((*key, *sums) for key, sums in hours.items()), refused


def found(node):
    sized = Counter((row["id"], row["size"]) for row in node.values_of("sized"))
    hourly = Counter((r["customer"], r["hour"], r["cents"], r["orders"]) for r in node.values_of("hourly"))
    return sized, hourly


def numbers(node):
    return Counter((row["id"], row["number"]) for row in node.values_of("numbered"))


def numbers_of(orders):
    """Which of its customer's orders each is."""
    seen, found = Counter(), Counter()
    for each in orders:
        seen[each["customer"]] += 1
        found[each["id"], seen[each["customer"]]] += 1
    return found


def has_read(node, orders):
    return len(node.values_of("sized")) >= truth(orders)[0].total()


def decoded(value):
    return avro.decode(bytes(value), lambda _: json.dumps(ORDER))


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("settings", "jobs", "workers", "kills"),
    [
        pytest.param("", "", 1, 1, id="a worker"),
        pytest.param(LAKE, NUMBERED, 2, 3, id="two workers, tables, a local index", marks=pytest.mark.long),
    ],
)
def test_a_project_runs_unchanged_on_a_cluster_whose_executors_are_killed(
    project, tmp_path, monkeypatch, settings, jobs, workers, kills
):
    (project / "mainstem.toml").write_text(SETTINGS + settings)
    (project / "jobs.py").write_text(JOBS + jobs)
    with spark_cluster(tmp_path / "cluster") as cluster:
        for _ in range(workers - 1):
            cluster.add_worker()
        monkeypatch.setenv("MAINSTEM_SPARK__MASTER", cluster.master)
        with Node(project, tmp_path / "data") as node:
            assert len(cluster.executors()) == workers
            orders = []
            for number in range(kills + 1):
                orders += orders_of(number)
                node.post("orders/events", orders_of(number))
                if number:
                    wait_until(cluster.executors, "there is an executor")
                    os.kill(cluster.executors()[0], signal.SIGKILL)
                wait_until(partial(has_read, node, orders), "they are read", seconds=240)
            node.post("orders/end")
            sized, hourly, refused = truth(orders)
            wait_until(lambda: sum(found(node)[1].values()) >= len(hourly), "the last hour is over", seconds=240)
            assert found(node) == (sized, hourly)
            assert Counter(decoded(row["value"])["id"] for row in node.values_of("sized.quarantine")) == refused
            if jobs:
                wait_until(lambda: len(node.values_of("numbered")) >= len(orders), "all are numbered", seconds=240)
                assert numbers(node) == numbers_of(orders)
            audit = mainstem("audit", "--project", project, "--data", tmp_path / "data")
            assert audit.returncode == 0, audit.stdout + audit.stderr
            node.stop()
        assert cluster.executors() == []
