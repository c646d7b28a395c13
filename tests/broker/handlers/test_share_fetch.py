"""ShareFetch: what contract tests cannot see, or take too long for."""

import asyncio
import gc
import time
import uuid

import msgspec
import pytest

from mainstem.broker.groups.share.partitions import SharePartitions
from mainstem.broker.groups.share.persister import StateUnavailable
from mainstem.core import ManualClock
from mainstem.log import housekeeping
from mainstem.records import Record, build_batch
from mainstem.wire.errors import Code
from tests.support.broker import CONFIG, Client, partition_of, running, until
from tests.support.sharing import ACCEPT, RELEASE, ShareMember, topics_of

OK = Code.none


@pytest.fixture
def group(raw, topic):
    """It begins at the start of the topic, and its one partition was assigned to somebody."""
    name = f"group-{uuid.uuid4().hex[:12]}"
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    raw.call(44, 1, resources=[{"resource_type": 32, "resource_name": name, "configs": [config]}])
    raw.call(76, 1, group_id=name, member_id="m", member_epoch=0, subscribed_topic_names=[topic])
    return name


@pytest.fixture
def member(raw, topic, group):
    topic_id = raw.call(3, 12, topics=[{"topic_id": None, "name": topic}]).topics[0].topic_id
    return ShareMember(raw, group, topic_id)


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_reads(raw, topic, member, version):
    raw.produce(topic, b"a")
    assert member.fetch(0, version=version) == {0: (OK, [(0, 0, 1)], [b"a"])}


def test_an_error_names_no_other_leader(raw, topic, member):
    """franz-go took the 0 of a leader that is not told for a broker, and never came back."""
    assert member.fetch(7)[7][0] is Code.unknown_topic_or_partition
    ((told,),) = (topic.partitions for topic in member.last.responses)
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (-1, -1)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": None},
        {"member_id": ""},
        {"member_id": "m" * 37},
        {"share_acquire_mode": 2},
        {"is_renew_ack": True, "max_wait": 5},
    ],
)
def test_what_makes_no_sense_is_refused(raw, group, fields):
    request = {"group_id": group, "member_id": "m", "share_session_epoch": 0, "topics": [], "max_bytes": 0}
    numbers = dict.fromkeys(("max_wait", "min_bytes", "max_records", "batch_size"), 0)
    assert raw.call(78, 2, **{**request, **numbers, **fields}).error_code is Code.invalid_request


