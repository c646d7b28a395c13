"""The journal: a round of appends is one frame here, with one fdatasync however many partitions it touched.

Two files take turns; each is used from its beginning for one *generation*. A frame is one round; it starts on a page
of its own, so that writing a frame never touches a page with acknowledged data (docs/formats/data-directory.md)::

    0      4      8         12        16            24          32
    ├──────┼──────┼─────────┼─────────┼─────────────┼───────────┼─ 45 bytes each ─┬───────────────────┬─────────┐
    │ MSJ1 │ crc  │ length  │ entries │ generation  │ sequence  │ entry, entry, … │ payloads in order │ padding │
    └──────┴──────┴─────────┴─────────┴─────────────┴───────────┴─────────────────┴───────────────────┴─ to 4096┘
                   └────────────────────── the CRC-32C covers this ────────────────────────────────────┘

Sequences go on without a gap from frame to frame, over files and restarts. A round starts only when the one before it
is durable, so only the last frame can be torn: an invalid frame with a valid later one means damage.

Each start begins with a generation that nobody can guess. Pages of a torn frame, and those behind the last one, hold
what clients sent: what looks like a frame there, made by somebody on purpose, has the wrong generation.
"""

import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from struct import Struct
from uuid import UUID

import msgspec
from crc32c import crc32c

from mainstem.log.checkpoint import NAME as CHECKPOINT
from mainstem.log.disk import Buffer, Disk, File
from mainstem.log.errors import CorruptFile

PAGE = 4096
NAMES = ("journal.0", "journal.1")
"""No topic's: the directory of a partition ends with its number after a `-`."""

# What an entry says.
DATA = 1  # `payload` belongs at `position` of the segment with base offset `number`
CREATE = 2  # the partition exists; `payload` is the topic's name
DELETE = 3  # the partition does not exist any more
LOG_START = 4  # the log start offset is `number`
REPLACE = 5  # compaction: `payload` names the segments that one new segment replaces
PLACED = 6  # as DATA, of batches that are durable in their segment: `payload` has the headers alone

_MAGIC = b"MSJ1"
_HEADER = Struct(">4sIIIqq")
_ENTRY = Struct(">B16siqqq")
_CRC_FROM = 8
_SECRET_BITS = 40
_READ_BYTES = 2**20


class Stored(msgspec.Struct, frozen=True):
    """What an entry carries, where it was found."""

    file: File
    position: int
    size: int


class Entry(msgspec.Struct, frozen=True):
    """One change of one partition."""

    kind: int
    topic_id: UUID
    partition: int
    number: int = 0
    position: int = 0
    payload: Sequence[Buffer] = ()
    """To be written."""
    stored: Stored | None = None
    """Found: it stays in its file until it is asked for, as a start has to get by with less memory than a journal."""

    @property
    def data(self) -> bytes:
        """What it carries (blocking)."""
        if self.stored is not None:
            return self.stored.file.read(self.stored.size, self.stored.position)
        return b"".join(self.payload)


class Frame(msgspec.Struct, frozen=True):
    """One round, as it was found in a file."""

    generation: int
    sequence: int
    entries: list[Entry]
    size: int
    stored: Stored | None = None
    """Where it was found, as a whole."""


