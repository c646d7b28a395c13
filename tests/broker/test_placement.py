import asyncio
import contextlib
import shutil
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker import placement, state_topic
from mainstem.broker.groups import storage
from mainstem.broker.groups.errors import CoordinatorUnavailable
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetKey, OffsetValue, encode_key
from mainstem.broker.groups.share import persister
from mainstem.broker.groups.share.records import PartitionKey, decode_state_key
from mainstem.broker.groups.share.state import Change, ShareState
from mainstem.broker.placement import java_hash, place_of, placing
from mainstem.broker.replay import replay
from mainstem.broker.server import Broker
from mainstem.broker.transactions import errors as transactions
from mainstem.core import ManualClock, TopicPartition
from mainstem.log import LogConfig, LogDirectory, PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Record
from tests.support.broker import CONFIG, crashed, start, stop, until

NAMES = [f"name-{number}" for number in range(20)]
TOPIC = "facts"


@pytest.mark.parametrize(
    ("text", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 3105),
        ("hello", 99162322),
        ("share-group", -1035553007),
        ("polygenelubricants", -(2**31)),
        ("😀", 1772899),
    ],
)
def test_the_absolute_value_of_javas_hash(text, hash_code):
    assert java_hash(text) == abs(hash_code) % 2**31


@given(st.text())
def test_java_hash_counts_utf_16_units(text):
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) % 2**32
    assert java_hash(text) == min(value, 2**32 - value) % 2**31


def as_before(name, partitions):
    """Where earlier logs kept it."""
    value = 0
    for unit in memoryview(name.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) % 2**32
    return value % 2**31 % partitions


def moved(name, partitions):
    return as_before(name, partitions) != place_of(name, partitions)


@given(st.text(), st.sampled_from([1, 3, 50]))
def test_where_earlier_logs_kept_it(name, partitions):
    assert placement.earlier_place_of(name, partitions) == as_before(name, partitions)


@given(st.text(max_size=9), st.binary(max_size=5), st.sampled_from([1, 3, 50]))
def test_a_key_tells_where_it_belongs(name, rest, partitions):
    place = placing(partitions, {1}, place_of)
    key = encode_key(OffsetKey(name, "t", 0))
    assert place(key) == place_of(name, partitions)
    assert place(b"\0\2" + key[2:]) is None
    assert place(key[:3]) is None
    assert place(b"\0\1\0\1\xff" + rest) is None


async def commit_all(broker, offset):
    for name in NAMES:
        await broker.groups.commit(name, Commit(), {TopicPartition(TOPIC, 0): OffsetValue(offset)})


async def initialize_all(broker):
    return {name: await broker.transactions.initialize(name, 60_000) for name in NAMES}


def offsets(broker):
    return {name: broker.groups.offsets.get(name, TopicPartition(TOPIC, 0)).offset for name in NAMES}


async def never_stored(*_):
    """Earlier logs knew of one place only."""


@contextlib.contextmanager
def an_earlier_log(monkeypatch):
    with monkeypatch.context() as earlier:
        for module in (state_topic, placement, persister):
            earlier.setattr(module, "place_of", as_before)
        earlier.setattr(placement, "_store_all_moved", never_stored)
        yield


def test_what_an_earlier_log_has_stored_is_moved_to_where_kafka_looks_for_it(tmp_path, monkeypatch):
    assert any(moved(name, 3) for name in NAMES)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path / "a", clock)
            await broker.topics.create(TOPIC, 1, {})
            await commit_all(broker, 7)
            producers = await initialize_all(broker)
            ends = [log.log_end_offset for log in broker.groups.storage.logs]
            broker = await crashed(broker, tmp_path / "b", clock)
            assert [log.log_end_offset for log in broker.groups.storage.logs] == ends, "nothing to move"
            await stop(broker)
        broker = await start(tmp_path / "b", clock)
        assert offsets(broker) == dict.fromkeys(NAMES, 7)
        for name in NAMES:
            number = broker.groups.storage.partition_for(name).partition
            read, _ = await storage.read_partition(broker.groups.storage.logs[number])
            assert read[encode_key(OffsetKey(name, TOPIC, 0))][0] is not None
        await commit_all(broker, 9)
        again = await initialize_all(broker)
        for name in NAMES:
            assert again[name].producer_id == producers[name].producer_id
            assert again[name].producer_epoch == producers[name].producer_epoch + 1
        broker = await crashed(broker, tmp_path / "c", clock)
        ends = [log.log_end_offset for log in broker.groups.storage.logs]
        broker = await crashed(broker, tmp_path / "d", clock)
        assert [log.log_end_offset for log in broker.groups.storage.logs] == ends, "moved once"
        assert offsets(broker) == dict.fromkeys(NAMES, 9)
        await stop(broker)

    asyncio.run(story())


