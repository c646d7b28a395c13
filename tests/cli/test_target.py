import re
import shlex
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.cli.target import DEFAULT_BOOTSTRAP, NotUp, Target, data_directory, probe
from mainstem.client.connection import Connection
from mainstem.core.locks import DirectoryLock
from mainstem.standalone.state import UpState, save
from tests.support.commands import mainstem, the_line


@pytest.fixture(autouse=True)
def no_directory_from_outside(monkeypatch):
    monkeypatch.delenv("MAINSTEM_DATA", raising=False)


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_the_data_directory_is_given_or_set_or_the_projects_own(monkeypatch):
    assert data_directory(Path("p")) == Path("p/.mainstem")
    monkeypatch.setenv("MAINSTEM_DATA", "/d")
    assert data_directory(Path("p")) == Path("/d")
    assert data_directory(Path("p"), Path("/given")) == Path("/given")


def test_a_command_speaks_to_the_projects_own_log(tmp_path, listening, monkeypatch):
    asked = []
    monkeypatch.setattr("mainstem.cli.target.probe", asked.append)
    assert Target(None, tmp_path, None).connect().bootstrap == DEFAULT_BOOTSTRAP
    data = tmp_path / ".mainstem"
    with DirectoryLock(data):
        save(data, UpState(1, "p", listening, "http://127.0.0.1:1", 0.0))
        assert Target(None, tmp_path, None).connect().bootstrap == listening
        assert Target(None, Path("elsewhere"), data).connect().bootstrap == listening
    assert Target("127.0.0.1:8888", tmp_path, None).connect().bootstrap == "127.0.0.1:8888"
    assert [each.bootstrap for each in asked] == [DEFAULT_BOOTSTRAP, listening, listening, "127.0.0.1:8888"]


def test_what_a_stopped_up_has_left_is_no_log(tmp_path):
    data = tmp_path / ".mainstem"
    data.mkdir()
    save(data, UpState(1, "p", "127.0.0.1:7777", "http://127.0.0.1:1", 0.0))
    with pytest.raises(NotUp, match=f"{data}: not up; its log was at 127.0.0.1:7777"):
        Target(None, tmp_path, None).connect()


OPTIONS = ["--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:9600"]


@pytest.mark.parametrize("command", [["topic", "list"], ["status"]])
def test_the_command_that_a_hint_names_starts_the_node_that_was_stopped(tmp_path, monkeypatch, command):
    """It left out --data and --bootstrap: a second, empty log was started beside the one that was meant."""
    started, project, data = [], tmp_path / "the project", tmp_path / "data"
    monkeypatch.setattr("mainstem.standalone.up.up", lambda *at, **options: started.append((*at, options)))
    for directory in (project, data):
        directory.mkdir()
    (project / "mainstem.toml").touch()
    monkeypatch.chdir(tmp_path)

    def start_as_told(*asked):
        done = CliRunner().invoke(group, [*command, *map(str, asked)])
        told = done.stderr + getattr(done.exception, "hint", "")
        _, *arguments = shlex.split(re.search("`(mainstem up .*?)`", told)[1])
        CliRunner().invoke(group, arguments, catch_exceptions=False)
        *at, options = started.pop()
        return *at, {name: options[name] for name in ("bootstrap", "listen", "gateway")}

    nothing = {"bootstrap": None, "listen": None, "gateway": None}
    assert start_as_told("--project", project) == (project, project / ".mainstem", nothing)
    assert start_as_told("--project", project, "--data", data) == (project, data, nothing)
    as_before = {"bootstrap": None, "listen": "127.0.0.1:0", "gateway": "127.0.0.1:9600"}
    save(data, UpState(1, str(project), "127.0.0.1:7777", "http://127.0.0.1:1", 0.0, options=OPTIONS))
    assert start_as_told("--data", "data") == (project, Path("data"), as_before)
    (project / ".mainstem").mkdir()
    save(project / ".mainstem", UpState(1, str(project), "127.0.0.1:7777", "http://127.0.0.1:1", 0.0, options=OPTIONS))
    assert start_as_told("--project", project) == (project, project / ".mainstem", as_before)


def test_where_no_project_is_meant_none_is_advised_to_be_started(tmp_path, monkeypatch):
    """`mainstem up .`, where the caller happened to stand."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(group, ["status"])
    assert result.stderr == (
        ".mainstem: not up; --project says which project is meant, and --data where `up` was told to keep its data\n"
    )


def test_a_kafka_answers_whether_or_not_up_runs(tmp_path, listening):
    save(tmp_path, UpState(1, "p", listening, "http://127.0.0.1:1", 0.0, options=["--bootstrap", listening]))
    assert Target(None, tmp_path, tmp_path).connect().bootstrap == listening


def test_a_project_that_is_none_or_never_ran_is_no_log(tmp_path, listening, monkeypatch):
    """`topic delete --project` with a typo once deleted from whatever listened at the default address."""
    monkeypatch.setattr("mainstem.cli.target.DEFAULT_BOOTSTRAP", listening)
    missing = tmp_path / "projct"
    for command in (["topic", "list"], ["status"], ["topic", "list", "--bootstrap", listening]):
        result = CliRunner().invoke(group, [*command, "--project", str(missing)])
        assert str(result.exception) == f"--project {missing}: expected a directory with a mainstem.toml, found none"
    assert "expected a directory with a mainstem.toml" in the_line(mainstem("topic", "list", "--project", missing))
    (tmp_path / "mainstem.toml").touch()
    for option, value in (("--project", tmp_path), ("--data", tmp_path / "data")):
        result = CliRunner().invoke(group, ["topic", "list", option, str(value)])
        assert isinstance(result.exception, NotUp)
        assert "expected the data of a project that is up, found none" in str(result.exception)


def test_the_security_of_the_project_is_used(tmp_path, listening):
    settings = '[security]\nprotocol = "SASL_PLAINTEXT"\nmechanism = "PLAIN"\nusername = "me"\n'
    (tmp_path / "mainstem.toml").write_text(settings)
    security = Target(listening, tmp_path, None).connect().security
    assert (security.protocol, security.username) == ("SASL_PLAINTEXT", "me")
    data = tmp_path / "data"
    with DirectoryLock(data):
        save(data, UpState(1, str(tmp_path), listening, "http://127.0.0.1:1", 0.0))
        assert Target(None, tmp_path / "elsewhere", data).connect().security == security


def test_one_address_of_several_is_enough(listening):
    probe(Connection(f"127.0.0.1:1,{listening}"))


@pytest.mark.parametrize("command", [["topic", "list"], ["tail", "t"], ["job", "list"], ["audit"], ["status"]])
def test_a_log_that_is_not_there_is_told_at_once(command):
    began = time.monotonic()
    done = mainstem(*command, "--bootstrap", "127.0.0.1:1")
    assert the_line(done) == (
        "mainstem: 127.0.0.1:1: no log answers: Connection refused"
        " (is `mainstem up` running? --bootstrap or --project says which log is meant)"
    )
    assert time.monotonic() - began < 10


def test_every_command_about_a_log_takes_the_data_directory():
    for command in ("audit", "job list", "job show", "status", "tail", "topic list", "topic create"):
        assert "--data" in CliRunner().invoke(group, [*command.split(), "--help"]).stdout, command


def test_a_master_is_given_for_once_to_what_runs_jobs():
    for command in ("up", "run spark", "job run"):
        assert "--master" in CliRunner().invoke(group, [*command.split(), "--help"]).stdout, command
    line = the_line(mainstem("up", ".", "--master", "localhost:7077"))
    assert "expected local[N], spark://HOST:PORT or another of Spark's" in line
