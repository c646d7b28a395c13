"""What a start finds open in the log and of no transactional id: it is aborted, since nobody else could end it."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from mainstem.broker.groups import OFFSETS_TOPIC
from mainstem.broker.transactions.markers import accepted_epoch, append_marker, open_producers
from mainstem.broker.transactions.transaction import Producer
from mainstem.core import TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import AppendResult, PartitionLog
from mainstem.log.errors import StorageError
from mainstem.records import Marker

if TYPE_CHECKING:
    from mainstem.broker.groups import GroupCoordinator

log = get_logger()


class Orphan(NamedTuple):
    """A producer with something open in a partition, and the epochs with which it is aborted."""

    partition_log: PartitionLog
    producer: Producer
    producer_epoch: int
    coordinator_epoch: int


class Orphans:
    """Those that are still to be aborted."""

    def __init__(self) -> None:
        self._left: list[Orphan] = []

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, orphan: Orphan) -> None:
        """One more."""
        self._left.append(orphan)

    def has(self, partition: TopicPartition, producer_id: int) -> bool:
        """True if the producer has something open there that is none of its transaction."""
        return any(
            orphan.partition_log.topic_partition == partition and orphan.producer.producer_id == producer_id
            for orphan in self._left
        )

    async def abort(self, groups: "GroupCoordinator") -> None:
        """A marker for each; those that find no room stay for another try, and hold up nobody else's start."""
        orphans, self._left = self._left, []
        queued: list[tuple[Orphan, asyncio.Future[AppendResult]]] = []
        for orphan in orphans:
            partition_log, producer, epoch, coordinator_epoch = orphan
            if partition_log.error is not None or producer not in open_producers(partition_log):
                continue  # it was deleted, or ended by hand
            partition = partition_log.topic_partition
            try:
                coordinator_epoch = accepted_epoch(coordinator_epoch, partition_log, producer.producer_id)
                marker = append_marker(partition_log, Marker(producer.producer_id, epoch, False, coordinator_epoch))
            except StorageError as error:
                self._stays(orphan, error)
                continue
            log.warning("orphan_transaction_aborted", partition=str(partition), producer_id=producer.producer_id)
            if partition.topic == OFFSETS_TOPIC:
                groups.end_transaction(partition.partition, producer.producer_id, commit=False)
            queued.append((orphan, marker))
        for orphan, marker in queued:
            try:
                await marker
            except StorageError as error:
                self._stays(orphan, error)

    def _stays(self, orphan: Orphan, error: StorageError) -> None:
        self._left.append(orphan)
        facts = {"partition": str(orphan.partition_log.topic_partition), "producer_id": orphan.producer.producer_id}
        log.warning("open_transactions_left", **facts, reason=str(error))
