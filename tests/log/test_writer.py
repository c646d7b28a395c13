"""Rounds: what shares a sync, who answers when, and what a refused write leaves behind."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from uuid import UUID

import pytest

from mainstem.core import TopicPartition
from mainstem.log import LogConfig, PartitionLog, StorageError, TopicConfig, housekeeping, writer
from mainstem.log.journal import Journal
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import CONFIG, TOPIC_ID, TP, abandon, batch, open_log, run, sequenced, values, with_partition


def journal_syncs(disk: SimulatedDisk) -> int:
    return sum(path.name.startswith("journal") for path in disk.syncs)


def test_appends_that_are_queued_together_share_one_sync(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        before = journal_syncs(disk)
        results = await asyncio.gather(*(partition.append(batch(b"%d" % n)) for n in range(50)))
        assert [result.base_offset for result in results] == list(range(50))
        assert journal_syncs(disk) - before == 1

    run(with_partition(tmp_path, test, disk=disk))


def test_clients_that_send_again_when_they_are_answered_share_their_syncs(tmp_path):
    """The first goes alone; those that came meanwhile would go without it, and so on: twice as many syncs."""
    disk = SimulatedDisk(tmp_path)

    async def client(partition, name, count):
        for number in range(count):
            await partition.append(batch(b"%d %d" % (name, number)))

    async def test(partition):
        before = journal_syncs(disk)
        alone = asyncio.create_task(client(partition, 0, 20))
        await asyncio.sleep(0)  # it has appended,
        await asyncio.sleep(0)  # and its round has begun
        await asyncio.gather(alone, *(client(partition, name, 20) for name in range(1, 5)))
        assert journal_syncs(disk) - before <= 30
        # Those that do not come again are waited for once.
        await asyncio.gather(*(client(partition, name, 20 if name < 2 else 1) for name in range(5)))
        assert partition.high_watermark == 5 * 20 + 2 * 20 + 3

    run(with_partition(tmp_path, test, disk=disk))


def test_one_sync_for_all_partitions(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        topics = [type(TP)("orders", n) for n in range(20)]
        partitions = await asyncio.gather(*(log.create_partition(tp, TOPIC_ID, TopicConfig()) for tp in topics))
        before = journal_syncs(disk)
        await asyncio.gather(*(partition.append(batch(b"v")) for partition in partitions))
        assert journal_syncs(disk) - before == 1
        await log.close()

    run(test())


def test_creating_many_partitions_at_once_shares_syncs_too(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        before = len(disk.syncs)
        topics = [type(TP)("orders", n) for n in range(100)]
        await asyncio.gather(*(log.create_partition(tp, TOPIC_ID, TopicConfig()) for tp in topics))
        assert len(disk.syncs) - before < 100
        await log.close()

    run(test())


def test_nothing_is_answered_or_shown_before_the_sync(tmp_path):
    disk = SimulatedDisk(tmp_path)
    seen = []

    async def test(partition):
        partition.add_listener(lambda: seen.append(partition.high_watermark))
        future = partition.append(batch(b"a", b"b"))
        assert (partition.log_end_offset, partition.high_watermark) == (2, 0)
        assert not future.done()
        syncs = journal_syncs(disk)
        await future
        assert journal_syncs(disk) == syncs + 1
        assert seen == [2]

    run(with_partition(tmp_path, test, disk=disk))


def test_an_append_is_answered_once_the_systems_sync_of_the_journal_has_returned(tmp_path, monkeypatch):
    synced, begun, may_return = [], threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        written = b"hello" in path.read_bytes()
        begun.set()
        assert may_return.wait(30)
        fdatasync(descriptor)
        synced.append((path.with_suffix(""), written))

    async def test(partition):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", slow)
            future = partition.append(batch(b"hello"))
            assert await asyncio.to_thread(begun.wait, 30)
            await asyncio.sleep(0)
            answered_early = future.done()
            may_return.set()
            await future
        assert not answered_early
        assert synced == [(tmp_path / "journal", True)]

    run(with_partition(tmp_path, test))


def test_a_full_disk_refuses_and_the_log_goes_on(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        await partition.append(batch(b"before"))
        for place in (".log", "journal"):
            disk.refuse("write", errno.ENOSPC, place)
            with pytest.raises(StorageError, match=r"No space left on device: .*nothing was appended") as caught:
                await partition.append(batch(b"lost", producer_id=5, producer_epoch=0, base_sequence=0))
            assert "free disk space" in caught.value.hint
            assert partition.producers() == []
        result = await partition.append(batch(b"after", producer_id=5, producer_epoch=0, base_sequence=0))
        assert (result.base_offset, result.duplicate) == (1, False)
        assert await values(partition) == [b"before", b"after"]

    run(with_partition(tmp_path, test, disk=disk))
    run(
        with_partition(
            tmp_path, lambda p: check_values(p, [b"before", b"after"]), disk=disk.after_power_cut(lambda m: 0)
        )
    )


MEGABYTE = b"v" * 2**20
LARGE_BATCHES = TopicConfig(max_message_bytes=2**21)


@pytest.mark.parametrize("refusals", [1, 2])
def test_what_makes_room_is_not_refused_with_what_a_full_disk_has_no_room_for(tmp_path, refusals):
    """A busy producer was in every round, so that nothing could be deleted any more."""
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        for _ in range(6):
            await partition.append(batch(b"v" * 300))
        deleted = asyncio.create_task(housekeeping.delete_records(partition, 4))
        await asyncio.sleep(0)  # its note is queued
        disk.refuse("write", errno.ENOSPC, ".log")
        if refusals == 2:
            disk.refuse("write", errno.ENOSPC, "journal")
        append = partition.append(batch(b"lost"))
        with pytest.raises(StorageError, match="nothing was appended"):
            await append
        if refusals == 2:  # there is no room for the note either
            with pytest.raises(StorageError, match="nothing was appended"):
                await deleted
            assert partition.log_start_offset == 0
        else:
            assert await deleted == 4
            assert [segment.base_offset for segment in partition.segments] == [4, 6]
        assert (await partition.append(batch(b"after"))).base_offset == 6

    topic = TopicConfig(segment_bytes=800)
    run(with_partition(tmp_path, test, disk=disk, topic=topic))


@pytest.mark.parametrize("written_before", [False, True])
def test_a_topic_is_deleted_on_a_full_disk_while_it_is_written(tmp_path, written_before):
    """The deletion went ahead of what was queued, which then had no file: that took the directory offline."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        other = await log.create_partition(TopicPartition("other", 0), UUID(int=8), TopicConfig())
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        if written_before:
            await partition.append(batch(b"v"))
        disk.refuse("write", errno.ENOSPC, "other")
        refused = other.append(batch(b"refused"))
        while not log._writer._busy or log._writer._dirty:  # its round is in flight
            await asyncio.sleep(0)
        queued = partition.append(batch(b"queued"))
        await log.delete_partition(TP)
        for future in (refused, queued):
            with pytest.raises(StorageError, match=r"nothing was appended|deleted"):
                await future
        assert (await other.append(batch(b"goes on"))).base_offset == 0
        await log.checkpoint()
        await other.append(batch(b"and on"))
        assert not log.offline
        abandon(log)
        log = await open_log(tmp_path, disk=disk.after_kill())
        assert await values(log.partitions[other.topic_partition]) == [b"goes on", b"and on"]
        assert TP not in log.partitions
        await log.close()

    run(test())


