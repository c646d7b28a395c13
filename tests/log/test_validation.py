import pytest
from crc32c import crc32c

from mainstem.log import BatchTooLarge, InvalidRecord, InvalidTimestamp, TopicConfig
from mainstem.log.validation import check_batch, recompress, rewrite, rewrites, takes_long
from mainstem.records import CorruptRecords, Record, build_batch, build_marker, decode_header, decode_records
from mainstem.records.record import assemble_batch, encode_record
from tests.log.support import batch

NOW = 1_700_000_000_000


def check(data: bytes, **settings) -> None:
    check_batch(decode_header(data), data, TopicConfig(**settings), NOW, "orders-0")


def with_codec(codec: int) -> bytes:
    data = bytearray(batch(b"v"))
    data[22] |= codec
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


def with_base_offset(offset: int) -> bytes:
    """It is not among what the CRC is of."""
    return offset.to_bytes(8, "big") + batch(b"v")[8:]


def test_a_plain_batch_passes():
    check(batch(b"v"))
    check(batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (build_marker(1, 0, True, 0, NOW), "a control batch from a producer"),
        (batch(b"v", producer_id=1, producer_epoch=0), "sent sequence -1, epoch 0"),
        (batch(b"v", producer_id=1, base_sequence=0), "sent sequence 0, epoch -1"),
        (batch(b"v", transactional=True), "without a producer id"),
        (with_base_offset(5), "a batch with base offset 5, expected 0"),
        (with_codec(5), "codec 5, the record format defines 0 to 4"),
        (with_codec(7), "codec 7, "),
    ],
)
def test_what_no_topic_takes(data, message):
    with pytest.raises(InvalidRecord, match=f"orders-0: .*{message}"):
        check(data)


def test_the_header_counts_its_records():
    header = decode_header(batch(b"a", b"b"))
    lying = assemble_batch(
        type(header)(**{f: getattr(header, f) for f in header.__struct_fields__} | {"count": 1}), b""
    )
    with pytest.raises(InvalidRecord, match="a batch of 1 records with last offset delta 1"):
        check(lying)


