"""What is damaged of a partition is taken out and kept aside; what is whole stays, before it and behind."""

import errno
from uuid import UUID

import pytest
import structlog

from mainstem.core import ManualClock, TopicPartition
from mainstem.log import (
    InvalidProducerEpoch,
    LogConfig,
    LogDirectory,
    LogDirectoryInUse,
    StorageError,
    TopicConfig,
    housekeeping,
)
from mainstem.log.cleaner import Cleaner
from mainstem.log.config import DAY_MS
from mainstem.log.repair import UnknownPartition, repair
from mainstem.records import iter_headers
from tests.log.simulated_disk import SimulatedDisk
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, read_all, run, sequenced, values

TOPIC = TopicConfig(segment_bytes=1_000)
LONG_AGO = 1_000_000_000_000


async def fill(path, *, deleted=0):
    """Twelve records, three to a segment; the last segment is the active one."""
    log = await open_log(path)
    partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
    for n in range(12):
        await partition.append(batch(b"%02d" % n + b"v" * 200, producer_id=1, producer_epoch=0, base_sequence=n))
    if deleted:
        await housekeeping.delete_records(partition, deleted)
    starts = [segment.base_offset for segment in partition.segments]
    await log.close()
    return starts


def damage(path, base, how):
    file = path / "orders-0" / f"{base:020d}.log"
    data = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(data[:-10])
    else:
        data[{"beginning": 65, "first batch": 100, "second batch": 400, "offset": 300}[how]] ^= 1
        file.write_bytes(data)


async def _close_as_the_dead(log):
    abandon(log)


async def offsets_and_end(path):
    log = await open_log(path)
    partition = log.partitions[TP]
    partition.config = TOPIC
    assert partition.error is None
    found = [int(value[:2]) for value in await values(partition)]
    end = partition.log_end_offset
    result = await partition.append(batch(b"99next"))
    assert result.base_offset == end
    assert (await values(partition))[-1] == b"99next"
    await log.close()
    return found, end


def test_nothing_is_done_without_damage(tmp_path):
    async def test():
        await fill(tmp_path)
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages == ()
        assert await offsets_and_end(tmp_path) == (list(range(12)), 12)

    run(test())


@pytest.mark.parametrize(("place", "how", "lost"), [
    (1, "first batch", [3]), (1, "second batch", [4]), (1, "gone", [3, 4, 5]), (1, "cut", [5]), (0, "first batch", [0]),
    (0, "gone", [0, 1, 2]), (3, "first batch", [9]), (3, "second batch", [10]), (3, "cut", [11]),
    (3, "gone", [9, 10, 11]),
])  # fmt: skip
def test_a_damaged_batch_is_taken_out_and_what_follows_stays(tmp_path, place, how, lost):
    async def test():
        starts = await fill(tmp_path)
        assert starts == [0, 3, 6, 9]
        damage(tmp_path, starts[place], how)
        before = {path.name: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.log")}
        told = await repair(tmp_path, TP, clock=ManualClock(), mend=False)
        assert {path.name: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.log")} == before
        done = await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        assert done == told
        (found,) = done.damages
        assert (found.first_offset, found.end_offset) == (lost[0], lost[-1] + 1)
        assert (found.kept_in is None) == (found.lost_bytes == 0) == (how == "gone")
        if found.kept_in:
            kept = found.kept_in.read_bytes()
            assert kept == before[found.path.name][found.position : found.position + found.lost_bytes]
        assert await offsets_and_end(tmp_path) == ([n for n in range(12) if n not in lost], 12)
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=False)).damages == ()

    run(test())


def test_nothing_is_wrong_with_a_partition_that_was_never_written_to(tmp_path):
    async def test():
        log = await open_log(tmp_path)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await log.close()
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages == ()

    run(test())


