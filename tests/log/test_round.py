"""Large batches, which are placed: brought to the disk in their segment, with their headers alone in the journal."""

import asyncio
import errno
from contextlib import suppress

import pytest

from mainstem.core import ManualClock, TopicPartition
from mainstem.log import StorageError, TopicConfig
from mainstem.log.journal import DATA, NAMES, PLACED, read_frames
from mainstem.log.repair import repair
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, run, values, with_partition

MEGABYTE = b"v" * 2**20
LARGE_BATCHES = TopicConfig(max_message_bytes=2**21)
SEGMENT = "orders-0/00000000000000000000.log"


async def reopened(path, disk):
    log = await open_log(path, disk=disk)
    log.partitions[TP].config = LARGE_BATCHES
    return log, log.partitions[TP]


def kinds(path, disk):
    frames = read_frames([disk.open(path / name) for name in NAMES], generation=None, sequence=None)
    return [entry.kind for frame in frames for entry in frame.entries if entry.kind in (DATA, PLACED)]


def test_each_byte_of_a_large_batch_goes_to_the_disk_once(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        for value in (b"before", MEGABYTE, b"after"):
            await partition.append(batch(value))
        assert kinds(tmp_path, disk) == [DATA, PLACED, DATA]
        assert sum(disk.open(tmp_path / name).size() for name in NAMES) < 100_000
        assert MEGABYTE in disk.file(tmp_path / SEGMENT).durable

    run(with_partition(tmp_path, test, disk=disk, topic=LARGE_BATCHES))


def test_the_disk_begins_with_a_large_round_while_the_rest_is_written(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        before = partition.segments[-1].size
        await asyncio.gather(*(partition.append(batch(b"%d" % number * 300_000)) for number in range(9)))
        end = partition.segments[-1].size
        begun = [(position, size) for path, position, size in disk.hints if path == tmp_path / SEGMENT]
        assert [position for position, _ in begun] == [before, *(position + size for position, size in begun[:-1])]
        assert sum(begun[-1]) == end
        assert len(begun) == 3
        assert all(2**20 <= size < 2**20 + 301_000 for _, size in begun[:-1])

    run(with_partition(tmp_path, test, disk=disk, topic=LARGE_BATCHES))


def test_whenever_the_power_goes_off_a_large_batch_is_there_as_a_whole_or_not_at_all(tmp_path):
    """It is there once it was acknowledged."""

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await partition.append(batch(b"before"))
        changes = disk.changes
        await partition.append(batch(MEGABYTE))
        changes = disk.changes - changes
        abandon(log)
        there, outcomes = [b"before", MEGABYTE], set()
        for off_after in range(changes + 1):
            for choose in (lambda most: 0, lambda most: most // 2, lambda most: most):
                disk = disk.after_power_cut(lambda most: most)
                log, partition = await reopened(tmp_path, disk)
                assert await values(partition) == there
                disk.power_off_after(off_after)
                acknowledged = False
                with suppress(StorageError):
                    await partition.append(batch(MEGABYTE))
                    acknowledged = True
                outcomes.add(acknowledged)
                abandon(log)
                disk = disk.after_power_cut(choose)
                log, partition = await reopened(tmp_path, disk)
                found = await values(partition)
                assert found in ([*there, MEGABYTE], None if acknowledged else there)
                there = found
                abandon(log)
        assert outcomes == {False, True}

    run(test())


@pytest.mark.parametrize("place", [".log", "journal"])
def test_a_full_disk_refuses_a_large_round_and_leaves_nothing_of_it(tmp_path, place):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        await partition.append(batch(b"before"))
        disk.refuse("write", errno.ENOSPC, place)
        with pytest.raises(StorageError, match="nothing was appended"):
            await partition.append(batch(MEGABYTE))
        assert (await partition.append(batch(b"after"))).base_offset == 1
        assert (await partition.append(batch(MEGABYTE))).base_offset == 2
        assert await values(partition) == [b"before", b"after", MEGABYTE]

    async def same(partition):
        assert await values(partition) == [b"before", b"after", MEGABYTE]

    run(with_partition(tmp_path, test, disk=disk, topic=LARGE_BATCHES))
    run(with_partition(tmp_path, same, disk=disk.after_power_cut(lambda most: 0)))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_sync_of_a_large_batch_that_fails_takes_the_directory_offline(tmp_path, error):
    """It is not in the journal then, whatever of it the next start finds."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await partition.append(batch(b"before"))
        disk.refuse("sync", error, ".log")
        with pytest.raises(StorageError, match="offline"):
            await partition.append(batch(MEGABYTE))
        assert log.offline
        assert kinds(tmp_path, disk) == [DATA]
        await log.close()
        log, partition = await reopened(tmp_path, disk.after_kill())
        assert (await values(partition))[0] == b"before"
        await log.close()

    run(test())


@pytest.mark.parametrize("saved", [True, False], ids=["with the checkpoint", "without"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0], ids=["gone", "cut short", "one bit"])
def test_a_large_batch_that_is_damaged_is_told_and_can_be_restored(tmp_path, keep, saved):
    """No journal brings it back. Other partitions go on; without a checkpoint nobody could know the next time."""
    other = TopicPartition("other", 0)

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await log.create_partition(other, TOPIC_ID.__class__(int=9), TopicConfig())
        await partition.append(batch(b"before"))
        begin = len(disk.file(tmp_path / SEGMENT).data)
        await partition.append(batch(MEGABYTE))
        await log.partitions[other].append(batch(b"other"))
        abandon(log)
        disk = disk.after_power_cut(lambda most: most)
        whole = bytes(disk.file(tmp_path / SEGMENT).data)
        _damage(disk.file(tmp_path / SEGMENT), begin, keep)
        if not saved:
            disk.unlink(tmp_path / "checkpoint")
            with pytest.raises(StorageError, match="only the journal says that more was acknowledged") as refused:
                await open_log(tmp_path, disk=disk)
            assert "restore the file" in refused.value.hint
        else:
            for _ in range(2):  # the second start has no journal any more
                log = await open_log(tmp_path, disk=disk)
                assert log.partitions[TP].error is not None
                assert await values(log.partitions[other]) == [b"other"]
                await log.close()
        disk.file(tmp_path / SEGMENT).data[:] = whole
        log, partition = await reopened(tmp_path, disk)
        assert await values(partition) == [b"before", MEGABYTE]
        await log.close()

    run(test())


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0], ids=["gone", "cut short", "one bit"])
@pytest.mark.parametrize("starts", [0, 1])
def test_a_repair_does_not_give_the_offsets_of_a_damaged_large_batch_again(tmp_path, keep, starts):
    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await partition.append(batch(b"before"))
        begin = len(disk.file(tmp_path / SEGMENT).data)
        await partition.append(batch(MEGABYTE, b"same batch"))
        abandon(log)
        disk = disk.after_power_cut(lambda most: most)
        _damage(disk.file(tmp_path / SEGMENT), begin, keep)
        for _ in range(starts):
            await (await open_log(tmp_path, disk=disk)).close()
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=disk)).damages
        assert (damage.first_offset, damage.end_offset) == (1, 3)
        log, partition = await reopened(tmp_path, disk)
        assert (await partition.append(batch(b"next"))).base_offset == 3
        assert await values(partition) == [b"before", b"next"]
        await log.close()

    run(test())


def _damage(file, begin, keep):
    if keep == 1:
        file.data[(begin + len(file.data)) // 2] ^= 4
    else:
        del file.data[begin + int((len(file.data) - begin) * keep) :]
    file.sync()


def test_a_large_batch_in_a_new_segment_is_found_under_its_name(tmp_path):
    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(
            TP, TOPIC_ID, TopicConfig(max_message_bytes=2**21, segment_bytes=2**20 + 2**19)
        )
        for _ in range(3):
            await partition.append(batch(MEGABYTE))
        assert len(partition.segments) == 3
        abandon(log)
        log, partition = await reopened(tmp_path, disk.after_power_cut(lambda most: 0))
        assert await values(partition) == [MEGABYTE] * 3
        await log.close()

    run(test())
