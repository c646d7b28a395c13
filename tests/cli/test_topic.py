import json

import pytest
from click.testing import CliRunner

from mainstem.broker import config
from mainstem.cli.commands import group
from mainstem.cli.topic import MOST_PARTITIONS
from mainstem.client import topics
from mainstem.client.catalog import write_catalog
from mainstem.client.connection import Connection
from mainstem.client.topics import TopicDescription, ensure_internal_topics, ensure_topic, list_topics
from tests.support.commands import mainstem, the_line
from tests.support.counting import counted


@pytest.fixture(scope="module")
def run(cli_log):
    def call(*arguments, code=0):
        result = CliRunner().invoke(group, [*arguments, "--bootstrap", cli_log])
        assert result.exit_code == code, result.output
        return result.stdout

    return call


def test_a_topic_is_created_listed_described_and_deleted(run):
    assert (
        run("topic", "create", "orders", "--partitions", "2", "--config", "retention.ms=1000")
        == "topic orders: 2 partitions, 1 replicas\n"
    )
    (line,) = json.loads(run("topic", "list", "--json"))
    assert (line["name"], line["partitions"], line["offsets"]) == ("orders", 2, 0)
    detail = json.loads(run("topic", "describe", "orders", "--json"))
    assert [p["partition"] for p in detail["partitions"]] == [0, 1]
    assert detail["config"]["retention.ms"] == "1000"
    assert detail["own"] == ["retention.ms"]
    partitions, settings = run("topic", "describe", "orders").split("\n\n")
    assert "high watermark" in partitions
    assert [line.split()[0] for line in settings.splitlines() if line.endswith("this topic")] == ["retention.ms"]
    assert settings.splitlines()[1].split() == ["retention.ms", "1000", "this", "topic"]
    assert run("topic", "delete", "orders", "--yes") == "topic orders: deleted\n"
    assert json.loads(run("topic", "list", "--json")) == []


def test_a_topic_of_the_users_own_with_an_underscore_is_left_out_as_the_help_says(run):
    """It was "what Mainstem and Kafka keep for themselves"."""
    run("topic", "create", "_events")
    assert json.loads(run("topic", "list", "--json")) == []
    assert "_events" in [each["name"] for each in json.loads(run("topic", "list", "--all", "--json"))]
    for command in ("topic list", "audit"):
        assert "begin with _" in " ".join(CliRunner().invoke(group, [*command.split(), "--help"]).stdout.split())
    assert json.loads(run("audit", "--json")) == []
    (line,) = json.loads(run("audit", "_events", "--json"))
    assert line["partition"] == {"topic": "_events", "partition": 0}
    run("topic", "delete", "_events", "--yes")


def test_topics_are_listed_with_as_many_requests_however_many_there_are(run, cli_log, monkeypatch):
    """2,001 topics took three minutes: each cost four requests, two of them for all topics."""
    calls = counted(monkeypatch)
    for number in range(20):
        ensure_topic(Connection(cli_log), f"many-{number}", 2)
        if number in (1, 19):
            calls.clear()
            assert len(json.loads(run("topic", "list", "--json"))) == number + 1
            assert calls == ["list_topics", "list_offsets", "list_offsets"]
    for number in range(20):
        run("topic", "delete", f"many-{number}", "--yes")


def test_a_topic_that_is_deleted_while_topics_are_listed_is_left_out(run, cli_log, monkeypatch):
    there = topics.list_topics(Connection(cli_log)) | {"gone": TopicDescription("gone", 2, 1)}
    run("topic", "create", "stays")
    monkeypatch.setattr(topics, "list_topics", lambda _: there | {"stays": TopicDescription("stays", 1, 1)})
    assert [each["name"] for each in json.loads(run("topic", "list", "--json"))] == ["stays"]
    monkeypatch.undo()
    run("topic", "delete", "stays", "--yes")


def test_what_is_made_and_deleted_is_told_to_programs_too(run):
    made = json.loads(run("topic", "create", "orders", "--partitions", "2", "--json"))
    assert made == {"name": "orders", "partitions": 2, "replication_factor": 1}
    assert json.loads(run("topic", "create", "orders", "--partitions", "2", "--json")) == made
    gone = json.loads(run("topic", "delete", "orders", "--yes", "--json"))
    assert gone == {"name": "orders", "offsets": 0, "writers": [], "readers": []}


def test_settings_are_altered_and_taken_back(run, cli_log):
    run("topic", "create", "kept", "--config", "retention.ms=1000")
    altered = ("topic", "alter", "kept", "retention.ms=2000", "cleanup.policy=compact")
    assert run(*altered) == "topic kept: retention.ms = 2000\ntopic kept: cleanup.policy = compact\n"
    assert json.loads(run("topic", "alter", "kept", "retention.ms=", "--json")) == {
        "name": "kept", "config": {"retention.ms": None},
    }  # fmt: skip
    config = json.loads(run("topic", "describe", "kept", "--json"))["config"]
    assert (config["retention.ms"], config["cleanup.policy"]) == ("604800000", "compact")
    line = the_line(mainstem("topic", "alter", "kept", "partitions=3", "--bootstrap", cli_log))
    assert "topic kept: the number of its partitions is no setting" in line
    line = the_line(mainstem("topic", "alter", "kept", "=5", "--bootstrap", cli_log))
    assert "SETTING=VALUE: expected NAME=VALUE, found '=5'" in line
    assert "topic nothing: no such topic" in the_line(
        mainstem("topic", "alter", "nothing", "a=1", "--bootstrap", cli_log)
    )
    run("topic", "delete", "kept", "--yes")


