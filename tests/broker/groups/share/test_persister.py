import asyncio
import contextlib
import shutil
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.facts import METADATA
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat
from mainstem.broker.groups.share.persister import STATE_TOPIC, FencedStateEpoch, StateUnavailable, place
from mainstem.broker.groups.share.records import PartitionKey, UpdateKey, decode_state_key
from mainstem.broker.groups.share.state import Change, RecordState, ShareState, StateBatch
from mainstem.broker.replay import replay
from mainstem.core import MainstemError, ManualClock
from mainstem.log import StorageError
from tests.log.support import batch
from tests.support.broker import CONFIG, crashed, running, start, stop, until
from tests.support.properties import examples

DONE = RecordState.ACKNOWLEDGED
KEY = PartitionKey("g", UUID(int=1), 0)


def told(story):
    asyncio.run(story())


def done(offset, start=0, last=None):
    return Change(start, 1, (StateBatch(offset, offset if last is None else last, DONE, 1),))


async def group_with_topic(broker, group="g", partitions=1):
    """A share group whose member has left, and the keys of its share partitions."""
    topic = broker.topics.get("facts") or await broker.topics.create("facts", partitions, {})
    beat = Heartbeat(member_id="a", epoch=JOIN, topics=("facts",), client_id="c", client_host="/h")
    await broker.groups.share.heartbeat(group, beat)
    await broker.groups.share.heartbeat(group, msgspec.structs.replace(beat, epoch=LEAVE))
    return [PartitionKey(group, topic.topic_id, number) for number in range(partitions)]


async def stored(broker):
    """The keys of all records in the topic."""
    return [
        decode_state_key(record.key)
        for partition in broker.topics.by_name(STATE_TOPIC).logs
        async for _, _, records in replay(partition)
        for record in records
    ]


@pytest.mark.parametrize(
    ("group", "number", "count", "where"),
    [("g", 0, 50, 23), ("g", 1, 50, 22), ("a:b", 12, 50, 22), ("grüße", 3, 4, 0)],
)
def test_a_share_partition_has_its_place(group, number, count, where):
    """As Kafka's `SharePartitionKey.asCoordinatorKey` says it."""
    assert place(PartitionKey(group, UUID(int=1), number), count) == where


