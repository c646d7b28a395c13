"""Produce: what is taken, what is refused, and in which order."""

import asyncio
import itertools
import time
import uuid

import msgspec
import pytest
from crc32c import crc32c

from mainstem.core import SystemClock
from mainstem.records import Record, build_batch, decode_header, decode_records
from mainstem.records.batch import HEADER
from mainstem.records.record import assemble_batch
from mainstem.wire.errors import Code
from tests.support.broker import Client, running
from tests.support.raw import RawClient

NOW = int(time.time() * 1000)


def batch(*values: bytes, **options) -> bytes:
    return build_batch([Record(0, NOW, options.pop("key", b"k"), value) for value in values], **options)


def produce(raw, topic, records, *, version=9, acks=-1, partition=0, topic_id=None, **fields):
    data = {"name": topic, "topic_id": topic_id, "partition_data": [{"index": partition, "records": records}]}
    answer = raw.call(0, version, acks=acks, timeout=30_000, topic_data=[data], **fields)
    return answer.responses[0].partition_responses[0]


def fetched(raw, topic, offset=0) -> bytes:
    wanted = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
    answer = raw.call(
        1,
        11,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": wanted}],
    )
    return answer.responses[0].partitions[0].records


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(raw, topic, version):
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    first = produce(raw, topic, batch(b"a", b"b"), version=version, topic_id=topic_id)
    second = produce(raw, topic, batch(b"c"), version=version, topic_id=topic_id, acks=1)
    assert (first.error_code, first.base_offset, second.base_offset) == (Code.none, 0, 2)
    assert first.log_append_time is None
    if version >= 5:
        assert second.log_start_offset == 0


@pytest.mark.parametrize("version", [3, 6, 7, 13])
def test_zstd_is_taken_from_version_7_on(raw, topic, version):
    """Who writes with an older version may read with one that has no word for it."""
    topic_id = raw.call(3, 12, topics=[{"name": topic}]).topics[0].topic_id
    code = produce(raw, topic, batch(b"a", compression="zstd"), version=version, topic_id=topic_id).error_code
    assert code is (Code.none if version >= 7 else Code.unsupported_compression_type)
    assert (
        produce(raw, topic, batch(b"a", compression="lz4"), version=version, topic_id=topic_id).error_code is Code.none
    )


def test_acks_0_has_no_answer(raw, topic):
    data = {"name": topic, "partition_data": [{"index": 0, "records": batch(b"a")}]}
    raw.send(0, 9, acks=0, timeout=1000, topic_data=[data])
    assert produce(raw, topic, batch(b"b")).base_offset == 1  # the next answer is the next request's


def test_a_failure_with_acks_0_closes_the_connection(mainstem_log):
    with RawClient(mainstem_log.bootstrap) as raw:
        data = {"name": "no-such-topic", "partition_data": [{"index": 0, "records": batch(b"a")}]}
        raw.send(0, 9, acks=0, timeout=1000, topic_data=[data])
        with pytest.raises(ConnectionError):
            raw.call(18, 0)


def test_acks_must_be_0_1_or_all(raw, topic):
    assert produce(raw, topic, batch(b"a"), acks=2).error_code is Code.invalid_required_acks


def test_unknown_topics_and_partitions(raw, topic):
    assert produce(raw, "no-such-topic", batch(b"a")).error_code is Code.unknown_topic_or_partition
    assert produce(raw, topic, batch(b"a"), partition=1).error_code is Code.unknown_topic_or_partition
    unknown = produce(raw, None, batch(b"a"), version=13, topic_id=uuid.uuid4())
    assert unknown.error_code is Code.unknown_topic_id


def test_pipelined_requests_to_one_partition_keep_their_order(raw, topic):
    for i in range(50):
        data = {"name": topic, "partition_data": [{"index": 0, "records": batch(b"%d" % i)}]}
        raw.send(0, 9, acks=-1, timeout=1000, topic_data=[data])
    offsets = [raw.receive(0, 9).responses[0].partition_responses[0].base_offset for _ in range(50)]
    assert offsets == list(range(50))


