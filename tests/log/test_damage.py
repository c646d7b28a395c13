"""What is damaged, and what is whole behind it."""

import pytest

from mainstem.core import ManualClock
from mainstem.log import TopicConfig
from mainstem.log.damage import find_damage
from mainstem.log.disk import SystemDisk
from mainstem.log.housekeeping import delete_records
from mainstem.log.repair import repair
from mainstem.log.segment import LOG, file_name
from mainstem.records import iter_headers
from mainstem.records.batch import OFFSET_AND_LENGTH
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, read_all, run, sequenced, values

OFFSET, LENGTH, EPOCH, MAGIC, RECORDS = 7, 11, 15, 16, 100
"""Bytes of a batch: the last one of its base offset, of its length, of its leader epoch, its magic, one of its
records."""


async def fill(path, *content, topic=None):
    """A batch of each; where they begin in the file."""
    log = await open_log(path)
    partition = await log.create_partition(TP, TOPIC_ID, topic or TopicConfig())
    for each in content:
        await partition.append(each if len(each) > 60 else batch(each * 60))
    await log.close()
    data = segment(path).read_bytes()
    return [0, *(sum(header.size for header in list(iter_headers(data))[: n + 1]) for n in range(len(content)))]


def segment(path, base_offset=0):
    return path / str(TP) / file_name(base_offset, LOG)


def change(path, position, flipped=1, base_offset=0):
    data = bytearray(segment(path, base_offset).read_bytes())
    data[position] ^= flipped
    segment(path, base_offset).write_bytes(data)


async def found(path):
    """Lost offsets and bytes of each damage."""
    log = await open_log(path)
    damages = find_damage(log.partitions[TP], SystemDisk(), saved=True)
    await log.close()
    return [(each.first_offset, each.end_offset, each.lost_bytes) for each in damages]


async def left(path):
    """Once it is repaired."""
    await repair(path, TP, clock=ManualClock(), mend=True)
    log = await open_log(path)
    partition = log.partitions[TP]
    records = {record.offset: record.value[:1] for record in await read_all(partition)}
    assert (await partition.append(batch(b"next"))).base_offset == partition.log_end_offset - 1
    await log.close()
    return records


@pytest.mark.parametrize("place", [RECORDS, 60])
@pytest.mark.parametrize("flipped", [1, 128])
def test_one_batch_is_lost_whatever_is_damaged_of_it(tmp_path, place, flipped):
    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c", b"d")
        size = starts[1]
        change(tmp_path, starts[1] + place, flipped)
        assert await found(tmp_path) == [(1, 2, size)]
        assert await left(tmp_path) == {0: b"a", 2: b"c", 3: b"d"}

    run(test())


@pytest.mark.parametrize("place", [LENGTH, LENGTH - 1, LENGTH - 3, MAGIC, OFFSET - 3, OFFSET - 7])
@pytest.mark.parametrize("flipped", [1, 2, 64, 128])
@pytest.mark.parametrize("number", [0, 2, 3])
def test_what_no_crc_covers_is_set_right(tmp_path, number, place, flipped):
    """All of these are of one size: a wrong length led to a later one, and whole ones before it were lost too."""

    async def test():
        starts = await fill(tmp_path, *(b"%d" % n for n in range(9)))
        change(tmp_path, starts[number] + place, flipped)
        assert await found(tmp_path) == [(number, number, 0)]
        assert await left(tmp_path) == {n: b"%d" % n for n in range(9)}

    run(test())


def test_what_no_crc_covers_is_set_right_all_at_once(tmp_path):
    """The wrong leader epoch was written over the right one, with the length before it."""

    async def test():
        starts = await fill(tmp_path, *(b"%d" % n for n in range(9)))
        before = segment(tmp_path).read_bytes()
        for place in (OFFSET, LENGTH, EPOCH, MAGIC):
            change(tmp_path, starts[3] + place)
        assert {lost for *_, lost in await found(tmp_path)} == {0}
        assert await left(tmp_path) == {n: b"%d" % n for n in range(9)}
        assert segment(tmp_path).read_bytes().startswith(before)

    run(test())


