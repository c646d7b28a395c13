"""Histories that a start once went wrong after; the models found some of them, reading the recovery the others."""

import asyncio
import contextlib
import threading
from uuid import UUID

import msgspec
import pytest

from mainstem.core import ManualClock
from mainstem.log import LogConfig, StorageError, TopicConfig, housekeeping
from mainstem.log.metadata import create_files
from mainstem.log.repair import repair
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, read_all, run, sequenced, values

TOPIC = TopicConfig(segment_bytes=1_000)
TRUSTING = msgspec.structs.replace(TOPIC, flush_messages=1_000)


def left(disk, path, *, checkpoint):
    """The disk after a kill -9."""
    after = disk.after_kill()
    if checkpoint == "lost":
        after.unlink(path / "checkpoint")
    return after


def while_created(monkeypatch, segment, do):
    """Call `do` on the loop while the segment's file is made."""
    loop, done, create = asyncio.get_running_loop(), asyncio.Event(), segment.file_to_write

    def call():
        do()
        done.set()

    def slowly(position):
        monkeypatch.undo()
        loop.call_soon_threadsafe(call)
        asyncio.run_coroutine_threadsafe(done.wait(), loop).result(10)
        return create(position)

    monkeypatch.setattr(segment, "file_to_write", slowly)


async def first_letters(path, disk):
    """Of every record, after a start and after one more."""
    found = []
    for _ in range(2):
        log = await open_log(path, disk=disk)
        assert log.partitions[TP].error is None, log.partitions[TP].error
        found.append([value[:1] for value in await values(log.partitions[TP])])
        await log.close()
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
def test_segments_between_the_checkpoint_and_the_journal_were_deleted(tmp_path, checkpoint):
    """Their batches were trusted to the page cache; the partition was offline."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TRUSTING)
        await partition.append(batch(b"a" * 500))
        await log.checkpoint()
        for n in range(1, 6):
            await partition.append(batch(b"%d" % n + b"b" * 500))
        partition.config = TOPIC
        await partition.append(batch(b"l"))
        await housekeeping.delete_records(partition, 4)
        abandon(log)
        assert await first_letters(tmp_path, left(disk, tmp_path, checkpoint=checkpoint)) == [b"4", b"5", b"l"]

    run(test())


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
@pytest.mark.parametrize("trusted", [0, 1])
def test_a_deleted_segment_that_the_journal_has_in_part(tmp_path, trusted, checkpoint):
    """One of its batches was trusted to the page cache; the partition was offline, and the next start found zeros."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await log.checkpoint()
        for n in range(6):
            partition.config = TRUSTING if n == trusted else TOPIC
            await partition.append(batch(b"%d" % n + b"b" * 250))
        start = partition.segments[1].base_offset
        await housekeeping.delete_records(partition, start)
        abandon(log)
        found = await first_letters(tmp_path, left(disk, tmp_path, checkpoint=checkpoint))
        assert found == [b"%d" % n for n in range(start, 6)]

    run(test())


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_segments_before_the_first_that_the_journal_has_are_no_leftovers(tmp_path, how):
    """Of a partition that is in no checkpoint yet: what was synced and promised was deleted."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TRUSTING)
        for n in range(4):
            await partition.append(batch(b"%d" % n * 400))
        partition.config = TOPIC
        await partition.append(batch(b"4" * 400))  # syncs all before it
        abandon(log)
        after = disk.after_kill() if how == "kill" else disk.after_power_cut(lambda most: 0)
        assert await first_letters(tmp_path, after) == [b"%d" % n for n in range(5)]

    run(test())


def test_a_deleted_topics_records_do_not_come_back_under_its_name(tmp_path):
    """Its id had not reached the disk, its records had: a new topic of the name took them over."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        old = await log.create_partition(TP, UUID(int=1), TopicConfig(flush_messages=2))
        for n in range(6):
            await old.append(batch(b"old%d" % n))  # every second one syncs the segment and its name
        await log.delete_partition(TP)
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)
        log = await open_log(tmp_path, disk=after)
        assert not log.partitions
        new = await log.create_partition(TP, UUID(int=2), TopicConfig())
        await new.append(batch(b"new0"))  # as long as an old one: what lies behind is whole
        abandon(log)
        assert await first_letters(tmp_path, after.after_kill()) == [b"n"]

    run(test())


