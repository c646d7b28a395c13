"""`mainstem job run` beside a project that is up."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from tests.support.node import Node, wait_for

JOBS = """
from mainstem.process import stream, topic

orders = topic("orders")


@stream(to="big")
def big(orders):
    return orders.where("cents >= 100")


@stream(to="small")
def small(orders):
    return orders.where("cents < 100")
"""
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "cents", "type": "long"}],
}


def cli(*arguments):
    command = [sys.executable, "-m", "mainstem", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def now():
    time.sleep(0.005)
    return datetime.now(UTC).isoformat()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_slices_are_run_beside_the_jobs_that_run_by_themselves(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "jobs.py").write_text(JOBS)
    (project / "order.avsc").write_text(json.dumps(ORDER))
    settings = '[topics.orders]\nschema = "order.avsc"\n[jobs.small]\nevery = "on demand"\n'
    (project / "mainstem.toml").write_text(settings)
    with Node(project, tmp_path / "data") as node:
        where = ("--project", project, "--data", tmp_path / "data")
        begin = now()
        node.post("orders/events", [{"id": 1, "cents": 5}, {"id": 2, "cents": 500}])
        middle = now()
        node.post("orders/events", [{"id": 3, "cents": 7}])
        end = now()
        wait_for(lambda: [row["id"] for row in node.values_of("big")] == [2], 120)

        done = cli("job", "run", "small", "--from", begin, "--to", middle, "--json", *where)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["written"] == {"small": 1}
        again = cli("job", "run", "small", "--from", begin, "--to", middle, *where)
        assert (again.returncode, again.stdout.endswith("is there already\n")) == (0, True), again.stderr
        refused = cli("job", "run", "small", "--from", begin, "--to", end, *where)
        assert refused.returncode != 0
        assert "overlaps" in refused.stderr
        assert [row["id"] for row in node.values_of("small")] == [1]

        beside = cli(
            "job", "run", "big", "--from", begin, "--to", end, "--master", "local[2]", *where
        )  # it runs by itself as well
        assert beside.returncode == 0, beside.stderr
        assert [row["id"] for row in node.values_of("big.vslices")] == [2]

        (project / "jobs.py").write_text(JOBS.replace("< 100", "< 50"))
        edited = cli("job", "run", "small", "--from", middle, "--to", end, *where)
        assert "runs from its frozen code" in edited.stderr
        assert sorted(row["id"] for row in node.values_of("small")) == [1, 3]
        listed = json.loads(cli("job", "list", "--json", *where).stdout)
        assert {(each["job"], each["version"], each["state"]) for each in listed} >= {("small", "1", "on demand")}
        assert cli("audit", *where).returncode == 0
        node.stop()
