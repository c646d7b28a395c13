"""How records leave a partition: deleted by request, expired, or replaced by later ones of their key.

Each change is durable in the journal before it shows, and before a file goes. On the event loop; files are deleted in
threads, and compaction works in the cleaner's process.
"""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from mainstem.core import CorruptData
from mainstem.core.logging import get_logger
from mainstem.log import compaction
from mainstem.log.cleaner import Cleaner
from mainstem.log.compaction import Cleaned, Plan, Replacement
from mainstem.log.errors import OffsetOutOfRange, StorageError
from mainstem.log.journal import LOG_START, REPLACE, Entry
from mainstem.log.partition import PartitionLog
from mainstem.log.retention import expired_before
from mainstem.log.segment import Segment

log = get_logger()


# -- by offset and by age ---------------------------------------------------------------------------------------------


async def delete_records(partition: PartitionLog, before_offset: int) -> int:
    """Make `before_offset` the log start offset (-1: the high watermark), durably; the new log start offset.

    Raises:
        OffsetOutOfRange: above the high watermark.
        StorageError: the partition or its directory is offline.
    """
    partition.check_appendable()
    high_watermark = partition.high_watermark
    target = high_watermark if before_offset == -1 else before_offset
    if not 0 <= target <= high_watermark:
        raise OffsetOutOfRange(f"{partition.topic_partition}: offset {target}, expected 0 to {high_watermark}")
    await _advance_log_start(partition, lambda: target)
    return partition.log_start_offset


async def enforce_retention(partition: PartitionLog) -> int:
    """Let go what `retention.ms` and `retention.bytes` do not keep; how many bytes that frees.

    Raises:
        StorageError: the partition or its directory is offline.
    """
    partition.check_appendable()

    def expired() -> int:
        now, active = partition.shared.clock.now_ms(), partition.segments.active
        target = expired_before(
            partition.segments, partition.log_start_offset, partition.high_watermark, partition.config, now
        )
        if target > active.base_offset and active.size:
            partition.roll()  # the active segment goes too: its successor takes the next append
        return target

    return await _advance_log_start(partition, expired)


async def _advance_log_start(partition: PartitionLog, where: Callable[[], int]) -> int:
    """Make it durable, forget what is before it, delete the files; how many bytes that frees."""
    moves = where() > partition.log_start_offset  # it may roll the active segment, whose file is left then
    # A full disk may let it become durable and not create a file: then the files before it are still there.
    left = len(partition.segments) > 1 and partition.segments[1].base_offset <= partition.log_start_offset
    if not moves and not left:
        return 0
    async with partition.leaving:
        partition.check_usable()  # it may be deleted meanwhile: then the journal must not speak of it any more
        target = where()  # by the topic's settings as they are now
        if target > partition.log_start_offset:
            entry = Entry(LOG_START, partition.topic_id, partition.number, target)
            await partition.shared.writer.note(entry, lambda: partition.move_log_start(target))
        await _name_beginning(partition)
        dropped = partition.drop_segments()
        await partition.shared.threads.run(_unlink, dropped)
    freed = sum(segment.size for segment in dropped)
    log.info("log_start_advanced", partition=str(partition.topic_partition), offset=target, bytes_freed=freed)
    return freed


async def _name_beginning(partition: PartitionLog) -> None:
    """Let the file of the segment that the log will begin in be there before anything before it goes: where nothing
    else is left, its name says where the log ends. All before it is durable, which is not so of every later name.
    """
    named = None
    try:
        while named is not (beginning := partition.segments.holding(partition.log_start_offset)):
            named = beginning  # the active one may be rolled meanwhile
            await _name(partition, beginning)
    except OSError as error:
        raise StorageError(f"{partition.topic_partition}: {error}") from error


async def _name(partition: PartitionLog, segment: Segment | None) -> None:
    assert segment is not None, "only sealed segments go"
    await partition.shared.threads.run(segment.file_to_write, 0)
    partition.segments.changed = True


def _unlink(segments: list[Segment]) -> None:
    for segment in segments:
        try:
            segment.unlink()
        except OSError as error:  # they are deleted all the same: the next start removes what is left
            log.warning("deleted_files_left", path=str(segment.path), error=str(error))


# -- by key -----------------------------------------------------------------------------------------------------------


def roll_if_old(partition: PartitionLog) -> None:
    """Seal an active segment that has waited long enough for compaction."""
    active, config = partition.segments.active, partition.config
    lag = min(config.segment_ms, config.max_compaction_lag_ms)
    if active.size and 0 <= active.first_append_ms < partition.shared.clock.now_ms() - lag:
        partition.roll()


def waits_for_checkpoint(partition: PartitionLog) -> bool:
    """There are sealed segments that only a checkpoint makes ready for compaction."""
    return any(segment.checkpointed_size != segment.size for segment in partition.segments[:-1])