@pytest.mark.parametrize("seed", [0, 1, 94, 109, 120, 159])  # the last four leave a segment's name
def test_a_deleted_topics_name_is_free_after_a_power_cut(tmp_path, seed):
    """What its id's file held was not on the disk, and its segment's name was: the directory stayed."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        old = await log.create_partition(TP, UUID(int=1), TOPIC)
        await old.append(batch(b"old"))
        await log.delete_partition(TP)
        abandon(log)
        after = disk.after_power_cut(adversary(seed))
        log = await open_log(tmp_path, disk=after)
        new = await log.create_partition(TP, UUID(int=2), TOPIC)
        await new.append(batch(b"new"))
        abandon(log)
        assert await first_letters(tmp_path, after.after_kill()) == [b"n"]

    run(test())


def test_segments_that_are_nobodys_are_not_written_over(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"kept"))
        await log.close()
        await (await open_log(tmp_path, disk=disk)).close()  # the journal says nothing of it any more
        disk.unlink(tmp_path / "checkpoint")
        disk.unlink(tmp_path / "orders-0" / "partition.metadata")
        log = await open_log(tmp_path, disk=disk)
        with pytest.raises(StorageError, match=r"orders-0: expected nothing, found segments") as refused:
            await log.create_partition(TP, UUID(int=2), TOPIC)
        assert "move the directory away" in refused.value.hint
        assert disk.file_size(tmp_path / "orders-0" / "00000000000000000000.log") > 0
        await log.close()

    run(test())


@pytest.mark.parametrize("cut", range(0, 30, 2))
def test_what_a_later_compaction_had_begun_replaces_nothing(tmp_path, cut):
    """The journal still had the word of the one before, and the checkpoint was lost: half a file took its place."""
    topic = TopicConfig(cleanup_policy="compact", segment_bytes=400, min_cleanable_dirty_ratio=0.0)

    async def test():
        disk, clock = SimulatedDisk(tmp_path), ManualClock()
        log = await open_log(tmp_path, disk=disk, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, topic)

        async def put(keys):
            for key in keys:
                await partition.append(batch(key * 80, key=key, timestamp=clock.now_ms()))
            partition.roll()

        await put([b"a", b"b", b"a", b"c", b"d", b"a"])
        await log.housekeep()
        await log.checkpoint()
        await put([b"e", b"c", b"f", b"g"])
        expected = {record.key: record.value for record in await read_all(partition)}
        disk.power_off_after(cut)
        with contextlib.suppress(OSError, StorageError):
            await log.housekeep()
        abandon(log)
        after = disk.after_power_cut(adversary(cut))
        after.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=after, clock=clock)
        assert {record.key: record.value for record in await read_all(log.partitions[TP])} == expected
        await log.close()

    run(test())


def test_offsets_are_not_given_twice_where_a_start_deleted_what_was_left(tmp_path):
    """No file named the end of the log, and then the checkpoint was lost."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await log.checkpoint()
        partition.config = TRUSTING
        for n in range(5):
            await partition.append(batch(b"%d" % n))
        await housekeeping.delete_records(partition, 5)
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)
        await (await open_log(tmp_path, disk=after)).close()
        after.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=after)
        assert (await log.partitions[TP].append(batch(b"next"))).base_offset == 5
        await log.close()

    run(test())


