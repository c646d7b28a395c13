"""What is damaged of a partition: the batches that do not check out, and what is whole behind them.

A segment is read from its beginning. Where a batch does not check out, or bytes are missing that were durable, the next
one that does is looked for, with offsets that are not given yet (`damaged_segment`): what lies between is lost. An
offset that is wrong is set right where its neighbours say what it is, a leader epoch by those around it. In a compacted
segment the checkpoint's CRC of them says what they were, where a single bit has flipped (`flipped_prefix`).

    offsets 10-14 │ bad CRC │ 17-19          15 and 16 are lost
            10-14 │ 79-80   │ 17-19          79 is set right: it is 15
            10-14 │ 79-80   │ bad CRC        79 and 80 are taken out: nothing says what they were
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
from crc32c import crc32c

from mainstem.log.damaged_segment import DamagedSegment, is_between
from mainstem.log.disk import Disk, File
from mainstem.log.epochs import epoch_at
from mainstem.log.flipped_prefix import SetRight, find_flipped_prefix
from mainstem.log.lost_markers import Hole, LostMarkers
from mainstem.log.metadata import list_files
from mainstem.log.partition import PartitionLog
from mainstem.log.salvage import readable_batch
from mainstem.log.segment import LOG, OFFSETS, BadBatch, OpenFiles, Segment, base_offset_of, file_name
from mainstem.records import BatchHeader, decode_header
from mainstem.records.batch import MAGIC_AT, OFFSET_AND_LENGTH, PREFIX

LOST = ".lost"
_LENGTH = 8
"""Where the length is in a batch; the leader epoch follows it."""
_FOLLOWING = 2
"""So many of those behind a batch are asked whether its leader epoch may be."""


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
    """Without records, at the last offset that is lost. Empty where nothing is before."""
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
    found = (path for path in list_files(disk, directory) if path.suffix == LOG and base_offset_of(path) is not None)
    return [path for path in found if not disk.is_directory(path)]


class _Batch(NamedTuple):
    position: int
    header: BatchHeader
    data: memoryview


def _with_following(batches: Iterator[_Batch]) -> Iterator[tuple[_Batch, _Batch | None]]:
    """Each with the one behind it; None behind the last, also of those before a BadBatch."""
    batch = next(batches, None)
    while batch is not None:
        try:
            following = next(batches, None)
        except BadBatch:
            yield batch, None
            raise
        yield batch, following
        batch = following


class _Search:
    def __init__(self, partition: PartitionLog, disk: Disk, *, saved: bool) -> None:
        self.partition = partition
        self.disk = disk
        self.saved = saved
        self.end_is_known = partition.error is None
        """Else the start has read no further than the damage: there may be more than the log end offset says."""
        # Without the checkpoint's words a segment is known as far as the start has read it, not as it was.
        self.known = {segment.base_offset: segment for segment in partition.segments} if saved else {}
        self.opened = OpenFiles(disk, most=1)
        self.markers = LostMarkers(partition)
        self.epochs = _Epochs(partition)
        self.expected = 0
        """The next batch begins here, or behind it."""
        self.has_any = False
        """Whether there are batches before it, or an empty segment, which the log may begin in."""
        self.unjudged: deque[tuple[DamagedSegment, _Batch]] = deque()
        """The last batches, whose leader epochs the next ones may contradict."""
        self.found: list[tuple[Damage, Hole | None]] = []
        self.kept_in: set[Path] = set()
        """The files that the bytes of what is found are put into."""

    def run(self) -> list[Damage]:
        files = {int(path.stem): path for path in segment_files(self.partition.directory, self.disk)}
        bases = sorted(files | {base: None for base, segment in self.known.items() if segment.size})
        beginning, since = self._beginning(bases), self._known_end
        if bases and self.saved:
            self._check_beginning(bases[0])
        for base, following in zip_longest(bases, bases[1:]):
            if base >= beginning:  # else its records are deleted
                self.expected = max(self.expected, base)
                end = following
                if end is None:
                    end = self.partition.log_end_offset if self.end_is_known else base + OFFSETS
                segment = Segment(self.partition.directory, base, self.opened)
                size = self.disk.file_size(files[base]) if base in files else 0
                is_new = self.saved and base >= since  # else a repair that broke off may have put it there
                file = DamagedSegment(segment, size, following, end, self.known.get(base), is_new)
                self._read(file)
                self.has_any = self.has_any or not (size or (file.known and file.known.size))
                if following is not None and following not in self.known and self.saved:
                    self._check_gap(file, following)
                if following is None and self.saved:
                    self._check_end(file)
        self._judge_all(None)
        self.markers.finish()
        self.opened.let_go()
        found = (msgspec.structs.replace(each, markers=hole.markers) if hole else each for each, hole in self.found)
        return sorted(found, key=lambda each: (each.path, each.position))

    def _beginning(self, bases: Sequence[int]) -> int:
        """Base offset of the segment that the log begins in. Not what a repair that broke off has put amid the known
        ones: what it has cut is found once more.
        """
        since = self._known_end
        begun = (base for base in bases if base in self.known or base >= since)
        return max((base for base in begun if base <= self.partition.log_start_offset), default=0)

    @property
    def _known_end(self) -> int:
        """What the checkpoint, and the start behind it, know of ends there; 0 without a checkpoint."""
        return max((segment.next_offset for segment in self.known.values()), default=0)

    def _read(self, file: DamagedSegment) -> None:
        self._set_prefix_right(file)
        position = 0
        while True:
            try:
                self._read_on(file, position)
            except BadBatch as error:
                batch = self._readable(file, error.position)
                if batch is not None:
                    self._count(file, batch)
                    position = error.position + batch.header.size
                    continue
                whole = file.next_whole(error.position, self.expected)
                self._add(file, error, whole)
                if whole is None:
                    return
                position = whole[0]
            else:
                return

    def _set_prefix_right(self, file: DamagedSegment) -> None:
        """Of a compacted segment, before anything else is looked at: it makes others look wrong."""
        if file.known is None or file.known.is_dense or not file.size:
            return
        on_disk = file.segment.file
        flipped = find_flipped_prefix(on_disk, file.known)
        if flipped is None:
            return
        (offset, _, epoch), (right_offset, _, right_epoch) = map(PREFIX.unpack, (flipped.found, flipped.right))
        what = ("offset", offset, right_offset) if offset != right_offset else ("leader epoch", epoch, right_epoch)
        reason = "{} {}, expected {}".format(*what)
        self._set_right(file, flipped.position, reason, right_offset, flipped.right)
        self.opened.forget(file.segment)
        file.segment.opened = cast("File", SetRight(on_disk, flipped))  # nothing but read is asked of it

    def _read_on(self, file: DamagedSegment, start: int) -> None:
        """Every batch from `start` on; BadBatch at the first that does not check out, or where bytes are missing."""
        offsets_crc = 0
        for batch in self._fitting(file, start):
            offsets_crc = crc32c(batch.data[: PREFIX.size], offsets_crc)
            self._count(file, batch)
        if file.known is None:
            return
        if file.size < file.known.size:
            raise BadBatch(f"{file.size} bytes, {file.known.size} bytes were durable", file.size)
        if file.is_dense and file.known.size and self.expected < file.known.next_offset:
            raise BadBatch(f"ends at offset {self.expected}, expected {file.known.next_offset}", file.size)
        is_as_known = (offsets_crc or 1) == file.known.offsets_crc
        if start == 0 and not file.is_dense and not is_as_known and not self._has_set_right(file):
            self._add_changed_offsets(file)

    def _fitting(self, file: DamagedSegment, start: int) -> Iterator[_Batch]:
        """The batches as long as their offsets fit, none that the next one contradicts; who is given one counts it."""
        for batch, following in _with_following(map(_Batch._make, file.segment.scan(start, file.size))):
            header, expected = batch.header, self.expected
            if not file.fits(batch.position, header, expected):
                yield self._with_offset(file, batch, expected)
            elif following is None or not file.is_contradicted(header, following.position, following.header, expected):
                yield batch
            else:
                reason = f"offset {header.base_offset}, and {following.header.base_offset} follows"
                if not is_between(expected, header, following.header.base_offset):
                    raise BadBatch(reason, batch.position)
                yield self._set_offset(file, batch, expected, reason)

    def _with_offset(self, file: DamagedSegment, batch: _Batch, expected: int) -> _Batch:
        """The batch with the offset that it has to have, if what follows says so; BadBatch if not."""
        reason = f"offset {batch.header.base_offset}, expected {expected}" + ("" if file.is_dense else " or later")
        if file.is_dense:
            moved = file.by_what_follows(batch.position, batch.header, expected)
            fits = moved.base_offset == expected and moved.next_offset <= file.limit(batch.position)
            is_known = fits or file.is_last(batch.position, batch.header, expected)
        else:
            behind = file.whole_batch(batch.position + batch.header.size)
            is_known = behind is not None and is_between(expected, batch.header, behind.base_offset)
        if not is_known:
            raise BadBatch(reason, batch.position)
        return self._set_offset(file, batch, expected, reason)

    def _readable(self, file: DamagedSegment, position: int) -> _Batch | None:
        """The batch there that does not check out, if only its length, its magic or an offset that is none of this
        segment's is wrong: it is set right then, and nothing of it is lost.
        """
        data = readable_batch(file.segment.file, position, file.size) if position < file.size else None
        if data is None:
            return None
        batch = _Batch(position, decode_header(data), memoryview(data))
        if not file.fits(position, batch.header, self.expected):
            try:
                batch = self._with_offset(file, batch, self.expected)
            except BadBatch:
                return None
        elif data == file.segment.file.read(len(data), position):
            return None  # it contradicts what follows
        found = file.segment.file.read(MAGIC_AT + 1, position)
        for what, at, size in (("length", _LENGTH, 4), ("magic", MAGIC_AT, 1)):  # not what is between: the leader epoch
            wrong, right = found[at : at + size], data[at : at + size]
            if wrong != right:
                reason = f"{what} {int.from_bytes(wrong, signed=True)}, expected {int.from_bytes(right)}"
                self._set_right(file, position + at, reason, batch.header.base_offset, right)
        return batch

    def _set_offset(self, file: DamagedSegment, batch: _Batch, offset: int, reason: str) -> _Batch:
        right = offset.to_bytes(8, "big")
        self._set_right(file, batch.position, reason, offset, right)
        last = offset + batch.header.last_offset_delta
        header = msgspec.structs.replace(batch.header, base_offset=offset, last_offset=last)
        return _Batch(batch.position, header, memoryview(right + bytes(batch.data[len(right) :])))

    def _count(self, file: DamagedSegment, batch: _Batch) -> None:
        self.markers.add_batch(batch.header, batch.data)
        self.expected, self.has_any = batch.header.next_offset, True
        self.unjudged.append((file, batch))
        if len(self.unjudged) > _FOLLOWING:
            self._judge([each.header for _, each in self.unjudged][1:])

    def _judge_all(self, following: BatchHeader | None) -> None:
        """A hole is behind the last batch, or the end."""
        behind = [each.header for _, each in self.unjudged] + ([] if following is None else [following])
        while self.unjudged:
            behind = behind[1:]
            self._judge(behind[:_FOLLOWING])

    def _judge(self, following: Sequence[BatchHeader]) -> None:
        file, batch = self.unjudged.popleft()
        header = batch.header
        right = self.epochs.of(header, following)
        if right != header.leader_epoch:
            reason = f"leader epoch {header.leader_epoch}, expected {right}"
            position = batch.position + OFFSET_AND_LENGTH.size
            self._set_right(file, position, reason, header.base_offset, right.to_bytes(4, "big", signed=True))

    def _check_beginning(self, first: int) -> None:
        """Files before the first that there is are gone: no checkpoint knows of them, and only the page cache
        was trusted with them.
        """
        expected = max(self.partition.log_start_offset, self._known_end)
        if expected < first:
            self.expected = expected
            missing = Segment(self.partition.directory, expected, self.opened)
            file = DamagedSegment(missing, 0, following=first, end=first, known=None)
            self._add(file, BadBatch(f"begins at offset {first}, expected {expected}", 0), None)

    def _check_gap(self, file: DamagedSegment, following: int) -> None:
        """The end of a file is gone that only the page cache was trusted with; what is deleted of it may be."""
        found = self.expected
        self.expected = max(found, min(self.partition.log_start_offset, following))
        if self.expected < following:
            self._add(file, BadBatch(f"ends at offset {found}, expected {following}", file.size), None)

    def _check_end(self, file: DamagedSegment) -> None:
        """No offset that the checkpoint knows is given again."""
        end = self.partition.log_end_offset
        if max(self.expected, self.partition.log_start_offset) < end:
            self._add(file, BadBatch(f"ends at offset {self.expected}, expected {end}", file.size), None)

    def _add(self, file: DamagedSegment, error: BadBatch, whole: tuple[int, BatchHeader] | None) -> None:
        """What does not check out, up to the batch `whole` if there is one in this file."""
        first, position = self.expected, error.position
        goes_on = None if whole is None else whole[0]
        end = file.following if whole is None else whole[1].base_offset
        if end is None:  # no offset is given again that any batch has had which the damage has left whole
            whole_ones = [] if self.end_is_known else file.whole_batches(position)
            behind = [
                # One that is there, and does not fit, has not had the offset that it says.
                first + header.last_offset_delta + 1
                if at == position and file.is_dense
                else min(header.next_offset, file.limit(at))
                for at, header in whole_ones
            ]
            end = max([self.partition.log_start_offset, self.partition.log_end_offset, *behind])
        end = max(first, end)
        lost = max(0, (file.size if goes_on is None else goes_on) - position)
        kept_in = self._kept_in(first, file, position, lost) if lost else None
        reason = re.sub(r"^.*?: position \d+: (byte \d+: )?", "", str(error))
        self._judge_all(None if whole is None else whole[1])
        hole = self.markers.add_hole(first, end, self.epochs.last)
        last = hole.last_batch() if self.has_any and first < end else b""
        damage = Damage(file.segment.path, position, reason, first, end, lost, goes_on, kept_in, last_batch=last)
        self.found.append((damage, hole))
        self.expected = end

    def _set_right(self, file: DamagedSegment, position: int, reason: str, offset: int, right: bytes) -> None:
        damage = Damage(file.segment.path, position, reason, offset, offset, 0, position, None, set_right=right)
        self.found.append((damage, None))

    def _has_set_right(self, file: DamagedSegment) -> bool:
        return any(damage.set_right and damage.path == file.segment.path for damage, _ in self.found)

    def _add_changed_offsets(self, file: DamagedSegment) -> None:
        """Of which batch they are nothing tells: they are taken as they are."""
        path, end = file.segment.path, self.expected
        reason = "the offsets of its batches are not those that compaction wrote; they are taken as they are"
        self.found.append((Damage(path, 0, reason, end, end, 0, 0, None), None))

    def _kept_in(self, offset: int, file: DamagedSegment, position: int, size: int) -> Path:
        """A file for what is lost from `offset` on; with ``.1.lost`` and so on where repairs keep something else
        already. One that a repair has begun with on a full disk is gone on with.
        """
        names = (file_name(offset, f".{number}{LOST}" if number else LOST) for number in count())
        paths = (self.partition.directory / name for name in names)
        kept_in = next(
            path for path in paths if path not in self.kept_in and self._may_keep(path, file, position, size)
        )
        self.kept_in.add(kept_in)
        return kept_in

    def _may_keep(self, path: Path, file: DamagedSegment, position: int, size: int) -> bool:
        """Whether nothing else is kept in it."""
        if not self.disk.exists(path):
            return True
        kept, bytes_ = self.disk.open(path), 1 << 20
        return self.disk.file_size(path) == size and all(
            kept.read(min(bytes_, size - at), at) == file.segment.file.read(min(bytes_, size - at), position + at)
            for at in range(0, size, bytes_)
        )


class _Epochs:
    """The leader epochs of batches, from one to the next: they never fall."""

    def __init__(self, partition: PartitionLog) -> None:
        self._epochs = partition.epochs.known
        self._known_end = partition.segments.active.next_offset if partition.segments else 0
        self._log_start = partition.log_start_offset
        self.last = -1

    def of(self, header: BatchHeader, following: Sequence[BatchHeader]) -> int:
        """What that of a batch has to be, behind those that were asked about and before `following`, up to two: one
        may be wrong itself. Of what is deleted nobody knows more than that it is none of those that came later.
        """
        right = max(header.leader_epoch, self.last)
        most = max((each.leader_epoch for each in following if each.leader_epoch >= self.last), default=right)
        right = min(right, most)
        if self._epochs and header.next_offset <= self._log_start:
            right = min(right, self._epochs[0][0])
        elif self._epochs and header.base_offset < self._known_end:
            known, _ = epoch_at(self._epochs, header.base_offset)
            # What a start has read behind the checkpoint's words it knows as the batches say it, the wrong one too.
            right = known if self.last <= known and (len(following) < _FOLLOWING or known <= most) else right
        self.last = right
        return right
