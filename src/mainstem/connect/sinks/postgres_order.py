"""Puts the records of several topics back into the order of the source's transactions; no I/O.

Records of one transaction lie in several partitions, each of them in the source's order. The transactions topic says
which transactions there are, in commit order, and how many records each topic has of them. The transaction at the head
is handed out when all its records have arrived.

    transactions   BEGIN 7 | END 7: accounts 1, audit 1 | BEGIN 9 | END 9: accounts 2
    accounts       7 | 9 | 9                            -> 7 is handed out when audit's record is there, then 9
    audit          (7 not read yet)

Three things bend that rule:

- A transaction too large for memory is handed out in pieces, for the caller to apply in one open target transaction.
  Where a topic has several partitions, pieces would come out of order; such a transaction is kept whole, in memory.
- A transaction that has no END because the source began anew in the middle of it belongs to the snapshot that follows.
- Compaction removes a record whose key was written again later. When a transaction misses some after everything up to
  the end of the log was read, no earlier state can be had any more: the caller empties its tables and reads from the
  start of the log up to a barrier, which is handed out as one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from mainstem.client.compacted import NOT_OURS
from mainstem.core import CorruptData, TopicPartition

PIECE_ROWS = 20_000  # from so many on, a transaction is handed out in pieces
PIECE_BYTES = 32 << 20  # or from so many bytes of records on


class Change(msgspec.Struct, frozen=True):
    """One record of a table's topic. A tombstone has no operation; it follows the delete record, whose transaction it
    has, until compaction removes that one and leaves it alone to say that the row went.
    """

    offset: int
    transaction: str
    position: int
    order: int
    operation: str
    key: bytes
    row: list[str | None] | None  # the new row: each column's text
    schema_id: int
    fingerprint: int
    unchanged: tuple[str, ...] = ()  # columns that the source did not know; a replica leaves them alone
    size: int = 0  # of key and value, in bytes


class SourceTransaction(msgspec.Struct):
    """A transaction that the transactions topic has announced; `counts` by topic when its END is there."""

    id: str
    position: int
    counts: Mapping[str, int] | None = None
    next_offset: int = 0  # of the transactions topic, after END
    records: int = 1  # BEGIN, and END, as far as they are to be counted
    fingerprint: int = 0  # of them


class Batch(msgspec.Struct, frozen=True):
    """What to apply next. Where `whole`, the target may commit after it, with the offsets as they are then."""

    changes: list[tuple[TopicPartition, Change]]
    whole: bool
    transactions: int
    position: int
    records: int = 0  # of the transactions topic
    fingerprint: int = 0  # their sum


class TransactionOrder:
    """Collects records and hands out transactions.

    Args:
        transactions: the partition that announces them.
        offsets: where to begin in every partition.
        barrier: hand out everything below these offsets as one; it may miss what compaction removed.

    Attributes:
        offsets: next offset of every partition after what was handed out.
        compacted: a delete record is missing before its tombstone; see `incomplete` for other records.
    """

    def __init__(
        self,
        transactions: TopicPartition,
        offsets: Mapping[TopicPartition, int],
        *,
        barrier: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.offsets = dict(offsets)
        self.compacted = False
        self._transactions_partition = transactions
        self._queues: dict[TopicPartition, deque[Change]] = {p: deque() for p in offsets if p != transactions}
        self._bytes = dict.fromkeys(self._queues, 0)
        self._partitions: dict[str, list[TopicPartition]] = {}
        for partition in sorted(self._queues):
            self._partitions.setdefault(partition.topic, []).append(partition)
        self._in_pieces = all(len(partitions) == 1 for partitions in self._partitions.values())
        self._reached = dict(offsets)  # read up to here, also where there was nothing to hand out
        self._announced: deque[SourceTransaction] = deque()
        self._arrived: dict[str, dict[str, int]] = {}
        self._abandoned: set[str] = set()
        self._loose: list[tuple[TopicPartition, Change]] = []  # tombstones whose delete record was handed out
        self._in_the_middle = False  # a transaction was handed out in part
        self._position = 0
        self._barrier = dict(barrier) if barrier is not None else None

    # ------------------------------------------------------------------------------------------------- what comes in

    def begin(self, identity: str, position: int, offset: int, fingerprint: int = 0, *, new: bool = True) -> None:
        """BEGIN was read at `offset` of the transactions topic; unless `new`, a record that is counted already."""
        self._reached[self._transactions_partition] = offset + 1
        announced = SourceTransaction(identity, position, records=int(new), fingerprint=fingerprint if new else 0)
        if self._announced and self._announced[-1].counts is None:
            before = self._announced.pop()
            self._abandoned.add(before.id)
            announced.records += before.records
            announced.fingerprint += before.fingerprint
        self._announced.append(announced)

    def end(
        self, identity: str, counts: Mapping[str, int], offset: int, fingerprint: int = 0, *, new: bool = True
    ) -> None:
        """END was read, as BEGIN. Topics that the replica does not follow are left out."""
        self._reached[self._transactions_partition] = offset + 1
        if not self._announced or self._announced[-1].id != identity:
            place = f"{self._transactions_partition} offset {offset}"
            raise CorruptData(f"{place}: transaction {identity} ends, but has not begun", hint=NOT_OURS)
        last = self._announced[-1]
        last.counts = {topic: count for topic, count in counts.items() if topic in self._partitions}
        last.next_offset = offset + 1
        last.records += int(new)
        last.fingerprint += fingerprint if new else 0

    def add(self, partition: TopicPartition, change: Change) -> None:
        """A record of a table's topic, in the order of its partition."""
        queue = self._queues[partition]
        if not change.operation and self._barrier is None:
            # The source writes it right after the delete record, so a hole before it is compaction's work.
            self.compacted |= change.offset != self._reached[partition]
            if not queue:
                self._loose.append((partition, change))
                self._reached[partition] = change.offset + 1
                return
        self._reached[partition] = change.offset + 1
        queue.append(change)
        self._bytes[partition] += change.size
        if change.operation:
            arrived = self._arrived.setdefault(change.transaction, {})
            arrived[partition.topic] = arrived.get(partition.topic, 0) + 1

    def reached(self, partition: TopicPartition, offset: int) -> None:
        """The reader is at `offset`, which is the end: what lies below and was not added is not there any more."""
        self._reached[partition] = max(self._reached[partition], offset)

    def position(self, partition: TopicPartition) -> int:
        """Next offset after what was handed out; where nothing waits, past what the log has behind it for no reader.

        A source commits each transaction by a marker of one offset: counted from `offsets`, a replica that has
        everything would lag by one for ever.
        """
        waits = self.waiting(partition) or any(each == partition for each, _ in self._loose)
        return self.offsets[partition] if waits else max(self.offsets[partition], self._reached[partition])

    def waiting(self, partition: TopicPartition) -> int:
        """How many records of a partition wait for their turn."""
        if partition == self._transactions_partition:
            return len(self._announced)
        return len(self._queues[partition])

    def waiting_bytes(self, partition: TopicPartition) -> int:
        """The bytes of these records."""
        return self._bytes.get(partition, 0)

    def needs(self, partition: TopicPartition) -> bool:
        """Nothing can be handed out before more of a partition was read, however much of it waits."""
        if self._in_pieces or partition == self._transactions_partition:
            return False
        if self._barrier is not None:
            return self._reached[partition] < self._barrier[partition]
        queue = self._queues[partition]
        return bool(self._announced) and (not queue or queue[-1].position <= self._announced[0].position)

    # ------------------------------------------------------------------------------------------------ what comes out

    def next(self) -> Batch | None:
        """The next batch to apply, if one is ready."""
        if self._loose:
            return self._take_loose()
        batch = self._next()
        if batch is not None:
            self._in_the_middle, self._position = not batch.whole, batch.position
        return batch

    def _take_loose(self) -> Batch:
        loose, self._loose = self._loose, []
        for partition, change in loose:
            self.offsets[partition] = change.offset + 1
        return Batch(loose, not self._in_the_middle, 0, self._position)

    def _next(self) -> Batch | None:
        if not self._announced:
            return None
        head = self._announced[0]
        if self._barrier is not None:
            return self._below_barrier(self._barrier)
        if head.counts is not None and self._is_complete(head):
            return self._batch_of(head, whole=True)
        if self._is_piece():
            return self._batch_of(head, whole=False)
        return None

    def incomplete(self) -> SourceTransaction | None:
        """The head, when its END is there and records of it are not; the caller then finds out where the log ends."""
        if self._barrier is None and self._announced and self._announced[0].counts is not None:
            head = self._announced[0]
            return None if self._is_complete(head) else head
        return None

    def read_past(self, head: SourceTransaction, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether all of `head` that exists was read, given the ends of the partitions after its END was seen."""
        return all(
            self._reached[partition] >= ends[partition] or (queue and queue[-1].position > head.position)
            for partition, queue in self._queues.items()
        )

    def _is_complete(self, transaction: SourceTransaction) -> bool:
        """All its records are here. Those handed out in pieces stay counted until it is whole."""
        assert transaction.counts is not None
        arrived = self._arrived.get(transaction.id, {})
        return all(arrived.get(topic, 0) >= count for topic, count in transaction.counts.items())

    def _is_piece(self) -> bool:
        """So much waits that a part of it is handed out."""
        return self._in_pieces and (
            sum(map(len, self._queues.values())) >= PIECE_ROWS or sum(self._bytes.values()) >= PIECE_BYTES
        )

    def _batch_of(self, head: SourceTransaction, *, whole: bool) -> Batch | None:
        changes = list(self._pop(lambda change: change.transaction == head.id or change.transaction in self._abandoned))
        if not whole:
            return Batch(changes, False, 0, head.position) if changes else None
        self._forget(head)
        self._abandoned.clear()
        return Batch(changes, True, 1, head.position, head.records, head.fingerprint)

    def _below_barrier(self, barrier: Mapping[TopicPartition, int]) -> Batch | None:
        """Up to the last transaction that ends below the barrier; in pieces until all of it was read."""
        if self._reached[self._transactions_partition] < barrier[self._transactions_partition]:
            return None
        ended = [transaction for transaction in self._announced if transaction.counts is not None]
        if not ended:
            self._barrier = None
            return None
        last = ended[-1]
        whole = all(self._reached[partition] >= end for partition, end in barrier.items())
        if not whole and not self._is_piece():
            return None
        changes = list(self._pop(lambda change: change.position <= last.position))
        if not whole:
            return Batch(changes, False, 0, last.position) if changes else None
        self._barrier = None
        for transaction in ended:
            self._forget(transaction)
        records, fingerprint = sum(each.records for each in ended), sum(each.fingerprint for each in ended)
        return Batch(changes, True, len(ended), last.position, records, fingerprint)

    def _pop(self, wanted: Callable[[Change], bool]) -> Iterator[tuple[TopicPartition, Change]]:
        """Take the wanted records from the fronts of all queues;
        several partitions of a topic in the source's order.
        """
        for partitions in self._partitions.values():
            taken = [(partition, change) for partition in partitions for change in self._pop_front(partition, wanted)]
            if len(partitions) > 1:
                taken.sort(key=lambda item: (item[1].position, item[1].order))
            yield from taken

    def _pop_front(self, partition: TopicPartition, wanted: Callable[[Change], bool]) -> Iterator[Change]:
        queue = self._queues[partition]
        while queue and (wanted(queue[0]) or (self._barrier is None and not queue[0].operation)):
            change = queue.popleft()
            self._bytes[partition] -= change.size
            self.offsets[partition] = change.offset + 1
            yield change

    def _forget(self, transaction: SourceTransaction) -> None:
        """It is handed out, whole."""
        self._announced.popleft()
        self._arrived.pop(transaction.id, None)
        self.offsets[self._transactions_partition] = transaction.next_offset
