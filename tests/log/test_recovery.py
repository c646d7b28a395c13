"""What a start finds: torn ends are cut, damage is told, never skipped. Whole histories are in the model tests."""

import contextlib
import errno
import os
import shutil
import threading
import tracemalloc
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest
import structlog

from mainstem.core import MainstemError, ManualClock, TopicPartition
from mainstem.log import CorruptFile, Disk, LogConfig, StorageError, SystemDisk, TopicConfig, housekeeping
from mainstem.log.checkpoint import decode_partition, load
from mainstem.log.disk import SystemFile
from mainstem.log.journal import DELETE, NAMES, PAGE, Entry, encode_frame
from mainstem.log.segment import LOG, file_name
from tests.log.simulated_disk import FileNode, SimulatedDisk, SimulatedFile, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, read_all, run, sequenced, values

TOPIC = TopicConfig(segment_bytes=4_000, index_interval_bytes=500)


async def write(
    path: Path, *, count: int = 30, close: bool, checkpoint_after: int = -1, disk: Disk | None = None
) -> list[bytes]:
    """A directory with `count` acknowledged records; closed, or left behind as by a crash."""
    log = await open_log(path, disk=disk)
    partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
    written = []
    for n in range(count):
        content = b"%03d" % n + b"v" * 200
        await partition.append(batch(content, producer_id=1, producer_epoch=0, base_sequence=n))
        written.append(content)
        if n == checkpoint_after:
            await log.checkpoint()
    if close:
        await log.close()
    else:
        abandon(log)
    return written


async def try_to_read(path: Path, *, disk: Disk | None = None) -> list[bytes]:
    """What a consumer gets; StorageError or CorruptFile where something is wrong."""
    log = await open_log(path, disk=disk)
    try:
        if TP not in log.partitions:
            return []
        log.partitions[TP].config = TOPIC
        return await values(log.partitions[TP])
    finally:
        await log.close()


def last_segment(path: Path) -> Path:
    return max((path / "orders-0").glob("*.log"))


def test_a_torn_end_is_cut_off(tmp_path):
    written = run(write(tmp_path, close=False))
    with last_segment(tmp_path).open("ab") as file:
        file.write(batch(b"never promised", base_offset=30)[:-3])
    with structlog.testing.capture_logs() as logs:
        assert run(try_to_read(tmp_path)) == written
    assert [entry["event"] for entry in logs] == ["torn_tail_truncated"]
    assert run(try_to_read(tmp_path)) == written


def test_a_whole_batch_that_was_not_promised_may_stay(tmp_path):
    written = run(write(tmp_path, close=False))
    with last_segment(tmp_path).open("ab") as file:
        file.write(batch(b"a surprise", base_offset=30, leader_epoch=0))
    assert run(try_to_read(tmp_path)) == [*written, b"a surprise"]


def test_the_journal_brings_back_what_the_segments_lost(tmp_path):
    written = run(write(tmp_path, close=False))
    for path in (tmp_path / "orders-0").iterdir():
        if path.suffix != ".metadata":
            path.unlink()
    assert run(try_to_read(tmp_path)) == written


def test_indexes_are_rebuilt(tmp_path):
    written = run(write(tmp_path, close=True))
    for path in (tmp_path / "orders-0").glob("*index"):
        path.write_bytes(b"nonsense")
    with structlog.testing.capture_logs() as logs:
        assert run(try_to_read(tmp_path)) == written
    assert {entry["event"] for entry in logs} == {"index_rebuilt"}