def test_one_bad_partition_does_not_stop_the_others(raw, topic):
    raw.call(37, 0, topics=[{"name": topic, "count": 3}], timeout=1000)
    data = [{"index": i, "records": batch(b"a") if i != 1 else b"garbage" * 20} for i in range(3)]
    answer = raw.call(0, 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": data}])
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [Code.none, Code.corrupt_message, Code.none]


def test_no_records_at_all(raw, topic):
    assert produce(raw, topic, None).error_code is Code.invalid_record
    assert produce(raw, topic, b"").error_code is Code.invalid_record


def test_idempotent_batches_twice_count_once_and_gaps_are_refused(raw, topic):
    producer = raw.init(None).producer_id
    batches = [batch(b"x%d" % i, producer_id=producer, producer_epoch=0, base_sequence=i) for i in range(3)]
    first = produce(raw, topic, batches[0])
    again = produce(raw, topic, batches[0])
    assert (again.error_code, again.base_offset) == (Code.none, first.base_offset)
    assert produce(raw, topic, batches[2]).error_code is Code.out_of_order_sequence_number
    assert produce(raw, topic, batches[1]).base_offset == first.base_offset + 1


def test_g6_a_fenced_producer_is_told_invalid_producer_epoch_by_produce(raw, topic):
    name = uuid.uuid4().hex
    old = raw.init(name)
    raw.init(name)
    stale = batch(
        b"x", producer_id=old.producer_id, producer_epoch=old.producer_epoch, base_sequence=0, transactional=True
    )
    code = produce(raw, topic, stale, transactional_id=name, version=12).error_code
    assert code is Code.invalid_producer_epoch


def test_g6_a_partition_that_was_not_added_takes_no_batch_of_transactions_version_1(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    stray = batch(
        b"x",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    assert produce(raw, topic, stray, transactional_id=name, version=10).error_code is Code.invalid_txn_state
    assert fetched(raw, topic) == b""


def test_g6_version_2_adds_the_partition_with_the_batch(raw, topic):
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    first = batch(b"x", base_sequence=0, transactional=True, **identity)
    assert produce(raw, topic, first, transactional_id=name, version=12).error_code is Code.none
    answer = raw.call(26, 5, transactional_id=name, committed=True, **identity)
    assert (answer.error_code, answer.producer_epoch) == (Code.none, producer.producer_epoch + 1)


def test_g6_version_2_adds_all_partitions_of_a_request_that_have_a_transactions_batches(raw, topic):
    """Also that of one which is refused, as Kafka does; not that of a batch beside the transaction."""
    name = uuid.uuid4().hex
    raw.call(37, 3, topics=[{"name": topic, "count": 4, "assignments": None}], timeout=9_000, validate_only=False)
    producer = raw.init(name)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    whole = batch(b"x", base_sequence=0, transactional=True, **identity)
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    beside = batch(b"x")
    data = [{"index": index, "records": each} for index, each in enumerate((whole, damaged, beside, whole))]
    topics = [{"name": topic, "partition_data": data}]
    answer = raw.call(0, 12, transactional_id=name, acks=-1, timeout=30_000, topic_data=topics)
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [Code.none, Code.corrupt_message, Code.none, Code.none]
    (told,) = raw.call(65, 0, transactional_ids=[name]).transaction_states
    assert sorted(told.topics[0].partitions) == [0, 1, 3]
    assert raw.call(26, 5, transactional_id=name, committed=True, **identity).error_code is Code.none


def test_a_transactional_batch_needs_a_transactional_id(raw, topic):
    stray = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert produce(raw, topic, stray).error_code is Code.invalid_txn_state


def test_g8_max_message_bytes_is_enforced(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "max.message.bytes", "config_operation": 0, "value": "200"}]}])  # fmt: skip
    assert produce(raw, topic, batch(b"x" * 300)).error_code is Code.message_too_large
    assert produce(raw, topic, batch(b"x")).error_code is Code.none