def test_bytes_of_another_segment_in_between_are_not_taken_for_the_logs(tmp_path):
    """They were, where two of them followed each other, and all up to their offsets was lost."""

    async def test():
        foreign = b"".join(OFFSET_AND_LENGTH.pack(20 + n, 0)[:8] + batch(b"not in this log")[8:] for n in range(2))
        starts = await fill(tmp_path, *(b"%d" % n * 60 for n in range(3)), *(batch(b"%02d" % n) for n in range(3, 30)))
        data = bytearray(segment(tmp_path).read_bytes())
        data[starts[1] + 70 : starts[1] + 70 + len(foreign)] = foreign
        segment(tmp_path).write_bytes(data)
        (damage,) = await found(tmp_path)
        assert damage[:2] == (1, 1 + next(n for n in range(1, 30) if starts[n] >= starts[1] + 70 + len(foreign)) - 1)
        assert set(await left(tmp_path)) == {0, *range(damage[1], 30)}

    run(test())


def test_two_in_a_row_are_one_damage_and_others_are_others(tmp_path):
    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c", b"d", b"e", b"f")
        size = starts[1]
        for number in (1, 2, 4):
            change(tmp_path, starts[number] + RECORDS)
        assert await found(tmp_path) == [(1, 3, 2 * size), (4, 5, size)]
        assert await left(tmp_path) == {0: b"a", 3: b"d", 5: b"f"}

    run(test())


def test_a_batch_in_the_records_of_a_damaged_one_is_none(tmp_path):
    """Somebody keeps segments of another log in his records."""

    async def test():
        within = OFFSET_AND_LENGTH.pack(1, 0)[:8] + batch(b"not in this log")[8:]
        starts = await fill(tmp_path, b"a", batch(b"x" * 50 + within + b"y" * 50), b"c")
        change(tmp_path, starts[1] + RECORDS)
        assert await found(tmp_path) == [(1, 2, starts[2] - starts[1])]
        assert await left(tmp_path) == {0: b"a", 2: b"c"}

    run(test())


@pytest.mark.parametrize("flipped", [2, 4, 64])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_offset_that_does_not_fit_is_set_right(tmp_path, number, flipped):
    """No CRC covers it: one that was larger would have hidden what follows, or left a gap that is none."""

    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c", b"d")
        change(tmp_path, starts[number] + OFFSET, flipped)
        assert await found(tmp_path) == [(number, number, 0)]
        assert await left(tmp_path) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}

    run(test())


@pytest.mark.parametrize("flipped", [1, 3, 4, 64])
@pytest.mark.parametrize("number", [1, 2])
def test_an_offset_behind_a_damaged_batch_is_set_right_too(tmp_path, number, flipped):
    """It was taken for what it said, and records were found at offsets that were not theirs."""

    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c", b"d")
        change(tmp_path, starts[number] + RECORDS)
        change(tmp_path, starts[number + 1] + OFFSET, flipped)
        assert await found(tmp_path) == [(number, number + 1, starts[1]), (number + 1, number + 1, 0)]
        assert await left(tmp_path) == {n: b"abcd"[n : n + 1] for n in range(4) if n != number}

    run(test())


def test_an_offset_that_cannot_be_says_nothing_of_the_batch_before_it(tmp_path):
    """Behind it nothing was whole, and of two that contradict each other the later one counts: both were lost."""

    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c", b"d", b"e")
        for number in (1, 4):
            change(tmp_path, starts[number] + RECORDS)
        change(tmp_path, starts[3] + OFFSET - 2)
        size = starts[1]
        assert await found(tmp_path) == [(1, 2, size), (3, 5, 2 * size)]
        assert await left(tmp_path) == {0: b"a", 2: b"c"}

    run(test())