def test_indexes_that_the_disk_does_not_give_are_rebuilt(tmp_path):
    """They are hints, and took their partition offline."""

    class BadDisk(SystemDisk):
        def read_file(self, path):
            if path.suffix in (".index", ".timeindex"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().read_file(path)

    written = run(write(tmp_path, close=True))
    with structlog.testing.capture_logs() as logs:
        assert run(try_to_read(tmp_path, disk=BadDisk())) == written
    assert {entry["event"] for entry in logs} == {"index_rebuilt"}


def test_the_look_ups_of_a_segment_that_was_sealed_after_a_checkpoint_are_not_rebuilt(tmp_path):
    """Its last entry was in the checkpoint and in no file: the first read after a start read all of the segment."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for n in range(10):
            await partition.append(batch(b"v" * 200, timestamp=1_700_000_000_000 + n))
        await log.checkpoint()
        partition.roll()
        await log.close()

    run(test())
    with structlog.testing.capture_logs() as logs:
        assert run(try_to_read(tmp_path)) == [b"v" * 200] * 10
    assert logs == []


@pytest.mark.parametrize("checkpoint_after", [-1, 20])
def test_without_checkpoint_and_journal_the_segments_are_read_whole(tmp_path, checkpoint_after):
    written = run(write(tmp_path, close=True, checkpoint_after=checkpoint_after))
    for name in ("checkpoint", "journal.0", "journal.1"):
        (tmp_path / name).unlink()

    async def check():
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert await values(partition) == written
        assert partition.producer(1).last_sequence == 29
        await log.close()

    run(check())


def test_without_a_checkpoint_a_hole_is_damage_and_a_torn_end_is_not(tmp_path):
    written = run(write(tmp_path, close=True))
    for name in ("checkpoint", "journal.0", "journal.1"):
        (tmp_path / name).unlink()
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    path = last_segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert run(try_to_read(tmp_path)) == written[:-1]
    path = last_segment(copy)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="bad CRC"):
        run(try_to_read(copy))


def test_a_missing_segment_is_damage_of_its_partition_only(tmp_path):
    run(write(tmp_path, close=True))
    first = min((tmp_path / "orders-0").glob("*.log"))
    first.unlink()

    async def check():
        log = await open_log(tmp_path)
        other = await log.create_partition(TopicPartition("other", 0), UUID(int=8), TOPIC)
        await other.append(batch(b"fine"))
        partition = log.partitions[TP]
        with pytest.raises(StorageError, match=r"missing, \d+ bytes were durable") as caught:
            await partition.read(0, 100)
        assert "restore the file" in caught.value.hint
        with pytest.raises(StorageError):
            partition.append(batch(b"v"))
        await log.close()

    run(check())
    run(check_offline_again(tmp_path))


async def check_offline_again(path):
    log = await open_log(path)
    assert log.partitions[TP].error is not None
    await log.close()


def test_a_restored_file_brings_the_partition_back(tmp_path):
    written = run(write(tmp_path, close=True))
    first = min((tmp_path / "orders-0").glob("*.log"))
    kept = first.read_bytes()
    first.write_bytes(kept[:-1])
    with pytest.raises(StorageError):
        run(try_to_read(tmp_path))
    first.write_bytes(kept)
    assert run(try_to_read(tmp_path)) == written


def test_what_is_acknowledged_after_the_checkpoint_outlives_damage_before_it(tmp_path):
    """The partition is offline, but the journal's part is not thrown away: once the file is restored all is there."""
    written = run(write(tmp_path, close=False, checkpoint_after=15))
    first = min((tmp_path / "orders-0").glob("*.log"))
    kept = first.read_bytes()
    first.write_bytes(kept[:-1])
    with pytest.raises(StorageError):
        run(try_to_read(tmp_path))
    first.write_bytes(kept)
    assert run(try_to_read(tmp_path)) == written


def test_a_new_partition_that_trusts_the_page_cache_survives_a_kill(tmp_path):
    """Nothing of its batches is in the journal, and no checkpoint has seen it: its first segment was taken for a
    leftover once, and deleted."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=100))
        await partition.append(batch(b"trusting"))
        abandon(log)
        again = await open_log(tmp_path)
        assert await values(again.partitions[TP]) == [b"trusting"]
        await again.close()

    run(test())


@pytest.mark.parametrize("flush_messages", [1, 100])
def test_segments_that_were_deleted_after_the_checkpoint_are_not_missed(tmp_path, flush_messages):
    """The journal goes on in the next segment, and the size of the one before it was asked for."""

    async def test():
        log = await open_log(tmp_path)
        topic = TopicConfig(segment_bytes=1_000, flush_messages=flush_messages)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        await partition.append(batch(b"a" * 500))
        await log.checkpoint()
        for n in range(5):
            await partition.append(batch(b"%d" % n + b"b" * 500))
        partition.config = TopicConfig(segment_bytes=1_000)
        await partition.append(batch(b"last"))
        await housekeeping.delete_records(partition, 5)
        abandon(log)
        again = await open_log(tmp_path)
        assert await values(again.partitions[TP]) == [b"4" + b"b" * 500, b"last"]
        await again.close()

    run(test())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("before", [3, 5, 6, 8])
def test_a_power_cut_after_records_were_deleted_that_no_sync_had_reached(tmp_path, before, seed):
    """The deletion was durable, what was deleted was not: the log ended before its start, and no start went on with
    any topic, ever.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        topic = TopicConfig(segment_bytes=1_000, flush_messages=1_000)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        await log.checkpoint()
        for n in range(8):  # three in a segment
            await partition.append(batch(b"%d" % n + b"v" * 250))
        await housekeeping.delete_records(partition, before)
        abandon(log)
        lost = disk.after_power_cut(adversary(seed) if seed else lambda most: 0)
        log = await open_log(tmp_path, disk=lost)
        partition = log.partitions[TP]
        assert partition.log_start_offset == before
        assert before <= partition.log_end_offset <= 8
        left = [b"%d" % n for n in range(before, partition.log_end_offset)]
        assert [value[:1] for value in await values(partition)] == left
        assert (await partition.append(batch(b"next"))).base_offset == before + len(left)
        await log.close()

    run(test())


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("before", [1, 3, 4, 8])
def test_a_power_cut_after_records_were_deleted_loses_nothing_that_is_left(tmp_path, before, seed, checkpoint):
    """The segment's name was not on the disk yet, and was taken for one that was deleted: what counts behind the
    deleted records had no file, and where nothing did no start succeeded.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=1_000))
        for n in range(8):  # three in a segment
            await partition.append(batch(b"%d" % n + b"v" * 250))
        await housekeeping.delete_records(partition, before)
        abandon(log)
        lost = disk.after_power_cut(adversary(seed) if seed else lambda most: 0)
        if checkpoint == "lost":
            lost.unlink(tmp_path / "checkpoint")
        for _ in range(2):
            log = await open_log(tmp_path, disk=lost)
            partition = log.partitions[TP]
            assert (partition.log_start_offset, partition.log_end_offset) == (before, 8)
            assert [value[:1] for value in await values(partition)] == [b"%d" % n for n in range(before, 8)]
            await log.close()

    run(test())


@pytest.mark.parametrize("before", [2, 3, 5, 8])
def test_a_kill_after_records_were_deleted_that_the_checkpoint_has_not_seen(tmp_path, before):
    """Nothing led to the segment that the log now begins in, and it was taken for a leftover."""

    async def test():
        log = await open_log(tmp_path)
        topic = TopicConfig(segment_bytes=1_000, flush_messages=1_000)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        await partition.append(batch(b"0" + b"v" * 250))
        await log.checkpoint()
        for n in range(1, 8):  # three in a segment
            await partition.append(batch(b"%d" % n + b"v" * 250))
        await housekeeping.delete_records(partition, before)
        abandon(log)
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert [value[:1] for value in await values(partition)] == [b"%d" % n for n in range(before, 8)]
        assert (partition.log_start_offset, partition.log_end_offset) == (before, 8)
        await log.close()

    run(test())


async def with_a_part_that_only_its_segment_has(path: Path, disk: SimulatedDisk, *, checkpoint: bool) -> list[bytes]:
    """Acknowledged records of which the journal has the last ones alone: the topic trusted the page cache before."""
    log = await open_log(path, disk=disk)
    partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
    if checkpoint:
        await log.checkpoint()
    written = [b"%d" % n + b"v" * 200 for n in range(10)]
    partition.config = msgspec.structs.replace(TOPIC, flush_messages=1_000)
    for content in written[:6]:
        await partition.append(batch(content))
    partition.config = TOPIC
    for content in written[6:]:
        await partition.append(batch(content))
    await housekeeping.delete_records(partition, 1)
    abandon(log)
    return written[1:]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_partition_that_a_start_finds_damaged_loses_nothing_of_its_journal(tmp_path, checkpoint):
    """The first start told of the damage and emptied the journal: the second one took what lay behind the damage for
    a torn end, and gave its offsets again.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        written = await with_a_part_that_only_its_segment_has(tmp_path, disk, checkpoint=checkpoint)
        found = disk.after_kill()
        segment = tmp_path / "orders-0" / "00000000000000000000.log"
        copy = bytes(found.file(segment).data[: 6 * len(batch(written[0]))])
        found.file(segment).data[700] ^= 1
        for _ in range(3):
            log = await open_log(tmp_path, disk=found)
            assert log.partitions[TP].error is not None
            await log.close()
        assert found.file(segment).data[:700] == copy[:700]
        found.file(segment).data = bytearray(copy)  # a copy from before the last records
        log = await open_log(tmp_path, disk=found)
        partition = log.partitions[TP]
        assert partition.error is None
        assert await values(partition) == written
        assert (partition.log_start_offset, partition.log_end_offset) == (1, 10)
        await log.close()
        log = await open_log(tmp_path, disk=found)
        assert await values(log.partitions[TP]) == written
        assert not [path for path in found.list(tmp_path / "orders-0") if path.suffix == ".held"]
        await log.close()

    run(test())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("changes", range(0, 24, 2))
def test_a_power_cut_while_a_damaged_partitions_journal_is_put_aside(tmp_path, changes, seed):
    disk = SimulatedDisk(tmp_path)

    def flip(file: FileNode) -> None:
        file.data[700] ^= 1
        file.sync()

    async def test():
        written = await with_a_part_that_only_its_segment_has(tmp_path, disk, checkpoint=True)
        found = disk.after_power_cut(lambda most: 0)
        segment = tmp_path / "orders-0" / "00000000000000000000.log"
        flip(found.file(segment))
        found.power_off_after(changes)
        with contextlib.suppress(OSError, StorageError):
            abandon(await open_log(tmp_path, disk=found))
        found = found.after_power_cut(adversary(seed))
        log = await open_log(tmp_path, disk=found)
        assert log.partitions[TP].error is not None
        await log.close()
        flip(found.file(segment))
        log = await open_log(tmp_path, disk=found)
        assert await values(log.partitions[TP]) == written
        await log.close()

    run(test())


@pytest.mark.parametrize(("call", "error"), [("write", errno.ENOSPC), ("create", errno.ENFILE), ("write", errno.EIO)])
def test_what_a_start_cannot_write_it_does_not_forget(tmp_path, call, error):
    """The partition was offline and the journal empty: the next start gave acknowledged records' offsets again."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await log.checkpoint()
        for n in range(10):
            await partition.append(batch(b"%d" % n))
        abandon(log)
        found = disk.after_power_cut(lambda most: 0)
        found.refuse(call, error, ".log")
        if error == errno.EIO:  # of that file alone
            log = await open_log(tmp_path, disk=found)
            assert log.partitions[TP].error is not None
            await log.close()
        else:
            with pytest.raises(StorageError, match=os.strerror(error)) as caught:
                await open_log(tmp_path, disk=found)
            assert "start again" in caught.value.hint
        found = found.after_power_cut(lambda most: 0)
        log = await open_log(tmp_path, disk=found)
        assert await values(log.partitions[TP]) == [b"%d" % n for n in range(10)]
        await log.close()

    run(test())


def test_the_checkpoint_says_of_a_damaged_partition_where_it_ended_and_what_is_deleted_since(tmp_path):
    """After a deletion it said that the log ends where the damage begins."""
    written = run(write(tmp_path, close=False, checkpoint_after=29))
    first = min((tmp_path / "orders-0").glob("*.log"))
    kept = first.read_bytes()

    async def delete():
        log = await open_log(tmp_path)
        await housekeeping.delete_records(log.partitions[TP], 3)
        abandon(log)

    run(delete())
    first.write_bytes(kept[:-1])
    run(check_offline_again(tmp_path))
    words = decode_partition(load(SystemDisk(), tmp_path).partitions[0])
    assert (words.log_start_offset, words.log_end_offset) == (3, 30)
    first.write_bytes(kept)
    assert run(try_to_read(tmp_path)) == written[3:]


def test_damage_that_is_found_without_a_checkpoint_stays_damage(tmp_path):
    """The second start has a checkpoint, which says nothing of the partition: it cut off what lay behind the damage."""
    written = run(write(tmp_path, close=True))
    for name in ("checkpoint", "journal.0", "journal.1"):
        (tmp_path / name).unlink()
    path = last_segment(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"?" + whole[101:])
    for _ in range(2):
        run(check_offline_again(tmp_path))
    path.write_bytes(whole)
    assert run(try_to_read(tmp_path)) == written


def test_an_unfinished_creation_leaves_nothing(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        disk.power_off_after(2)  # the directory and its topic id are made, the journal never hears of them
        with pytest.raises(StorageError):
            await log.create_partition(TP, TOPIC_ID, TOPIC)
        abandon(log)
        again = await open_log(tmp_path, disk=disk.after_kill())
        assert dict(again.partitions) == {}
        await again.create_partition(TP, TOPIC_ID, TOPIC)
        await again.close()

    run(test())


def test_what_a_power_cut_leaves_of_a_deleted_topic_does_not_stand_in_the_way_of_the_next(tmp_path):
    """Its id was gone and a segment was not: a topic of that name could not be created any more."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"v"))
        await log.checkpoint()
        disk.refuse("rename", errno.EIO, "orders-0")  # the deletion comes so far, and no further
        with pytest.raises(StorageError, match="could not be taken away"):
            await log.delete_partition(TP)
        abandon(log)
        after = disk.after_kill()
        after.unlink(tmp_path / "orders-0" / "partition.metadata")
        log = await open_log(tmp_path, disk=after)
        assert not after.exists(tmp_path / "orders-0")
        await log.create_partition(TP, UUID(int=8), TOPIC)
        await log.close()

    run(test())


@pytest.mark.parametrize("change", ["records", "topic"])
def test_a_power_cut_amid_a_start_that_has_done_what_only_the_page_cache_told_it(tmp_path, change):
    """A kill left a round written and not synced; a start deleted files by it, and then it was gone."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(segment_bytes=100))
        for content in (b"1", b"2", b"3"):
            await partition.append(batch(content))
        await log.checkpoint()
        disk.power_off_after(1)  # the round is written
        deletion = housekeeping.delete_records(partition, 2) if change == "records" else log.delete_partition(TP)
        with pytest.raises(StorageError):
            await deletion
        abandon(log)
        after = disk.after_kill()
        after.refuse("rename", errno.ENOSPC, "checkpoint")  # what the round deletes is deleted
        with pytest.raises(StorageError):
            await open_log(tmp_path, disk=after)
        log = await open_log(tmp_path, disk=after.after_power_cut(lambda most: 0))
        if TP in log.partitions:
            assert (await values(log.partitions[TP]))[-1] == b"3"
        await log.close()

    run(test())


@pytest.mark.parametrize("flush_messages", [1, 1_000])
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(tmp_path, flush_messages):
    """The start found it there, a second sync said that all was well, and the journal was emptied. What was in no
    journal counted as durable then, and the partition was damaged after a power cut.
    """
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=flush_messages))
        await log.checkpoint()
        await partition.append(batch(b"v"))
        disk.refuse("sync", errno.EIO, ".log")
        with pytest.raises(StorageError):
            await log.checkpoint()
        abandon(log)
        after = disk.after_kill()
        abandon(await open_log(tmp_path, disk=after))
        assert await try_to_read(tmp_path, disk=after.after_power_cut(lambda most: 0)) == [b"v"]

    run(test())


def test_a_start_does_not_act_on_a_round_whose_sync_has_failed_before_it_is_durable(tmp_path):
    """It removed the partition's directory, and a power cut took the round that said so: the partition was damaged."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"v"))
        await log.checkpoint()
        disk.refuse("sync", errno.EIO, "journal")
        with pytest.raises(StorageError):
            await log.delete_partition(TP)
        abandon(log)
        after = disk.after_kill()
        after.refuse("write", errno.EIO, "checkpoint")
        with pytest.raises((StorageError, OSError)):
            await open_log(tmp_path, disk=after)
        again = after.after_power_cut(lambda most: 0)
        log = await open_log(tmp_path, disk=again)
        assert not log.partitions
        await log.close()

    run(test())


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_record_that_looks_like_a_round_of_the_journal_changes_nothing(tmp_path, with_checkpoint):
    """Of a round that a power cut has torn its pages are there, and what a client sent lies on one of them.

    The start took it for a round that was missing its predecessors; without the checkpoint, for the last one.
    """
    disk = SimulatedDisk(tmp_path)
    made_up = b"".join(encode_frame(2**62, 2**62, [Entry(DELETE, TOPIC_ID, TP.partition)]))
    hostile = next(
        made
        for before in range(PAGE)
        if (77 + (made := batch(bytes(before) + made_up + bytes(1 << 16))).index(made_up)) % PAGE == 0
    )

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v"))
        frame, end = log._writer._journal.size, partition.segments.active.size
        disk.refuse("sync", errno.EIO, "journal")
        with pytest.raises(StorageError):
            await partition.append(hostile)
        abandon(log)
        after = disk.after_kill()
        after.file(tmp_path / NAMES[0]).data[frame : frame + PAGE] = bytes(PAGE)
        del after.file(tmp_path / "orders-0" / "00000000000000000000.log").data[end:]
        journal = after.read_file(tmp_path / NAMES[0])
        assert any(journal[page : page + len(made_up)] == made_up for page in range(0, len(journal), PAGE))
        if not with_checkpoint:
            after.unlink(tmp_path / "checkpoint")
        assert await try_to_read(tmp_path, disk=after) == [b"v"]

    run(test())


def test_readers_notice_what_a_power_cut_took_while_the_partition_was_damaged(tmp_path):
    """The start that found it restored was clean, and went on in the epoch of the records that were gone (KIP-320)."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"kept"))
        await log.checkpoint()
        partition.config = TopicConfig(flush_messages=1_000)
        await partition.append(batch(b"gone"))
        epoch = partition.leader_epoch
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)
        path = tmp_path / "orders-0" / "00000000000000000000.log"
        whole = after.read_file(path)
        after.open(path).truncate(10)
        log = await open_log(tmp_path, disk=after)
        assert log.partitions[TP].error is not None
        await log.close()
        after.open(path).write([whole], 0)
        log = await open_log(tmp_path, disk=after)
        assert await values(log.partitions[TP]) == [b"kept"]
        assert log.partitions[TP].leader_epoch > epoch
        await log.close()

    run(test())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_directories_are_synced_in_threads(tmp_path, monkeypatch, checkpoint):
    """One after the other, 2,000 of them took a start half a minute where a sync takes 3 ms."""
    disk, synced = SimulatedDisk(tmp_path), []

    def sync_directory(path, before=disk.sync_directory):
        synced.append((path.name, threading.current_thread().name.partition("_")[0]))
        before(path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partitions = [await log.create_partition(TopicPartition("many", n), TOPIC_ID, TOPIC) for n in range(3)]
        if checkpoint:
            await log.checkpoint()
        for partition in partitions:
            await partition.append(batch(b"v"))
        abandon(log)
        monkeypatch.setattr(disk, "sync_directory", sync_directory)
        log = await open_log(tmp_path, disk=disk)
        assert {each for each in synced if each[0].startswith("many-")} == {(f"many-{n}", "log-sync") for n in range(3)}
        await log.close()

    run(test())


def test_a_strange_directory_is_left_alone(tmp_path):
    run(write(tmp_path, close=True))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes-1").mkdir()
    (tmp_path / "notes-1" / "00000000000000000000.log").write_bytes(b"x")
    with structlog.testing.capture_logs() as logs:
        run(try_to_read(tmp_path))
    assert [entry["event"] for entry in logs] == ["directory_ignored", "directory_ignored"]
    assert (tmp_path / "notes-1" / "00000000000000000000.log").exists()


@pytest.mark.parametrize("copy", ["a-copy-0", "zz-copy-0"])
def test_a_copy_of_a_partition_is_not_taken_for_it(tmp_path, copy):
    """What the journal had of the partition was brought to the copy; the start then failed, with an empty journal."""
    written = run(write(tmp_path, close=False, checkpoint_after=9))
    for path in (tmp_path / "orders-0").glob("*"):
        if path.suffix != ".metadata" and path != min((tmp_path / "orders-0").glob("*.log")):
            path.unlink()  # what a power cut may leave of what was written since the checkpoint
    shutil.copytree(tmp_path / "orders-0", tmp_path / copy)
    for _ in range(2):
        with structlog.testing.capture_logs() as logs:
            assert run(try_to_read(tmp_path)) == written
        (told,) = [entry for entry in logs if entry["event"] == "directory_ignored"]
        assert told["reason"] == "its partition is in orders-0"
    assert len(list((tmp_path / copy).glob("*.log"))) == 1

    async def make_the_topic():
        log = await open_log(tmp_path)
        try:
            await log.create_partition(TopicPartition(copy.removesuffix("-0"), 0), UUID(int=8), TOPIC)
        finally:
            await log.close()

    with pytest.raises(StorageError, match="found a copy of a partition of topic id"):
        run(make_the_topic())
    assert len(list((tmp_path / copy).glob("*.log"))) == 1


def test_a_partition_that_was_moved_away_is_there_when_it_is_moved_back(tmp_path):
    """Nobody was served meanwhile."""
    written = run(write(tmp_path, close=False, checkpoint_after=9))
    (tmp_path / "orders-0").rename(tmp_path / "old-orders-0")
    for _ in range(2):
        with pytest.raises(StorageError, match="orders-0"):
            run(try_to_read(tmp_path))
    for path in (tmp_path / "old-orders-0").iterdir():
        path.rename(tmp_path / "orders-0" / path.name)
    assert run(try_to_read(tmp_path)) == written


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_journal_that_is_gone_after_a_kill_is_told(tmp_path, name):
    written = run(write(tmp_path, close=False, checkpoint_after=9))
    kept = (tmp_path / name).rename(tmp_path.with_name(f"{tmp_path.name}-{name}"))
    with pytest.raises(CorruptFile, match=rf"{name}: expected what was acknowledged .*, found no file"):
        run(try_to_read(tmp_path))
    kept.rename(tmp_path / name)
    assert run(try_to_read(tmp_path)) == written
    (tmp_path / name).unlink()  # after a clean end nothing of it is missed
    assert run(try_to_read(tmp_path)) == written


def test_without_a_checkpoint_nobody_knows_which_of_two_is_the_copy(tmp_path):
    written = run(write(tmp_path, close=False))
    shutil.copytree(tmp_path / "orders-0", tmp_path / "a-copy-0")
    for name in ("checkpoint", *NAMES):
        (tmp_path / name).unlink()
    with pytest.raises(StorageError, match=r"orders-0: expected partition 0 of .* once, found it in a-copy-0 too"):
        run(try_to_read(tmp_path))
    shutil.rmtree(tmp_path / "a-copy-0")
    assert run(try_to_read(tmp_path)) == written


def test_a_damaged_checkpoint_is_refused_with_the_way_out(tmp_path):
    written = run(write(tmp_path, close=True))
    path = tmp_path / "checkpoint"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match="checkpoint: ") as caught:
        run(try_to_read(tmp_path))
    assert "move it away" in caught.value.hint
    path.unlink()
    assert run(try_to_read(tmp_path)) == written


@pytest.mark.parametrize("after", ["closed", "killed", "power cut"])
def test_the_way_out_of_a_damaged_checkpoint_works_in_an_old_directory_too(tmp_path, after):
    """Whoever followed the hint was told that round 1 of the journal is missing, as soon as there was more than one."""
    disk = SimulatedDisk(tmp_path)
    config = LogConfig(read_threads=1, sync_threads=1, journal_bytes=8_000)
    other, gone = TopicPartition("other", 0), TopicPartition("gone", 0)

    async def test():
        log = await open_log(tmp_path, disk=disk, config=config)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        deleted = await log.create_partition(gone, UUID(int=8), TOPIC)
        for n in range(60):
            await partition.append(batch(b"%d" % n + b"v" * 200))
            await deleted.append(batch(b"gone"))
        await log.checkpoint()
        assert log._writer._journal.generation > 3
        await log.delete_partition(gone)
        late = await log.create_partition(other, UUID(int=9), TOPIC)
        await late.append(batch(b"late"))
        await partition.append(batch(b"60"))
        await housekeeping.delete_records(partition, 5)
        await log.close() if after == "closed" else abandon(log)
        found = disk.after_power_cut(lambda most: 0) if after == "power cut" else disk.after_kill()
        found.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=found, config=config)
        assert set(log.partitions) == {TP, other}
        for each in log.partitions.values():
            each.config = TOPIC
        assert await values(log.partitions[other]) == [b"late"]
        assert [v[:2] for v in await values(log.partitions[TP])] == [b"%d" % n + b"v" * (n < 10) for n in range(5, 61)]
        assert (await log.partitions[TP].append(batch(b"goes on"))).base_offset == 61
        await log.close()
        log = await open_log(tmp_path, disk=found.after_kill(), config=config)
        assert log.recovered_cleanly
        await log.close()

    run(test())


def test_without_a_checkpoint_rounds_of_long_ago_do_not_pass_for_the_last_ones(tmp_path):
    """A full disk took back the first round after a start, and with it all rounds of that file but the other file's
    older ones: they spoke of a deleted topic of the same name, and the directory of the new one was removed.
    """
    disk = SimulatedDisk(tmp_path)

    async def fill():
        log = await open_log(tmp_path, disk=disk)
        for number in range(3):
            if number:
                await log.delete_partition(TP)
            partition = await log.create_partition(TP, UUID(int=number + 1), TOPIC)
            if number < 2:
                await log.checkpoint()  # the next topic is in the other file
        await partition.append(batch(b"kept"))
        await log.close()
        log = await open_log(tmp_path, disk=disk)
        disk.refuse("write", errno.ENOSPC, "journal")
        with pytest.raises(StorageError, match="nothing was appended"):
            await log.partitions[TP].append(batch(b"refused"))
        await log.close()
        disk.unlink(tmp_path / "checkpoint")
        return await try_to_read(tmp_path, disk=disk)

    assert run(fill()) == [b"kept"]


def test_without_a_checkpoint_aborted_transactions_are_counted_in_of_which_no_segment_is_left(tmp_path):
    """The start ended with an IndexError."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await log.checkpoint()
        await partition.append(sequenced(b"v", sequence=0, transactional=True))
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)
        await housekeeping.delete_records(partition, 2)
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)  # no name of a segment was synced
        after.unlink(tmp_path / "checkpoint")
        log = await open_log(tmp_path, disk=after)
        partition = log.partitions[TP]
        assert (partition.log_start_offset, partition.last_stable_offset, partition.log_end_offset) == (2, 2, 2)
        assert partition.open_transactions == {}
        await log.close()

    run(test())


