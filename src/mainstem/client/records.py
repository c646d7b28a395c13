"""Read a topic from its start to its end of now: the committed records, as bytes."""

import time
from collections.abc import Iterator

import msgspec

from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable
from mainstem.client.reader import CommittedReader
from mainstem.client.topics import start_offsets


class RawRecord(msgspec.Struct, frozen=True):
    """One committed record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes


def read_records(connection: Connection, topic: str, *, timeout_seconds: float = 75.0) -> Iterator[RawRecord]:
    """Every committed record that was written before the call, tombstones left out; each partition in order.

    Raises:
        UnknownTopic: there is no such topic.
        RecordsDeleted: retention was faster.
        BrokerUnavailable: nothing came for so long: an open transaction holds the end back, or the broker is away.
    """
    with CommittedReader(connection, topic, start_offsets(connection, topic), deleted="error") as reader:
        deadline = time.monotonic() + timeout_seconds
        for messages in reader:
            if messages:
                deadline = time.monotonic() + timeout_seconds
            for message in messages:
                if message.value() is not None:
                    yield RawRecord(message.partition(), message.offset(), message.key(), message.value())
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{topic}: nothing within {timeout_seconds:.0f} s before the end {reader.missing}"
                    " (partition: offset)"
                )
