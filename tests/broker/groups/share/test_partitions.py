import asyncio
import contextlib
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.broker.errors import UnknownTopicOrPartition
from mainstem.broker.groups.share.group import JOIN, LEAVE, Heartbeat
from mainstem.broker.groups.share.partition import Acknowledged, AckType, Fetched
from mainstem.broker.groups.share.partitions import NeverAssigned
from mainstem.broker.groups.share.persister import STATE_TOPIC, StateUnavailable
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.sessions import SessionKey
from mainstem.core import MainstemError, ManualClock, SystemClock
from mainstem.log import StorageError, housekeeping
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code, RequestError
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.support.broker import CONFIG, Client, crashed, partition_of, restarted, running, start, stop, until
from tests.support.properties import examples
from tests.support.sharing import topics_of

TOPIC = "facts"
ACCEPT, RELEASE = AckType.ACCEPT, AckType.RELEASE


def told(story):
    asyncio.run(story())


def expire_all(partitions):
    """Take away the locks that have ended, now and not when the loop's clock says so."""
    for found in partitions._all():
        partitions.expire(found)


async def group_of(broker, reset="earliest", **values):
    """A share group that was assigned the one partition of a topic; its key."""
    topic = broker.topics.get(TOPIC) or await broker.topics.create(TOPIC, 1, {})
    wanted = {"share.auto.offset.reset": reset, **values}
    await broker.groups.settings.change("g", lambda _: wanted)
    beat = Heartbeat(member_id="a", epoch=JOIN, topics=(TOPIC,), client_id="c", client_host="/h")
    await broker.groups.share.heartbeat("g", beat)
    return PartitionKey("g", topic.topic_id, 0)


async def produce(broker, count):
    await partition_of(broker, TOPIC).append(build_batch([Record(0, broker.clock.now_ms(), b"k", b"v")] * count))


def acquire(broker, found, member, *, most=100, **fields):
    end, offset = found.log.high_watermark, found.partition.fetch_offset()
    return [
        (each.first, each.last, each.delivery_count)
        for each in broker.groups.share.partitions.acquire(
            found,
            member,
            [Fetched(offset, end - 1)] if offset < end else [],
            fetch_offset=offset,
            most=most,
            strict=fields.get("strict", True),
            batch_size=100,
        )
    ]


def acknowledge(broker, key, member, first, last, kind=ACCEPT):
    return broker.groups.share.partitions.acknowledge(key, member, [Acknowledged(first, last, [kind])])


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 4), ("by_duration:PT1M", 2)])
def test_where_a_group_begins_is_kept_before_it_reads(tmp_path, clock, reset, first):
    async def story():
        broker = await start(tmp_path / "a", clock)
        key = await group_of(broker, reset)
        await produce(broker, 2)
        clock.advance_ms(120_000)
        await produce(broker, 2)
        found = await broker.groups.share.partitions.get(key)
        assert found.partition.start_offset == first
        await produce(broker, 1)
        broker = await crashed(broker, tmp_path / "b", clock)
        assert broker.groups.share.persister.get(key).start_offset == first
        again = await asyncio.gather(*(broker.groups.share.partitions.get(key) for _ in range(3)))
        assert (again[0].partition.start_offset, again[0] is again[1] is again[2]) == (first, True)
        await stop(broker)

    told(story)


def test_by_duration_with_nothing_so_new_begins_at_the_end(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker, "by_duration:PT1M")
            await produce(broker, 3)
            clock.advance_ms(120_000)
            assert (await broker.groups.share.partitions.get(key)).partition.start_offset == 3

    told(story)


def test_what_nobody_was_assigned_cannot_be_read(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker)
            other = await broker.topics.create("other", 1, {})
            partitions = broker.groups.share.partitions
            for wrong in (PartitionKey("h", key.topic_id, 0), PartitionKey("g", other.topic_id, 0)):
                with pytest.raises(NeverAssigned):
                    await partitions.get(wrong)
                assert broker.groups.share.persister.get(wrong) is None
            with pytest.raises(UnknownTopicOrPartition):
                await partitions.get(PartitionKey("g", key.topic_id, 1))
            with pytest.raises(UnknownTopicOrPartition):
                acknowledge(broker, key, "a", 0, 0)
            assert len(partitions) == 0

    told(story)


