"""One round of the writer: all that was queued when it began, made durable together, in the writer's thread.

1. Write the batches to their segments (page cache): a full disk is found here, or in step 4, and so is a segment that
   cannot be opened for want of file descriptors; all is taken back.
2. Partitions that trust the page cache (`flush.messages` > 1) answer now.
3. One fdatasync of each segment whose topic syncs by number or time, and of each that got a megabyte or more; the name
   of a file that is new is synced before that, since only that may lack a file descriptor, and is then taken back as in
   step 1.
4. Write one frame with all the others' batches, and the notes, to the journal, and sync it; after step 3, since what a
   frame holds may lie behind bytes that are in no journal, and part of the frame may reach the disk before its sync.

Of a megabyte for one segment the frame has the headers alone: so much is *placed*, brought to the disk where it
belongs. There the disk's rate counts, not the number of syncs, and each byte goes there once.
docs/decisions/log-journal.md has the figures behind this.
"""

import asyncio
import errno
import mmap
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Protocol
from uuid import UUID

import msgspec

from mainstem.log.disk import Buffer, File
from mainstem.log.errors import StorageError
from mainstem.log.journal import DATA, PLACED, Entry, Journal
from mainstem.log.segment import Segment
from mainstem.records.batch import CONTROL, HEADER, LOW_ATTRIBUTES, PREFIX

_LARGE = 2**20  # bytes for one segment: below, its own sync costs more than to write them twice
_BEGUN_AT_ONCE = 2**20  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # opening fails for now; no sync gives these
NOT_OPENED = (*NO_DESCRIPTORS, errno.ENOMEM)  # of a segment: no file has failed


class TakenBack(Exception):
    """The disk had no room for a round, or a file could not be opened; nothing of it is left in any file."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.full = error.errno in FULL


class Write(msgspec.Struct, frozen=True):
    """A batch that belongs at `position` of `segment`."""

    segment: Segment
    position: int
    prefix: Buffer
    """What the log assigns of it."""
    body: Buffer
    size: int
    """Of both, in bytes."""

    @property
    def header(self) -> list[Buffer]:
        """Without its records."""
        return [self.prefix, self.body[: HEADER.size - PREFIX.size]]

    @property
    def is_marker(self) -> bool:
        """Of a transaction's end."""
        return bool(self.body[LOW_ATTRIBUTES - PREFIX.size] & CONTROL)


class PartitionWrites(msgspec.Struct, frozen=True):
    """What one partition has in a round."""

    partition: "Partition"
    writes: list[Write]
    end_offset: int
    latest: tuple[int, int]
    """Of the last write's segment, up to `end_offset`: the latest timestamp and its offset."""
    journaled: bool
    """Durable with the round; else with the next sync of its segment."""
    sync: list[Segment]
    """Segments to sync in this round: they hold batches that are in no journal."""


class Note(msgspec.Struct, frozen=True):
    """A change of a partition that is not a batch: it happens (`apply`) once it is durable."""

    entry: Entry
    apply: Callable[[], None]
    future: "asyncio.Future[None]"


class Partition(Protocol):
    """What the writer asks of a partition; all on the event loop."""

    topic_id: UUID
    number: int
    fail_stop: bool
    """Its owner has acted on what was appended: it cannot be undone."""

    def take_writes(self) -> PartitionWrites:
        """The queued writes, now in flight."""
        ...

    def written(self, ours: PartitionWrites) -> None:
        """They are in the page cache."""
        ...

    def synced(self, ours: PartitionWrites) -> None:
        """They survive a crash of the machine."""
        ...

    def undo(self, ours: PartitionWrites, error: StorageError) -> None:
        """The disk was full: what is not acknowledged never happened."""
        ...


class _Run(msgspec.Struct, frozen=True):
    """What a round has for one segment: a partition's batches lie one after the other."""

    owner: PartitionWrites
    segment: Segment
    position: int
    writes: list[Write]
    size: int
    placed: bool

    @property
    def pieces(self) -> list[Buffer]:
        """All its bytes."""
        return [piece for write in self.writes for piece in (write.prefix, write.body)]

    @property
    def entry(self) -> Entry:
        """What the journal says of it."""
        kind = PLACED if self.placed else DATA
        pieces = [piece for write in self.writes for piece in write.header] if self.placed else self.pieces
        partition = self.owner.partition
        return Entry(kind, partition.topic_id, partition.number, self.segment.base_offset, self.position, pieces)


