import asyncio

import pytest

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.groups.classic.group import EMPTY, STABLE
from mainstem.broker.groups.classic.messages import SyncRequest
from mainstem.broker.groups.errors import (
    UnknownMember,
)
from mainstem.wire.errors import Code
from tests.support.broker import crashed, running, start, stop, until
from tests.support.groups import a_join, a_member


def test_members_stay_members_over_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        member = await a_member(broker.groups)
        broker = await crashed(broker, tmp_path / "b", clock)
        groups = broker.groups
        groups.classic.heartbeat("g", member, None, 1)
        assert (await groups.classic.sync("g", SyncRequest(member_id=member, generation=1))).assignment == b"all"
        clock.advance_ms(10_000)
        groups.expire()
        assert groups.groups["g"].state is EMPTY
        with pytest.raises(UnknownMember):
            groups.classic.heartbeat("g", member, None, 1)
        await stop(broker)

    asyncio.run(story())


def test_a_rebalance_goes_on_over_a_crash(tmp_path, clock):
    """Who had joined could not take its part: SyncGroup said UNKNOWN_MEMBER_ID, which ends a consumer's session."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        joined = await broker.groups.classic.join("g", a_join())
        broker = await crashed(broker, tmp_path / "b", clock)
        member = joined.member_id
        assignment = SyncRequest(member_id=member, generation=joined.generation, assignments={member: b"all"})
        assert (await broker.groups.classic.sync("g", assignment)).assignment == b"all"
        other = broker.groups.classic.join("g", a_join(client="d"))
        await broker.groups.classic.leave("g", [(member, None)])
        assert (await other).generation == 2
        broker = await crashed(broker, tmp_path / "c", clock)
        assert set(broker.groups.groups["g"].members) == {(await other).member_id}
        await stop(broker)

    asyncio.run(story())


def test_a_session_expires_without_anybody_asking(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_member(broker.groups, session=150)
            group = broker.groups.groups["g"]
            assert group.state is STABLE
            clock.advance_ms(150)
            await until(lambda: group.state is EMPTY, "the session expires")

    asyncio.run(story())


def test_leaving_is_answered_when_it_is_durable(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        member = await a_member(broker.groups)
        assert await broker.groups.classic.leave("g", [(member, None), ("x", None)]) == [
            Code.none,
            Code.unknown_member_id,
        ]
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.groups["g"].state is EMPTY, "nobody waits for a member that has left"
        await stop(broker)

    asyncio.run(story())


def test_an_assignment_that_is_too_large_is_told_to_all_members(tmp_path, clock):
    """The leader alone was told; the others waited until the longest rebalance timeout had passed."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups = broker.groups
            leader = await a_member(groups)
            follower = groups.classic.join("g", a_join(client="d"))
            generation = (await groups.classic.join("g", a_join(leader))).generation
            member = (await follower).member_id
            waiting = groups.classic.sync("g", SyncRequest(member_id=member, generation=generation))
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "1"})
            told_leader = groups.classic.sync(
                "g", SyncRequest(member_id=leader, generation=generation, assignments={member: b"x", leader: b"y"})
            )
            async with asyncio.timeout(60):
                assert (await told_leader).error is (await waiting).error is Code.message_too_large

    asyncio.run(story())


def test_members_that_wait_are_answered_when_the_broker_stops(tmp_path, clock):
    async def story():
        broker = await start(tmp_path, clock)
        await a_member(broker.groups)
        waiting = broker.groups.classic.join("g", a_join(client="d"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await stop(broker)
        assert (await waiting).error is Code.coordinator_not_available
        late = await broker.groups.classic.join("g", a_join())
        assert late.error is Code.coordinator_not_available

    asyncio.run(story())