@pytest.mark.parametrize("deleted", [0, 5, 8])
@pytest.mark.parametrize("changes", range(14))
def test_damage_that_a_killed_start_has_found_is_found_again(tmp_path, changes, deleted):
    """It had written the journal's batches behind the bytes that are missing: the file's size was right then. And of
    deleted records nobody asked for it: what the journal had, or what was appended next, lay behind a hole.
    """
    disk, segment = SimulatedDisk(tmp_path), tmp_path / "orders-0" / "00000000000000000000.log"

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for n in range(5):
            await partition.append(batch(b"%d" % n * 200))
        await log.checkpoint()
        copy = bytes(disk.file(segment).data)
        for n in range(5, 8):
            await partition.append(batch(b"%d" % n * 200))
        await housekeeping.delete_records(partition, deleted)
        abandon(log)
        damaged = disk.after_kill()
        damaged.file(segment).truncate(300)
        damaged.power_off_after(changes)
        with contextlib.suppress(OSError, StorageError):
            abandon(await open_log(tmp_path, disk=damaged))
        after = damaged.after_kill()
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].error is not None
        await log.close()
        after.file(segment).data = bytearray(copy)
        assert await first_letters(tmp_path, after) == [b"%d" % n for n in range(deleted, 8)]

    run(test())


def test_what_a_start_brought_to_a_damaged_partition_without_a_checkpoint_is_durable(tmp_path):
    """The journal was emptied, and the names of the files that it had led to were not synced."""
    disk, segment = SimulatedDisk(tmp_path), tmp_path / "orders-0" / "00000000000000000000.log"
    topic = TopicConfig(segment_bytes=700)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for n in range(4):
            await partition.append(batch(b"%d" % n * 250))
        await log.close()
        log = await open_log(tmp_path, disk=disk)
        partition = log.partitions[TP]
        partition.config = topic
        for n in range(4, 8):
            await partition.append(batch(b"%d" % n * 250))
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)
        after.unlink(tmp_path / "checkpoint")
        after.tree.sync()
        after.file(segment).data[100] ^= 1
        after.file(segment).sync()
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].error is not None
        abandon(log)
        after = after.after_power_cut(lambda most: 0)
        after.file(segment).data[100] ^= 1
        assert await first_letters(tmp_path, after) == [b"%d" % n for n in range(8)]

    run(test())


def test_a_file_that_names_the_end_is_there_before_others_go_also_where_the_log_rolls_meanwhile(tmp_path, monkeypatch):
    """Retention rolled while records were deleted: a power cut left no file at all, and the next append had none."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for n in range(3):
            await partition.append(batch(b"%d" % n))
        while_created(monkeypatch, partition.segments.active, partition.roll)
        await housekeeping.delete_records(partition, 3)
        assert [path.name for path in disk.list(partition.directory) if path.suffix == ".log"] == [
            "00000000000000000003.log"
        ]
        await log.close()

    run(test())


def test_a_deleted_segment_that_a_power_cut_brings_back_torn_is_no_damage(tmp_path):
    """Without a checkpoint every file was read, those before the log start offset too: the partition was offline."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for n in range(4):
            partition.config = TRUSTING if n == 0 else TOPIC
            await partition.append(batch(b"%d" % n * 400))
        start, deleted = partition.segments[1].base_offset, partition.segments[0].path
        await housekeeping.delete_records(partition, start)
        abandon(log)
        after = left(disk, tmp_path, checkpoint="lost")
        after.write_file(deleted, bytes(300))
        assert await first_letters(tmp_path, after) == [b"%d" % n for n in range(start, 4)]

    run(test())


def test_the_journal_speaks_no_more_of_a_partition_that_is_deleted(tmp_path):
    """Records were deleted at the same time, and a checkpoint was taken in between: no start went on after that."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"0"))
        async with partition.leaving:
            of_records = asyncio.ensure_future(housekeeping.delete_records(partition, 1))
            await asyncio.sleep(0)
            of_it_all = asyncio.ensure_future(log.delete_partition(TP))
            await asyncio.sleep(0)
        with pytest.raises(StorageError, match="deleted"):
            await of_records
        await of_it_all
        await log.checkpoint()
        abandon(log)
        log = await open_log(tmp_path, disk=disk.after_kill())
        assert not log.partitions
        await log.close()

    run(test())


def test_a_file_that_a_start_removes_does_not_come_back(tmp_path):
    """Its deletion was not synced where nothing else had changed; without a checkpoint its name was the end of the log,
    and offsets were missing."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"0"))
        await log.close()
        disk.write_file(tmp_path / str(TP) / "00000000000000000003.log", b"")
        disk.sync_directory(tmp_path / str(TP))
        log = await open_log(tmp_path, disk=disk)
        await log.close()
        after = disk.after_power_cut(lambda most: 0)
        after.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].log_end_offset == 1
        await log.close()

    run(test())


