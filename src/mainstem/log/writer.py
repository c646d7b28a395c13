"""Group commit: one round is in flight; what is appended meanwhile joins the next.

A round, for everything that was queued when it began:

1. write the batches to their segments (page cache): a full disk is found here, or in step 4, and so is a segment that
   cannot be opened for want of file descriptors; all is taken back;
2. partitions that trust the page cache (`flush.messages` > 1) answer now;
3. one fdatasync of each segment whose topic syncs by number or time; the name of a file that is new is synced before
   that, since only that may lack a file descriptor, and is then taken back as in step 1;
4. write one frame with all the others' batches, and the notes, to the journal, and sync it; after step 3, since what a
   frame holds may lie behind bytes that are in no journal, and part of the frame may reach the disk before its sync;
5. everybody else answers.

Of a round of a megabyte or more, the frame is written and synced beside steps 1 to 3, since so much takes a while in
both places: all but its first page, without which it is none, whatever of it reaches the disk. Step 4 adds that page.

A round that follows another waits until as many batches are queued as were queued or in flight when that one ended:
clients that had an answer are about to send their next request, and one sync for all of them costs little more than one
for the first. Where they do not come, it goes without them after a millisecond. docs/decisions/log-speed.md has what it
brings.

A note is short, and often what makes room (records or a topic are deleted): those of a round that was taken back go
once more, without batches.

A sync that fails is another matter, whatever its error number: what it covered may be lost or not, and a second one
would say that all is well. The directory goes offline, and the next start finds out.

Segments are synced later, by the checkpoint. docs/decisions/log-journal.md has the figures behind this.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Protocol
from uuid import UUID

import msgspec

from mainstem.core.logging import get_logger
from mainstem.log.disk import Buffer, File
from mainstem.log.errors import StorageError
from mainstem.log.journal import DATA, Begun, Entry, Journal
from mainstem.log.segment import Segment
from mainstem.log.threads import WriterThread

log = get_logger()

_LONGEST_GATHERING = 0.001  # seconds
_LARGE = 2**20  # bytes: below, a second sync and thread cost more than they save
_LONGEST_JOURNAL = 4  # times the limit, while a checkpoint is slow: it bounds recovery too
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # opening fails for now; no sync gives these
NOT_OPENED = (*NO_DESCRIPTORS, errno.ENOMEM)  # of a segment: no file has failed


class _TakenBack(Exception):
    """The disk had no room for a round, or a file could not be opened; nothing of it is left in any file."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.full = error.errno in FULL


class Write(msgspec.Struct, frozen=True):
    """Batches that belong at `position` of `segment`."""

    segment: Segment
    position: int
    pieces: list[Buffer]
    size: int


class Batch(msgspec.Struct, frozen=True):
    """What one partition has in a round."""

    sink: "Sink"
    writes: list[Write]
    end_offset: int
    latest: tuple[int, int]
    """Of the last write's segment, up to `end_offset`: the latest timestamp and its offset."""
    journaled: bool
    """In the journal, hence durable with it; else durable with the next sync of its segment."""
    sync: list[Segment]
    """Segments to sync in this round: they hold batches that are in no journal."""


class Note(msgspec.Struct, frozen=True):
    """A change of a partition that is not a batch: it happens (`apply`) once it is durable."""

    entry: Entry
    apply: Callable[[], None]
    future: "asyncio.Future[None]"


class Sink(Protocol):
    """What the writer asks of a partition; all on the event loop."""

    topic_id: UUID
    number: int
    fail_stop: bool
    """Its owner has acted on what was appended: it cannot be undone."""

    def take_writes(self) -> Batch:
        """The queued writes, now in flight."""
        ...

    def written(self, batch: Batch) -> None:
        """The batches are in the page cache."""
        ...

    def synced(self, batch: Batch) -> None:
        """They survive a crash of the machine."""
        ...

    def undo(self, batch: Batch, error: StorageError) -> None:
        """The disk was full: what is not acknowledged never happened."""
        ...