@pytest.mark.parametrize("value", [b"in doubt", MEGABYTE])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_sync_that_fails_is_never_taken_for_a_full_disk(tmp_path, error, value):
    """The append was undone, but its frame was in the journal: the next one got the same offset, and after a kill the
    partition was offline with acknowledged records in it."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await partition.append(batch(b"before"))
        disk.refuse("sync", error, "journal")
        with pytest.raises(StorageError, match="offline"):
            await partition.append(batch(value))
        assert log.offline
        with pytest.raises(StorageError, match="offline"):
            partition.append(batch(b"refused"))
        abandon(log)
        for after in (disk.after_kill(), disk.after_power_cut(lambda most: 0)):
            again = await open_log(tmp_path, disk=after)
            partition = again.partitions[TP]
            await partition.append(batch(b"acknowledged"))
            found = await values(partition)
            assert found in ([b"before", b"acknowledged"], [b"before", value, b"acknowledged"])
            abandon(again)

    run(test())


def test_what_was_refused_for_want_of_room_is_not_in_the_journal(tmp_path):
    """All of its frame was there but the padding, and a start takes such a frame for whole."""

    class AlmostFull(SimulatedDisk):
        full = False

        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if path.name.startswith("journal"):
                write = file.write

                def almost(pieces, position):
                    if self.full:
                        self.full = False
                        write(pieces[:-1], position)
                        raise OSError(errno.ENOSPC, "no room for the padding")
                    write(pieces, position)

                file.write = almost
            return file

    disk = AlmostFull(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        disk.full = True
        with pytest.raises(StorageError, match="nothing was appended"):
            await partition.append(batch(b"refused"))
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_kill())
        assert await values(again.partitions[TP]) == []
        abandon(again)

    run(test())


@pytest.mark.parametrize("flush_messages", [1, 100])
def test_a_full_disk_that_has_no_room_for_a_files_name(tmp_path, flush_messages):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        disk.refuse("create", errno.ENOSPC, ".log")
        with pytest.raises(StorageError, match="nothing was appended"):
            await partition.append(batch(b"refused"))
        await partition.append(batch(b"v"))
        assert await values(partition) == [b"v"]

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=flush_messages)))


def test_look_ups_by_time_know_nothing_of_what_a_full_disk_refused(tmp_path):
    """The offset of the latest timestamp was one that was refused: the time index said that nothing up to there was
    later, although later records had got those offsets."""
    disk = SimulatedDisk(tmp_path)
    time = 1_700_000_000_000

    async def test(partition):
        await partition.append(batch(*[b"v"] * 10, timestamp=time + 500))
        for refused in ([partition], [partition] * 3):
            disk.refuse("write", errno.ENOSPC, ".log")
            appends = [p.append(batch(*[b"v" * 100] * 100, timestamp=time + 3_000)) for p in refused]
            with pytest.raises(StorageError, match="nothing was appended"):
                await asyncio.gather(*appends)
            latest = await partition.latest_timestamp()
            assert (latest.offset, latest.timestamp) == (0, time + 500)
            assert len(partition.segments) == 1
            assert partition.segments[0].max_timestamp == time + 500
        for later in (900, 2_000, 2_100, 2_200):
            await partition.append(batch(b"v" * 5_000, timestamp=time + later))
        found = await partition.offset_for_timestamp(time + 1_500)
        assert (found.offset, found.timestamp) == (11, time + 2_000)
        latest = await partition.latest_timestamp()
        assert (latest.offset, latest.timestamp) == (13, time + 2_200)

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(segment_bytes=25_000)))


def test_a_frame_is_not_written_before_what_its_batches_lie_behind_is_on_the_disk(tmp_path):
    """The frame reached the disk on its own, before the power went: its batches lay behind bytes that were not there,
    and the next start took that for damage.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"first"))
        await log.checkpoint()
        await partition.append(batch(b"trusting"))
        partition.config = TopicConfig()
        disk.refuse("sync", errno.EIO, "")  # the round's first sync: the power goes here
        with pytest.raises(StorageError, match="offline"):
            await partition.append(batch(b"journaled"))
        abandon(log)
        for node in (disk.file(tmp_path / name) for name in ("journal.0", "journal.1")):
            node.sync()
        log = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert log.partitions[TP].error is None
        assert await values(log.partitions[TP]) == [b"first"]
        await log.close()

    run(test())