def test_no_file_names_an_end_that_is_not_durable(tmp_path, monkeypatch):
    """While records were deleted others were on their way, and the file behind these was made: without a checkpoint the
    log went on there, and offsets were missing."""
    disk, written = SimulatedDisk(tmp_path), threading.Event()

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for n in range(3):
            await partition.append(batch(b"%d" % n))

        def append_and_roll():
            partition.shared.writer._thread.run(written.wait, lambda error: None)
            partition.append(batch(b"3"))
            partition.roll()

        while_created(monkeypatch, partition.segments.active, append_and_roll)
        await housekeeping.delete_records(partition, 3)
        after = left(disk, tmp_path, checkpoint="lost")
        written.set()
        abandon(log)
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].log_end_offset == 3
        await log.close()

    run(test())


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "going"])
def test_a_segment_that_retention_takes_while_a_checkpoint_counts_it(tmp_path, monkeypatch, gone):
    """It was not synced any more, nor was its deletion: a power cut brought its beginning back, and the partition was
    offline."""
    disk, counted, deleted = SimulatedDisk(tmp_path), threading.Event(), threading.Event()
    unlink = disk.unlink

    def unlink_later(path):
        deleted.wait()
        unlink(path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"0" * 100))
        await log.checkpoint()
        await partition.append(batch(b"1" * 100))
        first = partition.segments.active
        log._checkpoints._threads.run(counted.wait)  # its own comes after this
        checkpoint = asyncio.ensure_future(log.checkpoint())
        while not log._checkpoints.running:
            await asyncio.sleep(0)
        await housekeeping.delete_records(partition, 2)
        if not gone:
            monkeypatch.setattr(disk, "unlink", unlink_later)
        retention = asyncio.ensure_future(housekeeping.enforce_retention(partition))
        while len(partition.segments) > 1 or partition.segments[0].base_offset == 0:
            await asyncio.sleep(0)
        if gone:
            await retention
        else:
            partition.segments.files.forget(first)  # as where many others are open
        counted.set()
        await checkpoint
        after = disk.after_power_cut(lambda most: 0)
        deleted.set()
        await retention
        abandon(log)
        assert await first_letters(tmp_path, after) == []

    run(test())


def test_a_partition_that_is_deleted_and_created_again_with_its_topics_id(tmp_path):
    """As partitions are that a topic could not be given, at the next try: the checkpoint's words of the deleted one
    were held to be the new one's, which was offline as damaged.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"old" * 100))
        await log.checkpoint()
        await log.delete_partition(TP)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"new"))
        abandon(log)
        assert await first_letters(tmp_path, disk.after_kill()) == [b"n"]

    run(test())


@pytest.mark.parametrize("trusted", [False, True])
def test_deleted_markers_have_ended_their_transactions(tmp_path, trusted):
    """The checkpoint's word was the last one where the segments since were deleted: transactions that had ended were
    open for ever, readers of committed records read nothing more, and sequences that followed were refused.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(sequenced(b"a" * 500, sequence=0, transactional=True))
        await log.checkpoint()
        partition.config = TRUSTING if trusted else TOPIC
        await partition.append_marker(1, 0, commit=True, coordinator_epoch=0)
        await partition.append(sequenced(b"b" * 500, sequence=1, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        partition.config = TOPIC
        await partition.append(batch(b"c" * 900))
        await housekeeping.delete_records(partition, 4)
        abandon(log)
        log = await open_log(tmp_path, disk=disk.after_kill())
        partition = log.partitions[TP]
        assert (partition.log_start_offset, partition.last_stable_offset, partition.log_end_offset) == (4, 5, 5)
        assert [value[:1] for value in await values(partition, committed_only=True)] == [b"c"]
        known = partition.producer(1)
        assert (known and known.last_sequence) == (None if trusted else 1)  # trusted: no journal tells
        await partition.append(sequenced(b"d", sequence=2, transactional=True))
        await log.close()

    run(test())


@pytest.mark.parametrize("changes", [0, 1])
def test_damage_of_records_that_are_deleted_is_none(tmp_path, changes):
    """The last segment of the checkpoint's words counted, also where others that hold the log start follow it: the
    partition was offline, and a repair found nothing to cut.
    """
    disk, segment = SimulatedDisk(tmp_path), tmp_path / "orders-0" / "00000000000000000000.log"

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"a" * 500))
        await log.checkpoint()
        await partition.append(batch(b"b" * 900))
        await housekeeping.delete_records(partition, 1)
        abandon(log)
        after = disk.after_power_cut(lambda most: min(most, changes))  # the deletion of the file is not durable
        del after.file(segment).data[100:]
        assert await first_letters(tmp_path, after) == [b"b"]

    run(test())


