"""Tools for transactions."""

import json

from confluent_kafka import KafkaException

from conformance.tools.kit import Tools, found, rows, wait_until

TRANSACTIONS = "kafka-transactions"


def transactions_and_producers_are_listed_and_described(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "one")
    producer.flush(30)
    found(rf"^{tools.name}\s+\d+\s+\d+\s+Ongoing", tools.run(TRANSACTIONS, "list"))
    [_, described] = rows(tools.run(TRANSACTIONS, "describe", "--transactional-id", tools.name))
    assert described[1] == tools.name, described
    assert described[4] == "Ongoing", described
    assert described[-1] == f"{topic}-0", described
    [_, active] = rows(tools.run(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"))
    assert active[:2] == described[2:4], f"another producer than the coordinator's: {active}"
    assert active[-1] == "0", f"where its transaction begins: {active}"
    producer.commit_transaction(30)
    found(rf"^{tools.name}\s+\d+\s+\d+\s+CompleteCommit", tools.run(TRANSACTIONS, "list"))
    assert tools.name not in tools.run(TRANSACTIONS, "list", "--duration-filter", "60000")
    [_, ended] = rows(tools.run(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0"))
    assert ended[-1] == "None", ended
    found(
        "the ID could not be found", tools.refused(TRANSACTIONS, "describe", "--transactional-id", f"{tools.name}-not")
    )


def a_transaction_is_ended_by_force(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "left")
    producer.flush(30)
    tools.run(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", tools.name)
    found(rf"^{tools.name}\s+\d+\s+\d+\s+(CompleteAbort|Empty)", tools.run(TRANSACTIONS, "list"))
    tools.produce(topic, "after")
    read = _committed(tools, topic, 1)
    assert read == ["after"], read
    try:
        producer.commit_transaction(30)
    except KafkaException:
        return
    raise AssertionError("its producer committed it all the same")


def hanging_transactions_are_looked_for_and_ended_in_their_partition(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "left")
    producer.flush(30)
    said = tools.run(TRANSACTIONS, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    assert topic not in said, f"one that its coordinator knows does not hang: {said}"
    tools.run(TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    tools.produce(topic, "after")
    read = _committed(tools, topic, 1)
    assert read == ["after"], read
    said = tools.refused(TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    found("Could not find any open transactions", said)


def records_are_copied_in_transactions_that_abort_at_random(tools: Tools) -> None:
    """Kafka's own copier: what it read and what it wrote are committed together, over aborts."""
    source, target = tools.topic(f"{tools.name}-from", partitions=2), tools.topic(f"{tools.name}-to", partitions=2)
    for partition in range(2):
        lines = [f"{partition}-{number}" for number in range(500)]
        tools.produce(source, *lines, partition=partition)
        said = tools.run(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", tools.bootstrap, "--input-topic", source, "--input-partition", str(partition)),
            *("--output-topic", target, "--consumer-group", tools.name),
            *("--transactional-id", f"{tools.name}-{partition}"),
            *("--transaction-size", "50", "--enable-random-aborts", "--use-group-metadata"),
            at=False,
        )
        last = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
        assert last["remaining"] == 0, last
        read = _committed(tools, target, 500, "--partition", str(partition))
        assert read == lines, f"{len(read)} of 500, or not once and in order"
    said = tools.run("kafka-consumer-groups", "--describe", "--group", tools.name)
    assert {row[2]: row[3] for row in rows(said) if row[:2] == [tools.name, source]} == {"0": "500", "1": "500"}, said


def _committed(tools: Tools, topic: str, count: int, *more: str) -> list[str]:
    """The first values in committed transactions."""
    read = tools.run(
        "kafka-console-consumer",
        *("--topic", topic, "--isolation-level", "read_committed"),
        *("--max-messages", str(count), "--timeout-ms", "30000"),
        *(more or ("--from-beginning",)),
        *(("--offset", "earliest") if more else ()),
    )
    return read.split()


def a_transaction_that_is_left_open_is_over_when_its_time_is(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional(**{"transaction.timeout.ms": 2000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "left")
    producer.flush(30)
    wait_until(
        lambda: "CompleteAbort" in tools.run(TRANSACTIONS, "describe", "--transactional-id", tools.name),
        "it is aborted",
    )


TESTS = (
    transactions_and_producers_are_listed_and_described,
    a_transaction_is_ended_by_force,
    hanging_transactions_are_looked_for_and_ended_in_their_partition,
    records_are_copied_in_transactions_that_abort_at_random,
    a_transaction_that_is_left_open_is_over_when_its_time_is,
)