@pytest.mark.parametrize("place", [".log", "journal"])
def test_what_a_refused_round_was_to_sync_is_synced_with_the_next(tmp_path, place):
    """It was forgotten: later records were journaled behind bytes that no sync had brought to the disk, and after a
    power cut they were lost with them."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"first"))
        await log.checkpoint()  # the file's name is on the disk
        await partition.append(batch(b"trusting"))
        partition.config = TopicConfig()
        partition.roll()
        disk.refuse("write", errno.ENOSPC, place)
        with pytest.raises(StorageError, match="nothing was appended"):
            await partition.append(batch(b"refused"))
        await partition.append(batch(b"synced"))
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert await values(again.partitions[TP]) == [b"first", b"trusting", b"synced"]
        abandon(again)

    run(test())


def test_a_flush_that_shared_its_round_with_a_full_disk_is_made_up_for(tmp_path, monkeypatch):
    monkeypatch.setattr("mainstem.log.flushing._AGAIN_SECONDS", 0.01)
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        trusting = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=2))
        other = await log.create_partition(type(TP)("orders", 1), TOPIC_ID, TopicConfig())
        await trusting.append(batch(b"first"))
        disk.refuse("write", errno.ENOSPC, "journal")
        second, refused = trusting.append(batch(b"second")), other.append(batch(b"refused"))
        assert (await second).base_offset == 1
        with pytest.raises(StorageError, match="nothing was appended"):
            await refused
        async with asyncio.timeout(10):
            while disk.file(trusting.segments[0].path).pending:
                await asyncio.sleep(0.005)
        abandon(log)

    run(test())


@pytest.mark.parametrize("flush_messages", [1, 100])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_segment_that_cannot_be_opened_for_now_refuses_and_the_log_goes_on(tmp_path, flush_messages, error):
    """It took the log offline, though nothing was lost, and the next start met the same clients."""

    class FewFiles(SimulatedDisk):
        refuses = ""

        def open(self, path, *, create=False):
            if self.refuses and self.refuses in str(path):
                raise OSError(error, os.strerror(error), str(path))
            return super().open(path, create=create)

    disk = FewFiles(tmp_path)
    topic = TopicConfig(flush_messages=flush_messages, segment_bytes=100)
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)

    async def story():
        log = await open_log(tmp_path, disk=disk)
        partitions = [await log.create_partition(tp, TOPIC_ID, topic) for tp in (first, second)]
        for partition in partitions:
            await partition.append(batch(b"before", b"x" * 100))
        disk.refuses = str(second)
        in_one_round = [partition.append(batch(b"lost")) for partition in partitions]  # the first one's is written
        for refused in in_one_round:
            with pytest.raises(StorageError, match="nothing was appended") as caught:
                await refused
            assert "ulimit -n" in caught.value.hint
        disk.refuses = ""
        for partition in partitions:
            assert (await partition.append(batch(b"after"))).base_offset == 2
            assert await values(partition) == [b"before", b"x" * 100, b"after"]
        await log.close()
        log = await open_log(tmp_path, disk=disk.after_kill())
        for tp in (first, second):
            assert await values(log.partitions[tp]) == [b"before", b"x" * 100, b"after"]
        await log.close()

    run(story())


async def check_values(partition, expected):
    assert await values(partition) == expected


def test_a_coordinator_never_runs_ahead_of_its_log(tmp_path):
    """Its memory has changed when the record was queued; an undone append would leave it ahead of the log."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TopicPartition("__consumer_offsets", 0), TOPIC_ID, TopicConfig())
        partition.fail_stop = True
        disk.refuse("write", errno.ENOSPC, ".log")
        with pytest.raises(StorageError, match="offline"):
            await partition.append(batch(b"v"))
        assert log.offline
        await log.close()

    run(test())


