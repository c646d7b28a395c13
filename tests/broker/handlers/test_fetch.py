"""Fetch: whole batches, long polls, sessions, committed records."""

import asyncio
import time
import uuid

import pytest

from mainstem.broker.handlers.fetch import _Fetch
from mainstem.core import ManualClock
from mainstem.records import Record, build_batch, decode_header
from mainstem.wire.errors import Code
from tests.support.broker import Client, running, until
from tests.support.raw import RawClient

NOW = int(time.time() * 1000)


def append(raw, topic, *values, **options):
    records = build_batch([Record(0, NOW, b"k", value) for value in values], **options)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = raw.call(0, 9, acks=-1, timeout=30_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code is Code.none
    return records


def ask(topic, offset=0, *, max_wait=0, min_bytes=1, max_bytes=1 << 20, partition_max_bytes=1 << 20, **fields):
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
    partition |= fields.pop("partition", {})
    return {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": fields.pop("topic_id", None), "partitions": [partition]}],
        **fields,
    }


def fetch(raw, topic, offset=0, *, version=11, **fields):
    return raw.call(1, version, **ask(topic, offset, **fields)).responses[0].partitions[0]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(raw, topic, version):
    sent = append(raw, topic, b"a", b"b")
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    found = fetch(raw, topic, version=version, topic_id=topic_id)
    assert found.error_code is Code.none
    assert found.records[16:] == sent[16:]
    assert (found.high_watermark, found.last_stable_offset) == (2, 2)
    assert not found.aborted_transactions


def test_g5_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(raw, topic):
    append(raw, topic, b"a", b"b", b"c")
    found = fetch(raw, topic, 2)
    assert decode_header(found.records).base_offset == 0
    assert len(found.records) == decode_header(found.records).size


def test_g5_the_first_batch_is_given_even_if_it_is_larger_than_allowed(raw, topic):
    append(raw, topic, b"x" * 5000)
    append(raw, topic, b"y")
    for limits in ({"max_bytes": 10}, {"partition_max_bytes": 10}, {"max_bytes": 0}):
        found = fetch(raw, topic, **limits)
        assert decode_header(found.records).last_offset == 0
        assert len(found.records) == decode_header(found.records).size


def test_only_the_first_partition_with_records_may_be_larger_than_allowed(raw, topic):
    raw.call(37, 0, topics=[{"name": topic, "count": 2}], timeout=1000)
    for index in (0, 1):
        records = build_batch([Record(0, NOW, None, b"x" * 500)])
        data = [{"name": topic, "partition_data": [{"index": index, "records": records}]}]
        raw.call(0, 9, acks=-1, timeout=30_000, topic_data=data)
    partitions = [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 10} for i in (0, 1)]
    answer = raw.call(
        1,
        11,
        max_wait=0,
        min_bytes=1,
        max_bytes=10,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": partitions}],
    )
    sizes = [len(each.records) for each in answer.responses[0].partitions]
    assert sizes[0] > 500
    assert sizes[1] == 0


def test_g5_a_waiting_fetch_wakes_on_produce(raw, topic):
    raw.send(1, 11, **ask(topic, max_wait=600_000))
    with raw.another() as other:
        append(other, topic, b"x")
    assert raw.receive(1, 11).responses[0].partitions[0].records


def test_g5_an_append_that_becomes_visible_while_the_fetch_begins_to_wait_is_not_missed(raw, topic):
    """The record is not durable yet when the fetch reads; no later append wakes it."""
    records = build_batch([Record(0, NOW, None, b"x")])
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    for offset in range(20):
        raw.send(0, 9, acks=-1, timeout=30_000, topic_data=data)
        raw.send(1, 11, **ask(topic, offset, max_wait=600_000))
        assert raw.receive(0, 9).responses[0].partition_responses[0].base_offset == offset
        assert raw.receive(1, 11).responses[0].partitions[0].records


