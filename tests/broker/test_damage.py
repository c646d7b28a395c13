"""One bit that is flipped, or a file that is cut, anywhere in a data directory: the same, or said; and nobody else is
held up by it.

`tests/log/test_recovery.py` has the same for a log directory alone, where there are more places than here.
"""

import asyncio
import json
import random
from pathlib import Path

import pytest
import structlog

from mainstem.broker.config import BrokerConfig
from mainstem.broker.groups.errors import CoordinatorUnavailable
from mainstem.broker.groups.share.persister import STATE_TOPIC, StateUnavailable, place
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.node import serving
from mainstem.broker.placement import place_of
from mainstem.broker.server import Broker
from mainstem.broker.transactions.errors import TransactionError
from mainstem.core import MainstemError, ManualClock, TopicPartition
from mainstem.log import LogConfig
from mainstem.log.repair import repair
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.log.simulated_disk import FileNode, SimulatedDisk
from tests.log.support import abandon
from tests.support.broker import Client, committed_records, start, stop

CONFIG = BrokerConfig(
    port=0, stop_timeout_ms=200, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3,
)  # fmt: skip
GROUPS = [f"group-{number}" for number in range(6)]
IDS = [f"id-{number}" for number in range(6)]
ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)
OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
PLACES = 2


def partition_of(key: str) -> int:
    return place_of(key, 3)


