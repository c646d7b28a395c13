"""A share partition: which records of a partition a share group has acquired, and which it is done with. No I/O.

From the start offset to the end offset it is a list of runs: neighbouring records in the same state, without holes.
What is below is done, what is above was never delivered. A record goes these ways, and no others::

    AVAILABLE ──acquire──> ACQUIRED ──accept──> ACKNOWLEDGED
        ^                     │ ├─────reject, gap──> ARCHIVED
        └──release, lock ends─┘ └─────released after its last delivery──> ARCHIVED

An available record is archived if it is found not to be in the log any more, or to be of an aborted transaction.
The start offset follows the records in a final state at the front.

Every method that changes what is to be kept says how (`Change`); who calls it stores that, in the order of the calls,
and answers the member only when it is durable. If it cannot be stored, this partition is to be dropped and made anew
from what is stored: then more is delivered again than was necessary, and nothing is lost.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from math import inf
from typing import Final

import msgspec

from mainstem.broker.groups.share.state import FINAL, Change, RecordState, StateBatch
from mainstem.wire.errors import Code, RequestError

_NO_END: Final = 2**63 - 1


class AckType(IntEnum):
    """What a member says of a record that it has; the numbers are those of the protocol."""

    GAP = 0
    """There is no such record in the log."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """It needs more time (ShareAcknowledge and ShareFetch from version 2 on)."""


class Limits(msgspec.Struct, frozen=True):
    """A group's settings, as they are at the call."""

    delivery_count: int = 5
    """How often a record is delivered at most."""
    record_locks: int = 2_000
    """Between start and end offset there are not to be more records, but the batch that was begun is taken whole."""
    lock_s: float = 30.0

    def few(self, delivery_count: int, batch_size: int) -> int | None:
        """How many records of a batch are delivered at once after so many deliveries, and without any others.

        None: as many as there are. From half of the limit on it is half of them, then a quarter, and at last one: among
        many there may be one that no member can bear, and the others are not to be given up with it.
        """
        several = max(2, (self.delivery_count + 1) // 2)
        if delivery_count < several or self.delivery_count <= 2:
            return None
        if delivery_count == self.delivery_count - 1:
            return 1
        return max(1, batch_size >> (delivery_count - several + 1))


class Fetched(msgspec.Struct, frozen=True):
    """A record batch that was read from the log."""

    first: int
    last: int  # inclusive
    deliverable: bool = True
    """False: of an aborted transaction, where the group reads committed records only."""


class Acquired(msgspec.Struct, frozen=True):
    """Records that a member has got, and how often they have been delivered by now."""

    first: int
    last: int  # inclusive
    delivery_count: int


class Acknowledged(msgspec.Struct, frozen=True):
    """What a member says of the records `first` to `last`: one type for all, or one for each."""

    first: int
    last: int  # inclusive
    types: Sequence[AckType]

    def parts(self) -> Iterator[tuple[int, int, AckType]]:
        """(first, last, type) of neighbours with the same type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        first = self.first
        for place, each in enumerate(self.types):
            offset = self.first + place
            if offset == self.last or self.types[place + 1] != each:
                yield first, offset, each
                first = offset + 1


def check_acknowledged(batches: Sequence[Acknowledged]) -> None:
    """Raise RequestError unless these can be what a member says of one partition: INVALID_REQUEST, or, of the record in
    which one batch ends and the next begins, INVALID_RECORD_STATE.
    """
    before = -1
    for batch in batches:
        if not before < batch.first <= batch.last:
            twice = before == batch.first <= batch.last and before >= 0
            raise RequestError(
                Code.invalid_record_state if twice else Code.invalid_request,
                f"expected acknowledgements in the order of offsets, found {batch.first} to {batch.last} after {before}",
            )
        if len(batch.types) not in (1, batch.last - batch.first + 1):
            raise RequestError(
                Code.invalid_request,
                f"records {batch.first} to {batch.last}: expected one type of acknowledgement for all or one for each, "
                f"found {len(batch.types)}",
            )
        before = batch.last


class Run(msgspec.Struct):
    """Neighbouring records in the same state."""

    first: int
    last: int  # inclusive
    state: RecordState
    delivery_count: int = 0
    member_id: str = ""
    """Who has acquired them."""
    deadline: float = inf
    """Until when (monotonic seconds)."""

    def same(self, other: "Run") -> bool:
        """True if the same is true of both but their offsets."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.deadline == other.deadline
            and self.member_id == other.member_id
        )


