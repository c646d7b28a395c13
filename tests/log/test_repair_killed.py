"""A repair that is killed at any change of the disk, or met by a full one, is done again, and leads to the same."""

import errno
from contextlib import suppress
from itertools import accumulate

import pytest

from mainstem.core import ManualClock
from mainstem.log import LogDirectory, StorageError, TopicConfig, housekeeping
from mainstem.log import round as rounds
from mainstem.log.cleaner import Cleaner
from mainstem.log.repair import repair
from mainstem.records import iter_headers
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, read_all, run

COMPACTED = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)


class Damaged:
    """A partition with damage: of record `how`, and records before 5 are deleted. Or its end is cut, and it was
    `deleted` from, or `compacted`, since the checkpoint. Or of two of its `batches` of five records, the log beginning
    within the second. Or of the first of a segment of `large` batches, which are in no checkpoint. Or of a compacted
    segment, of a batch's offset, where one `bit` has flipped, and of another batch. Or of all of the `first` segment,
    which the page cache was trusted with, and which no checkpoint knows.
    """

    def __init__(self, path, how):
        self.path, self.how, self.clock = path, how, ManualClock()

    async def make(self):
        disk = SimulatedDisk(self.path)
        log = await open_log(self.path, disk=disk, clock=self.clock)
        topic = COMPACTED if self.how in ("compacted", "bit") else TopicConfig()
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        if self.how == "batches":
            return await self._make_batches(disk, log, partition)
        if self.how == "large":
            return await self._make_large(disk, log, partition)
        if self.how == "bit":
            return await self._make_compacted(disk, log, partition)
        if self.how == "first":
            return await self._make_trusting(disk, log, partition)
        ends = []
        for number in range(12):
            await partition.append(batch(b"v%d" % number, key=b"k%d" % (number % 8)))
            ends.append(partition.segments.active.size)
            if self.how == "compacted" and number in (3, 7):
                partition.roll()
        if isinstance(self.how, int):
            await housekeeping.delete_records(partition, 5)
            await log.close()
            self._change(disk, 0, ends[self.how] - 3)
            return disk
        await log.checkpoint()
        if self.how == "deleted":
            await housekeeping.delete_records(partition, 5)
        else:
            assert await housekeeping.compact(partition, Cleaner(), most_keys=1_000)
        base = partition.segments.active.base_offset
        abandon(log)
        disk = disk.after_kill()
        self._change(disk, base, None)
        # The journal's part is held by a start that finds the damage.
        log = await open_log(self.path, disk=disk, clock=self.clock)
        assert "were durable" in str(log.partitions[TP].error)
        abandon(log)
        return disk.after_kill()

    async def _make_batches(self, disk, log, partition):
        ends = []
        for number in range(5):
            await partition.append(batch(*(b"v%d" % (number * 5 + each) for each in range(5))))
            ends.append(partition.segments.active.size)
        partition.roll()
        await partition.append(batch(b"v25"))
        await housekeeping.delete_records(partition, 7)
        await log.close()
        self._change(disk, 0, ends[0] - 3)
        self._change(disk, 0, ends[2] - 3)
        return disk

    async def _make_large(self, disk, log, partition):
        await partition.append(batch(b"small"))
        await log.checkpoint()
        partition.roll()
        for number in range(3):
            await partition.append(batch(b"%d" % number * 1_000))
        abandon(log)
        disk = disk.after_kill()
        self._change(disk, 1, 500)
        return disk

    async def _make_compacted(self, disk, log, partition):
        for number in range(8):
            value = b"v%d" % number
            await partition.append(batch(value, value, keys=[b"k%d" % (number % 6), b"l%d" % number]))
        partition.roll()
        await partition.append(batch(b"last"))
        await log.checkpoint()
        assert await housekeeping.compact(partition, Cleaner(), most_keys=1_000)
        await log.close()
        data = disk.file(self.path / str(TP) / f"{0:020d}.log").data
        starts = [0, *accumulate(header.size for header in iter_headers(bytes(data)))]
        self._change(disk, 0, starts[3] + 7, 2)  # 6 is 4 then, as the whole one before it
        self._change(disk, 0, starts[5] + 70)
        return disk

    async def _make_trusting(self, disk, log, partition):
        partition.config = TopicConfig(flush_messages=1_000)
        await log.checkpoint()
        await partition.append(batch(b"first"))
        partition.roll()
        partition.config = TopicConfig()
        await partition.append(batch(b"behind it"))
        abandon(log)
        disk = disk.after_kill()
        file = disk.file(self.path / str(TP) / f"{0:020d}.log")
        file.data[:] = bytes(len(file.data))
        file.sync()
        return disk

    def _change(self, disk, base, position, flipped=1):
        file = disk.file(self.path / str(TP) / f"{base:020d}.log")
        if position is None:
            del file.data[-10:]
        else:
            file.data[position] ^= flipped
        file.sync()

    async def repair(self, disk):
        await repair(self.path, TP, clock=self.clock, mend=True, disk=disk)

    async def content(self, disk):
        """Where it starts and ends, and its records; None: the damage is told."""
        log = await open_log(self.path, disk=disk, clock=self.clock)
        partition = log.partitions[TP]
        with suppress(StorageError):
            records = [(record.offset, record.value) for record in await read_all(partition)]
            abandon(log)
            return partition.log_start_offset, partition.log_end_offset, records
        abandon(log)
        return None


