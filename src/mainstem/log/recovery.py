"""From the files to the partitions, at start.

1. the checkpoint says which partitions there are, and what of them was durable when it was taken;
2. the journal says what happened since, partitions that came and went too;
3. directories that neither knows are another program's, or deleted, or the checkpoint is gone: these are read whole;
4. every partition is brought to where that leads (`partition_recovery`), for itself: one that is damaged is offline, in
   plain sight, and the others go on. Then the checkpoint keeps its words of it, and what the journal says of it is held
   in a file until a start succeeds.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import msgspec

from mainstem.core import CorruptData, TopicPartition
from mainstem.core.logging import get_logger
from mainstem.log import checkpoint as checkpoints
from mainstem.log.checkpoint import Checkpoint, PartitionState
from mainstem.log.disk import Disk
from mainstem.log.errors import CorruptFile, StorageError
from mainstem.log.journal import NAMES, Frame, generation_of, next_generation, read_frames
from mainstem.log.metadata import (
    DELETED,
    create_files,
    doomed_name,
    lacks_topic_id,
    list_files,
    read_topic_id,
    restore_topic_id,
    sync_files,
)
from mainstem.log.partition import PartitionLog
from mainstem.log.partition_recovery import PartitionRecovery
from mainstem.log.redo import Changes, Key, changes_by_partition, write_again
from mainstem.log.round import FULL, NOT_OPENED
from mainstem.log.segment import LOG, file_name

log = get_logger()

_OLD_NAMES = ("journal-0", "journal-1")
_HINT = "nothing is lost: see to room on the disk, memory and file descriptors, then start again"

MakePartition = Callable[[TopicPartition, UUID], PartitionLog]


class Recovered(msgspec.Struct, frozen=True):
    """What a data directory holds."""

    partitions: list[PartitionLog]
    created: list[Path]
    """Directories of those that the journal creates: the next checkpoint makes them durable."""
    kept: dict[TopicPartition, msgspec.Raw]
    """The checkpoint's own words about partitions: of those that are offline they stay."""
    generation: int
    """The journal may begin with this one."""
    sequence: int
    clean: bool


def recover(path: Path, disk: Disk, make_partition: MakePartition) -> Recovered:
    """Read a data directory (blocking); what is found survives a crash of the machine with the next checkpoint.

    Raises:
        CorruptFile: the checkpoint or the journal is damaged, so that no partition can be trusted.
        StorageError: the machine is short of something; nothing is lost, and the next start may have it.
        OSError: the disk failed.
    """
    _rename_journal(path, disk)
    _sync(path, disk)
    saved = checkpoints.load(disk, path)
    frames = _read_journal(path, disk, saved)
    if frames:
        _write_again(frames[-1])
    recovery = _Recovery(path, disk, make_partition, saved, changes_by_partition(frames))
    recovery.add_saved()
    recovery.add_created()
    recovery.add_found()
    recovery.check_journal()
    for partition in recovery.partitions.values():
        _guard(partition, partition.run)
    clean = saved.clean and not frames and not recovery.touched if saved else not recovery.partitions
    recovery.finish(clean=clean)
    return Recovered(
        [each.partition for each in recovery.partitions.values()],
        recovery.created,
        recovery.kept,
        generation=next_generation(max([saved.generation if saved else 0, *(frame.generation for frame in frames)])),
        sequence=frames[-1].sequence + 1 if frames else saved.sequence if saved else 1,
        clean=clean,
    )


def _rename_journal(path: Path, disk: Disk) -> None:
    """Of a directory from before its files had names that are no topic's."""
    for old, new in zip(_OLD_NAMES, NAMES, strict=True):
        if disk.exists(path / old) and not disk.is_directory(path / old) and not disk.exists(path / new):
            disk.rename(path / old, path / new)  # durable before anything is acted on: the directory is synced next


def _sync(path: Path, disk: Disk) -> None:
    """Make durable what the start is going to act on.

    A kill may leave the last round, and the checkpoint's name, in the page cache alone: a power cut amid the start
    would take them, and leave what was deleted because of them.
    """
    for name in NAMES:
        with suppress(FileNotFoundError):
            disk.open(path / name).sync()
    disk.sync_directory(path)


