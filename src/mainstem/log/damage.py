"""What is damaged of a partition: the batches that do not check out, and what is whole behind them.

A segment is read from its beginning. Where a batch does not check out, or bytes are missing that were durable, the next
one that does is looked for (`salvage`), with offsets that are not given yet: what lies between is lost.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from mainstem.log.disk import Disk
from mainstem.log.lost_markers import Hole, LostMarkers
from mainstem.log.partition import PartitionLog
from mainstem.log.salvage import find_batches
from mainstem.log.segment import LOG, OFFSETS, BadBatch, OpenFiles, Segment, file_name
from mainstem.records import BatchHeader
from mainstem.records.batch import PREFIX

LOST = ".lost"


class Damage(msgspec.Struct, frozen=True):
    """A stretch of a segment that is lost."""

    path: Path
    position: int
    """In bytes."""
    reason: str
    first_offset: int
    """The first offset that is lost."""
    end_offset: int
    """The first one that is not: of the next batch there is, or the next to be given."""
    lost_bytes: int
    goes_on: int | None
    """Where in the file the next whole batch begins; None: nothing more is in it."""
    kept_in: Path | None
    """The file that the lost bytes are put into; None where there are none."""
    markers: dict[int, bytes] = {}
    """Offset to the end of a transaction that was there, as far as it is known; it is written again."""


def find_damage(partition: PartitionLog, disk: Disk, *, saved: bool) -> list[Damage]:
    """All of it, in the order of its offsets (blocking); an empty list where all is whole.

    `saved` says that the checkpoint knows the partition: segments that are not among its own were written since, each
    where the one before it ends. Without, compaction may have left gaps.
    """
    return _Search(partition, disk, saved=saved).run()


def segment_files(directory: Path, disk: Disk) -> list[Path]:
    """The files with the batches."""
    if not disk.exists(directory):
        return []
    return [path for path in disk.list(directory) if path.suffix == LOG and path.stem.isdigit()]


class _File(NamedTuple):
    """A segment's file, and where the next segment begins; None for the last one."""

    segment: Segment
    size: int
    following: int | None


class _Search:
    def __init__(self, partition: PartitionLog, disk: Disk, *, saved: bool) -> None:
        self.partition = partition
        self.disk = disk
        self.saved = saved
        self.end_is_known = partition.error is None
        """Else the start has read no further than the damage: there may be more than the log end offset says."""
        self.known = {segment.base_offset: segment for segment in partition.segments}
        self.files = {int(path.stem): path for path in segment_files(partition.directory, disk)}
        self.opened = OpenFiles(disk, 16)
        self.markers = LostMarkers(partition)
        self.expected = 0
        """The next batch begins here, or behind it."""
        self.found: list[tuple[Damage, Hole]] = []

    def run(self) -> list[Damage]:
        bases = sorted(self.files | {base: None for base, segment in self.known.items() if segment.size})
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            if following is None or following > self.partition.log_start_offset:  # else its records are deleted
                self.expected = max(self.expected, base)
                size = self.disk.file_size(self.files[base]) if base in self.files else 0
                file = _File(Segment(self.partition.directory, base, self.opened), size, following)
                self._read(file)
                if following is not None and following not in self.known and self.saved:
                    self._check_gap(file, following)
                elif following is None and self.found:
                    self._check_gap(file, self.partition.log_end_offset)
        self.markers.finish()
        return [msgspec.structs.replace(damage, markers=hole.markers) for damage, hole in self.found]

    def _read(self, file: _File) -> None:
        position = 0
        while True:
            try:
                self._read_on(file, position)
            except BadBatch as error:
                whole = self._next_whole(file, error.position)
                self._add(file, error, whole)
                if whole is None:
                    return
                position = whole[0]
            else:
                return

    def _read_on(self, file: _File, start: int) -> None:
        """Every batch from `start` on; BadBatch at the first that does not check out, or where bytes are missing."""
        known = self.known.get(file.segment.base_offset)
        offsets_crc = 0
        for position, header, batch in file.segment.scan(start, file.size):
            if known is not None and known.is_dense:
                if header.base_offset != self.expected:
                    raise BadBatch(f"offset {header.base_offset}, expected {self.expected}", position)
            elif header.base_offset < self.expected:
                raise BadBatch(f"offset {header.base_offset}, expected {self.expected} or later", position)
            offsets_crc = crc32c(batch[: PREFIX.size], offsets_crc)
            self.markers.add_batch(header, batch)
            self.expected = header.next_offset
        if known is None:
            return
        if file.size < known.size:
            raise BadBatch(f"{file.size} bytes, {known.size} bytes were durable", file.size)
        if start == 0 and not known.is_dense and (offsets_crc or 1) != known.offsets_crc:
            self._add_changed_offsets(file)

    def _check_gap(self, file: _File, following: int) -> None:
        """The end of a file is gone that only the page cache was trusted with, or the journal had for a while.

        Of what is deleted it may be: then the log has to go on where it begins all the same.
        """
        found, log_start = self.expected, self.partition.log_start_offset
        if found < max(following, log_start):
            self.expected = max(found, log_start)
            self._add(file, BadBatch(f"ends at offset {found}, expected {max(following, log_start)}", file.size), None)

    def _next_whole(self, file: _File, position: int) -> tuple[int, BatchHeader] | None:
        """The first batch from `position` on whose offsets fit in there, and its position.

        No CRC covers these: where two contradict each other, the later one counts.
        """
        limit = file.following
        if limit is None:
            limit = self.partition.log_end_offset if self.end_is_known else file.segment.base_offset + OFFSETS
        best = None
        for at, header in _whole_batches(file, position):
            if self.expected <= header.base_offset and header.next_offset <= limit:
                if best is not None and header.base_offset >= best[1].next_offset:
                    break
                best = at, header
        return best

    def _add(self, file: _File, error: BadBatch, whole: tuple[int, BatchHeader] | None) -> None:
        """What does not check out, up to the batch `whole` if there is one in this file."""
        first, position = self.expected, error.position
        goes_on = None if whole is None else whole[0]
        end = file.following if whole is None else whole[1].base_offset
        if end is None:  # no offset is given again that any batch has had which the damage has left whole
            behind = [] if self.end_is_known else [header.next_offset for _, header in _whole_batches(file, position)]
            end = max([self.partition.log_start_offset, self.partition.log_end_offset, *behind])
        end = max(first, end)
        lost = max(0, (file.size if goes_on is None else goes_on) - position)
        kept_in = self._unused(first) if lost else None
        damage = Damage(file.segment.path, position, str(error), first, end, lost, goes_on, kept_in)
        self.found.append((damage, self.markers.add_hole(first, end)))
        self.expected = end

    def _add_changed_offsets(self, file: _File) -> None:
        """Of which batch they are nothing tells: they are taken as they are."""
        path, end = file.segment.path, self.expected
        reason = "the offsets of its batches are not those that compaction wrote"
        self.found.append((Damage(path, 0, reason, end, end, 0, 0, None), self.markers.add_hole(end, end)))

    def _unused(self, offset: int) -> Path:
        """A file for what is lost from `offset` on; with ``.1.lost`` and so on where repairs keep something already."""
        taken = {damage.kept_in for damage, _ in self.found}
        names = (file_name(offset, f".{number}{LOST}" if number else LOST) for number in count())
        paths = (self.partition.directory / name for name in names)
        return next(path for path in paths if path not in taken and not self.disk.exists(path))


def _whole_batches(file: _File, position: int) -> Iterator[tuple[int, BatchHeader]]:
    if position < file.size:
        yield from find_batches(file.segment.file, file.segment.base_offset, position, file.size)