HOW = [2, 5, 7, "deleted", "compacted", "batches", "large", "bit", "first"]


@pytest.fixture(autouse=True)
def _a_little_is_large(monkeypatch):
    monkeypatch.setattr(rounds, "_LARGE", 900)


@pytest.mark.parametrize("how", HOW)
def test_killed_anywhere_and_done_again(tmp_path, how):
    damaged = Damaged(tmp_path, how)

    async def test():
        disk = await damaged.make()
        whole = disk.after_kill()
        before = whole.changes
        await damaged.repair(whole)
        changes = whole.changes - before
        expected = await damaged.content(whole)
        assert changes > 20
        assert expected is not None
        for number in range(changes):
            killed = disk.after_kill()
            killed.power_off_after(number)
            with suppress(OSError, StorageError):
                await damaged.repair(killed)
            assert killed.is_off
            for after in (killed.after_kill(), killed.after_power_cut(lambda most: 0)):
                assert await damaged.content(after.after_kill()) in (None, expected), number
                await damaged.repair(after)
                assert await damaged.content(after) == expected, number

    run(test())


@pytest.mark.parametrize("how", HOW)
def test_done_again_where_its_own_checkpoint_found_no_room(tmp_path, how, monkeypatch):
    damaged = Damaged(tmp_path, how)

    async def test():
        disk = await damaged.make()
        whole = disk.after_kill()
        await damaged.repair(whole)
        read_again = LogDirectory.read_again

        def then_full(directory, topic_partition):
            found = read_again(directory, topic_partition)
            for _ in range(10):
                disk.refuse("write", errno.ENOSPC, "checkpoint")
            return found

        monkeypatch.setattr(LogDirectory, "read_again", then_full)
        with pytest.raises(StorageError, match="No space left on device"):
            await damaged.repair(disk)
        monkeypatch.undo()
        disk = disk.after_kill()
        assert await damaged.content(disk.after_kill()) is None
        await damaged.repair(disk)
        assert await damaged.content(disk) == await damaged.content(whole)

    run(test())


@pytest.mark.parametrize("how", ["deleted", "compacted"])
@pytest.mark.parametrize("held", ["damaged", "missing"])
@pytest.mark.parametrize("restored", [False, True])
def test_without_what_the_journal_had_said(tmp_path, how, held, restored):
    """Deleted records came back, whole ones had other offsets; or nothing was found, and no start succeeded."""
    damaged = Damaged(tmp_path, how)

    async def test():
        disk = await damaged.make()
        whole = disk.after_kill()
        await damaged.repair(whole)
        expected = await damaged.content(whole)
        (path,) = [each for each in disk.list(tmp_path / str(TP)) if each.suffix == ".held"]
        if restored:
            *_, last = [each for each in disk.list(tmp_path / str(TP)) if each.suffix == ".log"]
            disk.file(last).data += batch(b"v11", key=b"k3", base_offset=11)[-10:]
            disk.file(last).sync()
            start, end, records = expected
            expected = start, end, [*records, (11, b"v11")]
        if held == "missing":
            disk.unlink(path)
        else:
            disk.file(path).data[20] ^= 1
            disk.file(path).sync()
        assert await damaged.content(disk.after_kill()) is None
        found = await repair(tmp_path, TP, clock=damaged.clock, mend=False, disk=disk)
        assert path in [each.path for each in found.damages]
        await damaged.repair(disk)
        assert await damaged.content(disk) == expected

    run(test())


def test_the_end_that_is_known_is_not_given_again_after_second_damage(tmp_path):
    damaged = Damaged(tmp_path, 2)

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk, clock=damaged.clock)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for number in range(4):
            await partition.append(batch(b"v%d" % number))
        await log.close()
        damaged._change(disk, 0, None)
        put = tmp_path / str(TP) / f"{3:020d}.log"
        for number in range(1_000):
            killed = disk.after_kill()
            killed.power_off_after(number)
            with suppress(OSError, StorageError):
                await damaged.repair(killed)
            killed = killed.after_kill()
            if killed.exists(put):
                break
        killed.file(put).truncate(0)
        killed.file(put).sync()
        await damaged.repair(killed)
        log = await open_log(tmp_path, disk=killed, clock=damaged.clock)
        assert log.partitions[TP].log_end_offset == 4
        abandon(log)

    run(test())
