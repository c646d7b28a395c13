"""Damage of batches that were placed, which no journal can mend: told at every start, and a repair ends it."""

import asyncio
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest

from mainstem.core import ManualClock, TopicPartition
from mainstem.log import StorageError, TopicConfig, housekeeping
from mainstem.log import repair as repairs
from mainstem.log import round as rounds
from mainstem.log.journal import NAMES
from mainstem.log.repair import repair
from mainstem.log.segment import LOG, file_name
from mainstem.records import iter_spans
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, read_all, run, values

OTHER = TopicPartition("other", 0)
SMALL_SEGMENTS = TopicConfig(segment_bytes=1_000)


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch):
    monkeypatch.setattr(rounds, "_LARGE", 1)


def segment(path, base_offset):
    return path / str(TP) / file_name(base_offset, LOG)


async def one_in_each_segment(path):
    disk = SimulatedDisk(path)
    log = await open_log(path, disk=disk)
    partition = await log.create_partition(TP, TOPIC_ID, SMALL_SEGMENTS)
    for number in range(3):
        await partition.append(batch(b"%d" % number * 600))
    assert [each.base_offset for each in partition.segments] == [0, 1, 2]
    abandon(log)
    return disk.after_power_cut(lambda most: most)


@pytest.mark.parametrize("saved", [True, False], ids=["with the checkpoint", "without"])
@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("base_offset", range(3))
def test_a_segment_that_is_missing_is_told_and_repaired(tmp_path, base_offset, how, saved):
    """The others' offsets went on behind it, as where compaction has left a gap."""

    async def test():
        disk = await one_in_each_segment(tmp_path)
        path = segment(tmp_path, base_offset)
        if how == "gone":
            disk.unlink(path)
            disk.sync_directory(path.parent)
        else:
            del disk.file(path).data[:]
            disk.file(path).sync()
        if not saved:
            disk.unlink(tmp_path / "checkpoint")
        if not saved and base_offset == 2:
            with pytest.raises(StorageError, match="only the journal says that more was acknowledged"):
                await open_log(tmp_path, disk=disk)
            return
        for _ in range(2):
            log = await open_log(tmp_path, disk=disk)
            assert log.partitions[TP].error is not None
            await log.close()
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=disk)).damages
        assert (damage.first_offset, damage.end_offset) == (base_offset, base_offset + 1)
        log = await open_log(tmp_path, disk=disk)
        left = [b"%d" % number * 600 for number in range(3) if number != base_offset]
        assert await values(log.partitions[TP]) == left
        assert (await log.partitions[TP].append(batch(b"next"))).base_offset == 3
        await log.close()

    run(test())


@pytest.mark.parametrize("name", ["{}.old.log", "20261201.log", "1.log", "{}0.log", "99999999999999999999.log"])
@pytest.mark.parametrize("copied", [0, 2])
def test_somebodys_copy_of_a_segment_is_none(tmp_path, copied, name):
    """The start removed it, or fell over its name where it needed the last segment's."""

    async def test():
        disk = await one_in_each_segment(tmp_path)
        copy = segment(tmp_path, copied).with_name(name.format(segment(tmp_path, copied).stem))
        data = disk.read_file(segment(tmp_path, copied))
        disk.open(copy, create=True).write([data], 0)
        log = await open_log(tmp_path, disk=disk)
        assert await values(log.partitions[TP]) == [b"%d" % number * 600 for number in range(3)]
        abandon(log)
        assert disk.read_file(copy) == data
        disk = await one_in_each_segment(tmp_path)
        disk.open(copy, create=True).write([data], 0)
        for path in (tmp_path / "checkpoint", segment(tmp_path, 2)):
            disk.unlink(path)
        with pytest.raises(StorageError, match="only the journal says that more was acknowledged"):
            await open_log(tmp_path, disk=disk)

    run(test())


@pytest.mark.parametrize(("byte", "bit"), [(7, 2), (3, 1), (12, 128)], ids=["offset", "large offset", "leader epoch"])
def test_what_no_checksum_covers_is_as_the_journal_says(tmp_path, monkeypatch, byte, bit):
    """A larger offset went beyond what was promised, and what followed was cut off as a torn end."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"first"))
        position = partition.segments.active.size
        await partition.append(batch(b"placed"))
        monkeypatch.setattr(rounds, "_LARGE", 10**9)
        await partition.append(batch(b"last"))
        abandon(log)
        after = disk.after_power_cut(lambda most: most)
        after.file(segment(tmp_path, 0)).data[position + byte] ^= bit
        log = await open_log(tmp_path, disk=after)
        assert await values(log.partitions[TP]) == [b"first", b"placed", b"last"]
        assert log.partitions[TP].leader_epoch == 1
        await log.close()

    run(test())


def test_a_repair_that_is_killed_after_the_cut_can_be_done_again(tmp_path, monkeypatch):
    killed = []

    def mend(damage, disk, before=repairs._mend):
        before(damage, disk)
        killed.append(disk.after_kill())

    async def test():
        disk = await one_in_each_segment(tmp_path)
        del disk.file(segment(tmp_path, 2)).data[100:]
        disk.file(segment(tmp_path, 2)).sync()
        monkeypatch.setattr(repairs, "_mend", mend)
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=disk)).damages
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=killed[0])).damages
        log = await open_log(tmp_path, disk=killed[0])
        assert await values(log.partitions[TP]) == [b"0" * 600, b"1" * 600]
        assert (await log.partitions[TP].append(batch(b"next"))).base_offset == 3
        await log.close()

    run(test())


def test_a_start_is_not_refused_where_the_segments_tell_the_damage_too(tmp_path):
    """An older segment is damaged; nothing that the journal speaks of is missing."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"first"))
        for _ in range(2):
            await log.checkpoint()
        partition.roll()
        await partition.append(batch(b"placed"))
        abandon(log)
        after = disk.after_power_cut(lambda most: most)
        after.file(segment(tmp_path, 0)).data[-1] ^= 1
        after.file(segment(tmp_path, 0)).sync()
        after.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].error is not None
        await log.close()
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=after)).damages

    run(test())


