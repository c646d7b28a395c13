"""Tools that ask a broker about itself, and move partitions about: one broker has nowhere to move them."""

import json
import signal

from conformance.tools.kit import Tools, found, rows
from tests.support import kafka_tools, processes


def the_cluster_says_who_it_is(tools: Tools) -> None:
    at = tools.at
    said = tools.run("kafka-cluster", "cluster-id", *at, at=False)
    identity = found(r"^Cluster ID: ([\w-]{22})$", said)[1]
    port = tools.bootstrap.rpartition(":")[2]
    [_, endpoint] = rows(tools.run("kafka-cluster", "list-endpoints", *at, at=False))
    assert endpoint[:3] == ["1", "127.0.0.1", port], endpoint
    assert endpoint[-1] == "broker", endpoint
    found("BrokerIdNotRegistered", tools.refused("kafka-cluster", "unregister", *at, "--id", "7", at=False))
    status = tools.run("kafka-metadata-quorum", "describe", "--status")
    found(rf"^ClusterId: +{identity}$", status)
    found(r"^LeaderId: +1$", status)
    found(r"^MaxFollowerLag: +0$", status)
    found(r'^CurrentVoters: +\[\{"id": 1,', status)
    [_, replica] = rows(tools.run("kafka-metadata-quorum", "describe", "--replication"))
    assert (replica[0], replica[3], replica[-1]) == ("1", "0", "Leader"), replica


def it_says_what_it_can(tools: Tools) -> None:
    said = tools.run("kafka-broker-api-versions")
    for api in ("Produce(0): 0 to 13", "Fetch(1): 4 to 18", "ApiVersions(18): 0 to 4", "InitProducerId(22): 0 to 5"):
        assert f"{api} [usable: " in said, f"{api} in {said}"
    assert "UNSUPPORTED" not in said.split("ConsumerGroupDescribe")[0], said
    described = tools.run("kafka-features", "describe")
    for feature, level in (("group.version", 1), ("transaction.version", 2)):
        found(rf"^Feature: {feature}\s.*FinalizedVersionLevel: {level}\s", described)
    tools.run("kafka-features", "upgrade", "--feature", "group.version=1", "--dry-run")
    tools.refused("kafka-features", "upgrade", "--feature", "group.version=99")


def its_directory_is_described(tools: Tools) -> None:
    topic = tools.topic()
    tools.produce(topic, *["x" * 1000] * 20)
    said = tools.run("kafka-log-dirs", "--describe", "--topic-list", topic)
    [document] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [broker] = document["brokers"]
    [directory] = broker["logDirs"]
    assert directory["error"] is None, directory
    [partition] = directory["partitions"]
    assert partition["partition"] == f"{topic}-0", partition
    assert partition["size"] > 20_000, partition
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False), partition


def a_leader_is_elected_where_it_is(tools: Tools) -> None:
    topic = tools.topic(partitions=2)
    one = ("--topic", topic, "--partition", "0")
    said = tools.run("kafka-leader-election", "--election-type", "preferred", *one)
    found(f"Valid replica already elected for partitions {topic}-0", said)
    said = tools.run("kafka-leader-election", "--election-type", "unclean", *one)
    found(f"Valid replica already elected for partitions {topic}-0", said)
    plan = tools.document("plan.json", {"partitions": [{"topic": topic, "partition": 1}]})
    tools.run("kafka-leader-election", "--election-type", "preferred", "--path-to-json-file", plan)
    tools.run("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    said = tools.refused(
        "kafka-leader-election", "--election-type", "preferred", "--topic", f"{topic}-not", "--partition", "0"
    )
    found("UnknownTopicOrPartition", said)


def partitions_are_moved_where_they_are_and_nowhere_else(tools: Tools) -> None:
    topic, reassign = tools.topic(partitions=2), "kafka-reassign-partitions"
    topics = tools.document("topics.json", {"version": 1, "topics": [{"topic": topic}]})
    said = tools.run(reassign, "--generate", "--topics-to-move-json-file", topics, "--broker-list", "1")
    proposed = json.loads(said.splitlines()[-1])
    assert [each["replicas"] for each in proposed["partitions"]] == [[1], [1]], proposed
    plan = tools.document("plan.json", proposed)
    tools.run(reassign, "--execute", "--reassignment-json-file", plan)
    said = tools.run(reassign, "--verify", "--reassignment-json-file", plan)
    found(rf"Reassignment of partition {topic}-1 is completed", said)
    found("No partition reassignments found", tools.run(reassign, "--list"))
    tools.run(reassign, "--cancel", "--reassignment-json-file", plan)
    for each in proposed["partitions"]:
        each["replicas"] = [7]
    elsewhere = tools.document("elsewhere.json", proposed)
    found("Unknown broker id 7", tools.refused(reassign, "--execute", "--reassignment-json-file", elsewhere))


def replicas_are_compared(tools: Tools) -> None:
    """It goes on for ever, and tells now and then."""
    topic = tools.topic()
    tools.produce(topic, "a", "b", "c")
    options = (
        "--broker-list",
        tools.bootstrap,
        "--topics-include",
        topic,
        "--time",
        "-2",
        "--report-interval-ms",
        "500",
    )
    process = processes.start(
        kafka_tools.command("kafka-replica-verification", *options), stdout=-1, stderr=-3, text=True
    )
    try:
        assert process.stdout is not None
        told = [line for line, _ in zip(process.stdout, range(3), strict=False)]
    finally:
        processes.stop(process, signal_number=signal.SIGKILL)
    found("verification process is started", "".join(told))
    found(r"max lag is 0 for partition", "".join(told))


TESTS = (
    the_cluster_says_who_it_is,
    it_says_what_it_can,
    its_directory_is_described,
    a_leader_is_elected_where_it_is,
    partitions_are_moved_where_they_are_and_nowhere_else,
    replicas_are_compared,
)