def test_a_topic_whose_records_are_acknowledged_before_they_are_on_the_disk_is_told(run):
    run("topic", "create", "loose")
    assert "acknowledged" not in run("topic", "describe", "loose")
    run("topic", "alter", "loose", "flush.messages=1000")
    *_, last = run("topic", "describe", "loose").splitlines()
    assert last.startswith("topic loose has flush.messages = 1000: its records are acknowledged before")
    json.loads(run("topic", "describe", "loose", "--json"))
    run("topic", "delete", "loose", "--yes")


def test_a_topic_that_exists_otherwise_is_refused(run, cli_log):
    create = ("topic", "create", "kept", "--partitions", "2", "--config", "retention.ms=1000")
    assert run(*create) == run(*create) == "topic kept: 2 partitions, 1 replicas\n"
    line = the_line(mainstem(*create, "--config", "cleanup.policy=compact", "--bootstrap", cli_log))
    assert "topic kept: expected cleanup.policy = compact, found delete (an existing topic keeps its settings" in line
    line = the_line(mainstem(*create, "--config", "retenton.ms=1", "--bootstrap", cli_log))
    assert "topic kept: expected retenton.ms = 1, found no such setting" in line
    line = the_line(mainstem("topic", "create", "kept", "--partitions", "3", "--bootstrap", cli_log))
    assert "topic kept: expected 3 partitions, found 2" in line
    run("topic", "delete", "kept", "--yes")


def test_a_setting_that_the_log_does_not_know_comes_with_the_nearest_it_knows(cli_log):
    ensure_internal_topics(Connection(cli_log))
    create = ("topic", "create", "new", "--bootstrap", cli_log, "--config")
    assert the_line(mainstem(*create, "retenton.ms=1")).endswith("(did you mean retention.ms?)")
    for setting in ("foo=1", "retention.ms=many"):
        line = the_line(mainstem(*create, setting))
        assert line.endswith("(its settings are those of https://kafka.apache.org/documentation/#topicconfigs)")


def test_a_malformed_setting_says_what_is_expected(run):
    from mainstem.core import UserError

    result = CliRunner().invoke(group, ["topic", "create", "t", "--config", "retention", "--bootstrap", "127.0.0.1:1"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "--config: expected NAME=VALUE, found 'retention'"


def test_more_partitions_than_anybody_has_are_refused(cli_log):
    assert MOST_PARTITIONS == config.MOST_PARTITIONS
    for many in ("10001", "100000000"):
        done = mainstem("topic", "create", "huge", "--partitions", many, "--bootstrap", cli_log)
        assert done.returncode == 2
        assert f"{many} is not in the range 1<=x<=10000" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["__mainstem.commits", "_schemas", "__consumer_offsets"])
def test_internal_topics_are_not_deleted(cli_log, name):
    ensure_internal_topics(Connection(cli_log))
    line = the_line(mainstem("topic", "delete", name, "--yes", "--bootstrap", cli_log))
    assert f"topic {name}: kept by Mainstem or Kafka for itself" in line
    assert name in list_topics(Connection(cli_log))


def test_who_loses_a_topic_is_told_before_it_is_deleted(run, cli_log):
    ensure_internal_topics(Connection(cli_log))
    run("topic", "create", "used")
    job = {"versions": {"1": {"output": "sums", "inputs": {"u": "used"}}}}
    write_catalog(Connection(cli_log), {"topic:used": {"producer": "source:shop"}, "job:sums": job})
    command = ["topic", "delete", "used", "--bootstrap", cli_log]
    asked = CliRunner().invoke(group, command, input="n\n")
    assert (asked.exit_code, asked.stderr.splitlines()[0]) == (
        1,
        "topic used: written by source shop, read by job sums@1",
    )
    assert "used" in list_topics(Connection(cli_log))
    told = CliRunner().invoke(group, [*command, "--yes", "--json"])
    assert (told.exit_code, told.stderr) == (0, asked.stderr.splitlines(keepends=True)[0])
    assert json.loads(told.stdout) == {
        "name": "used", "offsets": 0, "writers": ["source shop"], "readers": ["job sums@1"],
    }  # fmt: skip
    assert "used" not in list_topics(Connection(cli_log))
    write_catalog(Connection(cli_log), {"topic:used": None, "job:sums": None})


def test_a_topic_that_is_not_there_is_misuse(cli_log):
    assert "topic nothing: no such topic" in the_line(mainstem("topic", "describe", "nothing", "--bootstrap", cli_log))
