"""Repair: a damaged partition is cut at its first damaged batch. Only a person decides that, with the log stopped.

What is cut off is kept in a file beside the segments, ``<first lost offset>.lost``, and never written over: what a
repair that broke off has kept is in no other place. Its offsets are not given to other records: the partition goes on
where it ended. The checkpoint forgets the partition, so that the next start reads it from its segments, with its
producers and transactions.

1. recover the directory as a start does: what the journal holds is brought to the segments, also to damaged ones;
2. read every batch of the partition, up to the first that does not check out;
3. copy what lies behind to the ``.lost`` file;
4. cut, and let an empty segment's name say where the log ends; what is left of deleted segments goes too, or a
   transaction would be open that ended in one that is gone;
5. close without the partition, open again, put back what only the checkpoint knew: log start offset, leader epoch.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

from mainstem.core import Clock, TopicPartition, UserError
from mainstem.core.logging import get_logger
from mainstem.log import housekeeping
from mainstem.log.config import LogConfig, TopicConfig
from mainstem.log.directory import LogDirectory
from mainstem.log.disk import Disk, SystemDisk
from mainstem.log.partition import PartitionLog
from mainstem.log.salvage import find_batches
from mainstem.log.segment import LOG, SUFFIXES, BadBatch, OpenFiles, Segment, file_name
from mainstem.records import BatchHeader

log = get_logger()

LOST = ".lost"
_COPY_BYTES = 1 << 20


class UnknownPartition(UserError):
    """The directory has no such partition."""


class Damage(msgspec.Struct, frozen=True):
    """Where a partition is damaged, and what is lost when it is cut there."""

    path: Path
    position: int
    reason: str
    first_offset: int
    """The first offset that is lost."""
    end_offset: int
    """The first one that is not: it is the next to be given."""
    lost_bytes: int
    kept_in: Path


async def repair(
    path: Path, topic_partition: TopicPartition, *, clock: Clock, cut: bool, disk: Disk | None = None
) -> Damage | None:
    """Find the first damaged batch of a partition and, with `cut`, cut the partition there; None without damage.

    Raises:
        UnknownPartition: there is no such partition.
        LogDirectoryInUse: the log runs.
        CorruptFile: checkpoint or journal are damaged; no single partition is to blame.
    """
    disk = disk or SystemDisk()
    directory = await LogDirectory.open(path, LogConfig(), clock=clock, disk=disk)
    try:
        partition = directory.partitions.get(topic_partition)
        if partition is None:
            raise UnknownPartition(
                f"{path}: no partition {topic_partition}", hint="its directories are named after them"
            )
        damage = find_damage(partition, disk)
        if damage is None or not cut:
            return damage
        _remove_deleted(partition, disk)
        _cut(damage, disk)
        log_start, leader_epoch = partition.log_start_offset, partition.leader_epoch
        directory.forget_partition(topic_partition)
    finally:
        await directory.close()
    directory = await LogDirectory.open(path, LogConfig(), clock=clock, disk=disk)
    try:
        partition = directory.partitions[topic_partition]
        partition.config = TopicConfig()
        partition.raise_leader_epoch(leader_epoch + 1)
        if log_start > partition.log_start_offset:
            await housekeeping.delete_records(partition, log_start)
    finally:
        await directory.close()
    return damage


def find_damage(partition: PartitionLog, disk: Disk) -> Damage | None:
    """The first batch that does not check out, or bytes that are missing (blocking)."""
    known = {segment.base_offset: segment for segment in partition.segments}
    found = {int(p.stem): p for p in _segment_files(partition.directory, disk)}
    bases = sorted(found | {base: None for base, segment in known.items() if segment.size})
    files = OpenFiles(disk, 16)
    expected = bases[0] if bases else 0
    for place, base in enumerate(bases):
        following = bases[place + 1] if place + 1 < len(bases) else partition.log_end_offset
        if following <= partition.log_start_offset and place + 1 < len(bases):
            continue  # its records are deleted
        expected = max(expected, base)
        size = disk.file_size(found[base]) if base in found else 0
        wanted = known[base].size if base in known else 0
        dense = base in known and known[base].is_dense
        try:
            for header in _checked(Segment(partition.directory, base, files), size, wanted, expected, dense=dense):
                expected = header.next_offset
        except BadBatch as error:
            rest = [found[other] for other in bases[place + 1 :] if other in found]
            return _damage(partition, disk, partition.directory / file_name(base, LOG), expected, error, rest)
    return None


def _remove_deleted(partition: PartitionLog, disk: Disk) -> None:
    """Remove the segments all of whose records are deleted, in whatever order the disk has let go of them."""
    paths = _segment_files(partition.directory, disk)
    bases = sorted({int(path.stem) for path in paths} | {segment.base_offset for segment in partition.segments})
    for path in paths:
        following = next((base for base in bases if base > int(path.stem)), None)
        if following is not None and following <= partition.log_start_offset:
            for suffix in SUFFIXES:
                disk.unlink(path.with_suffix(suffix))


def _checked(segment: Segment, size: int, wanted: int, expected: int, *, dense: bool) -> Iterator[BatchHeader]:
    """The headers of a file's batches; BadBatch at the first that does not check out, or where bytes are missing."""
    for position, header, _ in segment.scan(0, size):
        if header.base_offset != expected if dense else header.base_offset < expected:
            raise BadBatch(f"offset {header.base_offset}, expected {expected}", position)
        yield header
        expected = header.next_offset
    if size < wanted:
        raise BadBatch(f"{size} bytes, {wanted} bytes were durable", size)


