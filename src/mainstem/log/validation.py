"""What a topic takes from a producer: checks of a batch's header, and of its records where the topic's settings ask for
that.
"""

from collections.abc import Iterator

import msgspec

from mainstem.log.config import FOREVER, TopicConfig
from mainstem.log.errors import BatchTooLarge, InvalidRecord, InvalidTimestamp
from mainstem.records import BatchHeader, iter_headers
from mainstem.records.batch import set_append_time
from mainstem.records.compression import NAMES as COMPRESSIONS
from mainstem.records.errors import UnpackedTooLarge
from mainstem.records.record import (
    assemble_batch,
    check_deltas,
    decode_record,
    iter_record_spans,
    read_varint,
    record_bytes,
)

_UNPACKED = 32
"""Times `max.message.bytes` that a batch may have unpacked, where the topic has to look inside."""
_MOST_UNPACKED = 67_108_864  # bytes, where a batch may not be larger as it is: a client may set that for its topic
_GROWN = 4  # times `max.message.bytes` that the batches of one append may grow by the topic's compression
_MOST_RECORDS = 1_000_000  # that are looked into at once, which takes a second
_MOST_BATCHES = 8
"""In one append: each costs the loop 20 us, and may be 68 bytes. Kafka takes one."""
_SMALL_BYTES = 1024
_MOST_MS = ((1 << 63) - 1) // 1000  # Spark reads them as microseconds: one beyond that ends every query of the topic
_FEW_RECORDS = 500
_KEYLESS = "a record without a key, the topic is compacted"
_MOST_NAMED = 10_000
"""Wrong records of one batch that the answer lists; a few bytes may unpack to millions."""


def iter_few_headers(batches: bytes | memoryview, where: object) -> Iterator[BatchHeader]:
    """The headers of an append.

    Raises:
        CorruptBatch: cut short, unknown format or bad CRC.
        InvalidRecord: more batches than are taken at once.
    """
    for number, header in enumerate(iter_headers(batches)):
        if number == _MOST_BATCHES:
            raise InvalidRecord(f"{where}: more than {_MOST_BATCHES} batches at once")
        yield header


def check_batch(
    header: BatchHeader,
    batch: bytes | memoryview,
    config: TopicConfig,
    now_ms: int,
    where: object,
    *,
    looked_into: bool = False,
) -> None:
    """Refuse what this topic does not take; `looked_into` says that `check_records` has passed it.

    Raises:
        BatchTooLarge, InvalidRecord, InvalidTimestamp: the message says what was expected.
    """
    if header.size > config.max_message_bytes:
        raise BatchTooLarge(f"{where}: a batch of {header.size} bytes, max.message.bytes is {config.max_message_bytes}")
    if header.is_control:
        raise InvalidRecord(f"{where}: a control batch from a producer")
    if header.base_offset != 0:
        raise InvalidRecord(f"{where}: a batch with base offset {header.base_offset}, expected 0")
    if header.count < 1 or header.count != header.last_offset - header.base_offset + 1:
        raise InvalidRecord(
            f"{where}: a batch of {header.count} records with last offset delta {header.last_offset_delta}"
        )
    if header.compression >= len(COMPRESSIONS):
        raise InvalidRecord(f"{where}: compression codec {header.compression}, the record format defines 0 to 4")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(
                f"{where}: producer {header.producer_id} sent sequence {header.base_sequence},"
                f" epoch {header.producer_epoch}"
            )
    elif header.is_transactional:
        raise InvalidRecord(f"{where}: a transactional batch without a producer id")
    if config.message_timestamp_type == "CreateTime":
        _check_timestamps(header, batch, config, now_ms, where)
    if looks_inside(config) and not looked_into:
        check_records(header, batch, config, now_ms, where)


def _check_timestamps(
    header: BatchHeader, batch: bytes | memoryview, config: TopicConfig, now_ms: int, where: object
) -> None:
    earliest, latest = _times(config, now_ms)
    if header.base_timestamp < -_MOST_MS or header.max_timestamp > _MOST_MS:
        raise InvalidTimestamp(
            f"{where}: timestamps {header.base_timestamp} to {header.max_timestamp} ms, expected what microseconds of 64"
            " bits can say: are these of another unit?"
        )
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidTimestamp(
            f"{where}: timestamps {header.base_timestamp} to {header.max_timestamp}, expected {earliest} to {latest}",
            records=_far_records(header, batch, earliest, latest),
        )


def _far_records(
    header: BatchHeader, batch: bytes | memoryview, earliest: int, latest: int
) -> tuple[tuple[int, str], ...]:
    """Which records are too far from the clock; none of a batch that takes long to look through: all of it is refused.

    Raises:
        CorruptRecords: the batch is not what its header says.
    """
    if header.compression != 0 or header.count > _FEW_RECORDS:
        return ()
    data = record_bytes(header, batch)
    times = [decode_record(header, data, start, end).timestamp for start, end in iter_record_spans(header, data)]
    return tuple(
        (number, _out_of_range(time, earliest, latest))
        for number, time in enumerate(times)
        if time > latest or 0 <= time < earliest
    )


def _out_of_range(time: int, earliest: int, latest: int) -> str:
    return f"timestamp {time}, expected {earliest} to {latest}"


