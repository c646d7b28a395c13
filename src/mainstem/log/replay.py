"""Bringing a partition to the state that checkpoint, journal and segments lead to; before anybody else has it.

`partition_recovery` says what there is, step by step, in a thread; `PartitionLog.start` is the end of it.
"""

from collections.abc import Iterable

import msgspec

from mainstem.log.checkpoint import PartitionState
from mainstem.log.compaction import Replacement
from mainstem.log.epochs import LeaderEpochs
from mainstem.log.partition import PartitionLog
from mainstem.log.producers import Producer, Producers, replay_batch, replay_marker
from mainstem.log.segment import Segment
from mainstem.records import BatchHeader, decode_marker


def restore(partition: PartitionLog, state: PartitionState) -> None:
    """Be what the checkpoint says."""
    partition.log_start_offset = state.log_start_offset
    partition.log_end_offset = state.log_end_offset
    partition.leader_epoch = state.leader_epoch
    partition.epochs = LeaderEpochs(state.epochs)
    partition.cleaned_offset = state.cleaned_offset
    partition.tombstones_expire_ms = state.tombstones_expire_ms
    for segment in state.segments:
        partition.segments.put(Segment(partition.directory, segment.base_offset, partition.segments.files, segment))
    for producer in sorted(state.producers, key=lambda p: p.transaction_first_offset):
        partition.producer_table.put(producer)
    partition.changed = False


def move_log_start(partition: PartitionLog, offset: int) -> None:
    """Nothing before `offset` counts any more; epochs before it may still be counted in."""
    if offset > partition.log_start_offset:
        partition.log_start_offset = offset
        partition.changed = True


def forget_producers(partition: PartitionLog) -> None:
    """What they have sent since is not known, nor whether their transactions have ended."""
    partition.producer_table = Producers()


def remember_producers(partition: PartitionLog, known: Iterable[Producer]) -> None:
    """What was known of producers before the segments were read anew: those whose records are deleted, epochs that
    fence older ones, and when their last batches came, which are not of an hour that their timestamps say.

    Of batches that are gone and not deleted nothing is known any more: their producer is to notice.
    """
    table, now, left = (
        partition.producer_table,
        partition.shared.clock.now_ms(),
        {each.producer_id: each for each in known},
    )
    for found in list(table):
        before = left.pop(found.producer_id, None)
        if before is None:
            table.put(msgspec.structs.replace(found, last_append_ms=now))
            continue
        is_fenced = found.producer_epoch < before.producer_epoch
        after = msgspec.structs.replace(
            found,
            producer_epoch=max(found.producer_epoch, before.producer_epoch),
            batches=() if is_fenced else found.batches,
            coordinator_epoch=max(found.coordinator_epoch, before.coordinator_epoch),
            last_append_ms=before.last_append_ms if found.last_offset == before.last_offset else now,
        )
        table.put(after)
    for before in left.values():
        is_deleted = before.last_offset < partition.log_start_offset
        batches = before.batches if is_deleted else ()
        table.put(msgspec.structs.replace(before, batches=batches, transaction_first_offset=-1))


def exchange(partition: PartitionLog, replacement: Replacement) -> None:
    """Compaction exchanged segments; files are `redo`'s matter."""
    files = partition.segments.files
    segment = Segment(partition.directory, replacement.state.base_offset, files, replacement.state)
    segment.unsaved = True  # no checkpoint has seen to its index files yet: they are those of what it replaces
    partition.put_in_place(segment, replacement.base_offsets)


def active_segment(partition: PartitionLog, base_offset: int) -> Segment:
    """The active segment, which begins at `base_offset`; a new one if that is the log end offset."""
    segments = partition.segments
    if not segments or segments.active.base_offset != base_offset:
        if segments:
            segments.active.seal()
        segments.add(base_offset)
        partition.changed = True
    return segments.active


def count_in(partition: PartitionLog, header: BatchHeader, batch: memoryview, *, append_ms: int | None = None) -> None:
    """Count in a batch that the active segment's file holds, appended now at the latest if nothing says when."""
    partition.segments.active.append(header, partition.config.indexed_bytes)
    partition.segments.changed = True
    partition.epochs.assign(header.leader_epoch, header.base_offset)
    partition.leader_epoch = max(partition.leader_epoch, header.leader_epoch)
    partition.log_end_offset = header.last_offset + 1
    partition.changed = True
    count_producer(partition, header, batch, append_ms=append_ms)


def count_producer(
    partition: PartitionLog, header: BatchHeader, batch: memoryview, *, append_ms: int | None = None
) -> None:
    """Count in what a batch says of its producer, which is all that counts of a deleted one."""
    if header.producer_id < 0:
        return
    if append_ms is None:
        append_ms = partition.shared.clock.now_ms()
    before = partition.producer_table.get(header.producer_id)
    if header.is_control:
        marker = decode_marker(batch)
        after = replay_marker(before, marker, header.max_timestamp, append_ms)
        partition.take_marker(before, after, marker, header.base_offset)
    else:
        partition.producer_table.put(replay_batch(before, header, append_ms))
