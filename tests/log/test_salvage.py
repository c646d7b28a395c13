"""What is found of batches behind damage."""

from random import Random

import pytest

from mainstem.log import salvage
from mainstem.log.salvage import find_batches
from mainstem.records import HEADER
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch


def at(offset, data):
    return offset.to_bytes(8, "big") + data[8:]


@pytest.fixture
def file(tmp_path):
    return SimulatedDisk(tmp_path).open(tmp_path / "segment", create=True)


def found(file, *, base_offset=100, start=0):
    return [header.base_offset for _, header in find_batches(file, base_offset, start, file.size())]


@pytest.mark.parametrize("window", [100, 1 << 20])
@pytest.mark.parametrize("gap", [0, 1, 61, 500])
def test_batches_are_found_wherever_they_begin(file, gap, window, monkeypatch):
    monkeypatch.setattr(salvage, "_WINDOW_BYTES", window)
    junk = [Random(n).randbytes(gap) for n in range(3)]
    file.write([junk[0], at(100, batch(b"v" * 300)), junk[1], at(105, batch(b"w", b"x")), junk[2]], 0)
    assert found(file) == [100, 105]
    assert found(file, start=gap + 1) == [105]


def test_one_that_is_torn_or_not_of_this_segment_is_none(file):
    one = at(100, batch(b"v"))
    file.write([at(99, batch(b"v")), at(100 + 2**31, batch(b"v")), one[:-1] + b"?", one[:-1]], 0)
    assert found(file) == []
    assert salvage.whole_batch(file, None, len(one), 2 * len(one)).base_offset == 100 + 2**31


def test_what_looks_like_headers_is_not_read_again_and_again(file, monkeypatch):
    """A start without a checkpoint read all that follows damage into memory, and computed the CRC of much of it for
    every byte that might be a magic: half an hour for a segment of 1 GiB, where chance decides.
    """
    reads = []
    monkeypatch.setattr(file, "read", lambda size, position, read=file.read: reads.append(size) or read(size, position))
    header = b"\x00\x00\x00\x00\x7f\xff\xff\xff" + (1 << 20).to_bytes(4, "big") + b"\x00" * 4 + b"\x02"
    file.write([header * 250_000], 0)
    assert found(file, base_offset=0x7FFF_FFFF + 1) == []
    assert max(reads) <= 1 << 20
    assert sum(reads) < file.size() + (1 << 20)


def test_headers_that_are_the_beginning_of_all_that_follows_are_not_each_read_for_it(file, monkeypatch):
    """In a record that lost its batch's header: 16,000 of them kept a repair from ending."""
    reads = []
    monkeypatch.setattr(file, "read", lambda size, position, read=file.read: reads.append(size) or read(size, position))
    following = [at(101 + number, batch(b"v" * 1_000_000)) for number in range(3)]
    one = HEADER.pack(100, 3_000_000 - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    file.write([one * 2_000, *following], 0)
    assert found(file) == [101, 102, 103]
    assert sum(size for size in reads if size > 4096) < 4 * file.size()