def test_offsets_go_on_where_nothing_is_left_of_a_partition_but_its_name(tmp_path):
    """All its records were deleted, then the checkpoint was lost: the next record must not get offset 0 again."""

    async def test():
        clock = ManualClock()
        log = await open_log(tmp_path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(retention_ms=1))
        for _ in range(7):
            await partition.append(batch(b"v"))
        clock.advance_ms(5)
        await log.housekeep()
        assert (partition.log_start_offset, partition.size_bytes) == (7, 0)
        await log.close()
        for name in ("checkpoint", "journal.0", "journal.1"):
            (tmp_path / name).unlink()
        log = await open_log(tmp_path)
        assert (log.partitions[TP].log_start_offset, log.partitions[TP].log_end_offset) == (7, 7)
        assert (await log.partitions[TP].append(batch(b"next"))).base_offset == 7
        await log.close()

    run(test())


@pytest.mark.parametrize("close", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_anywhere_is_never_silent(tmp_path, how, close):
    """One flipped bit or one cut, in any file: the same records come back, or an error does.

    That holds for the journal's last frame too, which looks as every crash in the middle of a write leaves it: its
    batches are in the segment as well.
    """
    original = SimulatedDisk(tmp_path)
    written = run(write(tmp_path, disk=original, close=close, checkpoint_after=12))
    random = Random(7)
    for path in [tmp_path, tmp_path / "orders-0"]:
        for name, node in original._directory(path).entries.items():
            for _ in range(25 if isinstance(node, FileNode) and node.data else 0):
                copy = original.after_kill()
                damaged = copy.file(path / name)
                place = random.randrange(len(damaged.data))
                if how == "flip":
                    damaged.data[place] ^= 1 << random.randrange(8)
                else:
                    damaged.truncate(place)
                with contextlib.suppress(MainstemError):
                    assert run(try_to_read(tmp_path, disk=copy)) == written, f"{name}: {how} at {place}"


def test_a_start_reads_what_the_journal_holds_and_no_more(tmp_path):
    """Recovery is bounded by the journal, not by the log."""
    config = LogConfig(read_threads=1, journal_bytes=1_000_000)
    read = 0

    class CountingFile(SystemFile):
        def read(self, size, position):
            nonlocal read
            data = super().read(size, position)
            read += len(data)
            return data

    class CountingDisk(SystemDisk):
        def open(self, path, *, create=False):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
            return CountingFile(path, descriptor)

        def read_file(self, path):
            nonlocal read
            data = super().read_file(path)
            read += len(data)
            return data

    async def fill():
        log = await open_log(tmp_path, config=config)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        content = batch(b"v" * 100_000)
        for _ in range(400):
            await partition.append(content)
        abandon(log)

    async def check():
        log = await open_log(tmp_path, config=config, disk=CountingDisk())
        found = read
        assert log.partitions[TP].log_end_offset == 400
        assert len(await read_all(log.partitions[TP])) == 400
        await log.close()
        return found

    run(fill())
    journal = sum((tmp_path / name).stat().st_size for name in ("journal.0", "journal.1"))
    assert run(check()) <= 2 * journal + 100_000 < 20_000_000  # the journal, and the same bytes in the segment


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_start_needs_less_memory_than_the_journal_has_bytes(tmp_path, checkpoint):
    """It read the whole of it: with 256 MB of memory a log that had been killed while it wrote much did not start."""
    config = LogConfig(read_threads=1, journal_bytes=2**30)
    most, rounds = 8_000_000, 40

    async def fill():
        log = await open_log(tmp_path, config=config)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.checkpoint()
        content = batch(b"v" * 1_000_000)
        for _ in range(rounds):
            await partition.append(content)
        abandon(log)

    async def check():
        tracemalloc.start()
        try:
            log = await open_log(tmp_path, config=config)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert log.partitions[TP].log_end_offset == rounds
        await log.close()
        return peak

    run(fill())
    assert sum((tmp_path / name).stat().st_size for name in NAMES) > 5 * most
    if not checkpoint:
        (tmp_path / "checkpoint").unlink()
    assert run(check()) < most


def test_a_damaged_partition_needs_less_memory_than_the_journal_has_bytes_too(tmp_path):
    """What the journal said of it was put together in memory to be held in a file."""
    config = LogConfig(read_threads=1, journal_bytes=2**30)
    most, rounds = 8_000_000, 40
    segment = tmp_path / "orders-0" / file_name(0, LOG)

    async def fill():
        log = await open_log(tmp_path, config=config)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"v" * 1_000))
        await log.checkpoint()
        for _ in range(rounds):
            await partition.append(batch(b"v" * 1_000_000))
        abandon(log)

    async def check(*, damaged):
        tracemalloc.start()
        try:
            log = await open_log(tmp_path, config=config)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (log.partitions[TP].error is not None) == damaged
        if not damaged:
            assert log.partitions[TP].log_end_offset == 1 + rounds
        abandon(log)
        return peak

    run(fill())
    whole = segment.read_bytes()
    segment.write_bytes(whole[:500])
    assert run(check(damaged=True)) < most  # it is held,
    assert [path.stat().st_size > 5 * most for path in (tmp_path / "orders-0").glob("*.held")] == [True]
    assert run(check(damaged=True)) < most  # and read
    segment.write_bytes(whole)
    assert run(check(damaged=False)) < most