def test_an_old_batch_behind_the_end_leaves_no_trace(tmp_path):
    """It is cut off as a torn end; the CRC of the offsets that was kept had it in, and the next start refused all."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for value in (b"a", b"b", b"c"):
            await partition.append(batch(value * 60))
        abandon(log)
        data = segment(tmp_path).read_bytes()
        segment(tmp_path).write_bytes(data + data[: len(data) // 3])
        for _ in range(2):
            log = await open_log(tmp_path)
            assert log.partitions[TP].error is None
            assert [value[:1] for value in await values(log.partitions[TP])] == [b"a", b"b", b"c"]
            await log.close()

    run(test())


def test_a_segment_that_others_bytes_are_in_is_told_up_to_its_end(tmp_path):
    """One batch of them that fits was taken for its last: offsets behind it were lost, and told as none."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for number in range(8):
            if number == 5:
                partition.roll()
            await partition.append(batch(b"%d" % number * 60))
        await log.close()
        data = segment(tmp_path).read_bytes()
        segment(tmp_path).write_bytes(b"x" * len(data) + data[: len(data) // 5])
        found = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        lost = {offset for each in found for offset in range(each.first_offset, each.end_offset)}
        log = await open_log(tmp_path)
        left = {record.offset for record in await read_all(log.partitions[TP])}
        assert lost | left == set(range(8))
        assert left == {0, 5, 6, 7}
        await log.close()

    run(test())


@pytest.mark.parametrize("is_behind_empty", [False, True])
def test_where_nothing_is_left_a_client_gets_to_the_end(tmp_path, is_behind_empty):
    """Of a compacted topic an empty segment may be left, and the log begins there."""

    async def test():
        topic = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, segment_bytes=150)
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for value in (b"a", b"b"):
            await partition.append(batch(value * 60, key=b"k"))
            partition.roll()
        if is_behind_empty:
            await log.housekeep()
            assert segment(tmp_path).stat().st_size == 0
        await partition.append(batch(b"c" * 60, key=b"k"))
        await log.close()
        for path in (tmp_path / str(TP)).glob("*.log"):
            path.write_bytes(bytes(path.stat().st_size))
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        offset = partition.log_start_offset
        while batches := joined(await partition.read(offset, 1 << 20)):
            found = list(iter_headers(batches))
            assert not any(each.count for each in found)
            offset = found[-1].next_offset
        assert offset == partition.log_end_offset == 3
        await log.close()

    run(test())


def test_where_nothing_follows_a_batch_without_records_does(tmp_path):
    """Kafka's clients ask for what lies behind the last batch that they were given, and wait for ever where the log
    ends later; those that read up to its end never got there.
    """

    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c")
        for number in (1, 2):
            change(tmp_path, starts[number] + RECORDS)
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert partition.log_end_offset == 3
        (last,) = iter_headers(joined(await partition.read(1, 1 << 20)))
        assert (last.count, last.next_offset) == (0, 3)
        await log.close()

    run(test())


@pytest.mark.parametrize("byte", [5, OFFSET])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_offset_that_only_its_neighbours_confirm(tmp_path, number, byte):
    """Without the checkpoint, or where compaction may have left gaps: all that follows was lost, and counted as no
    offsets.
    """

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        for value in (b"a", b"b", b"c", b"d"):
            await partition.append(batch(value * 60))
        partition.roll()
        await partition.append(batch(b"e"))
        await log.close()
        for name in ("checkpoint", "journal.0", "journal.1"):
            (tmp_path / name).unlink()
        size = segment(tmp_path).stat().st_size // 4
        change(tmp_path, number * size + byte, 64)
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        is_between = number < 3  # it fills the room between two others; behind the last one there may be a gap
        expected = (number, number, 0) if is_between else (number, number + 1, size)
        assert (damage.first_offset, damage.end_offset, damage.lost_bytes) == expected
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert partition.log_end_offset == 5
        assert [value[:1] for value in await values(partition)] == [
            b"abcde"[n : n + 1] for n in range(5) if n != number or is_between
        ]
        await log.close()

    run(test())


@pytest.mark.parametrize("flipped", [1, 32])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("saved", [True, False])
def test_a_leader_epoch_is_set_right(tmp_path, number, flipped, saved):
    """Readers were refused for ever, and the repair that they were told to make found no damage."""

    async def test():
        for value in (b"a", b"b"):
            if value == b"a":
                starts = await fill(tmp_path, b"a", b"b")
            else:
                log = await open_log(tmp_path)  # of an epoch of their own
                log.partitions[TP].raise_leader_epoch(3)
                for each in (b"c", b"d"):
                    await log.partitions[TP].append(batch(each * 60))
                await log.close()
        if not saved:
            for name in ("checkpoint", "journal.0", "journal.1"):
                (tmp_path / name).unlink()
        change(tmp_path, number * starts[1] + EPOCH, flipped)
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        assert [value[:1] for value in await values(log.partitions[TP])] == [b"a", b"b", b"c", b"d"]
        await log.close()
        assert await found(tmp_path) == []
        assert await left(tmp_path) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}

    run(test())


