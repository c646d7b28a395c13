"""What groups of every newer protocol promise; what is their own is tested beside them."""

import asyncio

import msgspec
import pytest

from mainstem.broker.groups.consumer import messages as consumer
from mainstem.broker.groups.consumer.records import ConsumerGroupKey
from mainstem.broker.groups.errors import GroupError, UnknownGroup, UnknownMember
from mainstem.broker.groups.share import group as share
from mainstem.broker.groups.share.records import PartitionKey, ShareGroupKey
from mainstem.broker.groups.streams import messages as streams
from mainstem.broker.groups.streams.records import StreamsGroupKey
from mainstem.broker.groups.streams.tasks import NO_TASKS
from mainstem.broker.groups.streams.topology import Subtopology, Topology
from mainstem.log.errors import StorageError
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, crashed, running, start, stop, until

TOPIC = "facts"
TOPOLOGY = Topology(0, (Subtopology(subtopology_id="0", source_topics=(TOPIC,)),))
OWN_KEYS = {"consumer": ConsumerGroupKey, "share": ShareGroupKey, "streams": StreamsGroupKey}


@pytest.fixture(params=OWN_KEYS)
def kind(request):
    return request.param


def told(story):
    asyncio.run(story())


def a_beat(kind, member_id, epoch=0):
    """A member joins, or says that it lives."""
    joins, who = epoch == 0, {"member_id": member_id, "epoch": epoch, "client_id": "c", "client_host": "/h"}
    topics = (TOPIC,) if joins else None
    if kind == "consumer":
        return consumer.Heartbeat(topics=topics, reported={} if joins else None, rebalance_timeout_ms=60_000, **who)
    if kind == "share":
        return share.Heartbeat(topics=topics, **who)
    topology, reported = (TOPOLOGY, NO_TASKS) if joins else (None, None)
    process_id = member_id if joins else None
    return streams.Heartbeat(
        topology=topology, reported=reported, process_id=process_id, rebalance_timeout_ms=60_000, **who
    )


def with_short_sessions(kind):
    times = {"session_timeout_ms": 20, "heartbeat_interval_ms": 10}
    return msgspec.structs.replace(
        CONFIG,
        **{f"group_{kind}_{name}": value for name, value in times.items()},
        **{f"group_{kind}_min_{name}": 1 for name in times},
    )


async def groups_of(kind, broker):
    await broker.topics.create(TOPIC, 4, {})
    return getattr(broker.groups, kind)


def refuse_all(monkeypatch, broker):
    def refuse(batch):
        raise StorageError("the disk is gone")

    for log in broker.groups.storage.logs:
        monkeypatch.setattr(log, "append", refuse)


def test_an_answer_waits_for_what_came_before(tmp_path, clock, kind):
    """A member never hears of an epoch that a crash could take back."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups = await groups_of(kind, broker)
            joined = groups.heartbeat("g", a_beat(kind, "a"))
            beat = groups.heartbeat("g", a_beat(kind, "a", 2))
            assert not joined.done()
            assert not beat.done()
            await groups.settled("g")
            assert (await joined).epoch == (await beat).epoch == 2
            assert groups.heartbeat("g", a_beat(kind, "a", 2)).done(), "nothing is to be waited for"
            await groups.settled("g")

    told(story)


def test_what_cannot_be_stored_is_taken_back(tmp_path, clock, monkeypatch, kind):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups = await groups_of(kind, broker)
            await groups.heartbeat("g", a_beat(kind, "a"))
            before = groups.get("g").entries()
            with monkeypatch.context() as patched:
                refuse_all(patched, broker)
                for group in ("g", "new"):
                    with pytest.raises(GroupError) as refused:
                        await groups.heartbeat(group, a_beat(kind, "b"))
                    assert refused.value.code is Code.coordinator_not_available
                assert groups.get("g").entries() == before
                assert groups.get("new") is None
            assert (await groups.heartbeat("g", a_beat(kind, "b"))).epoch == 3

    told(story)


def test_groups_are_after_a_crash_what_they_were(tmp_path, clock, kind):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups = await groups_of(kind, broker)
        for member_id in "ab":
            await groups.heartbeat("g", a_beat(kind, member_id))
        before = dict(groups.get("g").entries())
        broker = await crashed(broker, tmp_path / "b", clock)
        groups = getattr(broker.groups, kind)
        assert dict(groups.get("g").entries()) == before
        clock.advance_ms(44_000)
        assert (await groups.heartbeat("g", a_beat(kind, "b", 3))).epoch == 3
        clock.advance_ms(1_000)
        broker.groups.expire()
        assert list(groups.get("g").members) == ["b"]
        await stop(broker)

    told(story)


def test_no_epoch_comes_twice_though_the_groups_own_record_is_lost(tmp_path, clock, kind):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups = await groups_of(kind, broker)
            for member_id in "abc":
                await groups.heartbeat("g", a_beat(kind, member_id))
            last = groups.get("g").epoch
            records = [entry for entry in groups.get("g").entries() if not isinstance(entry[0], OWN_KEYS[kind])]
            del broker.groups.groups["g"]
            groups.restore(records)
            assert groups.get("g").epoch == last
            await groups.heartbeat("g", a_beat(kind, "d"))
            assert groups.get("g").epoch > last

    told(story)


def test_who_is_not_heard_of_is_removed(tmp_path, clock, kind):
    async def story():
        async with running(tmp_path, clock, with_short_sessions(kind)) as broker:
            groups = await groups_of(kind, broker)
            await groups.heartbeat("g", a_beat(kind, "a"))
            clock.advance_ms(20)
            await until(lambda: groups.get("g").is_empty, "the member is removed")
            with pytest.raises(UnknownMember):
                await groups.heartbeat("g", a_beat(kind, "a", 2))

    told(story)


def test_groups_of_other_protocols_are_none(tmp_path, clock, kind):
    other = "share" if kind != "share" else "consumer"

    async def story():
        async with running(tmp_path, clock) as broker:
            groups = await groups_of(kind, broker)
            await getattr(broker.groups, other).heartbeat("g", a_beat(other, "a"))
            assert groups.get("g") is None
            for epoch in (0, 1, -1):
                with pytest.raises(UnknownGroup, match=f"is a {other} group"):
                    await groups.heartbeat("g", a_beat(kind, "a", epoch))
            with pytest.raises(UnknownGroup, match=f"no such {kind} group"):
                groups.known("none")

    told(story)


def test_nothing_is_promised_once_the_broker_stops(tmp_path, clock, kind):
    async def story():
        broker = await start(tmp_path, clock)
        groups = await groups_of(kind, broker)
        await groups.heartbeat("g", a_beat(kind, "a"))
        await stop(broker)
        with pytest.raises(GroupError) as refused:
            await groups.heartbeat("g", a_beat(kind, "a", 2))
        assert refused.value.code is Code.coordinator_not_available

    told(story)


def test_a_share_group_that_is_deleted_while_it_forgets_offsets_stays_deleted(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups = await groups_of("share", broker)
            key = PartitionKey("g", broker.topics.by_name(TOPIC).topic_id, 0)
            await groups.set_offsets("g", {key: 1})
            forget = groups.persister.forget

            async def deleted_meanwhile(is_kept):
                groups.persister.forget = forget
                await broker.groups.delete_group("g")
                await forget(is_kept)

            groups.persister.forget = deleted_meanwhile
            await groups.delete_offsets("g", [key.topic_id])
            assert groups.get("g") is None

    told(story)