def _read_journal(path: Path, disk: Disk, saved: Checkpoint | None) -> list[Frame]:
    files = []
    for name in NAMES:
        try:
            file = disk.open(path / name)
        except FileNotFoundError:
            if saved is not None and not saved.clean:  # both are there before a checkpoint says so
                raise CorruptFile(
                    f"{path / name}: expected what was acknowledged before the log was killed, found no file",
                    hint="put it back; an empty file in its place says that what is in no segment is given up",
                ) from None
            continue
        found = generation_of(file)
        if saved is not None and found is not None and found > saved.generation + 1:
            # A checkpoint is there before what follows it is written; nothing but an older one is behind the journal.
            raise CorruptFile(
                f"{path / checkpoints.NAME}: older than {path / name}, which has what was acknowledged since",
                hint="restore the one of that time; or move it away: then every batch of every partition is read",
            )
        # After a clean end nothing of it counts, as its first page tells; the whole may be a quarter of a gigabyte.
        may_count = file.size() > 0 if found is None else saved is None or found >= saved.generation
        if saved is None or not saved.clean or may_count:
            files.append(file)
    if saved is None:
        return read_frames(files, generation=None, sequence=None)
    return read_frames(files, generation=saved.generation, sequence=saved.sequence)


def _write_again(last: Frame) -> None:
    """Make the last round durable, also after a sync that failed: another one succeeds without it."""
    assert last.stored is not None
    file, start = last.stored.file, last.stored.position
    try:
        write_again(file, start, start + last.size)
        file.sync()
    except OSError as error:
        if error.errno in FULL + NOT_OPENED:
            raise StorageError(str(error), hint=_HINT) from error
        raise


