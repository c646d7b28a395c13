import asyncio

import pytest

from mainstem.broker.groups.classic.messages import JoinRequest, Protocol
from mainstem.broker.groups.consumer.messages import Heartbeat as ConsumerHeartbeat
from mainstem.broker.groups.errors import GroupError, GroupNotEmpty, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.groups.streams.messages import JOIN, LEAVE, Heartbeat
from mainstem.broker.groups.streams.tasks import NO_TASKS
from mainstem.broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from mainstem.core import TopicPartition
from mainstem.wire.errors import Code, RequestError
from tests.support.broker import crashed, running, start, stop, until

TOPIC = "facts"
TOPOLOGY = Topology(0, (Subtopology(subtopology_id="0", source_topics=(TOPIC,)),))


def told(story):
    asyncio.run(story())


def a_beat(member_id, epoch=JOIN, reported=None, topology=TOPOLOGY):
    joins = epoch == JOIN
    return Heartbeat(
        member_id=member_id,
        epoch=epoch,
        topology=topology if joins else None,
        reported=NO_TASKS if joins else reported,
        process_id=member_id if joins else None,
        rebalance_timeout_ms=30_000 if joins else -1,
        client_id="c",
        client_host="/h",
    )


def a_classic_join(member_id=""):
    return JoinRequest(
        member_id=member_id,
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
    return broker.groups, broker.groups.streams


def numbers(tasks):
    return sorted(number for _, number in each(tasks.active))


def test_members_join_hand_over_and_leave(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, streams = await with_topic(broker)
            mine = (await streams.heartbeat("g", a_beat("a"))).tasks
            assert numbers(mine) == [0, 1, 2, 3]
            assert numbers((await streams.heartbeat("g", a_beat("b"))).tasks) == []
            kept = (await streams.heartbeat("g", a_beat("a", 2, mine))).tasks
            await streams.heartbeat("g", a_beat("a", 2, kept))
            theirs = (await streams.heartbeat("g", a_beat("b", 3, NO_TASKS))).tasks
            assert sorted(numbers(kept) + numbers(theirs)) == [0, 1, 2, 3]
            assert (await streams.heartbeat("g", a_beat("b", LEAVE))).epoch == LEAVE
            with pytest.raises(UnknownMember):
                await streams.heartbeat("g", a_beat("b", LEAVE))
            assert list(streams.get("g").members) == ["a"]

    told(story)


def test_only_who_joins_makes_a_group(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, streams = await with_topic(broker)
            for epoch in (1, LEAVE):
                with pytest.raises(UnknownGroup):
                    await streams.heartbeat("g", a_beat("a", epoch))
            assert "g" not in groups.groups

    told(story)


def test_an_empty_group_of_the_classic_protocol_becomes_one_and_back(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, streams = await with_topic(broker)
        offset = {TopicPartition(TOPIC, 0): OffsetValue(5)}
        await groups.commit("g", Commit(), offset)
        await streams.heartbeat("g", a_beat("a"))
        assert groups.offsets.get("g", TopicPartition(TOPIC, 0)).offset == 5
        assert (await groups.classic.join("g", a_classic_join())).error is Code.inconsistent_group_protocol
        await streams.heartbeat("g", a_beat("a", LEAVE))
        assert (await groups.classic.join("g", a_classic_join("m"))).error is Code.unknown_member_id
        joined = await groups.classic.join("g", a_classic_join())
        assert joined.error is Code.none
        assert streams.get("g") is None
        with pytest.raises(UnknownGroup):
            await streams.heartbeat("g", a_beat("a"))
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.groups["g"].kind == "classic"
        await stop(broker)

    told(story)


def test_groups_of_other_protocols_are_none(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, streams = await with_topic(broker)
            reads = ConsumerHeartbeat(member_id="m", epoch=0, rebalance_timeout_ms=1_000, topics=(TOPIC,), reported={})
            await groups.consumer.heartbeat("c", reads)
            for epoch in (JOIN, 1, LEAVE):
                with pytest.raises(UnknownGroup):
                    await streams.heartbeat("c", a_beat("a", epoch))
            await streams.heartbeat("g", a_beat("a"))
            with pytest.raises(UnknownGroup):
                await groups.consumer.heartbeat("g", reads)
            with pytest.raises(UnknownMember):
                groups.classic.heartbeat("g", "a", None, 1)

    told(story)


def test_groups_come_back_after_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, streams = await with_topic(broker)
        mine = (await streams.heartbeat("g", a_beat("a"))).tasks
        await streams.heartbeat("g", a_beat("b"))
        kept = (await streams.heartbeat("g", a_beat("a", 2, mine))).tasks
        before = dict(streams.get("g").entries())
        broker = await crashed(broker, tmp_path / "b", clock)
        streams = broker.groups.streams
        assert dict(streams.get("g").entries()) == before
        assert (await streams.heartbeat("g", a_beat("a", 2, kept))).epoch == 3
        clock.advance_ms(44_000)
        assert numbers((await streams.heartbeat("g", a_beat("b", 3, NO_TASKS))).tasks) != []
        clock.advance_ms(1_000)
        broker.groups.expire()
        assert list(streams.get("g").members) == ["b"]
        await stop(broker)

    told(story)


def test_a_group_is_deleted_and_one_without_anything_is_forgotten(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, streams = await with_topic(broker)
        for group in ("g", "h"):
            await streams.heartbeat(group, a_beat("a"))
        with pytest.raises(GroupNotEmpty):
            await groups.delete_group("g")
        for group in ("g", "h"):
            await streams.heartbeat(group, a_beat("a", LEAVE))
        await groups.delete_group("g")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.streams.get("g") is None
        assert broker.groups.streams.get("h").is_empty
        await broker.groups.expire_offsets()
        assert "h" not in broker.groups.groups
        await stop(broker)

    told(story)


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics_are_made_once_with_their_settings(tmp_path, clock):
    counted = []

    async def story():
        async with running(tmp_path, clock) as broker:
            streams = broker.groups.streams
            topic = InternalTopic("counts", 3, configs=(("cleanup.policy", "compact"),))
            assert streams.make_topics("g", [topic], counted.append) == {}
            assert streams.make_topics("g", [topic], counted.append) == {}
            assert counted == [3]
            await until(lambda: broker.topics.get("counts") is not None, "the topic is made")
            made = broker.topics.by_name("counts")
            assert (len(made.logs), made.config) == (3, {"cleanup.policy": "compact"})

    told(story)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (InternalTopic("counts", 3, replication_factor=2), "Unable to replicate the partition 2 time"),
        (InternalTopic("counts", 3, configs=(("no.such.setting", "1"),)), "no.such.setting"),
        (InternalTopic("counts", 99), "The throttling quota has been exceeded."),
    ],
)
def test_why_a_topic_is_not_made_is_told_for_two_heartbeats(tmp_path, clock, topic, reason):
    refusals = [None]

    def count(partitions):
        if partitions == 99 and refusals:
            refusals.pop()
            raise RequestError(Code.throttling_quota_exceeded, "The throttling quota has been exceeded.")

    async def story():
        async with running(tmp_path, clock) as broker:
            streams = broker.groups.streams
            streams.make_topics("g", [topic], count)
            await until(lambda: streams.make_topics("g", [topic], count), "it has failed")
            assert reason in streams.make_topics("g", [topic], count)["counts"]
            clock.advance_ms(9_999)
            assert streams.make_topics("g", [topic], count)
            clock.advance_ms(1)
            assert streams.make_topics("g", [topic], count) == {}

    told(story)


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_offsets_are_committed_by_epoch(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, streams = await with_topic(broker)
            await streams.heartbeat("g", a_beat("a"))
            partition = TopicPartition(TOPIC, 0)
            await groups.commit("g", Commit(member_id="a", generation=2), {partition: OffsetValue(3)})
            assert (await groups.delete_offsets("g", [partition]))[partition] is Code.group_subscribed_to_topic
            with pytest.raises(GroupError) as refused:
                await groups.commit("g", Commit(member_id="a", generation=9), {partition: OffsetValue(4)})
            assert refused.value.code is Code.stale_member_epoch
            assert groups.offsets.get("g", partition).offset == 3

    told(story)