def test_a_held_file_that_ends_where_a_round_does_is_damaged(tmp_path):
    """It was taken for whole: a deletion that it held was undone."""
    disk = SimulatedDisk(tmp_path)
    segment = tmp_path / "orders-0" / file_name(0, LOG)

    async def fill():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for n in range(6):
            await partition.append(batch(b"%d" % n))
        await log.checkpoint()
        await partition.append(batch(b"6"))
        await housekeeping.delete_records(partition, 4)
        abandon(log)

    async def start():
        log = await open_log(tmp_path, disk=disk)
        error = log.partitions[TP].error
        found = None if error else await values(log.partitions[TP])
        await log.close()
        return error, found

    run(fill())
    whole = bytes(disk.file(segment).data)
    disk.file(segment).truncate(10)
    assert run(start())[0] is not None
    (held,) = (path for path in disk.list(tmp_path / "orders-0") if path.suffix == ".held")
    rounds = bytes(disk.file(held).data)
    assert len(rounds) == 2 * PAGE
    disk.file(segment).truncate(0)
    disk.file(segment).write(whole, 0)
    for size in (PAGE, 0):
        disk.file(held).truncate(size)
        error, _ = run(start())
        assert error is not None
        assert held.name in str(error)
    disk.file(held).write(rounds, 0)
    assert run(start()) == (None, [b"4", b"5", b"6"])


