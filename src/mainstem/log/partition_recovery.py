"""One partition at a start: what the checkpoint says of it, what the journal says since, and its files.

1. `_check_durable`: the segments have what the checkpoint says, so far as it is not deleted;
2. `redo`: the files are brought to where the journal says they are;
3. `_read_on` counts in what lies behind the checkpoint's words, batch by batch (`_read_all`, where it has none);
4. `_check_promised`: that goes as far as the journal does; what lies behind was never promised, and a torn end goes.

What the checkpoint counts is not read again: sizes are compared, bytes are checked when they are read. What was
promised and is not there is damage, and told. Records before the log start offset are there or not; what those since
the checkpoint meant for their producers is counted in from the journal.
"""

import functools
from bisect import bisect_right
from pathlib import Path

import msgspec
from crc32c import crc32c

from mainstem.core.logging import get_logger
from mainstem.log import replay
from mainstem.log.checkpoint import PartitionState
from mainstem.log.compaction import CLEANED
from mainstem.log.disk import Disk
from mainstem.log.errors import CorruptFile, CorruptSegment
from mainstem.log.journal import Frame, decode_frames, write_frames
from mainstem.log.metadata import create_files, list_files
from mainstem.log.partition import PartitionLog
from mainstem.log.redo import Changes, redo_batches, redo_replacements, write_again
from mainstem.log.salvage import find_batches, whole_batch
from mainstem.log.segment import LOG, SUFFIXES, BadBatch, Segment, base_offset_of, file_name
from mainstem.records.batch import PREFIX

log = get_logger()

HELD = ".held"
UNFINISHED = ".new"