def test_acknowledgements_hold_over_a_crash(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        key = await group_of(broker)
        await produce(broker, 10)
        found = await broker.groups.share.partitions.get(key)
        assert acquire(broker, found, "a") == [(0, 9, 1)]
        await asyncio.gather(acknowledge(broker, key, "a", 0, 2), acknowledge(broker, key, "a", 5, 6, RELEASE))
        await acknowledge(broker, key, "a", 8, 8, AckType.REJECT)
        broker = await crashed(broker, tmp_path / "b", clock)
        found = await broker.groups.share.partitions.get(key)
        assert acquire(broker, found, "b") == [(3, 4, 1), (5, 6, 2), (7, 7, 1), (9, 9, 1)]
        await stop(broker)

    told(story)


def test_locks_end_by_the_clock(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker)
            await produce(broker, 2)
            partitions = broker.groups.share.partitions
            found = await partitions.get(key)
            told_of = []
            found.add_listener(lambda: told_of.append(True))
            assert acquire(broker, found, "a") == [(0, 1, 1)]
            await acknowledge(broker, key, "a", 0, 0, AckType.RENEW)
            clock.advance_ms(29_000)
            await acknowledge(broker, key, "a", 0, 0, AckType.RENEW)
            expire_all(partitions)
            assert acquire(broker, found, "b") == []
            clock.advance_ms(1_000)
            told_of.clear()
            expire_all(partitions)
            assert told_of
            assert acquire(broker, found, "b") == [(1, 1, 2)]
            clock.advance_ms(29_000)
            expire_all(partitions)
            assert acquire(broker, found, "b") == [(0, 0, 2)]
            with pytest.raises(RequestError) as refused:
                acknowledge(broker, key, "a", 0, 0)
            assert refused.value.code is Code.invalid_record_state

    told(story)


def test_a_lock_ends_without_anybody_asking(tmp_path):
    """By the clock that runs."""

    async def story():
        config = msgspec.structs.replace(
            CONFIG, group_share_min_record_lock_duration_ms=1_000, group_share_record_lock_duration_ms=1_000
        )
        async with running(tmp_path, SystemClock(), config) as broker:
            key = await group_of(broker)
            await produce(broker, 1)
            found = await broker.groups.share.partitions.get(key)
            assert acquire(broker, found, "a") == [(0, 0, 1)]
            woken = asyncio.Event()
            found.add_listener(woken.set)
            async with asyncio.timeout(10):
                await woken.wait()
            assert acquire(broker, found, "b") == [(0, 0, 2)]

    told(story)


def test_what_cannot_be_stored_is_delivered_again(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker)
            await produce(broker, 2)
            partitions = broker.groups.share.partitions
            found = await partitions.get(key)
            acquire(broker, found, "a")
            asked = acknowledge(broker, key, "a", 0, 1)
            for partition in broker.topics.by_name(STATE_TOPIC).logs:
                partition.go_offline(StorageError("the disk is gone"))
            with pytest.raises(StateUnavailable):
                await asked
            assert found.closed
            with pytest.raises(UnknownTopicOrPartition):
                acknowledge(broker, key, "a", 0, 1)
            assert acquire(broker, await partitions.get(key), "b") == [(0, 1, 1)]

    told(story)


@pytest.mark.parametrize("what", ["the group", "the topic", "the state", "the offset"])
def test_what_is_deleted_or_set_is_not_read_on(tmp_path, clock, what):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker)
            await produce(broker, 5)
            share = broker.groups.share
            found = await share.partitions.get(key)
            acquire(broker, found, "a", most=2)
            pending = acknowledge(broker, key, "a", 0, 1)
            beat = Heartbeat(member_id="a", epoch=LEAVE)
            await share.heartbeat("g", beat)
            if what == "the group":
                await broker.groups.delete_group("g")
            elif what == "the topic":
                await broker.topics.delete(broker.topics.by_name(TOPIC))
                await broker.groups.forget_topic(TOPIC)
            elif what == "the state":
                await share.delete_offsets("g", [key.topic_id])
            else:
                await share.set_offsets("g", {key: 4})
            await pending
            assert found.closed
            if what == "the offset":
                assert acquire(broker, await share.partitions.get(key), "a") == [(4, 4, 1)]
                return
            with pytest.raises(MainstemError):
                await share.partitions.get(key)
            assert share.persister.get(key) is None
            if what != "the topic":
                key = await group_of(broker)
                assert acquire(broker, await share.partitions.get(key), "a") == [(0, 4, 1)]

    told(story)


