"""A log directory: all partitions of a node, their one writer, their checkpoint, their lock."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

import msgspec

from mainstem.core import Clock, TopicPartition
from mainstem.core.locks import DirectoryInUse, DirectoryLock
from mainstem.core.logging import get_logger
from mainstem.log import checkpoint as checkpoints
from mainstem.log import housekeeping
from mainstem.log.checkpoint import Checkpoint, PartitionState, SegmentState
from mainstem.log.config import LogConfig, TopicConfig
from mainstem.log.disk import Disk, SystemDisk
from mainstem.log.errors import LogDirectoryInUse, StorageError
from mainstem.log.journal import CREATE, DELETE, Entry, Journal
from mainstem.log.limits import open_files_limit
from mainstem.log.metadata import DirectoryMetadata, open_directory_metadata
from mainstem.log.partition import PartitionLog, Shared
from mainstem.log.recovery import DELETED, create_files, recover, sync_files
from mainstem.log.segment import IndexWrite, OpenFiles, Segment
from mainstem.log.threads import FileThreads
from mainstem.log.writer import FULL, NO_DESCRIPTORS, Writer

log = get_logger()

LOCK = ".lock"
_RETRY_SECONDS = 1.0

T = TypeVar("T")
Raws = dict[TopicPartition, msgspec.Raw]
"""Each partition's words in a checkpoint."""


class _Snapshot(msgspec.Struct, frozen=True):
    """The state at the end of a journal generation, and what has to reach the disk before it is the checkpoint."""

    partitions: list[tuple[PartitionLog, PartitionState]]
    raws: Raws
    """The unchanged partitions' words in the last checkpoint."""
    segments: list[tuple[Segment, SegmentState]]
    created: list[Path]
    """Directories of new partitions."""
    directories: list[Path]
    """Directories with new or deleted segments."""
    generation: int
    sequence: int


