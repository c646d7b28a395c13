"""What a partition must hold, whatever its log went through, and what it may hold all the same."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec

from mainstem.core import TopicPartition
from mainstem.log import PartitionLog, TopicConfig
from mainstem.records import iter_headers
from tests.log.support import joined, read_all

Appended = tuple[int, bytes, bytes | None]
"""Offset, key and value; of a marker the key is empty."""
NOBODY = 0


class Sent(msgspec.Struct, frozen=True):
    """A batch of a producer, or a marker that ends its transaction."""

    producer_id: int
    base_offset: int
    last_offset: int
    transactional: bool
    commit: bool | None = None
    """None: no marker."""
    producer_epoch: int = 0
    base_sequence: int = -1
    last_sequence: int = -1
    """-1: a marker's."""


class ExpectedPartition:
    """A topic's one partition; the topic may be deleted and made anew.

    What was acknowledged is promised: no kill takes any of it, and a power cut only what the topic trusted to the page
    cache. What was not acknowledged may be there after a start all the same: batches, in order and whole; a later log
    start offset; a deletion, or a creation, of the topic. From then on what the start has found is the truth.
    """

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self.topic_partition = TopicPartition(topic, 0)
        self.config = config
        self.producers_expire = False
        self.ids: set[UUID | None] = {None}
        """The topic's, of which one is found; None: no such topic."""
        self.begin()

    def begin(self) -> None:
        """The topic is new, or will be when it is created again."""
        self.records: list[Appended] = []
        """All that were appended from offset 0 on, also what deletions, retention and compaction let go."""
        self.batch_ends = {0}
        self.sent: list[Sent] = []
        """By producers, and markers."""
        self.read_from_segments = False
        self.taken_epochs: dict[int, int] = {}
        """Producer id to the highest epoch of what a repair has taken out: the checkpoint may have known it."""
        """Since then, what is known of producers is what compaction left."""
        self.promised = 0
        """No kill takes what is before it."""
        self.safe = 0
        """No power cut takes what is before it."""
        self.trust_changes = 0
        self.start = 0
        self.later_starts: set[int] = set()
        """Log start offsets that were asked for, not acknowledged."""
        self.leader_epoch = 0
        self.expires = False
        """Retention is at work: where the log starts is its choice."""

    def __str__(self) -> str:
        return self.topic_partition.topic

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def compacts(self) -> bool:
        return self.config.compacts

    @property
    def trusting(self) -> bool:
        """Promises are kept in the page cache, not on the disk."""
        return self.config.flush_messages > 1

    def trust(self, flush_messages: int) -> None:
        self.config = msgspec.structs.replace(self.config, flush_messages=flush_messages)
        self.trust_changes += 1

    # -- appends

    async def appended(
        self,
        pairs: list[tuple[bytes, bytes | None]],
        answer: "asyncio.Future[Any]",
        producer_id: int = NOBODY,
        *,
        transactional: bool = False,
        commit: bool | None = None,
        producer_epoch: int = 0,
        base_sequence: int = -1,
    ) -> None:
        """Expect an append's records from now on, and hold its answer to what was promised.

        The log decides how it keeps a batch when it writes it, so one that flies while the trust changes is promised
        to survive kills only. A marker survives power cuts everywhere, and so does what lies before it.
        """
        base_offset = self.end
        self.records += [(base_offset + n, key, value) for n, (key, value) in enumerate(pairs)]
        end, trusting, changes = self.end, self.trusting, self.trust_changes
        self.batch_ends.add(end)
        if producer_id != NOBODY:
            last_sequence = -1 if commit is not None else base_sequence + len(pairs) - 1
            sent = Sent(
                producer_id, base_offset, end - 1, transactional, commit, producer_epoch, base_sequence, last_sequence
            )
            self.sent.append(sent)
        result = await answer
        assert (result.base_offset, result.last_offset) == (base_offset, end - 1), f"{self}: {result}"
        self.promised = max(self.promised, end)
        if commit is not None or (not trusting and changes == self.trust_changes):
            self.safe = max(self.safe, end)

    def forget_from(self, end: int) -> None:
        """Expect nothing from offset `end` on."""
        del self.records[end:]
        self.sent = [sent for sent in self.sent if sent.last_offset < end]  # a log start may lie within a batch
        self.batch_ends = {each for each in self.batch_ends if each < end} | {end}

    def synced(self, promised: int) -> None:
        """What is before `promised` was brought to the disk."""
        self.safe = max(self.safe, promised)

    def take_out(self, first_offset: int, end: int) -> None:
        """A repair has taken out what is damaged; its offsets are not given again, and transactions end as they did."""
        if first_offset <= max({self.start, *self.later_starts}):
            self.later_starts.add(end)  # nothing is left before it
        self.records[first_offset:end] = [(offset, b"", None) for offset in range(first_offset, end)]
        self.batch_ends.add(end)
        left: list[Sent] = []
        open_in: dict[int, int] = {}
        """Producer id to the epoch of its transaction."""
        for sent in self.sent:
            if first_offset <= sent.base_offset < end:
                known = self.taken_epochs.get(sent.producer_id, -1)
                self.taken_epochs[sent.producer_id] = max(known, sent.producer_epoch)
            if sent.commit is None:
                if first_offset <= sent.base_offset < end:
                    continue
                if sent.transactional:
                    open_in[sent.producer_id] = sent.producer_epoch
                left.append(sent)
            else:
                epoch = open_in.pop(sent.producer_id, None)
                if not first_offset <= sent.base_offset < end:
                    left.append(sent)
                elif epoch is not None:
                    left.append(msgspec.structs.replace(sent, producer_epoch=epoch))
        self.sent = left
        self.promised = self.safe  # what only the page cache had of the file may be gone with its end
        self.read_from_segments = True

    # -- deletions

    def deleting(self, before_offset: int) -> None:
        self.later_starts.add(before_offset)

    def deleted(self, before_offset: int) -> None:
        self.later_starts.discard(before_offset)
        self.start = max(self.start, before_offset)

    # -- starts

    def take_over(self, partition: PartitionLog, *, power_cut: bool, checkpoint_lost: bool) -> None:
        """Check that what a start has found is legal, and expect that from now on."""
        assert partition.error is None, f"{self} is offline: {partition.error}"
        start, end = partition.log_start_offset, partition.log_end_offset
        self._check_start(start, checkpoint_lost=checkpoint_lost)
        self.read_from_segments |= checkpoint_lost
        if checkpoint_lost:
            self.leader_epoch = 0  # what the batches say of it
        if end < self.promised:  # who has read what is gone, notices
            assert partition.leader_epoch > self.leader_epoch, f"{self} ends at {end}, in the same epoch"
        if checkpoint_lost and end > self.end:
            # An empty segment's name that a start removed, not durably: offsets are left out, and nothing else.
            self.records += [(offset, b"", None) for offset in range(self.end, end)]
            self.batch_ends.add(end)
        kept = self.safe if power_cut else self.promised
        assert max(kept, start) <= end <= self.end, f"{self} ends at {end}, expected {kept} to {self.end}"
        assert end in self.batch_ends | {start}, f"{self} ends at {end}, within a batch"
        self.start, self.later_starts, self.expires = start, set(), False
        self.forget_from(end)
        self.promised = self.safe = end

    def _check_start(self, found: int, *, checkpoint_lost: bool) -> None:
        starts = {self.start, *self.later_starts}
        before = max((start for start in starts if start <= found), default=found)
        cut = any(start < found for start in starts) and all(not record[1] for record in self.records[before:found])
        legal = found in starts or cut or (self.expires and found >= self.start)
        if checkpoint_lost:  # a log start offset may have been there alone
            legal = legal or found <= max(starts)
        assert legal, f"{self} starts at {found}, expected one of {sorted(starts)}"

    # -- what must hold

    async def check(self, partition: PartitionLog) -> None:
        """All is there that must be, and nothing else; no append flies, or else it may be there already."""
        assert partition.error is None, f"{self} is offline: {partition.error}"
        offsets = (partition.log_start_offset, partition.high_watermark, partition.log_end_offset)
        assert offsets == (self.start, self.end, self.end), f"{self} is {offsets}, expected {self.start} to {self.end}"
        aborted, open_since = self._transactions()
        expected = [record for record in self.records[self.start :] if record[1] and record[0] not in aborted]
        self._check_records(await read_all(partition), expected, aborted)
        self._check_producers(partition, open_since)
        await self._check_epochs(partition)
        if all(offset >= self.start for offset in open_since.values()):  # else it may be forgotten
            stable = min(open_since.values(), default=self.end)
            assert partition.last_stable_offset == stable, (
                f"{self} is stable to {partition.last_stable_offset}, expected {stable}"
            )
            committed = await read_all(partition, committed_only=True)
            self._check_records(committed, [record for record in expected if record[0] < stable], set())

    def _transactions(self) -> tuple[set[int], dict[int, int]]:
        """Offsets of the records of aborted ones; since which offset each producer has one open."""
        aborted: set[int] = set()
        open_since: dict[int, int] = {}
        records: dict[int, set[int]] = {}
        for sent in self.sent:
            if sent.commit is None:
                if sent.transactional:
                    open_since.setdefault(sent.producer_id, sent.base_offset)
                    records.setdefault(sent.producer_id, set()).update(range(sent.base_offset, sent.last_offset + 1))
            else:
                open_since.pop(sent.producer_id, None)
                of_it = records.pop(sent.producer_id, set())
                aborted |= set() if sent.commit else of_it
        return aborted, open_since

    def _check_producers(self, partition: PartitionLog, open_since: dict[int, int]) -> None:
        """What was deleted of a producer may be forgotten, or not; so may one that has expired."""
        for producer_id in {sent.producer_id for sent in self.sent}:
            found = partition.producer(producer_id)
            last = [each for each in self.sent if each.producer_id == producer_id][-1]
            expected = [_remembered(each) for each in self._batches_of(producer_id) if each.base_offset >= self.start]
            taken = self.taken_epochs.get(producer_id, -1)
            is_fenced = found is not None and found.producer_epoch == taken > last.producer_epoch
            if is_fenced:
                expected = []
            batches = [
                (b.base_sequence, b.last_sequence, b.base_offset, b.last_offset)
                for b in (found.batches if found else ())
                if b.base_offset >= self.start
            ]
            if self.compacts and self.read_from_segments:
                batches, expected = batches[-1:], expected[-1:]
            since = open_since.get(producer_id, -1)
            if self.producers_expire and (since == -1 or batches):
                expected = expected[max(0, len(expected) - len(batches)) :]
            assert batches == expected, f"{self}: batches of producer {producer_id}: {batches}, expected {expected}"
            if found and (since == -1 or since >= self.start):
                assert found.transaction_first_offset == since, (
                    f"{self}: producer {producer_id}: {found}, expected {since}"
                )
            if (
                found
                and last.base_offset >= self.start
                and not (is_fenced or (self.compacts and self.read_from_segments))
            ):
                assert found.producer_epoch == last.producer_epoch, f"{self}: {found}, expected {last}"

    def _batches_of(self, producer_id: int) -> list[Sent]:
        """Its last five, of the epoch that it has."""
        batches: list[Sent] = []
        epoch = 0
        for sent in self.sent:
            if sent.producer_id == producer_id:
                gap = sent.commit is None and batches and sent.base_sequence != batches[-1].last_sequence + 1
                batches, epoch = [] if gap or sent.producer_epoch != epoch else batches, sent.producer_epoch
                batches += [sent] if sent.commit is None else []
        return batches[-5:]

    async def _check_epochs(self, partition: PartitionLog) -> None:
        """What is known of leader epochs is what the batches say of them."""
        epochs = partition.epochs.entries()
        assert epochs == sorted(epochs), f"{self}: epochs {epochs}"
        assert all(start <= self.end for _, start in epochs), f"{self}: epochs {epochs}"
        assert partition.leader_epoch >= self.leader_epoch, f"{self}: epoch {partition.leader_epoch} after others"
        self.leader_epoch = partition.leader_epoch
        offset = partition.log_start_offset
        while records := joined(await partition.read(offset, 1 << 20)):
            for header in iter_headers(records):
                offset = header.next_offset
                of_it = [epoch for epoch, start in epochs if start <= max(header.base_offset, self.start)]
                assert of_it[-1:] == [header.leader_epoch], f"{self}: {header} with epochs {epochs}"

    def _check_records(self, records: list[Any], expected: list[Appended], aborted: set[int]) -> None:
        found = [(record.offset, record.key, record.value) for record in records if record.offset not in aborted]
        if self.compacts:
            assert set(found) <= set(expected), f"{self} has records that nobody appended: {_told(found)}"
            assert found == sorted(found, key=lambda record: record[0]), f"{self} is out of order: {_told(found)}"
            found, expected = _last_of_each_key(found), _last_of_each_key(expected)
        assert found == expected, f"{self} has {_told(found)}, expected {_told(expected)}"


def _remembered(sent: Sent) -> tuple[int, int, int, int]:
    return sent.base_sequence, sent.last_sequence, sent.base_offset, sent.last_offset


def _last_of_each_key(records: list[Appended]) -> list[Appended]:
    """What compaction must keep: without tombstones, which may be there or not."""
    last = {record[1]: record for record in records}
    return sorted((record for record in last.values() if record[2] is not None), key=lambda record: record[0])


def _told(records: list[Appended]) -> str:
    """Values begin with their number; what follows says nothing."""
    return ", ".join(f"{offset}: {key!r}={value and value[:6]!r}" for offset, key, value in records) or "nothing"