@pytest.mark.parametrize("step", ["_move", "_cut", "LogDirectory.read_again"])
def test_a_repair_that_is_broken_off_and_done_again_loses_nothing_of_what_it_kept(tmp_path, monkeypatch, step):
    """The second one emptied the file that it was going to fill, from segments that were cut."""

    class PowerCut(BaseException):
        pass

    def cut_the_power(*_):
        raise PowerCut

    async def test():
        await fill(tmp_path)
        damage(tmp_path, 3, "second batch")
        cut = [path.read_bytes() for path in sorted((tmp_path / "orders-0").glob("*.log"))]
        (told,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=False)).damages
        with monkeypatch.context() as patch:
            patch.setattr(f"mainstem.log.repair.{step}", cut_the_power)
            patch.setattr(LogDirectory, "close", _close_as_the_dead)
            with pytest.raises(PowerCut):
                await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        kept = cut[1][told.position : told.position + told.lost_bytes]
        assert told.kept_in.read_bytes() == kept
        (again,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        if step == "LogDirectory.read_again":
            assert (again.lost_bytes, again.kept_in) == (0, None)
        else:
            assert again.kept_in == told.kept_in  # the same bytes are not kept twice: the disk may be full
            assert again.kept_in.read_bytes().startswith(kept)
        assert told.kept_in.read_bytes() == kept
        assert await offsets_and_end(tmp_path) == ([n for n in range(12) if n != 4], 12)

    run(test())


def test_deleted_records_stay_deleted_and_the_leader_epoch_rises(tmp_path):
    async def test():
        await fill(tmp_path, deleted=4)
        damage(tmp_path, 6, "second batch")
        log = await open_log(tmp_path)
        epoch = log.partitions[TP].leader_epoch
        await log.close()
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert (partition.log_start_offset, partition.log_end_offset) == (4, 12)
        assert partition.leader_epoch > epoch
        assert [b.last_sequence for b in partition.producer(1).batches] == [8, 9, 10, 11]  # a gap is before them
        await log.close()
        assert await offsets_and_end(tmp_path) == ([4, 5, 6, 8, 9, 10, 11], 12)

    run(test())


@pytest.mark.parametrize("step", ["LogDirectory.read_again", "LogDirectory.checkpoint"])
def test_deleted_records_stay_deleted_when_a_repair_is_killed(tmp_path, monkeypatch, step):
    """Between two checkpoints the log start offset was nowhere: the next repair found no damage, and they were back."""

    async def test():
        await fill(tmp_path, deleted=4)
        damage(tmp_path, 6, "second batch")

        def kill(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(f"mainstem.log.repair.{step}", kill)
            patch.setattr(LogDirectory, "close", _close_as_the_dead)
            with pytest.raises(KeyboardInterrupt):
                await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        assert await offsets_and_end(tmp_path) == ([4, 5, 6, 8, 9, 10, 11], 12)

    run(test())


@pytest.mark.parametrize("mend", [False, True])
def test_no_producer_of_any_partition_is_forgotten(tmp_path, mend):
    """The log's own setting says when: one that came back sent again what was there."""
    clock, config = ManualClock(), LogConfig(producer_id_expiration_ms=7 * DAY_MS)
    other = TopicPartition("other", 0)

    async def test():
        await fill(tmp_path)
        log = await LogDirectory.open(tmp_path, config, clock=clock)
        partition = await log.create_partition(other, UUID(int=9), TOPIC)
        for sequence in range(2):
            await partition.append(sequenced(b"v", sequence=sequence))
        await log.close()
        damage(tmp_path, 0, "cut")
        clock.advance_ms(2 * DAY_MS)
        assert (await repair(tmp_path, TP, clock=clock, mend=mend)).damages
        log = await LogDirectory.open(tmp_path, config, clock=clock)
        assert (await log.partitions[other].append(sequenced(b"v", sequence=1))).duplicate
        assert (log.partitions[TP].error is None) == mend
        if mend:
            again = batch(b"11" + b"v" * 200, producer_id=1, producer_epoch=0, base_sequence=11)
            assert (await log.partitions[TP].append(again)).duplicate
        await log.close()

    run(test())


async def _deleted(log, partition):
    """All batches of the producer, with its epoch, are deleted."""
    await partition.append(batch(b"s", timestamp=LONG_AGO, producer_id=1, producer_epoch=0, base_sequence=0))
    await partition.append(batch(b"s", timestamp=LONG_AGO, producer_id=1, producer_epoch=1, base_sequence=0))
    partition.roll()
    await partition.append(batch(b"x" * 100))
    await housekeeping.delete_records(partition, 2)
    return partition.segments.active.base_offset, 100


async def _fenced(log, partition):
    """Its transaction ended with an epoch that fences it, as those of version 2 do, and that is what is damaged."""
    await partition.append(batch(b"x" * 100))
    await partition.append(batch(b"s", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    position = partition.segments.active.size + 65
    await partition.append_marker(1, 1, commit=True, coordinator_epoch=0)
    await partition.append(batch(b"y" * 100))
    return 0, position


@pytest.mark.parametrize("happens", [_deleted, _fenced])
def test_a_producer_is_fenced_as_it_was_and_what_it_sends_again_is_there_once(tmp_path, happens):
    """What no segment said of it was forgotten, and the times that its records say were those of its last batches."""
    clock = ManualClock()

    async def test():
        log = await open_log(tmp_path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        base, position = await happens(log, partition)
        await log.close()
        file = tmp_path / "orders-0" / f"{base:020d}.log"
        data = bytearray(file.read_bytes())
        data[position] ^= 1
        file.write_bytes(data)
        assert (await repair(tmp_path, TP, clock=clock, mend=True)).damages
        log = await open_log(tmp_path, clock=clock)
        partition = log.partitions[TP]
        with pytest.raises(InvalidProducerEpoch):
            await partition.append(batch(b"zombie", producer_id=1, producer_epoch=0, base_sequence=1))
        again = batch(b"s", timestamp=LONG_AGO, producer_id=1, producer_epoch=1, base_sequence=0)
        assert (await partition.append(again)).duplicate == (happens is _deleted)
        await log.close()

    run(test())


def test_offsets_of_a_compacted_segment_stay_where_no_checkpoint_is(tmp_path):
    """As far as the start had read it there were no gaps: what followed was moved together."""
    keys = [9, 8, 9, 0, 9, 1, 9, 2, 9, 3, 9]

    async def test():
        log = await open_log(tmp_path)
        topic = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for number, key in enumerate(keys):
            await partition.append(batch(b"%02d" % number, key=b"%d" % key))
        partition.roll()
        await partition.append(batch(b"99", key=b"z"))
        await log.checkpoint()
        assert await housekeeping.compact(partition, Cleaner(), most_keys=1_000)
        await log.close()
        (tmp_path / "checkpoint").unlink()
        damage(tmp_path, 0, "beginning")
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        log = await open_log(tmp_path)
        found = [(record.offset, int(record.value)) for record in await read_all(log.partitions[TP])]
        assert found == [(3, 3), (5, 5), (7, 7), (9, 9), (10, 10), (11, 99)]
        await log.close()

    run(test())


def test_the_topic_id_is_there_again(tmp_path):
    """Without it the repair ended in a traceback, and the next start took the partition for somebody's directory."""

    async def test():
        await fill(tmp_path)
        damage(tmp_path, 3, "second batch")
        metadata = tmp_path / "orders-0" / "partition.metadata"
        before = metadata.read_bytes()
        metadata.unlink()
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert metadata.read_bytes() == before
        assert await offsets_and_end(tmp_path) == ([n for n in range(12) if n != 4], 12)

    run(test())


def test_a_full_disk_is_told_and_the_repair_can_be_done_again(tmp_path):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for n in range(4):
            await partition.append(batch(b"%02d" % n + b"v" * 200))
        await log.close()
        file = disk.file(tmp_path / "orders-0" / f"{0:020d}.log")
        file.data[len(file.data) // 4 + 100] ^= 1
        for suffix in (".lost", ".log.new"):
            disk.refuse("write", errno.ENOSPC, suffix)
            with pytest.raises(StorageError, match="nothing is lost that was not before") as told:
                await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=disk)
            assert "run it again" in told.value.hint
            disk.refusals.clear()
            assert not [each for each in disk.list(tmp_path / "orders-0") if each.name.endswith(".new")]
        assert (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=disk)).damages
        log = await open_log(tmp_path, disk=disk)
        assert [int(value[:2]) for value in await values(log.partitions[TP])] == [0, 2, 3]
        await log.close()

    run(test())


def test_what_only_the_journal_knew_to_be_deleted_stays_deleted(tmp_path):
    """The checkpoint's log start offset was put back: records that `kafka-delete-records` had deleted since were there
    again.
    """

    async def test():
        await fill(tmp_path)
        log = await open_log(tmp_path)
        log.partitions[TP].config = TOPIC
        await housekeeping.delete_records(log.partitions[TP], 4)
        abandon(log)
        damage(tmp_path, 6, "gone")
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        assert await offsets_and_end(tmp_path) == ([4, 5, 9, 10, 11], 12)

    run(test())


def test_offsets_of_records_that_were_deleted_are_not_given_again(tmp_path):
    """The page cache was trusted with them, and lost them: a repair failed after it had cut, since the log ended before
    its start.
    """
    disk, segment = SimulatedDisk(tmp_path), tmp_path / "orders-0" / f"{0:020d}.log"

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(batch(b"0"))
        await log.checkpoint()
        partition.config = TopicConfig(flush_messages=1_000)
        await partition.append(batch(b"1", b"2"))
        await housekeeping.delete_records(partition, 3)
        abandon(log)
        after = disk.after_power_cut(lambda most: 0)
        del after.file(segment).data[10:]
        (done,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True, disk=after)).damages
        assert (done.first_offset, done.end_offset) == (0, 3)
        log = await open_log(tmp_path, disk=after)
        assert (log.partitions[TP].log_start_offset, log.partitions[TP].log_end_offset) == (3, 3)
        await log.close()

    run(test())


def test_damage_of_the_segment_that_the_log_begins_in_is_told_at_the_start(tmp_path):
    """All its records were deleted, the next segment begins behind what a repair had cut off: whoever read from the log
    start offset met the damage later.
    """

    async def test():
        await fill(tmp_path)
        damage(tmp_path, 3, "second batch")
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        log.partitions[TP].config = TOPIC
        await log.partitions[TP].append(batch(b"next"))
        await housekeeping.delete_records(log.partitions[TP], 4)
        await log.close()
        damage(tmp_path, 4, "cut")
        log = await open_log(tmp_path)
        assert log.partitions[TP].error is not None
        await log.close()

    run(test())


def test_a_transaction_that_ended_in_a_deleted_segment_is_not_open_after_a_repair(tmp_path):
    """A power cut had left a segment before that one: the producer's batch was read, its end was not."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TOPIC)
        await partition.append(sequenced(b"begun" * 100, sequence=0, transactional=True))
        await partition.append(batch(b"v" * 900))
        await partition.append_marker(1, 0, commit=True, coordinator_epoch=0)
        for _ in range(2):
            await partition.append(batch(b"v" * 900))
        first, last = partition.segments[0].path, partition.segments.active.path
        left_over = first.read_bytes()
        assert [segment.base_offset for segment in partition.segments] == [0, 1, 2, 3, 4]
        await housekeeping.delete_records(partition, 4)
        await log.close()
        first.write_bytes(left_over)
        last.write_bytes(last.read_bytes()[:-1])
        (found,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert (found.first_offset, found.end_offset) == (4, 5)
        log = await open_log(tmp_path)
        assert log.partitions[TP].open_transactions == {}
        await log.close()

    run(test())


def test_a_reader_in_the_gap_waits_for_the_transaction_behind_it(tmp_path):
    """He was led on to a segment that nothing was written to yet; it has no file, and that was taken for damage."""

    async def story():
        damage(tmp_path, (await fill(tmp_path))[-1], "gone")
        (found,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert (found.first_offset, found.end_offset) == (9, 12)
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        await partition.append(sequenced(b"open", sequence=0, transactional=True, producer_id=2))
        partition.roll()
        (header,) = iter_headers(joined(await partition.read(9, 1 << 20, committed_only=True)))
        assert (header.count, header.next_offset) == (0, 12)  # a client waits for ever for what lies before the end
        read = await partition.read(12, 1 << 20, committed_only=True)
        assert (joined(read), read.last_stable_offset, read.is_cut) == (b"", 12, False)
        await partition.append_marker(2, 0, commit=True, coordinator_epoch=0)
        assert joined(await partition.read(12, 1 << 20, committed_only=True))
        await log.close()

    run(story())


def test_damage_names_the_command(tmp_path):
    async def test():
        await fill(tmp_path)
        damage(tmp_path, 3, "gone")
        with structlog.testing.capture_logs() as told:
            log = await open_log(tmp_path)
        with pytest.raises(StorageError) as caught:
            await log.partitions[TP].read(0, 100)
        command = f"mainstem log repair --data {tmp_path} orders 0"
        assert command in caught.value.hint
        assert [command in entry["hint"] for entry in told if entry["event"] == "partition_offline"] == [True]
        with pytest.raises(LogDirectoryInUse):
            await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        await log.close()
        with pytest.raises(UnknownPartition, match="no partition orders-7"):
            await repair(tmp_path, TopicPartition("orders", 7), clock=ManualClock(), mend=True)

    run(test())


def test_a_log_that_ends_before_its_start_goes_on_from_there(tmp_path):
    """Its last records were deleted, and only the page cache had them; the repair could not put the log start back."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"a"))
        await log.checkpoint()
        durable = partition.segments.active.size
        await partition.append(sequenced(b"b", sequence=0, transactional=True))
        await partition.append_marker(1, 0, commit=True, coordinator_epoch=0)  # which the journal has
        await partition.append(batch(b"c"))
        await housekeeping.delete_records(partition, 4)
        abandon(log)
        file = tmp_path / "orders-0" / f"{0:020d}.log"
        file.write_bytes(file.read_bytes()[: durable - 1])
        damages = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert damages[0].end_offset == 2
        assert await offsets_and_end(tmp_path) == ([], 4)

    run(test())