class Checkpoints(Protocol):
    """What the writer asks of the checkpoints; all on the event loop."""

    @property
    def running(self) -> bool:
        """The journal file that was used before is still needed."""
        ...

    def prepare(self) -> bool:
        """Everything that was appended is in this round: remember the state that it leads to.

        False while the last checkpoint is not done.
        """
        ...

    def start(self) -> None:
        """The round is durable and the journal has switched: bring the segments to the disk."""
        ...

    def cancel(self) -> None:
        """The round failed."""
        ...


class Writer:
    """The one writer of a log directory."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: WriterThread,
        written: Callable[[list[Batch]], None],
        fail: Callable[[OSError], None],
    ) -> None:
        """All on the loop: `written` hears of what a round has brought to its files, `fail` that the disk failed:
        nothing is appended any more.
        """
        self._loop = loop
        self._thread = thread
        self._written = written
        self._disk_failed = fail
        self._journal: Journal
        self._checkpoints: Checkpoints
        self._limit = 0
        self._dirty: list[Sink] = []
        self._notes: list[Note] = []
        self._notes_alone = False
        self._busy = False
        self._queued = 0  # batches, for the next round
        self._in_round = 0  # batches, of the last round that began
        self._awaited = 0  # batches that end the gathering
        self._gathering: asyncio.TimerHandle | None = None
        self._checkpoint_wanted = False
        self._stopped: StorageError | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.unjournaled_bytes = 0
        """Written since the last checkpoint by topics that trust the page cache."""
        self.rounds = 0

    def start(self, journal: Journal, checkpoints: Checkpoints, checkpoint_bytes: int) -> None:
        """Write to `journal`; ask `checkpoints` for one after so many bytes."""
        self._journal = journal
        self._checkpoints = checkpoints
        self._limit = checkpoint_bytes

    def schedule(self, sink: Sink) -> None:
        """The partition has queued its first write since its last round."""
        self._dirty.append(sink)
        self._wake()

    def count_batch(self) -> None:
        """A partition has queued a batch."""
        self._queued += 1
        if self._gathering is not None and self._queued >= self._awaited:
            self._stop_gathering()

    def note(self, entry: Entry, apply: Callable[[], None]) -> "asyncio.Future[None]":
        """Make a change durable in the journal, then apply it."""
        if self._stopped is not None:
            raise self._stopped
        future: asyncio.Future[None] = self._loop.create_future()
        self._notes.append(Note(entry, apply, future))
        self._wake()
        return future

    def stop(self, error: StorageError) -> None:
        """Take nothing any more; what is queued fails."""
        self._stopped = error
        for note in self._take_notes():
            _fail(note.future, error)
        if self._gathering is not None:
            self._stop_gathering()
        if not self._busy:  # what waited for a checkpoint waits no longer
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Nothing is queued or in flight."""
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until nothing is queued or in flight."""
        await self._idle.wait()

    def request_checkpoint(self) -> None:
        """Take a checkpoint with the next round, full journal or not."""
        self._checkpoint_wanted = True
        self._wake()

    def checkpoint_done(self) -> None:
        """The other journal file is free."""
        if self._dirty or self._notes or self._checkpoint_wanted:
            self._wake()

    def _wake(self) -> None:
        if not self._busy and self._stopped is None:
            self._busy = True
            self._idle.clear()
            # Not at once: what else arrives in this turn of the loop shares the sync.
            self._loop.call_soon(self._start_round)

    def _gather(self) -> None:
        """Begin the next round once as many batches are there as were on their way, or time is up."""
        self._awaited = self._in_round + self._queued
        if self._queued >= self._awaited:
            self._start_round()
        else:
            self._gathering = self._loop.call_later(_LONGEST_GATHERING, self._stop_gathering)

    def _stop_gathering(self) -> None:
        assert self._gathering is not None
        self._gathering.cancel()
        self._gathering = None
        self._loop.call_soon(self._start_round)  # not at once: `_wake` says why

    def _start_round(self) -> None:
        if self._stopped is not None:
            # Since it was planned. It must not be one that takes a checkpoint: where the last one's sync has failed,
            # the next sync of the same file succeeds without what that one was to bring to the disk.
            self._busy = False
            self._idle.set()
            return
        if self._journal.size >= _LONGEST_JOURNAL * self._limit and self._checkpoints.running:
            self._busy = False  # the disk does not keep up: `checkpoint_done` goes on
            return
        alone, self._notes_alone = self._notes_alone, False
        dirty: list[Sink] = []
        if not alone:
            dirty, self._dirty = self._dirty, dirty
            self._in_round, self._queued = self._queued, 0
        batches = [sink.take_writes() for sink in dirty]
        full = self._journal.size + self.unjournaled_bytes >= self._limit
        # It covers all that was appended, so all of that is in its round.
        checkpoint = (full or self._checkpoint_wanted) and not alone and self._checkpoints.prepare()
        self._checkpoint_wanted = self._checkpoint_wanted and not checkpoint
        # A note changes the state only when it is durable, so it must not be in the round that a checkpoint closes.
        notes = [] if checkpoint else self._take_notes()
        self._thread.run(partial(self._run_round, batches, notes), partial(self._end_round, batches, notes, checkpoint))

    def _take_notes(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes

    def _run_round(self, batches: list[Batch], notes: list[Note]) -> None:
        """Steps 1 to 4, in the writer's thread."""
        # What is queued of a partition that was deleted goes nowhere, not into the journal either: a start would look
        # for the partition.
        runs = [(batch, run) for batch in batches for run in _runs(batch.writes) if not run.segment.retired]
        entries = [
            Entry(DATA, batch.sink.topic_id, batch.sink.number, run.segment.base_offset, run.position, run.pieces)
            for batch, run in runs
            if batch.journaled
        ]
        entries += [note.entry for note in notes]
        begun: list[tuple[Batch, Write, File]] = []
        told = naming = False
        large = sum(run.size for batch, run in runs if batch.journaled) >= _LARGE
        frame = self._thread.beside(partial(self._begin_frame, entries)) if large else None
        try:
            for batch, run in runs:
                file = run.segment.file_to_write(run.position)
                begun.append((batch, run, file))
                file.write(run.pieces, run.position)
            segments = dict.fromkeys(segment for batch in batches for segment in batch.sync)
            to_sync = _files(segments)
            if relaxed := [batch for batch in batches if not batch.journaled]:
                self._loop.call_soon_threadsafe(_tell_written, relaxed)
                told = True
            naming = True
            _sync_names(segments)
        except OSError as error:
            if frame is not None:
                frame.result()
            if error.errno not in (NO_DESCRIPTORS if naming else FULL + NOT_OPENED):
                raise
            if frame is not None:
                self._journal.abandon()
            _cut_files([(run, file) for batch, run, file in begun if batch.journaled or not told])
            raise _TakenBack(error) from error
        for segment, opened in to_sync:
            segment.sync(opened)
        if not entries:
            return
        laid = None if frame is None else frame.result()
        try:
            if laid is None:
                self._journal.append(entries)
            elif isinstance(laid, Begun):
                self._journal.finish(laid)
            else:
                raise laid
        except OSError as error:
            if error.errno not in FULL + NOT_OPENED:
                raise
            if isinstance(laid, OSError):
                self._journal.abandon()
            else:
                self._journal.take_back()
            _cut_files([(run, file) for batch, run, file in begun if batch.journaled])
            raise _TakenBack(error) from error
        self._journal.sync()

    def _begin_frame(self, entries: list[Entry]) -> Begun | OSError:
        """In a thread beside the writer's: a frame but for its first page, durable; or why there is no room for it.

        Raises:
            OSError: the disk has failed.
        """
        try:
            begun = self._journal.begin(entries)
        except OSError as error:
            if error.errno not in FULL + NOT_OPENED:
                raise
            return error
        self._journal.sync()
        return begun

    def _end_round(
        self, batches: list[Batch], notes: list[Note], checkpoint: bool, error: BaseException | None
    ) -> None:
        self.rounds += 1
        try:
            if error is not None:
                self._fail_round(batches, notes, error)
                if checkpoint:
                    self._checkpoints.cancel()
            else:
                self._complete_round(batches, notes, checkpoint)
        except Exception as unforeseen:  # a bug, or no thread or memory is left; whoever waits is not to wait for ever
            log.exception("round_failed")
            self._disk_failed(OSError(repr(unforeseen)))
            for note in notes:
                _fail(note.future, StorageError(f"{unforeseen!r}: the log directory is offline"))
        wanted = self._checkpoint_wanted and not self._checkpoints.running
        if (self._dirty or self._notes or wanted) and self._stopped is None:
            if self._dirty and error is None:
                self._gather()
            else:
                self._start_round()
        else:
            self._busy = False
            self._idle.set()

    def _complete_round(self, batches: list[Batch], notes: list[Note], checkpoint: bool) -> None:
        for batch in batches:
            if not batch.journaled:
                self.unjournaled_bytes += sum(write.size for write in batch.writes)
            batch.sink.synced(batch)
        self._written(batches)
        self._apply(notes)
        if checkpoint:
            self._journal.switch()
            self.unjournaled_bytes = 0
            self._checkpoints.start()

    def _apply(self, notes: list[Note]) -> None:
        for note in notes:
            try:
                note.apply()
            except OSError as error:
                self._disk_failed(error)
                _fail(note.future, StorageError(f"{error}: the log directory is offline"))
            if not note.future.done():
                note.future.set_result(None)

    def _fail_round(self, batches: list[Batch], notes: list[Note], error: BaseException) -> None:
        final = any(batch.sink.fail_stop for batch in batches)
        if isinstance(error, _TakenBack) and not final:
            hint = (
                "free disk space, or shorten a retention" if error.full else "raise the limit of open files: ulimit -n"
            )
            refusal = StorageError(f"{error}: nothing was appended", hint=hint)
            log.error("disk_full" if error.full else "file_not_opened", error=str(error))
            for batch in batches:
                batch.sink.undo(batch, refusal)
            if batches and self._stopped is None:
                self._notes, notes = notes + self._notes, []
                self._notes_alone = bool(self._notes)
        else:
            refusal = StorageError(f"{error}: the log directory is offline")
            if not isinstance(error, OSError | _TakenBack):
                log.error("round_failed", exc_info=error)
            self._disk_failed(error if isinstance(error, OSError) else OSError(str(error) or repr(error)))
        for note in notes:
            _fail(note.future, refusal)


