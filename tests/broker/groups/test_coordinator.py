import asyncio

import msgspec
import pytest
import structlog

from mainstem.broker.fields import LaterVersion
from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.groups.classic.group import EMPTY, STABLE
from mainstem.broker.groups.classic.messages import JoinRequest, Protocol, SyncRequest
from mainstem.broker.groups.coordinator import CoordinatorUnavailable
from mainstem.broker.groups.errors import GroupNotEmpty, IllegalGeneration, UnknownGroup, UnknownMember
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import GroupKey, OffsetKey, OffsetValue, encode_key
from mainstem.broker.server import Broker
from mainstem.broker.transactions import Producer
from mainstem.core import ManualClock, TopicPartition
from mainstem.log import LogConfig, LogDirectory
from mainstem.log.errors import StorageError
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, crashed, running, start, stop, until

TOPIC = "facts"
P, Q = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def clock():
    return ManualClock()


def told(story):
    asyncio.run(story())


async def a_topic(broker):
    await broker.topics.create(TOPIC, 2, {})


def request(member_id="", *, client="c", session=10_000, instance=None):
    return JoinRequest(
        member_id=member_id,
        instance_id=instance,
        client_id=client,
        client_host="/h",
        protocol_type="consumer",
        protocols=(Protocol("range", b"\0\0\0\0\0\0"),),
        rebalance_timeout_ms=30_000,
        session_timeout_ms=session,
        member_id_required=False,
    )


async def a_member(groups, group="g", **options):
    """A stable group of one member; its id."""
    joined = await groups.join(group, request(**options))
    member = joined.member_id
    assigned = await groups.sync(
        group,
        SyncRequest(
            member_id=member,
            instance_id=options.get("instance"),
            generation=joined.generation,
            assignments={member: b"all"},
        ),
    )
    assert assigned.assignment == b"all"
    return member


