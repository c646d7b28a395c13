"""Consumer groups with unmodified clients: members share partitions, offsets are kept, tools see and change them."""

import asyncio
import re
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from tests.contract.clients import Log, Sent, produce, wait_until
from tests.support import kafka_tools, processes

FAST = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest"}


def member(log: Log, group: str, **settings: object) -> Consumer:
    return Consumer(
        {"bootstrap.servers": log.bootstrap, "group.id": group, "enable.auto.commit": False, **FAST, **settings}
    )


def take(consumer: Consumer, count: int, *, seconds: float = 60) -> list[str]:
    got: list[str] = []
    until = time.monotonic() + seconds
    while len(got) < count:
        assert time.monotonic() < until, f"{len(got)} of {count} records"
        for one in consumer.consume(count - len(got), 0.5):
            assert one.error() is None, one.error()
            got.append(one.value().decode())
    return got


def tool(log: Log, *arguments: str) -> str:
    return kafka_tools.run("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, *arguments).stdout


def test_a_group_goes_on_where_it_committed(log: Log, topic: str, name: str) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(10)])
    first = member(log, name)
    first.subscribe([topic])
    assert take(first, 4) == ["0", "1", "2", "3"]
    first.commit(asynchronous=False)
    first.close()
    second = member(log, name)
    second.subscribe([topic])
    assert take(second, 6) == [str(number) for number in range(4, 10)]
    second.close()


def test_what_one_client_commits_another_goes_on_from(log: Log, topic: str, name: str) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(6)])

    async def take_and_commit(count: int) -> list[str]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=log.bootstrap,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        async with consumer:
            got = [(await asyncio.wait_for(consumer.getone(), 60)).value.decode() for _ in range(count)]
            await consumer.commit()
            return got

    assert asyncio.run(take_and_commit(2)) == ["0", "1"]
    confluent = member(log, name)
    confluent.subscribe([topic])
    assert take(confluent, 2) == ["2", "3"]
    confluent.commit(asynchronous=False)
    committed = confluent.committed([Place(topic, 0)], timeout=10)
    assert committed[0].offset == 4
    confluent.close()
    java = kafka_tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", log.bootstrap, "--topic", topic, "--group", name),
        *("--max-messages", "2", "--timeout-ms", "60000"),
    )
    assert java.stdout.split() == ["4", "5"]
    [row] = [line.split() for line in tool(log, "--describe", "--group", name).splitlines() if topic in line]
    assert row[:6] == [name, topic, "0", "6", "6", "0"]  # it commits when it ends


def test_two_members_share_the_partitions_and_one_that_leaves_gives_its_own_back(log: Log, name: str) -> None:
    topic = log.create(name, partitions=4)
    members = [member(log, name, **{"client.id": f"m{number}"}) for number in range(2)]
    for one in members:
        one.subscribe([topic])

    def shares() -> list[set[int]]:
        for one in members:
            one.poll(0.05)
        return [{place.partition for place in one.assignment()} for one in members]

    def fair() -> bool:
        first, second = shares()
        return len(first) == len(second) == 2 and first | second == {0, 1, 2, 3}

    wait_until(fair, "each has two partitions", seconds=60)
    members.pop().close()
    wait_until(lambda: shares() == [{0, 1, 2, 3}], "the other has all", seconds=60)
    members[0].close()


def test_the_partitions_of_a_member_that_died_go_to_the_others(log: Log, name: str) -> None:
    """A Java consumer is killed: its session runs out, and the other member gets everything."""
    topic = log.create(name, partitions=2)
    dying = processes.start(
        kafka_tools.command(
            "kafka-console-consumer",
            *("--bootstrap-server", log.bootstrap, "--topic", topic, "--group", name),
            *("--command-property", "session.timeout.ms=6000", "--command-property", "heartbeat.interval.ms=1000"),
        )
    )
    survivor = member(log, name)
    survivor.subscribe([topic])
    try:
        wait_until(lambda: survivor.poll(0.1) is None and len(survivor.assignment()) == 1, "they share", seconds=60)
        dying.kill()
        wait_until(lambda: survivor.poll(0.1) is None and len(survivor.assignment()) == 2, "it has both", seconds=60)
    finally:
        processes.stop(dying)
        survivor.close()


def test_cooperative_members_keep_what_they_have(log: Log, name: str) -> None:
    topic = log.create(name, partitions=4)
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    first, second = member(log, name, **settings), member(log, name, **settings)
    lost: list[int] = []
    first.subscribe([topic], on_revoke=lambda _, places: lost.extend(place.partition for place in places))

    def polled(count: int, *members: Consumer) -> Callable[[], bool]:
        def check() -> bool:
            for one in members:
                one.poll(0.05)
            return all(len(one.assignment()) == count for one in members)

        return check

    wait_until(polled(4, first), "the first has all", seconds=60)
    second.subscribe([topic])
    wait_until(polled(2, first, second), "they share", seconds=60)
    assert len(lost) == 2
    second.close()
    first.close()


