"""What the broker itself has to remember, as facts by key: topics, credentials, access control lists, quotas,
settings of groups.

They are records of a compacted partition, `__mainstem_metadata-0`, in the same log directory as everything else, so
that one promise of durability covers them: a change is durable when it returns.

    key                              value (JSON); null: deleted
    cluster                          {"id": "22 characters, as Kafka's"}
    topic:<name>                     {"id": "uuid", "partitions": n, "config": {name: value}, "internal": bool}
    scram:<mechanism>:<user>         `security.credentials.Credential`; bytes as base64
    acl:<JSON of the entry>          true
    quota:<JSON of the entity>       {name: value}
    group:<group id>                 {name: value}
    broker:<node id, or nothing>     {name: value}

A program that does not know a key leaves it as it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from mainstem.core import Clock, CorruptData, TopicPartition
from mainstem.log import LogDirectory, PartitionLog, TopicConfig
from mainstem.records import Record, build_batch, decode_records, iter_spans

METADATA: Final = TopicPartition("__mainstem_metadata", 0)
_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": "16777216"}


class Facts:
    """The store: `load` reads it, `put` adds to it."""

    def __init__(self, store: PartitionLog, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.found: dict[str, Any] = {}
        """The last fact per key as it was at the start; None where it was deleted not long before."""

    @classmethod
    async def load(cls, directory: LogDirectory, clock: Clock) -> "Facts":
        """Read the metadata partition, which is created where it is missing."""
        settings = TopicConfig.from_kafka(_CONFIG)
        store = directory.partitions.get(METADATA)
        if store is None:
            store = await directory.create_partition(METADATA, uuid4(), settings)
        store.config = settings
        self = cls(store, clock)
        self.found = await _read(store)
        return self

    def below(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Key without `prefix`, and fact, of all that there were at the start."""
        for key, fact in self.found.items():
            if fact is not None and key.startswith(prefix):
                yield key.removeprefix(prefix), fact

    async def put(self, changes: Mapping[str, Any]) -> None:
        """Write facts, all of them or none; None deletes one.

        Raises:
            StorageError: the disk refused.
        """
        now = self._clock.now_ms()
        records = [
            Record(offset, now, key.encode(), None if fact is None else msgspec.json.encode(fact))
            for offset, (key, fact) in enumerate(changes.items())
        ]
        if records:
            await self._store.append(build_batch(records))


async def _read(store: PartitionLog) -> dict[str, Any]:
    store.check_usable()  # one that a start has found damaged seems to be empty
    facts: dict[str, Any] = {}
    offset = store.log_start_offset
    while offset < store.high_watermark:
        found = await store.read(offset, 1 << 20, committed_only=False, at_least_one=True)
        for piece in found.pieces:
            for next_offset, found_here in _facts_of(piece):
                facts |= found_here
                offset = next_offset
        if not found.pieces:  # compaction left nothing up to the end
            break
    return facts


def _facts_of(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Of each whole batch the offset behind it, and its facts; None for what it deletes."""
    for span in iter_spans(data):
        yield (
            span.last_offset + 1,
            {
                (record.key or b"").decode(): None if record.value is None else msgspec.json.decode(record.value)
                for record in decode_records(data[span.position : span.end])
            },
        )


def peek(directory: Path) -> dict[str, Any]:
    """The last fact per key of a log directory that somebody else may have (blocking): nothing is locked or repaired.

    What its files cannot give is left out.
    """
    facts: dict[str, Any] = {}
    for segment in sorted((directory / str(METADATA)).glob("*.log")):
        data = segment.read_bytes()
        with suppress(CorruptData):
            for _, found in _facts_of(data):
                facts |= found
    return {key: fact for key, fact in facts.items() if fact is not None}