async def fill(disk: SimulatedDisk, *, closed: bool) -> None:
    """Something of everything that a broker keeps."""
    clock = ManualClock()
    broker = await start(disk.root, clock, CONFIG, disk=disk)
    client = await Client.connect(broker)
    for topic in (ORDERS.topic, OTHERS.topic):
        await broker.topics.create(topic, 1, {"segment.bytes": "1000", "cleanup.policy": "delete"})
    user = {"name": "ann", "mechanism": 2, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 64}
    await client.call(51, 0, deletions=[], upsertions=[user])
    acl = {
        "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:ann", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    await client.call(30, 2, creations=[acl])
    entity = [{"entity_type": "user", "entity_name": "ann"}]
    ops = [{"key": "producer_byte_rate", "value": 1_000_000.0, "remove": False}]
    await client.call(49, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)
    for number in range(6):
        for topic_partition in (ORDERS, OTHERS):
            await broker.partition(topic_partition).append(build_batch([Record(0, 1, b"k", b"v%d" % number * 20)]))
        partitions = [
            {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1, "committed_metadata": "m"}
        ]
        await client.call(
            8, 8, group_id=GROUPS[number], generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": "orders", "partitions": partitions}],
        )  # fmt: skip
        if number == 3 and not closed:
            await broker.log.checkpoint()
    for number, name in enumerate(IDS):
        producer = await broker.transactions.initialize(name, 60_000)
        if number % 2:
            await broker.transactions.add_partitions(name, producer, {ORDERS})
            batch = build_batch(
                [Record(0, 1, b"k", b"of " + name.encode())], producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch, base_sequence=0, transactional=True,
            )  # fmt: skip
            await broker.partition(ORDERS).append(batch)
            await broker.transactions.end(name, producer, commit=number < 4, version=1)
    client.close()
    if closed:
        await stop(broker)
    else:
        await broker.stop()
        abandon(broker.log)


async def found_on(disk: SimulatedDisk) -> dict[str, object]:
    """What a broker says of everything, an item for each; text where it says that something is wrong.

    Raises:
        MainstemError: it does not start.
    """
    async with serving(disk.root, CONFIG, LogConfig(), clock=ManualClock(), disk=disk) as broker:
        return await asked_of(broker)


async def asked_of(broker: Broker) -> dict[str, object]:
    client = await Client.connect(broker)
    items: dict[str, object] = {f"fact {key}": json.dumps(fact) for key, fact in broker.topics.facts.found.items()}
    for topic_partition in (ORDERS, OTHERS):
        item, partition = f"records of {topic_partition}", broker.partition(topic_partition)
        try:
            partition.check_usable()
            items[item] = [record.value for record in await committed_records(partition)]
        except MainstemError as error:
            items[item] = f"{error} ({error.hint})"
    asked = [{"name": "orders", "partition_indexes": [0]}]
    for group in GROUPS:
        (answer,) = (await client.call(9, 8, groups=[{"group_id": group, "topics": asked}], require_stable=True)).groups
        found = [(one.committed_offset, one.metadata) for topic in answer.topics for one in topic.partitions]
        items[f"offset of {group}"] = Code(answer.error_code).name if answer.error_code else found
        (place,) = (await client.call(10, 4, key_type=0, coordinator_keys=[group])).coordinators
        assert place.error_code == answer.error_code
    for name in IDS:
        (answer,) = (await client.call(65, 0, transactional_ids=[name])).transaction_states
        (place,) = (await client.call(10, 4, key_type=1, coordinator_keys=[name])).coordinators
        state = (answer.transaction_state, answer.producer_id, answer.producer_epoch)
        items[f"state of {name}"] = Code(place.error_code).name if place.error_code else state
    client.close()
    return items


def damaged(original: SimulatedDisk, path: Path, how: str, places: random.Random) -> tuple[SimulatedDisk, str]:
    copy = original.after_kill()
    node = copy.file(path)
    place = places.randrange(len(node.data))
    if how == "flip":
        node.data[place] ^= 1 << places.randrange(8)
        node.durable = bytes(node.data)
    else:
        node.truncate(place)
        node.sync()
    return copy, f"{path.relative_to(copy.root)}: {how} at {place}"


def files_of(disk: SimulatedDisk) -> list[Path]:
    found = []
    for name, node in disk.tree.entries.items():
        within = (
            {name: node} if isinstance(node, FileNode) else {f"{name}/{n}": each for n, each in node.entries.items()}
        )
        found += [disk.root / each for each, file in within.items() if file.data]
    return found


def may_suffer(item: str, path: Path) -> bool:
    """What else is held up by the damage of a file of one partition is a fault, too."""
    partition = path.parent.name
    kind, _, name = item.rpartition(" ")
    if partition in (str(ORDERS), str(OTHERS)):
        return name == partition
    if partition.startswith(OFFSETS):
        return kind == "offset of" and partition == f"{OFFSETS}-{partition_of(name)}"
    if partition.startswith(STATE):
        return kind == "state of" and partition == f"{STATE}-{partition_of(name)}"
    return False


def check(original: SimulatedDisk, expected: dict[str, object], path: Path, how: str, places: random.Random) -> str:
    """Said or the same; how it was: "same", "said" or "refused"."""
    disk, where = damaged(original, path, how, places)
    try:
        found = asyncio.run(found_on(disk))
    except MainstemError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:  # only for what everything depends on: the directory's own files, and the broker's facts
        assert path.parent == disk.root or path.parent.name == "__mainstem_metadata-0", f"{where}: {refusal}"
        assert refusal.hint, f"{where}: {refusal}"
        return "refused"
    assert found.keys() >= expected.keys(), f"{where}: {expected.keys() - found.keys()} are gone"
    wrong = {item for item, value in expected.items() if found[item] != value}
    for item in wrong:
        told = found[item]
        assert isinstance(told, str), f"{where}: {item} was {expected[item]}, is {told}"
        assert not item.startswith("fact"), f"{where}: {item} was {expected[item]}, is {told}"
        assert may_suffer(item, path), f"{where}: {item}: {told}"
        assert "mainstem log repair" in told or told == "coordinator_not_available", f"{where}: {item}: {told}"
    return "said" if wrong else "same"


def check_all(root: Path, places_per_file: int, *, closed: bool) -> dict[str, int]:
    original = SimulatedDisk(root)
    asyncio.run(fill(original, closed=closed))
    expected = asyncio.run(found_on(original.after_kill()))
    assert expected["offset of group-5"] == [(5, "m")]
    assert expected["records of orders-0"][-1] == b"of id-3"
    outcomes = {"same": 0, "said": 0, "refused": 0}
    with structlog.testing.capture_logs():
        for path in files_of(original):
            for how in ("flip", "cut"):
                places = random.Random(f"{path}/{how}/{closed}")
                for _ in range(places_per_file):
                    outcomes[check(original, expected, path, how, places)] += 1
    return outcomes


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_damage_of_any_file_is_told_and_holds_up_nobody_else(tmp_path, closed):
    outcomes = check_all(tmp_path, PLACES, closed=closed)
    assert min(outcomes.values()) > 5, outcomes


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
def test_who_asks_what_there_is_is_told_that_some_of_it_is_not_known(tmp_path, topic):
    """That there are no more groups, or transactions, would be a lie."""

    async def story():
        disk = SimulatedDisk(tmp_path)
        await fill(disk, closed=True)
        names = GROUPS if topic == OFFSETS else IDS
        disk.file(tmp_path / f"{topic}-{partition_of(names[0])}" / f"{0:020d}.log").data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=ManualClock(), disk=disk) as broker:
            client = await Client.connect(broker)
            groups = await client.call(16, 4, states_filter=[])
            ids = await client.call(66, 0, state_filters=[], producer_id_filters=[])
            found = {
                OFFSETS: (groups.error_code, {each.group_id for each in groups.groups}, set(GROUPS)),
                STATE: (ids.error_code, {each.transactional_id for each in ids.transaction_states}, set(IDS)),
            }
            for name, (code, known, all_of_them) in found.items():
                lost = {each for each in all_of_them if name == topic and partition_of(each) == partition_of(names[0])}
                assert code == (Code.coordinator_not_available if name == topic else Code.none)
                assert known == all_of_them - lost
            for key, version in ((15, 5), (69, 1), (77, 1), (89, 0)) if topic == OFFSETS else ():
                asked = {"groups": [GROUPS[0]]} if key == 15 else {"group_ids": [GROUPS[0]]}
                (group,) = (await client.call(key, version, **asked)).groups
                assert group.error_code == Code.coordinator_not_available
            (state,) = (await client.call(65, 0, transactional_ids=[IDS[0]])).transaction_states
            assert state.error_code == (Code.coordinator_not_available if topic == STATE else Code.none)
            client.close()

    asyncio.run(story())


