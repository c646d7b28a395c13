"""The committed offsets of all groups, and those that wait for the disk or for the end of a transaction. No I/O.

Every commit is remembered with the offset of its record in `__consumer_offsets`: of a transaction's commit and a plain
one the later record wins, whichever became visible last (compaction keeps the later one too).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from mainstem.broker.groups.records import OffsetValue
from mainstem.core import TopicPartition


class Committed(msgspec.Struct, frozen=True, gc=False):
    """A committed offset, and which record says so."""

    value: OffsetValue
    at: int


class GroupOffsets:
    """Committed and pending offsets by group."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}
        self._of_topics: dict[str, Counter[str]] = {}  # topic: how many of them, by group
        self._queued: dict[str, Counter[TopicPartition]] = {}  # commits on their way to the disk
        self._pending: dict[tuple[int, int], dict[tuple[str, TopicPartition], Committed]] = {}
        self._open: dict[str, set[tuple[int, int]]] = {}  # group: transactions with pending offsets of it

    def queue(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """A commit is on its way to the disk."""
        queued = self._queued.setdefault(group, Counter())
        for partition in partitions:
            queued[partition] += 1

    def unqueue(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """A commit that was queued is on the disk, or failed."""
        queued = self._queued[group]
        for partition in partitions:
            queued[partition] -= 1
            if not queued[partition]:
                del queued[partition]
        if not queued:
            del self._queued[group]

    def is_queued(self, group: str, partition: TopicPartition) -> bool:
        """True while a commit for the partition is on its way to the disk."""
        return partition in self._queued.get(group, ())

    def put(self, group: str, partition: TopicPartition, value: OffsetValue, at: int) -> None:
        """A commit is durable."""
        offsets = self._committed.setdefault(group, {})
        present = offsets.get(partition)
        if present is None or present.at <= at:
            offsets[partition] = Committed(value, at)
        if present is None:
            groups = self._of_topics.get(partition.topic)
            if groups is None:
                groups = self._of_topics[partition.topic] = Counter()
            groups[group] += 1

    def put_pending(
        self, log: int, producer_id: int, group: str, partition: TopicPartition, value: OffsetValue, at: int
    ) -> None:
        """A commit inside the producer's transaction; `log` is the partition of `__consumer_offsets` it is in."""
        self._pending.setdefault((log, producer_id), {})[group, partition] = Committed(value, at)
        self._open.setdefault(group, set()).add((log, producer_id))

    def end(self, log: int, producer_id: int, *, commit: bool) -> None:
        """The producer's transaction has ended in `log`."""
        transaction = (log, producer_id)
        pending = self._pending.pop(transaction, {})
        for group in [group for group, open_ in self._open.items() if transaction in open_]:
            self._open[group].discard(transaction)
            if not self._open[group]:
                del self._open[group]
        if commit:
            for (group, partition), offset in pending.items():
                self.put(group, partition, offset.value, offset.at)

    def remove(self, group: str, partition: TopicPartition, at: int) -> None:
        """A tombstone at offset `at` is durable: what was committed before it is gone, pending or not."""
        offsets = self._committed.get(group, {})
        if partition in offsets and offsets[partition].at < at:
            del offsets[partition]
            self._uncount(group, partition.topic)
        if not offsets:
            self._committed.pop(group, None)
        for transaction in self._open.get(group, ()):
            pending = self._pending[transaction]
            if (group, partition) in pending and pending[group, partition].at < at:
                del pending[group, partition]

    def _uncount(self, group: str, topic: str) -> None:
        groups = self._of_topics[topic]
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._of_topics[topic]

    def get(self, group: str, partition: TopicPartition) -> OffsetValue | None:
        """What the group has committed for the partition."""
        found = self._committed.get(group, {}).get(partition)
        return None if found is None else found.value

    def of_group(self, group: str) -> Mapping[TopicPartition, Committed]:
        """Everything the group has committed."""
        return self._committed.get(group, {})

    def pending_of(self, group: str) -> set[TopicPartition]:
        """Partitions with an offset of the group that is not visible: on its way to the disk, or in a transaction."""
        found = set(self._queued.get(group, ()))
        for transaction in self._open.get(group, ()):
            found.update(partition for owner, partition in self._pending[transaction] if owner == group)
        return found

    def is_open(self, group: str) -> bool:
        """True while a transaction holds offsets of the group, or held some that were deleted."""
        return group in self._open

    def is_unstable(self, group: str, partition: TopicPartition) -> bool:
        """True while an open transaction may still change what is committed (KIP-447)."""
        return any((group, partition) in self._pending[transaction] for transaction in self._open.get(group, ()))

    def groups(self) -> Iterator[str]:
        """Groups that have committed something, or are about to."""
        return iter({*self._committed, *self._queued, *self._open})

    def topics(self) -> set[str]:
        """Topics that some group has committed an offset in, or has one pending in."""
        pending = (partition.topic for offsets in self._pending.values() for _, partition in offsets)
        return {*self._of_topics, *pending}

    def of_topic(self, topic: str) -> Iterator[tuple[str, TopicPartition]]:
        """(group, partition) of every offset in the topic, committed or pending."""
        for group in {*self._of_topics.get(topic, ()), *self._queued, *self._open}:
            for partition in {*self.of_group(group), *self.pending_of(group)}:
                if partition.topic == topic:
                    yield group, partition