def test_a_start_after_a_clean_end_reads_nothing_of_the_journal_but_its_first_page(tmp_path, monkeypatch):
    """It read both files whole: a quarter of a gigabyte after heavy writing."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        for _ in range(3):
            await partition.append(batch(b"v" * 10_000))
            await log.checkpoint()
        await log.close()
        assert sum(disk.file_size(tmp_path / name) for name in NAMES) > 2 * 10_000
        sizes, read = [], SimulatedFile.read

        def counted(file, size, position):
            data = read(file, size, position)
            sizes.extend([len(data)] if file.path.name in NAMES else [])
            return data

        monkeypatch.setattr(SimulatedFile, "read", counted)
        log = await open_log(tmp_path, disk=disk)
        assert len(sizes) == 2
        assert max(sizes) <= PAGE
        assert (log.recovered_cleanly, log.partitions[TP].log_end_offset) == (True, 3)
        await log.close()

    run(test())


@pytest.mark.parametrize("end", ["close", "kill"])
def test_the_directory_of_an_empty_partition_that_is_gone_is_made_again(tmp_path, end):
    """The first append to it took the whole log offline, and after each start again."""
    other = TopicPartition("other", 0)

    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.create_partition(other, UUID(int=9), TopicConfig())
        await log.partitions[other].append(batch(b"kept"))
        await log.checkpoint()
        if end == "close":
            await log.close()
        else:
            abandon(log)
        shutil.rmtree(tmp_path / str(TP))
        for count in range(3):
            log = await open_log(tmp_path)
            partition = log.partitions[TP]
            assert partition.error is None
            assert partition.log_end_offset == count
            await partition.append(batch(b"new"))
            assert await values(log.partitions[other]) == [b"kept"]
            abandon(log)

    run(test())


def test_the_directory_of_an_emptied_partition_that_is_gone_is_damage_or_its_offsets_go_on(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"a", b"b", b"c"))
        await housekeeping.delete_records(partition, 3)
        await log.close()
        shutil.rmtree(tmp_path / str(TP))
        for _ in range(2):
            log = await open_log(tmp_path)
            partition = log.partitions[TP]
            if partition.error is None:
                assert partition.log_start_offset == partition.log_end_offset == 3
            await log.close()

    run(test())


def test_a_topic_may_have_the_journals_name_and_a_journal_of_an_older_name_is_taken(tmp_path):
    """The directory of partition 0 of topic `journal` was where the journal's first file is."""
    journal = TopicPartition("journal", 0)

    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.partitions[TP].append(batch(b"before"))
        abandon(log)
        for old, new in zip(("journal-0", "journal-1"), NAMES, strict=True):
            (tmp_path / new).rename(tmp_path / old)
        log = await open_log(tmp_path)
        assert await values(log.partitions[TP]) == [b"before"]
        await log.create_partition(journal, UUID(int=9), TopicConfig())
        await log.partitions[journal].append(batch(b"in a journal"))
        abandon(log)
        log = await open_log(tmp_path)
        assert await values(log.partitions[TP]) == [b"before"]
        assert await values(log.partitions[journal]) == [b"in a journal"]
        await log.close()

    run(test())


