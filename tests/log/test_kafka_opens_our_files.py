"""Apache Kafka, started on a copy of what the log has written, gives the same records.

Of topics that were compacted, with transactions that were committed and aborted, headers, every compression and many
segments; also by time, and a producer goes on there.
"""

import shutil
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from mainstem.core import ManualClock
from mainstem.core import TopicPartition as Partition
from mainstem.log import LogConfig, LogDirectory, PartitionLog, TopicConfig, housekeeping
from mainstem.records import Record, build_batch
from tests.log.support import read_all, run, sequenced
from tests.support.kafka_cluster import KafkaCluster

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
BEGIN_MS = 1_700_000_000_000
PLAIN, COMPACTED, IN_TRANSACTIONS = (Partition(name, 0) for name in ("plain", "compacted", "in-transactions"))
SMALL = {"segment_bytes": 1_500, "index_interval_bytes": 300}
TOPICS = {
    PLAIN: TopicConfig(**SMALL),
    COMPACTED: TopicConfig(**SMALL, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0),
    IN_TRANSACTIONS: TopicConfig(**SMALL),
}
# Nothing is to be deleted or compacted there: these records are years old.
KEEP = {"retention.ms": "-1", "message.timestamp.before.max.ms": "9223372036854775807"}

Found = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


async def fill(path: Path) -> dict[Partition, tuple[list[Found], list[Found], list[tuple[int, int]]]]:
    """What a reader finds, what one of committed records finds, and offsets by time."""
    clock = ManualClock()
    log = await LogDirectory.open(path, LogConfig(), clock=clock)
    partitions = [await log.create_partition(topic, uuid4(), config) for topic, config in TOPICS.items()]
    plain, compacted, in_transactions = partitions
    for number in range(120):
        headers = [("number", b"%d" % number), ("nothing", None)] if number % 2 else []
        records = [
            Record(at, BEGIN_MS + 10 * number + at, b"k%d" % (number % 7), b"v%d " % number * 9, tuple(headers))
            for at in range(2)
        ]
        await plain.append(build_batch(records, compression=CODECS[number % 5]))
        value = None if number % 11 == 0 else b"v%d " % number * 20
        await compacted.append(build_batch([Record(0, BEGIN_MS + number, b"k%d" % (number % 7), value)]))
    for number in range(40):
        for producer_id in (1, 2):
            await in_transactions.append(
                sequenced(
                    b"of %d: %d" % (producer_id, number), sequence=number, transactional=True, producer_id=producer_id
                )
            )
        if number % 3 == 0:
            for producer_id in (1, 2):
                commit = (number // 3 + producer_id) % 2 == 0
                await in_transactions.append_marker(producer_id, 0, commit=commit, coordinator_epoch=0)
    for producer_id in (1, 2):
        await in_transactions.append_marker(producer_id, 0, commit=False, coordinator_epoch=0)
    await housekeeping.delete_records(plain, 30)
    await log.checkpoint()
    clock.advance_ms(1_000)
    await log.housekeep()
    assert [len(partition.segments) > 3 for partition in (plain, in_transactions)] == [True, True]
    assert len(await read_all(compacted)) < 60
    expected = {partition.topic_partition: await told_by(partition) for partition in partitions}
    await log.close()
    return expected


async def told_by(partition: PartitionLog) -> tuple[list[Found], list[Found], list[tuple[int, int]]]:
    everything = [found(record) for record in await read_all(partition)]
    committed = [found(record) for record in await read_all(partition, committed_only=True)]
    by_time = []
    for timestamp in range(BEGIN_MS - 5, BEGIN_MS + 1_250, 97):
        there = await partition.offset_for_timestamp(timestamp)
        by_time.append((timestamp, -1 if there is None else there.offset))
    return everything, committed, by_time


def found(record: Record) -> Found:
    return (
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        [(name, value) for name, value in record.headers],
    )


def put_in_place(ours: Path, kafka: Path, log_start: int) -> None:
    """Kafka's empty partitions have our files; it is to look at all of them, as after a crash."""
    for topic in TOPICS:
        directory = kafka / str(topic)
        for path in directory.iterdir():
            if path.name != "partition.metadata":  # whose topic's they are
                path.unlink()
        for path in (ours / str(topic)).iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".txnindex"):
                shutil.copy2(path, directory)  # with its time: a segment that compaction has emptied has no other
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (kafka / name).unlink(missing_ok=True)
    # Of what was deleted within a segment Kafka, too, only has such a line.
    (kafka / "log-start-offset-checkpoint").write_text(f"0\n1\n{PLAIN.topic} 0 {log_start}\n")


def read(kafka: KafkaCluster, topic: str, isolation: str) -> list[Found]:
    consumer = Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": isolation, "isolation.level": isolation,
        "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "check.crcs": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    records: list[Found] = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for message in consumer.consume(100, 1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                consumer.close()
                return records
            records.append(of(message))
    raise AssertionError(f"no end of {topic} after {len(records)} records")


def of(message: Message) -> Found:
    return (message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or [])


def at_times(kafka: KafkaCluster, topic: str, times: list[int]) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "times"})
    try:
        return [
            (each, consumer.offsets_for_times([TopicPartition(topic, 0, each)], timeout=30)[0].offset) for each in times
        ]
    finally:
        consumer.close()


@pytest.mark.kafka
def test_kafka_started_on_a_copy_of_our_files_gives_the_same_records(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    expected = run(fill(ours))
    log_start = expected[PLAIN][0][0][0]
    assert log_start == 30
    with KafkaCluster(1, tmp_path / "kafka") as kafka:
        new = [NewTopic(topic.topic, 1, 1, config=KEEP) for topic in TOPICS]
        admin = kafka.admin()
        for made in admin.create_topics(new).values():
            made.result(30)
        for topic in TOPICS:
            kafka.leader(topic.topic, 0)
        kafka.stop(1)
        put_in_place(ours, kafka.data(1), log_start)
        kafka.start(1)
        for topic, (everything, committed, by_time) in expected.items():
            kafka.leader(topic.topic, 0)
            assert read(kafka, topic.topic, "read_uncommitted") == everything
            assert read(kafka, topic.topic, "read_committed") == committed
            # librdkafka gives -1, "the end", where there is none.
            assert at_times(kafka, topic.topic, [each for each, _ in by_time]) == by_time
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        offsets: list[int] = []
        producer.produce(PLAIN.topic, b"goes on", on_delivery=lambda _, message: offsets.append(message.offset()))
        assert producer.flush(60) == 0
        assert offsets == [240]
        assert "CorruptRecordException" not in kafka.log(1).read_text(errors="replace")
