import asyncio
import shutil

import pytest

from mainstem.broker.errors import UnknownTopicId
from mainstem.broker.groups.classic.messages import JoinRequest, Protocol
from mainstem.broker.groups.errors import FencedMemberEpoch, GroupNotEmpty, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat
from mainstem.broker.groups.share.persister import STATE_TOPIC, StateUnavailable
from mainstem.broker.groups.share.records import PartitionKey, StatePartitionsValue
from mainstem.broker.groups.share.state import RecordState, ShareState, StateBatch
from mainstem.core import TopicPartition
from mainstem.log import LogConfig, LogDirectory
from mainstem.log.errors import StorageError
from mainstem.log.repair import repair
from mainstem.wire.errors import Code
from tests.support.broker import crashed, running, start, stop

TOPIC = "facts"


def a_key(broker, partition=0):
    return PartitionKey("g", broker.topics.by_name(TOPIC).topic_id, partition)


def told(story):
    asyncio.run(story())


def a_beat(member_id, epoch=JOIN):
    return Heartbeat(
        member_id=member_id, epoch=epoch, topics=(TOPIC,) if epoch == JOIN else None, client_id="c", client_host="/h"
    )


def a_classic_join():
    return JoinRequest(
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
        rebalance_timeout_ms=30_000,
        session_timeout_ms=10_000,
        member_id_required=False,
    )


async def with_topic(broker, partitions=4):
    await broker.topics.create(TOPIC, partitions, {})
    return broker.groups, broker.groups.share


def numbers(answer):
    return sorted(number for partitions in answer.assignment.values() for number in partitions)


