"""What is damaged of a partition: the batches that do not check out, and what is whole behind them.

A segment is read from its beginning. Where a batch does not check out, or bytes are missing that were durable, the next
one that does is looked for (`salvage`), with offsets that are not given yet: what lies between is lost. Offsets and
leader epochs no CRC covers. Where compaction has left no gaps, an offset is what most of the batches behind say of it;
else of two that contradict each other the later one counts. An epoch is set right by those around it.

    offsets 10-14 │ bad CRC │ 17-19          15 and 16 are lost
            10-14 │ 79-80   │ 17-19          79 is set right: it is 15
            10-14 │ 79-80   │ bad CRC        79 and 80 are taken out: nothing says what they were
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from mainstem.log.disk import Disk
from mainstem.log.epochs import epoch_at
from mainstem.log.lost_markers import Hole, LostMarkers
from mainstem.log.metadata import list_files
from mainstem.log.partition import PartitionLog
from mainstem.log.salvage import find_batches, whole_batch
from mainstem.log.segment import LOG, OFFSETS, BadBatch, OpenFiles, Segment, file_name
from mainstem.records import BatchHeader
from mainstem.records.batch import OFFSET_AND_LENGTH, PREFIX

LOST = ".lost"
_WITNESSES = 4
"""So many of those behind a batch are asked what its offset is."""


class Damage(msgspec.Struct, frozen=True):
    """A stretch of a segment that is lost, or a batch whose offset or leader epoch is wrong."""

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
    last_batch: bytes = b""
    """Without records, at the last offset that is lost: for where nothing follows. Empty where nothing is before."""
    set_right: bytes = b""
    """What is written over what is there: nothing is lost then."""


def find_damage(partition: PartitionLog, disk: Disk, *, saved: bool) -> list[Damage]:
    """All of it, in the order of its places (blocking); an empty list where all is whole.

    `saved` says that the checkpoint knows the partition: segments that are not among its own were written since, each
    where the one before it ends. Without, compaction may have left gaps.
    """
    return _Search(partition, disk, saved=saved).run()


def segment_files(directory: Path, disk: Disk) -> list[Path]:
    """The files with the batches."""
    found = (path for path in list_files(disk, directory) if path.suffix == LOG and path.stem.isdigit())
    return [path for path in found if not disk.is_directory(path)]


class _File(NamedTuple):
    """A segment's file."""

    segment: Segment
    size: int
    following: int | None
    """Where the next segment begins; None for the last one."""
    limit: int
    """No batch in it ends behind this offset."""
    known: Segment | None
    """The segment as it was before it was damaged."""

    @property
    def is_dense(self) -> bool:
        return self.known is not None and self.known.is_dense


class _Batch(NamedTuple):
    position: int
    header: BatchHeader
    data: memoryview


