"""In which partition a coordinator's topic keeps what belongs to a name.

Kafka takes the absolute value of Java's `String.hashCode` modulo the number of partitions; so Kafka finds on a copy of
these partitions what they keep. A record that lies elsewhere came there by hand. Nobody asks for it there: it is left
alone, and a start says so.
"""

from collections.abc import Callable, Container, MutableMapping
from typing import TypeAlias

from mainstem.core import TopicPartition
from mainstem.core.logging import get_logger

Stored: TypeAlias = tuple[bytes | None, int, TopicPartition]
"""A record's value (None: a tombstone), its offset and where it is."""

log = get_logger()


def place_of(name: str, partitions: int) -> int:
    """The partition that keeps what belongs to a group, a transactional id or a share partition."""
    return java_hash(name) % partitions


def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`; 0 where it has none."""
    value = 0
    data = text.encode("utf-16-be")
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0
    return value if value < 0x80000000 else 0x100000000 - value


def placing(partitions: int, versions: Container[int]) -> Callable[[bytes], int | None]:
    """Tells where a record's key belongs by the name that it begins with (int16 version, int16 length, UTF-8); None:
    it is of another version, or not readable, and belongs where it is.
    """
    known: dict[bytes, int | None] = {}

    def place(key: bytes) -> int | None:
        end = 4 + int.from_bytes(key[2:4], "big")
        if int.from_bytes(key[:2], "big") not in versions or len(key) < end:
            return None
        name = key[4:end]
        if name not in known:
            try:
                known[name] = place_of(name.decode(), partitions)
            except UnicodeDecodeError:
                known[name] = None
        return known[name]

    return place


def drop_misplaced(
    partition: TopicPartition, place: Callable[[bytes], int | None], *found: MutableMapping[bytes, Stored]
) -> None:
    """Take out of what was `found` in a partition, by key, what belongs elsewhere."""
    misplaced = 0
    for each in found:
        for key in [key for key in each if place(key) not in (None, partition.partition)]:
            del each[key]
            misplaced += 1
    report_misplaced(partition, misplaced)


def report_misplaced(partition: TopicPartition, records: int) -> None:
    """A start has found so many records in a partition that belong elsewhere: one line, where there are any."""
    if records:
        hint = "they are left out: what they name is read from, and written to, another partition of the topic"
        log.warning("coordinator_records_misplaced", partition=str(partition), records=records, hint=hint)