@pytest.mark.parametrize("saved", [True, False])
def test_a_wrong_leader_epoch_changes_no_other_batch(tmp_path, saved):
    async def test():
        starts = await fill(tmp_path, b"a", b"b")
        log = await open_log(tmp_path)
        log.partitions[TP].raise_leader_epoch(3)
        for each in (b"c", b"d", b"e"):
            await log.partitions[TP].append(batch(each * 60))
        await log.close()
        before = segment(tmp_path).read_bytes()
        if not saved:
            for name in ("checkpoint", "journal.0", "journal.1"):
                (tmp_path / name).unlink()
        change(tmp_path, 3 * starts[1] + EPOCH, 2)
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        assert segment(tmp_path).read_bytes() == before

    run(test())


def test_leader_epochs_of_what_is_deleted_are_of_no_account(tmp_path):
    """What is deleted may be of epochs that nobody remembers: a repair found damage of it, one batch in each run."""

    async def test():
        await fill(tmp_path, b"a", b"b", b"c")
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        partition.raise_leader_epoch(3)
        for each in (b"d", b"e"):
            await partition.append(batch(each * 60))
        await delete_records(partition, 4)
        await log.close()
        assert await found(tmp_path) == []

    run(test())


def test_no_batch_of_what_the_checkpoint_knows_goes_beyond_what_it_knows(tmp_path):
    """Where the start had found the damage, an offset of any size was believed of the last batch that was left."""

    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c")
        change(tmp_path, starts[1] + OFFSET - 1, 0x10)
        segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[: starts[2] + 80])
        log = await open_log(tmp_path)
        assert log.partitions[TP].error is not None
        await log.close()
        assert await found(tmp_path) == [(1, 3, starts[2] + 80 - starts[1])]
        assert await left(tmp_path) == {0: b"a"}

    run(test())


def test_a_batch_with_another_offset_where_nothing_is_missing_is_taken_out(tmp_path):
    """It was left two offsets further on, with the offsets of what was lost behind it."""

    async def test():
        starts = await fill(tmp_path, *(batch(value * 60, value * 60) for value in (b"a", b"b", b"c", b"d")))
        change(tmp_path, starts[2] + OFFSET, 2)
        change(tmp_path, starts[3] + RECORDS)
        assert await left(tmp_path) == {0: b"a", 1: b"a", 2: b"b", 3: b"b"}

    run(test())


def test_a_batch_in_what_is_left_of_a_record_is_none(tmp_path):
    async def test():
        inner = (40).to_bytes(8, "big") + batch(b"foreign")[8:]
        await fill(tmp_path, b"a", b"b", batch(b"c" * 60 + inner + b"c" * 60))
        segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[:-20])
        assert await left(tmp_path) == {0: b"a", 1: b"b"}

    run(test())