class _NotNow(Exception):
    """There is no room for the checkpoint's own file, or no file descriptor left; no sync has failed."""

    def __init__(self, error: OSError, rest: Callable[[], Raws]) -> None:
        super().__init__(str(error))
        self.rest = rest
        """What is left to do, from the step on that met it (blocking); it may meet it again."""
        self.hint = "free disk space" if error.errno in FULL else "raise the limit of open files: ulimit -n"


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
        self._raws: Raws = {}  # of the last checkpoint
        self._journal: Journal | None = None
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="log-writer")
        self._sync_threads = ThreadPoolExecutor(config.sync_threads, thread_name_prefix="log-sync")
        self._threads = FileThreads(config.read_threads)
        self._cleaner = FileThreads(1)
        self._housekeeping: asyncio.Task[None] | None = None
        self._housekeeping_timer: asyncio.TimerHandle | None = None
        self._files = OpenFiles(disk, open_files_limit(config.open_files))
        self._writer = Writer(self._loop, self._writer_thread, self)
        self._shared = Shared(clock, self._files, self._threads, self._writer, self._loop)
        self._created: list[Path] = []
        self._snapshot: _Snapshot | None = None
        self._checkpoint_waiters: list[asyncio.Future[None]] = []
        self._checkpoint_answers: list[asyncio.Future[None]] = []  # of the one that runs
        self._checkpoint: asyncio.Future[Raws] | None = None
        self._checkpoint_later: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, path: Path, config: LogConfig, *, clock: Clock, disk: Disk | None = None) -> "LogDirectory":
        """Take the directory (it is made when missing) and recover what is in it.

        Raises:
            LogDirectoryInUse: another process has it.
            CorruptFile: its checkpoint or journal is damaged.
            UnsupportedFormat: a later version of the program wrote it.
        """
        try:
            lock = DirectoryLock(path, LOCK)
        except DirectoryInUse as error:
            raise LogDirectoryInUse(str(error), hint=error.hint) from None
        directory = cls(path, config, clock, disk or SystemDisk(), lock)
        try:
            await directory._threads.run(directory._recover)
        except BaseException:
            directory._let_go()
            raise
        directory._plan_housekeeping()
        return directory

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionLog]:
        return MappingProxyType(self._partitions)

    @property
    def offline(self) -> bool:
        return self.error is not None

    async def create_partition(
        self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig
    ) -> PartitionLog:
        """Make an empty partition; on return it survives a crash of the machine."""
        if self.error is not None:
            raise self.error
        key = (topic_id, topic_partition.partition)
        if topic_partition in self._partitions or key in self._keys:
            raise ValueError(f"{topic_partition} exists, or another topic has its id {topic_id}")
        partition = self._make_partition(topic_partition, topic_id)
        partition.config = config
        partition.start()
        try:
            await self._threads.run(create_files, self._disk, partition)
        except OSError as error:
            raise StorageError(f"{partition.directory}: {error}") from error

        def apply() -> None:
            self._partitions[topic_partition] = partition
            self._keys.add(key)
            self._created.append(partition.directory)

        entry = Entry(CREATE, topic_id, topic_partition.partition, payload=(topic_partition.topic.encode(),))
        await self._writer.note(entry, apply)
        return partition

    async def delete_partition(self, topic_partition: TopicPartition) -> None:
        """Remove a partition; on return it stays removed after a crash of the machine."""
        partition = self._partitions[topic_partition]
        partition.go_offline(StorageError(f"{topic_partition}: deleted"))
        # A name of its own, below the 255 bytes that a file system allows.
        doomed = self.path / f"{str(topic_partition)[:200]}.{uuid.uuid4().hex}{DELETED}"

        def apply() -> None:
            for segment in partition.segments:
                segment.retired = True
            del self._partitions[topic_partition]
            self._keys.discard((partition.topic_id, partition.number))
            self._raws.pop(topic_partition, None)
            # On the loop: a rename is quick, and the next topic of that name should find no directory.
            try:
                self._disk.rename(partition.directory, doomed)
            except OSError as error:  # whoever creates that topic, or the next start, tries again
                log.warning("deleted_files_left", path=str(partition.directory), error=str(error))

        await self._writer.note(Entry(DELETE, partition.topic_id, partition.number), apply)
        try:
            await self._threads.run(self._remove_files, partition, doomed)
        except OSError as error:
            log.warning("deleted_files_left", path=str(doomed), error=str(error))

    def _remove_files(self, partition: PartitionLog, directory: Path) -> None:
        for segment in partition.segments:
            self._files.forget(segment)
        self._disk.remove_tree(directory)

    def forget_partition(self, topic_partition: TopicPartition) -> None:
        """Leave it to the next start to read the partition from its segments, which a repair has changed."""
        partition = self._partitions.pop(topic_partition)
        partition.go_offline(StorageError(f"{topic_partition}: repaired"))
        for segment in partition.segments:
            segment.retired = True
            self._files.forget(segment)
        self._keys.discard((partition.topic_id, partition.number))
        self._raws.pop(topic_partition, None)

    async def close(self) -> None:
        """Let what is queued reach the disk, write a checkpoint that says so, and let go of the directory."""
        self._stop.set()
        if self._housekeeping_timer is not None:
            self._housekeeping_timer.cancel()
        if self._checkpoint_later is not None:
            self._give_up_checkpoint()
        closed = StorageError(f"{self.path}: the log is closed")
        for partition in self._partitions.values():
            partition.append_error = partition.append_error or closed
        if self._housekeeping is not None:
            await asyncio.wait([self._housekeeping])
        await self._writer.idle()
        while self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        self._writer.stop(closed)
        for waiter in self._checkpoint_waiters:
            if not waiter.done():
                waiter.set_exception(closed)
        if self.error is None and self._journal is not None:
            self._journal.switch()
            snapshot = self._take_snapshot(self._journal.generation)
            try:
                await self._threads.run(self._write_checkpoint, snapshot, _index_writes(snapshot), True)
            except (OSError, _NotNow) as error:  # the next start reads the journal, as after a crash
                log.warning("closed_without_checkpoint", path=str(self.path), error=str(error))
        for partition in self._partitions.values():
            partition.go_offline(closed)
        self._let_go()

    def _let_go(self) -> None:
        self._writer_thread.shutdown()
        self._cleaner.close()
        self._threads.close()
        self._sync_threads.shutdown()
        self._lock.release()

    def _recover(self) -> None:
        """In a thread; nobody else has the directory yet."""
        self.metadata = open_directory_metadata(self._disk, self.path)
        found = recover(self.path, self._disk, self._make_partition)
        for partition in found.partitions:
            self._partitions[partition.topic_partition] = partition
            self._keys.add((partition.topic_id, partition.number))
        self._raws = dict(found.kept)
        self.recovered_cleanly = found.clean
        self._journal = Journal(self.path, self._disk, generation=found.generation, sequence=found.sequence)
        self._disk.sync_directory(self.path)
        snapshot = self._take_snapshot(found.generation)
        try:
            self._raws = self._write_checkpoint(snapshot, _index_writes(snapshot), False)
        except _NotNow as error:
            raise StorageError(f"{self.path}: {error}", hint=f"{error.hint}; then start again") from error
        self._journal.empty()
        self._writer.start(self._journal, self.config.journal_bytes)

    def _make_partition(self, topic_partition: TopicPartition, topic_id: UUID) -> PartitionLog:
        return PartitionLog(topic_partition, topic_id, self.path / str(topic_partition), self._shared)

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def _plan_housekeeping(self) -> None:
        interval = self.config.housekeeping_interval_ms / 1000
        self._housekeeping_timer = self._loop.call_later(interval, self._start_housekeeping)

    def _start_housekeeping(self) -> None:
        # The room's one task outside a TaskGroup, as none spans the life of the directory. It is not lost: `close` waits
        # for it, and what it raises is logged when it ends.
        self._housekeeping = asyncio.create_task(self.housekeep())  # noqa: TID251 - see above
        self._housekeeping.add_done_callback(self._end_housekeeping)

    def _end_housekeeping(self, task: "asyncio.Task[None]") -> None:
        self._housekeeping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("housekeeping_failed", path=str(self.path), error=repr(error))
        if self.error is None and not self._stop.is_set():
            self._plan_housekeeping()

    async def housekeep(self) -> None:
        """Retention, forgotten producers and compaction of every partition whose settings are known.

        Retention of all comes first: it makes the room that a checkpoint needs, for which compaction may have to wait.
        """
        for partition in self._usable():
            with _others_go_on(partition):
                await housekeeping.enforce_retention(partition)
                partition.expire_producers(self.config.producer_id_expiration_ms)
        compacted = [partition for partition in self._usable() if partition.config.compacts]
        for partition in compacted:
            housekeeping.roll_if_old(partition)
        if any(housekeeping.waits_for_checkpoint(partition) for partition in compacted):
            try:
                await self.checkpoint()
            except StorageError as error:  # what the last one covers may be compacted all the same
                log.warning("compaction_without_checkpoint", path=str(self.path), error=str(error))
        for partition in compacted:
            with _others_go_on(partition):
                await housekeeping.compact(partition, self._cleaner, self._stop, most_keys=self.config.compaction_keys)

    def _usable(self) -> list[PartitionLog]:
        return [p for p in self._partitions.values() if p.configured and not (p.error or p.append_error)]

    # -- what the writer asks for -------------------------------------------------------------------------------------

    def fail(self, error: OSError) -> None:
        if self.error is None:
            log.error("log_directory_offline", path=str(self.path), error=str(error))
            self.error = StorageError(
                f"{self.path}: {error}: the log directory is offline",
                hint="look at the disk, then start again: what was acknowledged is in the journal",
            )
        self.failed.set()
        self._stop_appends(self.error)

    def _stop_appends(self, error: StorageError) -> None:
        self.error = self.error or error
        self._writer.stop(error)
        self._refuse_checkpoints(error)
        for partition in self._partitions.values():
            partition.refuse_appends(error)

    def _refuse_checkpoints(self, error: StorageError) -> None:
        for waiter in (*self._checkpoint_waiters, *self._checkpoint_answers):
            if not waiter.done():
                waiter.set_exception(error)
        self._checkpoint_waiters, self._checkpoint_answers = [], []

    @property
    def checkpointing(self) -> bool:
        return self._checkpoint is not None

    def prepare_checkpoint(self) -> bool:
        assert self._journal is not None
        if self._checkpoint is not None:
            return False
        self._snapshot = self._take_snapshot(self._journal.generation + 1)
        return True

    def cancel_checkpoint(self) -> None:
        assert self._snapshot is not None
        for partition, _ in self._snapshot.partitions:
            partition.changed = partition.segments.changed = True
        for segment, _ in self._snapshot.segments:
            segment.unsaved = True
        self._created += self._snapshot.created
        self._snapshot = None
        if self._checkpoint_waiters:
            self._writer.request_checkpoint()

    def start_checkpoint(self) -> None:
        assert self._snapshot is not None
        assert self._journal is not None
        snapshot, self._snapshot = self._snapshot, None
        self._checkpoint_answers, self._checkpoint_waiters = self._checkpoint_waiters, []
        # The round itself was still to be counted when the snapshot was taken.
        snapshot = msgspec.structs.replace(snapshot, sequence=self._journal.sequence)
        self._run_checkpoint(snapshot, partial(self._write_checkpoint, snapshot, _index_writes(snapshot), False))

    async def checkpoint(self) -> None:
        """Bring everything that was appended so far to its segments, and say so.

        Raises:
            StorageError: the directory is offline; or there is no room on the disk or no file descriptor now, and it is
                tried again by itself.
        """
        if self.error is not None:
            raise self.error
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._checkpoint_waiters.append(waiter)
        self._writer.request_checkpoint()
        await waiter

    # -- checkpoint ---------------------------------------------------------------------------------------------------

    def _take_snapshot(self, generation: int) -> _Snapshot:
        """The state of everything that was appended; the journal goes on from there with `generation`."""
        assert self._journal is not None
        partitions: list[tuple[PartitionLog, PartitionState]] = []
        segments: list[tuple[Segment, SegmentState]] = []
        created, self._created = self._created, []
        directories: list[Path] = []
        for partition in self._partitions.values():
            if not partition.changed:
                continue
            state = partition.state()
            partition.changed = False
            partitions.append((partition, state))
            for segment, segment_state in zip(partition.segments, state.segments, strict=True):
                if segment.unsaved:
                    segments.append((segment, segment_state))
                    segment.unsaved = False
            if partition.segments.changed:
                directories.append(partition.directory)
                partition.segments.changed = False
        changed = {partition.topic_partition for partition, _ in partitions}
        raws = {tp: raw for tp, raw in self._raws.items() if tp not in changed}
        return _Snapshot(partitions, raws, segments, created, directories, generation, self._journal.sequence)

    def _run_checkpoint(self, snapshot: _Snapshot, write: Callable[[], Raws]) -> None:
        self._checkpoint_later = None
        self._checkpoint = self._threads.run(write)
        self._checkpoint.add_done_callback(lambda done: self._end_checkpoint(snapshot, done))

    def _give_up_checkpoint(self) -> None:
        """It still waits when the log is closed: the journal has everything, and nothing may be added to it."""
        if self._checkpoint_later is not None:
            self._checkpoint_later.cancel()
        self._checkpoint_later = self._checkpoint = None
        hint = "nothing is lost: the next start reads the journal, with room on the disk and file descriptors"
        self._stop_appends(StorageError(f"{self.path}: closed without the checkpoint that waits", hint=hint))

    def _end_checkpoint(self, snapshot: _Snapshot, done: "asyncio.Future[Raws]") -> None:
        error = done.exception()
        if isinstance(error, _NotNow):
            log.error("checkpoint_waits", path=str(self.path), error=str(error))
            if self._stop.is_set():
                self._give_up_checkpoint()
            else:
                self._refuse_checkpoints(StorageError(f"{self.path}: {error}: no checkpoint", hint=error.hint))
                self._checkpoint_later = self._loop.call_later(
                    _RETRY_SECONDS, self._run_checkpoint, snapshot, error.rest
                )
            return
        self._checkpoint = None
        if error is not None:
            self.fail(error if isinstance(error, OSError) else OSError(repr(error)))
            if not isinstance(error, OSError):
                raise error
            return
        raws = done.result()
        for partition, _ in snapshot.partitions:
            topic_partition = partition.topic_partition
            if self._partitions.get(topic_partition) is partition:
                self._raws[topic_partition] = raws[topic_partition]
        for segment, state in snapshot.segments:
            segment.checkpointed_size = state.size
        for waiter in self._checkpoint_answers:
            if not waiter.done():
                waiter.set_result(None)
        if self._checkpoint_waiters:
            self._writer.request_checkpoint()
        self._writer.checkpoint_done()

    def _write_checkpoint(self, snapshot: _Snapshot, index_writes: list[IndexWrite], clean: bool) -> Raws:
        """Bring the segments to the disk, then say so; the journal before it is then free (blocking).

        1. sync the segments, 2. write their indexes (hints: not synced), 3. sync new partitions' directories, and
        those with new or deleted files, 4. replace the checkpoint.
        """
        written = [segment for segment, state in snapshot.segments if state.size]  # an empty one may have no file
        try:
            self._sync_all(_sync_segment, written)
            for write in index_writes:
                try:
                    write.write(self._disk)
                except OSError as error:
                    log.warning("index_not_written", path=str(write.path), error=str(error))
            self._sync_all(self._sync_created, snapshot.created)
            self._sync_all(self._sync_directory, [*snapshot.directories, self.path])
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            raise _NotNow(error, partial(self._write_checkpoint, snapshot, index_writes, clean)) from error
        return self._save_checkpoint(snapshot, clean)

    def _sync_all(self, sync: Callable[[T], None], each: Iterable[T]) -> None:
        """Call `sync` for each in the threads, and wait for all; a sync that failed is told before a lack of descriptors.

        A second try must not believe the second sync of a file whose first one failed.
        """
        running = [self._sync_threads.submit(sync, one) for one in each]
        errors = [error for future in running if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, OSError) and error.errno in NO_DESCRIPTORS)
        if errors:
            raise errors[0]

    def _save_checkpoint(self, snapshot: _Snapshot, clean: bool) -> Raws:
        """Step 4. A full disk too may be met here again: each try writes a file of its own, and believes no sync before it."""
        raws = dict(snapshot.raws)
        for partition, state in snapshot.partitions:
            raws[partition.topic_partition] = checkpoints.encode_partition(state)
        checkpoint = Checkpoint(clean, snapshot.generation, snapshot.sequence, list(raws.values()))
        try:
            checkpoints.save(self._disk, self.path, checkpoint)
        except OSError as error:
            if error.errno not in FULL + NO_DESCRIPTORS:
                raise
            raise _NotNow(error, partial(self._save_checkpoint, snapshot, clean)) from error
        return raws

    def _sync_created(self, directory: Path) -> None:
        try:
            sync_files(self._disk, directory)
        except FileNotFoundError:
            log.debug("directory_deleted_meanwhile", path=str(directory))

    def _sync_directory(self, directory: Path) -> None:
        try:
            self._disk.sync_directory(directory)
        except FileNotFoundError:
            log.debug("directory_deleted_meanwhile", path=str(directory))


@contextmanager
def _others_go_on(partition: PartitionLog) -> Iterator[None]:
    """What housekeeping meets in one partition does not end the others' turn."""
    try:
        yield
    except StorageError as error:
        log.warning("housekeeping_skipped", partition=str(partition.topic_partition), error=str(error))
    except Exception as error:
        log.exception("housekeeping_failed", partition=str(partition.topic_partition), error=repr(error))


def _sync_segment(segment: Segment) -> None:
    try:
        segment.file.sync()
    except FileNotFoundError:
        if not segment.retired:
            raise


def _index_writes(snapshot: _Snapshot) -> list[IndexWrite]:
    return [
        write for segment, state in snapshot.segments if not segment.retired for write in segment.index_writes(state)
    ]