@pytest.mark.parametrize(("call", "where"), [("sync", "journal"), ("write", "journal"), ("write", ".log")])
def test_a_failing_disk_takes_the_directory_offline(tmp_path, call, where):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"durable"))
        disk.refuse(call, errno.EIO, where)
        first, second = partition.append(batch(b"1")), partition.append(batch(b"2"))
        for future in (first, second):
            with pytest.raises(StorageError, match="offline"):
                await future
        assert log.offline
        with pytest.raises(StorageError, match="offline"):
            partition.append(batch(b"3"))
        with pytest.raises(StorageError):
            await log.create_partition(type(TP)("other", 0), TOPIC_ID, TopicConfig())
        with pytest.raises(StorageError):
            await housekeeping.delete_records(partition, 1)
        assert await values(partition) == [b"durable"]  # what was acknowledged can still be read
        await log.close()

    run(test())
    run(with_partition(tmp_path, lambda p: starts_with(p, b"durable"), disk=disk.after_power_cut(lambda m: 0)))


@pytest.mark.parametrize(
    "where", ["the round", "the hint to the disk", "what is queued", "the state for a checkpoint", "the checkpoint"]
)
def test_what_nobody_foresaw_takes_the_directory_offline_and_leaves_nobody_waiting(tmp_path, monkeypatch, where):
    """Appends were never answered again, and the log could not be closed."""
    no_thread = RuntimeError("can't start new thread")

    def fails(*_):
        raise no_thread

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, LARGE_BATCHES)
        await partition.append(batch(b"durable"))
        waiting = []
        with monkeypatch.context() as short:
            if where == "the round":
                short.setattr(Journal, "append", fails)
            elif where == "the hint to the disk":
                short.setattr(log._writer, "_written", fails)
            elif where == "what is queued":
                short.setattr(PartitionLog, "take_writes", fails)
            else:
                what = (log._checkpoints, "start") if where == "the checkpoint" else (PartitionLog, "state")
                short.setattr(*what, fails)
                waiting.append(asyncio.ensure_future(log.checkpoint()))
                await asyncio.sleep(0)
            other = log.create_partition(TopicPartition("other", 0), UUID(int=8), TopicConfig())
            waiting += [partition.append(batch(MEGABYTE)), asyncio.ensure_future(other)]
            done, late = await asyncio.wait(waiting, timeout=10)
            assert not late
            assert any("can't start new thread" in str(each.exception()) for each in done)
        assert log.offline
        with pytest.raises(StorageError, match="can't start new thread"):
            partition.append(batch(b"later"))
        await asyncio.wait_for(log.close(), 10)

    run(test())
    run(with_partition(tmp_path, lambda partition: starts_with(partition, b"durable")))


