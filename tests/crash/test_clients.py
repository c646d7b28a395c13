"""librdkafka's producers and consumers, and a log that is killed under them over and over: nothing acknowledged is
lost, nothing is there twice, in another order, torn, or seen and gone.

    make crash N=1000      so many kills
"""

import os
import random
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import mainstem
from mainstem.embedded_log import ChildLog
from tests.support.observed import Observed, Place, Seen

PLAIN, LARGE, IN_TRANSACTIONS = "plain", "large", "in-transactions"
TOPICS = {
    PLAIN: {"segment.bytes": "100000"},
    LARGE: {"segment.bytes": "10000000", "max.message.bytes": "8000000"},
    IN_TRANSACTIONS: {"segment.bytes": "100000"},
}
PARTITIONS = 2
MOST_ON_THEIR_WAY = 5_000
LARGE_VALUE = 250_000  # bytes; some of them together are brought to the disk where they belong, not in the journal
SOON = {
    "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "fetch.error.backoff.ms": 20, "log_level": 0,
    "metadata.recovery.strategy": "none",
}  # fmt: skip
"""A killed log is back within a second, and is found then. (librdkafka would otherwise take the end of its only
connection for the loss of all brokers, forget who leads what, and ask for it seconds later: longer than most of these
lives.)"""
LATER = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}


def place_of(message: Message) -> Place:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Place(topic, partition, offset)