def test_the_transaction_of_an_id_that_cannot_be_read_is_not_aborted(tmp_path):
    """It may have been committed: nobody knows before the repair. New ids are none that a repair may have cut off."""

    async def story():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        broker = await start(tmp_path, clock, CONFIG, disk=disk)
        await broker.topics.create(ORDERS.topic, 1, {})
        name = next(each for each in IDS if partition_of(each))  # the producer ids are in partition 0
        producer = await broker.transactions.initialize(name, 60_000)
        await broker.transactions.add_partitions(name, producer, {ORDERS})
        batch = build_batch(
            [Record(0, 1, b"k", b"v")], producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        await broker.partition(ORDERS).append(batch)
        await stop(broker)
        state = TopicPartition(STATE, partition_of(name))
        whole = disk.file(tmp_path / str(state) / f"{0:020d}.log")
        whole.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            assert list(broker.partition(ORDERS).open_transactions) == [producer.producer_id]
            with pytest.raises(TransactionError) as told:
                await broker.transactions.end(name, producer, commit=True, version=1)
            assert told.value.code == Code.coordinator_not_available
            assert await broker.transactions.new_producer_id() > producer.producer_id
            other = next(each for each in IDS if partition_of(each) != partition_of(name))
            assert (await broker.transactions.initialize(other, 60_000)).producer_id > producer.producer_id
        whole.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            await broker.transactions.end(name, producer, commit=True, version=1)
            assert [record.value for record in await committed_records(broker.partition(ORDERS))] == [b"v"]

    asyncio.run(story())


def test_no_transaction_takes_in_a_group_that_cannot_be_read(tmp_path):
    """Its marker would not be taken: the transaction could not end, and held up readers of all that it had written."""

    async def story():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        await fill(disk, closed=True)
        group, name = GROUPS[0], IDS[0]
        damaged_log = disk.file(tmp_path / f"{OFFSETS}-{partition_of(group)}" / f"{0:020d}.log")
        damaged_log.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            producer = await broker.transactions.initialize(name, 60_000)
            client = await Client.connect(broker)
            asked = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
            answer = await client.call(25, 3, transactional_id=name, group_id=group, **asked)
            assert answer.error_code == Code.coordinator_not_available
            other = next(each for each in GROUPS if partition_of(each) != partition_of(group))
            answer = await client.call(25, 3, transactional_id=name, group_id=other, **asked)
            assert answer.error_code == Code.none
            client.close()

    asyncio.run(story())


def test_states_of_a_share_group_that_cannot_be_read_are_kept(tmp_path):
    """What is kept of its partitions was deleted by the start, as that of a group that is no more."""

    async def story():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        broker = await start(tmp_path, clock, CONFIG, disk=disk)
        topic = await broker.topics.create(ORDERS.topic, 1, {})
        keys = [PartitionKey(group, topic.topic_id, 0) for group in GROUPS]
        for key in keys:
            await broker.groups.share.set_offsets(key.group, {key: 7})
        await stop(broker)
        damaged = TopicPartition(OFFSETS, partition_of(GROUPS[0]))
        file = disk.file(tmp_path / str(damaged) / f"{0:020d}.log")
        file.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            share = broker.groups.share
            with pytest.raises(CoordinatorUnavailable):
                await share.set_offsets(keys[0].group, {keys[0]: 8})
            other = next(key for key in keys if partition_of(key.group) != damaged.partition)
            assert await share.set_offsets(other.group, {other: 7}) == {other: None}
        file.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            assert [broker.groups.share.persister.get(key).start_offset for key in keys] == [7] * len(keys)

    asyncio.run(story())


def test_states_that_cannot_be_read_hold_up_nobody_else(tmp_path):
    async def story():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        broker = await start(tmp_path, clock, CONFIG, disk=disk)
        topic = await broker.topics.create(ORDERS.topic, 1, {})
        keys = [PartitionKey(group, topic.topic_id, 0) for group in GROUPS]
        for key in keys:
            await broker.groups.share.set_offsets(key.group, {key: 7})
        count = len(broker.topics.by_name(STATE_TOPIC).logs)
        await stop(broker)
        damaged = TopicPartition(STATE_TOPIC, place(keys[0], count))
        file = disk.file(tmp_path / str(damaged) / f"{0:020d}.log")
        file.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            share = broker.groups.share
            (error,) = (await share.set_offsets(keys[0].group, {keys[0]: 8})).values()
            assert isinstance(error, StateUnavailable)
            with pytest.raises(StateUnavailable):
                await share.delete_offsets(keys[0].group, [topic.topic_id])
            other = next(key for key in keys if place(key, count) != damaged.partition)
            assert await share.set_offsets(other.group, {other: 7}) == {other: None}
        file.data[30] ^= 1
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            assert [broker.groups.share.persister.get(key).start_offset for key in keys] == [7] * len(keys)

    asyncio.run(story())


@pytest.mark.parametrize("known", ["by its records", "by its transactional id", "not yet"])
def test_producer_ids_are_not_given_again_when_a_repair_has_cut_off_which_were(tmp_path, known):
    """The next producer would have continued another one's sequences: its records were acknowledged as repetitions."""

    async def story():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        broker = await start(tmp_path, clock, CONFIG, disk=disk)
        await broker.topics.create(ORDERS.topic, 1, {})
        given = await broker.transactions.new_producer_id()
        batch = build_batch([Record(0, 1, b"k", b"v")], producer_id=given, producer_epoch=0, base_sequence=0)
        await broker.partition(ORDERS).append(batch)
        state = TopicPartition(STATE, 0)
        if known != "by its records":
            transactional_id = next(
                each for each in "abcdef" if broker.transactions.storage.partition_for(each) != state
            )
            given = (await broker.transactions.initialize(transactional_id, 60_000)).producer_id
        if known == "not yet":
            given = await broker.transactions.new_producer_id()
        await stop(broker)
        disk.file(tmp_path / str(state) / f"{0:020d}.log").data[30] ^= 1
        assert (await repair(tmp_path, state, clock=clock, mend=True, disk=disk)).damages
        async with serving(tmp_path, CONFIG, LogConfig(), clock=clock, disk=disk) as broker:
            assert await broker.transactions.new_producer_id() > given

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_damage_of_any_file_anywhere_is_told_and_holds_up_nobody_else(tmp_path, closed):
    print(check_all(tmp_path, 100, closed=closed))