def test_g8_a_compacted_topic_refuses_records_without_a_key(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]}])  # fmt: skip
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        keyless = batch(b"x", key=None, compression=compression)
        assert produce(raw, topic, keyless).error_code is Code.invalid_record
        assert produce(raw, topic, batch(b"x", compression=compression)).error_code is Code.none


def test_the_records_that_a_topic_refuses_are_named(raw, topic):
    """A client then tells which of its records was wrong; it took all of the batch for it."""
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}]}])  # fmt: skip
    now = int(time.time() * 1000)
    keyless = Record(0, now, None, b"v")
    for compression, count in itertools.product(("none", "gzip"), (4, 2000)):  # many are not looked at by the loop
        records = [keyless if number in (1, 3) else Record(0, now, b"k", b"v") for number in range(count)]
        sent = build_batch(records, compression=compression)
        for version in (8, 9, 12):
            refused = produce(raw, topic, sent, version=version)
            assert refused.error_code is Code.invalid_record
            assert [each.batch_index for each in refused.record_errors] == [1, 3]
            assert {each.batch_index_error_message for each in refused.record_errors} == {
                "a record without a key, the topic is compacted"
            }
            assert "2 of its records" in refused.error_message
        assert produce(raw, topic, sent, version=7).error_code is Code.invalid_record


def test_records_far_from_the_clock_are_named(raw, topic):
    now = int(time.time() * 1000)
    times = [now, now + 7_200_000, now, now + 9_000_000]
    sent = build_batch([Record(0, each, b"k", b"v") for each in times])
    refused = produce(raw, topic, sent)
    assert refused.error_code is Code.invalid_timestamp
    assert [each.batch_index for each in refused.record_errors] == [1, 3]
    assert f"timestamp {times[1]}" in refused.record_errors[0].batch_index_error_message


def test_timestamps_of_another_unit_are_refused_whatever_the_topic_allows(raw, topic):
    most = {f"message.timestamp.{which}.max.ms": str(2**63 - 1) for which in ("before", "after")}
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in most.items()]
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": changes}])
    latest = (2**63 - 1) // 1000
    for time_ms, code in (
        (latest, Code.none),
        (latest + 1, Code.invalid_timestamp),
        (-latest - 1, Code.invalid_timestamp),
    ):
        assert produce(raw, topic, build_batch([Record(0, time_ms, b"k", b"v")])).error_code is code


def test_replicas_in_sync_that_there_are_not_hold_up_no_record(raw, topic):
    name = "min.insync.replicas"
    asked = {
        "resource_type": 2,
        "resource_name": topic,
        "configs": [{"name": name, "config_operation": 0, "value": "3"}],
    }
    raw.call(44, 0, resources=[asked])
    shown = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
    assert [each.value for each in raw.call(32, 4, resources=[shown]).results[0].configs] == ["3"]
    assert produce(raw, topic, batch(b"a"), acks=-1).error_code is Code.none


def test_what_is_answered_is_in_its_file_whatever_the_topic_says(raw, topic, mainstem_log):
    """The least that a topic may ask for: no record is in memory only."""
    least = {"flush.messages": str(2**63 - 1), "flush.ms": str(2**63 - 1)}
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in least.items()]
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": changes}])
    for value in (b"the first", b"the second"):
        assert produce(raw, topic, batch(value)).error_code is Code.none
        assert value in (mainstem_log.data / f"{topic}-0" / "00000000000000000000.log").read_bytes()


def test_several_batches_of_one_partition_lie_behind_each_other(raw, topic):
    """Kafka takes one."""
    produce(raw, topic, batch(b"before"))
    sent = batch(b"a", b"b") + batch(b"c", compression="lz4") + batch(b"d")
    taken = produce(raw, topic, sent)
    assert (taken.error_code, taken.base_offset) == (Code.none, 1)
    assert produce(raw, topic, batch(b"after")).base_offset == 5


