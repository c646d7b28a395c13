import json

import deltalake
import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.basis import parse
from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.connection import Connection
from mainstem.core import UserError
from mainstem.process.cutover import NotReached
from tests.standalone.project import write_project
from tests.support.node import Node, wait_for
from tests.support.versions import write_read, write_versions


@pytest.fixture
def log(cli_log):
    for job in ("sums", "tops"):
        write_versions(Connection(cli_log), job)
        write_read(Connection(cli_log), job, "1", 5)
        write_read(Connection(cli_log), job, "2", 5)
    return cli_log


def run(log, tmp_path, *words, **named):
    return CliRunner().invoke(group, ["job", *words, "--data", str(tmp_path), "--bootstrap", log], **named)


def test_readers_are_moved_and_back(log, tmp_path):
    shown = run(log, tmp_path, "versions", "sums").stdout.splitlines()
    assert [line.split()[:3] for line in shown[1:]] == [["1", "current", "yes"], ["2", "yes", "0"]]
    command = ["cutover", "sums", "2", "--with", "tops", "2"]
    refused = run(log, tmp_path, *command, input="n\n")
    assert refused.stderr.startswith("move readers of sums to version 2, tops to version 2? [y/N]")
    assert current_versions(read_catalog(Connection(log))) == {"sums": "1", "tops": "1"}
    done = run(log, tmp_path, *command, "--yes").stdout.splitlines()
    assert done[0] == "job sums: version 2 is current, which writes topic sums.v2; version 1 goes on"
    assert parse(done[2].removeprefix("basis: ")).positions["__mainstem.catalog"]
    document = json.loads(run(log, tmp_path, "versions", "sums", "--json").stdout)
    assert [(v["current"], v["previous"], v["ready"]) for v in document] == [(False, True, True), (True, False, True)]
    listed = json.loads(run(log, tmp_path, "list", "--json").stdout)
    assert [(v["job"], v["version"]) for v in listed if v["current"]] == [("sums", "2"), ("tops", "2")]
    back = json.loads(run(log, tmp_path, "revert", "sums", "--with", "tops", "--json").stdout)
    assert back["moved"][1] == {
        "job": "tops", "version": "1", "previous": "2", "output": "tops", "at": {"orders": {"0": 5}, "tops": {"0": 0}},
    }  # fmt: skip
    assert current_versions(read_catalog(Connection(log))) == {"sums": "1", "tops": "1"}


def test_what_is_not_ready_changes_nothing(log, tmp_path):
    write_read(Connection(log), "sums", "1", 6)
    result = run(log, tmp_path, "cutover", "sums", "2", "--yes", "--timeout", "0")
    assert isinstance(result.exception, NotReached)
    assert current_versions(read_catalog(Connection(log)))["sums"] == "1"
    result = run(log, tmp_path, "cutover", "sums", "2", "--with", "sums", "3", "--yes")
    assert isinstance(result.exception, UserError)


JOBS = """
from mainstem.process import stream, topic
from pyspark.sql import functions as F

orders = topic("orders")

@stream(to="doubled", key="number")
def doubled(orders):
    return orders.select("number", (F.col("amount") * 2).alias("amount"), "_position")
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_readers_of_views_follow_from_one_version_to_another_and_back(tmp_path):
    project, data = write_project(tmp_path / "project"), tmp_path / "data"
    settings = (project / "mainstem.toml").read_text() + '[sinks.lake]\ntype = "delta"\n'
    (project / "mainstem.toml").write_text(settings)
    (project / "jobs.py").write_text(JOBS)
    command = ["--project", str(project), "--data", str(data)]

    def job(*words):
        result = CliRunner().invoke(group, ["job", *words, *command, "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.stdout)

    def rows(path=data / "views" / "doubled"):
        table = deltalake.DeltaTable(str(path)).to_pyarrow_table()
        return dict(zip(table["number"].to_pylist(), table["amount"].to_pylist(), strict=True))

    def post(node, *numbers):
        events = [{"number": number, "amount": float(number)} for number in numbers]
        assert node.post("orders/events", events)["accepted"] == len(events)

    with Node(project, data) as node:
        post(node, 1, 2)
        wait_for(lambda: (data / "views" / "doubled").exists() and rows() == {1: 2.0, 2: 4.0}, 120)
        node.stop()

    (project / "jobs.py").write_text(JOBS.replace("* 2", "* 2 + 100"))
    (project / "mainstem.toml").write_text(settings + '[jobs.doubled]\nversion = "2"\n')
    with Node(project, data) as node:
        post(node, 3)
        wait_for(lambda: rows() == {1: 2.0, 2: 4.0, 3: 6.0}, 120)
        wait_for(lambda: len(job("versions", "doubled")) == 2, 120)
        done = job("cutover", "doubled", "2", "--yes")
        assert [(view["path"], view["moved"]) for view in done["views"]] == [(str(data / "views" / "doubled"), True)]
        assert rows() == {1: 102.0, 2: 104.0, 3: 106.0}
        (project / "mainstem.toml").write_text(settings)  # it asks for no version in particular
        node.stop()

    with Node(project, data) as node:
        wait_for(lambda: node.runs("spark"), 120)
        assert rows() == {1: 102.0, 2: 104.0, 3: 106.0}
        post(node, 4)
        wait_for(lambda: 4 in rows(), 120)
        assert [(each["version"], each["current"]) for each in job("versions", "doubled")] == [
            ("1", False),
            ("2", True),
        ]
        assert all(view["moved"] for view in job("revert", "doubled")["views"])
        assert rows() == {1: 2.0, 2: 4.0, 3: 6.0, 4: 8.0}
        node.stop()