def _times(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms


def _bounds_times(config: TopicConfig) -> bool:
    """A header says the time of the first record and the latest, not the earliest of all."""
    return config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms < FOREVER


def looks_inside(config: TopicConfig) -> bool:
    """Each record is looked at."""
    return config.compacts or _bounds_times(config)


def takes_long(header: BatchHeader, config: TopicConfig) -> bool:
    """It is not for the event loop: there is much to unpack, to pack or to go through, perhaps."""
    if looks_inside(config) and (header.compression != 0 or header.count > _FEW_RECORDS):
        return True  # a kilobyte may unpack to 28 MB
    # A few bytes may unpack to `_UNPACKED` times `max.message.bytes`.
    return _codec(header, config) != header.compression and (header.compression != 0 or header.size > _SMALL_BYTES)


def check_records(
    header: BatchHeader, batch: bytes | memoryview, config: TopicConfig, now_ms: int, where: object
) -> None:
    """A compacted topic keeps the last value per key: a record without a key could never go. Where records may be so
    old and no older, none is.
    """
    data = _unpacked(header, batch, config, where)
    earliest, latest = _times(config, now_ms) if _bounds_times(config) else (-FOREVER, FOREVER)
    keyless, far = [], []
    for number, (start, _) in enumerate(iter_record_spans(header, data)):
        _, position = read_varint(data, start)
        timestamp_delta, position = read_varint(data, position + 1)
        offset_delta, position = read_varint(data, position)
        if offset_delta != number:
            raise InvalidRecord(f"{where}: offset delta {offset_delta} of record {number} of the batch")
        check_deltas(header, timestamp_delta, offset_delta)
        if config.compacts and read_varint(data, position)[0] < 0:
            keyless.append(number)
        time = header.base_timestamp + timestamp_delta
        if time > latest or 0 <= time < earliest:
            far.append((number, _out_of_range(time, earliest, latest)))
    if far:
        raise InvalidTimestamp(
            f"{where}: {len(far)} of its records have timestamps that are not within {earliest} to {latest}",
            records=tuple(far[:_MOST_NAMED]),
        )
    if keyless:
        raise InvalidRecord(
            f"{where}: {len(keyless)} of its records are without a key, the topic is compacted",
            records=tuple((number, _KEYLESS) for number in keyless[:_MOST_NAMED]),
        )


def _unpacked(header: BatchHeader, batch: bytes | memoryview, config: TopicConfig, where: object) -> bytes:
    """The records' section; a few kilobytes that unpack to gigabytes are refused."""
    try:
        return record_bytes(header, batch, limit=_most_unpacked(config))
    except UnpackedTooLarge as error:
        raise BatchTooLarge(f"{where}: {error}; max.message.bytes is {config.max_message_bytes}") from None


def _most_unpacked(config: TopicConfig) -> int:
    most = config.max_message_bytes
    return max(most, min(_UNPACKED * most, _MOST_UNPACKED))


def rewrites(config: TopicConfig) -> bool:
    """The topic keeps batches in a form of its own: with the log's time, or with its own compression."""
    return config.message_timestamp_type == "LogAppendTime" or config.compression_type != "producer"


def _codec(header: BatchHeader, config: TopicConfig) -> int:
    """The compression that the topic keeps the batch with."""
    if config.compression_type == "producer":
        return header.compression
    return 0 if config.compression_type == "uncompressed" else COMPRESSIONS.index(config.compression_type)


def recompress(
    header: BatchHeader, batch: bytes | memoryview, config: TopicConfig, where: object
) -> bytes | memoryview:
    """The batch with the topic's compression.

    Raises:
        BatchTooLarge: it is larger than `max.message.bytes` like this.
        CorruptRecords: it cannot be unpacked.
    """
    codec = _codec(header, config)
    if codec == header.compression:
        return batch
    changed = msgspec.structs.replace(header, attributes=header.attributes & ~0x07 | codec)
    result = assemble_batch(changed, _unpacked(header, batch, config, where))
    if len(result) > config.max_message_bytes:
        raise BatchTooLarge(
            f"{where}: a batch of {len(result)} bytes with compression.type {config.compression_type} (sent with"
            f" {COMPRESSIONS[header.compression]}: {header.size}), max.message.bytes is {config.max_message_bytes}"
        )
    return result


def prepare(batches: bytes | memoryview, config: TopicConfig, now_ms: int, where: object) -> bytes | memoryview:
    """A producer's batches, checked, and with the topic's compression: what may take long (blocking).

    Raises:
        BatchTooLarge, InvalidRecord, InvalidTimestamp: as `check_batch`;
            or together they have grown to more than is held.
        CorruptBatch, CorruptRecords: the bytes are no batch, or cannot be unpacked.
    """
    parts: list[bytes | memoryview] = []
    start = size = count = 0
    for header in iter_few_headers(batches, where):
        batch = memoryview(batches)[start : start + header.size]
        start += header.size
        count += header.count
        if count > _MOST_RECORDS:
            raise BatchTooLarge(f"{where}: more than {_MOST_RECORDS:,} records at once, for a topic that looks inside")
        check_batch(header, batch, config, now_ms, where)
        parts.append(recompress(header, batch, config, where))
        size += len(parts[-1])
        # A client sends one batch; others may send more.
        if size > len(batches) + _GROWN * config.max_message_bytes:
            raise BatchTooLarge(f"{where}: {len(batches)} bytes of batches grow to more than {size}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def rewrite(header: BatchHeader, batch: memoryview, config: TopicConfig, now_ms: int, where: object) -> bytearray:
    """The batch in the topic's form.

    Raises:
        BatchTooLarge, CorruptRecords: as `recompress`.
    """
    result = bytearray(recompress(header, batch, config, where))
    if config.message_timestamp_type == "LogAppendTime":
        set_append_time(result, now_ms)
    return result
