"""kafka-dump-log, which reads the files themselves: an opinion on them that is not ours."""

import re
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from conformance.tools.kit import Tools, found

DUMP = "kafka-dump-log"


def segments_and_indexes_are_read_live_and_closed(tools: Tools) -> None:
    topic = tools.topic(segment_bytes="1048576", index_interval_bytes="4096")
    written = ("--num-records", "3000", "--record-size", "1000", "--throughput", "-1")
    tools.run("kafka-producer-perf-test", "--topic", topic, *written, "--command-property", "batch.size=8000")
    directory = tools.server.data / f"{topic}-0"
    _segments_are_read(tools, directory)
    tools.server.stop()  # what an index has is on the disk by now
    try:
        _segments_are_read(tools, directory)
        for pattern in ("*.index", "*.timeindex"):
            indexes = sorted(directory.glob(pattern))
            assert len(indexes) >= 3, f"{pattern} in {[path.name for path in directory.iterdir()]}"
            said = tools.run(DUMP, "--files", ",".join(map(str, indexes)), at=False)
            for complaint in ("Mismatches", "timestamp mismatch", "out of order"):
                assert complaint not in said, said[-1000:]
            for index in indexes:
                found("passed sanity check", tools.run(DUMP, "--index-sanity-check", "--files", str(index), at=False))
    finally:
        tools.server.start()


def _segments_are_read(tools: Tools, directory: Path) -> None:
    segments = sorted(directory.glob("*.log"))
    assert len(segments) >= 3, [path.name for path in directory.iterdir()]
    said = tools.run(DUMP, "--deep-iteration", "--files", ",".join(map(str, segments)), at=False)
    offsets = [int(number) for number in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert offsets == list(range(3000)), f"{len(offsets)} records"
    assert "isvalid: false" not in said, "a batch is not what its CRC says"


def offsets_of_groups_are_decoded(tools: Tools) -> None:
    topic = tools.topic()
    tools.produce(topic, "a", "b", "c")
    for protocol in ("classic", "consumer"):
        tools.run(
            "kafka-console-consumer",
            *(
                "--topic",
                topic,
                "--group",
                f"{tools.name}-{protocol}",
                "--command-property",
                f"group.protocol={protocol}",
            ),
            *("--from-beginning", "--max-messages", "3", "--timeout-ms", "30000"),
        )
    files = sorted(str(path) for path in tools.server.data.glob("__consumer_offsets-*/*.log"))
    said = tools.run(DUMP, "--offsets-decoder", "--files", ",".join(files), at=False)
    for protocol in ("classic", "consumer"):
        key = rf'"group":"{tools.name}-{protocol}","topic":"{topic}","partition":0'
        found(rf'{key}.*payload: .*"offset":3', said)
    assert "isvalid: false" not in said


def transactions_are_decoded(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, "one")
        producer.flush(30)
        end(30)
    files = sorted(str(path) for path in tools.server.data.glob("__transaction_state-*/*.log"))
    said = tools.run(DUMP, "--transaction-log-decoder", "--files", ",".join(files), at=False)
    for status in (1, 2, 3, 4, 5):  # ongoing; prepare commit and abort; complete commit and abort
        found(rf'"transactionalId":"{tools.name}".*"transactionStatus":{status},', said)
    [segment] = (tools.server.data / f"{topic}-0").glob("*.log")
    said = tools.run(DUMP, "--print-data-log", "--files", str(segment), at=False)
    found(r"isTransactional: true isControl: true", said)
    found(r"endTxnMarker: COMMIT", said)
    found(r"endTxnMarker: ABORT", said)


def the_console_decodes_internal_topics(tools: Tools) -> None:
    """What the decoders show of the files is what a consumer is told."""
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "one")
    reader = Consumer({"bootstrap.servers": tools.bootstrap, "group.id": tools.name, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], reader.consumer_group_metadata(), 30)
    reader.close()
    producer.commit_transaction(30)
    for internal, formatter in (("__consumer_offsets", "Offsets"), ("__transaction_state", "TransactionLog")):
        said = tools.run(
            "kafka-console-consumer",
            *("--topic", internal, "--from-beginning", "--timeout-ms", "8000"),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}MessageFormatter"),
        )
        assert tools.name in said, f"{formatter}: {said[-1000:]}"


TESTS = (
    segments_and_indexes_are_read_live_and_closed,
    offsets_of_groups_are_decoded,
    transactions_are_decoded,
    the_console_decodes_internal_topics,
)