@pytest.mark.parametrize("left", range(4))
def test_a_start_without_a_thread_says_so_and_leaves_the_directory_to_the_next(tmp_path, monkeypatch, left):
    async def test():
        start, started = threading.Thread.start, 0

        def limited(thread):
            nonlocal started
            started += 1
            if started > left:
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", limited)
            with pytest.raises(StorageError, match="can't start new thread") as refused:
                await open_log(tmp_path)
        assert "ulimit -u" in refused.value.hint
        await (await open_log(tmp_path)).close()

    run(test())


async def starts_with(partition, value):
    assert (await values(partition))[0] == value


def test_a_topic_that_trusts_the_page_cache_waits_for_no_sync(tmp_path):
    disk = SimulatedDisk(tmp_path)
    topic = TopicConfig(flush_messages=4)

    async def test(partition):
        before = len(disk.syncs)
        for n in range(3):
            assert (await partition.append(batch(b"v"))).base_offset == n
        assert partition.high_watermark == 3
        assert len(disk.syncs) == before
        await partition.append(batch(b"v"))
        await partition.append(batch(b"v"))  # the round with the fourth has ended
        assert [path.suffix for path in disk.syncs[before:]] == [".metadata", ".log"]

    run(with_partition(tmp_path, test, disk=disk, topic=topic))


def test_a_topic_syncs_after_some_time(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        before = len(disk.syncs)
        await partition.append(batch(b"v"))
        async with asyncio.timeout(10):
            while len(disk.syncs) == before:
                await asyncio.sleep(0.005)
        assert disk.syncs[-1].suffix == ".log"

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=1_000, flush_ms=10)))


def test_a_timer_that_is_early_by_its_clocks_rounding_syncs_all_the_same(tmp_path):
    """One flush in six was dropped, and none came after it until the next append."""
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        asyncio.get_running_loop()._clock_resolution = 0.5
        before = len(disk.syncs)
        await partition.append(batch(b"v"))
        async with asyncio.timeout(10):
            while len(disk.syncs) == before:
                await asyncio.sleep(0)
        assert disk.syncs[-1].suffix == ".log"

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=1_000, flush_ms=400)))


def test_a_segment_that_is_deleted_while_its_round_is_written_needs_no_sync(tmp_path):
    class Deleting(SimulatedDisk):
        delete = None

        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if self.delete is not None:
                write = file.write
                file.write = lambda pieces, position: (self.delete and self.delete(), write(pieces, position))
            return file

    disk = Deleting(tmp_path)

    async def test(partition):
        await partition.append(batch(b"old"))
        old = partition.segments[0]

        def delete():
            old.retired = True
            partition.segments.files.forget(old)

        disk.delete = delete
        partition.roll()
        await partition.append(batch(b"new"))  # enough for a sync
        assert (await partition.append(batch(b"more"))).base_offset == 2
        disk.delete = None

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=2)))


