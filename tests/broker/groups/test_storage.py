import asyncio

import pytest
import structlog

from mainstem.broker.fields import LaterVersion
from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.groups.errors import RecordTooLarge
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import GroupKey, OffsetKey, OffsetValue, encode_key
from mainstem.broker.server import Broker
from mainstem.log import LogConfig, LogDirectory
from mainstem.records import Record, build_batch
from tests.support.broker import CONFIG, crashed, running, start, stop
from tests.support.facts import FIRST as P
from tests.support.facts import SECOND as Q
from tests.support.facts import TOPIC, a_topic


def test_a_record_that_does_not_decode_is_left_out_and_named_and_the_rest_comes_back(tmp_path, clock):
    """One record with a key of one byte kept the broker from ever starting again."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
        where = broker.groups.storage.partition_for("g")
        partition_log = broker.partition(where)
        unreadable = [(b"x", b"v"), (encode_key(GroupKey("g")), b""), (encode_key(OffsetKey("g", TOPIC, 1)), b"\0\3")]
        at = partition_log.log_end_offset
        await partition_log.append(build_batch([Record(0, 1, key, value) for key, value in unreadable]))
        pending = [Record(0, 1, b"y", b"v"), Record(0, 1, encode_key(OffsetKey("g", TOPIC, 2)), b"\0\3")]
        await partition_log.append(
            build_batch(pending, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        )
        with structlog.testing.capture_logs() as logs:
            broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) == OffsetValue(5)
        said = [each for each in logs if each["event"] == "coordinator_record_unreadable"]
        assert {(each["topic"], each["partition"], each["offset"]) for each in said} == {
            (where.topic, where.partition, at + number) for number in range(5)
        }
        await broker.groups.commit("g", Commit(), {P: OffsetValue(6)})
        await stop(broker)

    asyncio.run(story())


def test_a_value_of_a_later_version_stops_the_start_and_is_named(tmp_path, clock):
    """It was acknowledged, and the program that wrote it can read it."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        partition_log = broker.partition(broker.groups.storage.partition_for("g"))
        value = Record(0, 1, encode_key(OffsetKey("g", TOPIC, 0)), b"\0\5")
        await partition_log.append(build_batch([value]))
        await stop(broker)
        log = await LogDirectory.open(tmp_path / "a", LogConfig(), clock=clock)
        with pytest.raises(
            LaterVersion, match=r"__consumer_offsets-\d: offset 0: a value of version 5; versions 0 to 4"
        ):
            await Broker(CONFIG, log, clock).start()
        await log.close()

    asyncio.run(story())


def test_pending_offsets_survive_a_crash_and_end_with_their_transaction(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        where = broker.groups.storage.partition_for("g")
        assert where.topic == OFFSETS_TOPIC
        await broker.transactions.add_partitions("t", producer, {where})
        fields = (producer.producer_id, producer.producer_epoch)
        await broker.groups.commit_transactional("g", Commit(transactional=True), *fields, {P: OffsetValue(5)})
        broker = await crashed(broker, tmp_path / "b", clock)
        groups = broker.groups
        assert groups.offsets.get("g", P) is None
        assert groups.offsets.is_unstable("g", P)
        await groups.commit_transactional("g", Commit(transactional=True), *fields, {Q: OffsetValue(6)})
        await broker.transactions.end("t", producer, commit=True, version=1)
        assert groups.offsets.get("g", P) == OffsetValue(5)
        assert groups.offsets.get("g", Q) == OffsetValue(6)
        broker = await crashed(broker, tmp_path / "c", clock)
        assert broker.groups.offsets.get("g", Q) == OffsetValue(6)
        assert not broker.groups.offsets.is_unstable("g", Q)
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("whole", [False, True], ids=["offset", "group"])
def test_an_offset_that_is_deleted_while_a_transaction_holds_it_does_not_come_back(tmp_path, clock, whole):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        await broker.transactions.add_partitions("t", producer, {broker.groups.storage.partition_for("g")})
        fields = (producer.producer_id, producer.producer_epoch)
        await broker.groups.commit_transactional("g", Commit(transactional=True), *fields, {P: OffsetValue(5)})
        await (broker.groups.delete_group("g") if whole else broker.groups.delete_offsets("g", [P]))
        broker = await crashed(broker, tmp_path / "b", clock)
        await broker.transactions.end("t", producer, commit=True, version=1)
        assert broker.groups.offsets.get("g", P) is None
        broker = await crashed(broker, tmp_path / "c", clock)
        assert broker.groups.offsets.get("g", P) is None
        await stop(broker)

    asyncio.run(story())


def test_a_group_that_is_deleted_does_not_come_back_with_the_end_of_a_transaction(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            producer = await broker.transactions.initialize("t", 60_000)
            await broker.transactions.add_partitions("t", producer, {broker.groups.storage.partition_for("g")})
            fields = (producer.producer_id, producer.producer_epoch)
            await broker.groups.commit_transactional("g", Commit(transactional=True), *fields, {P: OffsetValue(5)})
            await broker.groups.delete_group("g")
            await broker.transactions.end("t", producer, commit=True, version=1)
            assert broker.groups.groups == {}

    asyncio.run(story())


def test_tombstones_fill_batches_as_far_as_the_topic_takes_them(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            storage = broker.groups.storage
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "500"})
            keys = [OffsetKey("g", "t" * length, length) for length in range(1, 100)]
            pieces = []
            first = await storage.remove("g", keys, lambda piece, at: pieces.append((at, piece)))
            assert [key for _, piece in pieces for key in piece] == keys
            assert [at for at, _ in pieces] == [sum(len(piece) for _, piece in pieces[:n]) for n in range(len(pieces))]
            assert first == pieces[-1][0]
            assert len(pieces) < len(keys) / 2
            pieces.clear()
            with pytest.raises(RecordTooLarge):
                await storage.remove(
                    "g", [keys[0], OffsetKey("g", "t" * 600, 0), keys[1]], lambda *one: pieces.append(one)
                )
            await storage.remove("g", keys[1:2], lambda *one: pieces.append(one))
            assert [piece for piece, _ in pieces] == [keys[0:1], keys[1:2]], "nothing follows what is refused"

    asyncio.run(story())


def test_commits_of_one_producer_go_on_over_epochs_and_transactions(tmp_path, clock):
    """The log checks the sequences of every transactional batch, and so ours must have them."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            producer = await broker.transactions.initialize("t", 60_000)
            for offset in range(6):
                where = broker.groups.storage.partition_for("g")
                fields = (producer.producer_id, producer.producer_epoch)
                while (added := broker.transactions.verify_or_add("t", *fields, where, implicit_add=True)) is not None:
                    await added
                for partition in (P, Q):
                    await broker.groups.commit_transactional(
                        "g", Commit(transactional=True), *fields, {partition: OffsetValue(offset)}
                    )
                version = 2 if offset % 3 else 1
                producer = await broker.transactions.end("t", producer, commit=True, version=version)
                assert broker.groups.offsets.get("g", Q) == OffsetValue(offset)

    asyncio.run(story())