def test_the_topic_is_made_when_the_first_state_is_set(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        (key,) = await group_with_topic(broker)
        persister = broker.groups.share.persister
        assert broker.topics.get(STATE_TOPIC) is None
        assert persister.get(key) is None
        await persister.delete([key])
        first, second = persister.set(key, ShareState(start_offset=5)), persister.set(key, ShareState(start_offset=7))
        await asyncio.gather(first, second)
        topic = broker.topics.by_name(STATE_TOPIC)
        assert (topic.internal, len(topic.logs), topic.config["cleanup.policy"]) == (True, 4, "delete")
        await persister.update(key, done(9, 8), state_epoch=0, leader_epoch=3)
        broker = await crashed(broker, tmp_path / "b", clock)
        expected = ShareState(start_offset=8, leader_epoch=3, complete=1, batches=(StateBatch(9, 9, DONE, 1),))
        assert broker.groups.share.persister.get(key) == expected
        await stop(broker)

    told(story)


def test_what_is_asked_for_while_the_topic_is_made_is_told(tmp_path, clock):
    """In every turn of the loop, also that in which the topic is there and nobody has been told."""

    async def story():
        async with running(tmp_path, clock) as broker:
            (key,) = await group_with_topic(broker)
            persister = broker.groups.share.persister
            asked = [persister.set(key, ShareState(start_offset=0))]
            async with asyncio.timeout(10):
                while not asked[0].done():
                    asked.append(persister.set(key, ShareState(start_offset=len(asked))))
                    await asyncio.sleep(0)
                await asyncio.gather(*asked)
                assert await persister.read(key) == ShareState(start_offset=len(asked) - 1)

    told(story)


def test_what_waits_becomes_one_record(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            (key,) = await group_with_topic(broker)
            persister = broker.groups.share.persister
            await persister.set(key, ShareState(start_offset=0))
            asked = [persister.update(key, done(n), state_epoch=0, leader_epoch=n) for n in range(1, 9)]
            assert persister.get(key).batches == ()
            await asyncio.gather(*asked)
            assert await persister.read(key) == ShareState(
                start_offset=0, leader_epoch=8, complete=1, batches=(StateBatch(1, 8, DONE, 1),)
            )
            assert [type(each) for each in await stored(broker)].count(UpdateKey) == 2

    told(story)


def test_a_state_that_is_set_or_deleted_fences_whoever_knows_the_one_before(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            (key,) = await group_with_topic(broker)
            persister = broker.groups.share.persister
            with pytest.raises(FencedStateEpoch):
                persister.update(key, done(1), state_epoch=0, leader_epoch=0)
            await persister.set(key, ShareState(start_offset=0))
            before = persister.update(key, done(1), state_epoch=0, leader_epoch=0)
            asked = persister.set(key, ShareState(start_offset=20, state_epoch=1))
            with pytest.raises(FencedStateEpoch):
                persister.update(key, done(2), state_epoch=0, leader_epoch=0)
            after = persister.update(key, done(22, 20), state_epoch=1, leader_epoch=0)
            await asyncio.gather(before, asked, after)
            assert persister.get(key).batches == (StateBatch(22, 22, DONE, 1),)
            deleted = persister.delete([key])
            with pytest.raises(FencedStateEpoch):
                persister.update(key, done(23), state_epoch=1, leader_epoch=0)
            await deleted
            assert await persister.read(key) is None

    told(story)


@pytest.mark.parametrize("deleted", ["the group", "the topic"])
def test_what_is_deleted_has_no_state_any_more(tmp_path, clock, deleted):
    async def story():
        broker = await start(tmp_path / "a", clock)
        keys = await group_with_topic(broker, partitions=3)
        (other, *_) = await group_with_topic(broker, "other", partitions=3)
        persister = broker.groups.share.persister
        await asyncio.gather(*(persister.set(key, ShareState(start_offset=1)) for key in (*keys, other)))
        persister.update(keys[0], done(3), state_epoch=0, leader_epoch=0)
        if deleted == "the group":
            await broker.groups.delete_group("g")
        else:
            topic = broker.topics.by_name("facts")
            await broker.topics.delete(topic)
            await broker.groups.forget_topic("facts")
        broker = await crashed(broker, tmp_path / "b", clock)
        persister = broker.groups.share.persister
        assert [persister.get(key) for key in keys] == [None] * 3
        assert (persister.get(other) is None) is (deleted == "the topic")
        await stop(broker)

    told(story)


def test_a_crash_amid_a_deletion_leaves_no_state_behind(tmp_path, clock):
    """The state of a group that is gone would be where a new group of that name begins."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        keys = await group_with_topic(broker)
        persister = broker.groups.share.persister
        await persister.set(keys[0], ShareState(start_offset=1))
        broker.groups.share.forget_group = lambda _: asyncio.sleep(0)
        await broker.groups.delete_group("g")
        assert persister.get(keys[0]) is not None
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.share.persister.get(keys[0]) is None
        await stop(broker)

    told(story)


def test_what_cannot_be_stored_is_not_promised(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            (key,) = await group_with_topic(broker)
            persister = broker.groups.share.persister
            await persister.set(key, ShareState(start_offset=0))
            under_way = persister.update(key, done(1), state_epoch=0, leader_epoch=0)
            waiting = persister.update(key, done(2), state_epoch=0, leader_epoch=0)
            for partition in broker.topics.by_name(STATE_TOPIC).logs:
                partition.go_offline(StorageError("the disk is gone"))
            for asked in (under_way, waiting, persister.update(key, done(3), state_epoch=0, leader_epoch=0)):
                with pytest.raises(StateUnavailable):
                    await asked
            assert (await persister.read(key)).batches == ()

    told(story)


def test_who_waits_for_the_topic_is_told_when_the_broker_stops(tmp_path, clock):
    """A crash that came while the first state was set left its caller waiting for ever."""

    async def story():
        broker = await start(tmp_path, clock)
        (key,) = await group_with_topic(broker, partitions=1)
        asked = broker.groups.share.persister.set(key, ShareState(start_offset=1))
        await stop(broker)
        with pytest.raises(StateUnavailable):
            async with asyncio.timeout(5):
                await asked

    told(story)


def test_old_records_are_deleted(tmp_path, clock, monkeypatch):
    """A share partition that nobody has written for long does not hold those of the others."""
    monkeypatch.setattr("mainstem.broker.groups.share.persister._FEW_RECORDS", 100)
    config = msgspec.structs.replace(
        CONFIG,
        share_coordinator_state_topic_num_partitions=1,
        share_coordinator_snapshot_update_records_per_snapshot=10,
    )

    async def story():
        broker = await start(tmp_path / "a", clock, config)
        cold, hot = await group_with_topic(broker, partitions=2)
        persister = broker.groups.share.persister
        await persister.set(cold, ShareState(start_offset=7))
        await persister.set(hot, ShareState(start_offset=0))
        for n in range(1, 500):
            await persister.update(hot, done(n, n), state_epoch=0, leader_epoch=0)
        (partition,) = broker.topics.by_name(STATE_TOPIC).logs
        await until(lambda: partition.log_end_offset - partition.log_start_offset <= 130, "old records go")
        broker = await crashed(broker, tmp_path / "b", clock)
        persister = broker.groups.share.persister
        assert persister.get(cold) == ShareState(start_offset=7)
        assert persister.get(hot).start_offset == 499
        await broker.groups.delete_group("g")
        await stop(broker)

    told(story)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(0, 2), st.integers(0, 20)),
        st.tuples(st.just("set"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 2), st.none()),
        st.tuples(st.just("wait"), st.integers(0, 2), st.none()),
        st.tuples(st.just("turn"), st.none(), st.integers(0, 4)),
        st.tuples(st.just("crash"), st.none(), st.none()),
    ),
    max_size=40,
)


@given(steps=STEPS, updates_per_snapshot=st.integers(0, 3))
@settings(max_examples=examples(15))
def test_a_crash_takes_back_nothing_that_was_answered(tmp_path_factory, steps, updates_per_snapshot):
    """What is found after it is the state after some of what was asked: all that was answered, and maybe more."""
    config = msgspec.structs.replace(
        CONFIG, share_coordinator_snapshot_update_records_per_snapshot=updates_per_snapshot
    )
    clock = ManualClock()

    async def story():
        path = tmp_path_factory.mktemp("states")
        broker = await start(path / "0", clock, config)
        keys = await group_with_topic(broker, partitions=3)
        # Of each share partition: the states after each call, and how many of these were answered.
        states, answered = [[None] for _ in keys], [0 for _ in keys]

        def asked(number, state, future):
            states[number].append(state)
            place = len(states[number]) - 1

            def answer(finished):
                if not finished.cancelled() and finished.exception() is None:
                    answered[number] = max(answered[number], place)

            future.add_done_callback(answer)

        for count, (kind, number, value) in enumerate(steps, 1):
            persister = broker.groups.share.persister
            now = None if number is None else states[number][-1]
            if kind == "update" and now is not None:
                change = Change(now.start_offset, value, (StateBatch(value, value, DONE, 1),))
                future = persister.update(keys[number], change, state_epoch=now.state_epoch, leader_epoch=value)
                asked(number, msgspec.structs.replace(now.updated(change), leader_epoch=value), future)
            elif kind == "update":
                with pytest.raises(FencedStateEpoch):
                    persister.update(keys[number], done(1), state_epoch=0, leader_epoch=0)
            elif kind == "set":
                state = ShareState(start_offset=value, state_epoch=0 if now is None else now.state_epoch + 1)
                asked(number, state, persister.set(keys[number], state))
            elif kind == "delete":
                asked(number, None, persister.delete([keys[number]]))
            elif kind == "wait":
                assert await persister.read(keys[number]) == now
                await asyncio.sleep(0)  # who asked is told
                assert answered[number] == len(states[number]) - 1
            elif kind == "turn":
                for _ in range(value):
                    await asyncio.sleep(0.0005)
            else:
                by_then = list(answered)  # the old one goes on to answer, when its files have been copied
                broker = await crashed(broker, path / str(count), clock)
                for key, known, at_least in zip(keys, states, by_then, strict=True):
                    found = broker.groups.share.persister.get(key)
                    assert found in known[at_least:]
                    known[:] = [found]
                answered = [0 for _ in keys]
        with contextlib.suppress(MainstemError):
            await stop(broker)

    told(story)


def test_states_of_a_topic_whose_metadata_is_lost_are_read(tmp_path, clock):
    """They were left unread, and what groups had done with records was not known any more."""
    whole, lost = tmp_path / "whole", tmp_path / "lost"

    async def story():
        broker = await start(whole, clock)
        (key,) = await group_with_topic(broker)
        await broker.groups.share.set_offsets("g", {key: 7})
        await broker.topics.by_id(key.topic_id).logs[0].append(batch(b"v"))
        await stop(broker)
        lost.mkdir()
        for directory in whole.glob("*-*"):
            if directory.name != str(METADATA):
                shutil.copytree(directory, lost / directory.name)
        for _ in range(2):
            broker = await start(lost, clock)
            assert broker.groups.share.persister.get(key).start_offset == 7
            await stop(broker)

    told(story)