def test_a_producer_that_had_expired_stays_so_where_the_checkpoint_is_lost(tmp_path):
    """Compaction left a record of its first batch and nothing of its last: it was expected to go on from the first."""
    disk, clock = SimulatedDisk(tmp_path), ManualClock()
    config = LogConfig(producer_id_expiration_ms=60_000)
    compacting = msgspec.structs.replace(TOPIC, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)

    async def test():
        log = await open_log(tmp_path, disk=disk, config=config, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, compacting)
        now = clock.now_ms()
        await partition.append(
            batch(b"kept", keys=[b"a"], timestamp=now, producer_id=1, producer_epoch=0, base_sequence=0)
        )
        await partition.append(
            batch(b"old", keys=[b"b"], timestamp=now, producer_id=1, producer_epoch=0, base_sequence=1)
        )
        await partition.append(batch(b"new", keys=[b"b"]))
        partition.roll()
        clock.advance_ms(60_001)
        await log.housekeep()
        assert await values(partition) == [b"kept", b"new"]
        await log.close()
        log = await open_log(tmp_path, disk=left(disk, tmp_path, checkpoint="lost"), config=config, clock=clock)
        partition = log.partitions[TP]
        partition.config = compacting
        await partition.append(batch(b"next", keys=[b"c"], producer_id=1, producer_epoch=0, base_sequence=2))
        assert await values(partition) == [b"kept", b"new", b"next"]
        await log.close()

    run(test())


