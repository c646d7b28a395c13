"""Opening, closing, creating and deleting; the checkpoint."""

import asyncio
import errno
import os
import re
import shutil
import threading
import time
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import structlog

from mainstem.core import ManualClock, TopicPartition
from mainstem.log import (
    CorruptFile,
    LogConfig,
    LogDirectory,
    LogDirectoryInUse,
    PartitionLog,
    StorageError,
    TopicConfig,
    housekeeping,
)
from mainstem.log import checkpoint as checkpoints
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import (
    CONFIG,
    TOPIC_ID,
    TP,
    abandon,
    batch,
    deleted_files,
    open_log,
    run,
    values,
    with_partition,
)

OTHER = TopicPartition("orders", 1)


def test_a_directory_has_one_owner(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        with pytest.raises(LogDirectoryInUse, match=f"in use by process {os.getpid()}") as caught:
            await open_log(tmp_path)
        assert "that is this program" in caught.value.hint
        await log.close()
        await (await open_log(tmp_path)).close()

    run(test())


def test_what_was_appended_is_there_after_a_clean_close(tmp_path):
    async def write(partition):
        await partition.append(batch(b"one", b"two"))
        return partition.topic_id

    async def read(partition):
        assert partition.topic_id == TOPIC_ID
        assert await values(partition) == [b"one", b"two"]
        assert (await partition.append(batch(b"three"))).base_offset == 2

    run(with_partition(tmp_path, write))
    run(with_partition(tmp_path, read))


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.new", "journal.0"])
def test_a_directory_in_the_place_of_a_file_is_told_in_one_line(tmp_path, name):
    async def nothing(_):
        pass

    run(with_partition(tmp_path, nothing))
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(CorruptFile, match=f"{name}'") as caught:
        run(open_log(tmp_path))
    assert "move what is in its place" in caught.value.hint
    (tmp_path / name).rmdir()


def test_a_file_in_the_place_of_a_partitions_directory_is_told(tmp_path):
    async def write(partition):
        await partition.append(batch(b"v"))

    run(with_partition(tmp_path, write))
    shutil.rmtree(tmp_path / str(TP))
    (tmp_path / str(TP)).touch()

    with pytest.raises(CorruptFile, match=f"{TP}'") as caught:
        run(open_log(tmp_path))
    assert "move what is in its place" in caught.value.hint


def test_a_clean_start_reads_no_segment(tmp_path):
    class NoReads(SimulatedDisk):
        def open(self, path, *, create=False):
            assert path.suffix != ".log", "a clean start needs no segment"
            return super().open(path, create=create)

    disk = SimulatedDisk(tmp_path)

    async def write(partition):
        for _ in range(20):
            await partition.append(batch(b"v" * 500))

    run(with_partition(tmp_path, write, disk=disk, topic=TopicConfig(segment_bytes=2_000)))

    async def start():
        log = await open_log(tmp_path, disk=NoReads(tmp_path, disk.tree))
        assert log.recovered_cleanly
        assert log.partitions[TP].log_end_offset == 20
        assert log.partitions[TP].leader_epoch == 0
        abandon(log)

    run(start())


def test_an_unclean_start_raises_the_leader_epoch(tmp_path):
    async def crash():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        abandon(log)

    async def check(partition):
        assert partition.leader_epoch == 1
        assert partition.end_offset_for_epoch(0) == (0, 1)
        assert partition.end_offset_for_epoch(1) == (1, 1)
        await partition.append(batch(b"w"))
        assert await values(partition) == [b"v", b"w"]

    run(crash())
    run(with_partition(tmp_path, check))


def test_a_partition_that_was_created_or_deleted_stays_so_after_a_power_cut(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        first = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.create_partition(OTHER, TOPIC_ID, TopicConfig())
        await first.append(batch(b"gone"))
        await log.delete_partition(TP)
        assert set(log.partitions) == {OTHER}
        with pytest.raises(StorageError, match="deleted"):
            first.append(batch(b"v"))
        abandon(log)
        for choose in (lambda most: 0, lambda most: most):
            again = await open_log(tmp_path, disk=disk.after_power_cut(choose))
            assert set(again.partitions) == {OTHER}
            abandon(again)

    run(test())


def test_what_is_deleted_frees_its_disk_space(tmp_path):
    """The files of deleted segments stayed open, and kept their space until the process ended."""

    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, clock=clock)
        expired = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=1_000, retention_ms=1_000))
        topic = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, segment_bytes=1_000)
        compacted = await log.create_partition(OTHER, TOPIC_ID, topic)
        deleted = await log.create_partition(TopicPartition("gone", 0), UUID(int=8), TopicConfig())
        for partition in (expired, compacted, deleted):
            for _ in range(5):
                await partition.append(batch(b"v" * 900))
            partition.roll()
        clock.advance_ms(10_000)
        await log.housekeep()
        assert expired.log_start_offset == compacted.cleaned_offset == 5
        await log.delete_partition(deleted.topic_partition)
        assert len(await values(compacted)) == 1
        assert deleted_files(tmp_path) == 0
        await log.close()

    run(test())