def test_g11_only_base_offset_and_leader_epoch_of_a_batch_change(raw, topic):
    produce(raw, topic, batch(b"first"))
    sent = batch(b"x", compression="zstd")
    produce(raw, topic, sent)
    kept = fetched(raw, topic, 1)
    assert kept[16:] == sent[16:]  # behind base offset, length and leader epoch: the CRC's bytes and the CRC itself
    assert decode_header(kept).base_offset == 1


def test_g11_log_append_time_is_written_into_the_batch_with_a_new_crc(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "message.timestamp.type", "config_operation": 0, "value": "LogAppendTime"}]}])  # fmt: skip
    answer = produce(raw, topic, build_batch([Record(0, 1, b"k", b"v")]))
    kept = fetched(raw, topic)
    assert decode_header(kept).has_append_time  # and its CRC is right, else decode_header raises
    assert decode_records(kept)[0].timestamp >= NOW
    assert round(answer.log_append_time.timestamp() * 1000) == decode_records(kept)[0].timestamp


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda b: b[:16] + b"\x00" + b[17:], Code.corrupt_message),  # magic 0
        (lambda b: b[:16] + b"\x01" + b[17:], Code.corrupt_message),  # magic 1
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), Code.corrupt_message),  # one bit of the records
        (lambda b: b[:-3], Code.corrupt_message),  # cut short
        (lambda b: b[: HEADER.size - 5], Code.corrupt_message),  # not even a header
    ],
)
def test_g11_damaged_batches_are_refused(raw, topic, damage, code):
    assert produce(raw, topic, damage(batch(b"value"))).error_code is code
    assert fetched(raw, topic) == b""


def test_g11_the_count_must_fit_the_offsets(raw, topic):
    lying = bytearray(batch(b"a", b"b"))
    lying[57:61] = (5).to_bytes(4, "big")
    lying[17:21] = crc32c(bytes(lying[21:])).to_bytes(4, "big")
    assert produce(raw, topic, bytes(lying)).error_code is Code.invalid_record


def test_a_long_look_into_a_compacted_topics_batches_keeps_their_order(raw):
    """It is done in a thread; what comes behind it on the connection, or in the request, waits."""
    topic = f"compacted-{uuid.uuid4().hex[:8]}"
    configs = [{"name": "cleanup.policy", "value": "compact"}]
    raw.call(19, 5, topics=[{"name": topic, "num_partitions": 2, "replication_factor": 1, "configs": configs}])
    many = [Record(0, NOW, b"k%d" % n, b"v" * 20) for n in range(2000)]
    sent = [build_batch(many, compression="lz4"), build_batch(many), batch(b"small"), build_batch(many)]
    for each in sent:
        raw.send(0, 9, acks=-1, timeout=30_000, topic_data=[
            {"name": topic, "partition_data": [{"index": 0, "records": each}]}])  # fmt: skip
    answers = [raw.receive(0, 9).responses[0].partition_responses[0] for _ in sent]
    assert [(each.error_code, each.base_offset) for each in answers] == [
        (Code.none, 0), (Code.none, 2000), (Code.none, 4000), (Code.none, 4001)]  # fmt: skip
    keyless = build_batch([*many, Record(0, NOW, None, b"v")], compression="gzip")
    unpacked = build_batch([Record(0, NOW, b"k", bytes(40 * 2**20))], compression="zstd")
    parts = [{"index": 0, "records": keyless}, {"index": 1, "records": batch(b"good")}]
    refused, good = raw.call(0, 9, acks=-1, timeout=30_000, topic_data=[
        {"name": topic, "partition_data": parts}]).responses[0].partition_responses  # fmt: skip
    assert (refused.error_code, good.error_code) == (Code.invalid_record, Code.none)
    assert produce(raw, topic, unpacked).error_code is Code.message_too_large


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_what_cannot_be_decoded_is_refused_and_takes_nothing_offline(raw, policy):
    """A codec that nobody has, and garbage under a good CRC: the one who sends it is told, all others go on."""
    topic = f"garbage-{uuid.uuid4().hex[:8]}"
    configs = [{"name": "cleanup.policy", "value": policy}]
    raw.call(19, 5, topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}])
    assert produce(raw, topic, batch(b"x")).error_code is Code.none
    header = decode_header(batch(b"x"))
    refusals = (Code.corrupt_message, Code.invalid_record)
    garbage = assemble_batch(msgspec.structs.replace(header, max_timestamp=NOW + 1), b"\xffgarbage")
    for codec in (5, 6, 7):
        assert produce(raw, topic, with_codec(garbage, codec)).error_code in refusals
    for codec in range(5):  # only a compacted topic looks inside
        code = produce(raw, topic, with_codec(garbage, codec)).error_code
        assert code in refusals if policy == "compact" else code is Code.none
    good = produce(raw, topic, build_batch([Record(0, NOW + 2, b"k", b"y")]))
    assert good.error_code is Code.none
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": NOW + 1}]}]
    found = raw.call(2, 5, replica_id=-1, topics=asked).topics[0].partitions[0]
    assert (found.error_code, found.offset) == (Code.none, good.base_offset)
    assert produce(raw, topic, batch(b"z")).error_code is Code.none
    assert fetched(raw, topic)