class EndOfProcess(BaseException):
    """Nobody can do anything any more."""


@pytest.mark.parametrize("ending", [EndOfProcess, StorageError], ids=["killed", "disk-full"])
def test_a_start_that_ends_while_it_moves_goes_on_at_the_next(tmp_path, monkeypatch, ending):
    append = PartitionLog.append

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path / "old", clock)
            await broker.topics.create(TOPIC, 1, {})
            await commit_all(broker, 7)
            await stop(broker)
        appends, ended = 0, [None]
        while ended:
            left, ended = [None] * appends, []

            def until_the_end(self, *args, _left=left, _ended=ended, **kwargs):
                if not _left:
                    _ended.append(None)
                    raise ending("the process ends, or the disk is full")
                _left.pop()
                return append(self, *args, **kwargs)

            place = tmp_path / str(appends)
            shutil.copytree(tmp_path / "old", place)
            with monkeypatch.context() as patched:
                patched.setattr(PartitionLog, "append", until_the_end)
                log = await LogDirectory.open(place, LogConfig(), clock=clock)
                broker = Broker(CONFIG, log, clock)
                try:
                    await broker.start()
                except EndOfProcess:
                    await log.close()
                else:
                    assert offsets(broker) == dict.fromkeys(NAMES, 7)
                    await stop(broker)
            broker = await start(place, clock)
            assert offsets(broker) == dict.fromkeys(NAMES, 7)
            await stop(broker)
            appends += 1
        assert appends > 4, "copies and tombstones, one way and the other"

    asyncio.run(story())


async def commit_in_transaction(name, broker, producer, offset):
    where = broker.groups.storage.partition_for(name)
    await broker.transactions.add_partitions("t", producer, {where})
    value = {TopicPartition(TOPIC, 0): OffsetValue(offset)}
    await broker.groups.commit_transactional(
        name, Commit(transactional=True), producer.producer_id, producer.producer_epoch, value
    )


def test_a_transaction_that_is_open_over_the_move_counts_when_it_ends(tmp_path, monkeypatch):
    """Places in two partitions were compared: what was committed later was taken for older."""
    name = next(each for each in NAMES if moved(each, CONFIG.offsets_topic_num_partitions))
    partition = TopicPartition(TOPIC, 0)
    in_transaction = partial(commit_in_transaction, name)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path / "a", clock)
            await broker.topics.create(TOPIC, 1, {})
            producer = await broker.transactions.initialize("t", 60_000)
            for offset in range(1, 6):
                await in_transaction(broker, producer, offset)
                await broker.transactions.end("t", producer, commit=True, version=1)
            await in_transaction(broker, producer, 6)
            broker = await crashed(broker, tmp_path / "b", clock)
            await stop(broker)
        broker = await start(tmp_path / "b", clock)

        def committed():
            found = broker.groups.offsets.get(name, partition)
            return None if found is None else found.offset

        assert committed() == 5
        await broker.transactions.end("t", producer, commit=True, version=1)
        assert committed() == 6
        for offset in (7, 8):
            await in_transaction(broker, producer, offset)
            await broker.transactions.end("t", producer, commit=True, version=1)
            assert committed() == offset
        broker = await crashed(broker, tmp_path / "c", clock)
        assert committed() == 8
        await broker.groups.commit(name, Commit(), {partition: OffsetValue(9)})
        assert committed() == 9
        await broker.groups.delete_offsets(name, [partition])
        assert committed() is None
        broker = await crashed(broker, tmp_path / "d", clock)
        assert committed() is None
        await stop(broker)

    asyncio.run(story())


def test_what_belongs_to_a_damaged_partition_waits_for_its_repair(tmp_path, monkeypatch):
    name = next(each for each in NAMES if moved(each, CONFIG.offsets_topic_num_partitions))
    partition = TopicPartition(TOPIC, 0)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path, clock)
            await broker.topics.create(TOPIC, 1, {})
            await commit_all(broker, 7)
            await stop(broker)
        to = TopicPartition("__consumer_offsets", place_of(name, CONFIG.offsets_topic_num_partitions))
        (segment,) = (tmp_path / str(to)).glob("*.log")
        content = bytearray(segment.read_bytes())
        content[30] ^= 1
        segment.write_bytes(content)
        broker = await start(tmp_path, clock)
        with pytest.raises(CoordinatorUnavailable):
            broker.groups.storage.check_read(name)
        assert broker.groups.offsets.get(name, partition) is None
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        await stop(broker)
        content[30] ^= 1
        segment.write_bytes(content)
        broker = await start(tmp_path, clock)
        broker.groups.storage.check_read(name)
        await stop(broker)

    asyncio.run(story())