def test_a_partition_that_only_its_directory_tells_of_is_durable_once_it_takes_records(tmp_path):
    """A kill came before the journal told of it, and the checkpoint was lost; a power cut then took its topic id."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        await log.close()
        create_files(disk, tmp_path / str(TP), TOPIC_ID)
        after = left(disk, tmp_path, checkpoint="lost")
        log = await open_log(tmp_path, disk=after)
        log.partitions[TP].config = TOPIC
        await log.partitions[TP].append(batch(b"kept"))
        await log.close()
        after = after.after_power_cut(lambda most: 0)
        after.unlink(tmp_path / "checkpoint")
        assert await first_letters(tmp_path, after) == [b"k"]

    run(test())


def test_a_deletion_is_one_whichever_kill_and_power_cut_come_amid_it(tmp_path):
    """The checkpoint was lost, a kill came amid the removal of the files, and the next start emptied the journal: a
    power cut then brought the topic back.
    """

    async def test():
        for changes in range(12):
            disk = SimulatedDisk(tmp_path)
            log = await open_log(tmp_path, disk=disk)
            partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
            await partition.append(batch(b"v"))
            await log.close()
            log = await open_log(tmp_path, disk=disk)  # its journal does not know the partition's name
            await log.delete_partition(TP)
            abandon(log)
            after = disk.after_power_cut(lambda most: 0)
            after.unlink(tmp_path / "checkpoint")
            after.power_off_after(changes)
            with contextlib.suppress(StorageError, OSError):
                abandon(await open_log(tmp_path, disk=after))
            after = after.after_kill()
            abandon(await open_log(tmp_path, disk=after))
            after = after.after_power_cut(lambda most: 0)
            log = await open_log(tmp_path, disk=after)
            assert not log.partitions, f"killed after {changes} changes of the disk"
            await log.close()

    run(test())


@pytest.mark.parametrize("covered", [True, False], ids=["checkpoint", "no checkpoint since"])
def test_a_committed_transaction_of_which_a_segment_lacks_whole_batches_is_damage(tmp_path, covered):
    """All but its marker was trusted to the page cache. The segment ends with a batch, and the next one begins later:
    that more was promised, nothing but the marker in the journal says.
    """
    disk, segment = SimulatedDisk(tmp_path), tmp_path / "orders-0" / "00000000000000000000.log"
    topic = TopicConfig(segment_bytes=2_000, flush_messages=1_000_000)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        if covered:
            await log.checkpoint()
        await partition.append(sequenced(b"0" * 500, sequence=0, transactional=True))
        first_batch = partition.size_bytes
        for n in range(1, 12):
            await partition.append(sequenced(b"%d" % (n % 10) * 500, sequence=n, transactional=True))
        await partition.append_marker(1, 0, commit=True, coordinator_epoch=0)
        assert len(partition.segments) == 4
        abandon(log)
        after = disk.after_kill()
        after.file(segment).truncate(first_batch)
        log = await open_log(tmp_path, disk=after)
        error = log.partitions[TP].error
        assert error is not None
        assert f"{segment.parent}: ends at offset 1, the journal goes on to 13" in str(error)
        assert len([path for path in after.list(segment.parent) if path.suffix == ".log"]) == 4
        await log.close()

    run(test())


@pytest.mark.parametrize("changes", range(20))
def test_what_a_start_that_was_killed_removed_does_not_come_back_with_a_power_cut(tmp_path, changes):
    """A repair of the partition, which is damaged by then, would take it for its own."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TRUSTING)
        await partition.append(batch(b"a" * 900))
        await log.checkpoint()
        for n in range(2):
            await partition.append(batch(b"%d" % n * 900))
        _, lost, removed = [segment.path for segment in partition.segments]
        abandon(log)
        after = disk.after_kill()
        after.unlink(lost)
        after.sync_directory(lost.parent)
        after.power_off_after(changes)
        with contextlib.suppress(StorageError, OSError):
            abandon(await open_log(tmp_path, disk=after))
        after = after.after_kill()
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].log_end_offset == 1
        abandon(log)
        assert not after.after_power_cut(lambda most: 0).exists(removed)

    run(test())


@pytest.mark.parametrize("bit", [0, 38, 61, 62, 63])
@pytest.mark.parametrize("rolled", [0, 1, 4])
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_an_offset_that_flips_before_it_is_in_a_checkpoint_is_not_believed(tmp_path, number, rolled, bit):
    """Of records that only the page cache was trusted with: one that is too large left a gap, as compaction does, or
    readers met it; one that is too small took all that follows with it.
    """
    disk, clock = SimulatedDisk(tmp_path), ManualClock()

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TRUSTING)
        await partition.append(batch(b"v0"))
        await log.checkpoint()
        places = {}
        for n in range(1, 6):
            if n == rolled:
                partition.roll()
            places[n] = partition.segments.active.path, partition.segments.active.size
            await partition.append(batch(b"v%d" % n))
        abandon(log)
        after = disk.after_kill()
        path, position = places[number]
        after.file(path).data[position + bit // 8] ^= 128 >> bit % 8
        is_told = number < 5  # else nothing tells it from a torn end
        log = await open_log(tmp_path, disk=after)
        partition = log.partitions[TP]
        assert (partition.error is not None) == is_told
        if is_told:
            assert "expected" in str(partition.error)
            abandon(log)
            after = after.after_kill()
            found = await repair(tmp_path, TP, clock=clock, mend=True, disk=after)
            assert [(each.path, each.position, each.lost_bytes) for each in found.damages] == [(path, position, 0)]
            log = await open_log(tmp_path, disk=after)
            partition = log.partitions[TP]
        assert await values(partition) == [b"v%d" % n for n in range(6 if is_told else 5)]
        assert partition.segments.active.is_dense
        assert (await partition.append(batch(b"next"))).base_offset == partition.log_end_offset - 1 == 5 + is_told
        abandon(log)

    run(test())