def test_bytes_are_waited_for(raw, topic, member):
    member.fetch(0)
    other = raw.another()
    started = time.monotonic()
    raw.produce(topic, b"x" * 100)
    assert member.fetch(min_bytes=5_000, wait=300)[0][1] == [(0, 0, 1)], "what there is, when the time is up"
    assert time.monotonic() - started > 0.25
    request = {"max_wait": 30_000, "min_bytes": 5_000, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    raw.send(78, 2, group_id=member.group, member_id=member.member_id, share_session_epoch=member.epoch, **request)
    with other:
        for _ in range(6):
            other.produce(topic, b"x" * 1_000)
    assert raw.receive(78, 2).responses[0].partitions[0].acquired_records[0].first_offset == 1
    assert time.monotonic() - started < 20


def test_limits_of_bytes(raw, topic, member):
    for _ in range(4):
        raw.produce(topic, b"x" * 100_000)
    assert member.fetch(0, max_bytes=1)[0][1] == [(0, 0, 1)], "the first batch whatever its size"
    assert member.fetch(max_bytes=250_000)[0][1] == [(1, 2, 1)]
    assert member.fetch(max_bytes=0) == {}
    assert member.fetch()[0][1] == [(3, 3, 1)]


def test_only_the_batches_that_hold_what_was_acquired_are_sent(raw, topic, member):
    for value in (b"a", b"b", b"c", b"d"):
        raw.produce(topic, value)
    member.acquired(0, until=4)
    member.acknowledge((0, 0, RELEASE), (1, 2, ACCEPT), (3, 3, RELEASE))
    assert member.fetch(wait=500)[0] == (OK, [(0, 0, 2), (3, 3, 2)], [b"a", b"d"])


def test_nobody_is_locked_out_by_who_went_while_it_waited(raw, topic, member):
    """The records that come then are for others."""
    gone = ShareMember(raw.another(), member.group, member.topic_id)
    gone.fetch(0)
    request = {"max_wait": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    gone.client.send(78, 2, group_id=gone.group, member_id=gone.member_id, share_session_epoch=gone.epoch, **request)
    gone.client.close()
    time.sleep(0.1)
    raw.produce(topic, b"a")
    assert member.acquired(0) == [(0, 0, 1)]


def test_a_topic_that_is_deleted_while_somebody_waits(raw, topic, member):
    member.fetch(0)
    other = raw.another()
    request = {"max_wait": 30_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    raw.send(78, 2, group_id=member.group, member_id=member.member_id, share_session_epoch=member.epoch, **request)
    member.epoch += 1
    with other:
        time.sleep(0.1)
        other.call(20, 5, topic_names=[topic], timeout=30_000)
    started = time.monotonic()
    (answer,) = raw.receive(78, 2).responses[0].partitions
    assert answer.error_code is Code.unknown_topic_id
    assert time.monotonic() - started < 10
    assert member.fetch() == {0: (Code.unknown_topic_id, [], [])}


# --- with the broker at hand ------------------------------------------------------------------------------------------


def told(story, path, **settings):
    async def with_broker():
        async with running(path, ManualClock(), msgspec.structs.replace(CONFIG, **settings)) as broker:
            topic = await broker.topics.create("facts", 2, {})
            await broker.groups.settings.change("g", lambda _: {"share.auto.offset.reset": "earliest"})
            client = await Client.connect(broker)
            await client.call(76, 1, group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["facts"])
            await story(broker, client, topic.topic_id)
            client.close()

    asyncio.run(with_broker())


async def append(broker, *values, number=0):
    records = [Record(0, broker.clock.now_ms(), b"k", value) for value in values]
    await partition_of(broker, "facts", number).append(build_batch(records))


async def fetch(client, topic_id, epoch, partitions=(0,), **fields):
    request = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500} | fields
    topics = topics_of(topic_id, dict.fromkeys(partitions, ())) if partitions else []
    return await client.call(
        78, 2, **{"group_id": "g", "member_id": "m", "share_session_epoch": epoch, "topics": topics} | request
    )


def acquired(answer):
    return [
        (each.first_offset, each.last_offset)
        for topic in answer.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    ]


def test_the_memory_of_answers_is_given_back(tmp_path):
    async def story(broker, client, topic_id):
        await append(broker, b"x" * 50_000)
        await append(broker, b"x" * 50_000, number=1)
        assert acquired(await fetch(client, topic_id, 0, (0, 1))) == [(0, 0)], "of the first one that is open"
        assert acquired(await fetch(client, topic_id, 1, ())) == [(0, 0)]
        assert broker.fetched_memory.held == 0
        await append(broker, b"x" * 50_000)
        await append(broker, b"x" * 50_000, number=1)
        broker.fetched_memory.take(broker.fetched_memory.limit)
        assert len(acquired(await fetch(client, topic_id, 2, ()))) == 1, "no room: the first batch alone"
        broker.fetched_memory.give(broker.fetched_memory.limit)
        assert len(acquired(await fetch(client, topic_id, 3, ()))) == 1
        await append(broker, b"a")
        await append(broker, b"a", number=1)
        assert len(acquired(await fetch(client, topic_id, 4, ()))) == 2
        assert broker.fetched_memory.held == 0

    told(story, tmp_path)


def test_a_partition_of_many_that_has_records_is_found_at_once(tmp_path):
    async def story(broker, client, topic_id):
        topic = await broker.topics.create("many", 40, {})
        await client.call(76, 1, group_id="g", member_id="n", member_epoch=0, subscribed_topic_names=["many"])
        await partition_of(broker, "many", 33).append(build_batch([Record(0, broker.clock.now_ms(), b"k", b"v")]))
        assert acquired(await fetch(client, topic.topic_id, 0, range(40))) == [(0, 0)]

    told(story, tmp_path)


def test_each_partition_has_its_turn_though_others_have_more_than_is_asked_for(tmp_path):
    """Also those that were not opened yet: a partition that always had records kept others from being read at all."""

    async def story(broker, client, topic_id):
        topic = await broker.topics.create("busy", 4, {})
        await client.call(76, 1, group_id="g", member_id="n", member_epoch=0, subscribed_topic_names=["busy"])
        for number in (0, 1, 3):  # nothing is in 2
            for _ in range(5):
                await partition_of(broker, "busy", number).append(
                    build_batch([Record(0, broker.clock.now_ms(), b"k", b"v")])
                )
        turns = []
        for epoch in range(9):
            answer = await fetch(client, topic.topic_id, epoch, () if epoch else range(4), max_records=1)
            turns += [
                each.partition_index for at in answer.responses for each in at.partitions if each.acquired_records
            ]
        assert turns == [0, 1, 3] * 3

    told(story, tmp_path)


def _partitions_there():
    return sum(type(each).__name__ in ("FetchPartition", "SessionPartition") for each in gc.get_objects())


def test_who_finds_no_session_holds_nothing_while_it_waits(tmp_path):
    """72 KB of partitions were 1.7 MB of objects, as long as the client said."""

    async def story(broker, client, topic_id):
        await fetch(client, topic_id, 0)
        other = await Client.connect(broker)
        partitions = [{"partition_index": number, "acknowledgement_batches": []} for number in range(3_000)]
        wanted = [{"topic_id": topic_id, "partitions": partitions}]
        numbers = {"max_wait": 3_600_000, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 1, "batch_size": 1}
        member = {"group_id": "g", "member_id": "n", "share_session_epoch": 0}
        before = _partitions_there()
        other.send(78, 1, **member, **numbers, topics=wanted, forgotten_topics_data=[])
        await until(lambda: len(broker.on_stop) == 1, "it waits")
        assert _partitions_there() <= before
        other.close()
        await until(lambda: not broker.on_stop, "it is over")

    told(story, tmp_path, group_share_max_share_sessions=1)


def test_sessions_are_limited(tmp_path):
    async def story(broker, client, topic_id):
        await fetch(client, topic_id, 0)
        assert (await fetch(client, topic_id, 0)).error_code is OK, "its own"
        refused = await fetch(client, topic_id, 0, member_id="n", max_wait=50)
        assert refused.error_code is Code.share_session_limit_reached
        await fetch(client, topic_id, -1, ())
        assert (await fetch(client, topic_id, 0, member_id="n")).error_code is OK

    told(story, tmp_path, group_share_max_share_sessions=1)


def test_share_partitions_are_closed_with_the_last_session(tmp_path):
    async def story(broker, client, topic_id):
        await append(broker, b"a")
        other = await Client.connect(broker)
        await fetch(client, topic_id, 0)
        await fetch(other, topic_id, 0, (0, 1), member_id="n")
        partitions = broker.groups.share.partitions
        assert len(partitions) == 2
        await fetch(client, topic_id, -1, ())
        assert len(partitions) == 2
        other.close()
        await until(lambda: len(partitions) == 0, "they are closed")
        assert len(broker.groups.share.sessions) == 0
        assert acquired(await fetch(client, topic_id, 0)) == [(0, 0)]

    told(story, tmp_path)


def test_a_new_session_of_the_same_member_ends_the_fetch_of_the_last(tmp_path):
    async def story(broker, client, topic_id):
        await fetch(client, topic_id, 0)
        waiting = asyncio.ensure_future(fetch(client, topic_id, 1, (), max_wait=400))
        await asyncio.sleep(0.05)
        other = await Client.connect(broker)
        await fetch(other, topic_id, 0)
        await append(broker, b"a")
        assert acquired(await fetch(other, topic_id, 1, ())) == [(0, 0)]
        assert acquired(await waiting) == []
        other.close()

    told(story, tmp_path)


def test_two_that_fetch_at_once_get_different_records(tmp_path):
    async def story(broker, client, topic_id):
        for _ in range(10):
            await append(broker, b"a", b"b")
        clients = [await Client.connect(broker) for _ in range(5)]
        found = await asyncio.gather(
            *(
                fetch(each, topic_id, 0, member_id=f"m{number}", max_records=4, max_wait=1_000)
                for number, each in enumerate(clients)
            )
        )
        got = [offset for each in found for first, last in acquired(each) for offset in range(first, last + 1)]
        assert sorted(got) == list(range(20))
        for each in clients:
            each.close()

    told(story, tmp_path)


def test_records_that_are_deleted_under_a_fetch_are_passed_over(tmp_path, monkeypatch):
    async def story(broker, client, topic_id):
        for _ in range(3):
            await append(broker, b"a")
        partition = partition_of(broker, "facts")
        read = type(partition).read

        async def deleted_meanwhile(self, offset, *args, **kwargs):
            if self is partition and self.log_start_offset == 0:
                await housekeeping.delete_records(partition, 2)
            return await read(self, offset, *args, **kwargs)

        monkeypatch.setattr(type(partition), "read", deleted_meanwhile)
        assert acquired(await fetch(client, topic_id, 0, max_wait=1_000)) == [(2, 2)]

    told(story, tmp_path)


def test_a_share_partition_that_cannot_be_stored_is_the_disks_fault(tmp_path, monkeypatch):
    """Clients of Kafka end where a fetch speaks of a coordinator."""

    async def story(broker, client, topic_id):
        async def unavailable(self, key):
            raise StateUnavailable("g", "the disk is gone")

        monkeypatch.setattr(SharePartitions, "get", unavailable)
        (answer,) = (await fetch(client, topic_id, 0)).responses[0].partitions
        assert answer.error_code is Code.kafka_storage_error

    told(story, tmp_path)
