"""Records of groups and their offsets in `__consumer_offsets`: stored, and found again by a start.

A commit inside a transaction is a transactional batch of the producer. The marker that ends the transaction there makes
it visible or drops it, like any record.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from mainstem.broker.groups.errors import CoordinatorUnavailable, RecordTooLarge
from mainstem.broker.groups.membership import Entry
from mainstem.broker.groups.records import KEY_VERSIONS, Key, encode_key, encode_value
from mainstem.broker.placement import Stored, drop_misplaced, placing
from mainstem.broker.replay import replay
from mainstem.broker.state_topic import StateTopic
from mainstem.core import Clock
from mainstem.log import BatchTooLarge, PartitionLog
from mainstem.records import Record, build_batch
from mainstem.records.batch import HEADER, MAX_SEQUENCE

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",  # all but the last are compacted, so this is what a start reads at most in vain
    "max.message.bytes": "16777216",  # a group's record holds every member's subscription and assignment
}

_BESIDE_THE_KEY: Final = 19
"""Bytes of a tombstone at most: lengths of the record and of the key, offset, and five fields of one byte each."""


class Undecided(msgspec.Struct, frozen=True):
    """Records of a transaction that is open: its marker says what becomes of them."""

    number: int
    """Of the partition that has them, and is to get the marker."""
    producer_id: int
    records: Mapping[bytes, Stored]
    """By key: the last one."""


class GroupStorage(StateTopic):
    """The partitions of `__consumer_offsets`."""

    def __init__(self, logs: Sequence[PartitionLog], clock: Clock) -> None:
        super().__init__(logs, CoordinatorUnavailable)
        self._clock = clock

    def store(
        self,
        group_id: str,
        entries: Iterable[Entry],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> "asyncio.Future[int]":
        """Append records of one group; the future gives the first one's offset when they are durable.

        It fails with CoordinatorUnavailable if they cannot be stored, with RecordTooLarge if they never can.

        Raises:
            InvalidProducerEpoch: a newer producer has written.
        """
        now = self._clock.now_ms()
        records = [
            Record(0, now, encode_key(key), None if value is None else encode_value(value)) for key, value in entries
        ]
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1 if producer_id < 0 else self._next_sequence(group_id, producer_id, producer_epoch),
            transactional=producer_id >= 0,
        )
        return self._append(group_id, batch)

    def remove(
        self, group_id: str, keys: Iterable[Key], removed: Callable[[Sequence[Key], int], None]
    ) -> "asyncio.Future[int]":
        """Append tombstones, all in this turn of the loop, in as many batches as they need; done when they are durable.

        `removed` is called with the keys of each batch that is durable, and the offset of the first; it is called for
        those that could be queued also where the future fails, as of `store`, because the others could not.
        """
        now = self._clock.now_ms()
        stored: asyncio.Future[int] = self._loop.create_future()
        stored.set_result(-1)
        for piece in self._pieces(group_id, keys):
            stored = self._append(group_id, build_batch([Record(0, now, data, None) for _, data in piece]))
            if stored.done():  # it was refused
                break
            stored.add_done_callback(partial(_tell, removed, [key for key, _ in piece]))
        return stored  # a partition's batches become durable in their order

    def _pieces(self, group_id: str, keys: Iterable[Key]) -> Iterator[list[tuple[Key, bytes]]]:
        """Keys and their bytes, as many at a time as a batch of tombstones takes."""
        most = self.logs[self.number(group_id)].config.max_message_bytes
        piece: list[tuple[Key, bytes]] = []
        size = HEADER.size
        for key in keys:
            data = encode_key(key)
            needs = len(data) + _BESIDE_THE_KEY
            if piece and size + needs > most:
                yield piece
                piece, size = [], HEADER.size
            piece.append((key, data))
            size += needs
        if piece:
            yield piece

    def _append(self, group_id: str, batch: bytes) -> "asyncio.Future[int]":
        try:
            return self.append(group_id, batch)
        except CoordinatorUnavailable as error:
            return self._refused(error)
        except BatchTooLarge as error:
            return self._refused(RecordTooLarge(group_id, error))

    def _next_sequence(self, group_id: str, producer_id: int, producer_epoch: int) -> int:
        """The log checks sequences of every producer, so commits inside a transaction have them too.

        It remembers them as well: also of what is queued, and as long as there is something to check.
        """
        known = self.logs[self.number(group_id)].producer(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            return 0
        return 0 if known.last_sequence == MAX_SEQUENCE else known.last_sequence + 1

    def _refused(self, error: Exception) -> "asyncio.Future[int]":
        refused: asyncio.Future[int] = self._loop.create_future()
        refused.set_exception(error)
        return refused

    # --- the start ----------------------------------------------------------------------------------------------------

    async def find(self) -> tuple[dict[bytes, Stored], list[Undecided]]:
        """The last record of each key, and those in transactions that are open.

        What belongs to another partition than it lies in is left out (`placement`).

        Raises:
            StorageError: the machine is short of something.
        """
        read = await self.read(read_partition, event="groups_not_read")
        place = placing(len(self.logs), KEY_VERSIONS)
        latest: dict[bytes, Stored] = {}
        undecided: list[Undecided] = []
        for number, (own, pending) in read.items():
            drop_misplaced(self.logs[number].topic_partition, place, own, *pending.values())
            latest |= own
            undecided += [Undecided(number, producer_id, records) for producer_id, records in pending.items()]
        return latest, undecided


async def read_partition(partition_log: PartitionLog) -> tuple[dict[bytes, Stored], dict[int, dict[bytes, Stored]]]:
    """The last record of each key; and, by producer, those in transactions that are open.

    Raises:
        StorageError: the partition is damaged, or the machine is short of something.
    """
    latest: dict[bytes, Stored] = {}
    pending: dict[int, dict[bytes, Stored]] = {}
    writers: dict[bytes, set[int]] = {}  # the producers in whose open transaction the key may be
    async for header, marker, records in replay(partition_log):
        if marker is not None:
            ended = pending.pop(marker.producer_id, {})
            for key in ended:
                writers[key].discard(marker.producer_id)
            _keep_later(latest, ended if marker.commit else {})
            continue
        is_plain = header.producer_id < 0
        into = latest if is_plain else pending.setdefault(header.producer_id, {})
        for record in records:
            key = record.key or b""
            into[key] = (record.value, record.offset, partition_log.topic_partition)
            if not is_plain:
                writers.setdefault(key, set()).add(header.producer_id)
            elif record.value is None:  # what is deleted does not come with the end of a transaction
                for producer_id in writers.pop(key, ()):
                    del pending[producer_id][key]
    return latest, pending


def _keep_later(latest: dict[bytes, Stored], ended: Mapping[bytes, Stored]) -> None:
    """Of a committed transaction's records and the plain ones, the later one counts."""
    for key, stored in ended.items():
        if key not in latest or latest[key][1] < stored[1]:
            latest[key] = stored


def _tell(removed: Callable[[Sequence[Key], int], None], keys: Sequence[Key], stored: "asyncio.Future[int]") -> None:
    if not stored.cancelled() and stored.exception() is None:
        removed(keys, stored.result())
