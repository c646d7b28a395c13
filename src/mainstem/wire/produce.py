"""Produce, the hot path: decoded and encoded by hand, beside kio; a test holds both to the same bytes.

    request 3-13    transactional id | acks | timeout | [topic: name (13: id) | [partition: index | records | tags]
                     | tags] | tags
    answer  3-13    [topic: name (13: id) | [partition: index | code | base offset | append time | 5: log start offset
                     | 8: [record errors] | 8: message | 9: tags] | tags] | throttle time | 9: tags

From version 9 on lengths are compact and structs end in tags. Records stay where they are: a view into the frame.
"""

from struct import Struct
from struct import error as StructError
from typing import Final

import msgspec

from mainstem.wire.errors import Code, MalformedFrame
from mainstem.wire.fields import INT16, INT32
from mainstem.wire.frames import MOST_TEXT, read_varint, skip_tags
from mainstem.wire.reading import MOST_ITEMS
from mainstem.wire.writing import cut_message, write_length, write_varint

API_KEY: Final = 0
FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_IDS: Final = 13

_ACKS_TIMEOUT: Final = Struct(">hi")
_RESULT_3: Final = Struct(">ihqq")
_RESULT_5: Final = Struct(">ihqqq")
_ONE_PARTITION: Final = Struct(">BhiB16sBi")  # version 13, up to the records: no transactional id, 1 topic, 1 partition
_NO_TAGS_TO_THE_END: Final = b"\0\0\0"  # of the partition, the topic and the request
_ONE_RESULT: Final = Struct(">B16sBihqqq9s")  # version 13, the answer to that: up to the errors, message, tags, ...
_ONE_RESULT_END: Final = b"\x01\0\0\0" + bytes(5)  # no record errors, no message, tags, tags; throttle time 0, tags


class PartitionRecords(msgspec.Struct, gc=False):
    """What is appended to one partition; `records` is a writable view, or None where the client sent null."""

    index: int
    records: memoryview | None


class TopicRecords(msgspec.Struct):
    """The partitions of one topic; it is named by `name`, or by `topic_id` from version 13 on."""

    name: str
    topic_id: bytes
    """The sixteen bytes of the id; empty where the topic is named."""
    partitions: list[PartitionRecords]