class _Search:
    def __init__(self, partition: PartitionLog, disk: Disk, *, saved: bool) -> None:
        self.partition = partition
        self.disk = disk
        self.saved = saved
        self.end_is_known = partition.error is None
        """Else the start has read no further than the damage: there may be more than the log end offset says."""
        self.known = {segment.base_offset: segment for segment in partition.segments}
        self.opened = OpenFiles(disk, most=1)
        self.markers = LostMarkers(partition)
        self.epochs = _Epochs(partition)
        self.expected = 0
        """The next batch begins here, or behind it."""
        self.has_any = False
        """Whether there are batches before it."""
        self.unjudged: tuple[_File, _Batch] | None = None
        """The last batch, whose leader epoch the next one may contradict."""
        self.found: list[tuple[Damage, Hole | None]] = []

    def run(self) -> list[Damage]:
        files = {int(path.stem): path for path in segment_files(self.partition.directory, self.disk)}
        bases = sorted(files | {base: None for base, segment in self.known.items() if segment.size})
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            if following is None or following > self.partition.log_start_offset:  # else its records are deleted
                self.expected = max(self.expected, base)
                limit = following
                if limit is None:
                    limit = self.partition.log_end_offset if self.end_is_known else base + OFFSETS
                segment = Segment(self.partition.directory, base, self.opened)
                size = self.disk.file_size(files[base]) if base in files else 0
                file = _File(segment, size, following, limit, self.known.get(base))
                self._read(file)
                if following is not None and following not in self.known and self.saved:
                    self._check_gap(file, following)
        self._judge(None)
        self.markers.finish()
        self.opened.let_go()
        found = (msgspec.structs.replace(each, markers=hole.markers) if hole else each for each, hole in self.found)
        return sorted(found, key=lambda each: (each.path, each.position))

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
        offsets_crc = 0
        for batch in self._fitting(file, start):
            offsets_crc = crc32c(batch.data[: PREFIX.size], offsets_crc)
            self._count(file, batch)
        if file.known is None:
            return
        if file.size < file.known.size:
            raise BadBatch(f"{file.size} bytes, {file.known.size} bytes were durable", file.size)
        if start == 0 and not file.is_dense and (offsets_crc or 1) != file.known.offsets_crc:
            self._add_changed_offsets(file)

    def _fitting(self, file: _File, start: int) -> Iterator[_Batch]:
        """The batches as long as their offsets fit; each is held back until the next one does not contradict it."""
        last: _Batch | None = None
        batches = map(_Batch._make, file.segment.scan(start, file.size))
        while True:
            try:
                batch = next(batches, None)
            except BadBatch:
                if last is not None:
                    yield last
                raise
            if batch is None:
                break
            expected = self.expected if last is None else last.header.next_offset
            if not _fits(file, batch.header, expected):
                if last is not None and not file.is_dense and _fits(file, batch.header, self.expected):
                    offset, next_offset = last.header.base_offset, batch.header.base_offset
                    raise BadBatch(f"offset {offset}, and {next_offset} follows", last.position)
                if last is not None:
                    yield last
                batch = self._with_offset(file, batch, expected)
            elif last is not None:
                yield last
            last = batch
        if last is not None:
            yield last

    def _with_offset(self, file: _File, batch: _Batch, expected: int) -> _Batch:
        """The batch with the offset that it has to have, if what follows says so; BadBatch if not."""
        reason = f"offset {batch.header.base_offset}, expected {expected}" + ("" if file.is_dense else " or later")
        moved = _by_what_follows(file, batch.position, batch.header, expected) if file.is_dense else batch.header
        if moved.base_offset != expected or moved.next_offset > file.limit:
            raise BadBatch(reason, batch.position)
        right = expected.to_bytes(8, "big")
        self._set_right(file, batch.position, reason, expected, right)
        return _Batch(batch.position, moved, memoryview(right + bytes(batch.data[len(right) :])))

    def _count(self, file: _File, batch: _Batch) -> None:
        self.markers.add_batch(batch.header, batch.data)
        self.expected, self.has_any = batch.header.next_offset, True
        self._judge(batch.header)
        self.unjudged = file, batch

    def _judge(self, following: BatchHeader | None) -> None:
        if self.unjudged is None:
            return
        file, batch = self.unjudged
        header = batch.header
        right = self.epochs.of(header, following)
        self.unjudged = None
        if right != header.leader_epoch:
            reason = f"leader epoch {header.leader_epoch}, expected {right}"
            position = batch.position + OFFSET_AND_LENGTH.size
            self._set_right(file, position, reason, header.base_offset, right.to_bytes(4, "big", signed=True))

    def _check_gap(self, file: _File, following: int) -> None:
        """The end of a file is gone that only the page cache was trusted with; what is deleted of it may be."""
        found, self.expected = self.expected, max(self.expected, self.partition.log_start_offset)
        if self.expected < following:
            self._add(file, BadBatch(f"ends at offset {found}, expected {following}", file.size), None)

    def _next_whole(self, file: _File, position: int) -> tuple[int, BatchHeader] | None:
        """The first batch from `position` on whose offsets fit in there, and its position; of two that contradict each
        other the later one.
        """
        best = None
        for at, found in _whole_batches(file, position):
            header = _by_what_follows(file, at, found, self.expected) if file.is_dense else found
            if self.expected <= header.base_offset and header.next_offset <= file.limit:
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
        reason = re.sub(r"^.*?: position \d+: (byte \d+: )?", "", str(error))
        self._judge(None if whole is None else whole[1])
        hole = self.markers.add_hole(first, end, self.epochs.last)
        last = hole.last_batch() if self.has_any and first < end else b""
        damage = Damage(file.segment.path, position, reason, first, end, lost, goes_on, kept_in, last_batch=last)
        self.found.append((damage, hole))
        self.expected = end

    def _set_right(self, file: _File, position: int, reason: str, offset: int, right: bytes) -> None:
        damage = Damage(file.segment.path, position, reason, offset, offset, 0, position, None, set_right=right)
        self.found.append((damage, None))

    def _add_changed_offsets(self, file: _File) -> None:
        """Of which batch they are nothing tells: they are taken as they are."""
        path, end = file.segment.path, self.expected
        reason = "the offsets of its batches are not those that compaction wrote; they are taken as they are"
        self.found.append((Damage(path, 0, reason, end, end, 0, 0, None), None))

    def _unused(self, offset: int) -> Path:
        """A file for what is lost from `offset` on; with ``.1.lost`` and so on where repairs keep something already."""
        taken = {damage.kept_in for damage, _ in self.found}
        names = (file_name(offset, f".{number}{LOST}" if number else LOST) for number in count())
        paths = (self.partition.directory / name for name in names)
        return next(path for path in paths if path not in taken and not self.disk.exists(path))