def test_a_transaction_that_is_open_over_the_move_does_not_replace_what_was_committed_after_it(tmp_path, monkeypatch):
    """Of two records that had not been moved the one that became visible last was taken for the later one."""
    name = next(each for each in NAMES if moved(each, CONFIG.offsets_topic_num_partitions))
    partition = TopicPartition(TOPIC, 0)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path, clock)
            await broker.topics.create(TOPIC, 1, {})
            producer = await broker.transactions.initialize("t", 60_000)
            await commit_in_transaction(name, broker, producer, 6)
            await broker.groups.commit(name, Commit(), {partition: OffsetValue(7)})
            await stop(broker)
        broker = await start(tmp_path, clock)
        assert broker.groups.offsets.get(name, partition).offset == 7
        await broker.transactions.end("t", producer, commit=True, version=1)
        assert broker.groups.offsets.get(name, partition).offset == 7
        await stop(broker)
        broker = await start(tmp_path, clock)
        assert broker.groups.offsets.get(name, partition).offset == 7
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("whole", [False, True], ids=["offset", "group"])
def test_what_is_deleted_before_it_could_be_moved_does_not_come_back(tmp_path, monkeypatch, whole):
    """Only the tombstone where it belongs held it back, and compaction takes that a day later."""
    name = next(each for each in NAMES if moved(each, CONFIG.offsets_topic_num_partitions))
    partition = TopicPartition(TOPIC, 0)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path, clock)
            await broker.topics.create(TOPIC, 1, {})
            producer = await broker.transactions.initialize("t", 60_000)
            await broker.groups.commit(name, Commit(), {partition: OffsetValue(5)})
            await commit_in_transaction(name, broker, producer, 6)
            number = broker.groups.storage.partition_for(name).partition
            await stop(broker)
        broker = await start(tmp_path, clock)
        if whole:
            await broker.groups.delete_group(name)
        else:
            await broker.groups.delete_offsets(name, [partition])
        await broker.transactions.end("t", producer, commit=True, version=1)
        await nothing_is_left(broker, number, name)
        await stop(broker)
        broker = await start(tmp_path, clock)
        assert broker.groups.offsets.get(name, partition) is None
        await stop(broker)

    asyncio.run(story())


async def nothing_is_left(broker, number, name):
    """In a partition where it does not belong."""
    earlier = broker.groups.storage.logs[number]
    await until(lambda: earlier.high_watermark == earlier.log_end_offset, "all is durable")
    latest, pending = await storage.read_partition(earlier)
    assert not pending
    assert latest[encode_key(OffsetKey(name, TOPIC, 0))][0] is None


def test_a_start_after_a_crash_deletes_what_was_left_and_is_deleted(tmp_path, monkeypatch):
    """The crash came between the tombstone where it belongs and the one where it was left."""
    name = next(each for each in NAMES if moved(each, CONFIG.offsets_topic_num_partitions))

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path, clock)
            await broker.topics.create(TOPIC, 1, {})
            producer = await broker.transactions.initialize("t", 60_000)
            await commit_in_transaction(name, broker, producer, 6)
            number = broker.groups.storage.partition_for(name).partition
            await stop(broker)
        broker = await start(tmp_path, clock)
        with monkeypatch.context() as crashing:
            crashing.setattr(storage.GroupStorage, "_delete", lambda *_: None)
            await broker.groups.delete_offsets(name, [TopicPartition(TOPIC, 0)])
        await stop(broker)
        broker = await start(tmp_path, clock)
        await broker.transactions.end("t", producer, commit=True, version=1)
        await nothing_is_left(broker, number, name)
        assert broker.groups.offsets.get(name, TopicPartition(TOPIC, 0)) is None
        await stop(broker)

    asyncio.run(story())


def flip(path):
    """Damage a file, or repair it."""
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)


