"""What the transaction coordinator stores in `__transaction_state`: Kafka's own records, byte for byte.

Key: version int16 (0) │ transactional id: int16 length, UTF-8. Value, version 1 (flexible: lengths are varints, one
more than the length, 0 for null; tagged fields at the end)::

    version int16 │ producer id int64 │ producer epoch int16 │ timeout int32 │ state int8
    │ partitions: count, each: topic string │ partition int32[] │ (no tags)
    │ last update int64 │ start int64 │ tags: 0 previous producer id int64, 1 next producer id int64,
                                              2 client's transaction version int16

A null value is a tombstone: the transactional id has expired. Version 0 has the same fields without tags and with
fixed lengths, and is read too.

https://github.com/apache/kafka/tree/trunk/transaction-coordinator/src/main/resources/common/message
"""

from collections import defaultdict
from typing import Final

from mainstem.broker.fields import CorruptCoordinatorRecord, LaterVersion, Reader, Writer
from mainstem.broker.transactions.transaction import Transaction, TransactionState
from mainstem.core import TopicPartition

KEY_VERSIONS: Final = frozenset({0})
"""Of keys that are known."""

_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = 0, 1, 2


def encode_key(transactional_id: str) -> bytes:
    """The record's key."""
    writer = Writer(0)
    writer.string(transactional_id)
    return writer.done()


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a kind of record we do not know.

    Raises:
        CorruptCoordinatorRecord: the key is cut short.
    """
    reader = Reader(data)
    return reader.required_string() if reader.int16() == 0 else None


def encode_transaction(transaction: Transaction) -> bytes:
    """The state of a transactional id, in version 1."""
    writer = Writer(1, flexible=True)
    writer.int64(transaction.producer_id)
    writer.int16(transaction.producer_epoch)
    writer.int32(transaction.timeout_ms)
    writer.int8(transaction.state)

    def topic(entry: tuple[str, list[int]]) -> None:
        writer.string(entry[0])
        writer.array(entry[1], writer.int32)
        writer.tags()

    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(transaction.partitions):
        topics[partition.topic].append(partition.partition)
    writer.array(None if transaction.state is TransactionState.EMPTY else list(topics.items()), topic)
    writer.int64(transaction.updated_ms)
    writer.int64(transaction.started_ms)
    tags = (
        (_PREVIOUS_PRODUCER_ID, transaction.previous_producer_id, -1, 8),
        (_NEXT_PRODUCER_ID, transaction.next_producer_id, -1, 8),
        (_CLIENT_VERSION, transaction.client_version, 0, 2),
    )
    writer.tags(
        [(tag, value.to_bytes(size, "big", signed=True)) for tag, value, default, size in tags if value != default]
    )
    return writer.done()


def decode_transaction(transactional_id: str, data: bytes) -> Transaction:
    """The state of `transactional_id` in `data`.

    Raises:
        CorruptCoordinatorRecord: an unknown version or state, or cut short.
    """
    reader = Reader(data)
    version = reader.int16()
    if version not in (0, 1):
        kind = LaterVersion if version > 1 else CorruptCoordinatorRecord
        raise kind(f"a transaction of version {version}; versions 0 and 1 are known")
    reader.flexible = version == 1
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, state = reader.int32(), reader.int8()

    def topic() -> list[TopicPartition]:
        name, numbers = reader.required_string(), reader.array(reader.int32) or []
        reader.tags()
        return [TopicPartition(name, number) for number in numbers]

    topics = reader.array(topic) or []
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tags()

    def tagged(tag: int, default: int) -> int:
        return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default

    try:
        known = TransactionState(state)
    except ValueError:
        raise CorruptCoordinatorRecord(f"transactional id {transactional_id}: unknown state {state}") from None
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=known,
        partitions=frozenset(partition for each in topics for partition in each),
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=tagged(_PREVIOUS_PRODUCER_ID, -1),
        next_producer_id=tagged(_NEXT_PRODUCER_ID, -1),
        client_version=tagged(_CLIENT_VERSION, 0),
    )