def with_codec(sent, codec):
    """The same bytes under another codec's name, with a CRC that fits."""
    changed = bytearray(sent)
    changed[22] = codec
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_take_no_producers_record(raw, name):
    """One such record kept the log from ever starting again."""
    assert produce(raw, name, batch(b"x", key=b"k")).error_code is Code.invalid_topic_exception
    topic_id = raw.call(3, 12, topics=[{"name": name}]).topics[0].topic_id
    refused = produce(raw, None, batch(b"x", key=b"k"), version=13, topic_id=topic_id)
    assert refused.error_code is Code.invalid_topic_exception


def test_a_topic_with_its_own_compression_keeps_the_order_and_the_limit(raw, topic):
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "compression.type", "config_operation": 0, "value": "uncompressed"}]}])  # fmt: skip
    assert produce(raw, topic, batch(bytes(2 * 2**20), compression="zstd")).error_code is Code.message_too_large
    sent = [b"%d" % n + n % 2 * bytes(100_000) for n in range(20)]
    for value in sent:  # every other one takes a while, in a thread
        data = {"name": topic, "partition_data": [{"index": 0, "records": batch(value, compression="zstd")}]}
        raw.send(0, 9, acks=-1, timeout=30_000, topic_data=[data])
    answers = [raw.receive(0, 9).responses[0].partition_responses[0] for _ in sent]
    assert [(each.error_code, each.base_offset) for each in answers] == [(Code.none, n) for n in range(len(sent))]
    for n, value in enumerate(sent):
        kept = fetched(raw, topic, n)
        assert [record.value for record in decode_records(kept[: decode_header(kept).size])] == [value]


def test_a_transactions_first_batch_in_a_partition_is_its_producers_first(raw, topic):
    """The one before may have been refused: it comes again, and would then be out of order for good."""
    name = uuid.uuid4().hex
    producer = raw.init(name)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "transactional": True}
    first, second = batch(b"1", base_sequence=0, **identity), batch(b"2", base_sequence=1, **identity)
    codes = [
        produce(raw, topic, each, transactional_id=name, version=12).error_code for each in (second, first, second)
    ]
    assert codes == [Code.out_of_order_sequence_number, Code.none, Code.none]


