import asyncio
from uuid import uuid4

import structlog

from mainstem.broker.replay import replay
from mainstem.core import ManualClock, TopicPartition
from mainstem.log import LogConfig, LogDirectory, TopicConfig
from mainstem.records import Record, build_batch, decode_header
from mainstem.records.record import assemble_batch


def test_everything_is_read_in_order_markers_and_open_transactions_too(tmp_path):
    async def story():
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        partition = await log.create_partition(TopicPartition("t", 0), uuid4(), TopicConfig())
        plain = [Record(0, 1, b"k", b"%d" % number) for number in range(3)]
        await partition.append(build_batch(plain))
        for sequence in range(2):
            await partition.append(
                build_batch(plain[:1], producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
            )
            if sequence == 0:
                await partition.append_marker(7, 0, commit=False, coordinator_epoch=0)
        found = [
            (header.producer_id, None if marker is None else marker.commit, [record.offset for record in records])
            async for header, marker, records in replay(partition)
        ]
        assert found == [(-1, None, [0, 1, 2]), (7, None, [3]), (7, False, []), (7, None, [5])]
        await log.close()

    asyncio.run(story())


def test_an_empty_partition_has_nothing(tmp_path):
    async def story():
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        partition = await log.create_partition(TopicPartition("t", 0), uuid4(), TopicConfig())
        assert [each async for each in replay(partition)] == []
        await log.close()

    asyncio.run(story())


def test_a_batch_whose_records_cannot_be_told_apart_is_left_out_and_named(tmp_path):
    async def story():
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        partition = await log.create_partition(TopicPartition("t", 0), uuid4(), TopicConfig())
        good = build_batch([Record(0, 1, b"k", b"v")])
        await partition.append(assemble_batch(decode_header(good), b"\xff\xff"))
        await partition.append(good)
        with structlog.testing.capture_logs() as logs:
            found = [[record.offset for record in records] async for _, _, records in replay(partition)]
        assert found == [[], [1]]
        (said,) = [each for each in logs if each["event"] == "coordinator_record_unreadable"]
        assert (said["topic"], said["partition"], said["offset"]) == ("t", 0, 0)
        await log.close()

    asyncio.run(story())
