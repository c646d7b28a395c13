import asyncio
import contextlib

import msgspec
import pytest

from mainstem.broker.groups.classic.group import PREPARING, STABLE, ClassicGroup
from mainstem.broker.groups.classic.messages import JoinRequest, Protocol, SyncRequest
from mainstem.broker.groups.consumer.group import ConsumerGroup
from mainstem.broker.groups.consumer.messages import JOIN, LEAVE, LEAVE_FOR_A_WHILE, Heartbeat
from mainstem.broker.groups.embedded import Subscription, read_assignment, write_assignment, write_subscription
from mainstem.broker.groups.errors import GroupNotEmpty, RebalanceInProgress, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.modern.partitions import each
from mainstem.broker.groups.modern.subscriptions import InvalidExpression
from mainstem.broker.groups.records import OffsetValue
from mainstem.core import TopicPartition
from mainstem.log.errors import StorageError
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, crashed, running, start, stop, until

TOPIC = "facts"
METADATA = write_subscription(Subscription(1, (TOPIC,)))


def told(story):
    asyncio.run(story())


def a_beat(member_id, epoch=JOIN, *, regex=None, reported=(), **fields):
    return Heartbeat(
        member_id=member_id,
        epoch=epoch,
        rebalance_timeout_ms=60_000,
        topics=None if regex else (TOPIC,),
        regex=regex,
        reported=dict(reported),
        client_id="c",
        client_host="/h",
        **fields,
    )


def a_join(member_id="", *, instance=None, topics=(TOPIC,), owned=()):
    metadata = write_subscription(Subscription(1, topics, {TOPIC: frozenset(owned)} if owned else {}))
    return JoinRequest(
        member_id=member_id,
        instance_id=instance,
        client_id="c",
        client_host="/h",
        protocol_type="consumer",
        protocols=(Protocol("range", metadata),),
        rebalance_timeout_ms=30_000,
        session_timeout_ms=10_000,
        member_id_required=False,
    )


async def with_topic(broker, partitions=4):
    await broker.topics.create(TOPIC, partitions, {})
    return broker.groups, broker.groups.consumer


async def a_classic_member(groups, group="g"):
    joined = await groups.classic.join(group, a_join())
    assignment = write_assignment(1, {TOPIC: frozenset(range(4))})
    request = SyncRequest(
        member_id=joined.member_id, generation=joined.generation, assignments={joined.member_id: assignment}
    )
    await groups.classic.sync(group, request)
    return joined.member_id


def numbers(assignment):
    return sorted(number for _, number in each(assignment))


def test_members_go_on_with_their_epochs_after_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        _, consumer = await with_topic(broker)
        await consumer.heartbeat("g", a_beat("a", instance_id="i"))
        await consumer.heartbeat("g", a_beat("b", regex="fac.*"))
        a = await consumer.heartbeat("g", a_beat("a", 2, instance_id="i"))
        before = dict(consumer.get("g").entries())
        broker = await crashed(broker, tmp_path / "b", clock)
        consumer = broker.groups.consumer
        assert dict(consumer.get("g").entries()) == before
        again = await consumer.heartbeat("g", a_beat("a", a.epoch, instance_id="i"))
        assert (again.epoch, numbers(again.assignment)) == (a.epoch, numbers(a.assignment))
        b = await consumer.heartbeat("g", a_beat("b", 3, regex="fac.*"))
        assert b.epoch == 3
        clock.advance_ms(45_000)
        broker.groups.expire()
        assert consumer.get("g").is_empty
        await stop(broker)

    told(story)