@pytest.mark.parametrize("times", ["an earlier run", "two checkpoints"])
def test_a_checkpoint_that_is_older_than_the_journal_is_refused(tmp_path, times):
    """With a copy in the place of a damaged one, what had been acknowledged since was passed over, and then gone."""
    disk = SimulatedDisk(tmp_path)

    async def test():
        nonlocal disk
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"0"))
        await log.checkpoint()
        copy = disk.read_file(tmp_path / "checkpoint")
        if times == "an earlier run":
            await log.close()
            log = await open_log(tmp_path, disk=disk)
        for number in range(3):
            if times == "two checkpoints":
                await log.checkpoint()
            await log.partitions[TP].append(batch(b"%d later" % number))
        abandon(log)
        disk = disk.after_power_cut(lambda most: 0)
        whole = disk.read_file(tmp_path / "checkpoint")
        disk.write_atomically(tmp_path / "checkpoint", copy)
        with pytest.raises(CorruptFile, match=r"older than|is missing"):
            await open_log(tmp_path, disk=disk)
        disk.write_atomically(tmp_path / "checkpoint", whole)
        log = await open_log(tmp_path, disk=disk)
        assert await values(log.partitions[TP]) == [b"0", b"0 later", b"1 later", b"2 later"]
        await log.close()

    run(test())


