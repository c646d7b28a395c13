import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mainstem.cli.commands import group
from mainstem.client.append import append
from mainstem.client.connection import Connection
from mainstem.client.internal import SCHEMAS
from mainstem.client.topics import ensure_internal_topics, ensure_topic
from mainstem.core import UserError
from mainstem.process.declare import BadDeclaration
from mainstem.standalone.state import UpState, save
from tests.support.commands import mainstem, the_line

JOBS = """
from pyspark.sql import DataFrame
from mainstem.process import stream, topic

orders = topic("orders", schema="orders.avsc")


@stream(to="big_orders", key="number")
def big_orders(orders: DataFrame) -> DataFrame:
    from limits import LIMIT

    return orders.filter(f"amount > {LIMIT}")
"""
SCHEMA = """{"type": "record", "name": "Order", "fields": [
  {"name": "number", "type": "long"}, {"name": "amount", "type": "double"}]}"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mainstem.toml").write_text("[project]\njobs = 'jobs.py'\n")
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "limits.py").write_text("LIMIT = 100\n")
    (tmp_path / "orders.avsc").write_text(SCHEMA)
    return tmp_path


@pytest.fixture
def planned(spark_runs_already):
    """What `mainstem plan` with these arguments prints: all of it but the start and the end of a Spark."""

    def run(*arguments):
        done = CliRunner().invoke(group, ["plan", *map(str, arguments)], catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.mark.spark
def test_the_graph_is_shown_before_anything_runs(project):
    command = [sys.executable, "-m", "mainstem", "plan", str(project), "--json"]
    here = project / "here"
    here.mkdir()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=here)
    assert (done.returncode, done.stderr, list(here.iterdir())) == (0, "", [])
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["inputs"], job["output"], job["keeps_order"]) == ({"orders": "orders"}, "big_orders", True)
    assert [column["name"] for column in job["columns"]] == ["number", "amount"]
    assert not (project / ".mainstem").exists()


@pytest.mark.spark
def test_people_see_columns_and_who_stands_at_both_ends(project, planned):
    """Topics and schemas were promised, and no column was shown; what a source wrote was written by nobody."""
    loose = '[topics.orders.config]\n"flush.messages" = "1000"\n'
    (project / "mainstem.toml").write_text(f'[sinks.lake]\ntype = "delta"\n{loose}')
    lines = [" ".join(line.split()) for line in planned(project).splitlines()]
    assert "orders stream 1 no collector big_orders, sink lake" in lines
    assert "big_orders stream number 1 no job big_orders sink lake" in lines
    assert "big_orders number bigint, amount double" in lines
    (warning,) = [line for line in lines if "flush.messages" in line]
    assert warning.startswith(
        "topic orders has flush.messages = 1000: its records are acknowledged before they are on "
    )


@pytest.mark.spark
def test_people_see_what_is_promised_of_each_row_and_what_spark_has_no_room_for(project, planned):
    realtime = JOBS.replace('key="number"', 'key="number", latency="realtime"')
    (project / "jobs.py").write_text(realtime)
    (project / "mainstem.toml").write_text("[topics.orders]\npartitions = 8\n")
    said = planned(project)
    assert (
        "big_orders: each row comes at least once: after a crash or a stop the rows of up to 30 seconds come again"
        in said
    )
    assert 'set master = "local[9]", or more, under [spark]' in said
    (project / "mainstem.toml").write_text("[topics.orders]\npartitions = 8\n[spark]\nmaster = 'local[9]'\n")
    assert "REFUSED" not in planned(project)


@pytest.mark.spark
def test_what_a_log_that_does_not_run_knows_is_not_made_up(project, tmp_path, planned):
    """All topics were there, and the plan was to create them."""
    data = tmp_path / "data"
    data.mkdir()
    save(data, UpState(1, str(project), "127.0.0.1:1", "http://127.0.0.1:1", 0.0))
    (project / "jobs.py").write_text(JOBS.replace(', schema="orders.avsc"', ""))
    said = planned(project, "--data", data)
    assert "big_orders: orders: no schema yet; known once topic orders has a schema\n" in said
    unknown = "the log does not run, so which topics and schemas there are is not known"
    assert f"{unknown}: `mainstem up {project} --data {data}`" in said  # it left out --data
    assert "create topic" not in said


@pytest.mark.spark
@pytest.mark.parametrize("given", [False, True])
def test_a_kafka_is_asked_whether_or_not_up_runs(project, tmp_path, planned, cli_log, given):
    """ "The log does not run", and there was no way to say where it does."""
    connection, data = Connection(cli_log), tmp_path / "data"
    ensure_internal_topics(connection)
    ensure_topic(connection, "orders", 3)
    key = b'{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}'
    append(
        connection,
        SCHEMAS,
        [(key, json.dumps({"subject": "orders-value", "version": 1, "id": 1, "schema": SCHEMA}).encode())],
    )
    (project / "jobs.py").write_text(JOBS.replace(', schema="orders.avsc"', ""))
    (project / "mainstem.toml").write_text('[topics.orders.config]\n"flush.messages" = "1000"\n')
    if not given:
        data.mkdir()
        options = ["--bootstrap", cli_log]
        save(data, UpState(1, str(project), cli_log, "http://127.0.0.1:1", 0.0, options=options))
    found = json.loads(planned(project, "--data", data, "--json", *(["--bootstrap", cli_log] if given else [])))
    assert (found["complete"], found["warnings"]) == (True, [])  # a Kafka says by itself what it keeps
    assert [(each["name"], each["exists"], each["partitions"]) for each in found["topics"]] == [
        ("orders", True, 3), ("big_orders", False, 1),
    ]  # fmt: skip
    assert [column["name"] for column in found["topics"][1]["columns"]] == ["number", "amount"]


def test_a_kafka_that_is_not_there_is_told_before_anything_is_loaded(project):
    line = the_line(mainstem("plan", project, "--bootstrap", "127.0.0.1:1"))
    assert "127.0.0.1:1: no log answers: Connection refused (is the address of --bootstrap right?)" in line


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("[broker]\nprot = 1\n", "`prot`"),
        ('[sinks.x]\ntype = "oracle"\n', "oracle"),
        ('[sinks.x]\ntype = "delta"\ntopics = "("\n', "no regular expression"),
        ("[topcs.a]\n", "unknown table [topcs]"),
        ('[spark]\nsettings = {"spark.speculation" = "true"}\n', "mainstem.toml: [spark]: settings: spark.speculation"),
        ('[spark]\nmaster = "bogus"\n', "mainstem.toml: [spark]: master = 'bogus': expected local[N]"),
        ('[gateway]\nlisten = "foo"\n', "mainstem.toml: [gateway]: listen: expected HOST:PORT, found 'foo'"),
        (
            '[topics.orders.config]\n"retention.mss" = "1"\n',
            "mainstem.toml: [topics.orders]: Unknown topic config name",
        ),
        ('[sinks.x]\ntype = "delta"\ntopics = ".*"\n', "fits __mainstem.audit, which it writes to"),
    ],
)
def test_what_up_refuses_is_no_plan(project, settings, told):
    (project / "mainstem.toml").write_text(settings)
    result = CliRunner().invoke(group, ["plan", str(project)])
    assert isinstance(result.exception, UserError)
    assert told in str(result.exception)


def test_a_wrong_declaration_names_file_and_line(project):
    (project / "jobs.py").write_text(JOBS.replace("def big_orders(orders:", "def big_orders(ordres:"))
    result = CliRunner().invoke(group, ["plan", str(project)])
    assert isinstance(result.exception, BadDeclaration)
    assert "jobs.py:" in str(result.exception)
    assert "ordres" in str(result.exception)
