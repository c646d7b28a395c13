"""Checkpoints: what they free, what they wait for, and what they do not survive."""

import asyncio
import errno
import os
import threading
from uuid import UUID

import pytest

from mainstem.core import TopicPartition
from mainstem.log import LogConfig, StorageError, TopicConfig, checkpointer
from mainstem.log.checkpointer import Checkpointer
from mainstem.log.segment import Segment
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import (
    TOPIC_ID,
    TP,
    abandon,
    batch,
    open_log,
    run,
    values,
    with_partition,
)

OTHER = TopicPartition("orders", 1)


def test_checkpoints_free_the_journal_while_appends_go_on(tmp_path):
    config = LogConfig(read_threads=1, sync_threads=1, journal_bytes=50_000)
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        for _ in range(200):
            await partition.append(batch(b"v" * 1_000))
        sizes = [disk.file_size(tmp_path / f"journal.{n}") for n in (0, 1)]
        assert sum(sizes) < 200 * 4_096  # a frame takes a page at least: they were written over
        assert partition.shared.writer._journal.generation > 2
        assert partition.segments[0].checkpointed_size > 0

    run(with_partition(tmp_path, test, disk=disk, config=config))


def test_a_checkpoint_on_demand(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        await asyncio.gather(log.checkpoint(), log.checkpoint())
        assert partition.segments[0].checkpointed_size == partition.size_bytes
        abandon(log)
        # The journal is not needed any more.
        lost = disk.after_power_cut(lambda most: 0)
        for name in ("journal.0", "journal.1"):
            lost.write_file(tmp_path / name, b"")
        again = await open_log(tmp_path, disk=lost)
        assert await values(again.partitions[TP]) == [b"v"]
        abandon(again)

    run(test())


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_checkpoint_that_fails_to_sync_takes_the_directory_offline_and_loses_nothing(tmp_path, error):
    """Where the error was "no space" the sync was tried again, and believed the second time."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        disk.refuse("sync", error, ".log")
        with pytest.raises(StorageError):
            await log.checkpoint()
        assert log.offline
        with pytest.raises(StorageError):
            await log.checkpoint()
        await log.close()

    run(test())
    run(with_partition(tmp_path, lambda p: _holds(p, [b"v"]), disk=disk.after_power_cut(lambda most: 0)))


def test_a_checkpoint_waits_for_room_and_the_log_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.checkpointer._RETRY_SECONDS", 0.01)
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        for _ in range(3):
            disk.refuse("write", errno.ENOSPC, "checkpoint.new")
        syncs = len(disk.syncs)
        checkpoint = asyncio.ensure_future(log.checkpoint())
        await partition.append(batch(b"meanwhile"))
        with pytest.raises(StorageError, match=r"No space left on device: .*no checkpoint"):
            await checkpoint
        async with asyncio.timeout(10):
            while log._checkpoints.running:
                await asyncio.sleep(0.005)
        assert disk.refusals == []
        assert [path.suffix for path in disk.syncs[syncs:]].count(".log") == 1
        await log.close()

    run(test())


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "without its metadata"])
def test_a_directory_that_was_made_is_on_the_disk_with_the_checkpoint_and_synced_once(tmp_path, lost):
    synced = []

    class Watched(SimulatedDisk):
        def sync_directory(self, path):
            super().sync_directory(path)
            synced.append(path)

    disk = Watched(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        synced.clear()
        if lost:  # somebody has taken it away
            disk.unlink(partition.directory / "partition.metadata")
        await log.checkpoint()
        assert synced.count(partition.directory) == 1
        after = disk.after_power_cut(lambda most: 0)
        assert after.file_size(partition.segments[0].path) == partition.size_bytes
        abandon(log)

    run(test())


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("where", [".log", "partition.metadata", "directory", "checkpoint"])
def test_a_checkpoint_waits_for_file_descriptors_and_the_log_goes_on(tmp_path, monkeypatch, where, error):
    """It took the directory offline, though nothing had failed but opening, which is tried again everywhere else."""
    monkeypatch.setattr("mainstem.log.checkpointer._RETRY_SECONDS", 0.01)

    class OutOfFiles(SimulatedDisk):
        left = 0

        def refuse_next(self, path, call):
            if self.left and where in (path.suffix, path.name, call):
                self.left -= 1
                raise OSError(error, os.strerror(error), str(path))

        def open(self, path, *, create=False):
            self.refuse_next(path, "open")
            return super().open(path, create=create)

        def sync_directory(self, path):
            self.refuse_next(path, "directory")
            super().sync_directory(path)

        def write_atomically(self, path, data):
            self.refuse_next(path, "write_atomically")
            super().write_atomically(path, data)

    disk = OutOfFiles(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        partition.segments.files.forget(partition.segments[0])
        disk.left = 3
        with pytest.raises(StorageError, match=r"no checkpoint") as caught:
            await log.checkpoint()
        assert "ulimit -n" in caught.value.hint
        async with asyncio.timeout(60):
            while log._checkpoints.running:
                await asyncio.sleep(0.005)
        assert (disk.left, log.offline) == (0, False)
        assert partition.segments[0].checkpointed_size == partition.size_bytes
        await partition.append(batch(b"w"))
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert await values(again.partitions[TP]) == [b"v", b"w"]
        abandon(again)

    run(test())


def test_a_sync_that_failed_is_told_before_a_lack_of_file_descriptors(tmp_path):
    """Else the checkpoint would be tried again, and the second sync of that file believed."""

    class Failing(SimulatedDisk):
        fails = False

        def open(self, path, *, create=False):
            if self.fails and path.suffix == ".log" and path.parent.name == str(TP):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return super().open(path, create=create)

    disk = Failing(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        for tp in (TP, OTHER):
            partition = await log.create_partition(tp, TOPIC_ID, TopicConfig())
            await partition.append(batch(b"v"))
        log._files.forget(log.partitions[TP].segments[0])
        disk.fails = True
        disk.refuse("sync", errno.EIO, f"{OTHER}/0")
        with pytest.raises(StorageError, match="offline"):
            await log.checkpoint()
        assert log.offline
        await log.close()

    run(test())


def test_a_checkpoint_does_not_believe_a_sync_that_follows_one_of_the_writer_that_failed(tmp_path):
    """A flush of a topic that trusts the page cache failed; the checkpoint that was under way synced the same file, had
    success, and said that the bytes were on the disk. After a power cut the partition was damaged.
    """
    first_may_sync = threading.Event()

    class SlowDisk(SimulatedDisk):
        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if path.parent.name == str(TP) and path.suffix == ".log":
                sync = file.sync
                file.sync = lambda: first_may_sync.wait(60) and sync()
            return file

    disk = SlowDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        first = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        trusting = await log.create_partition(OTHER, TOPIC_ID, TopicConfig(flush_messages=2))
        await asyncio.gather(first.append(batch(b"1")), trusting.append(batch(b"trusted")))
        checkpoint = asyncio.ensure_future(log.checkpoint())
        while not log._checkpoints.running:
            await asyncio.sleep(0)
        disk.refuse("sync", errno.EIO, f"{OTHER}/0")
        await trusting.append(batch(b"flushes"))
        while not log.offline:
            await asyncio.sleep(0.001)
        first_may_sync.set()
        with pytest.raises(StorageError, match="offline"):
            await checkpoint
        await log.close()

        after = disk.after_power_cut(lambda most: 0)
        log = await open_log(tmp_path, disk=after)
        assert [partition.error for partition in log.partitions.values()] == [None, None]
        assert await values(log.partitions[TP]) == [b"1"]
        await log.close()

    run(test())


@pytest.mark.parametrize("waits", [True, False], ids=["waits already", "begins to wait"])
def test_a_full_disk_holds_up_no_close(tmp_path, waits):
    """The log waited for its checkpoint, the checkpoint for room, and SIGTERM stopped neither."""
    disk = SimulatedDisk(tmp_path)
    config = LogConfig(read_threads=1, sync_threads=1, journal_bytes=4_096)

    async def test():
        log = await open_log(tmp_path, disk=disk, config=config)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"acknowledged"))
        for _ in range(1_000):
            disk.refuse("write", errno.ENOSPC, "checkpoint.new")
        checkpoint = asyncio.ensure_future(log.checkpoint())
        if waits:
            async with asyncio.timeout(10):
                while log._checkpoints._later is None:
                    await asyncio.sleep(0.005)
            futures = [partition.append(batch(b"x" * 50_000)) for _ in range(3)]
        else:
            await asyncio.sleep(0)
            futures = []
        async with asyncio.timeout(10):
            await log.close()
        answers = await asyncio.gather(checkpoint, *futures, return_exceptions=True)
        assert all(isinstance(answer, StorageError) for answer in answers[:1])
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert (await values(again.partitions[TP]))[0] == b"acknowledged"
        await again.close()

    run(test())


async def _holds(partition, expected):
    assert await values(partition) == expected


def test_a_checkpoint_gathers_the_entries_of_many_indexes_in_turns_and_appends_go_on(tmp_path, monkeypatch):
    """A loop that gathered those of 2,000 segments at once stood still for 50 ms."""
    monkeypatch.setattr(checkpointer, "_AT_ONCE", 2)
    disk = SimulatedDisk(tmp_path)
    turn, gathered_in, late = 0, [], []

    async def test():
        nonlocal turn
        log = await open_log(tmp_path, disk=disk)
        partitions = await _with_index_entries(log, 7)
        monkeypatch.setattr(Segment, "index_writes", noted)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(log.checkpoint())
            while not asking.done():
                turn += 1
                late.append(partitions[-1].append(batch(b"late")))
                await asyncio.sleep(0)
        await asyncio.gather(*late)
        monkeypatch.undo()
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        found = await values(again.partitions[partitions[-1].topic_partition])
        assert found == [b"v" * 5_000] * 2 + [b"late"] * len(late)
        abandon(again)

    def noted(segment, state, of=Segment.index_writes):
        gathered_in.append(turn)
        return of(segment, state)

    run(test())
    assert len(gathered_in) == 7
    assert len(set(gathered_in)) == 4


def test_a_log_that_is_closed_while_a_checkpoint_gathers_its_entries_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "_AT_ONCE", 1)
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partitions = await _with_index_entries(log, 7)
        await asyncio.gather(log.checkpoint(), log.close())
        again = await open_log(tmp_path, disk=disk)
        assert again.recovered_cleanly
        for partition in partitions:
            assert await values(again.partitions[partition.topic_partition]) == [b"v" * 5_000] * 2
        abandon(again)

    run(test())


@pytest.mark.parametrize("turn", [1, 4])
def test_a_checkpoint_that_cannot_say_what_an_index_gets_takes_the_directory_offline(tmp_path, monkeypatch, turn):
    """It would be waited for for ever, also by who closes the log meanwhile."""
    monkeypatch.setattr(checkpointer, "_AT_ONCE", 1)
    disk = SimulatedDisk(tmp_path)
    turns = 0

    def fails(segment, state, of=Segment.index_writes):
        nonlocal turns
        turns += 1
        if turns == turn:
            raise MemoryError
        return of(segment, state)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partitions = await _with_index_entries(log, 7)
        monkeypatch.setattr(Segment, "index_writes", fails)
        async with asyncio.timeout(10):
            said, _ = await asyncio.gather(log.checkpoint(), log.close(), return_exceptions=True)
        assert isinstance(said, StorageError)
        assert log.offline
        monkeypatch.undo()
        again = await open_log(tmp_path, disk=disk)
        assert await values(again.partitions[partitions[0].topic_partition]) == [b"v" * 5_000] * 2
        abandon(again)

    run(test())


def test_no_index_of_a_deleted_partition_is_written_to_the_one_that_has_its_name(tmp_path, monkeypatch):
    """It pointed behind the new one's end, and Kafka's tools said so."""
    written, begun, made_anew = Checkpointer._write_index, threading.Event(), threading.Event()

    def late(checkpoints, write):
        begun.set()
        assert made_anew.wait(10)
        written(checkpoints, write)

    async def test():
        log = await open_log(tmp_path)
        await _with_index_entries(log, 1)
        monkeypatch.setattr(Checkpointer, "_write_index", late)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(log.checkpoint())
            assert await asyncio.to_thread(begun.wait, 10)
            await log.delete_partition(TP)
            await log.create_partition(TP, UUID(int=8), TopicConfig())
            made_anew.set()
            await asking
        assert not list((tmp_path / str(TP)).glob("*index"))
        await log.close()

    run(test())


def test_a_start_takes_room_for_its_checkpoint_before_it_writes_indexes(tmp_path):
    """Else a log that was killed on a full disk found at each start that they had taken what little there was."""

    class Told(SimulatedDisk):
        def __init__(self, root, tree):
            super().__init__(root, tree)
            self.written = []

        def open(self, path, *, create=False):
            if create:
                self.written.append(path.name)
            return super().open(path, create=create)

        def write_atomically(self, path, data):
            self.written.append(path.name)
            super().write_atomically(path, data)

    async def test():
        before = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=before)
        (partition,) = await _with_index_entries(log, 1)
        disk = Told(tmp_path, before.after_kill().tree)
        abandon(log)
        log = await open_log(tmp_path, disk=disk)
        names = [name for name in disk.written if name == "checkpoint" or name.endswith("index")]
        assert names == ["checkpoint", f"{0:020d}.index", f"{0:020d}.timeindex"]
        assert await values(log.partitions[partition.topic_partition]) == [b"v" * 5_000] * 2
        abandon(log)

    run(test())


async def _with_index_entries(log, count):
    """So many partitions, of two batches each that are as large as the interval of an index's entries."""
    partitions = [
        await log.create_partition(TopicPartition("orders", number), TOPIC_ID, TopicConfig()) for number in range(count)
    ]
    for _ in range(2):
        await asyncio.gather(*(partition.append(batch(b"v" * 5_000)) for partition in partitions))
    return partitions
