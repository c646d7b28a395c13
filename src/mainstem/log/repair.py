"""Repair: what is damaged of a partition is taken out of it. Only a person decides that, with the log stopped.

What is whole stays where it is and what it is, also behind the damage: the offsets between are left out, and given to
no other records. Their bytes are kept in files beside the segments, ``<first lost offset>.lost``, and never written
over: what a repair that broke off has kept is in no other place. Ends of transactions that were lost, as far as they
are known, are written again (`lost_markers`). The checkpoint forgets the partition, so that the next start reads it
from its segments, with its producers and transactions.

1. recover the directory as a start does: what the journal holds is brought to the segments, also to damaged ones;
2. find what is damaged (`damage`);
3. remove what is left of deleted segments, or a transaction would be open that ended in one that is gone;
4. set right what can be, while all is there that says what is right; then, beginning with the last damage: keep its
   bytes, put what is whole behind it into a segment of its own, cut it off. In front of that is a batch without
   records: a client asks for the offset behind the last one that it was given, and waits there as long as the log, or
   what is committed of it, ends later and nothing comes;
5. read the partition anew from its segments; log start offset and leader epoch are those that were known. All of that
   is in one checkpoint, and before that a start finds the damage again.
"""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mainstem.core import Clock, TopicPartition, UserError
from mainstem.log import checkpoint as checkpoints
from mainstem.log.checkpoint import PartitionState
from mainstem.log.config import LogConfig
from mainstem.log.damage import Damage, find_damage, segment_files
from mainstem.log.directory import LogDirectory
from mainstem.log.disk import Disk, File, SystemDisk
from mainstem.log.errors import CorruptFile, StorageError
from mainstem.log.partition import PartitionLog
from mainstem.log.partition_recovery import HELD, UNFINISHED, held_file, read_held
from mainstem.log.segment import LOG, SUFFIXES, file_name

_COPY_BYTES = 1 << 20
_FORGETS_NOBODY = LogConfig(producer_id_expiration_ms=2**63 - 1)
"""The log has settings of its own, and a producer that is forgotten too early sends again what is there."""


class UnknownPartition(UserError):
    """The directory has no such partition."""


class Repair(msgspec.Struct, frozen=True):
    """What was found, and mended if that was asked for."""

    damages: tuple[Damage, ...]
    """In the order of their offsets; none where the partition is whole."""
    open_transactions: dict[int, int]
    """Of the mended partition: producer id to first offset. Its readers of committed records get no further."""


async def repair(
    path: Path, topic_partition: TopicPartition, *, clock: Clock, mend: bool, disk: Disk | None = None
) -> Repair:
    """Find what is damaged of a partition and, with `mend`, take it out.

    Raises:
        UnknownPartition: there is no such partition.
        LogDirectoryInUse: the log runs.
        CorruptFile: checkpoint or journal are damaged; no single partition is to blame.
        StorageError: the disk refuses.
    """
    disk = disk or SystemDisk()
    # 1. recover
    directory = await LogDirectory.open(path, _FORGETS_NOBODY, clock=clock, disk=disk)
    try:
        partition = directory.partitions.get(topic_partition)
        if partition is None:
            raise UnknownPartition(
                f"{path}: no partition {topic_partition}", hint="its directories are named after them"
            )
        # 2. find
        words = _words_of(topic_partition, path, disk)
        damages = (*_find_held(partition, words, disk), *find_damage(partition, disk, saved=words is not None))
        if not damages or not mend:
            return Repair(damages, {})
        try:
            # 3. and 4.
            _remove_deleted(partition, disk, but={damage.path for damage in damages})
            last_first = [each for each in reversed(damages) if not each.set_right]
            for damage in (*(each for each in damages if each.set_right), *last_first):
                _mend(damage, disk)
            # 5. read anew
            partition = directory.read_again(topic_partition)
        except OSError as error:
            raise StorageError(
                f"{error.filename or partition.directory}: {error.strerror or error}: the repair is not done, and nothing"
                " is lost that was not before",
                hint="make room on the disk, say, then run it again",
            ) from error
        await directory.checkpoint()
        return Repair(damages, dict(partition.open_transactions))
    finally:
        await directory.close()


def _words_of(topic_partition: TopicPartition, path: Path, disk: Disk) -> PartitionState | None:
    """The checkpoint's."""
    saved = checkpoints.load(disk, path)
    states = map(checkpoints.decode_partition, saved.partitions if saved else [])
    return next((each for each in states if TopicPartition(each.topic, each.partition) == topic_partition), None)


