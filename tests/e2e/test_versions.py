"""A second version of a job with windows is built beside the first one while events arrive, compared, and cut over to;
then the code is edited again and all is killed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import groupby

import msgspec
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

[splices.by_hour]
job = "hourly"

[splices.all_orders]
job = "copies"

[jobs.copies]
every = "1 second"
max_offsets_per_trigger = 2000

[jobs.hourly]
every = "1 second"
max_offsets_per_trigger = 2000
"""
ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [
    {"name": "number", "type": "long"}, {"name": "region", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "cancelled", "type": "boolean"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]})  # fmt: skip
JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

orders = topic("orders")

@table(to="hourly", key=["region", "hour"], watermark=("at", "12 hours"))
def hourly(orders):
    kept = orders.filter("{which}")
    sums = kept.groupBy("region", F.window("at", "1 hour")).agg(F.count("*").alias("n"), F.avg("amount").alias("mean"))
    return sums.select("region", F.col("window.start").alias("hour"), "n", "mean")

@stream(to="copies", key="number")
def copies(orders):
    return orders.select("number", F.lit("{which}").alias("of"), "_position")
"""
FIRST = JOBS.format(which="true")
ADDED = """
@stream(to="added", key="number")
def added(orders):
    return orders.select("number")
"""
THIRD = JOBS.format(which="amount > 3") + ADDED
SECOND = JOBS.format(which="not cancelled") + ADDED
START = datetime(2026, 1, 1, tzinfo=UTC)
REGIONS = ("north", "south", "west")


class Orders:
    """Posts orders in the order of their event time, and knows what must come of them."""

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

    def keep_posting(self, over):
        while not over.wait(0.3):
            self.post(7)

    def hourly(self, *, cancelled, upto=None):
        """What is in the table after all orders, or when the windows are closed that orders up to a position close."""
        rows = [msgspec.structs.asdict(Order(**row)) for row in self.rows] if upto is None else self.up_to(upto)
        closed = (
            datetime.max.replace(tzinfo=UTC) if upto is None else max(row["at"] for row in rows) - timedelta(hours=12)
        )
        sums = defaultdict(list)
        for row in rows:
            hour = row["at"].replace(minute=0)
            if (cancelled or not row["cancelled"]) and hour + timedelta(hours=1) <= closed:
                sums[row["region"], hour.isoformat()[:13]].append(row["amount"])
        return {key: (len(each), sum(each) / len(each)) for key, each in sums.items()}

    def up_to(self, position):
        with TypedReader(Connection(self.node.state["bootstrap"]), "orders") as reader:
            return [each.value for each in reader if each.offset < position.get(str(each.partition), 0)]


class Order(msgspec.Struct):
    number: int
    region: str
    amount: float
    cancelled: bool
    at: datetime

    def __post_init__(self):
        self.at = datetime.fromisoformat(self.at)


def table(node, topic):
    """The last row of each key."""
    with TypedReader(Connection(node.state["bootstrap"]), topic) as reader:
        rows = {record.key: record.value for record in reader}
    return {
        (row["region"], row["hour"].isoformat()[:13]): (row["n"], row["mean"])
        for row in rows.values()
        if row is not None
    }


def copies_in_order(node):
    """Of one partition of the spliced stream, as a plain consumer reads it."""
    with TypedReader(Connection(node.state["bootstrap"]), "all_orders") as reader:
        return [record.value for record in reader if record.partition == 0]


def until_table(node, topic, wanted):
    """Until a table is what it has to be; else in which rows it is not."""
    deadline = time.monotonic() + 300
    while (found := table(node, topic)) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    differ = {key: (found.get(key), wanted.get(key)) for key in found.keys() | wanted.keys()}
    assert {key: pair for key, pair in differ.items() if pair[0] != pair[1]} == {}, topic


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


def check_diff(found, orders):
    """Both were compared when they had read the same, and what differs is what has to."""
    assert (found["exact"], found["why"]) == (True, "")
    one, two = (orders.hourly(cancelled=each, upto=found["at"]["orders"]) for each in (True, False))
    both = one.keys() & two.keys()
    assert found["equal"] == sum(one[key] == two[key] for key in both)
    assert found["changed"] == len(both) - found["equal"] > 0
    assert (found["added"], found["removed"]) == (len(two.keys() - one.keys()), len(one.keys() - two.keys()))
    expected = {name: sum(one[key][n] != two[key][n] for key in both) for n, name in enumerate(("n", "mean"))}
    assert {each["column"]: each["rows"] for each in found["columns"]} == expected
    assert len(found["examples"]) == 3
    for each in found["examples"]:
        key = each["left"]["region"], each["left"]["hour"][:13]
        assert tuple(each["left"][name] for name in ("n", "mean")) == one[key]
        assert tuple(each["right"][name] for name in ("n", "mean")) == two[key]


def request_of(data, version):
    try:
        return json.loads((data / "jobs" / f"hourly@{version}" / "landing.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def asked_to_stop(data):
    return request_of(data, "1") is not None


def asked_to_go_on(data):
    return (request_of(data, "2") or {}).get("to") is not None


def answered(data):
    return asked_to_go_on(data) and (data / "jobs" / "hourly@1" / "landed.json").exists()


def start_diff(project, data, stage):
    """A diff that has come so far; one that finds both versions idle at one position asks nobody: then another one."""
    command = [sys.executable, "-P", "-m", "mainstem", "job", "diff", "hourly", "1", "2"]
    for _ in range(20):
        found = subprocess.Popen([*command, "--project", str(project), "--data", str(data)], stdout=subprocess.DEVNULL)
        wait_for(lambda found=found: stage(data) or found.poll() is not None, 300)
        if found.poll() is None:
            return found
    raise AssertionError("no diff asked the drivers")


def kill_a_diff(project, data, stage):
    """Whoever asks is killed once it has come so far; the versions go on by themselves."""
    found = start_diff(project, data, stage)
    found.kill()
    found.wait()


def kill_a_driver(project, data, node, name):
    """A driver is killed while it brings its version to the position; the diff is done or given up."""
    found, pid = start_diff(project, data, asked_to_go_on), node.child(name)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert found.wait(300) in (0, 2)
    wait_for(lambda: node.runs(name) and node.child(name)["pid"] != pid, 120)


def test_a_version_is_built_beside_another_one_while_events_arrive(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    write(project, FIRST)
    with Node(project, data) as node:
        orders, over = Orders(node), threading.Event()
        orders.post(2_000)
        wait_for(lambda: node.runs("spark"), 120)
        before = {child["name"]: child["pid"] for child in node.state["children"]}
        write(project, SECOND)
        arriving = threading.Thread(target=orders.keep_posting, args=(over,))
        arriving.start()
        try:
            asked = job(project, data, "reprocess", "hourly", "--wait")
            assert job(project, data, "reprocess", "copies", "--wait")["version"] == "2"  # the new driver takes it on
            added = job(project, data, "reprocess", "added", "--wait")  # and a job that was not there
            assert (added["version"], added["output"]) == ("1", "added")
            assert (asked["version"], asked["output"], asked["up"]) == ("2", "hourly.v2", True)
            after = {child["name"]: child["pid"] for child in node.state["children"]}
            assert before.items() < after.items()  # one more driver; nothing was started again
            differences = [job(project, data, "diff", "hourly", "1", "2", "--limit", "3")]
            for stage in (asked_to_stop, asked_to_go_on, answered):
                kill_a_diff(project, data, stage)
            for name in ("spark", next(iter(after.keys() - before.keys()))):
                kill_a_driver(project, data, node, name)
            differences.append(job(project, data, "diff", "hourly", "1", "2", "--limit", "3"))
            moved = job(project, data, "cutover", "hourly", "2", "--with", "copies", "2", "--yes")["moved"]
            for command, which in (("revert copies", "true"), ("cutover copies 2 --yes", "not cancelled")):
                wait_for(lambda which=which: copies_in_order(node)[-1]["of"] != which, 120)  # the last move is seen
                job(project, data, *command.split())
                wait_for(lambda which=which: copies_in_order(node)[-1]["of"] == which, 120)
        finally:
            over.set()
            arriving.join()
        for found in differences:
            check_diff(found, orders)
        assert differences[1]["at"]["orders"] != differences[0]["at"]["orders"]
        assert (moved[0]["version"], moved[0]["output"]) == ("2", "hourly.v2")
        orders.node.post("orders/end")
        for topic, cancelled in (("hourly", True), ("hourly.v2", False)):
            until_table(node, topic, orders.hourly(cancelled=cancelled))
            assert len(node.values_of(topic)) == len(orders.hourly(cancelled=cancelled))  # each window once
        one, two = (orders.hourly(cancelled=each) for each in (True, False))
        equal = len(one.items() & two.items())  # the last hour may have had no order that was cancelled
        wait_for(lambda: job(project, data, "diff", "hourly", "1", "2")["equal"] == equal, 120)

        wait_for(lambda: table(node, "by_hour") == orders.hourly(cancelled=False), 60)
        wait_for(lambda: len(node.values_of("all_orders")) == len(orders.rows), 120)
        copies = node.values_of("all_orders")
        assert sorted(row["number"] for row in copies) == [row["number"] for row in orders.rows]  # each once
        parts = [part for part, _ in groupby(copies_in_order(node), key=lambda row: row["of"])]
        assert parts == ["true", "not cancelled", "true", "not cancelled"]

        write(project, THIRD)
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
    with Node(project, data) as node:
        back = job(project, data, "revert", "hourly")["moved"]
        assert [(each["version"], each["output"]) for each in back] == [("1", "hourly")]
        for topic, cancelled in (("hourly", True), ("hourly.v2", False)):  # as before: neither runs the edited code
            assert table(node, topic) == orders.hourly(cancelled=cancelled)
        assert [each["current"] for each in job(project, data, "versions", "hourly")] == [True, False]
        wait_for(lambda: table(node, "by_hour") == orders.hourly(cancelled=True), 60)
        node.stop()