class ProduceRequest(msgspec.Struct):
    """A produce request of any version."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicRecords]


class PartitionResult(msgspec.Struct, gc=False):
    """The outcome of one partition."""

    index: int
    code: int = Code.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    records: tuple[tuple[int, str], ...] = ()
    """The records that are wrong: number in the batch, and why."""


def decode(version: int, frame: bytearray, position: int) -> ProduceRequest:
    """The request whose body starts at byte `position`; its records are views into `frame`.

    Raises:
        MalformedFrame: the body is not what this version says.
    """
    if version >= FIRST_WITH_TOPIC_IDS and (one := _decode_one_partition(frame, position)) is not None:
        return one
    try:
        request, _ = (_decode_flexible if version >= FIRST_FLEXIBLE else _decode_plain)(version, frame, position)
    except (StructError, UnicodeDecodeError, IndexError) as error:
        raise MalformedFrame(f"produce version {version}: {error}") from None
    return request


def _decode_one_partition(frame: bytearray, position: int) -> ProduceRequest | None:
    """What nearly every request is: one partition, no transaction. None if it is something else."""
    if len(frame) - position < _ONE_PARTITION.size + 5:
        return None
    no_id, acks, timeout, topics, topic_id, partitions, index = _ONE_PARTITION.unpack_from(frame, position)
    if no_id != 0 or topics != 2 or partitions != 2:
        return None
    size, start = read_varint(frame, position + _ONE_PARTITION.size)
    end = start + size - 1
    if size == 0 or frame[end:] != _NO_TAGS_TO_THE_END:
        return None
    records = PartitionRecords(index, memoryview(frame)[start:end])
    return ProduceRequest(None, acks, timeout, [TopicRecords("", topic_id, [records])])


def _decode_flexible(version: int, frame: bytearray, position: int) -> tuple[ProduceRequest, int]:
    view = memoryview(frame)
    transactional_id, position = _compact_string(frame, position)
    acks, timeout = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_varint(frame, position + 6)
    items = _spend(0, topic_count - 1, position)
    topics = []
    for _ in range(topic_count - 1):
        name: str | None = ""
        topic_id = b""
        if version >= FIRST_WITH_TOPIC_IDS:
            topic_id = bytes(_slice(view, position, 16))
            position += 16
        else:
            name, position = _compact_string(frame, position)
        partition_count, position = read_varint(frame, position)
        items = _spend(items, partition_count - 1, position)
        partitions = []
        for _ in range(partition_count - 1):
            (index,) = INT32.unpack_from(frame, position)
            size, position = read_varint(frame, position + 4)
            records = None
            if size > 0:
                records = _slice(view, position, size - 1)
                position += size - 1
            position = skip_tags(frame, position)
            partitions.append(PartitionRecords(index, records))
        position = skip_tags(frame, position)
        topics.append(TopicRecords(_required(name), topic_id, partitions))
    return ProduceRequest(transactional_id, acks, timeout, topics), skip_tags(frame, position)


def _decode_plain(version: int, frame: bytearray, position: int) -> tuple[ProduceRequest, int]:
    view = memoryview(frame)
    transactional_id, position = _string(frame, position)
    acks, timeout = _ACKS_TIMEOUT.unpack_from(frame, position)
    (topic_count,) = INT32.unpack_from(frame, position + 6)
    position += 10
    items = _spend(0, topic_count, position)
    topics = []
    for _ in range(topic_count):
        name, position = _string(frame, position)
        (partition_count,) = INT32.unpack_from(frame, position)
        position += 4
        items = _spend(items, partition_count, position)
        partitions = []
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(frame, position)
            (size,) = INT32.unpack_from(frame, position + 4)
            position += 8
            records = None
            if size >= 0:
                records = _slice(view, position, size)
                position += size
            partitions.append(PartitionRecords(index, records))
        topics.append(TopicRecords(_required(name), b"", partitions))
    return ProduceRequest(transactional_id, acks, timeout, topics), position


def _spend(spent: int, items: int, position: int) -> int:
    if items < 0:
        raise MalformedFrame(f"byte {position}: null where an array is required")
    if spent + items > MOST_ITEMS:
        raise MalformedFrame(f"byte {position}: more than {MOST_ITEMS} items in one request")
    return spent + items


def _slice(data: "memoryview | bytearray", position: int, size: int) -> memoryview:
    if position + size > len(data):
        raise MalformedFrame(f"byte {position}: {size} bytes announced, {len(data) - position} are left")
    return memoryview(data)[position : position + size]


def _compact_string(frame: bytearray, position: int) -> tuple[str | None, int]:
    size, position = read_varint(frame, position)
    if size == 0:
        return None, position
    if size - 1 > MOST_TEXT:
        raise MalformedFrame(f"byte {position}: a string of {size - 1} bytes, expected {MOST_TEXT} at most")
    return str(_slice(frame, position, size - 1), "utf-8"), position + size - 1


def _string(frame: bytearray, position: int) -> tuple[str | None, int]:
    (size,) = INT16.unpack_from(frame, position)
    if size < 0:
        return None, position + 2
    return str(_slice(frame, position + 2, size), "utf-8"), position + 2 + size


def _required(name: str | None) -> str:
    if name is None:
        raise MalformedFrame("a topic's name must not be null")
    return name


def encode(version: int, results: list[tuple[TopicRecords, list[PartitionResult]]]) -> bytearray:
    """The body of the answer."""
    if version >= FIRST_WITH_TOPIC_IDS and len(results) == 1 and len(results[0][1]) == 1:
        (result,) = results[0][1]
        if result.message is None and not result.records:
            return bytearray(
                _ONE_RESULT.pack(
                    2,
                    results[0][0].topic_id,
                    2,
                    result.index,
                    result.code,
                    result.base_offset,
                    result.log_append_time_ms,
                    result.log_start_offset,
                    _ONE_RESULT_END,
                )
            )
    flexible = version >= FIRST_FLEXIBLE
    buffer = bytearray()
    write_length(buffer, len(results), flexible)
    for topic, partitions in results:
        if version >= FIRST_WITH_TOPIC_IDS:
            buffer += topic.topic_id
        else:
            _text(buffer, topic.name, flexible)
        write_length(buffer, len(partitions), flexible)
        for result in partitions:
            if version < 5:
                buffer += _RESULT_3.pack(result.index, result.code, result.base_offset, result.log_append_time_ms)
                continue
            buffer += _RESULT_5.pack(
                result.index, result.code, result.base_offset, result.log_append_time_ms, result.log_start_offset
            )
            if version >= 8:
                write_length(buffer, len(result.records), flexible)
                for number, why in result.records:
                    buffer += INT32.pack(number)
                    _text(buffer, cut_message(why), flexible)
                    if flexible:
                        buffer.append(0)
                _text(buffer, cut_message(result.message), flexible)
            if flexible:
                buffer.append(0)
        if flexible:
            buffer.append(0)
    buffer += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # throttle time, tags
    return buffer


def set_throttle_ms(answer: bytearray, version: int, milliseconds: int) -> None:
    """Write how long the client has to wait into the body of an answer: it stands at its end."""
    INT32.pack_into(answer, len(answer) - (5 if version >= FIRST_FLEXIBLE else 4), milliseconds)


def _text(buffer: bytearray, text: str | None, flexible: bool) -> None:
    if text is None:
        buffer += b"\0" if flexible else b"\xff\xff"
        return
    data = text.encode()
    if flexible:
        write_varint(buffer, len(data) + 1)
    else:
        buffer += INT16.pack(len(data))
    buffer += data