def _find_held(partition: PartitionLog, words: PartitionState | None, disk: Disk) -> Iterator[Damage]:
    """What the journal had said when a start found damage: no start succeeds without it, however whole the rest is."""
    if words is None or not words.held:
        return
    try:
        read_held(partition.directory, words.held, disk)
    except (CorruptFile, FileNotFoundError) as error:
        path, end = held_file(partition.directory, words.held), partition.log_end_offset
        yield Damage(path, 0, str(error), end, end, 0, 0, None)


def _remove_deleted(partition: PartitionLog, disk: Disk, *, but: Set[Path]) -> None:
    """Remove the segments all of whose records are deleted, in whatever order the disk has let go of them; `but` those
    that are mended next.
    """
    paths = segment_files(partition.directory, disk)
    bases = sorted({int(path.stem) for path in paths} | {segment.base_offset for segment in partition.segments})
    for path in paths:
        following = next((base for base in bases if base > int(path.stem)), None)
        if path not in but and following is not None and following <= partition.log_start_offset:
            for suffix in SUFFIXES:
                disk.unlink(path.with_suffix(suffix))


def _mend(damage: Damage, disk: Disk) -> None:
    """Step 4 for one of them; durable on return (blocking).

    What is kept and moved is durable before anything is cut. A repair that breaks off in between finds the same again,
    and what is moved already where it has to be.
    """
    directory, path = damage.path.parent, damage.path
    if damage.path.suffix == HELD:  # the rest of the repair does without it
        return
    if damage.set_right:
        file = disk.open(path)
        file.write([damage.set_right], damage.position)
        file.sync()
        return
    disk.make_directory(directory)
    size = disk.file_size(path) if disk.exists(path) else 0
    goes_on = size if damage.goes_on is None else damage.goes_on
    if damage.kept_in is not None:
        with _removed_if_it_fails(damage.kept_in, disk):
            kept = disk.open(damage.kept_in, create=True)
            _copy(disk.open(path), damage.position, goes_on, kept, 0)
            kept.sync()
    put, moved = dict(damage.markers), None
    if damage.last_batch:
        put.setdefault(damage.end_offset - 1, damage.last_batch)
    if goes_on < size and put and path.name == file_name(min(put), LOG):
        # In a file of that name nothing may be elsewhere than it was: the journal may have more to write into it.
        _move(damage, {}, goes_on, size, directory / file_name(damage.end_offset, LOG), disk)
        disk.sync_directory(directory)
        goes_on = size
    if put or damage.position < goes_on < size:
        moved = directory / file_name(min([*put, damage.end_offset]), LOG)
        _move(damage, put, goes_on, size, moved, disk)
    if damage.goes_on is None and not put:
        _keep_end(damage.end_offset, directory, disk)
    disk.sync_directory(directory)
    if moved != path and (moved is not None or damage.goes_on is None):
        _cut(path, damage.position, damage.end_offset, disk)
        disk.sync_directory(directory)


def _move(damage: Damage, put: Mapping[int, bytes], start: int, end: int, to: Path, disk: Disk) -> None:
    """The batches `put`, by their offsets, and what is whole behind the damage, into a segment of their own."""
    unfinished = to.with_name(to.name + UNFINISHED)
    with _removed_if_it_fails(unfinished, disk):
        target = disk.open(unfinished, create=True)
        target.truncate(0)  # what a crash has left of it
        batches = b"".join(batch for _, batch in sorted(put.items()))
        target.write([batches], 0)
        if start < end:
            _copy(disk.open(damage.path), start, end, target, len(batches))
        target.sync()
    disk.rename(unfinished, to)


@contextmanager
def _removed_if_it_fails(path: Path, disk: Disk) -> Iterator[None]:
    """A full disk has the more room for it the next time."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            disk.unlink(path)
        raise


def _copy(source: File, start: int, end: int, target: File, position: int) -> None:
    while start < end and (piece := source.read(min(_COPY_BYTES, end - start), start)):
        target.write([piece], position)
        start, position = start + len(piece), position + len(piece)


def _keep_end(end_offset: int, directory: Path, disk: Disk) -> None:
    """Nothing follows in the segment: where none begins behind it either, an empty one does."""
    if all(int(path.stem) < end_offset for path in segment_files(directory, disk)):
        disk.open(directory / file_name(end_offset, LOG), create=True)


def _cut(path: Path, position: int, end_offset: int, disk: Disk) -> None:
    if not disk.exists(path):
        return
    if position == 0 and path.name != file_name(end_offset, LOG):
        for suffix in SUFFIXES:
            disk.unlink(path.with_suffix(suffix))
        return
    file = disk.open(path)
    file.truncate(position)
    file.sync()
