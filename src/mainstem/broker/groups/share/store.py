"""The states of all share partitions, as `__share_group_state` has them: which record a change becomes. No I/O.

A share partition's first record is a snapshot; then come updates, which have the epoch of that snapshot, and after so
many of them the next snapshot, with the next epoch. Records below the last snapshots of all are of no account.

`record` changes nothing: who calls it appends the record, and gives it to `replay` when it is durable. Of one share
partition there is one record on its way at a time; what happens meanwhile becomes one change (`state.one_change`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from mainstem.broker.groups.share.records import (
    PartitionKey,
    SnapshotKey,
    SnapshotValue,
    StateKey,
    StateValue,
    UpdateKey,
    UpdateValue,
)
from mainstem.broker.groups.share.state import Change, ShareState

UPDATES_PER_SNAPSHOT: Final = 500


class _Kept(msgspec.Struct):
    state: ShareState
    snapshot_epoch: int
    created_ms: int
    updates: int = 0


class ShareStates:
    """By share partition."""

    def __init__(self, updates_per_snapshot: int = UPDATES_PER_SNAPSHOT) -> None:
        self._updates_per_snapshot = updates_per_snapshot
        self._kept: dict[PartitionKey, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(list(self._kept))

    def get(self, key: PartitionKey) -> ShareState | None:
        """What is kept of a share partition; None: nothing."""
        kept = self._kept.get(plain(key))
        return None if kept is None else kept.state

    def of_group(self, group: str) -> dict[PartitionKey, ShareState]:
        """What is kept of a group's share partitions."""
        return {key: kept.state for key, kept in self._kept.items() if key.group == group}

    def record(self, key: PartitionKey, change: Change, leader_epoch: int, now_ms: int) -> tuple[StateKey, StateValue]:
        """The record that says what has changed.

        Raises:
            KeyError: nothing is kept of the share partition: a bug in the caller, who writes a snapshot first.
        """
        kept = self._kept[plain(key)]
        if kept.updates >= self._updates_per_snapshot:
            state = msgspec.structs.replace(kept.state.updated(change), leader_epoch=leader_epoch)
            return self.snapshot(key, state, now_ms)
        return UpdateKey(key.group, key.topic_id, key.partition), UpdateValue(
            snapshot_epoch=kept.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            complete=change.complete,
            batches=change.batches,
        )

    def snapshot(self, key: PartitionKey, state: ShareState, now_ms: int) -> tuple[StateKey, StateValue]:
        """The record that says all anew: the first one, one after many updates, or because the offset was set."""
        kept = self._kept.get(plain(key))
        return SnapshotKey(key.group, key.topic_id, key.partition), SnapshotValue(
            snapshot_epoch=0 if kept is None else kept.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            complete=state.complete,
            created_ms=now_ms if kept is None else kept.created_ms,
            written_ms=now_ms,
            batches=state.batches,
        )

    def replay(self, key: StateKey, value: StateValue | None) -> None:
        """A record is durable, or was read at the start. None: the share partition's state is deleted.

        An update of another snapshot than the last is passed over.
        """
        whose = plain(key)
        if value is None:
            if isinstance(key, SnapshotKey):
                self._kept.pop(whose, None)
            return
        if isinstance(value, SnapshotValue):
            state = ShareState(
                start_offset=value.start_offset,
                state_epoch=value.state_epoch,
                leader_epoch=value.leader_epoch,
                complete=max(value.complete, 0),
                batches=value.batches,
            )
            self._kept[whose] = _Kept(state, value.snapshot_epoch, value.created_ms)
            return
        kept = self._kept.get(whose)
        if kept is None or kept.snapshot_epoch != value.snapshot_epoch:
            return
        change = Change(value.start_offset, max(value.complete, 0), value.batches)
        kept.state = msgspec.structs.replace(kept.state.updated(change), leader_epoch=value.leader_epoch)
        kept.updates += 1


def plain(key: PartitionKey) -> PartitionKey:
    """The share partition that a record is of, whatever kind of record: structs of different types are never equal."""
    return key if type(key) is PartitionKey else PartitionKey(key.group, key.topic_id, key.partition)
