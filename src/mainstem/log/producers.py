"""What a partition remembers of each producer: its epoch, its last five batches, its open transaction.

No I/O. An entry is immutable, so undoing an append that failed is putting the old entry back.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from mainstem.log.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from mainstem.log.index import AbortedTransaction
from mainstem.records import BatchHeader, Marker
from mainstem.records.batch import MAX_SEQUENCE

Verify = Callable[[BatchHeader], None]
"""Raises where a transactional batch is to be refused."""

REMEMBERED_BATCHES = 5  # Kafka's limit of produce requests in flight per idempotent producer


class AppendedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that was appended: enough to answer a retry of it."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One producer's state in one partition."""

    producer_id: int
    producer_epoch: int
    batches: tuple[AppendedBatch, ...] = ()
    """The last five, oldest first; none after its epoch was raised by a marker."""
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1
    """Where its open transaction begins; -1 without one."""
    last_timestamp: int = -1
    last_append_ms: int = -1
    """When its last batch or marker was appended, by the log's clock:
    the producer's own timestamps may be of any age.
    """

    @property
    def last_sequence(self) -> int:
        """Of its last batch; -1 where none is remembered."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """Of its last batch, included; -1 where none is remembered."""
        return self.batches[-1].last_offset if self.batches else -1


def find_duplicate(producer: Producer | None, header: BatchHeader) -> AppendedBatch | None:
    """The batch that `header` repeats, if it is one of the producer's last five."""
    if producer is None or producer.producer_epoch != header.producer_epoch:
        return None
    first, last = header.base_sequence, header.last_sequence
    for batch in producer.batches:
        if batch.base_sequence == first and batch.last_sequence == last:
            return batch
    return None


def after_batch(
    producer: Producer | None, header: BatchHeader, base_offset: int, now_ms: int, where: object
) -> Producer:
    """The producer's state once the batch is appended at `base_offset`.

    Raises:
        InvalidProducerEpoch: the batch is of an older epoch.
        OutOfOrderSequence: a batch is missing before it.
        InvalidTransactionState: it is outside the transaction that the producer has open.
    """
    if producer is not None:
        _check_epoch(producer, header.producer_epoch, where)
        _check_sequence(producer, header, where)
        if producer.transaction_first_offset >= 0 and not header.is_transactional:
            raise InvalidTransactionState(
                f"{where}: producer {header.producer_id} has a transaction open since offset"
                f" {producer.transaction_first_offset} and sent a batch outside it"
            )
    return _appended(producer, header, base_offset, now_ms)


def replay_batch(producer: Producer | None, header: BatchHeader, append_ms: int) -> Producer:
    """The producer's state after a batch that the log holds: nothing is refused.

    One that does not go on from the last was taken when the producer had expired: what had been remembered until then
    must not answer for batches that come.
    """
    same_epoch = producer is not None and producer.producer_epoch == header.producer_epoch
    if producer is not None and same_epoch and header.base_sequence != _next_sequence(producer):
        producer = msgspec.structs.replace(producer, batches=())
    return _appended(producer, header, header.base_offset, append_ms)


def after_marker(producer: Producer | None, marker: Marker, now_ms: int, where: object) -> Producer:
    """The producer's state once the marker is appended: no open transaction, epochs as the marker has them.

    Raises:
        InvalidProducerEpoch, CoordinatorFenced: the marker is older than what the partition has seen.
    """
    if producer is not None:
        _check_epoch(producer, marker.producer_epoch, where)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"{where}: marker of producer {marker.producer_id} from coordinator epoch {marker.coordinator_epoch},"
                f" expected {producer.coordinator_epoch} or later"
            )
    return replay_marker(producer, marker, now_ms, now_ms)


def replay_marker(producer: Producer | None, marker: Marker, timestamp: int, append_ms: int) -> Producer:
    """The producer's state after a marker that the log holds."""
    same_epoch = producer is not None and producer.producer_epoch == marker.producer_epoch
    batches = producer.batches if same_epoch and producer is not None else ()
    return Producer(
        marker.producer_id, marker.producer_epoch, batches, marker.coordinator_epoch, -1, timestamp, append_ms
    )


def _appended(producer: Producer | None, header: BatchHeader, base_offset: int, append_ms: int) -> Producer:
    last_offset = base_offset + header.last_offset - header.base_offset
    batch = AppendedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
    epoch = header.producer_epoch
    first_offset = base_offset if header.is_transactional else -1
    kept: tuple[AppendedBatch, ...] = ()
    coordinator_epoch = -1
    if producer is not None:
        if producer.transaction_first_offset >= 0:
            first_offset = producer.transaction_first_offset
        if producer.producer_epoch == epoch:
            kept = producer.batches[1 - REMEMBERED_BATCHES :]
        coordinator_epoch = producer.coordinator_epoch
    return Producer(
        header.producer_id, epoch, (*kept, batch), coordinator_epoch, first_offset, header.max_timestamp, append_ms
    )