def test_a_flush_that_cannot_open_its_segment_is_not_tried_again_at_once(tmp_path):
    class OutOfFiles(SimulatedDisk):
        out = False

        def open(self, path, *, create=False):
            if self.out and path.suffix == ".log":
                raise OSError(errno.EMFILE, "too many open files")
            return super().open(path, create=create)

    disk = OutOfFiles(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=2))
        await partition.append(batch(b"first"))
        partition.segments.files.forget(partition.segments[0])
        disk.out = True
        with pytest.raises(StorageError, match="too many open files: nothing was appended"):
            await partition.append(batch(b"refused"))
        async with asyncio.timeout(10):
            await log._writer.idle()
        disk.out = False
        await partition.append(batch(b"second"))
        assert await values(partition) == [b"first", b"second"]
        await log.close()

    run(test())


@pytest.mark.parametrize("rolled", [False, True])
def test_what_was_flushed_is_found_under_its_name_after_a_power_cut(tmp_path, rolled):
    """The file was synced and the directory that names it was not, until the next checkpoint."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=2, segment_bytes=200))
        expected = [b"1", b"2"]
        await asyncio.gather(*(partition.append(batch(value)) for value in expected))
        if rolled:
            await log.checkpoint()
            expected += [b"3" * 150, b"4" * 150]
            await asyncio.gather(*(partition.append(batch(value)) for value in expected[2:]))
            assert len(partition.segments) == 3
        await log._writer.idle()
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert await values(again.partitions[TP]) == expected
        abandon(again)

    run(test())


def test_a_name_is_synced_once(tmp_path):
    class Counting(SimulatedDisk):
        names = 0

        def sync_directory(self, path):
            self.names += path.name == str(TP)
            super().sync_directory(path)

    disk = Counting(tmp_path)

    async def test(partition):
        for _ in range(3):
            await asyncio.gather(*(partition.append(batch(b"v")) for _ in range(2)))
            await partition.shared.writer.idle()
        assert disk.names == 1

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=2)))


def test_the_file_of_a_segment_that_was_empty_at_the_start_has_no_name_yet(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.close()
        log = await open_log(tmp_path, disk=disk)
        partition = log.partitions[TP]
        partition.config = TopicConfig(flush_messages=2)
        await asyncio.gather(*(partition.append(batch(b"v")) for _ in range(2)))
        await log._writer.idle()
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert await values(again.partitions[TP]) == [b"v", b"v"]
        abandon(again)

    run(test())


def test_a_promise_that_follows_a_flush_has_its_file_after_a_power_cut(tmp_path):
    """The journal went on behind bytes of a file whose name was lost: the partition was offline after it."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"trusting"))
        partition.config = TopicConfig()
        await partition.append(batch(b"promised"))
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
        assert await values(again.partitions[TP]) == [b"trusting", b"promised"]
        abandon(again)

    run(test())