class PartitionRecovery:
    """Brings one partition to where its records have come; blocking."""

    def __init__(self, partition: PartitionLog, words: PartitionState | None, changes: Changes) -> None:
        """`words` are the checkpoint's; None: it has none, and every batch is read."""
        self.partition = partition
        self.words = words
        """With what `raise_epoch` and `hold` add to them."""
        self.changes = changes
        self.touched = False
        """Something was there that the checkpoint does not count."""
        self._disk: Disk = partition.segments.files.disk
        self._files: list[Path] = []

    @functools.cached_property
    def _held_in(self) -> Path | None:
        """The file that the checkpoint names: what the journal had said that an earlier start could not do."""
        if self.words is None or not self.words.held:
            return None
        return held_file(self.partition.directory, self.words.held)

    def run(self) -> None:
        """Read and check; what is found reaches the disk with the next checkpoint.

        Raises:
            CorruptData: bytes are missing or damaged that were durable.
            OSError: the disk refuses, or the machine is short of something.
        """
        partition = self.partition
        if self.words is not None:
            replay.restore(partition, self.words)
            partition.changed = bool(self.changes.rounds) or self.changes.topic is not None
        if self.words is not None and self._held_in is not None:
            held = read_held(partition.directory, self.words.held, self._disk)
            self.changes = Changes([*held, *self.changes.rounds])
            partition.changed = True
        # First of all: a repair of what turns out to be damaged has to know what is deleted.
        replay.move_log_start(partition, self.changes.log_start)
        redo_replacements(self.changes, partition.directory, partition.segments.files)
        if self.words is not None:
            for replacement in self.changes.replacements:
                if {each.base_offset for each in partition.segments}.issuperset(replacement.base_offsets):
                    replay.exchange(partition, replacement)  # else the words have it already (`hold`)
        self._files = list_files(self._disk, partition.directory)
        self._check_durable()
        if self.changes.batches:
            redo_batches(self.changes, partition.directory, self._disk, partition.log_start_offset)
            self._files = list_files(self._disk, partition.directory)
        self._read_on() if self.words is not None else self._read_all()
        self._check_promised()
        partition.epochs.truncate_before(partition.log_start_offset)
        self._reach_log_start()
        self._remove_leftovers()
        if not self._files and not self._disk.exists(partition.directory):  # nothing was in it: else that was damage
            log.warning("partition_directory_made_again", partition=str(partition.topic_partition))
            create_files(self._disk, partition.directory, partition.topic_id)

    def is_known_by_the_journal_alone(self) -> bool:
        """The damage is, or how far it goes (blocking): with neither journal nor checkpoint the next start would take
        it for a torn end, or a repair would give its offsets again.
        """
        if self.words is not None or not self.changes.has_placed:
            return False
        last = max(_base_offsets_of(self._files), default=None)
        if last is None:
            return True
        path = self.partition.directory / file_name(last, LOG)
        try:
            found = find_batches(self._disk.open(path), last, 0, self._disk.file_size(path))
            return max((header.next_offset for _, header in found), default=0) < self._promised_end
        except OSError:
            return True

    def bring(self) -> None:
        """Bring a damaged partition's files, too, to where the journal says they are: a repair looks for it there.

        Durable on return, but for names of files. Only once the journal's part is held: where a segment lacks bytes
        before these, its size does not tell so any more.
        """
        partition = self.partition
        redo_replacements(self.changes, partition.directory, partition.segments.files)
        redo_batches(self.changes, partition.directory, self._disk, partition.log_start_offset, sync=True)
        partition.log_end_offset = max(partition.log_end_offset, self._promised_end)

    # -- 1. what was durable ------------------------------------------------------------------------------------------

    def _check_durable(self) -> None:
        """Every segment that is needed has its bytes."""
        replaced, beginning = self.changes.replaced, self._foreseen_beginning()
        # A start has found damage, held what the journal says, and may have brought it here: sizes are right since.
        damaged_once = any(path.suffix == HELD for path in self._files)
        for segment in self.partition.segments:
            if not segment.size or not self._is_needed(segment, beginning):
                continue
            size = self._disk.file_size(segment.path) if self._disk.exists(segment.path) else -1
            if size < segment.size:
                found = "missing" if size < 0 else f"{size} bytes"
                raise CorruptSegment(f"{segment.path}: {found}, {segment.size} bytes were durable")
            if segment.base_offset in replaced and size > segment.size:
                raise CorruptSegment(f"{segment.path}: {size} bytes, compaction left {segment.size}")
            if damaged_once and segment.base_offset in self.changes.batches:
                for _ in segment.scan():
                    pass

    def _foreseen_beginning(self) -> int:
        """What `_beginning` will be after `redo`, by all that says where a segment begins.

        Not by a file amid what the checkpoint counts and does not name: a repair has put it there that broke off.
        """
        begun = {each.base_offset for each in self.partition.segments}
        since = 0 if self.words is None else self.words.log_end_offset
        begun.update(base for base in _base_offsets_of(self._files) if base >= since)
        begun.update(self.changes.batches.keys() - self.changes.replaced)
        return max((base for base in begun if base <= self.partition.log_start_offset), default=0)

    def _is_needed(self, segment: Segment, beginning: int) -> bool:
        """Not what lies before the segment that the log begins in.

        Where all its records are deleted, and others may follow them, it is while it is there.
        """
        if segment.base_offset < beginning:
            return False
        end = segment.next_offset
        if segment.base_offset in self.changes.batches.keys() - self.changes.replaced:
            end = max(end, self.changes.end_of(segment.base_offset))
        return end > self.partition.log_start_offset or self._disk.exists(segment.path)

    # -- 2. and 3. what lies behind ------------------------------------------------------------------------------------

    @functools.cached_property
    def _base_offsets(self) -> list[int]:
        """Of the segments' files, after `redo`."""
        return _base_offsets_of(self._files)

    @functools.cached_property
    def _beginning(self) -> int:
        """Base offset of the file that the log will begin in: what lies before it is deleted, there or not."""
        return max((base for base in self._base_offsets if base <= self.partition.log_start_offset), default=0)

    @functools.cached_property
    def _promised_end(self) -> int:
        """The journal goes so far; 0 where all of that is deleted."""
        end = self.changes.promised_end
        return end if end > self.partition.log_start_offset else 0

    def _read_on(self) -> None:
        """From where the checkpoint's words end, segment by segment, each beginning where the one before it ends."""
        partition = self.partition
        if not partition.segments:
            replay.active_segment(partition, partition.log_end_offset)
        while True:
            active = partition.segments.active
            self._read_segment(active)
            end = max(partition.log_end_offset, self._beginning)
            if end not in self._base_offsets or end == active.base_offset:
                return
            self._pass_deleted(end)
            replay.active_segment(partition, end)

    def _read_all(self) -> None:
        """Every segment; only the last one may be torn. Between them compaction may have left gaps."""
        partition = self.partition
        base_offsets = [base for base in self._base_offsets if base >= self._beginning]
        replay.move_log_start(partition, base_offsets[0] if base_offsets else 0)
        paths = {base: partition.directory / file_name(base, LOG) for base in base_offsets}
        filled = [base for base, path in paths.items() if self._disk.file_size(path)]
        for base_offset, path in paths.items():
            if base_offset < partition.log_end_offset and not self._disk.file_size(path):
                continue  # a full disk let nothing but its name through, and later there was room elsewhere
            partition.log_end_offset = max(partition.log_end_offset, base_offset)
            segment = replay.active_segment(partition, base_offset)
            if base_offset == base_offsets[-1]:
                self._read_segment(segment)
            else:
                place = bisect_right(filled, base_offset)
                end_offset = filled[place] if place < len(filled) else None
                self._count_batches(segment, self._disk.file_size(path), end_offset)

    def _read_segment(self, segment: Segment) -> None:
        """Count in the file's batches, and cut off a torn end."""
        size = self._disk.file_size(segment.path) if self._disk.exists(segment.path) else 0
        if size <= segment.size:
            return
        start = segment.size
        try:
            self._count_batches(segment, size)
        except BadBatch as error:
            if self._is_damage(segment, error, size):
                raise
            log.warning(
                "torn_tail_truncated",
                path=str(segment.path),
                position=error.position,
                bytes=size - error.position,
                reason=str(error),
            )
            segment.file.truncate(error.position)
            segment.file.sync()
            self.touched = True
        if self.words is not None:  # else the whole of it is read, and nothing says what was durable
            for begin, end in self.changes.gaps(segment.base_offset, start, segment.size):
                write_again(segment.file, begin, end)

    def _is_damage(self, segment: Segment, error: BadBatch, size: int) -> bool:
        """Something follows that was promised."""
        if self._beginning <= self.partition.log_end_offset < self._promised_end:
            return True
        if self.words is not None:
            return self._has_wrong_offset(segment, error.position, size)
        # Without the checkpoint's words nothing tells a torn end from damage but what follows it.
        return any(True for _ in find_batches(segment.file, segment.base_offset, error.position + 1, size))

    def _has_wrong_offset(self, segment: Segment, position: int, size: int) -> bool:
        """A whole batch is there, and what follows begins where it would end if its offset were right: no crash does
        that. What follows would go with it, however many records that are.
        """
        batch = whole_batch(segment.file, None, position, size)
        if batch is None:
            return False
        expected, position = self.partition.log_end_offset + batch.last_offset_delta + 1, position + batch.size
        if position == size:
            return expected in self._base_offsets
        following = whole_batch(segment.file, segment.base_offset, position, size)
        return following is not None and following.base_offset == expected

    def _count_batches(self, segment: Segment, end: int, end_offset: int | None = None) -> None:
        """Check and count in what the segment holds up to `end`; all is below `end_offset`, where the next begins."""
        partition = self.partition
        whole, offsets_crc, dense = segment.size == 0, 0, True
        try:
            for position, header, batch in segment.scan(segment.size, end):
                found, expected = header.base_offset, partition.log_end_offset
                # Compaction, which leaves gaps, takes only what a checkpoint counts.
                if found < expected or (found > expected and self.words is not None):
                    or_later = " or later" if self.words is None else ""
                    raise BadBatch(
                        f"{segment.path}: position {position}: offset {found}, expected {expected}{or_later}", position
                    )
                if end_offset is not None and header.next_offset > end_offset:
                    raise BadBatch(
                        f"{segment.path}: position {position}: offset {header.base_offset}, expected less than"
                        f" {end_offset}, where the next segment begins",
                        position,
                    )
                dense = dense and header.base_offset == segment.next_offset
                offsets_crc = crc32c(batch[: PREFIX.size], offsets_crc)
                # Without a checkpoint a batch may be of any age, and only its producer's own timestamp says which.
                append_ms = header.max_timestamp if self.words is None else None
                replay.count_in(partition, header, batch, append_ms=append_ms)
                self.touched = True
        finally:
            if whole and not dense:  # compaction wrote it, and without a checkpoint nothing else says so
                segment.offsets_crc = offsets_crc or 1

    # -- 4. what was promised -----------------------------------------------------------------------------------------

    def _check_promised(self) -> None:
        if self.partition.log_end_offset < self._promised_end:
            raise CorruptSegment(
                f"{self.partition.directory}: ends at offset {self.partition.log_end_offset},"
                f" the journal goes on to {self._promised_end}"
            )

    def _reach_log_start(self) -> None:
        """Where nothing that counts is left, its offsets are not given again.

        So it may be without a checkpoint, and where the page cache was trusted: the deletion is in the journal, and
        what was deleted was not on the disk when the power went.
        """
        partition = self.partition
        gone = False
        if partition.segments and partition.log_end_offset == partition.log_start_offset:
            active = partition.segments.active
            gone = active.size > 0 and not self._disk.exists(active.path)
        if gone or partition.log_end_offset < partition.log_start_offset:
            self._pass_deleted(partition.log_start_offset)
            replay.active_segment(partition, partition.log_start_offset)

    def _pass_deleted(self, end: int) -> None:
        """Go on at offset `end`: what lies before it is deleted, and in no file.

        What its batches meant for their producers the journal tells, or nothing does: these are forgotten then. A
        transaction whose end is not known would hold back readers of committed records for ever.
        """
        partition = self.partition
        if not partition.segments:  # what is known of aborted transactions is put into one
            replay.active_segment(partition, partition.log_end_offset)
        for header, batch in self.changes.batches_before(end):
            if header.base_offset >= partition.log_end_offset:
                self._pass_unknown(header.base_offset)
                # The marker of a producer that was forgotten does not tell what may follow: any sequence is taken.
                if not header.is_control or partition.producer(header.producer_id) is not None:
                    replay.count_producer(partition, header, batch)
                partition.log_end_offset = header.next_offset
        self._pass_unknown(end)

    def _pass_unknown(self, end: int) -> None:
        if self.partition.log_end_offset < end:
            replay.forget_producers(self.partition)
            self.partition.log_end_offset = end

    def _remove_leftovers(self) -> None:
        known = {file_name(segment.base_offset, suffix) for segment in self.partition.segments for suffix in SUFFIXES}
        for path in self._files:
            if path.name in known:
                continue
            # What it held is in a checkpoint, by the one there is; a repair that reads anew has still to write its own.
            spent = path.suffix == HELD and self.words is not None and path != self._held_in
            unfinished = spent or path.suffix in (CLEANED, UNFINISHED, ".swap", ".deleted")
            if unfinished or base_offset_of(path) is not None:  # else somebody has put it there
                log.info("leftover_removed", path=str(path))
                self._disk.unlink(path)
                # The next checkpoint syncs that: an empty segment's name would say where the log ends.
                self.partition.changed = self.partition.segments.changed = True

    # -- where it goes wrong ------------------------------------------------------------------------------------------

    def raise_epoch(self) -> None:
        """Let the words say that something may have been cut off: the start that finds it restored may be clean."""
        if self.words is not None:
            self.words = msgspec.structs.replace(self.words, leader_epoch=self.words.leader_epoch + 1)

    def hold(self) -> None:
        """Keep what the journal says in a file, since the journal is emptied; the checkpoint's words lead to it.

        A crash before these are written leaves the journal as it was.
        """
        rounds = self.changes.rounds
        if not rounds or self.words is None:  # without words it is read from its segments, to which all was brought
            return
        number = rounds[-1].sequence
        if number == self.words.held:
            return
        path = self.partition.directory / file_name(number, HELD)
        self._disk.make_directory(self.partition.directory)
        unfinished = path.with_name(path.name + UNFINISHED)
        file = self._disk.open(unfinished, create=True)
        file.truncate(0)  # what a crash has left of it
        write_frames(rounds, file)
        file.sync()
        self._disk.rename(unfinished, path)
        self._disk.sync_directory(path.parent)
        # What is brought to the files before the words are written is theirs, or without this file nobody's.
        segments = {each.base_offset: each for each in self.words.segments}
        for replacement in self.changes.replacements:
            if segments.keys() >= set(replacement.base_offsets):
                for base_offset in replacement.base_offsets:
                    del segments[base_offset]
                segments[replacement.state.base_offset] = replacement.state
        self.words = msgspec.structs.replace(
            self.words,
            held=number,
            log_start_offset=max(self.words.log_start_offset, self.changes.log_start),
            segments=[segments[base_offset] for base_offset in sorted(segments)],
        )
        log.warning("journal_held", partition=str(self.partition.topic_partition), path=str(path))


def held_file(directory: Path, number: int) -> Path:
    """Of a partition: what the journal had said, up to that round, that a start could not do."""
    return directory / file_name(number, HELD)


def read_held(directory: Path, number: int, disk: Disk) -> list[Frame]:
    """The rounds in that file (blocking).

    Raises:
        CorruptFile: they are not what was written.
        FileNotFoundError: it is not there.
    """
    path = held_file(directory, number)
    held = decode_frames(disk.open(path))
    last = held[-1].sequence if held else 0
    if last != number:  # a file that ends too early, where a round does
        raise CorruptFile(f"{path}: ends with round {last}, round {number} was the last")
    return held


def _base_offsets_of(files: list[Path]) -> list[int]:
    found = (base_offset_of(path) for path in files if path.suffix == LOG)
    return sorted(base for base in found if base is not None)
