import json

import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.basis import parse
from mainstem.client.catalog import current_versions, read_catalog
from mainstem.client.connection import Connection
from mainstem.core import UserError
from mainstem.process.cutover import NotReached
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