async def compact(partition: PartitionLog, cleaner: Cleaner, *, most_keys: int) -> bool:
    """Keep the last record per key, where there is enough to gain; whether a compaction was completed.

    It gives up soon after the cleaner is stopped. It holds at most `most_keys` keys.

    Raises:
        StorageError: the partition or its directory is offline, or the disk refuses; damage takes the partition there.
    """
    partition.check_appendable()
    plan = _plan(partition, most_keys)
    if plan is None:
        return False
    try:
        # Compaction may take the last records before it: then its name says where they ended.
        await _name(partition, partition.segments.after(plan.segments[-1]))
        result = await cleaner.run(plan, partition.segments.files)
    except CorruptData as error:
        if any(segment.retired for segment in plan.segments):
            return False  # another process may have met files of the next topic of that name
        raise partition.found_damage(plan.segments[0], error) from error
    except OSError as error:
        if any(segment.retired for segment in plan.segments):
            return False  # they were deleted meanwhile
        raise StorageError(f"{partition.topic_partition}: compaction: {error}") from error
    if result is None:
        return False
    before = sum(segment.size for segment in plan.segments)
    left = list(result.files)
    try:
        while left:
            if not await _exchange(partition, left[0]):
                # What comes later was written without what this one replaces: a tombstone gone from there would let
                # the value that is still here come back. The next pass does it all anew.
                return False
            del left[0]
    finally:
        # Where the directory is offline, the journal may have its word of one: the next start decides.
        if left and not partition.shared.writer.is_stopped:
            await partition.shared.threads.run(compaction.discard, left, partition.segments.files.disk)
    partition.cleaned_offset = result.end_offset
    partition.tombstones_expire_ms = result.horizon_ms
    partition.changed = True
    log.info(
        "log_compacted",
        partition=str(partition.topic_partition),
        end_offset=result.end_offset,
        bytes_before=before,
        bytes_after=before - sum(cleaned.gain for cleaned in result.files),
    )
    return True


def _plan(partition: PartitionLog, most_keys: int) -> Plan | None:
    config, now = partition.config, partition.shared.clock.now_ms()
    segments = compaction.cleanable(partition.segments, partition.last_stable_offset, config, now)
    dirty = [segment for segment in segments if segment.next_offset > partition.cleaned_offset]
    overdue = any(0 <= s.first_append_ms < now - config.max_compaction_lag_ms for s in dirty)
    ratio = compaction.dirty_ratio(segments, partition.cleaned_offset)
    enough = bool(dirty) and (overdue or ratio >= config.min_cleanable_dirty_ratio)
    tombstones = bool(segments) and 0 < partition.tombstones_expire_ms <= now
    if not (enough or tombstones):
        return None
    return Plan(
        segments=segments,
        dirty_offset=partition.cleaned_offset,
        end_offset=segments[-1].next_offset,
        aborted=[aborted for segment in partition.segments for aborted in segment.aborted],
        last_offsets_of_producers=frozenset(producer.last_offset for producer in partition.producers()),
        now_ms=now,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_interval_bytes=config.indexed_bytes,
        most_keys=most_keys,
    )


async def _exchange(partition: PartitionLog, cleaned: Cleaned) -> bool:
    """Put the cleaned file in the place of what it replaces; False where some of that is gone meanwhile, or the topic
    is to be compacted no longer.

    1. say so in the journal, 2. rename the file, 3. forget the old segments, 4. delete the others' files.
    After a crash the journal decides: with its word the exchange is completed, without it the file is removed.
    """
    async with partition.leaving:
        # Where nobody has it open, the rename itself frees what it takes up, and that takes a while.
        with suppress(OSError):
            await partition.shared.threads.run(_open, cleaned.replaces[0])
        partition.check_usable()  # it may be deleted meanwhile: then the journal must not speak of it any more
        if any(segment.retired for segment in cleaned.replaces) or not partition.config.compacts:
            return False
        base_offsets = [segment.base_offset for segment in cleaned.replaces]
        replacement = Replacement(cleaned.segment.state(), base_offsets)
        entry = Entry(REPLACE, partition.topic_id, partition.number, payload=(msgspec.msgpack.encode(replacement),))

        def put_in_place() -> None:
            # On the loop: a rename is quick, and nobody may see the new segment with the old file.
            renamed = (cleaned.path, cleaned.segment.path)
            partition.segments.files.retire(cleaned.replaces, renamed=renamed)
            partition.put_in_place(cleaned.segment, base_offsets)

        await partition.shared.writer.note(entry, put_in_place)
        await partition.shared.threads.run(_unlink, cleaned.replaces[1:])
        # The new file has the name of the first one's, which is not deleted but let go.
        await partition.shared.threads.run(partition.segments.files.forget, cleaned.replaces[0])
        return True


def _open(segment: Segment) -> None:
    _ = segment.file
