import json

import deltalake
import httpx
import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.cli.target import NotUp
from mainstem.client.basis import parse
from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.connection import Connection
from mainstem.core import UserError
from mainstem.process.compare import ColumnDifference, Example
from mainstem.process.cutover import NotReached
from mainstem.process.diff import Compared, Diff
from mainstem.process.frozen import code_hash
from mainstem.process.reprocess import SameCode
from mainstem.process.versions import Fixed, write_fixed
from mainstem.standalone.state import UpState, save
from tests.standalone.project import write_project
from tests.support.node import Node, wait_for
from tests.support.ports import free_port
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
        "job": "tops", "version": "1", "previous": "2", "output": "tops", "also": [],
        "at": {"orders": {"0": 5}, "tops": {"0": 0}},
    }  # fmt: skip
    assert current_versions(read_catalog(Connection(log))) == {"sums": "1", "tops": "1"}


def test_nobody_is_asked_about_a_version_that_is_unknown(log, tmp_path):
    refused = run(log, tmp_path, "cutover", "sums", "9", input="y\n")
    assert "has never started on this log" in str(refused.exception)
    assert "[y/N]" not in refused.stderr


def test_what_is_not_ready_changes_nothing(log, tmp_path):
    write_read(Connection(log), "sums", "1", 6)
    result = run(log, tmp_path, "cutover", "sums", "2", "--yes", "--timeout", "0")
    assert isinstance(result.exception, NotReached)
    assert current_versions(read_catalog(Connection(log)))["sums"] == "1"
    result = run(log, tmp_path, "cutover", "sums", "2", "--with", "sums", "3", "--yes")
    assert isinstance(result.exception, UserError)


def test_a_version_is_asked_for_where_nothing_runs(log, tmp_path):
    project, data = write_project(tmp_path / "project"), tmp_path / "data"
    (project / "jobs.py").write_text(JOBS)
    data.mkdir()
    write_fixed(data / "jobs" / "doubled@1", Fixed("doubled", "1", "0123", {}, "doubled", 1, 4))
    save(data, UpState(0, str(project), log, "http://127.0.0.1:1", 0.0))  # not up any more

    def ask(*words):
        return CliRunner().invoke(group, ["job", "reprocess", "doubled", "--data", str(data), *words])

    sha = code_hash(project)
    assert ask().stdout == (
        f"job doubled: version 2 is started by the next `mainstem up` from the code {sha}, and writes topic doubled.v2\n"
    )
    assert isinstance(ask().exception, SameCode)
    assert json.loads(ask("--anyway", "--json").stdout) == {
        "job": "doubled", "version": "3", "code": sha, "output": "doubled.v3", "up": False,
    }  # fmt: skip
    assert isinstance(ask("--anyway", "--wait").exception, NotUp)


def test_what_differs_is_shown(log, tmp_path, monkeypatch):
    examples = [Example("changed", "a", {"n": 1}, {"n": 2}), Example("added", "b\x1b", None, {"n": 3})]
    left, right = Compared("1", "sums", 3, {0: 9}), Compared("2", "sums.v2", 5, {0: 8})
    columns = [ColumnDifference("n", 1), ColumnDifference("p", 1001, "right")]
    found = Diff(
        "sums", left, right, {"orders": {0: 5}}, False, "it asks for the time", 1000, 1, 0, 1, columns, examples
    )
    monkeypatch.setattr("mainstem.process.diff.diff", lambda *_, **__: found)
    assert run(log, tmp_path, "diff", "sums", "1", "2").stdout.splitlines() == [
        "job sums, version 1 to 2: 1,000 rows equal, 1 added, 0 removed, 1 changed",
        "not exact: it asks for the time",
        "column   rows  only in",
        "n           1",
        "p       1,001  right",
        'changed a: {"n": 1} -> {"n": 2}',
        'added b\\u001b: null -> {"n": 3}',
    ]
    document = json.loads(run(log, tmp_path, "diff", "sums", "1", "2", "--json").stdout)
    assert (document["at"], document["right"]["ends"], document["columns"][0]["rows"]) == (
        {"orders": {"0": 5}},
        {"0": 8},
        1,
    )


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
    address = f"127.0.0.1:{free_port()}"
    view = f'[serve.answers]\nlisten = "{address}"\nviews.all = {{ kind = "sql", topics = "doubled" }}\n'
    settings = (project / "mainstem.toml").read_text() + '[sinks.lake]\ntype = "delta"\n' + view
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

    def answered(basis):
        """By the view of the serving node, which has moved when the command returns."""
        query, headers = {"sql": "SELECT number, amount FROM doubled"}, {"Mainstem-Basis": basis}
        answer = httpx.post(f"http://{address}/views/all/query?timeout=0", json=query, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["rows"]), answer.json()["versions"]["doubled"]

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
        assert [(each["view"], each["moved"], each["why"]) for each in done["nodes"]] == [("all", True, "")]
        assert answered(done["basis"]) == (rows(), "2")
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
        done = job("revert", "doubled")
        assert all(each["moved"] for each in done["views"] + done["nodes"])
        assert rows() == {1: 2.0, 2: 4.0, 3: 6.0, 4: 8.0}
        assert answered(done["basis"]) == (rows(), "1")
        node.stop()
