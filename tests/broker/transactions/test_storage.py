import asyncio

import structlog

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.transactions import STATE_TOPIC, producer_ids
from mainstem.broker.transactions.records import encode_key
from mainstem.core import TopicPartition
from mainstem.records import Record, build_batch
from tests.support.broker import (
    crashed,
    running,
    start,
    stop,
)


def test_the_records_lie_where_kafka_looks_for_them(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            assert broker.transactions.storage.partition_for("t").topic == STATE_TOPIC
            assert broker.groups.storage.partition_for("g").topic == OFFSETS_TOPIC

    asyncio.run(story())


def test_records_that_do_not_decode_are_left_out_and_named_and_no_producer_id_comes_twice(tmp_path, clock):
    """One record with a key of one byte kept the broker from ever starting again."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        kept = await broker.transactions.initialize("kept", 60_000)
        partition_log = broker.partition(TopicPartition(STATE_TOPIC, 0))
        at = partition_log.log_end_offset
        unreadable = [(b"x", b"v"), (encode_key("lost"), b""), (producer_ids.KEY, b"")]
        await partition_log.append(build_batch([Record(0, 1, key, value) for key, value in unreadable]))
        with structlog.testing.capture_logs() as logs:
            broker = await crashed(broker, tmp_path / "b", clock)
        said = [each for each in logs if each["event"] == "coordinator_record_unreadable"]
        assert [(each["topic"], each["partition"], each["offset"]) for each in said] == [
            (STATE_TOPIC, 0, offset)
            for offset in (at + 2, at, at + 1)  # the producer ids' record is the oldest key
        ]
        assert broker.transactions.describe("kept").producer_id == kept.producer_id
        fresh = await broker.transactions.initialize("fresh", 60_000)
        assert fresh.producer_id > kept.producer_id + producer_ids.BLOCK
        await stop(broker)

    asyncio.run(story())