def test_what_may_lie_in_a_damaged_partition_of_an_earlier_log_waits_for_its_repair(tmp_path, monkeypatch):
    """Where it belongs there was nothing: groups and ids seemed to be new, and states of share groups were deleted."""
    assert CONFIG.offsets_topic_num_partitions == CONFIG.transaction_state_log_num_partitions == 4
    name, sharing = "name-1", "share of name-12"
    assert [(as_before(each, 4), place_of(each, 4)) for each in (name, sharing)] == [(3, 1)] * 2
    partition = TopicPartition(TOPIC, 0)

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path, clock)
            topic = await broker.topics.create(TOPIC, 1, {})
            share = PartitionKey(sharing, topic.topic_id, 0)
            await commit_all(broker, 7)
            producers = await initialize_all(broker)
            await broker.groups.share.set_offsets(share.group, {share: 7})
            await stop(broker)
        sources = [tmp_path / f"{topic}-3" / f"{0:020d}.log" for topic in ("__consumer_offsets", "__transaction_state")]
        for path in sources:
            flip(path)
        for _ in range(2):  # the first start with damage moves what it can, and may not say that this was all
            broker = await start(tmp_path, clock)
            for group in (name, sharing):
                with pytest.raises(CoordinatorUnavailable):
                    broker.groups.storage.check_read(group)
            with pytest.raises(transactions.CoordinatorUnavailable):
                await broker.transactions.initialize(name, 60_000)
            known = [each for each in NAMES if broker.groups.storage.is_read(each)]
            assert all(broker.groups.offsets.get(each, partition).offset == 7 for each in known)
            await stop(broker)
        for path in sources:
            flip(path)
        broker = await start(tmp_path, clock)
        assert offsets(broker) == dict.fromkeys(NAMES, 7)
        assert broker.groups.share.persister.get(share).start_offset == 7
        again = await broker.transactions.initialize(name, 60_000)
        assert (again.producer_id, again.producer_epoch) == (producers[name].producer_id, 1)
        await stop(broker)
        for path in sources:
            flip(path)
        broker = await start(tmp_path, clock)
        assert all(broker.groups.storage.is_read(each) is (place_of(each, 4) != 3) for each in (*NAMES, sharing)), (
            "all is moved: where it was before means nothing"
        )
        assert (await broker.transactions.initialize(name, 60_000)).producer_epoch == 2
        await stop(broker)

    asyncio.run(story())


def test_states_of_share_partitions_are_moved_to_where_kafka_looks_for_them(tmp_path, monkeypatch):
    """The old one was read after the new one, when its partition came later: every start went back to it."""

    async def story():
        clock = ManualClock()
        with an_earlier_log(monkeypatch):
            broker = await start(tmp_path / "a", clock)
            topic = await broker.topics.create(TOPIC, 1, {})
            keys = [PartitionKey(name, topic.topic_id, 0) for name in NAMES]
            for key in keys:
                await broker.groups.share.set_offsets(key.group, {key: 5})
            broker = await crashed(broker, tmp_path / "b", clock)
            await stop(broker)
        broker = await start(tmp_path / "b", clock)

        def kept():
            found = [broker.groups.share.persister.get(key) for key in keys]
            return [None if each is None else each.start_offset for each in found]

        async def go_on(key, offset):
            epoch = broker.groups.share.persister.get(key).state_epoch
            await broker.groups.share.persister.update(key, Change(offset, 1, ()), state_epoch=epoch, leader_epoch=0)

        assert kept() == [5] * len(keys)
        for key in keys:
            await go_on(key, 6)
        broker = await crashed(broker, tmp_path / "c", clock)
        assert kept() == [6] * len(keys)
        for key in keys:
            await broker.groups.share.persister.set(key, ShareState(start_offset=7, state_epoch=9))
        broker = await crashed(broker, tmp_path / "d", clock)
        assert kept() == [7] * len(keys)
        logs = broker.topics.by_name(persister.STATE_TOPIC).logs
        ends = [each.log_end_offset for each in logs]
        found = {}
        for number, each in enumerate(logs):
            async for _, _, records in replay(each):
                found |= {(number, decode_state_key(record.key)): record.value for record in records}
        assert all(
            persister.place(key, len(logs)) == number for (number, key), value in found.items() if value is not None
        )
        broker = await crashed(broker, tmp_path / "e", clock)
        assert [each.log_end_offset for each in broker.topics.by_name(persister.STATE_TOPIC).logs] == ends, "moved once"
        await stop(broker)

    asyncio.run(story())


@given(st.lists(st.integers(0, 2_000_000), max_size=6))
def test_moves_are_of_batches_that_fit(sizes):
    records = [Record(0, 1, b"k", b"v" * size) for size in sizes]
    batches = list(placement._batches(records))
    assert [record for batch in batches for record in batch] == records
    assert all(len(batch) == 1 or sum(len(each.value) for each in batch) <= 2**20 for batch in batches)