def test_a_static_member_that_comes_back_keeps_its_partitions_without_a_rebalance(log: Log, name: str) -> None:
    topic = log.create(name, partitions=2)
    other, static = member(log, name), member(log, name, **{"group.instance.id": "fixed"})
    revoked: list[object] = []
    other.subscribe([topic], on_revoke=lambda _, places: revoked.append(places))
    static.subscribe([topic])

    def settled() -> bool:
        other.poll(0.05)
        static.poll(0.05)
        return len(other.assignment()) == len(static.assignment()) == 1

    wait_until(settled, "they share", seconds=60)
    had = static.assignment()
    revoked.clear()
    static.close()  # a static member does not leave when it closes
    static = member(log, name, **{"group.instance.id": "fixed"})
    static.subscribe([topic])
    wait_until(settled, "it is back", seconds=60)
    assert static.assignment() == had
    assert revoked == []
    other.close()
    static.close()


def test_the_groups_tool_lists_describes_and_shows_the_lag(log: Log, topic: str, name: str) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(10)])
    consumer = member(log, name, **{"client.id": "the-client"})
    consumer.subscribe([topic])
    take(consumer, 3)
    consumer.commit(asynchronous=False)
    listed, described, members, state = kafka_tools.run_together(
        ("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, "--list", "--state"),
        ("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, "--describe", "--group", name),
        ("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, "--describe", "--group", name, "--members"),
        ("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, "--describe", "--group", name, "--state"),
    )
    assert re.search(rf"^{name}\s.*Stable", listed, re.MULTILINE)
    [row] = [line.split() for line in described.splitlines() if topic in line]
    columns = next(line.split() for line in described.splitlines() if line.startswith("GROUP"))
    shown = dict(zip(columns, row, strict=False))
    assert (shown["PARTITION"], shown["CURRENT-OFFSET"], shown["LOG-END-OFFSET"], shown["LAG"]) == ("0", "3", "10", "7")
    assert "the-client" in members
    assert "Stable" in state
    consumer.close()


def test_the_groups_tool_resets_and_deletes(log: Log, topic: str, name: str) -> None:
    produce("confluent", log, topic, [Sent(str(number)) for number in range(10)])
    consumer = member(log, name)
    consumer.subscribe([topic])
    take(consumer, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    shown = tool(log, "--group", name, "--topic", topic, "--reset-offsets", "--to-offset", "6", "--execute")
    assert re.search(rf"{name}\s+{topic}\s+0\s+6", shown)
    again = member(log, name)
    again.subscribe([topic])
    assert take(again, 4) == ["6", "7", "8", "9"]
    again.close()
    assert "Successful" in tool(log, "--group", name, "--topic", topic, "--delete-offsets")
    assert "was successful" in tool(log, "--delete", "--group", name)
    assert name not in tool(log, "--list").split()


def test_a_group_with_members_is_not_deleted(log: Log, topic: str, name: str) -> None:
    consumer = member(log, name)
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 1, "it is a member", seconds=60)
    result = kafka_tools.run(
        *("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, "--delete", "--group", name), check=False
    )
    assert "GroupNotEmptyException" in result.stdout + result.stderr
    consumer.close()


def test_the_admin_client_sees_and_alters_offsets(log: Log, topic: str, name: str) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    produce("confluent", log, topic, [Sent(str(number)) for number in range(5)])
    admin = log.admin()
    wanted = ConsumerGroupTopicPartitions(name, [Place(topic, 0, 2)])
    admin.alter_consumer_group_offsets([wanted])[name].result(30)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(30)
    assert [(place.topic, place.partition, place.offset) for place in found.topic_partitions] == [(topic, 0, 2)]
    consumer = member(log, name)
    consumer.subscribe([topic])
    assert take(consumer, 3) == ["2", "3", "4"]
    consumer.close()


def test_a_commit_of_a_member_that_was_replaced_is_refused(log: Log, topic: str, name: str) -> None:
    """A reader that was away for longer than its session must not move the group's offsets back."""
    from aiokafka.errors import CommitFailedError

    produce("confluent", log, topic, [Sent(str(number)) for number in range(4)])

    async def run() -> None:
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=log.bootstrap,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as stale:
            await asyncio.wait_for(stale.getone(), 60)
            generation, member_id = stale._coordinator.generation, stale._coordinator.member_id
            stale._coordinator.generation = generation - 1
            with pytest.raises(CommitFailedError):
                await stale.commit({TopicPartition(topic, 0): 1})
            stale._coordinator.generation, stale._coordinator.member_id = generation, member_id

    asyncio.run(run())