def _runs(writes: list[Write]) -> list[Write]:
    """One write per segment: a partition's batches lie one after the other."""
    runs: list[Write] = []
    for segment, group in groupby(writes, key=lambda write: write.segment):
        parts = list(group)
        pieces = parts[0].pieces if len(parts) == 1 else [piece for part in parts for piece in part.pieces]
        runs.append(Write(segment, parts[0].position, pieces, sum(part.size for part in parts)))
    return runs


def _files(segments: Iterable[Segment]) -> list[tuple[Segment, File]]:
    """The segments to sync, with their files; what was deleted meanwhile needs none."""
    files = []
    for segment in segments:
        try:
            files.append((segment, segment.file))
        except FileNotFoundError:
            if not segment.retired:
                raise
    return files


def _sync_names(segments: Iterable[Segment]) -> None:
    """What a segment's sync brings to the disk is found there only under its name."""
    for segment in segments:
        try:
            segment.sync_name()
        except FileNotFoundError:
            if not segment.retired:
                raise


def _cut_files(runs: list[tuple[Write, File]]) -> None:
    """Take back what a full disk let through; synced, so that a power cut does not bring it back."""
    for run, file in runs:
        file.truncate(run.position)
        run.segment.sync(file)


def _tell_written(batches: list[Batch]) -> None:
    for batch in batches:
        batch.sink.written(batch)


def _fail(future: "asyncio.Future[None]", error: StorageError) -> None:
    if not future.done():
        future.set_exception(error)