@pytest.mark.parametrize("position", [11, 25])  # what says that an id follows, the id
@pytest.mark.parametrize("has_namesake", [False, True])
@pytest.mark.parametrize(("topic", "size"), [(TopicConfig(flush_messages=1000), 100), (TopicConfig(), 2_000_000)])
def test_a_topic_whose_id_is_damaged_since_it_was_made_keeps_what_is_in_its_segments(
    tmp_path, topic, size, has_namesake, position
):
    """A start took its directory for a deleted topic's, and removed it."""
    topic = msgspec.structs.replace(topic, max_message_bytes=10**7)

    async def test():
        log = await open_log(tmp_path)
        if has_namesake:
            await (await log.create_partition(TP, UUID(int=8), TopicConfig())).append(batch(b"deleted"))
            await log.checkpoint()
            await log.delete_partition(TP)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for number in range(3):
            await partition.append(batch(b"%d" % number * size))
        abandon(log)
        path = partition.directory / "partition.metadata"
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        log = await open_log(tmp_path)
        assert await values(log.partitions[TP]) == [b"%d" % number * size for number in range(3)]
        await log.close()
        again = await open_log(tmp_path)
        assert again.partitions[TP].topic_id == TOPIC_ID
        await again.close()

    run(test())


def test_a_segment_that_the_journal_goes_on_with_is_needed(tmp_path):
    """What the checkpoint had of it was deleted: a start made a file with a hole in its place, and said nothing."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for number in range(2):
            await partition.append(batch(b"%d" % number))
        await log.checkpoint()
        copy = partition.segments.active.path.read_bytes()
        for number in range(2, 6):
            await partition.append(batch(b"%d" % number))
        await housekeeping.delete_records(partition, 3)
        abandon(log)
        partition.segments.active.path.unlink()
        log = await open_log(tmp_path)
        assert "missing" in str(log.partitions[TP].error)
        await log.close()
        partition.segments.active.path.write_bytes(copy)  # as the hint says; the rest is held
        log = await open_log(tmp_path)
        assert await values(log.partitions[TP]) == [b"3", b"4", b"5"]
        await log.close()

    run(test())