def test_g5_a_waiting_fetch_wakes_when_there_is_enough(raw, topic):
    raw.send(1, 11, **ask(topic, max_wait=600_000, min_bytes=3000))
    with raw.another() as other:
        for _ in range(4):
            append(other, topic, b"x" * 1000)
    assert len(raw.receive(1, 11).responses[0].partitions[0].records) >= 3000


@pytest.mark.parametrize(
    "limits",
    [
        {"min_bytes": 3000, "partition_max_bytes": 3000},  # whole batches come to less
        {"min_bytes": 1 << 20, "partition_max_bytes": 3000},
        {"min_bytes": 3000, "max_bytes": 3000},
        {"min_bytes": 1 << 20, "max_bytes": 2000, "partition_max_bytes": 2000},
    ],
)
def test_g5_a_fetch_that_has_no_room_for_more_does_not_wait_for_it(raw, topic, limits):
    """A reader that lags, of a topic to which nobody writes: each of its fetches took all of its `max_wait`."""
    for _ in range(10):
        append(raw, topic, b"x" * 1000)
    raw.send(1, 11, **ask(topic, max_wait=600_000, **limits))
    assert raw.receive(1, 11).responses[0].partitions[0].records


def test_g5_a_fetch_does_not_wait_at_the_end_of_a_segment(raw, topic):
    entry = {"name": "segment.bytes", "config_operation": 0, "value": "5000"}
    raw.call(44, 1, resources=[{"resource_type": 2, "resource_name": topic, "configs": [entry]}], validate_only=False)
    for _ in range(12):
        append(raw, topic, b"x" * 1000)
    offset = 0
    while offset < 8:  # those of the last segment are waited for
        raw.send(1, 11, **ask(topic, offset, max_wait=600_000, min_bytes=1 << 19))
        records = raw.receive(1, 11).responses[0].partitions[0].records
        assert 0 < len(records) < 6000
        while records:
            header = decode_header(records)
            offset, records = header.last_offset + 1, records[header.size :]


