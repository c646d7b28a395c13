"""Whole batches in the midst of bytes that do not check out: what is left behind damage."""

from collections.abc import Iterator

from mainstem.log.disk import File
from mainstem.log.range_crcs import RangeCrcs
from mainstem.log.segment import OFFSETS
from mainstem.records import BatchHeader, CorruptBatch, decode_header
from mainstem.records.batch import (
    BEFORE_LENGTH_COUNTS,
    COMPRESSION_MASK,
    CONTROL,
    CRC_FROM,
    HAS_DELETE_HORIZON,
    HEADER,
    MAGIC_AT,
    OFFSET_AND_LENGTH,
    TIMESTAMP_IS_APPEND_TIME,
    TRANSACTIONAL,
    unpack_header,
)

_WINDOW_BYTES = 1 << 20
_MAGIC = b"\x02"
_ATTRIBUTES = COMPRESSION_MASK | TIMESTAMP_IS_APPEND_TIME | TRANSACTIONAL | CONTROL | HAS_DELETE_HORIZON


def find_batches(file: File, base_offset: int, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch of the segment from `base_offset` on in the bytes [start, end), with its position (blocking).

    Where one does not check out, the next is looked for where its length leads, also over others that do not, and if
    there is none, at every byte behind its beginning: one that is found within another's records counts then.
    """
    segment = _Segment(file, base_offset, end)
    position = start
    while position < end:
        header = segment.whole_batch(position)
        if header is None:
            position = segment.next_batch(position)
        else:
            yield position, header
            position += header.size


def whole_batch(file: File, base_offset: int | None, position: int, end: int) -> BatchHeader | None:
    """The batch of that segment that begins there, if it checks out; with None its offset may be any (blocking)."""
    return _Segment(file, base_offset, end).whole_batch(position)


def readable_batch(file: File, position: int, end: int) -> bytes | None:
    """The batch that begins there, if nothing is wrong with it but what no CRC covers: its magic, or a bit of its
    length, which are right in what is returned, or its offset, which is as it is found (blocking).
    """
    header = file.read(HEADER.size, position)
    if len(header) < HEADER.size:
        return None
    offset, found = OFFSET_AND_LENGTH.unpack_from(header)
    for bit in (0, *(1 << number for number in range(32))):
        length = (found & 0xFFFF_FFFF) ^ bit
        size = length + BEFORE_LENGTH_COUNTS
        if HEADER.size <= size <= end - position:
            batch = bytearray(file.read(size, position))
            OFFSET_AND_LENGTH.pack_into(batch, 0, offset, length)
            batch[MAGIC_AT] = _MAGIC[0]
            try:
                decode_header(batch)
            except CorruptBatch:
                continue
            return bytes(batch)
    return None


class _Segment:
    """The bytes before `end` of a segment's file."""

    def __init__(self, file: File, base_offset: int | None, end: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.end = end
        self._crcs: RangeCrcs | None = None

    def whole_batch(self, position: int) -> BatchHeader | None:
        """The one that begins there, if it checks out."""
        window = self.file.read(HEADER.size, position)
        size = self._size(window, 0, self.end - position)
        return self._decode(position, size) if size else None

    def next_batch(self, position: int) -> int:
        """Where the next whole one begins, behind the one at `position` that is none; `end` without one."""
        window = self.file.read(HEADER.size, position)
        size = _size_of(window, 0) if len(window) == HEADER.size else 0
        following = position
        while 0 < size <= self.end - following:
            following += size
            if self.whole_batch(following) is not None:
                return following
            size = self._size(self.file.read(HEADER.size, following), 0, self.end - following)
        position += 1
        while position + HEADER.size <= self.end:
            window = self.file.read(min(_WINDOW_BYTES, self.end - position), position)
            for at in self._candidates(window, self.end - position):
                size = _size_of(window, at)
                if self._has_its_crc(position + at, size) and self._decode(position + at, size) is not None:
                    return position + at
            position += max(1, len(window) - MAGIC_AT)  # all that begins before has its magic in here
        return self.end

    def _candidates(self, window: bytes, most: int) -> Iterator[int]:
        """Where in `window` a batch may begin that ends within `most` bytes."""
        magic = window.find(_MAGIC, MAGIC_AT)
        while magic >= 0:
            at = magic - MAGIC_AT
            if self._size(window, at, most - at) and _is_sane(window, at):
                yield at
            magic = window.find(_MAGIC, magic + 1)

    def _size(self, window: bytes, at: int, most: int) -> int:
        """Of the batch that begins there, if one may, of at most so many bytes; else 0.

        What has offsets of another segment is none, and needs no CRC of all that follows.
        """
        if len(window) <= at + MAGIC_AT or window[at + MAGIC_AT] != _MAGIC[0]:
            return 0
        offset, size = OFFSET_AND_LENGTH.unpack_from(window, at)[0], _size_of(window, at)
        if self.base_offset is not None and not 0 <= offset - self.base_offset < OFFSETS:
            return 0
        return size if HEADER.size <= size <= most else 0

    def _has_its_crc(self, position: int, size: int) -> bool:
        """Whether what may be a batch is one. Somebody's records may be full of headers, each of which says that it is
        the beginning of all that follows: that is not read for every one of them.
        """
        if self._crcs is None:
            self._crcs = RangeCrcs(self.file, position)
        crc = unpack_header(self.file.read(HEADER.size, position)).crc
        return self._crcs.of(position + CRC_FROM, position + size) == crc

    def _decode(self, position: int, size: int) -> BatchHeader | None:
        try:
            return decode_header(self.file.read(size, position))
        except CorruptBatch:
            return None


def _size_of(window: bytes, at: int) -> int:
    return int(OFFSET_AND_LENGTH.unpack_from(window, at)[1]) + BEFORE_LENGTH_COUNTS


def _is_sane(window: bytes, at: int) -> bool:
    """Whether the header that begins there says nothing that none says; what does is not read for its CRC.

    Somebody's records may be full of what looks like the beginning of one.
    """
    if len(window) < at + HEADER.size:
        return True
    header = unpack_header(window, at)
    numbers = (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch)
    return (
        not header.attributes & ~_ATTRIBUTES
        and 0 <= header.count <= header.last_offset - header.base_offset + 1
        and min(numbers) >= -1
    )
