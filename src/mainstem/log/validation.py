"""What a topic takes from a producer: checks of a batch's header, and of its keys where the topic is compacted."""

import msgspec

from mainstem.log.config import TopicConfig
from mainstem.log.errors import BatchTooLarge, InvalidRecord, InvalidTimestamp
from mainstem.records import BatchHeader
from mainstem.records.batch import set_append_time
from mainstem.records.compression import NAMES as COMPRESSIONS
from mainstem.records.record import assemble_batch, iter_record_spans, read_varint, record_bytes


def check_batch(
    header: BatchHeader, batch: bytes | memoryview, config: TopicConfig, now_ms: int, where: object
) -> None:
    """Refuse what this topic does not take.

    Raises:
        BatchTooLarge, InvalidRecord, InvalidTimestamp: the message says what was expected.
    """
    if header.size > config.max_message_bytes:
        raise BatchTooLarge(f"{where}: a batch of {header.size} bytes, max.message.bytes is {config.max_message_bytes}")
    if header.is_control:
        raise InvalidRecord(f"{where}: a control batch from a producer")
    if header.count < 1 or header.count != header.last_offset - header.base_offset + 1:
        raise InvalidRecord(
            f"{where}: a batch of {header.count} records with last offset delta {header.last_offset_delta}"
        )
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(
                f"{where}: producer {header.producer_id} sent sequence {header.base_sequence},"
                f" epoch {header.producer_epoch}"
            )
    elif header.is_transactional:
        raise InvalidRecord(f"{where}: a transactional batch without a producer id")
    if config.message_timestamp_type == "CreateTime":
        _check_timestamps(header, config, now_ms, where)
    if config.compacts:
        check_keys(header, batch, where)


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int, where: object) -> None:
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidTimestamp(
            f"{where}: timestamps {header.base_timestamp} to {header.max_timestamp}, expected {earliest} to {latest}"
        )


def check_keys(header: BatchHeader, batch: bytes | memoryview, where: object) -> None:
    """A compacted topic keeps the last value per key: a record without a key could never go."""
    data = record_bytes(header, batch)
    for start, _ in iter_record_spans(header, data):
        _, position = read_varint(data, start)
        _, position = read_varint(data, position + 1)
        _, position = read_varint(data, position)
        if read_varint(data, position)[0] < 0:
            raise InvalidRecord(f"{where}: a record without a key, the topic is compacted")


def rewrites(config: TopicConfig) -> bool:
    """The topic keeps batches in a form of its own: with the log's time, or with its own compression."""
    return config.message_timestamp_type == "LogAppendTime" or config.compression_type != "producer"


def rewrite(header: BatchHeader, batch: memoryview, config: TopicConfig, now_ms: int) -> bytearray:
    """The batch in the topic's form."""
    codec = header.compression
    if config.compression_type == "uncompressed":
        codec = 0
    elif config.compression_type != "producer":
        codec = COMPRESSIONS.index(config.compression_type)
    if codec != header.compression:
        changed = msgspec.structs.replace(header, attributes=header.attributes & ~0x07 | codec)
        result = bytearray(assemble_batch(changed, record_bytes(header, batch)))
    else:
        result = bytearray(batch)
    if config.message_timestamp_type == "LogAppendTime":
        set_append_time(result, now_ms)
    return result