class Round:
    """The batches, by partition, and the notes that were queued."""

    def __init__(
        self,
        partitions: list[PartitionWrites],
        notes: list[Note],
        tell_written: Callable[[list[PartitionWrites]], None],
    ) -> None:
        """`tell_written` is called in the writer's thread: these are in the page cache, and that is all they ask."""
        self.partitions = partitions
        self.notes = notes
        self._tell_written = tell_written
        self._told = False
        self._begun: list[tuple[_Run, File]] = []
        self.unjournaled_bytes = 0
        """That it has brought to segments, and to no journal."""

    def run(self, journal: Journal) -> None:
        """Steps 1 to 4 (blocking).

        Raises:
            TakenBack: the disk is full, or no file can be opened.
            OSError: the disk has failed.
        """
        # What is queued of a partition that was deleted goes nowhere, not into the journal either: a start would look
        # for the partition.
        runs = [run for each in self.partitions for run in _runs_of(each) if not run.segment.retired]
        entries = [run.entry for run in runs if run.owner.journaled]
        entries += [note.entry for note in self.notes]
        self.unjournaled_bytes = sum(run.size for run in runs if run.placed or not run.owner.journaled)
        for segment, file in self._write_segments(runs):
            segment.sync(file)
        for run in runs:
            if run.placed:  # it needs no hint any more
                run.segment.writeback_position = run.position + run.size
        if entries:
            self._write_frame(entries, journal)

    def _write_segments(self, runs: list[_Run]) -> list[tuple[Segment, File]]:
        """Steps 1 and 2, and the names of step 3; what is to be synced."""
        naming = False
        try:
            for run in runs:
                file = run.segment.file_to_write(run.position)
                self._begun.append((run, file))
                if run.position % mmap.PAGESIZE and file.cached_share(1, run.position - 1) != 1:
                    run.segment.trust.end(run.position)  # the page comes back from the disk, to be filled
                if run.placed:
                    _place(file, run)
                else:
                    file.write(run.pieces, run.position)
            segments = dict.fromkeys(segment for each in self.partitions for segment in each.sync)
            segments |= dict.fromkeys(run.segment for run in runs if run.placed)
            to_sync = _files(segments)
            if relaxed := [each for each in self.partitions if not each.journaled]:
                self._tell_written(relaxed)
                self._told = True
            naming = True
            _sync_names(segments)
        except OSError as error:
            if error.errno not in (NO_DESCRIPTORS if naming else FULL + NOT_OPENED):
                raise
            self._take_back()
            raise TakenBack(error) from error
        return to_sync

    def _write_frame(self, entries: list[Entry], journal: Journal) -> None:
        try:
            journal.append(entries)
        except OSError as error:
            if error.errno not in FULL + NOT_OPENED:
                raise
            journal.take_back()
            self._take_back()
            raise TakenBack(error) from error
        journal.sync()

    def _take_back(self) -> None:
        """Remove what a full disk let through; synced, so that a power cut does not bring it back."""
        for run, file in self._begun:
            if run.owner.journaled or not self._told:
                file.truncate(run.position)
                run.segment.sync(file)


def _place(file: File, run: _Run) -> None:
    """Write it, and let the disk begin while the rest is written."""
    position, step, size = run.position, [], 0
    for piece in run.pieces:
        step.append(piece)
        size += len(piece)
        if size >= _BEGUN_AT_ONCE:
            file.write(step, position)
            file.begin_writeback(position, size)
            position, step, size = position + size, [], 0
    if step:
        file.write(step, position)
        file.begin_writeback(position, size)


def _runs_of(owner: PartitionWrites) -> Iterable[_Run]:
    for segment, group in groupby(owner.writes, key=lambda write: write.segment):
        writes = list(group)
        size = sum(write.size for write in writes)
        # A marker says more than its header does.
        placed = owner.journaled and size >= _LARGE and not any(write.is_marker for write in writes)
        yield _Run(owner, segment, writes[0].position, writes, size, placed)


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
