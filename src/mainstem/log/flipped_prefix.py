"""One flipped bit of what compaction has written in front of a segment's batches, where no CRC of theirs covers it.

The checkpoint has a CRC of all these prefixes (`Segment.offsets_crc`), and that says which bit it was, of how many
batches ever: `flipped_bit`. What else of the batches is damaged does not matter, as long as their lengths lead on.
"""

from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from mainstem.log.disk import File
from mainstem.log.flipped_bit import flipped_bit
from mainstem.log.segment import Segment
from mainstem.records import HEADER
from mainstem.records.batch import BEFORE_LENGTH_COUNTS, PREFIX

_LENGTH = range(8, 12)
"""Its bytes in a prefix."""


class FlippedPrefix(NamedTuple):
    """A batch's offset, length and leader epoch; a bit of the first or the last is wrong."""

    position: int
    """Where in the file the batch begins."""
    found: bytes
    right: bytes


class SetRight:
    """A segment's file, to be read as it is once that bit is set right."""

    def __init__(self, file: File, flipped: FlippedPrefix) -> None:
        self.path = file.path
        self._file = file
        self._flipped = flipped

    def read(self, size: int, position: int) -> bytes:
        """As that of the file."""
        data, at = self._file.read(size, position), self._flipped.position - position
        if not -PREFIX.size < at < len(data):
            return data
        right = self._flipped.right[max(0, -at) : len(data) - at]
        at = max(0, at)
        return data[:at] + right + data[at + len(right) :]


def find_flipped_prefix(file: File, known: Segment) -> FlippedPrefix | None:
    """The one there is in the file of a compacted segment, which was `known` so (blocking); None where there is none,
    or more than one bit is wrong.
    """
    found, positions, position = bytearray(), [], 0
    while position < known.size:
        prefix = file.read(PREFIX.size, position)
        size = PREFIX.unpack(prefix)[1] + BEFORE_LENGTH_COUNTS if len(prefix) == PREFIX.size else 0
        if size < HEADER.size:
            return None
        positions.append(position)
        found += prefix
        position += size
    difference = crc32c(found) ^ known.offsets_crc
    flipped = flipped_bit(difference, len(found)) if difference and position == known.size else None
    if flipped is None:
        return None
    place, bit = flipped
    right = bytearray(found)
    right[place] ^= bit
    # Three wrong bits, or more, may look like another single one; the offsets hardly do then.
    offsets = [known.base_offset - 1, *(offset for offset, _, _ in PREFIX.iter_unpack(right)), known.next_offset]
    if place % PREFIX.size in _LENGTH or any(offset >= following for offset, following in pairwise(offsets)):
        return None
    number = place // PREFIX.size
    begin, end = number * PREFIX.size, (number + 1) * PREFIX.size
    return FlippedPrefix(positions[number], bytes(found[begin:end]), bytes(right[begin:end]))
