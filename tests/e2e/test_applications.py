"""Two jobs of a project as two Spark applications on one cluster: one's driver is killed, and the other goes on."""

import json
import os
import signal
from collections import Counter

import pytest

from tests.support.commands import mainstem, the_line
from tests.support.node import Node
from tests.support.spark_cluster import spark_cluster
from tests.support.waiting import wait_until

SETTINGS = """
[project]
name = "shop"

[topics.orders]
schema = "order.avsc"

[jobs.doubled]
application = "heavy"

[spark.settings]
"spark.cores.max" = "1"
"spark.executor.memory" = "500m"

[spark.applications.heavy]
settings = { "spark.executor.memory" = "550m" }
"""
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
JOBS = """
from mainstem.process import stream, topic

orders = topic("orders")


@stream(to="kept")
def kept(orders):
    return orders


@stream(to="doubled")
def doubled(orders):
    return orders.selectExpr("id * 2 AS id")
"""


def ids(node, topic):
    return Counter(row["id"] for row in node.values_of(topic))


def versions(node):
    done = mainstem("job", "list", "--json", "--data", node.data)
    return {(each["job"], each["version"]): each["state"] for each in json.loads(done.stdout)}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_job_has_an_application_of_its_own(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    (project / "mainstem.toml").write_text(SETTINGS)
    (project / "order.avsc").write_text(json.dumps(ORDER))
    (project / "jobs.py").write_text(JOBS)
    where = ("--project", project, "--data", data)
    with spark_cluster(tmp_path / "cluster") as cluster:
        with Node(project, data, options=("--master", cluster.master)) as node:
            assert cluster.applications() == ["shop", "shop heavy"]
            node.post("orders/events", [{"id": number} for number in range(100)])
            everything = Counter(range(100))
            wait_until(lambda: ids(node, "kept") == everything, "the first hundred are there", seconds=240)

            common, heavy = node.child("spark")["pid"], node.child("spark.heavy")["pid"]
            os.kill(heavy, signal.SIGKILL)
            node.post("orders/events", [{"id": number} for number in range(100, 200)])
            everything = Counter(range(200))
            wait_until(lambda: ids(node, "kept") == everything, "the other job goes on", seconds=120)
            assert node.child("spark.heavy")["state"] != "running"  # it takes longer to start than that batch took
            assert (node.child("spark")["pid"], node.child("spark")["restarts"]) == (common, 0)

            twice = Counter(2 * number for number in range(200))
            wait_until(lambda: ids(node, "doubled") == twice, "the killed one has gone on", seconds=240)
            assert versions(node) == {("kept", "1"): "running", ("doubled", "1"): "running"}

            cluster.end("shop heavy")
            wait_until(lambda: node.child("spark.heavy")["restarts"] == 2, "its driver notices", seconds=120)
            node.post("orders/events", [{"id": number} for number in range(200, 300)])
            everything = Counter(range(300))
            twice = Counter(2 * number for number in range(300))
            wait_until(lambda: ids(node, "kept") == everything, "the other job goes on", seconds=120)
            wait_until(lambda: ids(node, "doubled") == twice, "the one that was ended has gone on", seconds=240)
            assert node.child("spark")["restarts"] == 0

            code = json.loads((data / "jobs" / "doubled@1" / "job.json").read_text())["sha"]
            addresses = (
                "--bootstrap",
                node.state["bootstrap"],
                "--gateway",
                node.state["gateway"].removeprefix("http://"),
            )
            third = ("--data", data, "--code", code, "--application", "third", "--job", "doubled@1")
            line = the_line(mainstem("run", "spark", project, *addresses, *third))
            assert f"job doubled@1 runs already: {data}/jobs/doubled@1: in use by process" in line

            assert mainstem("job", "reprocess", "doubled", "--anyway", *where).returncode == 0
            wait_until(lambda: versions(node).get(("doubled", "2")) == "running", "the driver takes it on", seconds=240)
            wait_until(lambda: ids(node, "doubled.v2") == twice, "version 2 is as far", seconds=240)
            assert mainstem("job", "retire", "doubled", "1", "--yes", "--force", *where).returncode == 0
            wait_until(lambda: ("doubled", "1") not in versions(node), "version 1 is retired")
            node.post("orders/events", [{"id": 1000}])
            wait_until(lambda: ids(node, "doubled.v2")[2000] == 1, "version 2 goes on", seconds=120)
            wait_until(lambda: ids(node, "kept")[1000] == 1, "and so does the other job", seconds=120)
            assert ids(node, "doubled") == twice
            assert cluster.applications() == ["shop", "shop heavy"]
            assert {child["name"] for child in node.state["children"]} == {"log", "gateway", "spark", "spark.heavy"}
            node.stop()
        assert cluster.applications() == []