def _check_epoch(producer: Producer, producer_epoch: int, where: object) -> None:
    if producer_epoch < producer.producer_epoch:
        raise InvalidProducerEpoch(
            f"{where}: producer {producer.producer_id} sent epoch {producer_epoch},"
            f" expected {producer.producer_epoch} or later"
        )


def _check_sequence(producer: Producer, header: BatchHeader, where: object) -> None:
    # A new epoch starts anew.
    expected = _next_sequence(producer) if header.producer_epoch == producer.producer_epoch else 0
    if header.base_sequence != expected:
        raise OutOfOrderSequence(
            f"{where}: producer {header.producer_id} sent sequence {header.base_sequence} of epoch"
            f" {header.producer_epoch}, expected {expected}"
        )


def _next_sequence(producer: Producer) -> int:
    return 0 if producer.last_sequence == MAX_SEQUENCE else producer.last_sequence + 1


class _Ended(msgspec.Struct, frozen=True, gc=False):
    """A transaction whose marker is not durable yet: it still holds back the last stable offset."""

    first_offset: int
    marker_offset: int


class Producers:
    """All producers of a partition, and its transactions: what is open, and what has ended but not durably."""

    __slots__ = ("_by_id", "_ended", "open_transactions")

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}
        self._ended: list[_Ended] = []
        self.open_transactions: dict[int, int] = {}
        """Producer id to first offset. Begins are appended in offset order, so the first entry is the oldest."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> Producer | None:
        """What is remembered of one producer."""
        return self._by_id.get(producer_id)

    def put(self, producer: Producer) -> None:
        """Replace the producer's entry."""
        self._by_id[producer.producer_id] = producer
        if producer.transaction_first_offset < 0:
            self.open_transactions.pop(producer.producer_id, None)
        elif producer.producer_id not in self.open_transactions:
            self.open_transactions[producer.producer_id] = producer.transaction_first_offset

    def stage(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        staged: dict[int, Producer],
        verify: Verify | None,
        where: object,
    ) -> AppendedBatch | None:
        """Put the producer's state after the batch into `staged`, to be `put` later; or give the batch that it repeats.

        Raises:
            OutOfOrderSequence, InvalidProducerEpoch, InvalidTransactionState: as `after_batch`;
                and what `verify` raises.
        """
        before = staged.get(header.producer_id) or self._by_id.get(header.producer_id)
        repeated = find_duplicate(before, header)
        if repeated is None:
            if verify is not None and header.is_transactional:
                verify(header)
            staged[header.producer_id] = after_batch(before, header, base_offset, now_ms, where)
        return repeated

    def undo(self, befores: Iterable[tuple[int, Producer | None]], from_offset: int) -> None:
        """Nothing at `from_offset` or after it was ever appended: entries are what they were before, the latest `put`
        undone first, and markers have ended nothing.
        """
        for producer_id, before in befores:
            if before is None:
                self._by_id.pop(producer_id, None)
                self.open_transactions.pop(producer_id, None)
            else:
                self.put(before)
        self.open_transactions = dict(sorted(self.open_transactions.items(), key=lambda item: item[1]))
        self._ended = [ended for ended in self._ended if ended.marker_offset < from_offset]

    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        for offset in self.open_transactions.values():
            return offset
        return None

    def end_transaction(self, before: Producer, marker: Marker, marker_offset: int) -> AbortedTransaction | None:
        """The marker has ended what `before`, the producer's old state, had open; the transaction if it is aborted."""
        first_offset = before.transaction_first_offset
        if first_offset < 0:
            return None
        self._ended.append(_Ended(first_offset, marker_offset))
        if marker.commit:
            return None
        still_open = self.first_open_offset()
        stable = marker_offset + 1 if still_open is None else still_open
        return AbortedTransaction(marker.producer_id, first_offset, marker_offset, stable)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where the oldest transaction begins whose end is not known below the high watermark; else that itself."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.marker_offset >= high_watermark]
        stable = self.first_open_offset()
        stable = high_watermark if stable is None else min(stable, high_watermark)
        for ended in self._ended:
            stable = min(stable, ended.first_offset)
        return stable

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch was appended earlier and who have no open transaction; how many."""
        expired = [
            p.producer_id
            for p in self._by_id.values()
            if (p.last_timestamp if p.last_append_ms < 0 else p.last_append_ms) < before_ms
            and p.transaction_first_offset < 0
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)
