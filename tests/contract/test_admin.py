"""Kafka's Java command-line tools and confluent's admin client do their work on either log."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from mainstem.client.connection import Connection
from mainstem.client.errors import TopicRefused
from mainstem.client.topics import alter_config, describe_config
from tests.contract.clients import Log, Sent, consume, produce, wait_until
from tests.support import kafka_tools


def run(log: Log, tool: str, *arguments: str, stdin: str = "", check: bool = True) -> str:
    result = kafka_tools.run(tool, "--bootstrap-server", log.bootstrap, *arguments, stdin=stdin, check=check)
    return result.stdout if check else result.stdout + result.stderr


def test_topics_are_made_listed_described_and_deleted_by_the_tool(log: Log, name: str) -> None:
    made = run(
        log,
        "kafka-topics",
        *("--create", "--topic", name, "--partitions", "3", "--replication-factor", str(log.replicas)),
        *("--config", "retention.ms=3600000", "--config", "cleanup.policy=compact"),
    )
    assert f"Created topic {name}." in made
    listed, described = kafka_tools.run_together(
        ("kafka-topics", "--bootstrap-server", log.bootstrap, "--list"),
        ("kafka-topics", "--bootstrap-server", log.bootstrap, "--describe", "--topic", name),
    )
    assert name in listed.split()
    heading, *partitions = described.splitlines()
    assert f"PartitionCount: 3\tReplicationFactor: {log.replicas}" in heading
    assert "cleanup.policy=compact" in heading
    assert "retention.ms=3600000" in heading
    assert len(partitions) == 3
    assert all(re.search(r"Leader: [1-9]", line) for line in partitions)
    again = run(log, "kafka-topics", "--create", "--topic", name, check=False)
    assert "already exists" in again
    run(log, "kafka-topics", "--delete", "--topic", name)
    admin = log.admin()
    wait_until(lambda: name not in admin.list_topics(timeout=10).topics, "the topic is gone")


def test_partitions_are_added_and_never_taken_away(log: Log, name: str) -> None:
    log.create(name, partitions=2)
    run(log, "kafka-topics", "--alter", "--topic", name, "--partitions", "4")
    admin = log.admin()
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4, "it has four")
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    produce("confluent", log, name, [Sent(str(number), str(number)) for number in range(100)])
    assert {one.partition for one in consume("confluent", log, name, 100)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("topic", "partitions", "error"),
    [("bad name!", 1, "TOPIC_EXCEPTION"), ("ok-name", 0, "INVALID_PARTITIONS"), ("x" * 250, 1, "TOPIC_EXCEPTION")],
)
def test_what_cannot_be_a_topic_is_refused_with_kafkas_error(log: Log, topic: str, partitions: int, error: str) -> None:
    admin = log.admin()
    with pytest.raises(KafkaException, match=error):
        admin.create_topics([NewTopic(topic, partitions, log.replicas)], validate_only=True)[topic].result(30)


def test_an_unknown_setting_of_a_topic_is_refused_and_named(log: Log, name: str) -> None:
    admin = log.admin()
    with pytest.raises(KafkaException, match=r"INVALID_CONFIG.*segmnt\.bytes"):
        admin.create_topics([NewTopic(name, 1, log.replicas, config={"segmnt.bytes": "1"})])[name].result(30)


def test_settings_are_changed_by_our_own_command_too(log: Log, topic: str) -> None:
    connection = Connection(log.bootstrap)
    alter_config(connection, topic, {"retention.ms": "7200000", "max.message.bytes": "2000000"})
    wait_until(lambda: describe_config(connection, topic)["retention.ms"] == "7200000", "it is set")
    alter_config(connection, topic, {"retention.ms": None})
    wait_until(lambda: describe_config(connection, topic)["retention.ms"] == "604800000", "it is the default again")
    assert describe_config(connection, topic)["max.message.bytes"] == "2000000"
    with pytest.raises(TopicRefused, match=r"segmnt\.bytes") as refused:
        alter_config(connection, topic, {"segmnt.bytes": "1"})
    assert refused.value.hint == "did you mean segment.bytes?"


def test_settings_are_shown_changed_and_taken_back_by_the_tool(log: Log, topic: str) -> None:
    where = ("--entity-type", "topics", "--entity-name", topic)
    settings = "retention.ms=7200000,max.message.bytes=2000000,cleanup.policy=[compact,delete]"
    assert "Completed updating config" in run(log, "kafka-configs", *where, "--alter", "--add-config", settings)
    shown = run(log, "kafka-configs", *where, "--describe")
    assert re.search(
        r"retention\.ms=7200000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention\.ms=7200000", shown
    )
    run(log, "kafka-configs", *where, "--alter", "--delete-config", "retention.ms")
    shown, everything = kafka_tools.run_together(
        ("kafka-configs", "--bootstrap-server", log.bootstrap, *where, "--describe"),
        ("kafka-configs", "--bootstrap-server", log.bootstrap, *where, "--describe", "--all"),
    )
    assert "retention.ms" not in shown
    assert "max.message.bytes=2000000" in shown
    assert "cleanup.policy=compact,delete" in shown
    assert {"retention.ms", "segment.bytes", "cleanup.policy"} <= set(
        re.findall(r"^  ([a-z.]+)=", everything, re.MULTILINE)
    )


def test_a_changed_setting_is_obeyed(log: Log, topic: str) -> None:
    produce("confluent", log, topic, [Sent("x" * 5000)])
    admin = log.admin()
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        produce("confluent", log, topic, [Sent("x" * 5000)])
    produce("confluent", log, topic, [Sent("small")])


def test_the_brokers_own_settings_are_shown(log: Log) -> None:
    admin = log.admin()
    [broker] = [str(number) for number in admin.list_topics(timeout=10).brokers][:1]
    resource = ConfigResource(ResourceType.BROKER, broker)
    found = admin.describe_configs([resource])[resource].result(30)
    assert {"auto.create.topics.enable", "default.replication.factor", "num.partitions"} <= set(found)


def test_records_before_an_offset_are_deleted_by_the_tool(log: Log, topic: str, tmp_path: Path) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(9)])
    produce("confluent", log, topic, [Sent("later than all others")])
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}), encoding="utf-8"
    )
    assert "low_watermark: 4" in run(log, "kafka-delete-records", "--offset-json-file", str(plan))
    assert [one.offset for one in consume("aiokafka", log, topic, 6)] == [4, 5, 6, 7, 8, 9]
    times = ("earliest", "latest", "max-timestamp")
    found = kafka_tools.run_together(
        *(("kafka-get-offsets", "--bootstrap-server", log.bootstrap, "--topic", topic, "--time", at) for at in times)
    )
    assert [said.strip() for said in found] == [f"{topic}:0:4", f"{topic}:0:10", f"{topic}:0:9"]


def test_offsets_are_listed_by_the_admin_client(log: Log, topic: str) -> None:
    produce("confluent", log, topic, [Sent("a"), Sent("b")])
    admin, place = log.admin(), Place(topic, 0)
    for spec, offset in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 2), (OffsetSpec.for_timestamp(0), 0)):
        assert admin.list_offsets({place: spec})[place].result(30).offset == offset


def test_the_cluster_describes_itself(log: Log) -> None:
    admin = log.admin()
    described = admin.describe_cluster().result(30)
    assert described.cluster_id
    assert len(described.nodes) == log.replicas
    identity, versions = kafka_tools.run_together(
        ("kafka-cluster", "cluster-id", "--bootstrap-server", log.bootstrap),
        ("kafka-broker-api-versions", "--bootstrap-server", log.bootstrap),
    )
    assert described.cluster_id in identity
    for api in ("Produce", "Fetch", "Metadata", "InitProducerId", "TxnOffsetCommit", "DescribeTopicPartitions"):
        assert re.search(rf"{api}\(\d+\): .*\[usable: \d+\]", versions), api
    assert "Produce(0): 0 to 13 [usable: 13]" in versions


def test_the_size_on_disk_is_described(log: Log, topic: str) -> None:
    produce("confluent", log, topic, [Sent("x" * 1000)] * 20)
    shown = run(log, "kafka-log-dirs", "--describe", "--topic-list", topic)
    [document] = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    sizes = [
        partition["size"]
        for broker in document["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert len(sizes) == log.replicas
    assert all(size > 20_000 for size in sizes)


def test_kafka_dump_log_reads_the_files(log: Log, topic: str) -> None:
    """The segment files are Kafka's own format: its tool checks each batch's CRC and prints the records."""
    records = [Sent(f"value {number}", f"key {number}") for number in range(50)]
    produce("aiokafka", log, topic, records)
    produce("confluent", log, topic, records, compression="zstd")
    [segment] = (log.data / f"{topic}-0").glob("*.log")
    shown = kafka_tools.run("kafka-dump-log", "--files", str(segment), "--print-data-log", "--deep-iteration").stdout
    assert "isvalid: false" not in shown
    assert re.findall(r"\| offset: (\d+) .* key: (key \d+) payload: (value \d+)", shown) == [
        (str(offset), one.key, one.value) for offset, one in enumerate(records * 2)
    ]


def test_the_features_that_new_clients_ask_for_are_named(log: Log) -> None:
    shown = run(log, "kafka-features", "describe")
    assert re.search(r"Feature: transaction\.version\s.*FinalizedVersionLevel: 2", shown)
