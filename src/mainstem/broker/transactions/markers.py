"""The batch that ends a producer's transaction in a partition, and what the partition knows of open ones."""

import asyncio

from mainstem.broker.transactions.transaction import Producer
from mainstem.log import AppendResult, PartitionLog
from mainstem.records import Marker


def accepted_epoch(coordinator_epoch: int, partition_log: PartitionLog, producer_id: int) -> int:
    """The coordinator epoch of a marker that the partition takes: what it remembers of the producer, if that is higher.

    It fences a coordinator that was replaced by another, and here there is one. A higher one is left by a marker by
    hand, and where the transactional id was kept in a partition of `__transaction_state` that a repair has cut.
    """
    before = partition_log.producer(producer_id)
    return coordinator_epoch if before is None else max(coordinator_epoch, before.coordinator_epoch)


def append_marker(partition_log: PartitionLog, marker: Marker) -> "asyncio.Future[AppendResult]":
    """Queue the marker; done when it is durable.

    Raises:
        InvalidProducerEpoch, CoordinatorFenced, StorageError: nothing is queued.
    """
    return partition_log.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
    )


def open_producers(partition_log: PartitionLog) -> list[Producer]:
    """Each that has a transaction open in the partition."""
    if not partition_log.open_transactions:
        return []
    return [
        Producer(producer.producer_id, producer.producer_epoch)
        for producer in partition_log.producers()
        if producer.transaction_first_offset >= 0
    ]
