"""A log directory: all partitions of a node, their one writer, their checkpoint, their lock."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from mainstem.core import Clock, TopicPartition
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.log import housekeeping
from mainstem.log.checkpointer import Checkpointer
from mainstem.log.cleaner import Cleaner
from mainstem.log.cold import ColdReads
from mainstem.log.config import LogConfig, TopicConfig
from mainstem.log.disk import Disk, SystemDisk
from mainstem.log.errors import CorruptFile, LogDirectoryInUse, StorageError
from mainstem.log.journal import CREATE, DELETE, Entry, Journal
from mainstem.log.limits import open_files_limit
from mainstem.log.metadata import (
    PARTITION_METADATA,
    DirectoryMetadata,
    create_files,
    doomed_name,
    encode_topic_id,
    list_files,
    open_directory_metadata,
    read_topic_id,
    restore_topic_id,
)
from mainstem.log.partition import PartitionLog, Shared
from mainstem.log.partition_recovery import PartitionRecovery
from mainstem.log.recovery import recover
from mainstem.log.redo import Changes
from mainstem.log.replay import remember_producers
from mainstem.log.segment import LOG, OpenFiles
from mainstem.log.threads import FileThreads, WriterThread
from mainstem.log.writeback import Writeback
from mainstem.log.writer import Writer

log = get_logger()

LOCK = ".lock"

_AT_ONCE = 100
"""Partitions that housekeeping looks at before others have a turn: a millisecond or two where nothing is to be done."""
_OF_ANOTHER_KIND = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ESPIPE)
"""Errors where a directory, a file or a pipe is in the place of another of them."""


class LogDirectory:
    """The partitions in one directory."""

    def __init__(self, path: Path, config: LogConfig, clock: Clock, disk: Disk, lock: DirectoryLock) -> None:
        self.path = path
        self.config = config
        self.error: StorageError | None = None
        """Why the directory takes no more appends; None while all is well."""
        self.failed = asyncio.Event()
        """Set when the disk failed: only opening the directory again helps."""
        self.metadata = DirectoryMetadata("", "")
        """The cluster id, made with the directory."""
        self.recovered_cleanly = True
        self._disk = disk
        self._lock = lock
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, PartitionLog] = {}
        self._keys: set[tuple[UUID, int]] = set()
        self._undeleted: dict[TopicPartition, PartitionLog] = {}
        self._writer_thread = WriterThread("log-writer")
        self._threads = FileThreads(config.read_threads)
        self._cold = ColdReads(self._threads)
        self._writeback = Writeback()
        self._cleaner = Cleaner()
        self._housekeeping: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        self._compacted: PartitionLog | None = None  # the one that is compacted now
        self._housekeeping_timer: asyncio.TimerHandle | None = None
        self._files = OpenFiles(disk, open_files_limit(config.open_files))
        self._journal: Journal | None = None
        self._writer = Writer(self._loop, self._writer_thread, self._writeback.written, self.fail)
        self._shared = Shared(clock, self._files, self._threads, self._cold, self._writer, self._loop)
        self._checkpoints = Checkpointer(path, self._partitions, self._shared, self, sync_threads=config.sync_threads)

    @classmethod
    async def open(cls, path: Path, config: LogConfig, *, clock: Clock, disk: Disk | None = None) -> "LogDirectory":
        """Take the directory (it is made when missing) and recover what is in it.

        Raises:
            LogDirectoryInUse: another process has it.
            CorruptFile: its checkpoint or journal is damaged, or something else is in the place of a file or directory.
            UnsupportedFormat: a later version of the program wrote it.
            StorageError: there is no room, memory, thread or file descriptor for its start; nothing is lost.
        """
        try:
            lock = DirectoryLock(path, LOCK)
        except DirectoryInUse as error:
            raise LogDirectoryInUse(str(error), hint=error.hint) from None
        try:
            directory = cls(path, config, clock, disk or SystemDisk(), lock)
        except BaseException as error:
            lock.release()
            if not isinstance(error, RuntimeError):
                raise
            hint = "nothing is lost: raise the limit of threads (ulimit -u, a container's pids), then start again"
            raise StorageError(f"{path}: {error}", hint=hint) from error
        try:
            await directory._threads.run(directory._recover)
        except BaseException as error:
            directory._let_go()
            if isinstance(error, OSError) and error.errno in _OF_ANOTHER_KIND:
                hint = "the log alone makes files and directories there: move what is in its place somewhere else"
                raise CorruptFile(f"{path}: {error}", hint=hint) from error
            raise
        directory._plan_housekeeping()
        return directory

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionLog]:
        """Every partition, those that are offline too; it follows what is created and deleted."""
        return MappingProxyType(self._partitions)

    @property
    def offline(self) -> bool:
        """It takes no more appends; `error` says why."""
        return self.error is not None

    async def checkpoint(self) -> None:
        """Bring everything that was appended so far to its segments, and say so.

        Raises:
            StorageError: the directory is offline; or there is no room on the disk or no file descriptor now, and it is
                tried again by itself.
        """
        if self.error is not None:
            raise self.error.again()
        await self._checkpoints.take()

    async def create_partition(
        self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig
    ) -> PartitionLog:
        """Make an empty partition; on return it survives a crash of the machine.

        Raises:
            StorageError: the directory is offline or refuses; or there are segments that are nobody's.
        """
        if self.error is not None:
            raise self.error.again()
        key = (topic_id, topic_partition.partition)
        if topic_partition in self._partitions or key in self._keys:
            raise ValueError(f"{topic_partition} exists, or another topic has its id {topic_id}")
        partition = self._make_partition(topic_partition, topic_id)
        partition.config = config
        partition.start()
        try:
            await self._threads.run(self._create_files, partition)
        except OSError as error:
            raise StorageError(f"{partition.directory}: {error}") from error

        def apply() -> None:
            self._partitions[topic_partition] = partition
            self._keys.add(key)
            self._checkpoints.created(partition.directory)
            if self.error is not None:  # since the round began: nothing will write what is appended
                partition.refuse_appends(self.error)

        entry = Entry(CREATE, topic_id, topic_partition.partition, payload=(topic_partition.topic.encode(),))
        await self._writer.note(entry, apply)
        return partition

    def _create_files(self, partition: PartitionLog) -> None:
        found = read_topic_id(self._disk, partition.directory)
        if found is not None and (found, partition.number) in self._keys:
            raise StorageError(
                f"{partition.directory}: expected nothing, found a copy of a partition of topic id {found}",
                hint="move the directory to another place, then create the topic again",
            )
        segments = [path for path in list_files(self._disk, partition.directory) if path.suffix == LOG]
        if segments and found is None:
            raise StorageError(
                f"{partition.directory}: expected nothing, found segments, and no {PARTITION_METADATA} that says whose",
                hint=f"where they are its records, write two lines into that, version: 0 and topic_id: "
                f"{encode_topic_id(partition.topic_id)}, and start again; otherwise move the directory away",
            )
        create_files(self._disk, partition.directory, partition.topic_id)

    @property
    def undeleted(self) -> Collection[TopicPartition]:
        """Partitions whose deletion was refused, by a full disk say; housekeeping tries it again."""
        return self._undeleted.keys()

    async def delete_partition(self, topic_partition: TopicPartition) -> None:
        """Remove a partition; on return it stays removed after a crash of the machine.

        Raises:
            StorageError: the disk refuses. It is offline all the same, and deleted later.
        """
        partition = self._partitions[topic_partition]
        partition.go_offline(StorageError(f"{topic_partition}: deleted"))
        doomed = doomed_name(partition.directory)
        self._undeleted[topic_partition] = partition

        def apply() -> None:
            # On the loop: a rename is quick, and the next topic of that name should find no directory.
            try:
                self._files.retire(partition.segments, renamed=(partition.directory, doomed))
            except FileNotFoundError:  # somebody has taken it away already
                self._files.retire(partition.segments)
            except OSError as error:
                log.warning("deleted_files_left", path=str(partition.directory), error=str(error))
                return
            self._shared.look_ups.forget(partition.segments)
            del self._partitions[topic_partition]
            self._keys.discard((partition.topic_id, partition.number))
            self._checkpoints.forget(topic_partition)
            del self._undeleted[topic_partition]

        async with partition.leaving:  # a file that is on its way out may be the next topic's, by its name, afterwards
            if self._undeleted.get(topic_partition) is not partition:  # somebody else has deleted it meanwhile
                return
            await self._writer.note(Entry(DELETE, partition.topic_id, partition.number), apply)
        if self._undeleted.get(topic_partition) is partition:
            raise StorageError(f"{partition.directory}: its name could not be taken away", hint="it is tried again")
        try:
            await self._threads.run(self._remove_files, partition, doomed)
        except OSError as error:
            log.warning("deleted_files_left", path=str(doomed), error=str(error))

    def _remove_files(self, partition: PartitionLog, directory: Path) -> None:
        for segment in partition.segments:
            self._files.forget(segment)
        self._disk.remove_tree(directory)

    def read_again(self, topic_partition: TopicPartition) -> PartitionLog:
        """Read a partition from its segments, which a repair has changed (blocking); the next checkpoint says so.

        Log start offset and leader epoch, which goes up, are those that were known, and so is what no segment says of
        producers.

        Raises:
            CorruptData: the segments do not check out.
            OSError: the disk refuses.
        """
        before = self._partitions[topic_partition]
        before.go_offline(StorageError(f"{topic_partition}: repaired"))
        self._files.retire(before.segments)
        for segment in before.segments:
            self._files.forget(segment)
        self._shared.look_ups.forget(before.segments)
        restore_topic_id(self._disk, before.directory, before.topic_id)
        partition = self._make_partition(topic_partition, before.topic_id)
        partition.log_start_offset = before.log_start_offset
        PartitionRecovery(partition, None, Changes()).run()
        remember_producers(partition, before.producer_table)
        partition.start()
        partition.raise_leader_epoch(before.leader_epoch + 1)
        self._partitions[topic_partition] = partition
        self._checkpoints.forget(topic_partition)
        return partition

    async def close(self) -> None:
        """Let what is queued reach the disk, write a checkpoint that says so, and let go of the directory."""
        self._stop.set()
        self._cleaner.stop()
        if self._housekeeping_timer is not None:
            self._housekeeping_timer.cancel()
        self._checkpoints.stop_waiting()
        closed = StorageError(f"{self.path}: the log is closed")
        for partition in self._partitions.values():
            partition.append_error = partition.append_error or closed
        if running := [task for task in (self._housekeeping, self._compaction) if task is not None]:
            await asyncio.wait(running)
        while not self._writer.is_idle or self._checkpoints.running:  # the end of one may begin the other
            await self._writer.idle()
            await self._checkpoints.idle()
        self._writer.stop(closed)
        self._checkpoints.refuse(closed)
        try:
            if self.error is None:
                await self._checkpoints.take_last()
        finally:
            for partition in self._partitions.values():
                partition.go_offline(closed)
            self._let_go()

    def _let_go(self) -> None:
        self._writer_thread.close()
        self._writeback.close()
        self._cleaner.close()
        self._threads.close()
        self._cold.close()
        self._checkpoints.close()
        self._files.let_go()
        if self._journal is not None:
            self._journal.let_go()
        self._lock.release()

    def _recover(self) -> None:
        """In a thread; nobody else has the directory yet."""
        self.metadata = open_directory_metadata(self._disk, self.path)
        found = recover(self.path, self._disk, self._make_partition)
        for partition in found.partitions:
            self._partitions[partition.topic_partition] = partition
            self._keys.add((partition.topic_id, partition.number))
            # Read from segments, an expired producer has the last batch that compaction left, not the last it sent:
            # its next one would be refused.
            partition.expire_producers(self.config.producer_id_expiration_ms)
        for path in found.created:
            self._checkpoints.created(path)
        self.recovered_cleanly = found.clean
        self._journal = journal = Journal(self.path, self._disk, generation=found.generation, sequence=found.sequence)
        self._disk.sync_directory(self.path)
        self._checkpoints.begin(journal, found.kept)
        journal.empty()
        self._writer.start(journal, self._checkpoints, self.config.journal_bytes)

    def _make_partition(self, topic_partition: TopicPartition, topic_id: UUID) -> PartitionLog:
        return PartitionLog(topic_partition, topic_id, self.path / str(topic_partition), self._shared)

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def _plan_housekeeping(self) -> None:
        interval = self.config.housekeeping_interval_ms / 1000
        self._housekeeping_timer = self._loop.call_later(interval, self._start_housekeeping)

    def _start_housekeeping(self) -> None:
        # The room's tasks outside a TaskGroup, this one and compaction, as none spans the life of the directory. They
        # are not lost: `close` waits for them, and what they raise is logged when they end.
        self._housekeeping = asyncio.create_task(self._expire())  # noqa: TID251 - see above
        self._housekeeping.add_done_callback(self._end_housekeeping)

    def _end_housekeeping(self, task: "asyncio.Task[None]") -> None:
        self._housekeeping = None
        self._log_failure(task)
        if self.error is not None or self._stop.is_set():
            return
        if self._compaction is None:  # it may take hours: retention does not wait for it, only it for retention
            self._start_compaction()
        self._plan_housekeeping()

    def _start_compaction(self) -> "asyncio.Task[None]":
        self._compaction = asyncio.create_task(self._compact())  # noqa: TID251 - see above
        self._compaction.add_done_callback(self._end_compaction)
        return self._compaction

    def _end_compaction(self, task: "asyncio.Task[None]") -> None:
        self._compaction = None
        self._log_failure(task)

    def _log_failure(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("housekeeping_failed", path=str(self.path), error=repr(error))

    async def housekeep(self) -> None:
        """Retention, forgotten producers and compaction of every partition whose settings are known.

        Retention of all comes first: it makes the room that a checkpoint needs, for which compaction may have to wait.
        """
        await self._expire()
        while self._compaction is not None:  # two at once would write the same files
            await asyncio.wait([self._compaction])
        await self._start_compaction()

    async def _expire(self) -> None:
        """Partitions that are to be deleted, records by retention, producers that are silent."""
        for partition in list(self._undeleted.values()):
            with _others_go_on(partition):
                if self._undeleted.get(partition.topic_partition) is partition and not self.offline:
                    await self.delete_partition(partition.topic_partition)
        async for partition in self._in_turn():
            with _others_go_on(partition):
                # From under a compaction it would take what that has read, time and again: as in Kafka its turn comes
                # when that is done.
                if partition is not self._compacted:
                    await housekeeping.enforce_retention(partition)
                partition.expire_producers(self.config.producer_id_expiration_ms)

    async def _compact(self) -> None:
        waits = False
        async for partition in self._in_turn(compacted=True):
            housekeeping.roll_if_old(partition)
            waits = waits or housekeeping.waits_for_checkpoint(partition)
        if waits:
            try:
                await self.checkpoint()
            except StorageError as error:  # what the last one covers may be compacted all the same
                log.warning("compaction_without_checkpoint", path=str(self.path), error=str(error))
        async for partition in self._in_turn(compacted=True):
            self._compacted = partition
            with _others_go_on(partition):
                await housekeeping.compact(partition, self._cleaner, most_keys=self.config.compaction_keys)
            self._compacted = None
        await self._cleaner.rest()

    async def _in_turn(self, *, compacted: bool = False) -> AsyncIterator[PartitionLog]:
        """Those that are usable when it is their turn; whoever else waits for the loop goes on between some of them."""
        for number, partition in enumerate(list(self._partitions.values()), start=1):
            is_usable = partition.configured and not (partition.error or partition.append_error)
            if is_usable and (partition.config.compacts or not compacted):
                yield partition
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # -- where the disk fails -------------------------------------------------------------------------------------

    def fail(self, error: OSError) -> None:
        """The disk failed: take no more appends until the directory is opened again; `failed` is set.

        What is not acknowledged fails, and so does whoever waits for a checkpoint; what was acknowledged can be read.
        """
        if self.error is None:
            log.error("log_directory_offline", path=str(self.path), error=str(error))
            self.error = StorageError(
                f"{self.path}: {error}: the log directory is offline",
                hint="look at the disk, then start again: what was acknowledged is there",
            )
        self.failed.set()
        self.stop_appends(self.error)

    def stop_appends(self, error: StorageError) -> None:
        """Add nothing to the journal any more: appends fail with `error`, queued ones too; reads go on."""
        self.error = self.error or error.again()
        self._writer.stop(error)
        self._checkpoints.refuse(error)
        for partition in self._partitions.values():
            partition.refuse_appends(error)


@contextmanager
def _others_go_on(partition: PartitionLog) -> Iterator[None]:
    """What housekeeping meets in one partition does not end the others' turn."""
    try:
        yield
    except StorageError as error:
        log.warning("housekeeping_skipped", partition=str(partition.topic_partition), error=str(error))
    except Exception as error:
        log.exception("housekeeping_failed", partition=str(partition.topic_partition), error=repr(error))