def test_what_is_set_while_it_is_opened_stays(tmp_path, clock):
    """An offset that was set and told to be kept was replaced by the one where the group's settings say."""

    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker, "by_duration:PT1M")
            await produce(broker, 9)
            share = broker.groups.share
            leave = Heartbeat(member_id="a", epoch=LEAVE, topics=None)
            await share.heartbeat("g", leave)
            for turns in range(20):  # the timestamp is looked for in a thread
                await share.delete_offsets("g", [key.topic_id])
                await group_of(broker, "by_duration:PT1M")
                await share.heartbeat("g", leave)
                opening = asyncio.ensure_future(share.partitions.get(key))
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert await share.set_offsets("g", {key: 5}) == {key: None}
                await opening
                assert share.persister.get(key).start_offset == 5
                assert (await share.partitions.get(key)).partition.start_offset == 5

    told(story)


def test_a_group_that_is_deleted_while_it_is_opened_leaves_no_state(tmp_path, clock):
    async def story():
        async with running(tmp_path, clock) as broker:
            key = await group_of(broker)
            share = broker.groups.share
            await share.heartbeat("g", Heartbeat(member_id="a", epoch=LEAVE))
            opening = asyncio.ensure_future(share.partitions.get(key))
            await asyncio.sleep(0)
            deleted = asyncio.ensure_future(broker.groups.delete_group("g"))
            await asyncio.wait([opening, deleted])
            await deleted
            opening.exception()
            assert await share.persister.read(key) is None

    told(story)


def test_records_that_are_deleted_are_passed_over(tmp_path, clock):
    async def story():
        broker = await start(tmp_path / "a", clock)
        key = await group_of(broker)
        await produce(broker, 6)
        found = await broker.groups.share.partitions.get(key)
        acquire(broker, found, "a", most=3)
        await housekeeping.delete_records(partition_of(broker, TOPIC), 2)
        found.partition.move_start(found.log.log_start_offset)
        await acknowledge(broker, key, "a", 0, 2)
        assert found.partition.start_offset == 3
        await housekeeping.delete_records(partition_of(broker, TOPIC), 5)
        broker = await crashed(broker, tmp_path / "b", clock)
        found = await broker.groups.share.partitions.get(key)
        assert acquire(broker, found, "a") == [(5, 5, 1)]
        await stop(broker)

    told(story)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_stays_so_when_the_power_fails(tmp_path, clock, seed):
    """Some acknowledgements are on their way then; what was answered is done, all else is delivered."""
    chance = Random(seed)

    async def story():
        disk = SimulatedDisk(tmp_path)
        broker = await start(tmp_path, clock, disk=disk)
        key = await group_of(broker)
        for _ in range(4):
            await produce(broker, 10)
        found = await broker.groups.share.partitions.get(key)
        acquire(broker, found, "a")
        answered, offsets = set(), list(range(40))
        chance.shuffle(offsets)
        disk.power_off_after(chance.randint(5, 60))
        for offset in offsets:
            if disk.is_off or found.closed:
                break
            asked = acknowledge(broker, key, "a", offset, offset)
            asked.add_done_callback(lambda done, offset=offset: done.exception() or answered.add(offset))
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0.0005)
        broker = await restarted(broker, clock, disk.after_power_cut(adversary(seed)))
        found = await broker.groups.share.partitions.get(key)
        again = {offset for first, last, _ in acquire(broker, found, "b") for offset in range(first, last + 1)}
        assert answered
        assert again & answered == set()
        await stop(broker)

    told(story)


# --- against a model --------------------------------------------------------------------------------------------------

MEMBERS = st.sampled_from("ab")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 4)),
        st.tuples(st.just("fetch"), MEMBERS, st.integers(1, 4), st.booleans()),
        st.tuples(st.just("say"), MEMBERS, st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=6), st.booleans()),
        st.tuples(st.just("leave"), MEMBERS),
        st.tuples(st.just("time"), st.integers(1, 40)),
        st.tuples(st.just("crash")),
    ),
    min_size=5,
    max_size=40,
)