def next_generation(last: int) -> int:
    """The first one of a start, after all that there were; always as long in a checkpoint."""
    return max(last, 1 << _SECRET_BITS) + 1 + int.from_bytes(os.urandom(_SECRET_BITS // 8), "big")


class Journal:
    """Appends frames; blocking, for the writer's thread."""

    def __init__(self, directory: Path, disk: Disk, *, generation: int, sequence: int) -> None:
        """Start `generation` in the first file; both files are free to be written over."""
        self._files: list[File] = [disk.open(directory / name, create=True) for name in NAMES]
        self._current = 0
        self.generation = generation
        self.sequence = sequence
        """Of the next frame."""
        self.size = 0
        """Bytes of this generation."""

    def empty(self) -> None:
        """Forget the rounds of earlier runs, all of which a checkpoint covers.

        A first round that is torn or taken back would leave the older of the two files: without a checkpoint, its
        rounds would pass for the last ones.
        """
        for file in self._files:
            if file.size():
                file.truncate(0)
                file.sync()

    def append(self, entries: list[Entry]) -> None:
        """Write one frame; durable after `sync`. Where it fails, `take_back` removes what is there of it."""
        frame = encode_frame(self.generation, self.sequence, entries)
        self._files[self._current].write(frame, self.size)
        self.size += sum(map(len, frame))
        self.sequence += 1

    def take_back(self) -> None:
        """Remove what was written of a frame that failed: one that lacks only its padding would count at a start."""
        file = self._files[self._current]
        if file.size() > self.size:
            file.truncate(self.size)
            file.sync()

    def sync(self) -> None:
        """On return every frame so far survives a crash of the machine (blocking).

        Raises:
            OSError: whether they do is not known, and no second sync would tell: nothing more may be written.
        """
        self._files[self._current].sync()

    def let_go(self) -> None:
        """Close the files; nothing can be written any more."""
        self._files.clear()

    def switch(self) -> None:
        """Begin the next generation in the other file; its old content must not be needed any more.

        One without rounds goes on in its file: what that has is older than what the other file has, and a first round
        that is torn or taken back there would leave the older of the two (`empty` says why that must not be).
        """
        if self.size:
            self._current = 1 - self._current
        self.generation += 1
        self.size = 0


def encode_frame(generation: int, sequence: int, entries: list[Entry]) -> list[Buffer]:
    """The frame in pieces, padded to a whole page."""
    table = bytearray()
    payload: list[Buffer] = []
    for entry in entries:
        size = sum(map(len, entry.payload))
        table += _ENTRY.pack(entry.kind, entry.topic_id.bytes, entry.partition, entry.number, entry.position, size)
        payload += entry.payload
    length = _HEADER.size + len(table) + sum(map(len, payload))
    header = bytearray(_HEADER.pack(_MAGIC, 0, length, len(entries), generation, sequence))
    crc = crc32c(table, crc32c(memoryview(header)[_CRC_FROM:]))
    for piece in payload:
        crc = crc32c(piece, crc)
    header[4:8] = crc.to_bytes(4, "big")
    return [header, table, *payload, bytes(-length % PAGE)]


def write_frames(frames: Iterable[Frame], file: File) -> None:
    """Rounds one after the other, as in a journal file, of which no more than one is in memory (blocking)."""
    position = 0
    for frame in frames:
        entries = [msgspec.structs.replace(entry, payload=(entry.data,), stored=None) for entry in frame.entries]
        pieces = encode_frame(frame.generation, frame.sequence, entries)
        file.write(pieces, position)
        position += sum(map(len, pieces))


def decode_frames(file: File) -> list[Frame]:
    """What `write_frames` was given (blocking).

    Raises:
        CorruptFile: one of them does not check out.
    """
    frames: list[Frame] = []
    position, size = 0, file.size()
    while position < size:
        frame = decode_frame(file, position, size)
        if frame is None:
            raise CorruptFile(f"{file.path}: byte {position}: no round of a journal with a matching CRC")
        frames.append(frame)
        position += frame.size
    return frames


def decode_frame(file: File, position: int, size: int, *, generations: Container[int] | None = None) -> Frame | None:
    """The frame that starts at `position` of a file of `size` bytes (blocking).

    None where there is no whole frame of these generations (of any) with a matching CRC.
    """
    page = file.read(PAGE, position)
    if len(page) < _HEADER.size:
        return None
    magic, crc, length, count, generation, sequence = _HEADER.unpack_from(page)
    if magic != _MAGIC or (generations is not None and generation not in generations):
        return None  # before its length is believed: what somebody made would have the whole file read for each page
    table_end = _HEADER.size + count * _ENTRY.size
    end = position + length
    if not (table_end <= length and end <= size):
        return None
    found = crc32c(memoryview(page)[_CRC_FROM:length])
    for start in range(position + PAGE, end, _READ_BYTES):
        found = crc32c(file.read(min(_READ_BYTES, end - start), start), found)
    if found != crc:
        return None
    table = page if table_end <= len(page) else file.read(table_end, position)
    entries, at = [], position + table_end
    for place in range(_HEADER.size, table_end, _ENTRY.size):
        kind, topic_id, partition, number, target, carried = _ENTRY.unpack_from(table, place)
        entries.append(Entry(kind, UUID(bytes=topic_id), partition, number, target, stored=Stored(file, at, carried)))
        at += carried
    padded = length + (-length % PAGE)
    return Frame(generation, sequence, entries, padded, Stored(file, position, padded))


def generation_of(file: File) -> int | None:
    """The generation that a file was used for last (blocking); None: it has none, or what it begins with is damaged.

    No client's bytes are ever where a file begins.
    """
    page = file.read(_HEADER.size, 0)
    if len(page) < _HEADER.size or page[: len(_MAGIC)] != _MAGIC:
        return None
    generation: int = _HEADER.unpack(page)[4]
    return generation


def read_frames(files: Sequence[File], *, generation: int | None, sequence: int | None) -> list[Frame]:
    """The rounds from `sequence` on, in order, found in the journal files of `generation` or the next one (blocking).

    Without them (the checkpoint is gone) the longest row of rounds that ends with the last one, of the generation that
    each file was used for last.

    Raises:
        CorruptFile: a round is missing or damaged that a later one proves to have been durable.
    """
    frames: list[Frame] = []
    for file in files:
        last = generation_of(file) if generation is None else None
        both = None if generation is None else (generation, generation + 1)
        frames += _frames_of(file, both if last is None else (last,))
    frames.sort(key=lambda frame: frame.sequence)
    if sequence is None:
        return _last_row(frames)
    for expected, frame in enumerate(frames, sequence):
        if frame.sequence != expected:
            checkpoint = files[0].path.parent / CHECKPOINT
            raise CorruptFile(
                f"{' and '.join(str(file.path) for file in files)}: round {expected} is missing or damaged, round "
                f"{frame.sequence} is there",
                hint=f"restore the data directory from a copy; or move {checkpoint} away: then the next start reads and "
                "checks every batch of every partition, and names those that are damaged, if there are any",
            )
    return frames


def _last_row(frames: list[Frame]) -> list[Frame]:
    start = len(frames)
    while start > 0 and (start == len(frames) or frames[start - 1].sequence == frames[start].sequence - 1):
        start -= 1
    return frames[start:]


def _frames_of(file: File, generations: Container[int] | None) -> list[Frame]:
    """Every valid frame of these generations, also behind an invalid one."""
    frames, position, size = [], 0, file.size()
    while position < size:
        frame = decode_frame(file, position, size, generations=generations)
        if frame is None:
            position += PAGE
        else:
            frames.append(frame)
            position += frame.size
    return frames
