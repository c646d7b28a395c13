"""A project whose own log has TLS, users and an authorizer: its processes come in as `[security]` says."""

import os
import subprocess
import sys

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from mainstem.client.connection import Connection, Security
from tests.support.certificates import Authority
from tests.support.processes import start, stop

PROJECT = """
[project]
jobs = []
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


def test_a_project_runs_on_its_own_secured_log(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    authority = Authority(project)
    authority.issue("log")
    (project / "mainstem.toml").write_text(PROJECT)
    (project / "access.log").write_text("one\ntwo\n")
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
        metadata = AdminClient(connection.confluent(log_level=0)).list_topics(timeout=30)
        assert "lines" in metadata.topics
        told = [path.read_text(errors="replace") for path in (data / "logs").rglob("*") if path.is_file()]
        assert told
        assert not any("node-secret" in text for text in (*told, *lines, repr(security)))
    finally:
        stop(process)
        process.stdout.close()
