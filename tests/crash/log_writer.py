"""Appends to a log directory until it is killed, and prints what was acknowledged: `partition offset value`."""

import asyncio
import sys
import time
from pathlib import Path
from uuid import UUID

from mainstem.core import SystemClock, TopicPartition
from mainstem.core.logging import configure
from mainstem.log import LogConfig, LogDirectory, PartitionLog, TopicConfig
from mainstem.records import Record, build_batch

SMALL = TopicConfig(segment_bytes=20_000)
COMPACT = TopicConfig(cleanup_policy="compact", segment_bytes=5_000, min_cleanable_dirty_ratio=0.0)
PARTITIONS = {
    TopicPartition("plain", 0): SMALL,
    TopicPartition("plain", 1): SMALL,
    TopicPartition("idempotent", 0): SMALL,
    TopicPartition("transactional", 0): SMALL,
    TopicPartition("compacted", 0): COMPACT,
    TopicPartition("relaxed", 0): TopicConfig(segment_bytes=20_000, flush_messages=50),
}


def batch(value: int, *, key: bytes = b"k", count: int = 1, **fields) -> bytes:
    now = int(time.time() * 1000)
    return build_batch([Record(0, now, key, b"%d" % value)] * count, **fields)


def say(partition: PartitionLog, offset: int, value: int) -> None:
    print(partition.topic_partition, offset, value, flush=True)


async def plain(partition: PartitionLog) -> None:
    number = 0
    while True:
        futures = [partition.append(batch(number + n)) for n in range(5)]
        for n, future in enumerate(futures):
            say(partition, (await future).base_offset, number + n)
        number += 5


async def idempotent(partition: PartitionLog) -> None:
    """Goes on after its last batch, and sends the last one again: as a producer does that got no answer."""
    known = partition.producer(1)
    number = known.last_sequence + 1 if known else 0
    if known:
        again = await partition.append(
            batch(number - 1, producer_id=1, producer_epoch=0, base_sequence=known.last_sequence)
        )
        assert again.duplicate
    while True:
        result = await partition.append(batch(number, producer_id=1, producer_epoch=0, base_sequence=number))
        say(partition, result.base_offset, number)
        number += 1


async def transactional(partition: PartitionLog) -> None:
    """Three batches per transaction; odd ones are aborted, and one that was open at the kill."""
    known = partition.producer(2)
    epoch = known.producer_epoch + 1 if known else 0
    number = (partition.log_end_offset // 4 + 1) * 2
    if known and known.transaction_first_offset >= 0:
        await partition.append_marker(2, epoch, commit=False, coordinator_epoch=0)
    sequence = 0
    while True:
        for _ in range(3):
            fields = {"producer_id": 2, "producer_epoch": epoch, "base_sequence": sequence, "transactional": True}
            await partition.append(batch(number, **fields))
            sequence += 1
        marker = await partition.append_marker(2, epoch, commit=number % 2 == 0, coordinator_epoch=0)
        if number % 2 == 0:
            print(f"commits-{partition.number}", marker.base_offset, number, flush=True)
        number += 1


async def compacted(partition: PartitionLog) -> None:
    number = 0
    while True:
        result = await partition.append(batch(number, key=b"%d" % (number % 10)))
        say(partition, result.base_offset, number)
        number += 1


async def main(directory: Path) -> None:
    configure("writer")
    config = LogConfig(journal_bytes=300_000, housekeeping_interval_ms=20)
    log = await LogDirectory.open(directory, config, clock=SystemClock())
    for number, (topic_partition, topic) in enumerate(PARTITIONS.items()):
        if topic_partition in log.partitions:
            log.partitions[topic_partition].config = topic
        else:
            await log.create_partition(topic_partition, UUID(int=number), topic)
    print("started", flush=True)
    workers = {"idempotent": idempotent, "transactional": transactional, "compacted": compacted}
    async with asyncio.TaskGroup() as group:
        for partition in log.partitions.values():
            group.create_task(workers.get(partition.topic_partition.topic, plain)(partition))


asyncio.run(main(Path(sys.argv[1])))