class _Recovery:
    def __init__(
        self,
        path: Path,
        disk: Disk,
        make_partition: MakePartition,
        saved: Checkpoint | None,
        changes: dict[Key, Changes],
    ) -> None:
        self.path = path
        self.disk = disk
        self.make_partition = make_partition
        self.saved = saved
        self.changes = changes
        self.partitions: dict[Key, PartitionRecovery] = {}
        self.deleted_names = {
            str(TopicPartition(topic, key[1])) for key, each in changes.items() for topic in each.topics_deleted
        }
        """Directories of partitions that the journal deletes, and perhaps of others of these names since."""
        self.created: list[Path] = []
        self.kept: dict[TopicPartition, msgspec.Raw] = {}

    @property
    def touched(self) -> bool:
        return any(partition.touched for partition in self.partitions.values())

    # -- 1. to 3. which partitions there are --------------------------------------------------------------------------

    def add_saved(self) -> None:
        """Those of the checkpoint."""
        for raw in self.saved.partitions if self.saved else []:
            words = checkpoints.decode_partition(raw)
            key = (UUID(hex=words.topic_id), words.partition)
            changes = self._changes_of(key)
            if changes.deleted or changes.topic is not None:  # these are the words of one that was deleted
                self.deleted_names.add(str(TopicPartition(words.topic, words.partition)))
            else:
                partition = self.make_partition(TopicPartition(words.topic, words.partition), key[0])
                self._add(partition, words)
                self.kept[partition.topic_partition] = raw

    def add_created(self) -> None:
        """Those that the journal creates, with their directories."""
        for key, changes in self.changes.items():
            if changes.topic is not None and key not in self.partitions:
                partition = self.make_partition(TopicPartition(changes.topic, key[1]), key[0])
                self._create_files(partition)
                self.created.append(partition.directory)
                words = partition.state() if self.saved is not None else None
                self._add(partition, words)
                self._keep(partition, words)

    def _create_files(self, partition: PartitionLog) -> None:
        """Its directory may be there; that of a deleted topic of its name may be there instead, from which a power cut
        may have taken the id. Where that is damaged it is its own: what is in it was acknowledged.
        """
        directory = partition.directory
        found = read_topic_id(self.disk, directory)
        if found is None:
            deleted = directory.name in self.deleted_names and lacks_topic_id(self.disk, directory)
        else:
            deleted = self._changes_of((found, partition.number)).deleted
        if found != partition.topic_id and not deleted and list_files(self.disk, directory):
            log.warning("topic_id_restored", path=str(directory), topic_id=str(partition.topic_id))
            restore_topic_id(self.disk, directory, partition.topic_id)
        else:
            create_files(self.disk, directory, partition.topic_id)

    def add_found(self) -> None:
        """Those that only directories tell of; what is deleted or unfinished goes."""
        known = {each.partition.directory for each in self.partitions.values()}
        found: dict[Key, Path] = {}
        for directory in self.disk.list(self.path):
            if directory in known or not self.disk.is_directory(directory):
                continue
            topic, _, number = directory.name.rpartition("-")
            topic_id = read_topic_id(self.disk, directory)
            if topic_id is None or not topic or not number.isdigit():
                # Of one that is deleted a power cut may have taken the id and left the rest, or left its file empty.
                if directory.name.endswith(DELETED) or (topic_id is None and directory.name in self.deleted_names):
                    self.disk.remove_tree(directory)
                else:
                    log.warning("directory_ignored", path=str(directory), reason="not a partition")
                continue
            key = (topic_id, int(number))
            if key in found:
                raise StorageError(
                    f"{directory}: expected partition {number} of topic id {topic_id} once, "
                    f"found it in {found[key].name} too",
                    hint="move the one that is a copy to another place",
                )
            if key in self.partitions:  # what the journal has of it is the other one's
                reason = f"its partition is in {self.partitions[key].partition.directory.name}"
                hint = "keep a copy elsewhere; if the partition is damaged, move back what is missing there"
                log.warning("directory_ignored", path=str(directory), reason=reason, hint=hint)
            elif self._changes_of(key).deleted or self._is_unfinished(directory):
                doomed = doomed_name(directory)  # else a kill may leave files that no later start knows to be deleted
                self.disk.rename(directory, doomed)
                self.disk.remove_tree(doomed)
            else:
                found[key] = directory
                self._add(self.make_partition(TopicPartition(topic, int(number)), topic_id), None)
                self.created.append(directory)  # perhaps a kill came before its files were durable

    def _is_unfinished(self, directory: Path) -> bool:
        """A creation that the journal does not know; where the checkpoint is gone it may be an empty partition."""
        if self.saved is None:
            return False
        # An empty segment's name says where the log ends; the first one's does not.
        return not any(
            path.suffix == LOG and (self.disk.file_size(path) or path.stem != file_name(0, ""))
            for path in list_files(self.disk, directory)
        )

    def _add(self, partition: PartitionLog, words: PartitionState | None) -> None:
        key = (partition.topic_id, partition.number)
        self.partitions[key] = PartitionRecovery(partition, words, self._changes_of(key))
        if words is None:
            log.warning("partition_read_from_segments", partition=str(partition.topic_partition))

    def _keep(self, partition: PartitionLog, words: PartitionState | None) -> None:
        if words is not None:
            self.kept[partition.topic_partition] = checkpoints.encode_partition(words)

    def _changes_of(self, key: Key) -> Changes:
        return self.changes.get(key) or Changes()

    def check_journal(self) -> None:
        """All that it speaks of is there."""
        for topic_id, number in self.changes.keys() - self.partitions.keys():
            if self.changes[topic_id, number].deleted:
                continue
            if self.saved is not None:
                raise CorruptFile(f"journal: a change of partition {number} of topic id {topic_id}, which is not there")
            log.error("journal_entry_without_partition", topic_id=str(topic_id), partition=number)

    # -- 4. what the next checkpoint will say --------------------------------------------------------------------------

    def finish(self, *, clean: bool) -> None:
        for each in self.partitions.values():
            partition = each.partition
            if partition.error is None:
                partition.start(bump_epoch=not clean)  # names of files are durable with the checkpoint
                if not clean:
                    # Also where a start before, which was killed, has removed what lay behind a hole: brought back by a
                    # power cut, it would be taken by a repair for the partition's own.
                    partition.segments.changed = True
            else:
                if each.is_known_by_the_journal_alone():
                    self._refuse(partition)
                if not clean:
                    each.raise_epoch()
                each.hold()
                self._keep(partition, each.words)
                self._bring(each)

    def _bring(self, each: PartitionRecovery) -> None:
        _guard(each, each.bring)
        if self.disk.exists(each.partition.directory):
            self.disk.sync_directory(each.partition.directory)

    def _refuse(self, damaged: PartitionLog) -> NoReturn:
        """What others have in the journal alone is to survive that somebody moves it away."""
        for each in self.partitions.values():
            self._bring(each)
            sync_files(self.disk, each.partition.directory)
        self.disk.sync_directory(self.path)
        raise StorageError(
            f"{damaged.error}; without a checkpoint only the journal says that more was acknowledged",
            hint="restore the file; or move journal.0 and journal.1 away, too, to go on with what there is",
        )


def _guard(recovery: PartitionRecovery, step: Callable[[], None]) -> None:
    """Run a step of the recovery; where it finds damage, the partition is offline.

    Raises:
        StorageError: no file is at fault, the machine is short of something: a later start may have it.
    """
    partition = recovery.partition
    try:
        step()
    except (CorruptData, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL + NOT_OPENED:
            raise StorageError(f"{partition.topic_partition}: {error}", hint=_HINT) from error
        forbidden = isinstance(error, PermissionError)
        hint = "check its owner and permissions, then start again" if forbidden else partition.repair_hint
        failure = StorageError(f"{partition.topic_partition}: {error}", hint=hint)
        told = {"partition": str(partition.topic_partition), "error": str(error), "hint": hint}
        log.error("partition_offline", **told)  # noqa: TRY400 - damage is told in one line, no traceback
        partition.go_offline(failure)
        partition.recovered = False
