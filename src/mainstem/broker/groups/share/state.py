"""What is kept of a share partition: where it starts, and what has become of single records above that.

A record that nothing is said of, is available and was never delivered. Who has acquired a record, and until when, is
not kept: after a start it is available again.

Updates are laid over what was there; `laid_over` is the only place that knows how.
"""

import enum
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec


class RecordState(enum.IntEnum):
    """What has become of a record; the numbers are stored. ACQUIRED never is."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4
    """It is not to be delivered any more: rejected, delivered too often, aborted, or not in the log at all."""


FINAL: Final = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
"""What a record never leaves again."""

UNKNOWN: Final = -1
"""A start offset that is found when the partition is first read."""


class StateBatch(msgspec.Struct, frozen=True):
    """Neighbouring records of which the same is true."""

    first: int
    last: int  # inclusive
    state: RecordState
    delivery_count: int


class Change(msgspec.Struct, frozen=True):
    """What an update says."""

    start_offset: int
    complete: int
    """Records from `start_offset` on that are in a final state (KIP-1226)."""
    batches: tuple[StateBatch, ...] = ()


def one_change(changes: Sequence[Change]) -> Change:
    """What these say one after the other (there is one at least)."""
    start = max(change.start_offset for change in changes)
    batches: tuple[StateBatch, ...] = ()
    for change in changes:
        batches = laid_over(batches, change.batches, start)
    return Change(start, changes[-1].complete, batches)


class ShareState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a share partition."""

    start_offset: int
    """Or UNKNOWN."""
    state_epoch: int = 0
    """It grows whenever somebody sets the offset anew after the partition was read: what was delivered of before is
    then no longer of account."""
    leader_epoch: int = 0
    complete: int = 0
    batches: tuple[StateBatch, ...] = ()

    def updated(self, change: Change) -> "ShareState":
        """The state with `change` laid over it."""
        start = max(self.start_offset, change.start_offset)
        return msgspec.structs.replace(
            self,
            start_offset=start,
            complete=change.complete,
            batches=laid_over(self.batches, change.batches, start),
        )

    def below(self, end: int, leader_epoch: int) -> "ShareState":
        """Without what is said of records from `end` on: they are lost, and others will have their offsets. It is as of
        `leader_epoch`.
        """
        batches = tuple(
            batch if batch.last < end else StateBatch(batch.first, end - 1, batch.state, batch.delivery_count)
            for batch in self.batches
            if batch.first < end
        )
        done = sum(batch.last - batch.first + 1 for batch in batches if batch.state in FINAL)
        start = min(self.start_offset, end)
        return msgspec.structs.replace(
            self, start_offset=start, leader_epoch=leader_epoch, complete=done, batches=batches
        )

    @property
    def end_offset(self) -> int:
        """No record from here on was delivered, as far as is known."""
        return max(self.start_offset, self.batches[-1].last + 1 if self.batches else 0)


def laid_over(batches: Iterable[StateBatch], updates: Iterable[StateBatch], start: int) -> tuple[StateBatch, ...]:
    """What is true of the records from `start` on: `updates` where they say something, else `batches`.

    Both are ordered by offset and do not overlap in themselves; so is the result, in as few batches as can be.
    """
    above = list(updates)
    lasts = [each.last for each in above]
    found = list(above)
    for batch in batches:
        place = bisect_left(lasts, batch.first)
        if place == len(above) or above[place].first > batch.last:
            found.append(batch)
        else:
            found += _without(batch, islice(above, place, None))
    found.sort(key=lambda each: each.first)
    merged: list[StateBatch] = []
    before: StateBatch | None = None
    for each in found:
        if each.last < start:
            continue
        batch = each if each.first >= start else StateBatch(start, each.last, each.state, each.delivery_count)
        if (
            before is not None
            and before.last + 1 == batch.first
            and before.state is batch.state
            and before.delivery_count == batch.delivery_count
        ):
            before = merged[-1] = StateBatch(before.first, batch.last, batch.state, batch.delivery_count)
        else:
            merged.append(batch)
            before = batch
    return tuple(merged)


def _without(batch: StateBatch, covered: Iterable[StateBatch]) -> list[StateBatch]:
    """What of `batch` is left where these, which are in order, are taken away."""
    left: list[StateBatch] = []
    first = batch.first
    for each in covered:
        if each.first > batch.last:
            break
        if each.first > first:
            left.append(StateBatch(first, each.first - 1, batch.state, batch.delivery_count))
        first = each.last + 1
    if first <= batch.last:
        left.append(StateBatch(first, batch.last, batch.state, batch.delivery_count))
    return left