class SharePartition:
    """The records of one partition, for one share group. All offsets but `last` ones: the end is not included."""

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """From what was kept; nothing is acquired."""
        self.start_offset = self.end_offset = start_offset
        self._runs: list[Run] = []
        for batch in batches:
            self._extend(batch.first, RecordState.AVAILABLE)
            if batch.last >= self.end_offset:
                self._runs.append(Run(self.end_offset, batch.last, batch.state, batch.delivery_count))
                self.end_offset = batch.last + 1
        self._settle()

    # --- what is so ---------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Sequence[Run]:
        """In order; for tests and descriptions, not to be changed."""
        return self._runs

    @property
    def complete(self) -> int:
        """Records from the start offset on that are in a final state."""
        return sum(run.last - run.first + 1 for run in self._runs if run.state in FINAL)

    def fetch_offset(self) -> int:
        """Where to read next: the first record that is available, or the end."""
        return next((run.first for run in self._runs if run.state is RecordState.AVAILABLE), self.end_offset)

    def may_acquire(self, limits: Limits) -> bool:
        """False: all that is tracked is acquired or done, and no more may be: reading would be for nothing."""
        return self.fetch_offset() < self.end_offset or self.end_offset - self.start_offset < limits.record_locks

    def next_deadline(self) -> float | None:
        """When the first lock ends (monotonic seconds); None: nothing is acquired."""
        least = min((run.deadline for run in self._runs), default=inf)
        return None if least == inf else least

    def kept(self) -> tuple[StateBatch, ...]:
        """All that a snapshot is to have. What is acquired counts as it was before: available, delivered once less."""
        return tuple(_kept(run) for run in self._runs)

    # --- what happens -------------------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[Fetched],
        limits: Limits,
        now: float,
        *,
        fetch_offset: int,
        most: int,
        strict: bool = False,
        batch_size: int = 2_147_483_647,
    ) -> tuple[list[Acquired], Change | None]:
        """Lock what is available in batches that were read without a break from `fetch_offset` on.

        `most` records, or with `strict` not one more: else the record batch in which they end is taken whole. What the
        member gets is cut at the ends of record batches once it has `batch_size` records.

        Returns what it got, and what is to be kept, if something was found that cannot be delivered. Nobody needs to
        wait for that to be durable.
        """
        if not fetched or most <= 0:
            return [], None
        most, end = self._room(limits, most)
        grant = _Grant(member_id, now + limits.lock_s, limits, most, strict)
        changed: list[StateBatch] = []
        place = max(fetch_offset, self.start_offset)
        for batch in fetched:
            if grant.closed:
                break
            if batch.last < place:
                continue
            # Nothing is in the log between the last batch and this one: compaction has taken it away. Also where this
            # one is beyond what may be tracked: else there never was room for it.
            self._archive_available(place, min(batch.first, end), changed)
            if batch.first >= end:
                break
            first, last = max(place, batch.first), min(batch.last, end - 1)
            place = last + 1
            if not batch.deliverable:
                self._archive_available(first, last + 1, changed)
                continue
            self._extend(last + 1, RecordState.AVAILABLE)
            for run in self._within(first, last):
                if (grant.closed and strict) or grant.over:
                    break
                if run.state is RecordState.AVAILABLE:
                    self._grant(run, batch, grant, changed)
            grant.cuts.add(place)
        found = grant.answer(batch_size)
        return found, self._change(changed) if changed else None

    def acknowledge(self, member_id: str, batches: Sequence[Acknowledged], limits: Limits, now: float) -> Change | None:
        """Do with the member's records what it says: with all of them, or with none. None: nothing is to be kept.

        What is below the start offset is passed over: it is done.

        Raises:
            RequestError: INVALID_REQUEST: records that nobody can have; INVALID_RECORD_STATE: the member does not
                have (or does not have any more) one of them.
        """
        for batch in batches:
            if batch.last >= self.end_offset:
                raise RequestError(
                    Code.invalid_request,
                    f"records up to {self.end_offset - 1} have been delivered, found {batch.first} to {batch.last}",
                )
            for run in self._overlapping(batch.first, batch.last):
                if run.state is not RecordState.ACQUIRED or run.member_id != member_id:
                    raise RequestError(
                        Code.invalid_record_state,
                        f"records {run.first} to {run.last} are not acquired by {member_id}: they may have been for "
                        f"longer than the lock lasts",
                    )
        changed: list[StateBatch] = []
        for batch in batches:
            for first, last, kind in batch.parts():
                for run in self._within(first, last):
                    if run.state is RecordState.ACQUIRED:  # a batch may be there twice
                        self._apply(run, kind, limits, now, changed)
        return self._change(changed) if changed else None

    def release(self, member_id: str, limits: Limits) -> Change | None:
        """The member is gone: others may have what it has. None: it had nothing.

        It counts as delivered, as in Kafka: a record that ends every process that gets it is given up.
        """
        changed: list[StateBatch] = []
        for run in self._runs:
            if run.state is RecordState.ACQUIRED and run.member_id == member_id:
                self._give_back(run, limits, changed)
        return self._change(changed) if changed else None

    def expire(self, limits: Limits, now: float) -> Change | None:
        """Locks that have ended by `now` are taken away. None: none has."""
        changed: list[StateBatch] = []
        for run in self._runs:
            if run.deadline <= now:
                self._give_back(run, limits, changed)
        return self._change(changed) if changed else None

    def move_start(self, log_start_offset: int) -> bool:
        """Records below are deleted from the log; True if the start offset has moved.

        It is kept with the next change: after a crash, the log's start is the same again.
        """
        if log_start_offset <= self.start_offset:
            return False
        self._cut(log_start_offset)
        del self._runs[: self._place(log_start_offset)]
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._settle()
        return True

    # --- how ----------------------------------------------------------------------------------------------------------

    def _room(self, limits: Limits, most: int) -> tuple[int, int]:
        """How many records may be acquired, and below which offset. At the limit only what is tracked already."""
        free = limits.record_locks - (self.end_offset - self.start_offset)
        return (min(most, free), _NO_END) if free > 0 else (most, self.end_offset)

    def _grant(self, run: Run, batch: Fetched, grant: "_Grant", changed: list[StateBatch]) -> None:
        """Lock an available run of `batch`, or as much of it as may be taken."""
        if run.delivery_count >= grant.limits.delivery_count:  # the limit was lowered meanwhile
            self._set(run, RecordState.ARCHIVED, changed)
            return
        size = run.last - run.first + 1
        few = grant.limits.few(run.delivery_count, batch.last - batch.first + 1)
        if few is not None and grant.count:
            grant.over = True
            return
        size = min(size, few or size, grant.most - grant.count if grant.strict else size)
        self._cut(run.first + size)
        run.state, run.member_id, run.deadline = RecordState.ACQUIRED, grant.member_id, grant.deadline
        run.delivery_count += 1
        grant.count += size
        grant.taken.append(run)
        grant.over = few is not None

    def _apply(self, run: Run, kind: AckType, limits: Limits, now: float, changed: list[StateBatch]) -> None:
        match kind:
            case AckType.ACCEPT:
                self._set(run, RecordState.ACKNOWLEDGED, changed)
            case AckType.REJECT | AckType.GAP:
                self._set(run, RecordState.ARCHIVED, changed)
            case AckType.RELEASE:
                self._give_back(run, limits, changed)
            case AckType.RENEW:
                run.deadline = now + limits.lock_s

    def _give_back(self, run: Run, limits: Limits, changed: list[StateBatch]) -> None:
        again = run.delivery_count < limits.delivery_count
        self._set(run, RecordState.AVAILABLE if again else RecordState.ARCHIVED, changed)

    def _set(self, run: Run, state: RecordState, changed: list[StateBatch]) -> None:
        """Nobody has the run any more."""
        run.state, run.member_id, run.deadline = state, "", inf
        changed.append(StateBatch(run.first, run.last, state, run.delivery_count))

    def _archive_available(self, first: int, end: int, changed: list[StateBatch]) -> None:
        """The records from `first` to before `end` that nobody has: they are never to be delivered."""
        if first >= end:
            return
        before = self.end_offset
        self._extend(end, RecordState.ARCHIVED)
        if self.end_offset > before:
            changed.append(StateBatch(before, self.end_offset - 1, RecordState.ARCHIVED, 0))
        for run in self._within(first, min(end, before) - 1):
            if run.state is RecordState.AVAILABLE:
                self._set(run, RecordState.ARCHIVED, changed)

    def _extend(self, end: int, state: RecordState) -> None:
        """Track the records up to `end`."""
        if end > self.end_offset:
            self._runs.append(Run(self.end_offset, end - 1, state))
            self.end_offset = end

    def _place(self, offset: int) -> int:
        """Which run has `offset`; past the last one: how many there are."""
        place = bisect_right(self._runs, offset, key=lambda run: run.first) - 1
        return place if place >= 0 and offset <= self._runs[place].last else place + 1

    def _overlapping(self, first: int, last: int) -> Iterator[Run]:
        for place in range(self._place(first), len(self._runs)):
            run = self._runs[place]
            if run.first > last:
                return
            yield run

    def _within(self, first: int, last: int) -> list[Run]:
        """The runs of just these records: those at the ends are cut in two."""
        if last < first:
            return []
        self._cut(first)
        self._cut(last + 1)
        return list(self._overlapping(first, last))

    def _cut(self, offset: int) -> None:
        """Let a run begin at `offset`, if it is tracked."""
        place = self._place(offset)
        if place == len(self._runs) or self._runs[place].first >= offset:
            return
        run = self._runs[place]
        rest = Run(offset, run.last, run.state, run.delivery_count, run.member_id, run.deadline)
        run.last = offset - 1
        self._runs.insert(place + 1, rest)

    def _change(self, changed: list[StateBatch]) -> Change:
        """What is to be kept of `changed` once the start offset has followed."""
        self._settle()
        start = self.start_offset
        batches = sorted((each for each in changed if each.first >= start), key=lambda each: each.first)
        return Change(start, self.complete, tuple(batches))

    def _settle(self) -> None:
        """The start offset follows what is done; neighbours of the same kind become one."""
        done = 0
        while done < len(self._runs) and self._runs[done].state in FINAL:
            done += 1
        if done:
            self.start_offset = self._runs[done - 1].last + 1
            del self._runs[:done]
        merged: list[Run] = []
        for run in self._runs:
            if merged and merged[-1].same(run):
                merged[-1].last = run.last
            else:
                merged.append(run)
        self._runs = merged


