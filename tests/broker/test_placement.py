import asyncio
import contextlib
from collections import Counter

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.groups.errors import CoordinatorUnavailable
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetKey, OffsetValue, encode_key, encode_value
from mainstem.broker.groups.share import persister
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.state import Change
from mainstem.broker.placement import java_hash, place_of, placing
from mainstem.broker.replay import replay
from mainstem.broker.transactions import STATE_TOPIC, producer_ids
from mainstem.broker.transactions import records as transactions
from mainstem.broker.transactions.errors import TransactionError
from mainstem.broker.transactions.records import encode_transaction
from mainstem.core import TopicPartition
from mainstem.records import Record, build_batch
from tests.support.broker import crashed, start, stop
from tests.support.facts import FIRST as P
from tests.support.facts import SECOND as Q
from tests.support.facts import TOPIC, a_topic


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


@given(st.text(max_size=9), st.binary(max_size=5), st.sampled_from([1, 3, 50]))
def test_a_key_tells_where_it_belongs(name, rest, partitions):
    place = placing(partitions, {1})
    key = encode_key(OffsetKey(name, "t", 0))
    assert place(key) == place_of(name, partitions)
    assert place(b"\0\2" + key[2:]) is None
    assert place(key[:3]) is None
    assert place(b"\0\1\0\1\xff" + rest) is None


def elsewhere(name):
    """A partition that does not keep what belongs to the name."""
    return (place_of(name, 4) + 1) % 4


def neighbour(name):
    """Another name with the same place."""
    return next(each for each in (f"{name}-{n}" for n in range(99)) if place_of(each, 4) == place_of(name, 4))


async def put(broker, topic, number, key, value, **producer):
    """Append a record by hand, which makes no difference to the broker that runs."""
    assert len(broker.topics.by_name(topic).logs) == 4
    await broker.partition(TopicPartition(topic, number)).append(build_batch([Record(0, 1, key, value)], **producer))


def ends(broker, topic):
    return [each.log_end_offset for each in broker.topics.by_name(topic).logs]


@contextlib.contextmanager
def misplaced(*expected):
    """The start in this block says of these partitions, once each, how many records belong elsewhere."""
    with structlog.testing.capture_logs() as logs:
        yield
    said = [(each["partition"], each["records"]) for each in logs if each["event"] == "coordinator_records_misplaced"]
    assert sorted(said) == sorted(expected)


def test_a_group_is_read_where_it_belongs_and_nowhere_else(tmp_path, clock):
    """What lies elsewhere is read before it, and after it; it says another offset, a deletion, and another group."""
    names = [f"name-{number}" for number in range(4)]
    assert {place_of(name, 4) for name in names} == set(range(4))

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        for name in names:
            where, unreadable = elsewhere(name), encode_key(OffsetKey(neighbour(name), TOPIC, 0))
            await broker.groups.commit(name, Commit(), {P: OffsetValue(7), Q: OffsetValue(8)})
            await put(broker, OFFSETS_TOPIC, where, encode_key(OffsetKey(name, TOPIC, 0)), encode_value(OffsetValue(9)))
            await put(broker, OFFSETS_TOPIC, where, encode_key(OffsetKey(name, TOPIC, 1)), None)
            await put(broker, OFFSETS_TOPIC, where, unreadable, b"\0\5 of a later version")
        before = ends(broker, OFFSETS_TOPIC)
        said = [(f"{OFFSETS_TOPIC}-{number}", 3) for number in range(4)]
        with misplaced(*said):
            broker = await crashed(broker, tmp_path / "b", clock)
        assert ends(broker, OFFSETS_TOPIC) == before
        assert {each: broker.groups.offsets.get(each, P) for each in broker.groups.groups} == dict.fromkeys(
            names, OffsetValue(7)
        )
        assert {broker.groups.offsets.get(each, Q) for each in names} == {OffsetValue(8)}
        await broker.groups.delete_group(names[0])
        await broker.groups.commit(names[1], Commit(), {P: OffsetValue(10)})
        with misplaced(*said):
            broker = await crashed(broker, tmp_path / "c", clock)
        assert names[0] not in broker.groups.groups
        assert broker.groups.offsets.get(names[1], P) == OffsetValue(10)
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_transaction_with_an_offset_where_it_does_not_belong_changes_nothing(tmp_path, clock, commit):
    name = "name-1"

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await broker.groups.commit(name, Commit(), {P: OffsetValue(7)})
        producer = await broker.transactions.initialize("t", 60_000)
        where = TopicPartition(OFFSETS_TOPIC, elsewhere(name))
        await broker.transactions.add_partitions("t", producer, {where})
        await put(
            broker, OFFSETS_TOPIC, where.partition, encode_key(OffsetKey(name, TOPIC, 0)), encode_value(OffsetValue(9)),
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
            transactional=True,
        )  # fmt: skip
        with misplaced((str(where), 1)):
            broker = await crashed(broker, tmp_path / "b", clock)
        assert not broker.groups.offsets.is_open(name)
        await broker.transactions.end("t", producer, commit=commit, version=1)
        assert broker.groups.offsets.get(name, P) == OffsetValue(7)
        with misplaced(*([(str(where), 1)] if commit else [])):
            broker = await crashed(broker, tmp_path / "c", clock)
        assert broker.groups.offsets.get(name, P) == OffsetValue(7)
        await stop(broker)

    asyncio.run(story())