def test_a_topic_may_come_back_with_another_id(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        old = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await old.append(batch(b"old"))
        await log.delete_partition(TP)
        new = await log.create_partition(TP, UUID(int=99), TopicConfig())
        await new.append(batch(b"new"))
        abandon(log)
        for choose in (lambda most: 0, lambda most: most):
            again = await open_log(tmp_path, disk=disk.after_power_cut(choose))
            partition = again.partitions[TP]
            assert partition.topic_id == UUID(int=99)
            assert await values(partition) == [b"new"]
            abandon(again)

    run(test())


@pytest.mark.parametrize("name", ["short", "n" * 249])
def test_a_deleted_topic_stays_deleted_after_a_kill_whatever_was_written_since_the_checkpoint(tmp_path, name):
    """The journal's batches went to a directory that was gone, and the log did not start; a name too long for
    `<name>.<id>-delete` left the directory where it was."""
    topic = TopicPartition(name, 0)

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(topic, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"before the checkpoint"))
        await log.checkpoint()
        await partition.append(batch(b"1"))
        await partition.append(batch(b"2"))
        await log.delete_partition(topic)
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
        abandon(log)
        again = await open_log(tmp_path)
        assert dict(again.partitions) == {}
        await again.close()

    run(test())


def test_records_of_a_deleted_topic_do_not_come_back_in_the_next_one_of_its_name(tmp_path):
    """Replaying the old topic's batches put them behind the new one's: NEW0 NEW1 NEW2 OLD3 OLD4."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        old = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for n in range(3):
            await old.append(batch(b"OLD%d" % n))
        await log.checkpoint()
        for n in range(3, 5):
            await old.append(batch(b"OLD%d" % n))
        await log.delete_partition(TP)
        new = await log.create_partition(TP, UUID(int=99), TopicConfig())
        for n in range(3):
            await new.append(batch(b"NEW%d" % n))
        abandon(log)
        for after in (disk.after_kill(), disk.after_power_cut(lambda most: 0), disk.after_power_cut(lambda most: most)):
            again = await open_log(tmp_path, disk=after)
            assert await values(again.partitions[TP]) == [b"NEW0", b"NEW1", b"NEW2"]
            abandon(again)

    run(test())


def test_a_reader_of_a_topic_that_is_deleted_gets_an_error(tmp_path):
    """It asked for the same segment over and over, and the event loop never turned again."""

    async def test():
        log = await open_log(tmp_path)
        await (await log.create_partition(TP, TOPIC_ID, TopicConfig())).append(batch(b"v"))
        await log.close()
        log = await open_log(tmp_path)
        release = threading.Event()
        busy = log._threads.run(release.wait)  # the reader's look at the index waits behind it
        reading = asyncio.ensure_future(log.partitions[TP].read(0, 1_000))
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(log.delete_partition(TP))
        async with asyncio.timeout(30):
            while TP in log.partitions:
                await asyncio.sleep(0.005)
            release.set()
            with pytest.raises(StorageError, match="deleted"):
                await reading
            await asyncio.gather(busy, deleting)
        await log.close()

    run(test())


def test_a_partition_exists_once(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        with pytest.raises(ValueError, match="orders-0 exists"):
            await log.create_partition(TP, UUID(int=99), TopicConfig())
        with pytest.raises(ValueError, match="another topic has its id"):
            await log.create_partition(TopicPartition("other", 0), TOPIC_ID, TopicConfig())
        await log.close()

    run(test())


def test_a_partition_that_is_made_while_the_disk_fails_takes_no_appends(tmp_path):
    """Its round was on its way when the sync of a checkpoint failed. What was then appended was never answered."""
    syncing, may_sync = threading.Event(), threading.Event()

    class SlowJournal(SimulatedDisk):
        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if path.name.startswith("journal"):
                sync = file.sync
                file.sync = lambda: (syncing.set(), may_sync.wait(60), sync())
            return file

    async def test():
        may_sync.set()
        log = await open_log(tmp_path, disk=SlowJournal(tmp_path))
        syncing.clear()
        may_sync.clear()
        creating = asyncio.ensure_future(log.create_partition(TP, TOPIC_ID, TopicConfig()))
        async with asyncio.timeout(30):
            while not syncing.is_set():
                await asyncio.sleep(0.005)
            log.fail(OSError(errno.EIO, "of a checkpoint"))
            may_sync.set()
            partition = await creating
            with pytest.raises(StorageError, match="offline"):
                await partition.append(batch(b"v"))
        await log.close()

    run(test())


def test_close_lets_what_is_queued_reach_the_disk(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        future = partition.append(batch(b"queued"))
        closing = asyncio.ensure_future(log.close())
        assert (await future).base_offset == 0
        await closing
        with pytest.raises(StorageError, match="closed"):
            partition.append(batch(b"late"))
        with pytest.raises(StorageError, match="closed"):
            await partition.read(0, 100)

    run(test())


def test_a_full_disk_empties_itself(tmp_path):
    """Housekeeping waited for a checkpoint, which compaction needs and for which there was no room, before it deleted
    what had expired; and when nothing had expired yet, it was still waiting when it had."""

    class Full(SimulatedDisk):
        full = False

        def write_atomically(self, path, data):
            if self.full:
                raise OSError(errno.ENOSPC, "no room")
            super().write_atomically(path, data)

    disk = Full(tmp_path)

    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, disk=disk, clock=clock)
        table = await log.create_partition(OTHER, TOPIC_ID, TopicConfig(cleanup_policy="compact"))
        events = await log.create_partition(TP, TOPIC_ID, TopicConfig(retention_ms=1_000))
        for partition in (table, events):
            await partition.append(batch(b"v"))
            partition.roll()
        disk.full = True
        async with asyncio.timeout(10):
            await log.housekeep()
            clock.advance_ms(10_000)
            await log.housekeep()
        assert events.log_start_offset == 1
        disk.full = False
        await log.close()

    run(test())


def test_a_partition_whose_housekeeping_fails_does_not_keep_others_from_theirs(tmp_path, monkeypatch):
    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, clock=clock)
        bad = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        good = await log.create_partition(OTHER, TOPIC_ID, TopicConfig(retention_ms=1_000))
        await good.append(batch(b"v"))
        clock.advance_ms(10_000)

        async def fail(partition):
            if partition is bad:
                raise ValueError("unforeseen")
            return await enforce_retention(partition)

        enforce_retention = housekeeping.enforce_retention
        monkeypatch.setattr(housekeeping, "enforce_retention", fail)
        with structlog.testing.capture_logs() as logs:
            await log.housekeep()
        assert good.log_start_offset == 1
        failed = [line for line in logs if line["event"] == "housekeeping_failed"]
        assert [(line["partition"], line["error"]) for line in failed] == [("orders-0", "ValueError('unforeseen')")]
        await log.close()

    run(test())


def test_nothing_is_deleted_before_the_topics_settings_are_known(tmp_path):
    clock = ManualClock()

    async def write(partition):
        await partition.append(batch(b"old", timestamp=clock.now_ms()))

    async def reopen():
        clock.advance_ms(30 * 24 * 3_600_000)
        log = await open_log(tmp_path, clock=clock)
        partition = log.partitions[TP]
        await log.housekeep()
        assert await values(partition) == [b"old"]
        partition.config = TopicConfig(retention_ms=-1)
        await log.housekeep()
        assert await values(partition) == [b"old"]
        partition.config = TopicConfig()
        await log.housekeep()
        assert await values(partition) == []
        await log.close()

    run(with_partition(tmp_path, write, clock=clock))
    run(reopen())


def test_housekeeping_runs_by_itself(tmp_path):
    clock = ManualClock()
    config = LogConfig(read_threads=1, sync_threads=1, housekeeping_interval_ms=10)

    async def test(partition):
        await partition.append(batch(b"old", timestamp=clock.now_ms()))
        clock.advance_ms(10_000)
        async with asyncio.timeout(10):
            while partition.log_start_offset == 0:
                await asyncio.sleep(0.005)

    run(with_partition(tmp_path, test, clock=clock, config=config, topic=TopicConfig(retention_ms=1_000)))


class HeldCompaction:
    """In the place of `housekeeping.compact`: it takes until it may end."""

    def __init__(self, monkeypatch) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.partitions: list[PartitionLog] = []
        monkeypatch.setattr(housekeeping, "compact", self._compact)

    async def _compact(self, partition, _cleaner, *, most_keys) -> bool:
        self.partitions.append(partition)
        self.begun.set()
        await self.may_end.wait()
        return True


def test_retention_goes_on_while_a_compaction_runs(tmp_path, monkeypatch):
    """The next housekeeping was planned when all compactions had ended: nothing else of the log expired until then."""
    clock = ManualClock()
    config = LogConfig(read_threads=1, sync_threads=1, housekeeping_interval_ms=10)

    async def test():
        compaction = HeldCompaction(monkeypatch)
        log = await open_log(tmp_path, clock=clock, config=config)
        topic = TopicConfig(cleanup_policy="compact,delete", retention_ms=1_000)
        table = await log.create_partition(OTHER, TOPIC_ID, topic)
        events = await log.create_partition(TP, TOPIC_ID, TopicConfig(retention_ms=1_000))
        async with asyncio.timeout(10):
            await compaction.begun.wait()
            for end in (1, 2, 3):
                for partition in (table, events):
                    await partition.append(batch(b"old", timestamp=clock.now_ms()))
                clock.advance_ms(10_000)
                while events.log_start_offset < end:
                    await asyncio.sleep(0.005)
            assert compaction.partitions == [table], "one at a time"
            assert table.log_start_offset == 0, "what is compacted expires afterwards"
            compaction.may_end.set()
            while table.log_start_offset < 3 or compaction.partitions == [table]:
                await asyncio.sleep(0.005)
        await log.close()

    run(test())


@asynccontextmanager
async def compacting(path, monkeypatch):
    """A log that compacts at this moment, and a group for what is done meanwhile."""
    compaction = HeldCompaction(monkeypatch)
    log = await open_log(path, config=LogConfig(read_threads=1, sync_threads=1, housekeeping_interval_ms=10))
    await log.create_partition(TP, TOPIC_ID, TopicConfig(cleanup_policy="compact"))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        await compaction.begun.wait()
        yield log, compaction, group


def test_the_end_of_the_log_waits_for_a_compaction_that_runs(tmp_path, monkeypatch):
    async def test():
        async with compacting(tmp_path, monkeypatch) as (log, compaction, group):
            closing = group.create_task(log.close())
            await asyncio.sleep(0.05)  # some intervals of housekeeping
            assert not closing.done()
            compaction.may_end.set()
            await closing
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert log._housekeeping_timer.cancelled()

    run(test())


def test_two_compactions_never_run_at_once(tmp_path, monkeypatch):
    """The second took away what the first was about to put in its place, and the log was offline."""

    async def test():
        async with compacting(tmp_path, monkeypatch) as (log, compaction, group):
            asked = group.create_task(log.housekeep())
            await asyncio.sleep(0.05)
            assert len(compaction.partitions) == 1
            compaction.may_end.set()
            await asked
        assert len(compaction.partitions) > 1
        await log.close()

    run(test())


def test_housekeeping_of_many_partitions_lets_others_have_their_turns(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        topic = TopicConfig(cleanup_policy="compact")
        for number in range(350):
            await log.create_partition(TopicPartition("many", number), TOPIC_ID, topic)
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            others = group.create_task(count())
            await log.housekeep()
            others.cancel()
        assert turns >= 9, "three in each of its three rounds"
        await log.close()

    run(test())


def test_a_partition_that_is_deleted_while_housekeeping_is_about_is_left_out(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        for number in range(150):
            await log.create_partition(TopicPartition("many", number), TOPIC_ID, TopicConfig())
        with structlog.testing.capture_logs() as said:
            async with asyncio.TaskGroup() as group:
                group.create_task(log.housekeep())
                group.create_task(log.delete_partition(TopicPartition("many", 149)))
        assert [line["event"] for line in said if "housekeeping" in line["event"]] == []
        await log.close()

    run(test())


def test_producers_are_forgotten_after_a_while(tmp_path):
    clock = ManualClock()

    async def test():
        log = await open_log(tmp_path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(retention_ms=-1))
        await partition.append(batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0, timestamp=clock.now_ms()))
        await log.housekeep()
        assert len(partition.producers()) == 1
        clock.advance_ms(CONFIG.producer_id_expiration_ms + 1)
        await log.housekeep()
        assert partition.producers() == []
        await log.close()

    run(test())


@pytest.mark.parametrize("restart", ["none", "closed", "killed"])
def test_the_retry_of_a_record_from_last_week_is_a_repetition_too(tmp_path, restart):
    """Producers were forgotten by their records' timestamps: one that sends old ones was forgotten at once."""
    clock = ManualClock()
    topic = TopicConfig(retention_ms=-1)

    async def test():
        log = await open_log(tmp_path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        week_old = clock.now_ms() - 7 * 86_400_000
        again = batch(b"once", producer_id=1, producer_epoch=0, base_sequence=0, timestamp=week_old)
        await partition.append(again)
        if restart != "none":
            abandon(log) if restart == "killed" else await log.close()
            log = await open_log(tmp_path, clock=clock)
            partition = log.partitions[TP]
            partition.config = topic
        await log.housekeep()
        assert (await partition.append(again)).duplicate
        assert await values(partition) == [b"once"]
        await log.close()

    run(test())


def test_two_thousand_partitions_open_without_trouble(tmp_path):
    async def make():
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        topics = [TopicPartition("many", n) for n in range(2_000)]
        made = await asyncio.gather(*(log.create_partition(tp, TOPIC_ID, TopicConfig()) for tp in topics))
        await asyncio.gather(*(partition.append(batch(b"v")) for partition in made))
        await log.close()

    run(make())
    started = time.perf_counter()

    async def start():
        log = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        assert log.recovered_cleanly
        assert len(log.partitions) == 2_000
        await log.close()

    run(start())
    assert time.perf_counter() - started < 20  # about 0.5 s on an idle machine


def test_segments_that_nothing_says_whose_they_are_can_be_had_again(tmp_path):
    """What was to be done gave them up: a topic that is there cannot be created again."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"kept"))
        await log.close()
        missing = tmp_path / str(TP) / "partition.metadata"
        for path in (missing, tmp_path / "checkpoint", tmp_path / "journal.0", tmp_path / "journal.1"):
            path.unlink()
        log = await open_log(tmp_path)
        with pytest.raises(StorageError) as caught:
            await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.close()
        found = re.search(r"version: 0 and (topic_id: \S+),", caught.value.hint)
        assert found is not None
        missing.write_text(f"version: 0\n{found[1]}\n")
        log = await open_log(tmp_path)
        assert await values(log.partitions[TP]) == [b"kept"]
        await log.close()

    run(test())


def test_a_log_that_cannot_write_its_last_checkpoint_lets_go_of_its_directory_all_the_same(tmp_path, monkeypatch):
    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))

        def without_memory(*_):
            raise MemoryError

        monkeypatch.setattr(checkpoints, "encode_partition", without_memory)
        with pytest.raises(MemoryError):
            await log.close()
        monkeypatch.undo()
        again = await open_log(tmp_path)
        assert await values(again.partitions[TP]) == [b"v"]
        await again.close()

    run(test())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_whose_directory_somebody_has_removed_is_deleted_and_made_again(tmp_path, restarted):
    """Its name could not be taken away, so it was said for ever, and nobody could have it."""

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        if restarted:
            await log.close()
        disk.remove_tree(partition.directory)
        if restarted:
            log = await open_log(tmp_path, disk=disk)
            assert log.partitions[TP].error is not None
        await log.delete_partition(TP)
        assert (dict(log.partitions), set(log.undeleted)) == ({}, set())
        again = await log.create_partition(TP, UUID(int=7), TopicConfig())
        await again.append(batch(b"new"))
        await log.close()
        log = await open_log(tmp_path, disk=disk)
        assert await values(log.partitions[TP]) == [b"new"]
        await log.close()

    run(test())


@pytest.mark.parametrize("refused", ["note", "name"])
def test_a_deletion_that_a_full_disk_refuses_is_made_up_for(tmp_path, refused):
    """Else it was there again after a start weeks later, when nobody knew that it had been deleted."""

    async def test():
        disk = SimulatedDisk(tmp_path)
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        disk.refuse(*(("write", errno.ENOSPC, "journal") if refused == "note" else ("rename", errno.ENOSPC, str(TP))))
        with pytest.raises(StorageError):
            await log.delete_partition(TP)
        assert set(log.undeleted) == {TP}
        with pytest.raises(StorageError, match="deleted"):
            await partition.read(0, 100)
        await log.checkpoint()
        await asyncio.gather(log.housekeep(), log.delete_partition(TP))  # somebody else may be faster
        assert not log.undeleted
        assert not log.partitions
        assert not disk.exists(partition.directory)
        await log.close()
        again = await open_log(tmp_path, disk=disk)
        assert not again.partitions
        await again.close()

    run(test())