def value_named(name: str) -> bytes:
    """What is sent under a name: of a large one, too, every byte is known."""
    filling = f"{name}:".encode()
    return filling * (LARGE_VALUE // len(filling)) if name.startswith("l") else filling


def name_of(message: Message) -> str:
    value = message.value()
    assert value is not None
    name = value[: value.index(b":")].decode()
    assert value == value_named(name), f"{name} at {place_of(message)} is not what was sent"
    return name


class Clients:
    """Three senders and three readers, each in a thread of its own, until `stop`."""

    def __init__(self, log: ChildLog, seed: int) -> None:
        self.bootstrap = log.bootstrap
        self.random = random.Random(seed)
        self.observed = Observed()
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.seen: dict[str, list[Seen]] = {topic: [] for topic in TOPICS}
        senders: list[Callable[[], None]] = [self.send, self.send_large, self.send_in_transactions]
        readers = [
            lambda: self.read(PLAIN, "read_uncommitted", self.observed.polls),
            lambda: self.read(LARGE, "read_uncommitted", self.observed.polls),
            lambda: self.read(IN_TRANSACTIONS, "read_committed", self.observed.committed_polls),
        ]
        self.threads = [threading.Thread(target=self.run, args=(each,)) for each in (*senders, *readers)]

    def run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)
            self.stop.set()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.observed.acknowledged[name_of(message)] = place_of(message)

    def put(self, producer: Producer, sender: str, topic: str, name: str, partition: int) -> None:
        self.observed.sent[sender, topic, partition].append(name)
        producer.produce(topic, value_named(name), partition=partition, on_delivery=self.delivered)

    def send(self) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 2,
            "message.timeout.ms": 300_000, **SOON,
        })  # fmt: skip
        number = 0
        while not self.stop.is_set():
            for _ in range(20):
                self.put(producer, "sender", PLAIN, f"p{number}", number % PARTITIONS)
                number += 1
            producer.poll(0.005)
            while len(producer) > MOST_ON_THEIR_WAY and not self.stop.is_set():
                producer.poll(0.05)
        assert producer.flush(120) == 0

    def send_large(self) -> None:
        """So many at once that batches of megabytes come of them, one way or the other, and then none for a while."""
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20, "batch.size": 4_000_000,
            "message.max.bytes": 8_000_000, "message.timeout.ms": 300_000, **SOON,
        })  # fmt: skip
        number = 0
        while not self.stop.is_set():
            for _ in range(self.random.randint(1, 12)):
                self.put(producer, "sender of large ones", LARGE, f"l{number}", number // 6 % PARTITIONS)
                number += 1
            while len(producer) and not self.stop.is_set():
                producer.poll(0.05)
            self.stop.wait(self.random.uniform(0, 0.2))
        assert producer.flush(120) == 0

    def send_in_transactions(self) -> None:
        number = 0
        while not self.stop.is_set():
            # One that has failed for good is followed by another with its id, as a restarted program would be.
            producer = Producer({
                "bootstrap.servers": self.bootstrap, "transactional.id": "t", "transaction.timeout.ms": 20_000, **SOON,
            })  # fmt: skip
            patiently(producer.init_transactions)
            try:
                while not self.stop.is_set():
                    self.one_transaction(producer, number)
                    number += 1
            except KafkaException as error:
                if not error.args[0].fatal():
                    raise
                number += 1

    def one_transaction(self, producer: Producer, number: int) -> None:
        values = [f"t{number}-{n}" for n in range(self.random.randint(1, 12))]
        self.observed.transactions[str(number)] = (values, "unknown")
        producer.begin_transaction()
        try:
            for n, value in enumerate(values):
                self.put(producer, f"transaction {number}", IN_TRANSACTIONS, value, n % PARTITIONS)
            if self.random.random() < 0.7:
                patiently(producer.commit_transaction)
                self.observed.transactions[str(number)] = (values, "committed")
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        patiently(producer.abort_transaction)
        self.observed.transactions[str(number)] = (values, "aborted")

    def read(self, topic: str, isolation: str, polls: dict[str, list[Seen]]) -> None:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": isolation, "isolation.level": isolation,
            "enable.auto.commit": False, **SOON,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found = polls[f"a reader of {topic}, {isolation}"] = self.seen[topic] = []
        while not self.stop.is_set():
            found += seen_of(consumer.consume(500, 0.1))
        consumer.close()

    def wait_until_each_reader_has_seen_more(self) -> None:
        """Else a slow machine's clients come to nothing between two kills."""
        before = {topic: len(found) for topic, found in self.seen.items()}
        until = time.monotonic() + 120
        while not self.stop.is_set() and (still := {t for t in before if len(self.seen[t]) == before[t]}):
            assert time.monotonic() < until, f"the log is there, and nothing more is read of {still}"
            self.stop.wait(0.01)

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise self.failures[0]


def patiently(call: Callable[[], None]) -> None:
    """Until the log is there again; what cannot be mended by that is raised."""
    until = time.monotonic() + 120
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until:
                raise
        else:
            return


def seen_of(messages: list[Message]) -> list[Seen]:
    found = []
    for message in messages:
        if (error := message.error()) is None:
            found.append(Seen(place_of(message), name_of(message)))
        else:
            assert error.code() in LATER, error
    return found


def everything(bootstrap: str, isolation: str) -> list[Seen]:
    """All records of all topics, by a client that comes afterwards."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "afterwards", "isolation.level": isolation,
        "enable.partition.eof": True, "enable.auto.commit": False,
    })  # fmt: skip
    open_ends = {(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in open_ends])
    found, until = [], time.monotonic() + 120
    while open_ends:
        messages = consumer.consume(1_000, 0.2)
        if messages:  # a thousand kills leave millions
            until = time.monotonic() + 120
        assert time.monotonic() < until, f"no end of {open_ends}"
        for message in messages:
            error = message.error()
            if error is None:
                found.append(Seen(place_of(message), name_of(message)))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_ends.discard((message.topic(), message.partition()))
    consumer.close()
    return found


def kill_over_and_over(kills: int, seed: int) -> Observed:
    print(f"seed {seed}")
    pauses = random.Random(seed)
    with mainstem.embedded(child=True) as log:
        for topic, config in TOPICS.items():
            log.create_topic(topic, partitions=PARTITIONS, config=config)
        with Clients(log, seed) as clients:
            for number in range(kills):
                if number % 2:
                    clients.wait_until_each_reader_has_seen_more()
                if clients.stop.wait(pauses.uniform(0.05, 1.0)):
                    break
                log.kill()
                log.start()
        observed = clients.observed
        observed.final = everything(log.bootstrap, "read_uncommitted")
        observed.final_committed = everything(log.bootstrap, "read_committed")
    return observed


def check(kills: int) -> None:
    observed = kill_over_and_over(kills, random.randrange(1 << 30))
    assert observed.anomalies() == []
    ends = [end for _, end in observed.transactions.values()]
    print(
        f"{kills} kills: {len(observed.acknowledged)} records acknowledged, {ends.count('committed')} transactions"
        f" committed, {ends.count('aborted')} aborted, {ends.count('unknown')} not known; readers that were there saw"
        f" {sum(map(len, observed.polls.values()))} and {sum(map(len, observed.committed_polls.values()))}"
    )
    assert len(observed.acknowledged) > 10 * kills
    assert ends.count("committed") > kills // 4


@pytest.mark.timeout(600)
def test_a_log_that_is_killed_under_clients_keeps_its_promises():
    check(8)


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_a_log_that_is_killed_under_clients_many_times_keeps_its_promises():
    check(int(os.environ.get("MAINSTEM_KILLS", "100")))


def at(offset: int, value: str, *, topic: str = PLAIN) -> Seen:
    return Seen(Place(topic, 0, offset), value)


GOOD = {
    "sent": {("s", PLAIN, 0): ["a", "b"], ("t", PLAIN, 0): ["x", "y"]},
    "acknowledged": {"a": at(0, "a").place, "b": at(1, "b").place},
    "transactions": {"1": (["x", "y"], "committed"), "2": (["z"], "aborted")},
    "polls": {"r": [at(0, "a"), at(1, "b")]},
    "committed_polls": {"c": [at(2, "x")]},
    "final": [at(0, "a"), at(1, "b"), at(2, "x"), at(3, "y"), at(4, "z")],
    "final_committed": [at(0, "a"), at(1, "b"), at(2, "x"), at(3, "y")],
}


@pytest.mark.parametrize(("changed", "told"), [
    ({}, ""),
    ({"final": [at(0, "a"), at(2, "x"), at(3, "y")], "polls": {}}, "lost: b"),
    ({"final": [at(0, "a"), at(1, "c"), at(2, "x"), at(3, "y")], "polls": {}}, "lost: b"),
    ({"acknowledged": {"x": at(7, "x").place}}, "lost: x"),
    ({"final": [*GOOD["final"], at(5, "a")]}, "duplicated: a"),
    ({"sent": {("s", PLAIN, 0): ["b", "a"]}}, "reordered: s sent b before a"),
    ({"polls": {"r": [at(1, "c")]}}, "disagreeing: r saw c"),
    ({"committed_polls": {"c": [at(9, "x")]}}, "disagreeing: c saw x"),
    ({"polls": {"r": [at(1, "b"), at(0, "a")]}}, "backward: r saw offset 0"),
    ({"polls": {"r": [at(1, "b"), at(1, "b")]}}, "backward: r saw offset 1"),
    ({"committed_polls": {"c": [at(4, "z")]}}, "aborted read: c saw z"),
    ({"final_committed": [*GOOD["final_committed"], at(4, "z")]}, "aborted read: the last reader saw z"),
    ({"final_committed": GOOD["final_committed"][:-1]}, "torn: of committed 1 1 of 2"),
    ({"transactions": {"1": (["x", "y"], "unknown")}, "final_committed": GOOD["final_committed"][:-1]}, "torn: of 1"),
])  # fmt: skip
def test_each_broken_promise_is_found(changed, told):
    anomalies = Observed(**(GOOD | changed)).anomalies()
    assert (not anomalies) == (not told), anomalies
    assert not told or any(each.startswith(told) for each in anomalies), anomalies
