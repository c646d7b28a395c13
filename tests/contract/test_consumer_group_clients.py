"""`group.protocol=consumer` with unmodified clients: librdkafka and Kafka's Java tools, alone and among
classic members."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType

from tests.contract.clients import Log, Sent, produce, wait_until
from tests.support import kafka_tools, processes


class Member:
    """A consumer that polls in a thread, and knows what it has been given and has read."""

    def __init__(self, log: Log, group: str, *topics: str, protocol: str = "consumer", **settings: object) -> None:
        fast = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300} if protocol == "classic" else {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": log.bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                **({"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}),
                **fast,
                **settings,
            }
        )
        self.has: set[int] = set()
        self.read: list[str] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[object]) -> None:
        self.has |= {one.partition for one in partitions}  # type: ignore[attr-defined]

    def _revoked(self, consumer: Consumer, partitions: list[object]) -> None:
        self.has -= {one.partition for one in partitions}  # type: ignore[attr-defined]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                one = self._consumer.poll(0.1)
                if one is not None and one.error() is None:
                    self.read.append(one.value().decode())
                elif one is not None and one.error().fatal():
                    self.failed.append(str(one.error()))
        finally:
            self._consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.failed == []


@contextmanager
def members(*started: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for one in started:
            one.close()


def shared(*group: Member, partitions: int = 4) -> Callable[[], bool]:
    """True when everybody has some, and all have all."""

    def check() -> bool:
        has = [number for one in group for number in one.has]
        return sorted(has) == list(range(partitions)) and all(one.has for one in group)

    return check


def tool(log: Log, *arguments: str) -> str:
    return kafka_tools.run("kafka-consumer-groups", "--bootstrap-server", log.bootstrap, *arguments).stdout


def describe(log: Log, group: str) -> tuple[ConsumerGroupState, ConsumerGroupType]:
    admin = log.admin()  # it has to outlive its answer
    found = admin.describe_consumer_groups([group])[group].result(30)
    return found.state, found.type


def send(log: Log, topic: str, first: int, count: int) -> list[str]:
    values = [str(number) for number in range(first, first + count)]
    produce("confluent", log, topic, [Sent(value, key=value) for value in values])
    return values


def test_members_share_and_hand_over(log: Log, name: str) -> None:
    log.create(name, 4)
    first = Member(log, name, name)
    with members(first):
        wait_until(shared(first), "the first one has all")
        sent = send(log, name, 0, 40)
        wait_until(lambda: sorted(first.read) == sorted(sent), "all is read")
        second = Member(log, name, name)
        with members(second):
            wait_until(shared(first, second), "both have some")
            assert describe(log, name) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
            more = send(log, name, 40, 40)
            wait_until(lambda: sorted(first.read + second.read) == sorted(sent + more), "all is read once")
        wait_until(shared(first), "the first one has all again")
        assert sorted(first.read + second.read) == sorted(sent + more), "nothing is read twice"


def test_an_expression_is_followed(log: Log, name: str) -> None:
    log.create(f"{name}-a")
    reader = Member(log, name, f"^{name}-.*", **{"topic.metadata.refresh.interval.ms": 1000})
    with members(reader):
        send(log, f"{name}-a", 0, 1)
        wait_until(lambda: reader.read == ["0"], "the first topic is read")
        log.create(f"{name}-b")
        send(log, f"{name}-b", 1, 1)
        wait_until(lambda: sorted(reader.read) == ["0", "1"], "the new topic is read")


def test_a_static_member_that_is_restarted_keeps_its_partitions(log: Log, name: str) -> None:
    log.create(name, 4)
    stays = Member(log, name, name, **{"group.instance.id": "stays"})
    with members(stays):
        leaves = Member(log, name, name, **{"group.instance.id": "leaves"})
        with members(leaves):
            wait_until(shared(stays, leaves), "both have some")
            had = set(leaves.has)
        assert stays.has == set(range(4)) - had
        again = Member(log, name, name, **{"group.instance.id": "leaves"})
        with members(again):
            wait_until(lambda: again.has == had, "the second one has what it had")
            assert stays.has == set(range(4)) - had


def test_a_service_is_upgraded_and_downgraded_while_it_reads(log: Log, name: str) -> None:
    log.create(name, 4)
    sent = send(log, name, 0, 20)
    old = Member(log, name, name, protocol="classic")
    with members(old):
        wait_until(shared(old), "the classic one has all")
        new = Member(log, name, name)
        with members(new):
            wait_until(shared(old, new), "both protocols share")
            assert describe(log, name)[1] is ConsumerGroupType.CONSUMER
            sent += send(log, name, 20, 20)
            wait_until(lambda: set(old.read + new.read) == set(sent), "all is read")
        wait_until(shared(old), "the classic one has all again")
        assert describe(log, name)[1] is ConsumerGroupType.CLASSIC
        sent += send(log, name, 40, 20)
        wait_until(lambda: set(old.read + new.read) == set(sent), "all is read")


def test_kafkas_tools_read_and_describe(log: Log, name: str) -> None:
    log.create(name, 2)
    sent = send(log, name, 0, 6)
    command = kafka_tools.command(
        "kafka-console-consumer",
        *("--bootstrap-server", log.bootstrap, "--topic", name, "--group", name),
        *("--command-property", "group.protocol=consumer", "--command-property", "auto.offset.reset=earliest"),
        *("--command-property", "client.id=console"),
    )
    reader = processes.start(command, stdout=subprocess.PIPE, text=True)
    try:
        read = [reader.stdout.readline().strip() for _ in range(6)]
        assert sorted(read) == sent
        wait_until(
            lambda: "console" in tool(log, "--describe", "--group", name, "--members"), "it is a member", seconds=60
        )
        verbose = tool(log, "--describe", "--group", name, "--members", "--verbose")
        assert f"{name}:0,1" in verbose or f"{name}(0,1)" in verbose, verbose
        state = tool(log, "--describe", "--group", name, "--state")
        assert "Stable" in state
        assert "uniform" in state
    finally:
        processes.stop(reader)
        reader.stdout.close()
    wait_until(lambda: "Empty" in tool(log, "--describe", "--group", name, "--state"), "it has left", seconds=90)
    assert name in tool(log, "--list", "--type", "consumer")
    offsets = tool(log, "--describe", "--group", name, "--offsets")
    assert offsets.count(name) >= 2
    assert "was successful" in tool(log, "--delete", "--group", name)