def test_members_join_and_leave(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, share = await with_topic(broker)
            answer = await share.heartbeat("g", a_beat("a"))
            assert (answer.epoch, numbers(answer)) == (2, [0, 1, 2, 3])
            assert numbers(await share.heartbeat("g", a_beat("b"))) == [2, 3]
            assert numbers(await share.heartbeat("g", a_beat("a", 2))) == [0, 1]
            with pytest.raises(FencedMemberEpoch):
                await share.heartbeat("g", a_beat("a", 5))
            assert (await share.heartbeat("g", a_beat("b", LEAVE))).epoch == LEAVE
            with pytest.raises(UnknownMember):
                await share.heartbeat("g", a_beat("b", LEAVE))
            assert list(share.get("g").members) == ["a"]

    told(story)


def test_only_who_joins_makes_a_group(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, share = await with_topic(broker)
            for epoch in (1, LEAVE):
                with pytest.raises(UnknownGroup):
                    await share.heartbeat("g", a_beat("a", epoch))
            assert share.get("g") is None
            assert "g" not in groups.groups

    told(story)


def test_groups_of_other_protocols_are_none(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, share = await with_topic(broker)
            await groups.commit("g", Commit(), {TopicPartition(TOPIC, 0): OffsetValue(1)})
            for epoch in (JOIN, 1, LEAVE):
                with pytest.raises(UnknownGroup):
                    await share.heartbeat("g", a_beat("a", epoch))
            with pytest.raises(UnknownGroup):
                await share.set_offsets("g", {a_key(broker): 1})
            with pytest.raises(UnknownGroup):
                await share.delete_offsets("g", [a_key(broker).topic_id])

    told(story)


def test_a_share_group_is_no_group_of_another_protocol(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, share = await with_topic(broker)
            await share.heartbeat("g", a_beat("a"))
            await share.heartbeat("g", a_beat("a", LEAVE))
            assert (await groups.classic.join("g", a_classic_join())).error is Code.inconsistent_group_protocol
            with pytest.raises(UnknownGroup):
                await groups.commit("g", Commit(), {TopicPartition(TOPIC, 0): OffsetValue(1)})
            with pytest.raises(UnknownGroup):
                await groups.delete_offsets("g", [TopicPartition(TOPIC, 0)])
            with pytest.raises(UnknownMember):
                groups.classic.heartbeat("g", "a", None, 1)
            assert share.get("g").is_empty

    told(story)


def test_groups_come_back_after_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await share.heartbeat("g", a_beat("a"))
        await share.heartbeat("g", a_beat("b"))
        before = share.get("g").entries()
        broker = await crashed(broker, tmp_path / "b", clock)
        group = broker.groups.share.get("g")
        assert group.entries() == before
        assert numbers(await broker.groups.share.heartbeat("g", a_beat("a", 2))) == [0, 1]
        clock.advance_ms(44_000)
        await broker.groups.share.heartbeat("g", a_beat("b", 3))
        clock.advance_ms(1_000)
        broker.groups.expire()
        assert list(group.members) == ["b"]
        await stop(broker)

    told(story)


def test_a_group_without_members_stays_until_it_is_deleted(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, share = await with_topic(broker)
        await share.heartbeat("g", a_beat("a"))
        with pytest.raises(GroupNotEmpty):
            await groups.delete_group("g")
        await share.heartbeat("g", a_beat("a", LEAVE))
        clock.advance_ms(365 * 86_400_000)
        await groups.expire_offsets()
        assert share.get("g").is_empty
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.share.get("g").epoch == 3
        await broker.groups.delete_group("g")
        broker = await crashed(broker, tmp_path / "c", clock)
        assert broker.groups.share.get("g") is None
        await stop(broker)

    told(story)


def test_offsets_make_a_group_too(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        offsets = {a_key(broker): 3, a_key(broker, 2): -2}
        assert await share.set_offsets("g", offsets) == dict.fromkeys(offsets)
        broker = await crashed(broker, tmp_path / "b", clock)
        share = broker.groups.share
        group = share.get("g")
        assert (group.state_name, group.epoch) == ("Empty", 1)
        assert [each.partitions for each in group.state_partitions.initialized] == [(0, 2)]
        assert [share.persister.get(key).start_offset for key in offsets] == [3, -1]
        await stop(broker)

    told(story)


def test_offsets_that_are_set_have_an_epoch_that_no_reader_knows(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, share = await with_topic(broker)
            epochs = [0]
            for offset in (1, 2):
                await share.heartbeat("g", a_beat("a"))
                await share.heartbeat("g", a_beat("a", LEAVE))
                await share.set_offsets("g", {a_key(broker): offset})
                epochs.append(share.persister.get(a_key(broker)).state_epoch)
            assert epochs == sorted(set(epochs))

    told(story)


def test_offsets_are_not_set_while_somebody_reads(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, share = await with_topic(broker)
            await share.set_offsets("g", {a_key(broker): 1})
            asked = asyncio.gather(
                share.set_offsets("g", {a_key(broker): 2}),
                share.delete_offsets("g", [a_key(broker).topic_id]),
                share.heartbeat("g", a_beat("a")),
                return_exceptions=True,
            )
            kinds = [type(each) for each in await asked]
            assert kinds[:2] == [GroupNotEmpty] * 2
            assert share.persister.get(a_key(broker)).start_offset == 1
            assert share.get("g").state_partitions.initialized[0].partitions == (0, 1, 2, 3)
            new = PartitionKey("h", a_key(broker).topic_id, 0)
            setting = asyncio.ensure_future(share.set_offsets("h", {new: 2}))
            await asyncio.sleep(0)
            await broker.groups.delete_group("h")
            with pytest.raises(UnknownGroup):
                await setting
            assert share.persister.get(new) is None

    told(story)


def test_a_topic_that_is_deleted_while_offsets_are_set_leaves_nothing(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, share = await with_topic(broker)
            key, topic = a_key(broker), broker.topics.by_name(TOPIC)
            setting = asyncio.ensure_future(share.set_offsets("g", {key: 2}))
            await asyncio.sleep(0)
            await asyncio.gather(broker.topics.delete(topic), groups.forget_topic(TOPIC))
            (error,) = (await setting).values()
            await groups.forget_topic(TOPIC)
            assert error is None or isinstance(error, UnknownTopicId)
            assert share.persister.get(key) is None
            assert share.get("g").state_partitions.initialized == ()

    told(story)


def test_offsets_that_a_full_disk_has_no_room_for(tmp_path, clock, monkeypatch):
    """Each is refused, and set or deleted when it is asked for again."""

    async def story():
        async with running(tmp_path, clock) as broker:
            _, share = await with_topic(broker)
            key = a_key(broker)
            await share.set_offsets("g", {key: 1})

            def refuse(batch):
                raise StorageError("no room")

            with monkeypatch.context() as full:
                for each in broker.topics.by_name(STATE_TOPIC).logs:
                    full.setattr(each, "append", refuse)
                (error,) = (await share.set_offsets("g", {key: 2})).values()
                assert isinstance(error, StateUnavailable)
                with pytest.raises(StateUnavailable):
                    await share.delete_offsets("g", [key.topic_id])
            assert share.persister.get(key).start_offset == 1
            assert key.topic_id in share.get("g").topics_with_state
            await share.delete_offsets("g", [key.topic_id])
            assert share.persister.get(key) is None
            assert share.get("g").topics_with_state == set()
            assert await share.set_offsets("g", {key: 2}) == {key: None}

    told(story)


def test_offsets_are_deleted_for_good(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await share.set_offsets("g", {a_key(broker): 1})
        await share.delete_offsets("g", [a_key(broker).topic_id])
        assert share.persister.get(a_key(broker)) is None
        broker = await crashed(broker, tmp_path / "b", clock)
        share = broker.groups.share
        assert share.persister.get(a_key(broker)) is None
        assert share.get("g").state_partitions == StatePartitionsValue()
        await stop(broker)

    told(story)


def test_a_deletion_is_not_refused_because_of_a_member_that_a_crash_takes_back(tmp_path, clock):
    """The next start went on with the deletion that had been refused."""

    async def story():
        async with running(tmp_path, clock) as broker:
            _, share = await with_topic(broker)
            await share.set_offsets("g", {a_key(broker): 1})
            deleting = asyncio.ensure_future(share.delete_offsets("g", [a_key(broker).topic_id]))
            await asyncio.sleep(0)
            joined = []
            begun = share._storing._last["g"]
            begun.add_done_callback(lambda _: joined.append(share.heartbeat("g", a_beat("a"))))
            with pytest.raises(GroupNotEmpty):
                await deleting
            assert joined[0].done()
            assert share.persister.get(a_key(broker)).start_offset == 1

    told(story)


def test_a_deletion_that_is_refused_is_not_done_by_the_next_start(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await broker.topics.create("others", 1, {})
        await share.set_offsets("g", {a_key(broker): 1})
        before = share.get("g").state_partitions
        deleting = asyncio.ensure_future(share.delete_offsets("g", [a_key(broker).topic_id]))
        await asyncio.sleep(0)
        await share.heartbeat("g", Heartbeat(member_id="a", epoch=JOIN, topics=("others",)))
        with pytest.raises(GroupNotEmpty):
            await deleting
        assert share.get("g").state_partitions.deleting == ()
        assert set(before.initialized) < set(share.get("g").state_partitions.initialized)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.share.persister.get(a_key(broker)).start_offset == 1
        await stop(broker)

    told(story)


@pytest.mark.parametrize("what", ["group", "offsets"])
def test_what_a_group_has_read_is_not_deleted_while_some_of_it_cannot_be_read(tmp_path, clock, what):
    """With a copy of the damaged file it would come back, for another group of that name."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await share.set_offsets("g", {a_key(broker): 1})
        files = [log.directory.name for log in broker.topics.by_name(STATE_TOPIC).logs if log.high_watermark]
        await stop(broker)
        (path,) = (tmp_path / "a" / files[0]).glob("*.log")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        broker = await start(tmp_path / "a", clock)
        groups, share = broker.groups, broker.groups.share
        with pytest.raises(StateUnavailable):
            await (groups.delete_group("g") if what == "group" else share.delete_offsets("g", [a_key(broker).topic_id]))
        assert share.get("g").is_empty
        await stop(broker)

    told(story)


def test_a_start_goes_on_with_what_was_being_deleted(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await share.set_offsets("g", {a_key(broker): 1})
        group = share.get("g")
        await share._take(group, group.delete_offsets([a_key(broker).topic_id]))
        broker = await crashed(broker, tmp_path / "b", clock)
        share = broker.groups.share
        assert share.persister.get(a_key(broker)) is None
        assert share.get("g").state_partitions.deleting == ()
        await stop(broker)

    told(story)


def test_what_groups_keep_of_a_topic_goes_with_it(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, share = await with_topic(broker)
        await share.heartbeat("g", a_beat("a"))
        (found,) = share.get("g").state_partitions.initialized
        assert (found.topic, found.partitions) == (TOPIC, (0, 1, 2, 3))
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        broker = await crashed(broker, tmp_path / "b", clock)  # before it was forgotten
        assert broker.groups.share.get("g").state_partitions == StatePartitionsValue()
        await stop(broker)

    told(story)


def test_a_topic_is_forgotten_at_once(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, share = await with_topic(broker)
            await share.heartbeat("g", a_beat("a"))
            await broker.topics.delete(broker.topics.by_name(TOPIC))
            await groups.forget_topic(TOPIC)
            assert share.get("g").state_partitions == StatePartitionsValue()

    told(story)


@pytest.mark.parametrize("between", ["nothing", "a failed start", "a repair"])
def test_records_that_a_power_cut_took_are_not_done(tmp_path, clock, between):
    """Of a topic that trusts the page cache; what is written in their place is delivered."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await broker.topics.create(TOPIC, 2, {"flush.messages": "1000"})
        share = broker.groups.share
        await share.heartbeat("g", a_beat("a"))
        topic_id = broker.topics.by_name(TOPIC).topic_id
        lost, there = (PartitionKey("g", topic_id, number) for number in (0, 1))
        done = StateBatch(4, 4, RecordState.ACKNOWLEDGED, 1)
        await share.persister.set(lost, ShareState(start_offset=3, complete=1, batches=(done,)))
        await share.persister.set(there, ShareState(start_offset=0))
        if between == "nothing":
            broker = await crashed(broker, tmp_path / "b", clock)
        else:  # a start that does not come so far ends cleanly, and so does a repair
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            await stop(broker)
            if between == "a failed start":
                await (await LogDirectory.open(tmp_path / "b", LogConfig(), clock=clock)).close()
            else:
                await repair(tmp_path / "b", TopicPartition(TOPIC, 0), clock=clock, mend=True)
            broker = await start(tmp_path / "b", clock)
        persister = broker.groups.share.persister
        assert persister.get(there) == ShareState(start_offset=0)
        assert persister.get(lost) == ShareState(start_offset=0, leader_epoch=1)
        await stop(broker)

    told(story)


def test_an_offset_beyond_the_end_that_somebody_has_set_survives_a_clean_end(tmp_path, clock):
    """Of a topic that trusts the page cache: nothing was lost."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await broker.topics.create(TOPIC, 1, {"flush.messages": "1000"})
        broker = await crashed(broker, tmp_path / "b", clock)
        await broker.groups.share.set_offsets("g", {a_key(broker): 7})
        await stop(broker)
        broker = await start(tmp_path / "b", clock)
        assert broker.groups.share.persister.get(a_key(broker)).start_offset == 7
        await stop(broker)

    told(story)