def test_expressions_are_resolved_in_a_thread(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, consumer = await with_topic(broker, 1)
            found = await consumer.heartbeat("g", a_beat("a", regex="f.*s"))
            assert (found.epoch, numbers(found.assignment)) == (2, [0])
            await broker.topics.create("friends", 1, {})
            found = await consumer.heartbeat("g", a_beat("a", 2, regex="f.*s"))
            assert (found.epoch, numbers(found.assignment)) == (3, [0, 0])
            with pytest.raises(InvalidExpression):
                await consumer.heartbeat("g", a_beat("b", regex="("))
            with pytest.raises(InvalidExpression):
                await consumer.heartbeat("new", a_beat("b", regex="("))
            assert consumer.get("new") is None

    told(story)


def test_a_heartbeat_that_is_refused_has_no_expression_matched_again(tmp_path, clock, monkeypatch):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, consumer = await with_topic(broker, 1)
            answer = await consumer.heartbeat("g", a_beat("a", regex="f.*s"))
            matched, matching = [], broker.topic_patterns.matching
            monkeypatch.setattr(broker.topic_patterns, "matching", lambda *a: matched.append(a) or matching(*a))
            with pytest.raises(UnknownMember):
                await consumer.heartbeat("g", a_beat("nobody", 7))
            beat = a_beat("a", answer.epoch, regex="f.*s")
            assert (await consumer.heartbeat("g", beat)).epoch == answer.epoch
            assert not matched

    told(story)


def test_who_leaves_while_its_expression_is_matched_is_gone(tmp_path, clock):
    """It was told that it is unknown, then it was added, and had all partitions until its session ended."""

    async def story():
        async with running(tmp_path, clock) as broker:
            _, consumer = await with_topic(broker)
            joins, other = consumer.heartbeat("g", a_beat("a", regex="f.*")), consumer.heartbeat("g", a_beat("b"))
            leaves = consumer.heartbeat("g", a_beat("a", LEAVE))
            joins_again = consumer.heartbeat("g", a_beat("a", regex="f.*"))
            leaves_again = consumer.heartbeat("g", a_beat("a", LEAVE))
            assert (await joins).epoch > 0
            assert [(await each).epoch for each in (leaves, leaves_again)] == [LEAVE, LEAVE]
            assert (await joins_again).epoch > 0
            assert (await other).epoch > 0
            assert set(consumer.get("g").members) == {"b"}
            refused, leaves = (
                consumer.heartbeat("g", a_beat("a", regex="(")),
                consumer.heartbeat("g", a_beat("a", LEAVE)),
            )
            with pytest.raises(InvalidExpression):
                await refused
            with pytest.raises(UnknownMember):
                await leaves
            assert not consumer._later

    told(story)


def test_leaving(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            with pytest.raises(UnknownGroup):
                await consumer.heartbeat("g", a_beat("a", LEAVE))
            with pytest.raises(UnknownGroup):
                await consumer.heartbeat("g", a_beat("a", 2))
            await consumer.heartbeat("g", a_beat("a"))
            await consumer.heartbeat("g", a_beat("b", instance_id="i"))
            with pytest.raises(GroupNotEmpty):
                await groups.delete_group("g")
            left = await consumer.heartbeat("g", a_beat("a", LEAVE))
            assert (left.member_id, left.epoch, left.assignment) == ("a", LEAVE, None)
            away = await consumer.heartbeat("g", a_beat("b", LEAVE_FOR_A_WHILE, instance_id="i"))
            assert away.epoch == LEAVE_FOR_A_WHILE
            assert set(consumer.get("g").members) == {"b"}
            assert await groups.classic.leave("g", [("", "i"), ("x", None)]) == [Code.none, Code.unknown_member_id]
            assert consumer.get("g").is_empty
            await groups.delete_group("g")
            assert "g" not in groups.groups

    told(story)


def test_a_deleted_group_is_forgotten(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, consumer = await with_topic(broker)
        await consumer.heartbeat("g", a_beat("a", regex="f.*"))
        await consumer.heartbeat("g", a_beat("a", LEAVE))
        await groups.delete_group("g")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.groups == {}
        await stop(broker)

    told(story)


def test_an_empty_group_goes_with_its_last_offset(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            await consumer.heartbeat("g", a_beat("a"))
            offsets = {TopicPartition(TOPIC, 0): OffsetValue(1, committed_ms=clock.now_ms())}
            await groups.commit("g", Commit(member_id="a", generation=2, partitions=tuple(offsets)), offsets)
            clock.advance_ms(CONFIG.offsets_retention_minutes * 60_000)
            await groups.expire_offsets()
            assert groups.offsets.of_group("g"), "it reads the topic"
            await consumer.heartbeat("g", a_beat("a", LEAVE))
            await groups.expire_offsets()
            assert "g" not in groups.groups

    told(story)


# --- from one protocol to the other -----------------------------------------------------------------------------------


def test_the_first_member_of_the_consumer_protocol_upgrades_the_group(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, consumer = await with_topic(broker)
        old = await a_classic_member(groups)
        new = await consumer.heartbeat("g", a_beat("new"))
        assert (new.epoch, new.assignment) == (2, {})
        with pytest.raises(RebalanceInProgress):
            groups.classic.heartbeat("g", old, None, 1)
        joined = await groups.classic.join("g", a_join(old, owned=range(4)))
        assert (joined.error, joined.generation) == (Code.none, 1)
        synced = await groups.classic.sync("g", SyncRequest(member_id=old, generation=1))
        kept = read_assignment(synced.assignment).partitions[TOPIC]
        assert len(kept) == 2
        joined = await groups.classic.join("g", a_join(old, owned=kept))
        assert joined.generation == 2
        new = await consumer.heartbeat("g", a_beat("new", 2))
        assert set(numbers(new.assignment)) == {0, 1, 2, 3} - kept
        before = dict(consumer.get("g").entries())
        broker = await crashed(broker, tmp_path / "b", clock)
        assert dict(broker.groups.consumer.get("g").entries()) == before
        await stop(broker)

    told(story)


async def downgraded(broker):
    """The group's last member of the consumer protocol has left; the member that is left, which speaks the other."""
    groups, consumer = await with_topic(broker)
    await consumer.heartbeat("g", a_beat("new"))
    old = (await groups.classic.join("g", a_join())).member_id
    await groups.classic.sync("g", SyncRequest(member_id=old, generation=3))
    await consumer.heartbeat("g", a_beat("new", LEAVE))
    return old


def test_the_last_member_of_the_consumer_protocol_that_leaves_downgrades_the_group(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        old, groups = await downgraded(broker), broker.groups
        group = groups.groups["g"]
        assert isinstance(group, ClassicGroup)
        assert group.state is PREPARING, "the others share what it had"
        joined = await groups.classic.join("g", a_join(old))
        assert (joined.error, joined.generation, joined.leader) == (Code.none, 4, old)
        assignment = write_assignment(1, {TOPIC: frozenset(range(4))})
        await groups.classic.sync("g", SyncRequest(member_id=old, generation=4, assignments={old: assignment}))
        broker = await crashed(broker, tmp_path / "b", clock)
        group = broker.groups.groups["g"]
        assert isinstance(group, ClassicGroup)
        assert (group.state, set(group.members)) == (STABLE, {old})
        await stop(broker)

    told(story)


def test_the_rebalance_that_a_downgrade_begins_goes_on_over_a_crash(tmp_path, clock):
    """The group was at rest after it, and nobody read what the one that had left had had."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        old = await downgraded(broker)
        broker = await crashed(broker, tmp_path / "b", clock)
        classic = broker.groups.classic
        with pytest.raises(RebalanceInProgress):
            classic.heartbeat("g", old, None, 3)
        joined = await classic.join("g", a_join(old))
        assert (joined.error, joined.generation, joined.leader) == (Code.none, 4, old)
        await stop(broker)

    told(story)


def test_a_session_that_ends_downgrades_too(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            await consumer.heartbeat("g", a_beat("new"))
            old = (await groups.classic.join("g", a_join())).member_id
            await groups.classic.sync("g", SyncRequest(member_id=old, generation=3))
            for _ in range(5):
                clock.advance_ms(9_000)
                groups.expire()
                if isinstance(groups.groups["g"], ConsumerGroup):
                    groups.classic.heartbeat("g", old, None, 3)
            assert isinstance(groups.groups["g"], ClassicGroup)
            with pytest.raises(RebalanceInProgress):
                groups.classic.heartbeat("g", old, None, 3)

    told(story)


def test_a_static_member_that_comes_back_with_the_old_protocol_downgrades_the_group_in_place(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            await consumer.heartbeat("g", a_beat("new", instance_id="i"))
            joined = await groups.classic.join("g", a_join(instance="i"))
            group = groups.groups["g"]
            assert isinstance(group, ClassicGroup)
            assert (group.state, joined.generation, group.generation) == (STABLE, 2, 2)
            request = SyncRequest(member_id=joined.member_id, instance_id="i", generation=2)
            synced = await groups.classic.sync("g", request)
            assert read_assignment(synced.assignment).partitions == {TOPIC: {0, 1, 2, 3}}
            groups.classic.heartbeat("g", joined.member_id, "i", 2)

    told(story)


@pytest.mark.parametrize("is_assigned", [False, True])
def test_what_the_leader_of_a_classic_group_has_not_assigned_is_assigned_after_an_upgrade(tmp_path, clock, is_assigned):
    """It restarted with the new protocol before it had, or before it had seen that the topic has grown."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            joined = await groups.classic.join("g", a_join(instance="i"))
            if is_assigned:
                given = {joined.member_id: write_assignment(1, {TOPIC: frozenset(range(4))})}
                request = SyncRequest(
                    member_id=joined.member_id, instance_id="i", generation=joined.generation, assignments=given
                )
                await groups.classic.sync("g", request)
                await broker.topics.add_partitions(broker.topics.by_name(TOPIC), 6)
            beat = await consumer.heartbeat("g", a_beat("new", instance_id="i"))
            beat = await consumer.heartbeat("g", a_beat("new", beat.epoch, instance_id="i", reported=beat.assignment))
            assert set(numbers(consumer.get("g").members["new"].assigned)) == set(range(6 if is_assigned else 4))

    told(story)


def test_a_downgrade_that_cannot_be_stored_leaves_the_group_as_it_was(tmp_path, clock, monkeypatch):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            answer = await consumer.heartbeat("g", a_beat("new", instance_id="i"))
            before = dict(consumer.get("g").members)

            def refuse(*_, **__):
                raise StorageError("no room")

            with monkeypatch.context() as patched:
                for each_log in broker.topics.get("__consumer_offsets").logs:
                    patched.setattr(each_log, "append", refuse)
                joined = await groups.classic.join("g", a_join(instance="i"))
                assert joined.error is Code.coordinator_not_available
            assert dict(consumer.get("g").members) == before
            beat = a_beat("new", answer.epoch, instance_id="i")
            assert (await consumer.heartbeat("g", beat)).epoch == answer.epoch

    told(story)


def test_classic_members_that_wait_are_sent_into_the_new_group(tmp_path, clock):
    async def story():
        config = msgspec.structs.replace(CONFIG, group_initial_rebalance_delay_ms=3_000)
        async with running(tmp_path, clock, config) as broker:
            groups, consumer = await with_topic(broker)
            waiting = groups.classic.join("g", a_join())
            await consumer.heartbeat("g", a_beat("new"))
            assert (await waiting).error is Code.rebalance_in_progress
            assert len(consumer.get("g").members) == 2

    told(story)


async def _down_and_up(broker, _):
    await broker.groups.consumer.heartbeat("g", a_beat("k"))
    await broker.groups.consumer.heartbeat("g", a_beat("k", LEAVE))
    return broker


async def _joined_by_another(broker, old):
    """The next generation is told, and nobody has its part of it yet."""
    other = broker.groups.classic.join("g", a_join())
    await until(lambda: len(broker.groups.groups["g"].members) == 2, "another one has come")
    await broker.groups.classic.join("g", a_join(old, owned=range(4)))
    await other


async def _begun_anew(broker, old):
    await _joined_by_another(broker, old)
    broker.groups.classic.join("g", a_join())
    await until(lambda: len(broker.groups.groups["g"].members) == 3, "a third one has come")
    return broker


async def _killed(broker, old):
    await _joined_by_another(broker, old)
    return await crashed(broker, broker.log.path.with_name("b"), broker.clock)


@pytest.mark.parametrize("happens", [_down_and_up, _begun_anew, _killed])
def test_what_a_classic_member_reads_is_nobody_elses_after_an_upgrade(tmp_path, clock, happens):
    """It was told nothing since it got it, and a member of the consumer protocol was given it, too."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await with_topic(broker)
        old = await a_classic_member(broker.groups)
        broker = await happens(broker, old)
        consumer = broker.groups.consumer
        new = await consumer.heartbeat("g", a_beat("new"))
        assert numbers(consumer.get("g").members[old].assigned) == [0, 1, 2, 3]
        assert not new.assignment
        await stop(broker)

    told(story)


def test_a_classic_group_that_is_no_more_takes_nobodys_session(tmp_path, clock):
    """The last word of its record took the new group's deadline away: who died then was a member for ever."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            groups.classic.join("g", a_join(instance="i"))
            groups.classic.leave("g", [("", "i")])
            await consumer.heartbeat("g", a_beat("dead"))
            await asyncio.sleep(0)
            clock.advance_ms(45_000)
            groups.expire()
            assert consumer.get("g").is_empty

    told(story)


def test_a_group_that_is_too_large_for_a_classic_ones_record_stays_what_it_is(tmp_path, clock):
    """Its dead member was one for ever: the downgrade was refused, and nobody looked after it again."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            await consumer.heartbeat("g", a_beat("dead"))
            large = Protocol("range", METADATA + bytes(1_000_000))
            for _ in range(18):
                request = msgspec.structs.replace(a_join(), protocols=(large,), rebalance_timeout_ms=600_000)
                joined = await groups.classic.join("g", request)
                await groups.classic.sync("g", SyncRequest(member_id=joined.member_id, generation=joined.generation))
            for _ in range(6):
                clock.advance_ms(9_000)
                for member_id in set(consumer.get("g").members) - {"dead"}:
                    with contextlib.suppress(RebalanceInProgress):
                        groups.classic.heartbeat("g", member_id, None, consumer.get("g").members[member_id].epoch)
                groups.expire()
            assert "dead" not in consumer.get("g").members
            assert len(consumer.get("g").members) == 18

    told(story)


def test_expressions_that_nobody_has_any_more_are_not_kept(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            _, consumer = await with_topic(broker)
            answer = await consumer.heartbeat("g", a_beat("m", regex="f.*"))
            for number in range(20):
                answer = await consumer.heartbeat("g", a_beat("m", answer.epoch, regex=f"f.*{number}?"))
            assert set(consumer.get("g")._resolved_at) == {"f.*19?"}
            await consumer.heartbeat("g", a_beat("m", LEAVE))
            assert set(consumer.get("g")._resolved_at) == set()

    told(story)


def test_classic_members_alone_in_a_group_of_the_consumer_protocol_share_what_is_left(tmp_path, clock):
    """Where no downgrade is allowed: nobody made a new assignment, and what the last other one had nobody read."""

    async def story():
        config = msgspec.structs.replace(CONFIG, group_consumer_migration_policy="upgrade")
        async with running(tmp_path, clock, config) as broker:
            groups = broker.groups
            old = await downgraded(broker)
            assert isinstance(groups.groups["g"], ConsumerGroup)

            async def everything():
                with pytest.raises(RebalanceInProgress):
                    groups.classic.heartbeat("g", old, None, groups.groups["g"].members[old].epoch)
                joined = await groups.classic.join("g", a_join(old))
                synced = await groups.classic.sync("g", SyncRequest(member_id=old, generation=joined.generation))
                return read_assignment(synced.assignment).partitions[TOPIC]

            assert await everything() == {0, 1, 2, 3}
            await broker.topics.add_partitions(broker.topics.by_name(TOPIC), 6)
            assert await everything() == {0, 1, 2, 3, 4, 5}

    told(story)


def test_a_classic_member_that_is_sent_to_join_again_and_does_not_is_out_in_time(tmp_path, clock):
    """Also where it learns that from SyncGroup alone: nobody looked before its session was over."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            request = msgspec.structs.replace(a_join(), session_timeout_ms=1_000_000)
            member_id = (await groups.classic.join("g", request)).member_id
            await consumer.heartbeat("g", a_beat("new"))
            joined = await groups.classic.join("g", msgspec.structs.replace(request, member_id=member_id))
            request = SyncRequest(member_id=member_id, generation=joined.generation)
            assert (await groups.classic.sync("g", request)).error is Code.none
            await consumer.heartbeat("g", a_beat("third"))
            answer = await groups.classic.sync("g", request)
            assert answer.error is Code.rebalance_in_progress
            clock.advance_ms(30_001)
            groups.expire()
            assert member_id not in consumer.get("g").members

    told(story)


def test_an_empty_group_changes_its_protocol_without_more(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        groups, consumer = await with_topic(broker)
        old = await a_classic_member(groups)
        await groups.classic.leave("g", [(old, None)])
        assert (await consumer.heartbeat("g", a_beat("new"))).epoch == 2
        await consumer.heartbeat("g", a_beat("new", LEAVE))
        assert (await groups.classic.join("g", a_join("somebody"))).error is Code.unknown_member_id
        await a_classic_member(groups)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert isinstance(broker.groups.groups["g"], ClassicGroup)
        await stop(broker)

    told(story)


def test_a_policy_keeps_groups_as_they_are(tmp_path, clock):
    async def story():
        config = msgspec.structs.replace(CONFIG, group_consumer_migration_policy="disabled")
        async with running(tmp_path, clock, config) as broker:
            groups, consumer = await with_topic(broker)
            await a_classic_member(groups)
            with pytest.raises(UnknownGroup):
                await consumer.heartbeat("g", a_beat("new"))
            await consumer.heartbeat("h", a_beat("new"))
            await groups.classic.join("h", a_join())
            await consumer.heartbeat("h", a_beat("new", LEAVE))
            assert isinstance(groups.groups["h"], ConsumerGroup)

    told(story)


def test_a_join_that_is_refused_is_an_answer(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups, consumer = await with_topic(broker)
            await consumer.heartbeat("g", a_beat("new"))
            request = msgspec.structs.replace(a_join("x"), protocol_type="connect")
            joined = await groups.classic.join("g", request)
            assert (joined.error, joined.member_id) == (Code.inconsistent_group_protocol, "x")
            synced = await groups.classic.sync("g", SyncRequest(member_id="new", generation=2))
            assert synced.error is Code.unknown_member_id
            with pytest.raises(UnknownMember):
                groups.classic.heartbeat("g", "new", None, 1)

    told(story)