def _damage(partition: PartitionLog, disk: Disk, path: Path, offset: int, error: BadBatch, rest: list[Path]) -> Damage:
    position = error.position
    lost = max(0, disk.file_size(path) - position) if disk.exists(path) else 0
    end = max(partition.log_start_offset, partition.log_end_offset, offset)
    for each, start in [(path, position), *((other, 0) for other in rest)]:
        if disk.exists(each):
            end = max(end, int(each.stem), _last_valid_offset(each, start, disk) + 1)
    lost += sum(disk.file_size(other) for other in rest)
    kept_in = _unused(partition.directory, offset, disk)
    return Damage(path, position, str(error), offset, end, lost, kept_in)


def _unused(directory: Path, offset: int, disk: Disk) -> Path:
    """A file for what is lost from `offset` on; with ``.1.lost`` and so on where earlier repairs kept something."""
    names = (file_name(offset, f".{number}{LOST}" if number else LOST) for number in count())
    return next(path for name in names if not disk.exists(path := directory / name))


def _last_valid_offset(path: Path, start: int, disk: Disk) -> int:
    """The largest offset of any whole batch from `start` on, wherever one begins; -1 without one."""
    found = find_batches(disk.open(path), int(path.stem), start, disk.file_size(path))
    return max((header.last_offset for header in found), default=-1)


def _segment_files(directory: Path, disk: Disk) -> list[Path]:
    if not disk.exists(directory):
        return []
    return [path for path in disk.list(directory) if path.suffix == LOG and path.stem.isdigit()]


def _cut(damage: Damage, disk: Disk) -> None:
    """Steps 3 and 4; durable on return (blocking)."""
    directory = damage.path.parent
    disk.make_directory(directory)
    later = [path for path in _segment_files(directory, disk) if path.stem > damage.path.stem]
    kept = disk.open(damage.kept_in, create=True)
    written = 0
    for path, start in [(damage.path, damage.position), *((path, 0) for path in later)]:
        source = disk.open(path) if disk.exists(path) else None
        while source is not None and (piece := source.read(_COPY_BYTES, start)):
            kept.write([piece], written)
            start, written = start + len(piece), written + len(piece)
    kept.sync()
    end = disk.open(directory / file_name(damage.end_offset, LOG), create=True)
    disk.sync_directory(directory)
    for path in later:
        if path.name != file_name(damage.end_offset, LOG):
            for suffix in SUFFIXES:
                disk.unlink(path.with_suffix(suffix))
    if damage.position == 0 and damage.path.name != file_name(damage.end_offset, LOG):
        disk.unlink(damage.path)
    elif disk.exists(damage.path):
        file = disk.open(damage.path)
        file.truncate(damage.position)
        file.sync()
    if damage.path.name != file_name(damage.end_offset, LOG):
        end.truncate(0)
        end.sync()
    disk.sync_directory(directory)
