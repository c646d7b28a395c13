"""Which bit of what compaction wrote in front of the batches has flipped."""

import pytest
from crc32c import crc32c

from mainstem.log.flipped_prefix import FlippedPrefix, SetRight, find_flipped_prefix
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records.batch import PREFIX
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch

OFFSETS = (0, 3, 4, 9)


@pytest.fixture
def compacted(tmp_path):
    """A segment with batches at these offsets, as compaction has left it, and where they begin."""
    known = Segment(tmp_path, 0, OpenFiles(SimulatedDisk(tmp_path), most=1))
    starts, data, crc = [], b"", 0
    for offset in OFFSETS:
        one = offset.to_bytes(8, "big") + batch(b"v" * (offset + 1))[8:]
        starts.append(len(data))
        crc = crc32c(one[: PREFIX.size], crc)
        data += one
    known.file_to_write(0).write([data], 0)
    known.size, known.next_offset, known.offsets_crc = len(data), 10, crc
    return known, starts


def flip(known, position, bits=1):
    """These bits of the byte there; the file's bytes before."""
    before = known.file.read(known.size, 0)
    known.file.write([bytes([before[position] ^ bits])], position)
    return before


def test_every_bit_of_an_offset_and_of_an_epoch_is_found_and_read_as_it_was(compacted):
    known, starts = compacted
    for start in starts:
        for byte in (*range(8), *range(12, 16)):
            for bit in range(8):
                before = flip(known, start + byte, 1 << bit)
                flipped = find_flipped_prefix(known.file, known)
                found = known.file.read(PREFIX.size, start)
                assert flipped == FlippedPrefix(start, found, before[start : start + PREFIX.size])
                as_it_was = SetRight(known.file, flipped)
                for at in (0, start - 20, start - 3, start, start + 5, start + 15, start + 16):
                    for size in (1, 4, 19, 60, 1_000):
                        assert as_it_was.read(size, max(0, at)) == before[max(0, at) :][:size]
                known.file.write([before], 0)


def test_what_else_is_damaged_of_the_batches_does_not_matter(compacted):
    known, starts = compacted
    for start in starts:
        flip(known, start + 40, 255)
    flip(known, starts[1] + 7, 4)
    assert find_flipped_prefix(known.file, known).position == starts[1]


def test_nothing_is_found_where_nothing_is_wrong_or_more_than_a_bit(compacted):
    known, starts = compacted
    assert find_flipped_prefix(known.file, known) is None
    whole = known.file.read(known.size, 0)
    for position, bits in ((starts[1] + 7, 3), (starts[2] + 11, 1), (starts[2] + 8, 128), (starts[3] + 10, 255)):
        flip(known, position, bits)
        assert find_flipped_prefix(known.file, known) is None
        known.file.write([whole], 0)
    known.file.truncate(known.size - 1)
    flip(known, starts[1] + 7, 4)
    assert find_flipped_prefix(known.file, known) is not None, "the batch's own CRC tells of that"
    known.file.truncate(starts[3] + 10)
    assert find_flipped_prefix(known.file, known) is None


def test_a_bit_that_leaves_the_offsets_in_disorder_is_none(compacted):
    """By chance three wrong bits, or more, may look like another single one."""
    known, starts = compacted
    wrong = bytearray(known.file.read(known.size, 0))
    wrong[starts[1] + 7] ^= 8  # 3 is 11, and 4 follows
    crc = 0
    for start in starts:
        crc = crc32c(wrong[start : start + PREFIX.size], crc)
    known.offsets_crc = crc
    assert find_flipped_prefix(known.file, known) is None