def test_a_transactional_id_is_read_where_it_belongs_and_nowhere_else(tmp_path, clock):
    """So are the producer ids: after an old record of them, read as the last one, some would be given twice."""
    names = [f"name-{number}" for number in range(4)]

    async def story():
        broker = await start(tmp_path / "a", clock)
        producers = {name: await broker.transactions.initialize(name, 60_000) for name in names}
        for name in names:
            old = broker.transactions.describe(name)
            await put(broker, STATE_TOPIC, elsewhere(name), transactions.encode_key(name), encode_transaction(old))
            producers[name] = await broker.transactions.initialize(name, 60_000)
            await put(
                broker, STATE_TOPIC, elsewhere(name), transactions.encode_key(neighbour(name)), encode_transaction(old)
            )
        given = [await broker.transactions.new_producer_id() for _ in range(20)]
        await put(broker, STATE_TOPIC, 3, producer_ids.KEY, producer_ids.encode_reserved(given[9]))
        before = ends(broker, STATE_TOPIC)
        with misplaced(*[(f"{STATE_TOPIC}-{number}", 2 + (number == 3)) for number in range(4)]):
            broker = await crashed(broker, tmp_path / "b", clock)
        assert ends(broker, STATE_TOPIC) == before
        for name in names:
            assert broker.transactions.describe(name).producer_epoch == producers[name].producer_epoch == 1
            with pytest.raises(TransactionError):
                broker.transactions.describe(neighbour(name))
        assert await broker.transactions.new_producer_id() > given[-1]
        await stop(broker)

    asyncio.run(story())


def test_the_state_of_a_share_partition_is_read_where_it_belongs_and_nowhere_else(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        topic_id = broker.topics.by_name(TOPIC).topic_id
        keys = [PartitionKey(f"group-{number}", topic_id, 0) for number in range(8)]
        for key in keys:
            await broker.groups.share.set_offsets(key.group, {key: 7})
        logs = broker.topics.by_name(persister.STATE_TOPIC).logs
        held = {}
        for number, each in enumerate(logs):
            async for _, _, records in replay(each):
                held |= {record.key: (number, record.value) for record in records}
        assert {number for number, _ in held.values()} == set(range(4))
        for key in keys:
            epoch = broker.groups.share.persister.get(key).state_epoch
            await broker.groups.share.persister.update(key, Change(8, 1, ()), state_epoch=epoch, leader_epoch=0)
        for record_key, (number, value) in held.items():
            for other in range(4):
                if other != number:
                    await put(broker, persister.STATE_TOPIC, other, record_key, None if other % 2 else value)
        before = ends(broker, persister.STATE_TOPIC)
        own = Counter(number for number, _ in held.values())
        with misplaced(*[(f"{persister.STATE_TOPIC}-{number}", len(keys) - own[number]) for number in range(4)]):
            broker = await crashed(broker, tmp_path / "b", clock)
        assert ends(broker, persister.STATE_TOPIC) == before
        assert [broker.groups.share.persister.get(key).start_offset for key in keys] == [8] * len(keys)
        await stop(broker)

    asyncio.run(story())


def test_what_belongs_to_a_damaged_partition_waits_for_its_repair_also_where_a_copy_lies_elsewhere(tmp_path, clock):
    """The copy may be older. Of others nothing may lie in the damaged partition: they go on."""
    name = "name-1"

    async def story():
        broker = await start(tmp_path, clock)
        await a_topic(broker)
        others = [each for each in (f"name-{number}" for number in range(20)) if place_of(each, 4) != place_of(name, 4)]
        for each in (name, *others):
            await broker.groups.commit(each, Commit(), {P: OffsetValue(7)})
        await put(
            broker, OFFSETS_TOPIC, elsewhere(name), encode_key(OffsetKey(name, TOPIC, 0)), encode_value(OffsetValue(6))
        )
        await stop(broker)
        (segment,) = (tmp_path / f"{OFFSETS_TOPIC}-{place_of(name, 4)}").glob("*.log")
        flip(segment)
        broker = await start(tmp_path, clock)
        with pytest.raises(CoordinatorUnavailable):
            broker.groups.storage.check_read(name)
        assert broker.groups.offsets.get(name, P) is None
        for each in others:
            broker.groups.storage.check_read(each)
            assert broker.groups.offsets.get(each, P) == OffsetValue(7)
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        await stop(broker)
        flip(segment)
        broker = await start(tmp_path, clock)
        broker.groups.storage.check_read(name)
        await stop(broker)

    asyncio.run(story())


def flip(path):
    """Damage a file, or repair it."""
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