def test_who_is_fenced_is_told_that_whatever_its_sequence(raw, topic):
    """A partition that did not know it said that its sequence is out of order, as if it could go on."""
    name = uuid.uuid4().hex
    fenced, _ = raw.init(name), raw.init(name)
    identity = {"producer_id": fenced.producer_id, "producer_epoch": fenced.producer_epoch, "transactional": True}
    for sequence in (0, 1):
        sent = batch(b"late", base_sequence=sequence, **identity)
        code = produce(raw, topic, sent, transactional_id=name, version=12).error_code
        assert code is Code.invalid_producer_epoch
    unknown = batch(b"strange", base_sequence=1, **identity | {"producer_id": 2**40})
    code = produce(raw, topic, unknown, transactional_id=name, version=12).error_code
    assert code is Code.invalid_producer_id_mapping


def test_what_was_looked_into_before_the_topics_settings_changed_is_looked_into_again(tmp_path):
    """A record without a key got into a compacted topic."""

    async def story():
        async with running(tmp_path, SystemClock()) as broker:
            await broker.topics.create("t", 1, {"compression.type": "lz4"})
            topic, client = broker.topics.by_name("t"), await Client.connect(broker)
            (log,) = topic.logs
            looks, prepare = 0, log.prepare

            def prepared_too_soon(records):
                nonlocal looks
                looks += 1
                if looks == 1:
                    compacted = msgspec.structs.replace(log.config, cleanup_policy="compact")
                    asyncio.get_running_loop().call_soon(setattr, log, "config", compacted)
                return prepare(records)

            log.prepare = prepared_too_soon
            many = build_batch([Record(0, NOW, None, b"v" * 20) for _ in range(20_000)])
            data = [{"name": "t", "partition_data": [{"index": 0, "records": many}]}]
            answer = await client.call(0, 9, acks=-1, timeout=30_000, topic_data=data)
            assert answer.responses[0].partition_responses[0].error_code is Code.invalid_record
            assert looks == 2
            client.close()

    asyncio.run(story())


def test_a_request_that_names_far_more_partitions_than_there_are_is_refused(raw, topic):
    """Each is an object until the request is answered: 115 KB of them were 4 MB."""
    nothing = [{"index": 0, "records": None}]

    def codes(count):
        topics = [{"name": topic, "partition_data": nothing * count}]
        answer = raw.call(0, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=topics)
        return {each.error_code for each in answer.responses[0].partition_responses}

    assert codes(1_000) == {Code.invalid_record}
    with pytest.raises(ConnectionError):
        codes(20_000)


def test_where_the_log_starts_is_told_with_what_it_refuses_for_its_contents(raw, topic):
    for _ in range(3):
        produce(raw, topic, batch(b"x"))
    raw.call(21, 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}], timeout=1000)
    producer = raw.init(None).producer_id
    sent = {"producer_id": producer, "producer_epoch": 1}
    assert produce(raw, topic, batch(b"first", **sent, base_sequence=0)).log_start_offset == 2
    raw.call(44, 0, resources=[{"resource_type": 2, "resource_name": topic, "configs": [
        {"name": "cleanup.policy", "config_operation": 0, "value": "compact"},
        {"name": "max.message.bytes", "config_operation": 0, "value": "1000"}]}])  # fmt: skip
    refused = [
        (batch(b"gap", **sent, base_sequence=5), Code.out_of_order_sequence_number, 2),
        (batch(b"old", **sent | {"producer_epoch": 0}, base_sequence=0), Code.invalid_producer_epoch, 2),
        (batch(b"no key", key=None), Code.invalid_record, 2),
        (batch(b"large" * 1000), Code.message_too_large, -1),
        (b"garbage" * 20, Code.corrupt_message, -1),
    ]
    found = [produce(raw, topic, records) for records, *_ in refused]
    assert [(each.error_code, each.log_start_offset) for each in found] == [tuple(each) for _, *each in refused]
    two = [{"index": 0, "records": refused[0][0]}, {"index": 9, "records": refused[0][0]}]
    answer = raw.call(0, 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": two}])
    assert [each.log_start_offset for each in answer.responses[0].partition_responses] == [2, -1]
