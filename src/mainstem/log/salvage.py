"""Whole batches in the midst of bytes that do not check out: what is left behind damage."""

from collections.abc import Iterator

from mainstem.log.disk import File
from mainstem.log.segment import OFFSETS
from mainstem.records import BatchHeader, CorruptBatch, decode_header
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, HEADER, MAGIC_AT, OFFSET_AND_LENGTH

_WINDOW_BYTES = 1 << 20
_MAGIC = b"\x02"


def find_batches(file: File, base_offset: int, start: int, end: int) -> Iterator[BatchHeader]:
    """Every whole batch of the segment from `base_offset` on in the bytes [start, end), wherever it begins (blocking).

    One that is found within another's records counts too, where that does not check out.
    """
    position = start
    while position + HEADER.size <= end:
        window = file.read(min(_WINDOW_BYTES, end - position), position)
        for at in _candidates(window, base_offset, end - position):
            header = _whole_batch(file, position + at, window, at)
            if header is not None:
                yield header
                position += at + header.size
                break
        else:
            position += max(1, len(window) - MAGIC_AT)  # all that begins before has its magic in here


def _candidates(window: bytes, base_offset: int, most: int) -> Iterator[int]:
    """Where in `window` a batch may begin that ends within `most` bytes.

    What has offsets of another segment is none, and needs no CRC of all that follows.
    """
    magic = window.find(_MAGIC, MAGIC_AT)
    while magic >= 0:
        at = magic - MAGIC_AT
        offset, length = OFFSET_AND_LENGTH.unpack_from(window, at)
        if base_offset <= offset < base_offset + OFFSETS and HEADER.size <= length + BEFORE_LENGTH_COUNTS <= most - at:
            yield at
        magic = window.find(_MAGIC, magic + 1)


def _whole_batch(file: File, position: int, window: bytes, at: int) -> BatchHeader | None:
    size = OFFSET_AND_LENGTH.unpack_from(window, at)[1] + BEFORE_LENGTH_COUNTS
    try:
        return decode_header(file.read(size, position))
    except CorruptBatch:
        return None
