"""A node whose checkpoints were rolled back or cut, and whose group offsets were reset: every row once, or a refusal
that names the repair, and every row once when that was done.
"""

import shutil

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from mainstem.client.connection import Connection
from mainstem.client.topics import admin
from tests.standalone.project import write_project
from tests.support.node import Node, wait_for

JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

orders = topic("orders")

@stream(to="doubled", key="number")
def doubled(orders):
    return orders.select("number", (F.col("amount") * 2).alias("amount"), "_position")

@stream(to="seen", key="number", watermark=("at", "1 hour"))
def seen(orders):
    return orders.dropDuplicates(["number", "at"]).select("number", "amount")
"""
ORDERS = """{"type": "record", "name": "Order", "fields": [
  {"name": "number", "type": "long"}, {"name": "amount", "type": "double"},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}"""


class Orders:
    """Orders that were posted, each once, and what the jobs made of them."""

    def __init__(self):
        self.posted = 0

    def post(self, node):
        numbers = range(self.posted, self.posted + 60)
        events = [{"number": n, "amount": n / 2, "at": f"2013-01-01T00:{n // 60:02}:{n % 60:02}Z"} for n in numbers]
        assert {each["status"] for each in node.post("orders/events", events)["results"]} == {"accepted"}
        self.posted += len(events)

    def are_in(self, node, topic):
        found = sorted(value["number"] for value in node.values_of(topic))
        assert len(found) == len(set(found)), f"{topic}: some rows twice"
        return found == list(range(self.posted))


def reset_groups(node, topic):
    """What `kafka-consumer-groups --reset-offsets --to-earliest` does, for every group that has read the topic."""
    client = admin(Connection(node.state["bootstrap"]))
    groups = [group.group_id for group in client.list_consumer_groups().result().valid]
    places = [TopicPartition(topic, partition, 0) for partition in range(2)]
    for group in groups:
        if group.startswith(("mainstem.doubled", "mainstem.seen")):
            asked = [ConsumerGroupTopicPartitions(group, places)]
            assert client.alter_consumer_group_offsets(asked)[group].result().topic_partitions
    return groups


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_row_comes_once_or_the_repair_is_named(tmp_path):
    project, data, orders = write_project(tmp_path / "project"), tmp_path / "data", Orders()
    (project / "jobs.py").write_text(JOBS)
    (project / "orders.avsc").write_text(ORDERS)
    checkpoint = data / "jobs" / "doubled@1" / "checkpoint"

    def follow(node):
        wait_for(lambda: orders.are_in(node, "doubled") and orders.are_in(node, "seen"), 120)

    with Node(project, data) as node:
        orders.post(node)
        follow(node)
        # The rows are in the log before Spark writes down that the batch is done.
        wait_for(lambda: batches(checkpoint / "offsets") == batches(checkpoint / "commits") != set())
        old = shutil.copytree(checkpoint, tmp_path / "old")

        for _ in range(2):  # two batches: the log makes good what is missing of the last one
            orders.post(node)
            follow(node)
        assert [group for group in reset_groups(node, "orders") if "doubled" in group]
        node.stop()  # the next start finds the groups at the beginning
    good = shutil.copytree(checkpoint, tmp_path / "good")

    replace(checkpoint, old)
    with Node(project, data) as node:
        rolled_back = "the checkpoint was rolled back (bring back the checkpoint as it was at batch"
        wait_for(lambda: rolled_back in refusal(node), 120)

        replace(checkpoint, good)  # the job is tried again in some seconds
        last = last_file(checkpoint / "commits")
        last.write_bytes(b"")  # mended by itself: the log has the batch
        plan = checkpoint / "offsets" / last.name
        whole = plan.read_bytes()
        plan.write_bytes(whole[:20])
        orders.post(node)
        wait_for(lambda: f"{plan}: " in refusal(node) and "bring back an unchanged copy" in refusal(node), 120)
        wait_for(lambda: orders.are_in(node, "seen"), 120)  # the other lags alone
        assert not orders.are_in(node, "doubled")

        plan.write_bytes(whole)
        wait_for(lambda: any("job doubled@1 works again" in line for line in node.lines), 180)
        follow(node)
        node.stop()


def batches(directory):
    """Ids of the batches that have a file there."""
    return {int(file.name) for file in directory.glob("[0-9]*")}


def last_file(directory):
    """The one of the last batch."""
    return directory / str(max(batches(directory)))


def refusal(node):
    """What `up` says of the job that does not run."""
    return "".join(line for line in node.lines if "job doubled@1 failed: " in line)


def replace(directory, copy):
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
