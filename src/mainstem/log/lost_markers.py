"""Ends of transactions that damage has taken: what a partition remembers of its transactions says which these were.

Without its marker a transaction would stay open for ever, or be ended by its producer's next marker, perhaps the other
way. The checkpoint knows the aborted ones, with the offsets of their markers, and those that are open; every other has
been committed, and where in a hole its marker was tells no reader anything. It is looked for from batch to batch, in
their order, with the holes between them:

1. `add_hole`: an aborted transaction whose marker was there gets it back; of any other that is open before the hole,
   and was not open when the checkpoint was written, the end may have been there;
2. `add_batch`: where the producer's next marker commits, nothing is missing, or nothing that anybody would notice;
   where it aborts what began behind the hole, the end of the one before was in it;
3. `finish`: so it was of those that nothing has ended. Each end that was a commit is put where it may have been, and
   where no other needs the place more: of those that may be at an offset, the one whose producer began again first.
"""

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

import msgspec

from mainstem.log.index import MARKER_OFFSET, AbortedTransaction
from mainstem.log.partition import PartitionLog
from mainstem.records import BatchHeader, build_marker, decode_marker
from mainstem.records.batch import OFFSET_AND_LENGTH, PREFIX
from mainstem.records.record import assemble_batch


class Hole(msgspec.Struct):
    """Offsets from `first_offset` on, below `end_offset`, that no batch has any more."""

    first_offset: int
    end_offset: int
    leader_epoch: int
    """Of the batch before it."""
    timestamp: int
    """The latest before it."""
    markers: dict[int, bytes] = msgspec.field(default_factory=dict)
    """Offset to the batch that belongs there again."""

    def put(self, offset: int, open_: "_Open", *, commit: bool) -> None:
        """Let the transaction end at this offset."""
        marker = bytearray(build_marker(open_.producer_id, open_.producer_epoch, commit, 0, self.timestamp))
        length = OFFSET_AND_LENGTH.unpack_from(marker)[1]
        PREFIX.pack_into(marker, 0, offset, length, self.leader_epoch)
        self.markers[offset] = bytes(marker)

    def last_batch(self) -> bytes:
        """A batch without records at the last of its offsets, as compaction leaves one."""
        last, time = self.end_offset - 1, self.timestamp
        return assemble_batch(BatchHeader(last, last, 0, self.leader_epoch, 0, 0, time, time, -1, -1, -1, 0), b"")


class _Open(NamedTuple):
    """A transaction that nothing has ended yet, up to its last batch."""

    producer_id: int
    producer_epoch: int
    last_offset: int


class _Commit(NamedTuple):
    """The end of a transaction, lost behind its last batch and before its producer began the next one."""

    of: _Open
    before: int
    """An offset."""


class LostMarkers:
    """Finds them; no I/O."""

    def __init__(self, partition: PartitionLog) -> None:
        segments = partition.segments
        self._known_end = segments.active.next_offset if segments else 0
        """What the partition remembers of transactions is how they were there."""
        self._still_open = dict(partition.open_transactions)
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for segment in segments:
            for transaction in segment.aborted:
                self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._open: dict[int, _Open] = {}
        self._before_holes: dict[int, list[_Open]] = {}
        """Producer id to what its transaction was before each hole that it may have ended in."""
        self._holes: list[Hole] = []
        self._commits: list[_Commit] = []
        self._timestamp = 0

    def add_batch(self, header: BatchHeader, batch: memoryview) -> None:
        """Count in a batch behind all that came before."""
        self._timestamp = max(self._timestamp, header.max_timestamp)
        if not header.is_transactional:
            return
        if not header.is_control:
            self._open[header.producer_id] = _Open(header.producer_id, header.producer_epoch, header.last_offset)
            return
        self._open.pop(header.producer_id, None)
        before = self._before_holes.pop(header.producer_id, [])
        if not decode_marker(batch).commit:
            self._add_commit(before, self._begin_of(header.producer_id, header.base_offset))

    def add_hole(self, first_offset: int, end_offset: int, leader_epoch: int) -> Hole:
        """Behind the last batch, which is of `leader_epoch`, nothing is left until `end_offset`."""
        hole = Hole(first_offset, end_offset, leader_epoch, self._timestamp)
        if first_offset >= self._known_end:  # the journal has every marker since
            return hole
        self._holes.append(hole)
        for open_ in list(self._open.values()):
            transaction = self._aborted_with(open_)
            if transaction is None:
                self._before_holes.setdefault(open_.producer_id, []).append(open_)
            elif first_offset <= transaction.last_offset < end_offset:
                hole.put(transaction.last_offset, open_, commit=False)
                del self._open[open_.producer_id]
                self._add_commit(self._before_holes.pop(open_.producer_id, []), transaction.first_offset)
        return hole

    def finish(self) -> None:
        """Nothing follows: what is open, and was not, has been committed."""
        for producer_id in self._open:
            self._add_commit(self._before_holes.get(producer_id, []), self._begin_of(producer_id, self._known_end))
        for hole in self._holes:
            self._put_commits(hole)

    def _put_commits(self, hole: Hole) -> None:
        may_be_here = [each for each in self._commits if each.of.last_offset < hole.first_offset]
        for offset in range(hole.first_offset, hole.end_offset):
            may_be_here = [each for each in may_be_here if offset < each.before]
            if not may_be_here:
                return
            if offset not in hole.markers:
                first = min(may_be_here, key=attrgetter("before"))
                hole.put(offset, first.of, commit=True)
                may_be_here.remove(first)
                self._commits.remove(first)

    def _add_commit(self, before_holes: list[_Open], began: int) -> None:
        """The producer's transaction before that which began at offset `began` ended in a hole."""
        of = next((open_ for open_ in reversed(before_holes) if open_.last_offset < began), None)
        if of is not None:
            self._commits.append(_Commit(of, began))

    def _aborted_with(self, open_: _Open) -> AbortedTransaction | None:
        """The aborted transaction that the batch belongs to."""
        aborted = self._aborted.get(open_.producer_id, [])
        place = bisect_left(aborted, open_.last_offset, key=MARKER_OFFSET)
        found = aborted[place] if place < len(aborted) else None
        return found if found is not None and found.first_offset <= open_.last_offset else None

    def _begin_of(self, producer_id: int, end_offset: int) -> int:
        """Where the producer's transaction began that was open before `end_offset`."""
        if end_offset >= self._known_end:
            return self._still_open.get(producer_id, self._known_end)
        aborted = self._aborted.get(producer_id, [])
        place = bisect_left(aborted, end_offset, key=MARKER_OFFSET)
        return aborted[place].first_offset if place < len(aborted) else end_offset
