"""ListOffsets: the ends, and exact look-ups by time."""

import asyncio
import time
import uuid

import pytest

from mainstem.broker.handlers import list_offsets
from mainstem.core import ManualClock, TopicPartition
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.support.broker import start, stop

NOW = int(time.time() * 1000) - 100_000


def append(raw, topic, *times, **options):
    records = build_batch([Record(0, NOW + each, b"k", b"v") for each in times], **options)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = raw.call(0, 9, acks=-1, timeout=30_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code is Code.none


def look_up(raw, topic, timestamp, *, version=11, partition=0, **fields):
    asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": fields.pop("epoch", -1)}
    answer = raw.call(2, version, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}], **fields)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_knows_the_ends(raw, topic, version):
    append(raw, topic, 0, 10)
    assert look_up(raw, topic, -1, version=version).offset == 2
    assert look_up(raw, topic, -2, version=version).offset == 0
    assert look_up(raw, topic, NOW + 5, version=version).offset == 1


def test_g8_g11_a_timestamp_gives_the_exact_record_also_inside_a_compressed_batch(raw, topic):
    append(raw, topic, 0, 10, 20, compression="zstd")
    append(raw, topic, 30, 25, 40, compression="lz4")
    for asked, offset, found in ((0, 0, 0), (1, 1, 10), (20, 2, 20), (21, 3, 30), (31, 5, 40)):
        answer = look_up(raw, topic, NOW + asked)
        assert (answer.offset, answer.timestamp) == (offset, NOW + found)
        assert answer.leader_epoch >= 0
    assert look_up(raw, topic, NOW + 41).offset == -1


@pytest.mark.parametrize(("timestamp", "first_version", "offset"), [(-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)])
def test_special_timestamps_and_the_versions_that_have_them(raw, topic, timestamp, first_version, offset):
    append(raw, topic, 0, 50, 10)
    assert look_up(raw, topic, timestamp, version=first_version).offset == offset
    before = look_up(raw, topic, timestamp, version=first_version - 1)
    assert before.error_code is Code.unsupported_version


def test_the_record_with_the_latest_timestamp(raw, topic):
    assert look_up(raw, topic, -3).offset == -1
    append(raw, topic, 0, 50, 10)
    found = look_up(raw, topic, -3)
    assert (found.offset, found.timestamp) == (1, NOW + 50)


def test_readers_of_committed_records_see_the_last_stable_offset(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = (producer.producer_id, producer.producer_epoch)
    append(raw, topic, 0)
    raw.add(name, identity, topic)
    raw.produce(topic, b"x", transactional_id=name, producer=identity, sequence=0)
    assert look_up(raw, topic, -1).offset == 2
    assert look_up(raw, topic, -1, isolation_level=1).offset == 1
    assert look_up(raw, topic, NOW + 1, isolation_level=1).offset == -1
    assert (look_up(raw, topic, -3).offset, look_up(raw, topic, -3, isolation_level=1).offset) == (1, -1)
    raw.end(name, identity, commit=True)
    assert look_up(raw, topic, -1, isolation_level=1).offset == 3


def test_errors(raw, topic):
    assert look_up(raw, "no-such-topic", -1).error_code is Code.unknown_topic_or_partition
    assert look_up(raw, topic, -1, partition=7).error_code is Code.unknown_topic_or_partition
    assert look_up(raw, topic, -1, epoch=99).error_code is Code.unknown_leader_epoch
    assert look_up(raw, topic, -1, epoch=-2).error_code is Code.fenced_leader_epoch
    assert look_up(raw, topic, -77).error_code is Code.unsupported_version
    assert look_up(raw, topic, -1, isolation_level=7).error_code is Code.invalid_request


def test_a_partition_that_is_asked_for_twice_is_refused_and_others_are_not(raw):
    raw.create_topic(name := uuid.uuid4().hex, 2)
    asked = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in (0, 1, 0)]
    (answer,) = raw.call(2, 11, replica_id=-1, topics=[{"name": name, "partitions": asked}]).topics
    codes = [(each.partition_index, each.error_code) for each in answer.partitions]
    assert codes == [(0, Code.invalid_request), (1, Code.none), (0, Code.invalid_request)]


def test_a_leader_epoch_is_not_what_a_flipped_bit_says(tmp_path):
    """No CRC covers that of a batch; a consumer that was told another one took its records for lost."""
    partition = TopicPartition("facts", 0)

    async def story():
        clock = ManualClock()
        broker = await start(tmp_path, clock)
        await broker.topics.create("facts", 1, {})
        at = clock.now_ms()
        await broker.partition(partition).append(build_batch([Record(0, at, b"k", b"v")]))
        before = [await list_offsets._find(broker.partition(partition), each, committed=False) for each in (at, -3)]
        await stop(broker)
        (segment,) = (tmp_path / "facts-0").glob("*.log")
        content = bytearray(segment.read_bytes())
        content[13] ^= 1
        segment.write_bytes(content)
        broker = await start(tmp_path, clock)
        after = [await list_offsets._find(broker.partition(partition), each, committed=False) for each in (at, -3)]
        assert after == before
        await stop(broker)

    asyncio.run(story())
