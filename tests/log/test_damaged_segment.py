"""Which batches of a damaged file are the log's, and what their offsets have to be."""

import msgspec
import pytest

from mainstem.log.damaged_segment import DamagedSegment, is_between
from mainstem.log.segment import OpenFiles, Segment
from mainstem.records import decode_header
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch

JUNK = b"?" * 70


def at(offset, *records):
    return offset.to_bytes(8, "big") + batch(*records)[8:]


@pytest.fixture
def damaged(tmp_path):
    """A file of these bytes, whose segment begins at offset 0 and ended before offset `end`."""
    files = OpenFiles(SimulatedDisk(tmp_path), most=1)

    def make(*pieces, end=10, dense=True):
        segment = Segment(tmp_path, 0, files)
        data = b"".join(pieces)
        segment.file_to_write(0).write([data], 0)
        known = Segment(tmp_path, 0, files)
        known.size, known.next_offset, known.offsets_crc = len(data), end, 0 if dense else 1
        return DamagedSegment(segment, len(data), None, end, known)

    return make


@pytest.mark.parametrize(("dense", "fitting"), [(True, {3}), (False, {3, 4, 8})])
def test_a_batch_fits_where_the_log_goes_on_or_behind_that_where_there_are_gaps(damaged, dense, fitting):
    file = damaged(dense=dense)
    headers = [decode_header(at(offset, b"a", b"b")) for offset in (2, 3, 4, 8, 9)]
    assert {
        header.base_offset for header in headers if file.fits(0, header, 3)
    } == fitting  # the one at 9 ends behind 10


def test_two_contradict_each_other_where_only_one_of_them_has_room(damaged):
    file = damaged(dense=False)
    first, second, third = (decode_header(at(offset, b"a", b"b")) for offset in (4, 5, 7))
    assert file.is_contradicted(first, 0, second, 3)
    assert not file.is_contradicted(first, 0, third, 3)
    assert not file.is_contradicted(third, 0, first, 5)  # the later one itself does not fit in
    assert not damaged(dense=True).is_contradicted(first, 0, second, 4)


def test_those_behind_say_what_an_offset_is(damaged):
    lengths = [2, 1, 3, 2, 2]
    offsets = [0, 2, 3, 6, 8]
    for wrong in (0, 2, 9, 2**30):
        batches = [at(offset, *[b"v"] * length) for offset, length in zip(offsets, lengths, strict=True)]
        batches[1] = at(wrong, b"v")
        file = damaged(*batches)
        position = len(batches[0])
        right = file.by_what_follows(position, decode_header(batches[1]), 2)
        assert (right.base_offset, right.next_offset) == (2, 3)
    alone = decode_header(at(5, b"v"))
    assert damaged(at(5, b"v"), JUNK).by_what_follows(0, alone, 0) == alone


def test_the_next_whole_one_is_what_more_follow_without_a_gap(damaged):
    log = [at(4, b"a"), at(5, b"b"), at(6, b"c")]
    foreign = [at(7, b"x"), at(8, b"y")]
    file = damaged(JUNK, *foreign, JUNK, *log, end=9, dense=False)
    position, header = file.next_whole(0, 3)
    assert (position, header.base_offset) == (2 * len(JUNK) + sum(map(len, foreign)), 4)
    assert file.next_whole(position + len(b"".join(log)), 3) is None
    position, header = file.next_whole(0, 7)  # what begins before is none then
    assert (position, header.base_offset) == (len(JUNK), 7)


def test_a_batch_is_between_two_others_whatever_it_says():
    header = decode_header(at(77, b"a", b"b"))
    assert is_between(3, header, 5)
    assert not is_between(3, header, 6)
    assert not is_between(2, msgspec.structs.replace(header, base_offset=3), 5)


def test_what_is_written_since_the_checkpoint_has_no_gaps(damaged):
    first, second = at(0, b"a"), at(1, b"b", b"c")
    file = damaged(first, second, dense=False)._replace(known=None, is_new=True, following=3)
    header = decode_header(at(77, b"b", b"c"))
    assert file.is_dense
    assert not file.fits(len(first), decode_header(second), 0)
    assert file.is_last(len(first), header, 1)
    assert not file.is_last(len(first), header, 0)
    assert not file.is_last(0, decode_header(first), 0)
    assert not file._replace(following=None).is_last(len(first), header, 1)
    assert not file._replace(is_new=False).is_last(len(first), header, 1)