def test_who_reads_what_is_committed_gets_to_an_open_transaction_behind_a_hole(tmp_path):
    """It waited behind the last batch before the hole, which is not where what is committed ended."""

    async def test():
        starts = await fill(tmp_path, b"a", b"b", sequenced(b"c" * 60, sequence=0, transactional=True))
        change(tmp_path, starts[1] + RECORDS)
        await repair(tmp_path, TP, clock=ManualClock(), mend=True)
        log = await open_log(tmp_path)
        partition, offset = log.partitions[TP], 0
        while batches := joined(await partition.read(offset, 1 << 20, committed_only=True)):
            offset = list(iter_headers(batches))[-1].next_offset
        assert offset == partition.last_stable_offset == 2
        await log.close()

    run(test())


async def fill_compacted(path):
    """A segment that compaction has left gaps in; its records, and the headers of its batches."""
    log = await open_log(path)
    topic = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    partition = await log.create_partition(TP, TOPIC_ID, topic)
    keys, number = [*range(9), 1, 10], 0
    for size in (2, 2, 3, 2, 1, 1):
        values = [b"%d" % (number + n) * 60 for n in range(size)]
        await partition.append(batch(*values, keys=[b"%d" % key for key in keys[number : number + size]]))
        number += size
    partition.roll()
    await partition.append(batch(b"the last"))
    await log.housekeep()
    records = {record.offset: record.value for record in await read_all(partition)}
    assert records.keys() == {0, *range(2, 12)}
    await log.close()
    return records, list(iter_headers(segment(path).read_bytes()))


