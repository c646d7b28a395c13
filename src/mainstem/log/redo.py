"""Redo: doing to a partition's files what the journal says, whether it was done before or not.

What the journal says of one partition since the checkpoint is a `Changes`. Its files are brought there as a whole, and
read afterwards: the order of what happened in between tells nothing more.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

import msgspec
from crc32c import crc32c

from mainstem.core.prepared import prepared
from mainstem.log.compaction import CLEANED, Replacement
from mainstem.log.disk import Buffer, Disk, File
from mainstem.log.errors import CorruptFile
from mainstem.log.journal import CREATE, DATA, DELETE, LOG_START, PLACED, REPLACE, Entry, Frame
from mainstem.log.segment import LOG, BadBatch, OpenFiles, Segment, file_name
from mainstem.records import HEADER, BatchHeader, iter_headers, unpack_header
from mainstem.records.batch import PREFIX

_PIECE_BYTES = 1 << 20

Key = tuple[UUID, int]
"""A partition: its topic's id, its number."""


class Changes:
    """What the journal says of one partition since the checkpoint; what comes before its deletion is moot."""

    def __init__(self, rounds: Iterable[Frame] = ()) -> None:
        """`rounds` have this partition's entries alone.

        Raises:
            CorruptFile: an entry is not understood.
        """
        self.topic: str | None = None
        """It was created since, for this topic."""
        self.deleted = False
        self.topics_deleted: set[str] = set()
        """Names that it was created under before it was deleted."""
        self._forget()
        for frame in rounds:
            for entry in frame.entries:
                self._add(frame, entry)

    def _forget(self) -> None:
        self.rounds: list[Frame] = []
        """Those with changes of what it holds: neither its creation nor its deletion."""
        self.log_start = 0
        self.replacements: list[Replacement] = []
        self.batches: dict[int, list[Entry]] = {}
        """Base offset of a segment to what was written to it."""

    def _add(self, frame: Frame, entry: Entry) -> None:
        if entry.kind == CREATE:
            self.topic, self.deleted = entry.data.decode(), False
            return
        if entry.kind == DELETE:
            self.topics_deleted.update([self.topic] if self.topic is not None else [])
            self.topic, self.deleted = None, True
            self._forget()
            return
        if entry.kind in (DATA, PLACED):
            self.batches.setdefault(entry.number, []).append(entry)
        elif entry.kind == LOG_START:
            self.log_start = max(self.log_start, entry.number)
        elif entry.kind == REPLACE:
            self.replacements.append(_replacement(entry))
        else:
            raise CorruptFile(f"journal: an entry of kind {entry.kind}", hint="use the newer program")
        if not self.rounds or self.rounds[-1].sequence != frame.sequence:
            self.rounds.append(msgspec.structs.replace(frame, entries=[]))
        self.rounds[-1].entries.append(entry)

    @property
    def replaced(self) -> set[int]:
        """Base offsets of the segments that compaction has put others in the place of."""
        return {base_offset for replacement in self.replacements for base_offset in replacement.base_offsets}

    def gaps(self, base_offset: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where bytes of a segment between these positions are of which the journal says nothing."""
        entries = () if base_offset in self.replaced else self.batches.get(base_offset, ())
        for entry in entries:
            stored = entry.stored if entry.kind == DATA else None  # nothing is read that need not be
            size = (
                stored.size if stored is not None else sum(header.size for header in _headers(entry.kind, entry.data))
            )
            if start < min(entry.position, end):
                yield start, min(entry.position, end)
            start = max(start, entry.position + size)
        if start < end:
            yield start, end

    def end_of(self, base_offset: int) -> int:
        """Where what the journal has of a segment ends."""
        last = self.batches[base_offset][-1]
        return max(header.next_offset for header in _headers(last.kind, last.data))

    def batches_before(self, offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Header and bytes of those that end there at the latest, in order; of those that were placed no bytes."""
        for base_offset in sorted(base for base in self.batches.keys() - self.replaced if base < offset):
            for entry in self.batches[base_offset]:
                data, position = memoryview(entry.data), 0
                for header in _headers(entry.kind, data):
                    if header.next_offset <= offset:
                        yield header, data[position : position + header.size] if entry.kind == DATA else data[:0]
                    position += header.size

    @property
    def has_placed(self) -> bool:
        """It speaks of batches that are in their segment alone."""
        return any(entry.kind == PLACED for entries in self.batches.values() for entry in entries)

    @property
    def promised_end(self) -> int:
        """Where the last batch ends; 0 without any."""
        return max((self.end_of(base_offset) for base_offset in self.batches.keys() - self.replaced), default=0)


def changes_by_partition(frames: Iterable[Frame]) -> dict[Key, Changes]:
    """What these rounds say, partition by partition.

    Raises:
        CorruptFile: an entry is not understood.
    """
    rounds: dict[Key, list[Frame]] = {}
    for frame in frames:
        entries: dict[Key, list[Entry]] = {}
        for entry in frame.entries:
            entries.setdefault((entry.topic_id, entry.partition), []).append(entry)
        for key, own in entries.items():
            rounds.setdefault(key, []).append(msgspec.structs.replace(frame, entries=own))
    return {key: Changes(own) for key, own in rounds.items()}


def redo_replacements(changes: Changes, directory: Path, files: OpenFiles) -> None:
    """Let what compaction wrote have its segment's name, and what that replaces be gone (blocking)."""
    disk = files.disk
    for replacement in changes.replacements:
        base_offset, *others = replacement.base_offsets
        path = directory / file_name(base_offset, LOG)
        cleaned = path.with_name(path.name + CLEANED)
        if disk.exists(cleaned) and _is_whole(cleaned, replacement, files):
            disk.rename(cleaned, path)
        if disk.exists(path) and disk.file_size(path) == replacement.state.size:
            for other in others:
                disk.unlink(directory / file_name(other, LOG))


def redo_batches(changes: Changes, directory: Path, disk: Disk, log_start: int, *, sync: bool = False) -> None:
    """Write the batches, also where they are read already (blocking).

    They may be in the page cache alone, and after a sync that failed the next one succeeds without them. With `sync`
    they are durable on return, but for names of files. Of those that were placed the headers are written: what else is
    there, or nothing, does not match their CRCs then.

    A segment whose file is missing was deleted, if all that the journal has of it is before the log start offset; else
    its name was not durable when the power went.
    """
    for base_offset in sorted(changes.batches.keys() - changes.replaced):
        path = directory / file_name(base_offset, LOG)
        if not disk.exists(path) and changes.end_of(base_offset) <= log_start:
            continue
        file = disk.open(path, create=True)
        for entry in changes.batches[base_offset]:
            data, position = entry.data, entry.position
            if entry.kind == DATA:
                file.write([data], position)
                continue
            for at, header in zip(range(0, len(data), HEADER.size), _headers(entry.kind, data), strict=True):
                file.write([data[at : at + HEADER.size]], position)
                position += header.size
        if sync:
            file.sync()


def _headers(kind: int, data: Buffer) -> Iterator[BatchHeader]:
    """Of the batches that an entry has, or that were placed; `data` is what it carries."""
    if kind == DATA:
        yield from iter_headers(memoryview(data))
    else:
        for position in range(0, len(data), HEADER.size):
            yield unpack_header(data, position)


def write_again(file: File, start: int, end: int) -> None:
    """Let the next sync bring these bytes to the disk (blocking).

    After one that failed they may be in the page cache alone, and the next one succeeds without them.
    """
    for position in range(start, end, _PIECE_BYTES):
        file.write([file.read(min(_PIECE_BYTES, end - position), position)], position)


def _is_whole(cleaned: Path, replacement: Replacement, files: OpenFiles) -> bool:
    """It is what the journal speaks of, not what a later compaction had begun."""
    state, file = replacement.state, files.disk.open(cleaned)
    if file.size() != state.size:
        return False
    segment = Segment(cleaned.parent, state.base_offset, files)
    segment.opened = file
    found = 0
    try:
        for _, _, batch in segment.scan(0, state.size):
            found = crc32c(batch[: PREFIX.size], found)
    except BadBatch:
        return False
    return not state.size or (found or 1) == state.offsets_crc


def _replacement(entry: Entry) -> Replacement:
    try:
        return msgspec.msgpack.decode(entry.data, type=prepared(Replacement))
    except msgspec.DecodeError as error:
        raise CorruptFile(f"journal: what replaces segments of {entry.topic_id}-{entry.partition}: {error}") from None