def _kept(run: Run) -> StateBatch:
    if run.state is RecordState.ACQUIRED:
        return StateBatch(run.first, run.last, RecordState.AVAILABLE, run.delivery_count - 1)
    return StateBatch(run.first, run.last, run.state, run.delivery_count)


class _Grant:
    """What a member is getting."""

    def __init__(self, member_id: str, deadline: float, limits: Limits, most: int, strict: bool) -> None:
        self.member_id = member_id
        self.deadline = deadline
        self.limits = limits
        self.most = most
        self.strict = strict
        self.count = 0
        self.taken: list[Run] = []
        self.cuts: set[int] = set()  # where record batches begin
        self.over = False  # what comes next is to be delivered by itself, or what was taken is

    @property
    def closed(self) -> bool:
        return self.over or self.count >= self.most

    def answer(self, batch_size: int) -> list[Acquired]:
        """Neighbours that were delivered equally often, in pieces of `batch_size` or more, up to a batch's end."""
        found: list[Acquired] = []
        for run in self.taken:
            before = found[-1] if found else None
            if (
                before is not None
                and before.last + 1 == run.first
                and before.delivery_count == run.delivery_count
                and not (run.first in self.cuts and before.last - before.first + 1 >= batch_size)
            ):
                found[-1] = Acquired(before.first, run.last, run.delivery_count)
            else:
                found.append(Acquired(run.first, run.last, run.delivery_count))
        return found