class _Epochs:
    """The leader epochs of batches, from one to the next: they never fall."""

    def __init__(self, partition: PartitionLog) -> None:
        self._epochs = partition.epochs.known
        self._known_end = partition.segments.active.next_offset if partition.segments else 0
        self.last = -1

    def of(self, header: BatchHeader, following: BatchHeader | None) -> int:
        """What that of a batch has to be, behind those that were asked about and before `following`."""
        most = max(self.last, header.leader_epoch)
        if following is not None and following.leader_epoch >= self.last:
            most = following.leader_epoch
        right = min(max(header.leader_epoch, self.last), most)
        if header.base_offset < self._known_end and self._epochs:
            known, _ = epoch_at(self._epochs, header.base_offset)
            # A start without a checkpoint knows what the batches say, the wrong one too.
            right = known if self.last <= known and (following is None or known <= most) else right
        self.last = right
        return right


def _by_what_follows(file: _File, position: int, header: BatchHeader, least: int) -> BatchHeader:
    """The batch there with the offset that most say of those that follow it without a gap, the end of the segment, as
    it was known, among them; where as many say one as the other, the later ones count. None counts that says less than
    `least`, or more than there is room for.
    """
    assert file.known is not None
    length = header.next_offset - header.base_offset
    votes, found, count = [header.base_offset], header, 0
    for _ in range(_WITNESSES):
        count += found.last_offset - found.base_offset + 1
        position += found.size
        if position == file.known.size:
            votes += [file.known.next_offset - count] * 2
            break
        behind = whole_batch(file.segment.file, file.segment.base_offset, position, file.size)
        if behind is None:
            break
        found = behind
        votes.append(found.base_offset - count)
    possible = [vote for vote in reversed(votes) if least <= vote <= file.limit - length]
    offset = Counter(possible).most_common(1)[0][0] if possible else header.base_offset
    return msgspec.structs.replace(header, base_offset=offset, last_offset=offset + length - 1)


def _fits(file: _File, header: BatchHeader, expected: int) -> bool:
    if header.next_offset > file.limit:
        return False
    return header.base_offset == expected if file.is_dense else header.base_offset >= expected


def _whole_batches(file: _File, position: int) -> Iterator[tuple[int, BatchHeader]]:
    if position < file.size:
        yield from find_batches(file.segment.file, file.segment.base_offset, position, file.size)
