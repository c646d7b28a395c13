"""Taking checkpoints: what was appended reaches its segments, and then the checkpoint says so and the journal is free.

On the event loop, but for what says that it blocks. The writer closes a journal generation with a round; the state at
its end is remembered before that round (`prepare`), brought to the disk after it (`start`),
and forgotten if it fails (`cancel`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from mainstem.core import TopicPartition
from mainstem.core.logging import get_logger
from mainstem.core.threads import LastingThreads
from mainstem.log import checkpoint as checkpoints
from mainstem.log.checkpoint import Checkpoint, PartitionState, SegmentState
from mainstem.log.errors import StorageError
from mainstem.log.journal import Journal
from mainstem.log.metadata import sync_files
from mainstem.log.partition import PartitionLog, Shared
from mainstem.log.round import FULL, NO_DESCRIPTORS
from mainstem.log.segment import IndexWrite, Segment
from mainstem.log.threads import FileThreads

log = get_logger()

_RETRY_SECONDS = 1.0
_THREADS_AT_END = 32
_AT_ONCE = 200
"""Segments whose new index entries are gathered before others have a turn: two to five milliseconds."""

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


class Owner(Protocol):
    """What checkpoints ask of the log directory."""

    error: StorageError | None

    def fail(self, error: OSError) -> None:
        """The disk failed: the directory goes offline."""
        ...

    def stop_appends(self, error: StorageError) -> None:
        """Nothing may be added to the journal any more."""
        ...


class Checkpointer:
    """The checkpoints of one log directory, one at a time."""

    def __init__(
        self,
        path: Path,
        partitions: Mapping[TopicPartition, PartitionLog],
        shared: Shared,
        owner: Owner,
        *,
        sync_threads: int,
    ) -> None:
        self._path = path
        self._partitions = partitions
        self._files = shared.files
        self._disk = shared.files.disk
        self._threads = FileThreads(1)  # its own: the readers' may all be busy for long, and the journal would fill up
        self._writer = shared.writer
        self._look_ups = shared.look_ups
        self._loop = shared.loop
        self._owner = owner
        self._sync_threads_count = sync_threads
        self._sync_threads = LastingThreads(sync_threads, "log-sync")
        self._journal: Journal
        self._raws: Raws = {}  # of the last checkpoint
        self._created: list[Path] = []
        self._snapshot: _Snapshot | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._answers: list[asyncio.Future[None]] = []  # of the one that runs
        self._running: asyncio.Future[Raws] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._closing = False

    # -- what the directory asks --------------------------------------------------------------------------------------

    def begin(self, journal: Journal, kept: Raws) -> None:
        """Take the first one, of what a recovery found; `kept` are the words that stay as they were (blocking).

        Raises:
            StorageError: there is no room for it, or no file descriptor.
            OSError: the disk failed.
        """
        self._journal = journal
        self._raws = dict(kept)
        snapshot = self._take_snapshot(journal.generation)
        try:
            self._raws = self._write(snapshot, [], False)
        except _NotNow as error:
            raise StorageError(f"{self._path}: {error}", hint=f"{error.hint}; then start again") from error
        # After it: of what room a disk has that is nearly full, hints are to take none that the checkpoint needs.
        self._sync_all(self._write_index, _index_writes(snapshot.segments))
        self._saved(snapshot)

    def created(self, directory: Path) -> None:
        """A partition's directory is new: the next checkpoint makes it durable, and until then the journal says so."""
        self._created.append(directory)

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition is deleted: the next checkpoint says nothing of it."""
        self._raws.pop(topic_partition, None)

    async def take(self) -> None:
        """Bring everything that was appended so far to its segments, and say so.

        Raises:
            StorageError: there is no room on the disk or no file descriptor now, and it is tried again by itself; or
                the disk failed.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self._writer.request_checkpoint()
        await waiter

    def refuse(self, error: StorageError) -> None:
        """Whoever waits for one waits no longer."""
        for waiter in (*self._waiters, *self._answers):
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters, self._answers = [], []

    def stop_waiting(self) -> None:
        """The directory is closed: none waits for room or file descriptors any more."""
        self._closing = True
        if self._later is not None:
            self._give_up()

    async def idle(self) -> None:
        """Wait until none runs."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def take_last(self) -> None:
        """Say that the journal holds nothing more; nothing is appended any more, and none runs.

        More files at a time are synced than usual: no append waits behind them now, and whoever ends the log does.
        """
        if self._sync_threads_count > 1:  # with one, they are synced in their order
            self._sync_threads.most = _THREADS_AT_END
        self._journal.switch()
        snapshot = self._take_snapshot(self._journal.generation)
        try:
            await self._threads.run(self._write, snapshot, _index_writes(snapshot.segments), True)
        except (OSError, _NotNow) as error:  # the next start reads the journal, as after a crash
            log.warning("closed_without_checkpoint", path=str(self._path), error=str(error))

    def close(self) -> None:
        """Let go of the threads."""
        if self._later is not None:  # where the end is no clean one
            self._later.cancel()
        self._threads.close()
        self._sync_threads.shutdown()

    # -- what the writer asks -----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """One is on its way to the disk, or waits for room: the journal file that was used before is still needed."""
        return self._running is not None

    def prepare(self) -> bool:
        """Remember the state that the round which begins leads to; it has everything that was appended.

        False while the last checkpoint is not done: the round is one like any other.
        """
        if self._running is not None:
            return False
        self._snapshot = self._take_snapshot(self._journal.generation + 1)
        return True

    def start(self) -> None:
        """The round is durable and the journal has switched: bring the segments to the disk, in threads.

        A disk that fails takes the directory offline, and nothing is lost: the journal still says it all. A lack of
        room or of file descriptors is waited out.
        """
        assert self._snapshot is not None
        snapshot, self._snapshot = self._snapshot, None
        self._answers, self._waiters = self._waiters, []
        # The round itself was still to be counted when the snapshot was taken.
        snapshot = msgspec.structs.replace(snapshot, sequence=self._journal.sequence)
        self._running = self._loop.create_future()  # never done: it is cancelled when all is gathered
        self._gather(snapshot, 0, [])

    def cancel(self) -> None:
        """The round failed: what was remembered is not the state, and counts as changed again; the next may try."""
        assert self._snapshot is not None
        for partition, _ in self._snapshot.partitions:
            partition.changed = partition.segments.changed = True
        for segment, _ in self._snapshot.segments:
            segment.unsaved = True
        self._created += self._snapshot.created
        self._snapshot = None
        if self._waiters:
            self._writer.request_checkpoint()

    # -- one checkpoint -----------------------------------------------------------------------------------------------

    def _take_snapshot(self, generation: int) -> _Snapshot:
        """The state of everything that was appended; the journal goes on from there with `generation`."""
        partitions: list[tuple[PartitionLog, PartitionState]] = []
        segments: list[tuple[Segment, SegmentState]] = []
        created, self._created = self._created, []
        directories: list[Path] = []
        for partition in self._partitions.values():
            if not (partition.changed and partition.recovered):
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

    def _gather(self, snapshot: _Snapshot, begun: int, writes: list[IndexWrite]) -> None:
        """What belongs into the indexes, some segments in a turn of the loop; then the threads have it all."""
        until = begun + _AT_ONCE
        try:
            writes += _index_writes(snapshot.segments[begun:until])
        except Exception as error:  # a bug, or no memory: nobody is to wait for it for ever
            self._gathered()
            self._owner.fail(OSError(repr(error)))
            raise
        if until < len(snapshot.segments):
            self._loop.call_soon(self._gather, snapshot, until, writes)
            return
        self._gathered()
        self._run(snapshot, partial(self._write, snapshot, writes, False))

    def _gathered(self) -> None:
        """Who waits for the end looks again."""
        assert self._running is not None
        self._running.cancel()
        self._running = None

    def _run(self, snapshot: _Snapshot, write: Callable[[], Raws]) -> None:
        self._later = None
        self._running = self._threads.run(write)
        self._running.add_done_callback(lambda done: self._end(snapshot, done))

    def _end(self, snapshot: _Snapshot, done: "asyncio.Future[Raws]") -> None:
        error = done.exception()
        if isinstance(error, _NotNow):
            log.error("checkpoint_waits", path=str(self._path), error=str(error))
            if self._closing:
                self._give_up()
            else:
                self.refuse(StorageError(f"{self._path}: {error}: no checkpoint", hint=error.hint))
                self._later = self._loop.call_later(_RETRY_SECONDS, self._run, snapshot, error.rest)
            return
        self._running = None
        if error is not None:
            self._owner.fail(error if isinstance(error, OSError) else OSError(repr(error)))
            if not isinstance(error, OSError):
                raise error
            return
        raws = done.result()
        for partition, _ in snapshot.partitions:
            topic_partition = partition.topic_partition
            if self._partitions.get(topic_partition) is partition:
                self._raws[topic_partition] = raws[topic_partition]
        self._saved(snapshot)
        for waiter in self._answers:
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            self._writer.request_checkpoint()
        self._writer.checkpoint_done()

    def _saved(self, snapshot: _Snapshot) -> None:
        """Their look-ups may leave memory from now on."""
        for segment, state in snapshot.segments:
            segment.is_saved(state)
            self._look_ups.used(segment)

    def _give_up(self) -> None:
        """It still waits when the log is closed: the journal says everything, and nothing may be added to it."""
        if self._later is not None:
            self._later.cancel()
        self._later = self._running = None
        hint = "nothing is lost: the next start reads the journal, with room on the disk and file descriptors"
        self._owner.stop_appends(StorageError(f"{self._path}: closed without the checkpoint that waits", hint=hint))

    def _write(self, snapshot: _Snapshot, index_writes: list[IndexWrite], clean: bool) -> Raws:
        """Bring the segments to the disk, then say so; the journal before it is then free (blocking).

        1. sync the segments, 2. write their indexes (hints: not synced), 3. sync new partitions' directories, and
        of the others those with new or deleted files, 4. replace the checkpoint.
        """
        written = [segment for segment, state in snapshot.segments if state.size]  # an empty one may have no file
        try:
            self._sync_all(self._sync_segment, written)
            self._sync_all(self._write_index, index_writes)
            self._sync_all(self._sync_created, snapshot.created)
            made = frozenset(snapshot.created)  # on the disk by now, with all that is in them
            self._sync_all(
                self._sync_directory, [each for each in (*snapshot.directories, self._path) if each not in made]
            )
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            raise _NotNow(error, partial(self._write, snapshot, index_writes, clean)) from error
        return self._save(snapshot, clean)

    def _sync_all(self, sync: Callable[[T], None], each: Iterable[T]) -> None:
        """Call `sync` for each in the threads, and wait for all.

        A sync that failed is told before a lack of descriptors: a second try must not believe the second sync of a file
        whose first one failed.
        """
        running = [self._sync_threads.submit(sync, one) for one in each]
        errors = [error for future in running if (error := future.exception()) is not None]
        errors.sort(key=lambda error: isinstance(error, OSError) and error.errno in NO_DESCRIPTORS)
        if errors:
            raise errors[0]

    def _write_index(self, write: IndexWrite) -> None:
        try:
            write.write(self._files)
        except OSError as error:
            if not write.segment.retired:
                log.warning("index_not_written", path=str(write.path), error=str(error))

    def _sync_segment(self, segment: Segment) -> None:
        """The checkpoint says that these bytes are on the disk; where they are deleted, that is."""
        try:
            segment.sync(segment.file)
        except FileNotFoundError:
            if not segment.retired:
                raise
            try:
                segment.sync(self._disk.open(segment.path))  # retired, and not deleted so far
            except FileNotFoundError:
                self._sync_directory(segment.directory)

    def _sync_created(self, directory: Path) -> None:
        try:
            sync_files(self._disk, directory)
        except FileNotFoundError:  # deleted meanwhile, or somebody has taken a file of it away
            self._sync_directory(directory)

    def _sync_directory(self, directory: Path) -> None:
        try:
            self._disk.sync_directory(directory)
        except FileNotFoundError:
            log.debug("directory_deleted_meanwhile", path=str(directory))

    def _save(self, snapshot: _Snapshot, clean: bool) -> Raws:
        """Step 4. A full disk may be met here again: each try writes a new file, and believes no sync before it."""
        raws = dict(snapshot.raws)
        for partition, state in snapshot.partitions:
            raws[partition.topic_partition] = checkpoints.encode_partition(state)
        checkpoint = Checkpoint(clean, snapshot.generation, snapshot.sequence, list(raws.values()))
        try:
            checkpoints.save(self._disk, self._path, checkpoint)
        except OSError as error:
            if error.errno not in FULL + NO_DESCRIPTORS:
                raise
            raise _NotNow(error, partial(self._save, snapshot, clean)) from error
        return raws


def _index_writes(segments: Iterable[tuple[Segment, SegmentState]]) -> list[IndexWrite]:
    return [write for segment, state in segments if not segment.retired for write in segment.index_writes(state)]
