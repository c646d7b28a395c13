"""Group commit: one round is in flight; what is appended meanwhile joins the next.

A round (`round.py`) makes everything durable that was queued when it began; then it is answered. One that follows
another waits until as many batches are queued as were queued or in flight when that one ended: clients that had an
answer are about to send their next request, and one sync for all of them costs little more than one for the first.
Where they do not come, it goes without them after a millisecond. docs/decisions/log-speed.md has what it brings.

A note is short, and often what makes room (records or a topic are deleted): those of a round that was taken back go
once more, without batches.

A sync that fails is another matter, whatever its error number: what it covered may be lost or not, and a second one
would say that all is well. The directory goes offline, and the next start finds out.

Segments are synced later, by the checkpoint, but for those that a round says.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from mainstem.core.logging import get_logger
from mainstem.log.errors import StorageError
from mainstem.log.journal import Entry, Journal
from mainstem.log.round import Note, Partition, PartitionWrites, Round, TakenBack
from mainstem.log.threads import WriterThread

log = get_logger()

_LONGEST_GATHERING = 0.001  # seconds
_LONGEST_JOURNAL = 4  # times the limit, while a checkpoint is slow: it bounds recovery too


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
        written: Callable[[list[PartitionWrites]], None],
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
        self._dirty: list[Partition] = []
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
        """Written since the last checkpoint, and in no journal."""
        self.rounds = 0

    def start(self, journal: Journal, checkpoints: Checkpoints, checkpoint_bytes: int) -> None:
        """Write to `journal`; ask `checkpoints` for one after so many bytes."""
        self._journal = journal
        self._checkpoints = checkpoints
        self._limit = checkpoint_bytes

    def schedule(self, partition: Partition) -> None:
        """It has queued its first write since its last round."""
        self._dirty.append(partition)
        self._wake()

    def count_batch(self) -> None:
        """A partition has queued a batch."""
        self._queued += 1
        if self._gathering is not None and self._queued >= self._awaited:
            self._stop_gathering()

    def note(self, entry: Entry, apply: Callable[[], None]) -> "asyncio.Future[None]":
        """Make a change durable in the journal, then apply it."""
        if self._stopped is not None:
            raise self._stopped.again()
        future: asyncio.Future[None] = self._loop.create_future()
        self._notes.append(Note(entry, apply, future))
        self._wake()
        return future

    def stop(self, error: StorageError) -> None:
        """Take nothing any more; what is queued fails."""
        self._stopped = error.again()
        for note in self._take_notes():
            _fail(note.future, error)
        if self._gathering is not None:
            self._stop_gathering()
        if not self._busy:  # what waited for a checkpoint waits no longer
            self._idle.set()

    @property
    def is_stopped(self) -> bool:
        """Nothing is taken any more."""
        return self._stopped is not None

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
        try:
            self._begin_round()
        except Exception as unforeseen:  # a bug, or no memory is left: what it has taken is in no file
            log.exception("round_failed")
            self._busy = False
            self._disk_failed(OSError(repr(unforeseen)))

    def _begin_round(self) -> None:
        if self._stopped is not None:
            # Since it was planned. It must not be one that takes a checkpoint: where the last one's sync has failed,
            # the next sync of the same file succeeds without what that one was to bring to the disk.
            self._busy = False
            self._idle.set()
            return
        behind = self._journal.size + self.unjournaled_bytes
        full = behind >= _LONGEST_JOURNAL * self._limit and self._checkpoints.running
        if full and not self._notes:
            self._busy = False  # the disk does not keep up: `checkpoint_done` goes on
            return
        # It may be room that the checkpoint waits for, and notes are often what makes it.
        alone, self._notes_alone = self._notes_alone or full, False
        dirty: list[Partition] = []
        if not alone:
            dirty, self._dirty = self._dirty, dirty
            self._in_round, self._queued = self._queued, 0
        partitions = [partition.take_writes() for partition in dirty]
        # It covers all that was appended, so all of that is in its round.
        checkpoint = (behind >= self._limit or self._checkpoint_wanted) and not alone and self._checkpoints.prepare()
        self._checkpoint_wanted = self._checkpoint_wanted and not checkpoint
        # A note changes the state only when it is durable, so it must not be in the round that a checkpoint closes.
        notes = [] if checkpoint else self._notes
        current = Round(partitions, notes, self._tell_written)
        self._thread.run(partial(current.run, self._journal), partial(self._end_round, current, checkpoint))
        if not checkpoint:  # not before: whoever waits for one is told, too, where the round cannot begin
            self._notes = []

    def _take_notes(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes

    def _tell_written(self, partitions: list[PartitionWrites]) -> None:
        """From the writer's thread."""
        self._loop.call_soon_threadsafe(_tell_written, partitions)

    def _end_round(self, ended: Round, checkpoint: bool, error: BaseException | None) -> None:
        self.rounds += 1
        try:
            if error is not None:
                self._fail_round(ended.partitions, ended.notes, error)
                if checkpoint:
                    self._checkpoints.cancel()
            else:
                self._complete_round(ended, checkpoint)
        except Exception as unforeseen:  # a bug, or no thread or memory is left; whoever waits is not to wait for ever
            log.exception("round_failed")
            self._disk_failed(OSError(repr(unforeseen)))
            for note in ended.notes:
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

    def _complete_round(self, ended: Round, checkpoint: bool) -> None:
        self.unjournaled_bytes += ended.unjournaled_bytes
        for each in ended.partitions:
            each.partition.synced(each)
        self._written(ended.partitions)
        self._apply(ended.notes)
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

    def _fail_round(self, partitions: list[PartitionWrites], notes: list[Note], error: BaseException) -> None:
        final = any(each.partition.fail_stop for each in partitions)
        if isinstance(error, TakenBack) and not final:
            hint = (
                "free disk space, or shorten a retention" if error.full else "raise the limit of open files: ulimit -n"
            )
            refusal = StorageError(f"{error}: nothing was appended", hint=hint)
            log.error("disk_full" if error.full else "file_not_opened", error=str(error), hint=hint)
            for each in partitions:
                each.partition.undo(each, refusal)
            if partitions and self._stopped is None:
                self._notes, notes = notes + self._notes, []
                self._notes_alone = bool(self._notes)
        else:
            refusal = StorageError(f"{error}: the log directory is offline")
            if not isinstance(error, OSError | TakenBack):
                log.error("round_failed", exc_info=error)
            self._disk_failed(error if isinstance(error, OSError) else OSError(str(error) or repr(error)))
        for note in notes:
            _fail(note.future, refusal)


def _tell_written(partitions: list[PartitionWrites]) -> None:
    for each in partitions:
        each.partition.written(each)


def _fail(future: "asyncio.Future[None]", error: StorageError) -> None:
    if not future.done():
        future.set_exception(error)
