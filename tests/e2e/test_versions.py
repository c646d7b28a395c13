"""A second version of a job with windows is built beside the first one while events arrive, compared, and cut over to;
then the code is edited again and all is killed.
"""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.connection import Connection
from mainstem.registry.reader import TypedReader
from tests.support.node import Node, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SETTINGS = """
[project]
name = "shop"

[topics.orders]
partitions = 2
key = "number"
event_time = "at"
schema = "orders.avsc"

[jobs.hourly]
every = "200 milliseconds"
max_offsets_per_trigger = 300
"""
ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "number", "type": "long"}, {"name": "region", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "cancelled", "type": "boolean"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]})  # fmt: skip
JOBS = """
from mainstem.process import table, topic
from pyspark.sql import functions as F

orders = topic("orders")

@table(to="hourly", key=["region", "hour"], watermark=("at", "1 hour"))
def hourly(orders):
    kept = orders.filter("{which}")
    sums = kept.groupBy("region", F.window("at", "1 hour")).agg(F.count("*").alias("n"), F.avg("amount").alias("mean"))
    return sums.select("region", F.col("window.start").alias("hour"), "n", "mean")
"""
FIRST = JOBS.format(which="true")
SECOND = JOBS.format(which="not cancelled")
START = datetime(2026, 1, 1, tzinfo=UTC)
REGIONS = ("north", "south", "west")


class Orders:
    """Posts orders in the order of their event time, a few at a time, and knows what must come of them."""

    def __init__(self, node):
        self.node, self.rows = node, []

    def post(self, count):
        events = []
        for number in range(len(self.rows), len(self.rows) + count):
            at = START + timedelta(minutes=number)
            events.append({"number": number, "region": REGIONS[number % 3], "amount": float(number % 17),
                           "cancelled": number % 5 == 0, "at": at.isoformat()})  # fmt: skip
        assert self.node.post("orders/events", events)["accepted"] == count
        self.rows += events

    def hourly(self, *, cancelled):
        sums = defaultdict(list)
        for row in self.rows:
            if cancelled or not row["cancelled"]:
                sums[row["region"], row["at"][:13]].append(row["amount"])
        return {key: (len(each), sum(each) / len(each)) for key, each in sums.items()}


def table(node, topic):
    """The last row of each key."""
    with TypedReader(Connection(node.state["bootstrap"]), topic) as reader:
        rows = {record.key: record.value for record in reader}
    return {
        (row["region"], row["hour"].isoformat()[:13]): (row["n"], row["mean"])
        for row in rows.values()
        if row is not None
    }


def job(project, data, *words):
    command = ["job", *words, "--project", str(project), "--data", str(data), "--json"]
    result = CliRunner().invoke(group, command)
    assert result.exit_code == 0, (result.exception, result.stderr)
    return json.loads(result.stdout)


def write(project, code):
    project.mkdir(exist_ok=True)
    (project / "mainstem.toml").write_text(SETTINGS)
    (project / "orders.avsc").write_text(ORDERS)
    (project / "jobs.py").write_text(code)


def test_a_version_is_built_beside_another_one_while_events_arrive(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    write(project, FIRST)
    with Node(project, data) as node:
        orders = Orders(node)
        orders.post(2_000)
        wait_for(lambda: node.runs("spark"), 120)
        before = {child["name"]: child["pid"] for child in node.state["children"]}
        write(project, SECOND)
        asked = job(project, data, "reprocess", "hourly", "--wait")
        assert (asked["version"], asked["output"], asked["up"]) == ("2", "hourly.v2", True)
        after = {child["name"]: child["pid"] for child in node.state["children"]}
        assert before.items() < after.items()  # one more driver; nothing was started again
        orders.post(500)
        orders.node.post("orders/end")
        for topic, cancelled in (("hourly", True), ("hourly.v2", False)):
            wait_for(lambda t=topic, c=cancelled: table(node, t) == orders.hourly(cancelled=c), 120)
        node.stop()