def test_commits_survive_a_crash_to_the_letter(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        values = {P: OffsetValue(5, 3, "mé\n", 7), Q: OffsetValue(6, -1, "", 8, 9_999_999_999_999)}
        await broker.groups.commit("g", Commit(), values)
        broker = await crashed(broker, tmp_path / "b", clock)
        found = {partition: each.value for partition, each in broker.groups.offsets.of_group("g").items()}
        assert found == {P: values[P], Q: msgspec.structs.replace(values[Q], leader_epoch=-1)}
        await stop(broker)

    told(story)


def test_an_offset_is_visible_only_when_it_is_durable(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            committed = broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
            assert broker.groups.offsets.get("g", P) is None
            await committed
            assert broker.groups.offsets.get("g", P) == OffsetValue(5)

    told(story)


def test_the_last_of_many_commits_at_once_is_kept(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await asyncio.gather(*(broker.groups.commit("g", Commit(), {P: OffsetValue(n)}) for n in range(50)))
        assert broker.groups.offsets.get("g", P) == OffsetValue(49)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) == OffsetValue(49)
        await stop(broker)

    told(story)


def test_a_record_that_does_not_decode_is_left_out_and_named_and_the_rest_comes_back(tmp_path, clock):
    """One record with a key of one byte kept the broker from ever starting again."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
        where = broker.groups.partition_for("g")
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

    told(story)


def test_a_value_of_a_later_version_stops_the_start_and_is_named(tmp_path, clock):
    """It was acknowledged, and the program that wrote it can read it."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        partition_log = broker.partition(broker.groups.partition_for("g"))
        value = Record(0, 1, encode_key(OffsetKey("g", TOPIC, 0)), b"\0\5")
        await partition_log.append(build_batch([value]))
        await stop(broker)
        log = await LogDirectory.open(tmp_path / "a", LogConfig(), clock=clock)
        with pytest.raises(
            LaterVersion, match=r"__consumer_offsets-\d: offset 0: a value of version 5; versions 0 to 4"
        ):
            await Broker(CONFIG, log, clock).start()
        await log.close()

    told(story)


def test_members_stay_members_over_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        member = await a_member(broker.groups)
        broker = await crashed(broker, tmp_path / "b", clock)
        groups = broker.groups
        groups.heartbeat("g", member, None, 1)
        assert (await groups.sync("g", SyncRequest(member_id=member, generation=1))).assignment == b"all"
        clock.advance_ms(10_000)
        groups.expire()
        assert groups.groups["g"].state is EMPTY
        with pytest.raises(UnknownMember):
            groups.heartbeat("g", member, None, 1)
        await stop(broker)

    told(story)


def test_a_rebalance_goes_on_over_a_crash(tmp_path, clock):
    """Who had joined could not take its part: SyncGroup said UNKNOWN_MEMBER_ID, which ends a consumer's session."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        joined = await broker.groups.join("g", request())
        broker = await crashed(broker, tmp_path / "b", clock)
        member = joined.member_id
        assignment = SyncRequest(member_id=member, generation=joined.generation, assignments={member: b"all"})
        assert (await broker.groups.sync("g", assignment)).assignment == b"all"
        other = broker.groups.join("g", request(client="d"))
        await broker.groups.leave("g", [(member, None)])
        assert (await other).generation == 2
        broker = await crashed(broker, tmp_path / "c", clock)
        assert set(broker.groups.groups["g"].members) == {(await other).member_id}
        await stop(broker)

    told(story)


def test_a_session_expires_without_anybody_asking(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_member(broker.groups, session=150)
            group = broker.groups.groups["g"]
            assert group.state is STABLE
            clock.advance_ms(150)
            await until(lambda: group.state is EMPTY, "the session expires")

    told(story)


def test_a_group_whose_record_is_not_taken_does_not_stop_the_clock_of_the_others(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            for name in ("g", "h"):
                await a_member(broker.groups, group=name, session=150)
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "1"})
            clock.advance_ms(150)
            groups = broker.groups.groups
            await until(lambda: groups["g"].state is groups["h"].state is EMPTY, "both sessions expire")
            assert broker.groups._timer is None, "nothing more is due, and it was looked for"

    told(story)


def test_leaving_is_answered_when_it_is_durable(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        member = await a_member(broker.groups)
        assert await broker.groups.leave("g", [(member, None), ("x", None)]) == [Code.none, Code.unknown_member_id]
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.groups["g"].state is EMPTY, "nobody waits for a member that has left"
        await stop(broker)

    told(story)


def test_a_deleted_group_leaves_tombstones(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        groups = broker.groups
        member = await a_member(groups)
        await groups.commit("g", Commit(member_id=member, generation=1), {P: OffsetValue(5)})
        with pytest.raises(GroupNotEmpty):
            await groups.delete_group("g")
        await groups.leave("g", [(member, None)])
        await groups.delete_group("g")
        with pytest.raises(UnknownGroup):
            await groups.delete_group("g")
        assert groups.offsets.get("g", P) is None
        broker = await crashed(broker, tmp_path / "b", clock)
        assert "g" not in broker.groups.groups
        assert broker.groups.offsets.get("g", P) is None
        await stop(broker)

    told(story)


def test_a_commit_behind_a_deletion_stays(tmp_path, clock):
    """Both are in flight at once: the tombstone removes only what was committed before it."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        groups = broker.groups
        await groups.commit("g", Commit(), {P: OffsetValue(5)})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(groups.delete_group("g"))
            await asyncio.sleep(0)
            again = groups.commit("g", Commit(), {P: OffsetValue(6)})
        await again
        assert groups.offsets.get("g", P) == OffsetValue(6)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) == OffsetValue(6)
        await stop(broker)

    told(story)


def test_offsets_of_a_deleted_topic_go_with_it(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.topics.create("other", 1, {})
            kept = TopicPartition("other", 0)
            await broker.groups.commit("g", Commit(), {P: OffsetValue(5), kept: OffsetValue(6)})
            await broker.groups.forget_topic(TOPIC)
            assert set(broker.groups.offsets.of_group("g")) == {kept}

    told(story)


def test_a_commit_in_a_new_topic_of_the_same_name_stays(tmp_path, clock):
    """The tombstones of the old topic's offsets were written group by group, the last long after the new topic."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        groups = broker.groups
        names = [f"g{number}" for number in range(8)]
        for name in names:
            await groups.commit(name, Commit(), {P: OffsetValue(5)})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(groups.forget_topic(TOPIC))
            await asyncio.sleep(0)
            again = [groups.commit(name, Commit(), {P: OffsetValue(6)}) for name in names]
        await asyncio.gather(*again)
        assert [groups.offsets.get(name, P) for name in names] == [OffsetValue(6)] * 8
        broker = await crashed(broker, tmp_path / "b", clock)
        assert [broker.groups.offsets.get(name, P) for name in names] == [OffsetValue(6)] * 8
        await stop(broker)

    told(story)


@pytest.mark.parametrize("of_what", ["group", "topic"])
def test_a_commit_before_a_deletion_goes_with_it_although_it_is_not_durable_yet(tmp_path, clock, of_what):
    """It was not among what was to be deleted, and came back: a new topic began where the old one had been read."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        groups = broker.groups
        await groups.commit("g", Commit(), {P: OffsetValue(5)})
        queued = groups.commit("g", Commit(), {Q: OffsetValue(6)})
        await (groups.delete_group("g") if of_what == "group" else groups.forget_topic(TOPIC))
        await queued
        assert not groups.offsets.of_group("g")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert not broker.groups.offsets.of_group("g")
        await stop(broker)

    told(story)


def test_a_commit_on_its_way_does_not_expire_with_the_one_before(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            await groups.commit("g", Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            clock.advance_ms(WEEK)
            queued = groups.commit("g", Commit(), {P: OffsetValue(6, committed_ms=clock.now_ms())})
            await groups.expire_offsets()
            await queued
            assert groups.offsets.get("g", P).offset == 6

    told(story)


def test_a_crash_between_a_topic_and_its_offsets_is_made_good(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) is None
        await stop(broker)

    told(story)


# --- retention --------------------------------------------------------------------------------------------------------

WEEK = CONFIG.offsets_retention_minutes * 60_000


def test_offsets_of_an_empty_group_expire_with_it(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            member = await a_member(groups)
            await groups.commit(
                "g", Commit(member_id=member, generation=1), {P: OffsetValue(5, committed_ms=clock.now_ms())}
            )
            await groups.leave("g", [(member, None)])
            clock.advance_ms(WEEK - 1)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is not None
            clock.advance_ms(1)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is None
            assert "g" not in groups.groups

    told(story)


def test_offsets_of_a_group_with_members_do_not_expire(tmp_path, clock):
    """Its subscription could not be read here, so every topic may be its own."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            joined = await groups.join("g", msgspec.structs.replace(request(), session_timeout_ms=1_000_000))
            groups.groups["g"].members[joined.member_id].protocols = (Protocol("range", b"?"),)
            await groups.sync("g", SyncRequest(member_id=joined.member_id, generation=1))
            groups.groups["g"].subscribed_topics = None
            await groups.commit(
                "g", Commit(member_id=joined.member_id, generation=1), {P: OffsetValue(5, committed_ms=clock.now_ms())}
            )
            for member in groups.groups["g"].members.values():
                member.deadline = None
            clock.advance_ms(2 * WEEK)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is not None

    told(story)


def test_offsets_of_a_group_without_membership_expire_one_by_one(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            await groups.commit("g", Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            clock.advance_ms(WEEK // 2)
            await groups.commit("g", Commit(), {Q: OffsetValue(5, committed_ms=clock.now_ms())})
            clock.advance_ms(WEEK // 2)
            await groups.expire_offsets()
            assert set(groups.offsets.of_group("g")) == {Q}
            clock.advance_ms(WEEK // 2)
            await groups.expire_offsets()
            assert "g" not in groups.groups

    told(story)


def test_an_old_client_may_say_when_its_offset_expires(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            soon = OffsetValue(5, committed_ms=clock.now_ms(), expires_ms=clock.now_ms() + 100)
            await broker.groups.commit("g", Commit(), {P: soon})
            clock.advance_ms(100)
            await broker.groups.expire_offsets()
            assert broker.groups.offsets.get("g", P) is None

    told(story)


def test_an_offset_in_an_open_transaction_keeps_the_group(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            await groups.commit("g", Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            await groups.commit_transactional("g", Commit(transactional=True), 7, 0, {P: OffsetValue(6)})
            clock.advance_ms(2 * WEEK)
            await groups.expire_offsets()
            assert "g" in groups.groups
            assert groups.offsets.get("g", P) is not None

    told(story)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_pending_offsets_survive_a_crash_and_end_with_their_transaction(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        producer = await broker.transactions.initialize("t", 60_000)
        where = broker.groups.partition_for("g")
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

    told(story)


def test_commits_of_one_producer_go_on_over_epochs_and_transactions(tmp_path, clock):
    """The log checks the sequences of every transactional batch, and so ours must have them."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            producer = await broker.transactions.initialize("t", 60_000)
            for offset in range(6):
                where = broker.groups.partition_for("g")
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

    told(story)


def test_who_may_commit_in_a_transaction(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            with pytest.raises(IllegalGeneration):
                broker.groups.check_transactional_commit("g", Commit(member_id="m", generation=3, transactional=True))
            member = await a_member(broker.groups)
            broker.groups.check_transactional_commit("g", Commit(member_id=member, generation=1, transactional=True))
            broker.groups.check_transactional_commit("g", Commit(transactional=True))
            with pytest.raises(IllegalGeneration):
                broker.groups.check_transactional_commit(
                    "g", Commit(member_id=member, generation=2, transactional=True)
                )

    told(story)


def test_a_marker_written_by_hand_ends_offsets_too(tmp_path, clock):
    """`kafka-transactions abort` for a transaction that hangs in `__consumer_offsets`."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.groups.commit_transactional("g", Commit(transactional=True), 7, 0, {P: OffsetValue(6)})
            where = broker.groups.partition_for("g")
            await broker.transactions.write_marker(Producer(7, 0), where, commit=False, coordinator_epoch=0)
            assert not broker.groups.offsets.is_unstable("g", P)
            assert broker.groups.offsets.get("g", P) is None

    told(story)


# --- when nothing can be stored ---------------------------------------------------------------------------------------


def test_a_broken_disk_is_said_and_not_hidden(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            joined = await groups.join("g", request())
            for partition_log in groups._logs:
                partition_log.go_offline(StorageError("the disk is gone"))
            with pytest.raises(CoordinatorUnavailable, match="the disk is gone"):
                await groups.commit("h", Commit(), {P: OffsetValue(5)})
            assert groups.offsets.get("h", P) is None
            answer = await groups.sync(
                "g", SyncRequest(member_id=joined.member_id, generation=1, assignments={joined.member_id: b"x"})
            )
            assert answer.error is Code.coordinator_not_available

    told(story)


def test_an_assignment_that_is_too_large_is_told_to_all_members(tmp_path, clock):
    """The leader alone was told; the others waited until the longest rebalance timeout had passed."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups = broker.groups
            leader = await a_member(groups)
            follower = groups.join("g", request(client="d"))
            generation = (await groups.join("g", request(leader))).generation
            member = (await follower).member_id
            waiting = groups.sync("g", SyncRequest(member_id=member, generation=generation))
            await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": "1"})
            told_leader = groups.sync(
                "g", SyncRequest(member_id=leader, generation=generation, assignments={member: b"x", leader: b"y"})
            )
            async with asyncio.timeout(60):
                assert (await told_leader).error is (await waiting).error is Code.message_too_large

    told(story)


def test_members_that_wait_are_answered_when_the_broker_stops(tmp_path, clock):
    async def story():
        broker = await start(tmp_path, clock)
        await a_member(broker.groups)
        waiting = broker.groups.join("g", request(client="d"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await stop(broker)
        assert (await waiting).error is Code.coordinator_not_available
        late = await broker.groups.join("g", request())
        assert late.error is Code.coordinator_not_available

    told(story)


def test_a_group_that_is_deleted_while_others_expire_does_not_end_the_expiry(tmp_path, clock):
    """It was gone when its turn came: a KeyError, and no offset expired any more until a restart."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            for name in ("g0", "g1", "g2", "g3"):
                await groups.commit(name, Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            clock.advance_ms(WEEK)
            await asyncio.gather(groups.expire_offsets(), groups.delete_group("g2"))
            assert groups.groups == {}

    told(story)


def test_a_group_whose_first_commit_is_on_its_way_is_not_forgotten(tmp_path, clock):
    """It had no offsets yet, so it was removed; the offset came, and without a group it would have stayed for ever."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            committed = groups.commit("g", Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            await groups.expire_offsets()
            await committed
            assert "g" in groups.groups
            clock.advance_ms(WEEK)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is None

    told(story)


def test_an_offline_partition_does_not_end_the_expiry_of_the_others_offsets(tmp_path, clock):
    async def story():
        config = msgspec.structs.replace(CONFIG, offsets_retention_check_interval_ms=5)
        async with running(tmp_path, clock, config) as broker:
            await a_topic(broker)
            groups = broker.groups
            for name in "abcdefgh":
                await groups.commit(name, Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            offline = groups.partition_for("a")
            broker.partition(offline).go_offline(StorageError("bit rot"))
            clock.advance_ms(WEEK)
            others = [name for name in "abcdefgh" if groups.partition_for(name) != offline]
            assert others
            await until(lambda: not any(groups.offsets.of_group(name) for name in others), "the others expire")

    told(story)
