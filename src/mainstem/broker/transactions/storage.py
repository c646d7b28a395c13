"""Records of transactional ids in `__transaction_state`: stored, and found again by a start."""

import asyncio
from collections.abc import Sequence
from typing import Final

from mainstem.broker.placement import Stored, drop_misplaced, placing
from mainstem.broker.replay import replay, report_unreadable
from mainstem.broker.state_topic import StateTopic
from mainstem.broker.transactions import producer_ids
from mainstem.broker.transactions.errors import CoordinatorUnavailable
from mainstem.broker.transactions.records import (
    KEY_VERSIONS,
    decode_key,
    decode_transaction,
    encode_key,
    encode_transaction,
)
from mainstem.broker.transactions.transaction import Transaction
from mainstem.core import Clock, CorruptData
from mainstem.log import PartitionLog
from mainstem.records import Record, build_batch

STATE_TOPIC: Final = "__transaction_state"
STATE_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "4194304",  # all but the last are compacted, so this is what a start reads at most in vain
    "max.message.bytes": "16777216",  # a transaction's record names every partition of it
}

_PLACE_OF_IDS: Final = 0
"""The partition that keeps which producer ids are reserved."""


class TransactionStorage(StateTopic):
    """The partitions of `__transaction_state`."""

    def __init__(self, logs: Sequence[PartitionLog], clock: Clock) -> None:
        super().__init__(logs, CoordinatorUnavailable)
        self._clock = clock

    def coordinator_epoch(self, transactional_id: str) -> int:
        """The epoch of whoever ends transactions of this id."""
        return self.logs[self.number(transactional_id)].leader_epoch

    @property
    def highest_epoch(self) -> int:
        """Of the coordinators of all ids."""
        return max(each.leader_epoch for each in self.logs)

    def store(self, current: Transaction) -> "asyncio.Future[int]":
        """Queue the record; done when it is durable.

        Raises:
            CoordinatorUnavailable: the log takes nothing; the future may fail with it, too.
        """
        return self._store(current.transactional_id, encode_key(current.transactional_id), encode_transaction(current))

    def forget(self, transactional_id: str) -> "asyncio.Future[int]":
        """The same with the tombstone of a transactional id."""
        return self._store(transactional_id, encode_key(transactional_id), None)

    def reserve_ids(self, end: int) -> "asyncio.Future[int]":
        """The same with the word that producer ids below `end` may have been given out."""
        return self._store("", producer_ids.KEY, producer_ids.encode_reserved(end), number=_PLACE_OF_IDS)

    def _store(
        self, transactional_id: str, key: bytes, value: bytes | None, *, number: int | None = None
    ) -> "asyncio.Future[int]":
        batch = build_batch([Record(0, self._clock.now_ms(), key, value)])
        return self.append(transactional_id, batch, number=number)

    async def find(self) -> tuple[dict[str, Transaction], int]:
        """Every transactional id, and the first producer id that is not reserved (-1: that could not be read).

        What belongs to another partition than it lies in is left out (`placement`).

        Raises:
            StorageError: the machine is short of something.
        """
        read = await self.read(_read, event="transactions_not_read")
        by_name = placing(len(self.logs), KEY_VERSIONS)

        def place(key: bytes) -> int | None:
            return _PLACE_OF_IDS if key == producer_ids.KEY else by_name(key)

        latest: dict[bytes, Stored] = {}
        for number, own in read.items():
            drop_misplaced(self.logs[number].topic_partition, place, own)
            latest |= own
        reserved = 0
        found: dict[str, Transaction] = {}
        for key, (value, offset, partition) in latest.items():
            if value is None:
                continue
            try:
                if key == producer_ids.KEY:
                    reserved = producer_ids.decode_reserved(value)
                elif (transactional_id := decode_key(key)) is not None:
                    found[transactional_id] = decode_transaction(transactional_id, value)
            except CorruptData as error:
                if key == producer_ids.KEY:
                    reserved = -1
                hint = "a transactional id is not known: what it had open is aborted"
                report_unreadable(partition, offset, error, hint=hint)
        return found, reserved


async def _read(partition_log: PartitionLog) -> dict[bytes, Stored]:
    """The last record of each key.

    Raises:
        StorageError: the partition is damaged, or the machine is short of something.
    """
    latest: dict[bytes, Stored] = {}
    async for _, _, records in replay(partition_log):
        for record in records:
            latest[record.key or b""] = (record.value, record.offset, partition_log.topic_partition)
    return latest
