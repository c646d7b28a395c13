"""TxnOffsetCommit: offsets that wait for the end of a transaction."""

import asyncio
import uuid

import pytest

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.core import ManualClock, TopicPartition
from mainstem.wire.errors import Code
from tests.support.broker import Client, running, until
from tests.support.raw import producer_of


@pytest.mark.parametrize("version", range(6))
def test_every_version(raw, topic, version):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    if version < 5:
        asked = {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}
        assert raw.call(25, 3, **asked, group_id=name).error_code is Code.none
    assert raw.commit_in_transaction(name, producer, name, topic, 5, version=version) is Code.none
    assert raw.committed(name, topic) == (-1, Code.none)
    assert raw.end(name, producer, commit=True).error_code is Code.none
    assert raw.committed(name, topic, stable=True) == (5, Code.none)


def test_a_commit_of_a_stranger_changes_nothing(raw, topic):
    name = uuid.uuid4().hex
    producer = producer_of(raw.init(name))
    stale = raw.commit_in_transaction(name, (producer[0], 9), name, topic, 5, version=5)
    assert stale is Code.invalid_producer_epoch
    unknown = raw.commit_in_transaction("nobody", producer, name, topic, 5, version=5)
    assert unknown is Code.invalid_producer_id_mapping
    assert raw.call(42, 2, groups_names=[name]).results[0].error_code is Code.group_id_not_found, "it made no group"
    assert raw.committed(name, topic, stable=True) == (-1, Code.none)


def test_a_commit_that_is_too_large_is_refused_and_does_not_wait_for_the_end(tmp_path):
    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            await broker.topics.create("t", 1, {})
            client = await Client.connect(broker)
            producer = await client.call(22, 4, transactional_id="x", transaction_timeout=60_000)
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "1"})
            answer = await client.call(
                28,
                5,
                transactional_id="x",
                group_id="g",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
            )
            assert answer.topics[0].partitions[0].error_code is Code.invalid_commit_offset_size
            assert not broker.groups.offsets.pending_of("g")
            client.close()

    asyncio.run(story())


def test_a_topic_that_is_made_anew_while_the_last_transaction_ends_starts_without_an_offset(tmp_path, monkeypatch):
    """What was committed of the old topic was committed for the new one, which is empty."""

    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            for name in ("t", "kept"):
                await broker.topics.create(name, 1, {})
            admin, client = await Client.connect(broker), await Client.connect(broker)
            producer = await broker.transactions.initialize("x", 60_000)
            ids = producer.producer_id, producer.producer_epoch
            broker.transactions.verify_or_add("x", *ids, TopicPartition("kept", 0), implicit_add=True)
            ending, may_end, write_markers = asyncio.Event(), asyncio.Event(), broker.transactions._write_markers

            async def hold_back(entry):
                ending.set()
                await may_end.wait()
                await write_markers(entry)

            monkeypatch.setattr(broker.transactions, "_write_markers", hold_back)
            async with asyncio.TaskGroup() as tasks:
                ends = tasks.create_task(broker.transactions.end("x", producer, commit=True, version=2))
                await ending.wait()
                asked = [{"partition_index": 0, "committed_offset": 77}]
                commits = tasks.create_task(
                    client.call(
                        28,
                        5,
                        transactional_id="x",
                        group_id="g",
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch + 1,
                        topics=[{"name": name, "partitions": asked} for name in ("t", "kept")],
                    )
                )
                await until(lambda: "api 28" in [task.get_name() for task in asyncio.all_tasks()], "it waits")
                assert (await admin.call(20, 4, topic_names=["t"], timeout=1_000)).responses[0].error_code is Code.none
                await broker.topics.create("t", 1, {})
                may_end.set()
            codes = {topic.name: topic.partitions[0].error_code for topic in commits.result().topics}
            assert codes == {"t": Code.unknown_topic_or_partition, "kept": Code.none}
            await broker.transactions.end("x", ends.result(), commit=True, version=2)
            assert broker.groups.offsets.get("g", TopicPartition("t", 0)) is None
            assert broker.groups.offsets.get("g", TopicPartition("kept", 0)).offset == 77
            client.close()
            admin.close()

    asyncio.run(story())