@pytest.mark.parametrize("bit", [0, 31, 32, 50, *range(60, 64), 96, 127])
@pytest.mark.parametrize("number", range(6))
def test_a_flipped_bit_of_what_compaction_wrote_is_set_right(tmp_path, number, bit):
    """The whole batch that the wrong offset contradicted was taken out, and the wrong offset stayed."""

    async def test():
        records, headers = await fill_compacted(tmp_path)
        before = segment(tmp_path).read_bytes()
        change(tmp_path, sum(header.size for header in headers[:number]) + bit // 8, 128 >> bit % 8)
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert damage.lost_bytes == 0
        right = headers[number].base_offset if bit < 64 else headers[number].leader_epoch
        assert damage.reason.startswith("offset " if bit < 64 else "leader epoch ")
        assert damage.reason.endswith(f", expected {right}")
        assert segment(tmp_path).read_bytes() == before
        log = await open_log(tmp_path)
        assert {record.offset: record.value for record in await read_all(log.partitions[TP])} == records
        await log.close()

    run(test())


@pytest.mark.parametrize("lost", [0, 2, 5])
@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_a_flipped_bit_of_an_offset_is_set_right_beside_a_batch_that_is_lost(tmp_path, number, lost):
    async def test():
        records, headers = await fill_compacted(tmp_path)
        starts = [sum(header.size for header in headers[:n]) for n in range(6)]
        change(tmp_path, starts[lost] + RECORDS)
        kept = segment(tmp_path).read_bytes()[starts[lost] : starts[lost] + headers[lost].size]
        change(tmp_path, starts[number] + OFFSET, 2)
        found = [each for each in (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages if each.kept_in]
        assert [each.kept_in.read_bytes() for each in found] == [kept]
        log = await open_log(tmp_path)
        left = {record.offset: record.value for record in await read_all(log.partitions[TP])}
        missing = range(headers[lost].base_offset, headers[lost].next_offset)
        assert left == {offset: value for offset, value in records.items() if offset not in missing}
        await log.close()

    run(test())


def test_offsets_that_compaction_did_not_write_are_told_and_taken_as_they_are(tmp_path):
    """The repair found no damage, and readers were refused for ever."""

    async def test():
        topic = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, topic)
        for number in range(40):
            key = b"k" if number % 4 else b"of its own %d" % number
            await partition.append(batch(b"%02d" % number, key=key))
        partition.roll()
        await log.housekeep()
        before = {record.offset for record in await read_all(partition)}
        assert 0 < len(before) < 40
        await log.close()
        data = segment(tmp_path).read_bytes()
        second = list(iter_headers(data))[1]
        position = next(iter_headers(data)).size
        assert second.base_offset % 2 == 0
        change(tmp_path, position + OFFSET, 3)  # of one bit it is known which one it was
        assert await found(tmp_path) == [(40, 40, 0)]
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert "not those that compaction wrote" in damage.reason
        log = await open_log(tmp_path)
        after = {record.offset for record in await read_all(log.partitions[TP])}
        assert after == before - {second.base_offset} | {second.base_offset + 3}
        await log.close()

    run(test())


def test_where_no_checkpoint_says_where_the_log_ended_all_that_follows_counts(tmp_path):
    async def test():
        starts = await fill(tmp_path, b"a", b"b", b"c")
        change(tmp_path, starts[1] + RECORDS)
        for name in ("checkpoint", "journal.0", "journal.1"):
            (tmp_path / name).unlink()
        (damage,) = (await repair(tmp_path, TP, clock=ManualClock(), mend=True)).damages
        assert (damage.first_offset, damage.end_offset) == (1, 2)
        log = await open_log(tmp_path)
        assert [value[:1] for value in await values(log.partitions[TP])] == [b"a", b"c"]
        await log.close()

    run(test())


def test_what_only_the_page_cache_was_trusted_with_stays_too(tmp_path):
    """The start reads no further than the damage: what lies behind is beyond all that it knows of."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        for value in (b"a", b"b"):
            await partition.append(batch(value))
        await log.checkpoint()
        partition.roll()
        for value in (b"c", b"d"):
            await partition.append(batch(value))
        abandon(log)
        segment(tmp_path).unlink()
        log = await open_log(tmp_path)
        assert (log.partitions[TP].error is not None, log.partitions[TP].log_end_offset) == (True, 2)
        await log.close()
        assert await left(tmp_path) == {2: b"c", 3: b"d"}

    run(test())


def test_what_no_batch_tells_of_is_told_by_the_segment_behind_it(tmp_path):
    """The end of a file that the page cache alone had was cut off with what was durable."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"a"))
        await log.checkpoint()
        whole = partition.segments.active.size
        for value in (b"b", b"c"):
            await partition.append(batch(value))
        partition.roll()
        await partition.append(batch(b"d"))
        abandon(log)
        segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[: whole - 1])
        assert await found(tmp_path) == [(0, 3, whole - 1)]
        assert await left(tmp_path) == {3: b"d"}

    run(test())


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("deleted", [0, 2])
def test_a_first_segment_that_is_gone_is_told_by_the_one_behind_it(tmp_path, is_saved, deleted):
    """The page cache alone had it, and the checkpoint no record: nothing was found, and no start succeeded."""

    async def test():
        log = await open_log(tmp_path)
        if not is_saved:
            await log.checkpoint()
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        if is_saved:
            await log.checkpoint()
        for value in (b"a", b"b", b"c"):
            await partition.append(batch(value))
        partition.roll()
        partition.config = TopicConfig()
        await partition.append(batch(b"d"))
        if deleted:
            await delete_records(partition, deleted)
        abandon(log)
        segment(tmp_path).unlink()
        assert await found(tmp_path) == [(deleted, 3, 0)]
        assert await left(tmp_path) == {3: b"d"}
        assert await found(tmp_path) == []

    run(test())


@pytest.mark.parametrize("number", [1, 2])
def test_an_offset_since_the_checkpoint_is_not_believed_behind_other_damage(tmp_path, number):
    """The start has read no further than that: the segments behind it were taken for ones that compaction has left."""

    async def test():
        log = await open_log(tmp_path)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig(flush_messages=1_000))
        await partition.append(batch(b"a" * 60))
        await log.checkpoint()
        partition.roll()
        for value in (b"b", b"c"):
            await partition.append(batch(value * 60))
        size = partition.segments.active.size // 2
        abandon(log)
        segment(tmp_path).unlink()
        change(tmp_path, (number - 1) * size + 5, 8, base_offset=1)
        assert await found(tmp_path) == [(0, 1, 0), (1, 1, 0) if number == 1 else (2, 3, size)]
        assert await left(tmp_path) == ({1: b"b", 2: b"c"} if number == 1 else {1: b"b"})

    run(test())
