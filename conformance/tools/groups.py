"""Tools for groups: what they list and describe, and what they change."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from conformance.tools.kit import Tools, found, rows, wait_until
from tests.support import processes

GROUPS = "kafka-consumer-groups"


@contextmanager
def _member(tools: Tools, topic: str, group: str, protocol: str) -> Iterator[None]:
    """A consumer that has partitions of `topic`."""
    options = ("--topic", topic, "--group-id", group, "--group-protocol", protocol, "--reset-policy", "earliest")
    process = tools.start("kafka-verifiable-consumer", *options)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "partitions_assigned" in line:
                break
        else:
            raise AssertionError(f"a member of {group} ended with {process.wait()}")
        yield
    finally:
        processes.stop(process)


def _committed(tools: Tools, group: str, topic: str) -> dict[int, int]:
    said = tools.run(GROUPS, "--describe", "--group", group, "--offsets")
    return {int(row[2]): int(row[3]) for row in rows(said) if row[:2] == [group, topic] and row[3] != "-"}


def _commit(tools: Tools, group: str, *offsets: TopicPartition) -> None:
    def done() -> bool:
        """A topic that has just been made may be unknown for a moment."""
        request = ConsumerGroupTopicPartitions(group, list(offsets))
        [answer] = tools.admin.alter_consumer_group_offsets([request]).values()
        return all(each.error is None for each in answer.result(30).topic_partitions)

    wait_until(done, "offsets are committed")


def groups_of_both_protocols_are_listed_and_described(tools: Tools) -> None:
    topic = tools.topic(partitions=2)
    tools.produce(topic, "a", "b", "c")
    for protocol, kind, assignor in (("CLASSIC", "Classic", "range"), ("CONSUMER", "Consumer", "uniform")):
        _one_group_is_listed_and_described(tools, topic, protocol, kind, assignor)
    found("does not exist|not found", tools.says(GROUPS, "--describe", "--group", f"{tools.name}-not"))
    everything = tools.run(GROUPS, "--describe", "--all-groups")
    for protocol in ("CLASSIC", "CONSUMER"):
        assert f"{tools.name}-{protocol}" in everything, everything


def _one_group_is_listed_and_described(tools: Tools, topic: str, protocol: str, kind: str, assignor: str) -> None:
    group = f"{tools.name}-{protocol}"
    described = (GROUPS, "--describe", "--group", group)
    with _member(tools, topic, group, protocol):
        wait_until(lambda: _committed(tools, group, topic).get(0) == 3, "it commits")
        found(rf"^{group} +Stable", tools.run(GROUPS, "--list", "--state", "stable"))
        found(rf"^{group} +{kind}\b", tools.run(GROUPS, "--list", "--type", kind.lower()))
        found(rf"^{group} +{kind} +consumer\b", tools.run("kafka-groups", "--list", "--consumer"))
        [first, second] = [row for row in rows(tools.run(*described)) if row[:2] == [group, topic]]
        assert first[2:6] == ["0", "3", "3", "0"], first
        assert second[2] == "1", second
        assert first[7] == "/127.0.0.1", first
        state = tools.run(*described, "--state")
        found(rf"^{group} +127\.0\.0\.1:\d+ +\(1\) +{assignor} +Stable +1\b", state)
        [member] = [row for row in rows(tools.run(*described, "--members")) if row[0] == group]
        assert member[2] == "/127.0.0.1", member
        assert "2" in member[4:], f"two partitions: {member}"
        found(rf"{topic}(\(0,1\)|:0,1)", tools.run(*described, "--members", "--verbose"))
        said = tools.says(GROUPS, "--reset-offsets", "--to-earliest", "--topic", topic, "--group", group, "--execute")
        found("inactive", said)
        found("GroupNotEmpty", tools.says(GROUPS, "--delete", "--group", group))
    wait_until(lambda: "Empty" in tools.run(*described, "--state"), "it leaves")
    found(rf"{topic} +0 +3 +3 +0 +- +- +-", tools.run(*described))


def offsets_of_a_group_are_reset_in_every_way(tools: Tools) -> None:
    topic, group = tools.topic(partitions=2, retention_ms="-1"), tools.name
    tools.produce(topic, *"abcdef", timestamps=tuple(1_700_000_000_000 + 1000 * number for number in range(6)))
    tools.produce(topic, *"xy", partition=1, timestamps=(1_700_000_000_000, 1_700_000_009_000))
    start = (TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 1))
    _commit(tools, group, *start)
    for how, expected in (
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-latest",), {0: 6, 1: 2}),
        (("--to-current",), {0: 6, 1: 2}),
        (("--to-offset", "4"), {0: 4, 1: 2}),  # of partition 1 the last there is
        (("--shift-by", "-2"), {0: 2, 1: 0}),
        (("--shift-by", "3"), {0: 5, 1: 2}),
        (("--to-datetime", "2023-11-14T22:13:22.500"), {0: 3, 1: 1}),
        (("--by-duration", "P3650D"), {0: 0, 1: 0}),
    ):
        reset = ("--reset-offsets", "--group", group, "--topic", topic, *how)
        tools.run(GROUPS, *reset, "--execute")
        assert _committed(tools, group, topic) == expected, how
    _commit(tools, group, *start)
    planned = tools.run(
        GROUPS, "--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--dry-run", "--export"
    )
    assert sorted(planned.split()) == [f"{topic},0,0", f"{topic},1,0"], planned
    assert _committed(tools, group, topic) == {0: 3, 1: 1}, "a dry run has changed something"
    plan = tools.file("plan.csv", f"{topic},0,5\n{topic},1,2\n")
    tools.run(GROUPS, "--reset-offsets", "--group", group, "--from-file", plan, "--execute")
    tools.run(GROUPS, "--reset-offsets", "--group", group, "--topic", f"{topic}:1", "--to-earliest", "--execute")
    assert _committed(tools, group, topic) == {0: 5, 1: 0}


def offsets_and_groups_are_deleted(tools: Tools) -> None:
    topics = [tools.topic(f"{tools.name}-{number}") for number in range(2)]
    _commit(tools, tools.name, *(TopicPartition(topic, 0, 0) for topic in topics))
    found(
        rf"{topics[0]} +0 +Successful",
        tools.run(GROUPS, "--delete-offsets", "--group", tools.name, "--topic", topics[0]),
    )
    assert _committed(tools, tools.name, topics[0]) == {}
    assert _committed(tools, tools.name, topics[1]) == {0: 0}
    found(f"{tools.name}.*successful", tools.run(GROUPS, "--delete", "--group", tools.name))
    assert tools.name not in tools.run(GROUPS, "--list").split()
    found("GroupIdNotFound", tools.says(GROUPS, "--delete", "--group", tools.name))
    found("(?i)valid", tools.says(GROUPS, "--validate-regex", "a.*", at=False))


def an_application_of_streams_is_reset(tools: Tools) -> None:
    topic, internal = tools.topic(partitions=2), tools.topic(f"{tools.name}-app-store-changelog")
    tools.produce(topic, "a", "b", "c")
    application = f"{tools.name}-app"
    _commit(tools, application, TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0))
    reset = ("--application-id", application, "--input-topics", topic)
    tools.run("kafka-streams-application-reset", *reset, "--dry-run")
    assert _committed(tools, application, topic) == {0: 3, 1: 0}
    assert internal in tools.run("kafka-topics", "--list").split()
    tools.run("kafka-streams-application-reset", *reset, "--force")
    assert _committed(tools, application, topic).get(0, 0) == 0
    wait_until(lambda: internal not in tools.run("kafka-topics", "--list").split(), "its topic is gone")


TESTS = (
    groups_of_both_protocols_are_listed_and_described,
    offsets_of_a_group_are_reset_in_every_way,
    offsets_and_groups_are_deleted,
    an_application_of_streams_is_reset,
)