class Member:
    """Its connection, its session, and what it believes to have: offset to delivery count."""

    def __init__(self, name):
        self.name, self.client, self.epoch, self.has = name, None, 0, {}

    async def call(self, broker, key, api, **fields):
        if self.client is None:
            self.client, self.epoch = await Client.connect(broker), 0
        epoch, self.epoch = self.epoch, self.epoch + 1
        return await self.client.call(
            api, 2, group_id=key.group, member_id=self.name, share_session_epoch=epoch, **fields
        )

    async def fetch(self, broker, key, most, strict):
        topics = topics_of(key.topic_id, {0: ()}) if self.epoch == 0 else []
        answer = await self.call(
            broker,
            key,
            78,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=most,
            batch_size=100,
            share_acquire_mode=int(strict),
            topics=topics,
        )
        assert answer.error_code is Code.none
        return {
            offset: each.delivery_count
            for topic in answer.responses
            for partition in topic.partitions
            for each in partition.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }

    def close(self):
        if self.client is not None:
            self.client.close()
        self.client, self.epoch, self.has = None, 0, {}


@given(steps=STEPS, updates_per_snapshot=st.sampled_from((0, 3, 500)))
@settings(max_examples=examples(20))
def test_what_was_answered_holds_and_nothing_is_lost(tmp_path_factory, steps, updates_per_snapshot):
    """Members fetch, say what they did, go, are slow, and the log is killed.

    A record whose acknowledgement was answered does not come again, nobody has what another one has, and all others
    come in the end.
    """
    clock = ManualClock()
    config = msgspec.structs.replace(
        CONFIG, share_coordinator_snapshot_update_records_per_snapshot=updates_per_snapshot
    )

    async def story():
        path = tmp_path_factory.mktemp("shared")
        broker = await start(path / "0", clock, config)
        key = await group_of(broker, **{"share.delivery.count.limit": "10"})
        members = {name: Member(name) for name in "ab"}
        owners, done, unsure, pending = {}, set(), set(), []

        async def fetch(member, most, strict):
            found = await member.fetch(broker, key, most, strict)
            for offset, count in found.items():
                assert offset not in done, "it was acknowledged"
                assert offset not in owners, f"{owners.get(offset)} has it"
                assert 1 <= count <= 10
                owners[offset] = (member.name, clock.monotonic() + 30)
            member.has |= found
            return found

        async def say(member, kinds, wait):
            said = dict(zip(sorted(member.has), kinds, strict=False))
            if not said:
                return
            acks = [(offset, offset, kind) for offset, kind in said.items()]
            final = {offset for offset, kind in said.items() if kind != RELEASE}
            unsure.update(final)
            asked = asyncio.ensure_future(member.call(broker, key, 79, topics=topics_of(key.topic_id, {0: acks})))
            for offset in said:
                del member.has[offset]
                owners.pop(offset, None)
            if not wait:
                pending.append(asked)
                return
            answer = await asked
            (code,) = [each.error_code for topic in answer.responses for each in topic.partitions]
            if code is Code.none:
                done.update(final)

        async def session_is_over(member):
            sessions, whose = broker.groups.share.sessions, SessionKey("g", member.name)
            await until(lambda: sessions.get(whose) is None, "the session is over")

        for count, (kind, *rest) in enumerate(steps, 1):
            if kind == "produce":
                await produce(broker, rest[0])
            elif kind == "fetch":
                if not pending:
                    await fetch(members[rest[0]], *rest[1:])
            elif kind == "say":
                if not pending:
                    await say(members[rest[0]], *rest[1:])
            elif kind == "leave":
                member = members[rest[0]]
                member.close()
                for offset in [offset for offset, (owner, _) in owners.items() if owner == member.name]:
                    del owners[offset]
                await session_is_over(member)
            elif kind == "time":
                clock.advance_ms(1_000 * rest[0])
                expire_all(broker.groups.share.partitions)
                for offset, (owner, deadline) in list(owners.items()):
                    if deadline <= clock.monotonic():
                        del owners[offset]
                        members[owner].has.pop(offset, None)
            else:
                for member in members.values():
                    member.close()
                broker = await crashed(broker, path / str(count), clock)
                for asked in pending:
                    asked.cancel()
                pending.clear()
                owners.clear()
        for asked in pending:
            await asked
        for member in members.values():
            member.close()
        clock.advance_ms(31_000)
        expire_all(broker.groups.share.partitions)
        owners.clear()
        last, seen = Member("z"), set()
        while found := await fetch(last, 100, False):
            seen |= set(found)
            await say(last, [ACCEPT] * len(found), True)
        assert seen >= set(range(partition_of(broker, TOPIC).high_watermark)) - unsure
        last.close()
        with contextlib.suppress(MainstemError):
            await stop(broker)

    told(story)