def test_g5_a_waiting_fetch_of_committed_records_wakes_on_commit(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = (producer.producer_id, producer.producer_epoch)
    assert raw.add(name, identity, topic) is Code.none
    assert raw.produce(topic, b"x", transactional_id=name, producer=identity, sequence=0) is Code.none
    with raw.another() as reader:
        assert fetch(reader, topic, isolation_level=1).records == b""
        reader.send(1, 11, **ask(topic, max_wait=600_000, isolation_level=1))
        raw.end(name, identity, commit=True)
        found = reader.receive(1, 11).responses[0].partitions[0]
        assert found.records
        assert found.last_stable_offset == found.high_watermark == 2


def test_g5_aborted_transactions_are_listed_for_readers_of_committed_records_only(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = (producer.producer_id, producer.producer_epoch)
    append(raw, topic, b"before")
    raw.add(name, identity, topic)
    raw.produce(topic, b"x", transactional_id=name, producer=identity, sequence=0)
    raw.end(name, identity, commit=False)
    committed = fetch(raw, topic, isolation_level=1)
    assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions] == [(identity[0], 1)]
    assert fetch(raw, topic).aborted_transactions is None


def test_a_rack_leads_to_no_other_replica(raw, topic):
    append(raw, topic, b"a")
    for rack in ("", "elsewhere"):
        found = fetch(raw, topic, rack_id=rack)
        assert found.records
        assert found.preferred_read_replica == -1


def test_a_wait_ends_when_its_time_is_up(raw, topic):
    start = time.monotonic()
    assert fetch(raw, topic, max_wait=200).records == b""
    assert 0.15 < time.monotonic() - start < 30


def test_an_error_does_not_wait(raw, topic):
    found = fetch(raw, topic, 99, max_wait=600_000)
    assert (found.error_code, found.high_watermark) == (Code.offset_out_of_range, -1)
    assert fetch(raw, "no-such-topic", max_wait=600_000).error_code is Code.unknown_topic_or_partition
    unknown = fetch(raw, None, version=13, topic_id=uuid.uuid4(), max_wait=600_000)
    assert unknown.error_code is Code.unknown_topic_id


def test_a_waiting_fetch_ends_when_the_topic_is_deleted(raw, topic):
    raw.send(1, 11, **ask(topic, max_wait=600_000))
    with raw.another() as other:
        other.call(20, 4, topic_names=[topic], timeout=1000)
    assert raw.receive(1, 11).responses[0].partitions[0].error_code is Code.unknown_topic_or_partition


def test_leader_epochs_are_checked(raw, topic):
    assert fetch(raw, topic, version=12, partition={"current_leader_epoch": -2}).error_code is Code.none
    found = fetch(raw, topic, version=12, partition={"current_leader_epoch": 99})
    assert found.error_code is Code.unknown_leader_epoch
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    named = fetch(raw, topic, version=16, topic_id=topic_id, partition={"current_leader_epoch": 99})
    assert named.current_leader.leader_id >= 0


def test_a_reader_from_another_history_is_told_where_it_parts(raw, topic):
    append(raw, topic, b"a")
    epoch = raw.call(3, 9, topics=[{"name": topic}]).topics[0].partitions[0].leader_epoch
    found = fetch(raw, topic, 5, version=12, partition={"last_fetched_epoch": epoch}, max_wait=600_000)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (epoch, 1)
    unknown = fetch(raw, topic, 1, version=12, partition={"last_fetched_epoch": epoch + 5}, max_wait=600_000)
    assert unknown.error_code is Code.offset_out_of_range


def test_a_reader_of_the_current_epoch_may_wait_at_the_start_of_an_empty_partition(raw, topic):
    """@platformatic/kafka says so from its first fetch on."""
    found = fetch(raw, topic, 0, version=12, partition={"last_fetched_epoch": 0}, max_wait=1)
    assert (found.error_code, found.diverging_epoch.epoch) == (Code.none, -1)


class Session:
    def __init__(self, raw, topic, topic_id=None, version=11, isolation_level=0):
        self.raw, self.topic, self.topic_id, self.version = raw, topic, topic_id, version
        self.isolation_level = isolation_level

    def request(self, session_id, epoch, partitions=(), forgotten=()):
        names = {"topic": self.topic, "topic_id": self.topic_id}
        topics = [{**names, "partitions": list(partitions)}] if partitions else []
        gone = [{**names, "partitions": list(forgotten)}] if forgotten else []
        return self.raw.call(
            1,
            self.version,
            max_wait=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=self.isolation_level,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=gone,
        )


def partition(index=0, offset=0):
    return {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}


def test_g5_a_session_names_partitions_once_and_answers_with_what_changed(raw, topic):
    raw.call(37, 0, topics=[{"name": topic, "count": 2}], timeout=1000)
    session = Session(raw, topic)
    first = session.request(0, 0, [partition(0), partition(1)])
    assert first.session_id > 0
    assert [each.partition_index for each in first.responses[0].partitions] == [0, 1]
    assert session.request(first.session_id, 1).responses == ()
    append(raw, topic, b"x")
    changed = session.request(first.session_id, 2)
    assert [each.partition_index for each in changed.responses[0].partitions] == [0]
    moved = session.request(first.session_id, 3, [partition(0, 1)])
    assert moved.responses == ()
    assert session.request(first.session_id, 4, forgotten=[0]).responses == ()
    append(raw, topic, b"y")
    assert session.request(first.session_id, 5).responses == ()


def test_a_session_without_partitions_ends(raw, topic):
    session = Session(raw, topic)
    first = session.request(0, 0, [partition(0)])
    last = session.request(first.session_id, 1, forgotten=[0])
    assert (last.error_code, last.session_id, last.responses) == (Code.none, 0, ())
    assert session.request(first.session_id, 2).error_code == Code.fetch_session_id_not_found


def test_a_session_tells_a_reader_of_committed_records_of_a_high_watermark_that_moved(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = (producer.producer_id, producer.producer_epoch)
    session = Session(raw, topic, isolation_level=1)
    first = session.request(0, 0, [partition()])
    raw.add(name, identity, topic)
    assert raw.produce(topic, b"open", transactional_id=name, producer=identity, sequence=0) is Code.none
    (moved,) = session.request(first.session_id, 1).responses[0].partitions
    assert (moved.records, moved.high_watermark, moved.last_stable_offset) == (b"", 1, 0)
    assert session.request(first.session_id, 2).responses == ()
    raw.end(name, identity, commit=True)


def test_a_session_tells_of_a_log_start_that_moved(raw, topic):
    append(raw, topic, b"a", b"b")
    session = Session(raw, topic)
    first = session.request(0, 0, [partition(offset=2)])
    asked = [{"partition_index": 0, "offset": 1}]
    raw.call(21, 2, topics=[{"name": topic, "partitions": asked}], timeout=1000)
    (moved,) = session.request(first.session_id, 1).responses[0].partitions
    assert (moved.records, moved.high_watermark, moved.log_start_offset) == (b"", 2, 1)
    assert session.request(first.session_id, 2).responses == ()


def test_a_session_refuses_other_epochs_and_other_ids(raw, topic):
    session = Session(raw, topic)
    first = session.request(0, 0, [partition()])
    assert session.request(first.session_id, 7).error_code is Code.invalid_fetch_session_epoch
    assert session.request(first.session_id + 1_000_000, 1).error_code is Code.fetch_session_id_not_found


def test_a_session_by_name_is_not_one_by_id(raw, topic):
    first = Session(raw, topic).request(0, 0, [partition()])
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    by_id = Session(raw, None, topic_id, version=13).request(first.session_id, 1)
    assert by_id.error_code is Code.fetch_session_topic_id_error


def test_a_session_ends_with_the_final_epoch(raw, topic):
    session = Session(raw, topic)
    first = session.request(0, 0, [partition()])
    assert session.request(first.session_id, -1, [partition()]).session_id == 0
    assert session.request(first.session_id, 1).error_code is Code.fetch_session_id_not_found


def test_a_round_that_touches_every_partition_counts_each_once(tmp_path, monkeypatch):
    """Every partition that moved counted all of them: with 2,000 the loop stood still for seconds."""
    counted = []
    bytes_since = _Fetch._bytes_since

    def count(self, *arguments):
        counted.append(arguments)
        return bytes_since(self, *arguments)

    monkeypatch.setattr(_Fetch, "_bytes_since", count)
    partitions = 40

    async def story():
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("t", partitions, {})
            for min_bytes, rounds in ((1, 1), (100 * partitions, 2)):
                ends = [each.log_end_offset for each in topic.logs]
                wanted = [partition(index, end) for index, end in enumerate(ends)]
                request = ask("t", min_bytes=min_bytes, max_wait=30_000)
                request["topics"][0]["partitions"] = wanted
                client = await Client.connect(broker)
                counted.clear()
                async with asyncio.TaskGroup() as group:
                    fetched = group.create_task(client.call(1, 11, **request))
                    await until(lambda: len(counted) == partitions, "the fetch waits")
                    for _ in range(rounds):
                        batch = build_batch([Record(0, 0, b"k", b"v")])
                        await asyncio.gather(*(each.append(batch) for each in topic.logs))
                    answer = await fetched
                assert any(each.records for each in answer.responses[0].partitions)
                assert len(counted) <= (1 + rounds) * partitions
                client.close()

    asyncio.run(story())


def test_what_a_partition_gets_while_the_next_one_is_read_is_not_missed(tmp_path, monkeypatch):
    """It is too late for the read, and too early to wake who waits."""
    batch = build_batch([Record(0, 0, b"k", b"v")])

    async def story():
        async with asyncio.timeout(30), running(tmp_path, ManualClock()) as broker:
            first, second = (await broker.topics.create("t", 2, {})).logs
            await second.append(batch)
            read = second._read

            async def slowly(*arguments, **options):
                if not first.high_watermark:
                    await first.append(batch)
                return await read(*arguments, **options)

            monkeypatch.setattr(second, "_read", slowly)
            request = ask("t", min_bytes=2 * len(batch), max_wait=600_000)
            request["topics"][0]["partitions"] = [partition(0), partition(1)]
            client = await Client.connect(broker)
            answer = await client.call(1, 11, **request)
            assert [len(each.records) for each in answer.responses[0].partitions] == [len(batch), len(batch)]
            client.close()

    asyncio.run(story())


def test_a_fetch_whose_topic_is_deleted_is_told_so(mainstem_log, raw):
    """Waiting or in the middle of reading: no storage error, no wait until the time is up, and the broker lives."""
    for version, code in ((11, Code.unknown_topic_or_partition), (16, Code.unknown_topic_id)):
        name = f"doomed-{uuid.uuid4().hex[:8]}"
        raw.create_topic(name)
        topic_id = raw.call(3, 12, topics=[{"name": name}]).topics[0].topic_id
        append(raw, name, b"x" * 100_000)
        with RawClient(mainstem_log.bootstrap) as waiting, RawClient(mainstem_log.bootstrap) as reading:
            waiting.send(1, version, **ask(name, 1, topic_id=topic_id, max_wait=600_000))
            for _ in range(50):
                reading.send(1, version, **ask(name, 0, topic_id=topic_id))
            raw.call(20, 4, topic_names=[name], timeout=30_000)
            assert waiting.receive(1, version).responses[0].partitions[0].error_code is code
            codes = [reading.receive(1, version).responses[0].partitions[0].error_code for _ in range(50)]
            assert set(codes) <= {Code.none, code}
            assert fetch(reading, name, version=version, topic_id=topic_id).error_code is code
    raw.create_topic(name)
    append(raw, name, b"new")
    assert fetch(raw, name).error_code is Code.none


def test_a_partition_that_is_named_many_times_is_fetched_once_from_where_it_is_named_last(raw, topic):
    append(raw, topic, b"a")
    append(raw, topic, b"b")
    request = ask(topic)
    partitions = request["topics"][0]["partitions"]
    request["topics"][0]["partitions"] = 1_000 * partitions + [partitions[0] | {"fetch_offset": 1}]
    (found,) = raw.call(1, 11, **request).responses[0].partitions
    assert decode_header(found.records).base_offset == 1


@pytest.mark.parametrize("version", [4, 11, 16])
def test_an_isolation_level_that_there_is_not_is_refused(raw, topic, version):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    answer = raw.call(1, version, **ask(topic, topic_id=topic_id, isolation_level=7))
    if version < 7:
        assert answer.responses[0].partitions[0].error_code is Code.invalid_request
    else:
        assert answer.error_code is Code.invalid_request


def test_others_go_on_while_thousands_of_partitions_are_read(tmp_path, monkeypatch):
    async def check() -> None:
        async with running(tmp_path, ManualClock()) as broker:
            await broker.topics.create("t", 1_000, {})
            turns, meanwhile, read = 0, [], _Fetch._read

            def turn() -> None:
                nonlocal turns
                turns += 1
                if not broker.stopping.done():
                    broker.loop.call_soon(turn)

            async def counted(self):
                before = turns
                found = await read(self)
                meanwhile.append(turns - before)
                return found

            monkeypatch.setattr(_Fetch, "_read", counted)
            broker.loop.call_soon(turn)
            client = await Client.connect(broker)
            asked = ask("t")
            asked["topics"][0]["partitions"] = [
                {"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(1_000)
            ]
            answer = await client.call(1, 11, **asked)
            assert len(answer.responses[0].partitions) == 1_000
            assert meanwhile[0] >= 9
            client.close()

    asyncio.run(check())
