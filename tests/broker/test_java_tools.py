"""Kafka's own Java command-line tools, unmodified, against our log."""

import json
from collections.abc import Iterator

import pytest

import mainstem
from tests.support import kafka_tools

pytestmark = pytest.mark.timeout(900)  # a JVM per tool, on a machine that may be busy


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[tuple[str, str]]:
    with mainstem.embedded() as log:
        yield ("--bootstrap-server", log.bootstrap)


def test_topics_and_their_settings(bootstrap):
    def topics(*arguments):
        return kafka_tools.run("kafka-topics", *bootstrap, *arguments).stdout

    def configs(*arguments):
        return kafka_tools.run(
            "kafka-configs", *bootstrap, "--entity-type", "topics", "--entity-name", "t", *arguments
        ).stdout

    assert "Created topic t." in topics(
        "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=5000"
    )
    topics("--alter", "--topic", "t", "--partitions", "3")
    described = topics("--describe", "--topic", "t")
    assert "PartitionCount: 3" in described
    assert "Configs: retention.ms=5000" in described
    assert described.count("Leader: 1") == 3
    assert "Completed updating config" in configs("--alter", "--add-config", "cleanup.policy=[compact,delete]")
    assert "cleanup.policy=compact,delete" in configs("--describe")
    topics("--delete", "--topic", "t")
    assert "t" not in topics("--list").split()


def test_records_in_and_out_and_deleted(bootstrap, tmp_path):
    kafka_tools.run(
        "kafka-console-producer",
        *bootstrap,
        *("--topic", "lines", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        *("--compression-codec", "zstd"),
        stdin="a:1\nb:2\nc:3\n",
    )
    reading = ("--topic", "lines", "--from-beginning", "--timeout-ms", "60000", "--isolation-level", "read_committed")
    read = kafka_tools.run("kafka-console-consumer", *bootstrap, *reading, "--max-messages", "3", "--group", "g")
    assert read.stdout.split() == ["1", "2", "3"]

    groups = kafka_tools.run("kafka-consumer-groups", *bootstrap, "--describe", "--group", "g").stdout
    (line,) = [line.split() for line in groups.splitlines() if line.startswith("g ")]
    assert line[:6] == ["g", "lines", "0", "3", "3", "0"]

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "lines", "partition": 0, "offset": 2}]}))
    deleted = kafka_tools.run("kafka-delete-records", *bootstrap, "--offset-json-file", str(plan)).stdout
    assert "low_watermark: 2" in deleted
    for time_of, offset in (("earliest", 2), ("latest", 3), ("max-timestamp", 2)):
        found = kafka_tools.run("kafka-get-offsets", *bootstrap, "--topic", "lines", "--time", time_of).stdout
        assert found.split() == [f"lines:0:{offset}"], time_of


def test_what_the_broker_is(bootstrap):
    assert kafka_tools.run("kafka-cluster", "cluster-id", *bootstrap).stdout.startswith("Cluster ID: ")
    assert "transaction.version" in kafka_tools.run("kafka-features", *bootstrap, "describe").stdout
    assert "Produce(0): 0 to 13 [usable: 13]" in kafka_tools.run("kafka-broker-api-versions", *bootstrap).stdout
    assert "logDirs" in kafka_tools.run("kafka-log-dirs", *bootstrap, "--describe").stdout


def test_a_producer_that_checks_what_was_acknowledged(bootstrap):
    arguments = ("--topic", "verified", "--max-messages", "2000", "--acks", "-1")
    said = kafka_tools.run("kafka-verifiable-producer", *bootstrap, *arguments).stdout
    summary = json.loads(said.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (2000, 2000)
    perf = ("--topic", "verified", "--num-records", "2000", "--timeout", "60000")
    assert ", 2000, " in kafka_tools.run("kafka-consumer-perf-test", *bootstrap, *perf).stdout