@pytest.mark.parametrize(("error", "offline"), [(errno.EMFILE, False), (errno.ENOSPC, True), (errno.EIO, True)])
def test_a_name_that_cannot_be_synced(tmp_path, error, offline):
    """Without a file descriptor nothing was synced yet, and all is taken back; a sync that failed is believed."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"trusting"))
        partition.config = TopicConfig()
        disk.refuse("sync_directory", error, str(TP))
        with pytest.raises(StorageError, match="offline" if offline else "nothing was appended"):
            await partition.append(batch(b"refused"))
        assert log.offline is offline
        if not offline:
            await partition.append(batch(b"promised"))
        abandon(log)
        if not offline:
            again = await open_log(tmp_path, disk=disk.after_power_cut(lambda most: 0))
            assert await values(again.partitions[TP]) == [b"trusting", b"promised"]
            abandon(again)

    run(test())


def test_trust_that_is_taken_back_makes_the_earlier_records_durable_too(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test(partition):
        await partition.append(batch(b"trusting"))
        partition.config = TopicConfig()
        await partition.append(batch(b"synced"))

    run(with_partition(tmp_path, test, disk=disk, topic=TopicConfig(flush_messages=1_000)))
    run(
        with_partition(
            tmp_path, lambda p: check_values(p, [b"trusting", b"synced"]), disk=disk.after_power_cut(lambda m: 0)
        )
    )


@pytest.mark.parametrize("rolled", [False, True])
def test_the_end_of_a_transaction_is_on_the_disk_where_the_page_cache_is_trusted(tmp_path, rolled):
    """Its coordinator forgets what was open once it is told, so no start may find it open again."""
    disk = SimulatedDisk(tmp_path)
    topic = TopicConfig(flush_messages=1_000)

    async def test(partition):
        await partition.append(sequenced(b"trusting", sequence=0, transactional=True))
        if rolled:
            partition.roll()
        marker = partition.append_marker(1, 0, commit=True, coordinator_epoch=0)
        with_it = partition.append(batch(b"with it"))
        await marker
        assert with_it.done()
        assert partition.last_stable_offset == 3
        before = len(disk.syncs)
        await partition.append(batch(b"later"))
        assert len(disk.syncs) == before, "it trusts the page cache again"
        abandoned.append(disk.after_power_cut(lambda most: 0))

    async def check(partition):
        assert await values(partition) == [b"trusting", b"with it"]
        assert not partition.open_transactions
        assert partition.last_stable_offset == partition.high_watermark == 3

    abandoned: list[SimulatedDisk] = []
    run(with_partition(tmp_path, test, disk=disk, topic=topic))
    run(with_partition(tmp_path, check, disk=abandoned[0], topic=topic))


@pytest.mark.parametrize("flush_messages", [1, 1_000], ids=["journaled", "in the page cache"])
def test_a_slow_checkpoint_holds_the_journal_at_a_few_times_its_size(tmp_path, flush_messages):
    """And what is in no journal: the next start reads both."""
    config = LogConfig(read_threads=1, sync_threads=1, journal_bytes=20_000)
    goes_on = threading.Event()

    class SlowDisk(SimulatedDisk):
        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            if path.suffix == ".log":
                sync = file.sync
                file.sync = lambda: goes_on.wait(60) and sync()
            return file

    disk = SlowDisk(tmp_path)

    async def test(partition):
        for _ in range(60):
            future = partition.append(batch(b"v" * 3_000))
            await asyncio.wait([future], timeout=1)
            if not future.done():
                break
        assert not future.done(), "the journal grew and grew"
        if flush_messages == 1:
            sizes = [disk.file_size(tmp_path / name) for name in ("journal.0", "journal.1")]
            assert 4 * 20_000 <= max(sizes) <= 5 * 20_000
        else:
            assert 5 * 20_000 <= partition.segments.active.size <= 7 * 20_000
        goes_on.set()
        await future

    run(with_partition(tmp_path, test, disk=disk, config=config, topic=TopicConfig(flush_messages=flush_messages)))


def test_a_caller_that_is_gone_disturbs_nobody(tmp_path):
    async def test(partition):
        gone, stays = partition.append(batch(b"1")), partition.append(batch(b"2"))
        gone.cancel()
        assert (await stays).base_offset == 1
        assert await values(partition) == [b"1", b"2"]

    run(with_partition(tmp_path, test, config=CONFIG))


def test_who_waits_for_a_note_is_told_where_its_round_cannot_begin(tmp_path, monkeypatch):
    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())

        def without_memory(*_):
            raise MemoryError

        monkeypatch.setattr(writer, "Round", without_memory)
        async with asyncio.timeout(10):
            with pytest.raises(StorageError, match="MemoryError"):
                await log.delete_partition(TP)
        assert not partition.leaving.locked()
        monkeypatch.undo()
        await log.close()

    run(test())


def test_what_makes_room_is_done_also_while_a_checkpoint_waits_for_room_and_the_journal_is_full(tmp_path):
    """Deletions waited, too, until somebody made room from outside."""

    class Full(SimulatedDisk):
        has_room = True

        def write_atomically(self, path, data):
            if not self.has_room and path.name == "checkpoint":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super().write_atomically(path, data)

        def unlink(self, path):
            super().unlink(path)
            self.has_room = True

    async def test():
        disk = Full(tmp_path)
        log = await open_log(tmp_path, disk=disk, config=LogConfig(read_threads=1, sync_threads=1, journal_bytes=5_000))
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=5_000))
        disk.has_room = False
        count = 0
        while (await asyncio.wait([waits := partition.append(batch(b"v" * 1_000))], timeout=0.2))[0]:
            count += 1
        async with asyncio.timeout(30):
            await housekeeping.delete_records(partition, count - 1)
            assert disk.has_room
            await waits  # the checkpoint has found it
        await log.close()

    run(test())