def test_before_a_start_is_refused_others_have_what_the_journal_says(tmp_path, monkeypatch):
    """The journal is to be moved away, and a power cut may come before."""

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        other = await log.create_partition(OTHER, UUID(int=9), TopicConfig())
        await partition.append(batch(b"placed"))
        monkeypatch.setattr(rounds, "_LARGE", 10**9)
        await other.append(batch(b"in the journal alone"))
        abandon(log)
        disk = disk.after_power_cut(lambda most: 0)
        disk.file(segment(tmp_path, 0)).data[-1] ^= 1
        disk.file(segment(tmp_path, 0)).sync()
        disk.unlink(tmp_path / "checkpoint")
        with pytest.raises(StorageError, match="only the journal"):
            await open_log(tmp_path, disk=disk)
        disk = disk.after_power_cut(lambda most: 0)
        for name in NAMES:
            disk.unlink(tmp_path / name)
        log = await open_log(tmp_path, disk=disk)
        assert await values(log.partitions[OTHER]) == [b"in the journal alone"]
        await log.close()

    run(test())


@pytest.mark.parametrize("block", range(10))
def test_damage_anywhere_is_told_and_a_repair_ends_it(tmp_path, monkeypatch, block):
    for seed in range(block * 30, block * 30 + 30):
        run(_play(tmp_path / str(seed), Random(seed), monkeypatch))


@pytest.mark.long
def test_damage_anywhere_is_told_and_a_repair_ends_it_many_times(tmp_path, monkeypatch):
    first = Random().randrange(10**9)
    print(f"seeds {first} to {first + 4_999}")
    for seed in range(first, first + 5_000):
        run(_play(tmp_path / str(seed), Random(seed), monkeypatch))


async def _play(path, random, monkeypatch):
    """Rounds of all kinds, a power cut, one file of the partition damaged, a start, and a repair if that tells so.

    Without a checkpoint a segment that is gone may pass for one that compaction has emptied: that is not played.
    """
    path.mkdir()
    disk = SimulatedDisk(path)
    end = await _fill(path, disk, random, monkeypatch)
    disk = disk.after_power_cut(adversary(random.randrange(10**9)))
    files = [each for each in disk.list(path / str(TP)) if each.suffix == LOG] if disk.exists(path / str(TP)) else []
    if not files:
        return
    lost = random.random() < 0.3
    damaged = _damage(
        disk, random.choice(files), random, ["cut", "none"] if lost else ["gone", "cut", "end", "flip", "none"]
    )
    if lost:
        disk.unlink(path / "checkpoint")
    try:
        log = await open_log(path, disk=disk)
    except StorageError:
        assert (damaged, lost) == (True, True)
        return
    partition = log.partitions[TP]
    with suppress(StorageError):  # its readers tell
        if partition.error is None:
            records = [record.offset for record in await read_all(partition)]
            assert records == list(range(partition.log_start_offset, end))
            await log.close()
            return
    assert damaged
    await log.close()
    await repair(path, TP, clock=ManualClock(), mend=True, disk=disk)
    log = await open_log(path, disk=disk)
    assert log.partitions[TP].error is None
    assert (await log.partitions[TP].append(batch(b"next"))).base_offset >= end
    await log.close()


async def _fill(path, disk, random, monkeypatch):
    log = await open_log(path, disk=disk)
    partition = await log.create_partition(TP, TOPIC_ID, SMALL_SEGMENTS)
    for _ in range(random.randint(3, 10)):
        call = random.random()
        if call < 0.7:
            monkeypatch.setattr(rounds, "_LARGE", random.choice([1, 1, 10**9]))
            sizes = [random.choice([10, 200, 500]) for _ in range(random.randint(1, 3))]
            await asyncio.gather(*(partition.append(batch(b"v", b"x" * size)) for size in sizes))
        elif call < 0.8:
            await log.checkpoint()
        elif call < 0.9 and partition.high_watermark:
            await housekeeping.delete_records(
                partition, random.randint(partition.log_start_offset, partition.high_watermark)
            )
    end = partition.high_watermark
    abandon(log)
    return end


def _damage(disk, path, random, ways):
    how, file = random.choice(ways), disk.file(path)
    if how == "gone":
        disk.unlink(path)
        disk.sync_directory(path.parent)
    elif how == "none" or not file.data:
        return False
    elif how == "cut":
        del file.data[random.randrange(len(file.data)) :]
    elif how == "end":
        del file.data[random.choice([0, *(span.end for span in iter_spans(bytes(file.data)))]) :]
    else:
        place = random.randrange(len(file.data))
        file.data[place] ^= 1 << random.randrange(8)
    file.sync()
    return True