def test_the_largest_batch():
    data = batch(b"v" * 100)
    check(data, max_message_bytes=len(data))
    with pytest.raises(BatchTooLarge, match=f"a batch of {len(data)} bytes, max.message.bytes is {len(data) - 1}"):
        check(data, max_message_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_compacted_topic_needs_keys(codec):
    data = batch(b"1", b"2", keys=[b"k", None], compression=codec)
    check(data)
    with pytest.raises(InvalidRecord, match="1 of its records are without a key, the topic is compacted") as refused:
        check(data, cleanup_policy="compact")
    assert refused.value.records == ((1, "a record without a key, the topic is compacted"),)
    check(batch(b"1", None, keys=[b"k", b""]), cleanup_policy="compact,delete")


def test_timestamps_far_from_the_clock():
    check(batch(b"v", timestamp=NOW - 10_000), message_timestamp_before_max_ms=10_000)
    check(batch(b"v", timestamp=-1))
    with pytest.raises(InvalidTimestamp, match="expected"):
        check(batch(b"v", timestamp=NOW - 10_001), message_timestamp_before_max_ms=10_000)
    with pytest.raises(InvalidTimestamp, match="expected"):
        check(batch(b"v", timestamp=NOW + 5_001), message_timestamp_after_max_ms=5_000)
    check(batch(b"v", timestamp=1), message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_each_record_is_looked_at_where_they_may_be_so_old_and_no_older(codec):
    """A batch says the time of its first record and the latest."""
    times = [NOW, NOW - 10_001, -1, NOW + 1, NOW - 10_000]
    old = build_batch([Record(0, time, None, b"v") for time in times], compression=codec)
    check(old)
    check(old, message_timestamp_before_max_ms=10_001)
    check(old, message_timestamp_before_max_ms=10_000, message_timestamp_type="LogAppendTime")
    with pytest.raises(InvalidTimestamp, match="1 of its records have timestamps that are not within") as refused:
        check(old, message_timestamp_before_max_ms=10_000)
    assert [number for number, _ in refused.value.records] == [1]


def test_the_records_that_are_wrong_are_named_where_they_are_few():
    times = [NOW, NOW + 5_001, NOW - 9, NOW + 6_000]
    far = [Record(0, time, None, b"v") for time in times]
    with pytest.raises(InvalidTimestamp) as refused:
        check(build_batch(far), message_timestamp_after_max_ms=5_000)
    assert [number for number, _ in refused.value.records] == [1, 3]
    with pytest.raises(InvalidTimestamp) as refused:
        check(build_batch(far * 200), message_timestamp_after_max_ms=5_000)
    assert refused.value.records == ()
    with pytest.raises(InvalidRecord) as keyless:
        check(build_batch([Record(0, NOW, None, b"")] * 20_000), cleanup_policy="compact")
    assert len(keyless.value.records) == 10_000


@pytest.mark.parametrize("sign", [1, -1])
def test_timestamps_that_microseconds_cannot_say(sign):
    """Each query of Spark's over the topic ended, for ever."""
    most = (2**63 - 1) // 1000
    check(batch(b"v", timestamp=sign * most), message_timestamp_after_max_ms=2**63 - 1)
    with pytest.raises(InvalidTimestamp, match="of another unit"):
        check(batch(b"v", timestamp=sign * (most + 1)), message_timestamp_after_max_ms=2**63 - 1)


@pytest.mark.parametrize(
    ("settings", "codec", "append_time"),
    [
        ({"compression_type": "zstd"}, 4, False),
        ({"compression_type": "uncompressed"}, 0, False),
        ({"message_timestamp_type": "LogAppendTime"}, 3, True),
        ({"message_timestamp_type": "LogAppendTime", "compression_type": "gzip"}, 1, True),
    ],
)
def test_a_topic_with_a_form_of_its_own(settings, codec, append_time):
    config = TopicConfig(**settings)
    data = batch(b"one", b"two", compression="lz4", producer_id=4, producer_epoch=1, base_sequence=2)
    assert rewrites(config)
    found = bytes(rewrite(decode_header(data), memoryview(data), config, NOW + 1, "orders-0"))
    header = decode_header(found)
    assert (header.compression, header.has_append_time, header.base_sequence) == (codec, append_time, 2)
    assert [r.value for r in decode_records(found)] == [b"one", b"two"]
    assert decode_records(found)[0].timestamp == (NOW + 1 if append_time else NOW)


def test_the_usual_topic_keeps_the_producers_bytes():
    assert not rewrites(TopicConfig())


def bomb() -> bytes:
    """A batch of two kilobytes whose one record unpacks to 40 MB."""
    value = bytes(40 * 2**20)
    return batch(value, compression="zstd")


def test_a_small_batch_that_unpacks_to_much_is_refused_where_the_topic_looks_inside():
    """Nine kilobytes of zstd became 300 MB, on the event loop."""
    data = bomb()
    assert len(data) < 4096
    check(data)
    with pytest.raises(BatchTooLarge, match=r"orders-0: zstd: .* unpack to more than 33554816; max.message.bytes is"):
        check(data, cleanup_policy="compact")
    with pytest.raises(BatchTooLarge, match="orders-0: zstd"):
        rewrite(decode_header(data), memoryview(data), TopicConfig(compression_type="lz4"), NOW, "orders-0")
    check(data, cleanup_policy="compact", max_message_bytes=2 * 2**20)


def test_a_batch_that_grows_above_the_limit_by_the_topics_compression_is_refused():
    """The size was looked at before the rewriting only: 32 times `max.message.bytes` got in."""
    data = batch(bytes(2 * 2**20), compression="zstd")
    check(data)
    config = TopicConfig(compression_type="uncompressed")
    with pytest.raises(BatchTooLarge, match=r"orders-0: a batch of 20\d+ bytes .* max.message.bytes is 1048588"):
        recompress(decode_header(data), data, config, "orders-0")
    larger = TopicConfig(compression_type="uncompressed", max_message_bytes=3 * 2**20)
    assert decode_header(recompress(decode_header(data), data, larger, "orders-0")).compression == 0


@pytest.mark.parametrize(
    ("compression", "settings", "long"),
    [
        ("none", {}, False),
        ("zstd", {}, False),
        ("zstd", {"compression_type": "zstd"}, False),
        ("zstd", {"compression_type": "lz4"}, True),
        ("none", {"compression_type": "lz4"}, True),
        ("none", {"message_timestamp_type": "LogAppendTime"}, False),
        ("zstd", {"cleanup_policy": "compact"}, True),  # a few bytes, which may be many
        ("none", {"cleanup_policy": "compact"}, False),  # one key
        ("zstd", {"message_timestamp_before_max_ms": 9}, True),
        ("none", {"message_timestamp_before_max_ms": 9}, False),
    ],
)
def test_what_is_not_for_the_event_loop(compression, settings, long):
    data = batch(b"v" * 2_000, compression=compression)
    assert takes_long(decode_header(data), TopicConfig(**settings)) is long


@pytest.mark.parametrize(("timestamp_delta", "offset_delta"), [(0, 1), (0, -3), (0, 5000), (2**63 - 1, 0)])
def test_a_compacted_topic_takes_records_that_lie_in_their_batch_only(timestamp_delta, offset_delta):
    """It could not be compacted any more."""
    record = encode_record(Record(0, 0, b"k", b"v"), timestamp_delta, offset_delta)
    data = assemble_batch(decode_header(batch(b"v")), record)
    with pytest.raises((InvalidRecord, CorruptRecords)):
        check(data, cleanup_policy="compact")
