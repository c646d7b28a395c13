import asyncio

import msgspec
import pytest

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.groups.classic.group import EMPTY
from mainstem.broker.groups.classic.messages import Protocol, SyncRequest
from mainstem.broker.groups.errors import (
    CoordinatorUnavailable,
    GroupNotEmpty,
    IllegalGeneration,
    RecordTooLarge,
    UnknownGroup,
)
from mainstem.broker.groups.membership import Commit
from mainstem.broker.groups.records import OffsetValue
from mainstem.broker.transactions import Producer
from mainstem.core import TopicPartition
from mainstem.log.errors import StorageError
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, Client, crashed, running, start, stop, until
from tests.support.facts import FIRST as P
from tests.support.facts import SECOND as Q
from tests.support.facts import TOPIC, a_topic
from tests.support.groups import a_join, a_member


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

    asyncio.run(story())


def test_an_offset_is_visible_only_when_it_is_durable(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            committed = broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
            assert broker.groups.offsets.get("g", P) is None
            await committed
            assert broker.groups.offsets.get("g", P) == OffsetValue(5)

    asyncio.run(story())


def test_the_last_of_many_commits_at_once_is_kept(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await asyncio.gather(*(broker.groups.commit("g", Commit(), {P: OffsetValue(n)}) for n in range(50)))
        assert broker.groups.offsets.get("g", P) == OffsetValue(49)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) == OffsetValue(49)
        await stop(broker)

    asyncio.run(story())


def test_a_group_whose_record_is_not_taken_does_not_stop_the_clock_of_the_others(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            for name in ("g", "h"):
                await a_member(broker.groups, group=name, session=150)
            await set_most(broker, 1)
            clock.advance_ms(150)
            groups = broker.groups.groups
            await until(lambda: groups["g"].state is groups["h"].state is EMPTY, "both sessions expire")
            assert broker.groups._timer is None, "nothing more is due, and it was looked for"

    asyncio.run(story())


def test_a_deleted_group_leaves_tombstones(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        groups = broker.groups
        member = await a_member(groups)
        await groups.commit("g", Commit(member_id=member, generation=1), {P: OffsetValue(5)})
        with pytest.raises(GroupNotEmpty):
            await groups.delete_group("g")
        await groups.classic.leave("g", [(member, None)])
        await groups.delete_group("g")
        with pytest.raises(UnknownGroup):
            await groups.delete_group("g")
        assert groups.offsets.get("g", P) is None
        broker = await crashed(broker, tmp_path / "b", clock)
        assert "g" not in broker.groups.groups
        assert broker.groups.offsets.get("g", P) is None
        await stop(broker)

    asyncio.run(story())


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_a_group_goes_whose_tombstones_are_more_than_a_batch_takes(tmp_path, clock, how):
    """It was no longer listed, and its offsets stayed: neither a deletion nor their retention removed them."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await broker.topics.create(TOPIC, 50, {})
        groups = broker.groups
        member = await a_member(groups)
        await groups.classic.leave("g", [(member, None)])
        offsets = {TopicPartition(TOPIC, n): OffsetValue(5, committed_ms=clock.now_ms()) for n in range(50)}
        await groups.commit("g", Commit(), offsets)
        await set_most(broker, 500)
        if how == "deleted":
            await groups.delete_group("g")
        else:
            clock.advance_ms(WEEK)
            await groups.expire_offsets()
        assert "g" not in groups.groups
        assert not groups.offsets.of_group("g")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert "g" not in broker.groups.groups
        assert not broker.groups.offsets.of_group("g")
        await stop(broker)

    asyncio.run(story())


def test_offsets_of_a_deleted_topic_go_whose_tombstones_are_more_than_a_batch_takes(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await broker.topics.create(TOPIC, 50, {})
        await broker.groups.commit("g", Commit(), {TopicPartition(TOPIC, n): OffsetValue(5) for n in range(50)})
        await set_most(broker, 500)
        await broker.groups.forget_topic(TOPIC)
        assert not broker.groups.offsets.of_group("g")
        broker = await crashed(broker, tmp_path / "b", clock)
        assert not broker.groups.offsets.of_group("g")
        await stop(broker)

    asyncio.run(story())


def test_a_group_whose_deletion_is_refused_is_still_there_and_can_be_deleted(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            await groups.commit("g", Commit(), {P: OffsetValue(5)})
            await set_most(broker, 1)
            with pytest.raises(RecordTooLarge):
                await groups.delete_group("g")
            assert "g" in groups.groups
            await set_most(broker, 500)
            await groups.commit("g", Commit(), {Q: OffsetValue(6)})
            await groups.delete_group("g")
            assert "g" not in groups.groups
            assert not groups.offsets.of_group("g")

    asyncio.run(story())


async def set_most(broker, size):
    """Batches of groups are to have so many bytes at most."""
    await broker.topics.set_config(broker.topics.by_name(OFFSETS_TOPIC), {"max.message.bytes": str(size)})


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

    asyncio.run(story())


def test_offsets_of_a_deleted_topic_go_with_it(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.topics.create("other", 1, {})
            kept = TopicPartition("other", 0)
            await broker.groups.commit("g", Commit(), {P: OffsetValue(5), kept: OffsetValue(6)})
            await broker.groups.forget_topic(TOPIC)
            assert set(broker.groups.offsets.of_group("g")) == {kept}

    asyncio.run(story())


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

    asyncio.run(story())


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

    asyncio.run(story())


@pytest.mark.parametrize("first", [True, False], ids=["the first", "another"])
def test_a_group_that_is_deleted_while_a_commit_is_on_its_way_does_not_come_back(tmp_path, clock, first):
    """It was listed once more, without offsets, until the next look for what has expired."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            if not first:
                await groups.commit("g", Commit(), {P: OffsetValue(5)})
            queued = groups.commit("g", Commit(), {P: OffsetValue(6)})
            await groups.delete_group("g")
            await queued
            assert "g" not in groups.groups
            assert not groups.offsets.of_group("g")

    asyncio.run(story())


def test_a_commit_that_is_refused_makes_no_group(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await set_most(broker, 1)
            with pytest.raises(RecordTooLarge):
                await broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
            assert broker.groups.groups == {}

    asyncio.run(story())


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

    asyncio.run(story())


def test_a_crash_between_a_topic_and_its_offsets_is_made_good(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        await broker.groups.commit("g", Commit(), {P: OffsetValue(5)})
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.offsets.get("g", P) is None
        await stop(broker)

    asyncio.run(story())


def test_a_crash_between_a_topic_and_its_offsets_in_a_transaction_is_made_good(tmp_path, clock):
    """They became those of the next topic of that name when the transaction ended."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        client = await Client.connect(broker)
        who = await client.call(
            22, 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        offset = {
            "partition_index": P.partition,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        done = await client.call(
            28,
            5,
            transactional_id="x",
            group_id="g",
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [offset]}],
        )
        assert done.topics[0].partitions[0].error_code is Code.none
        client.close()
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        broker = await crashed(broker, tmp_path / "b", clock)
        offsets = broker.groups.offsets
        assert offsets.is_open("g")
        assert not offsets.pending_of("g")
        await stop(broker)

    asyncio.run(story())


async def _in_a_transaction(client, name, offset):
    """An offset of P, in a transaction of `name` that stays open; who has begun it."""
    who = await client.call(22, 4, transactional_id=name, transaction_timeout=60_000)
    asked = {"partition_index": P.partition, "committed_offset": offset}
    begun = {"transactional_id": name, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    done = await client.call(28, 5, **begun, group_id="g", topics=[{"name": TOPIC, "partitions": [asked]}])
    assert done.topics[0].partitions[0].error_code is Code.none
    return begun


@pytest.mark.parametrize("deleted", ["topic", "offsets"])
@pytest.mark.parametrize("how", ["plainly", "in a transaction"])
def test_what_was_committed_since_a_deletion_stays_although_a_transaction_has_what_was_deleted(
    tmp_path, clock, how, deleted
):
    """A start deleted it with what was pending in the transaction; or that was pending once more."""

    async def story():
        broker = await start(tmp_path / "a", clock)
        await a_topic(broker)
        client = await Client.connect(broker)
        await _in_a_transaction(client, "x", 5)
        if deleted == "topic":
            await broker.topics.delete(broker.topics.by_name(TOPIC))
            await broker.groups.forget_topic(TOPIC)
            await a_topic(broker)
        else:
            await broker.groups.delete_offsets("g", [P])
        if how == "plainly":
            partition = {"partition_index": P.partition, "committed_offset": 42}
            await client.call(8, 8, group_id="g", topics=[{"name": TOPIC, "partitions": [partition]}])
        else:
            begun = await _in_a_transaction(client, "y", 42)
        client.close()
        for name in ("b", "c"):  # also after a start has deleted what is left of the other topic
            broker = await crashed(broker, tmp_path / name, clock)
        offsets = broker.groups.offsets
        assert offsets.is_unstable("g", P) is (how != "plainly")
        if how != "plainly":
            client = await Client.connect(broker)
            assert (await client.call(26, 3, **begun, committed=True)).error_code is Code.none
            client.close()
        assert offsets.get("g", P).offset == 42
        await stop(broker)

    asyncio.run(story())


def test_offsets_that_could_not_be_read_when_their_topic_was_deleted_are_none_of_the_next_one_of_its_name(
    tmp_path, clock
):
    """The partition that has them was damaged, and a copy of it is put back later."""

    async def story():
        broker = await start(tmp_path, clock)
        await a_topic(broker)
        topic_id = broker.topics.by_name(TOPIC).topic_id
        await broker.groups.commit("g", Commit(), {P: OffsetValue(5, topic_id=topic_id)})
        storage = broker.groups.storage
        (path,) = storage.logs[storage.number("g")].directory.glob("*.log")
        await stop(broker)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        broker = await start(tmp_path, clock)
        await broker.topics.delete(broker.topics.by_name(TOPIC))
        await broker.groups.forget_topic(TOPIC)
        await a_topic(broker)
        await stop(broker)
        path.write_bytes(data)
        for _ in range(2):  # its deletion is stored
            broker = await start(tmp_path, clock)
            assert broker.groups.offsets.get("g", P) is None
            await stop(broker)

    asyncio.run(story())


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
            await groups.classic.leave("g", [(member, None)])
            clock.advance_ms(WEEK - 1)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is not None
            clock.advance_ms(1)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is None
            assert "g" not in groups.groups

    asyncio.run(story())


def many(groups, count, committed_ms):
    """A group with so many offsets, which are not stored."""
    groups.group("g")
    partitions = [TopicPartition(TOPIC, number) for number in range(count)]
    for partition in partitions:
        groups.offsets.put("g", partition, OffsetValue(5, committed_ms=committed_ms), -1)
    return partitions


def test_others_have_their_turns_while_offsets_expire(tmp_path, clock):
    """The look took one turn of the loop for all groups: nobody was answered meanwhile."""

    async def story():
        async with running(tmp_path, clock) as broker:
            groups = broker.groups
            many(groups, 2_000, clock.now_ms())
            for number in range(20):
                await groups.commit(f"g{number}", Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            turns = 0

            async def others():
                nonlocal turns
                while not looked.done():
                    turns += 1
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as tasks:
                looked = tasks.create_task(groups.expire_offsets())
                tasks.create_task(others())
            assert turns > 20
            assert len(groups.offsets.of_group("g")) == 2_000

    asyncio.run(story())


@pytest.mark.parametrize("what", ["committed", "joined", "deleted"])
def test_what_changes_while_offsets_of_a_group_expire_counts(tmp_path, clock, what):
    async def story():
        async with running(tmp_path, clock) as broker:
            groups = broker.groups
            partitions = many(groups, 2_000, clock.now_ms())
            clock.advance_ms(WEEK)
            new = OffsetValue(6, committed_ms=clock.now_ms())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(groups.expire_offsets())
                await until(lambda: len(groups.offsets.of_group("g")) < 2_000, "the first are gone")
                if what == "deleted":
                    await groups.delete_group("g")
                if what == "joined":
                    tasks.create_task(a_member(groups))
                else:
                    await groups.commit("g", Commit(), dict.fromkeys(partitions[-2:], new))
            left = groups.offsets.of_group("g")
            if what == "joined":
                assert set(partitions[1_000:]) <= set(left), "it may read them"
            else:
                assert {partition: each.value for partition, each in left.items()} == dict.fromkeys(
                    partitions[-2:], new
                )
            assert "g" in groups.groups

    asyncio.run(story())


def test_offsets_of_a_group_with_members_do_not_expire(tmp_path, clock):
    """Its subscription could not be read here, so every topic may be its own."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            joined = await groups.classic.join("g", msgspec.structs.replace(a_join(), session_timeout_ms=1_000_000))
            groups.groups["g"].members[joined.member_id].protocols = (Protocol("range", b"?"),)
            await groups.classic.sync("g", SyncRequest(member_id=joined.member_id, generation=1))
            groups.groups["g"].subscribed_topics = None
            await groups.commit(
                "g", Commit(member_id=joined.member_id, generation=1), {P: OffsetValue(5, committed_ms=clock.now_ms())}
            )
            for member in groups.groups["g"].members.values():
                member.deadline = None
            clock.advance_ms(2 * WEEK)
            await groups.expire_offsets()
            assert groups.offsets.get("g", P) is not None

    asyncio.run(story())


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

    asyncio.run(story())


def test_an_old_client_may_say_when_its_offset_expires(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            soon = OffsetValue(5, committed_ms=clock.now_ms(), expires_ms=clock.now_ms() + 100)
            await broker.groups.commit("g", Commit(), {P: soon})
            clock.advance_ms(100)
            await broker.groups.expire_offsets()
            assert broker.groups.offsets.get("g", P) is None

    asyncio.run(story())


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

    asyncio.run(story())


# --- transactions -----------------------------------------------------------------------------------------------------


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

    asyncio.run(story())


def test_a_marker_written_by_hand_ends_offsets_too(tmp_path, clock):
    """`kafka-transactions abort` for a transaction that hangs in `__consumer_offsets`."""

    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            await broker.groups.commit_transactional("g", Commit(transactional=True), 7, 0, {P: OffsetValue(6)})
            where = broker.groups.storage.partition_for("g")
            await broker.transactions.write_marker(Producer(7, 0), where, commit=False, coordinator_epoch=0)
            assert not broker.groups.offsets.is_unstable("g", P)
            assert broker.groups.offsets.get("g", P) is None

    asyncio.run(story())


# --- when nothing can be stored ---------------------------------------------------------------------------------------


def test_a_broken_disk_is_said_and_not_hidden(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            await a_topic(broker)
            groups = broker.groups
            joined = await groups.classic.join("g", a_join())
            for partition_log in groups.storage.logs:
                partition_log.go_offline(StorageError("the disk is gone"))
            with pytest.raises(CoordinatorUnavailable, match="the disk is gone"):
                await groups.commit("h", Commit(), {P: OffsetValue(5)})
            assert groups.offsets.get("h", P) is None
            answer = await groups.classic.sync(
                "g", SyncRequest(member_id=joined.member_id, generation=1, assignments={joined.member_id: b"x"})
            )
            assert answer.error is Code.coordinator_not_available

    asyncio.run(story())


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

    asyncio.run(story())


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

    asyncio.run(story())


def test_an_offline_partition_does_not_end_the_expiry_of_the_others_offsets(tmp_path, clock):
    async def story():
        config = msgspec.structs.replace(CONFIG, offsets_retention_check_interval_ms=5)
        async with running(tmp_path, clock, config) as broker:
            await a_topic(broker)
            groups = broker.groups
            for name in "abcdefgh":
                await groups.commit(name, Commit(), {P: OffsetValue(5, committed_ms=clock.now_ms())})
            offline = groups.storage.partition_for("a")
            broker.partition(offline).go_offline(StorageError("bit rot"))
            clock.advance_ms(WEEK)
            others = [name for name in "abcdefgh" if groups.storage.partition_for(name) != offline]
            assert others
            await until(lambda: not any(groups.offsets.of_group(name) for name in others), "the others expire")

    asyncio.run(story())
