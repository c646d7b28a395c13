"""A project whose own log has TLS, users and an authorizer: its processes come in as `[security]` says, and so do its
jobs: Spark's reader, the sink that its tasks write with, and the table that is read for a join. Of a
stream without a key each row is there once: no table hides one that was written twice.
"""

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from mainstem.client.connection import Connection, Security
from mainstem.client.reader import RangeReader
from mainstem.client.topics import list_topics
from mainstem.process.sink_direct import FEW_RECORDS
from tests.support.certificates import Authority
from tests.support.jobs import read_rows
from tests.support.processes import start, stop
from tests.support.waiting import wait_until

PROJECT = """
[topics.lines]
[sources.site]
type = "file"
path = "access.log"
topic = "lines"
[broker]
protocol = "SASL_SSL"
certificate_file = "log.pem"
key_file = "log.key"
authorizer_enable = true
super_users = ["User:node"]
connection_failed_authentication_delay_ms = 10
[security]
protocol = "SASL_SSL"
mechanism = "SCRAM-SHA-256"
username = "node"
ca_file = "ca.pem"
"""

JOBS = """
from mainstem.process import stream, table, topic
from pyspark.sql import functions as F

lines = topic("lines")

@table(to="shouted", key="line")
def shouted(lines):
    return lines.select("line", F.upper("line").alias("loud"))

@stream(to="told")
def told(lines):
    return lines.select("line")

@stream(to="again")
def again(lines, shouted):
    return lines.join(shouted.select("line", "loud"), "line").select("loud")
"""


MANY = 2 * FEW_RECORDS


def of_the_first_batch(connection, topic):
    """How many records the first transaction has: in each partition up to the first offset that is no record's."""
    offsets = {}
    with closing(RangeReader(connection, topic, deleted="earliest", name="test")) as reader:
        ends = reader.ends()
        for message in reader.read(dict.fromkeys(ends, 0), ends):
            offsets.setdefault(message.partition(), []).append(message.offset())
    return sum(sum(1 for at, offset in enumerate(found) if at == offset) for found in offsets.values())


@pytest.mark.timeout(600)
def test_a_project_runs_on_its_own_secured_log(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    authority = Authority(project)
    authority.issue("log")
    (project / "mainstem.toml").write_text(PROJECT)
    (project / "jobs.py").write_text(JOBS)
    (project / "access.log").write_text("".join(f"{number}\n" for number in ("one", "two", *range(MANY))))
    secrets = {"MAINSTEM_SECURITY__PASSWORD": "node-secret", "MAINSTEM_BROKER__USERS__NODE": "node-secret"}
    command = [sys.executable, "-P", "-m", "mainstem", "up", str(project), "--data", str(data)]
    command += ["--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | secrets)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if " up: log " in line:
                break
        assert " up: log " in lines[-1], "".join(lines)
        bootstrap = lines[-1].split(" up: log ")[1].split(",")[0]
        security = Security("SASL_SSL", "SCRAM-SHA-256", "node", "node-secret", str(authority.file))
        connection = Connection(bootstrap, security)
        consumer = Consumer(connection.confluent(group_id="test", auto_offset_reset="earliest"))
        consumer.subscribe(["lines"])
        assert len(consumer.consume(2, 60)) == 2
        consumer.close()

        def is_joined():
            """Lines come until the table has what the join is to find."""
            with (project / "access.log").open("a") as log:
                log.write("one\n")
            return "again" in list_topics(connection) and read_rows(connection, "again") != []

        wait_until(is_joined, "a line is joined", seconds=300)
        assert {row["loud"] for row in read_rows(connection, "again")} == {"ONE"}
        shouted = [row["loud"] for row in read_rows(connection, "shouted")]
        assert {"ONE", "TWO", *map(str, range(MANY))} == set(shouted)
        for output in ("shouted", "told"):
            assert of_the_first_batch(connection, output) > FEW_RECORDS  # Spark's tasks have written them
        put = Counter((project / "access.log").read_text().split())
        wait_until(lambda: len(read_rows(connection, "told")) >= put.total(), "every line is told")
        assert Counter(row["line"] for row in read_rows(connection, "told")) == put
        metadata = AdminClient(connection.confluent(log_level=0)).list_topics(timeout=30)
        assert "lines" in metadata.topics
        kept = [path for below in ("logs", "jobs", "spark") for path in (data / below).rglob("*") if path.is_file()]
        texts = [path.read_bytes().decode(errors="replace") for path in kept if path.stat().st_size < 1 << 20]
        assert texts
        assert not any("node-secret" in text for text in (*texts, *lines, repr(security)))
    finally:
        stop(process)
        process.stdout.close()
