import asyncio
import os
import sys

import pytest

from mainstem.log import LogConfig, SystemDisk, TopicConfig
from mainstem.log import disk as disk_module
from mainstem.log.writeback import PIECE_BYTES
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import batch, read_all, run, with_partition

_LARGE = 300_000


async def _fill(partition, batches, disk=None):
    for number in range(batches):
        await partition.append(batch(os.urandom(_LARGE), key=b"%d" % number))
        segment = partition.segments.active
        while disk is not None and segment.writeback_position not in (segment.trust.floor, _hinted(disk, segment)):
            await asyncio.sleep(0.001)  # the hint has a thread of its own


def _hinted(disk, segment):
    """Up to where the disk was told of it."""
    return max((position + size for path, position, size in disk.hints if path == segment.path), default=None)


def test_what_is_written_is_on_its_way_to_the_disk_before_a_checkpoint_asks(tmp_path):
    """A checkpoint synced 64 MB at once, and who waited for the journal waited 30 ms longer."""
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        await _fill(partition, 40, disk)
        segment = partition.segments.active
        assert {path for path, _, _ in disk.hints} == {segment.path}
        ends = [0]
        for _, position, size in disk.hints:
            assert (position, size >= PIECE_BYTES) == (ends[-1], True)
            ends.append(position + size)
        assert segment.writeback_position == ends[-1]
        assert segment.size - ends[-1] < PIECE_BYTES + 2 * _LARGE
        assert len(disk.hints) <= segment.size // PIECE_BYTES

    run(with_partition(tmp_path, test, disk=disk))


def test_each_segment_has_its_own_place(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        await _fill(partition, 30, disk)
        assert len(partition.segments) > 2
        for path in {path for path, _, _ in disk.hints}:
            positions = [position for its, position, _ in disk.hints if its == path]
            assert positions[0] == 0
            assert positions == sorted(positions)

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(segment_bytes=4 * PIECE_BYTES)))


def test_what_an_earlier_run_wrote_is_left_out(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def write(partition):
        await _fill(partition, 12, disk)
        return partition.segments.active.size

    first = run(with_partition(tmp_path, write, disk=disk))
    disk.hints.clear()
    run(with_partition(tmp_path, write, disk=disk))
    assert disk.hints[0][1] == first


class FailingDisk(SystemDisk):
    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        return _FailingFile(file) if path.suffix == ".log" else file


class _FailingFile:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def begin_writeback(self, position, size):
        raise OSError(5, "no")


def test_a_hint_that_fails_is_of_no_account(tmp_path, caplog):
    async def test(partition):
        await _fill(partition, 12)
        return len(await read_all(partition))

    config = LogConfig(read_threads=1, sync_threads=1)
    assert run(with_partition(tmp_path, test, disk=FailingDisk(), config=config)) == 12
    assert not caplog.records


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
def test_the_system_takes_the_hint(tmp_path):
    function = disk_module._sync_file_range()
    assert function is not None
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(100_000))
        file.flush()
        assert function(file.fileno(), 0, 100_000, disk_module._SYNC_FILE_RANGE_WRITE) == 0
        assert function(file.fileno(), -1, 1, disk_module._SYNC_FILE_RANGE_WRITE) == -1
    SystemDisk().open(tmp_path / "file").begin_writeback(0, 100_000)
