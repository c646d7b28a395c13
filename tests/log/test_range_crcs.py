"""CRCs of ranges are what they are of the bytes alone, and the file is read once for them."""

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.range_crcs import RangeCrcs
from tests.log.simulated_disk import SimulatedDisk

DATA = Random(1).randbytes(3_000_000)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranges")
    file = SimulatedDisk(path).open(path / "file", create=True)
    file.write([DATA], 0)
    return file


@given(st.data())
def test_every_range(file, data):
    start, begin, end = sorted(data.draw(st.lists(st.integers(0, len(DATA)), min_size=3, max_size=3)))
    crcs = RangeCrcs(file, start)
    assert crcs.of(begin, end) == crc32c(DATA[begin:end])
    assert crcs.of(start, len(DATA)) == crc32c(DATA[start:])


def test_the_file_is_read_once_for_many_ranges(file, monkeypatch):
    sizes = []
    read = file.read
    monkeypatch.setattr(file, "read", lambda size, position: sizes.append(size) or read(size, position))
    crcs = RangeCrcs(file, 0)
    for begin in range(0, 1_000_000, 1_000):
        crcs.of(begin, len(DATA) - 5)
    assert sum(size for size in sizes if size > 4096) <= len(DATA) + (1 << 20)
    assert len(sizes) <= 2 * 1_000 + 3
