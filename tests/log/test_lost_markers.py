"""Which ends of transactions were in a hole, by what is known of the transactions and by what follows."""

from random import Random

import pytest

from mainstem.core import ManualClock
from mainstem.log import TopicConfig
from mainstem.log.journal import NAMES
from mainstem.log.repair import repair
from mainstem.log.segment import LOG, file_name
from mainstem.records import iter_headers
from tests.log.support import TOPIC_ID, TP, abandon, batch, joined, open_log, read_all, run, sequenced

COMMIT, ABORT = "commit", "abort"


async def write(path, story, *, killed=False):
    """Append what `story` says, in order: producer id, and the value of a batch or the end of its transaction."""
    log = await open_log(path)
    partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
    sequences = dict.fromkeys(range(1, 10), 0)
    for producer_id, what in story:
        if what in (COMMIT, ABORT):
            await partition.append_marker(producer_id, 0, commit=what == COMMIT, coordinator_epoch=0)
        elif producer_id == 0:
            await partition.append(batch(what.encode()))
        else:
            data = sequenced(
                what.encode(), sequence=sequences[producer_id], transactional=True, producer_id=producer_id
            )
            sequences[producer_id] += 1
            await partition.append(data)
    await log.checkpoint()
    if killed:
        abandon(log)
    else:
        await log.close()


def damage(path, *offsets):
    """A bit of each of these batches."""
    file = path / str(TP) / file_name(0, LOG)
    data = bytearray(file.read_bytes())
    position = 0
    for header in iter_headers(bytes(data)):
        position += header.size
        if header.base_offset in offsets:
            data[position - 1] ^= 1
    file.write_bytes(data)


async def repaired(path):
    """The markers that were put back, what readers of committed records see, and the transactions that are open."""
    done = await repair(path, TP, clock=ManualClock(), mend=True)
    markers = sum(len(each.markers) for each in done.damages)
    log = await open_log(path)
    partition = log.partitions[TP]
    seen = [record.value.decode() for record in await read_all(partition, committed_only=True)]
    still_open = list(partition.open_transactions)
    ends, aborted, offset = set(), set(), partition.log_start_offset
    while batches := joined(read := await partition.read(offset, 1 << 20, committed_only=True)):
        headers = list(iter_headers(batches))
        ends |= {header.base_offset for header in headers if header.is_control}
        aborted |= {each.last_offset for each in read.aborted}
        offset = headers[-1].next_offset
    # Clients leave out what is aborted until they see its end.
    assert {each for each in aborted if each < offset} <= ends
    assert not done.damages or done.open_transactions.keys() == set(still_open)
    await log.close()
    return markers, seen, still_open


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("story", "damaged", "expected"),
    [
        ([(1, "a"), (1, COMMIT), (0, "z")], [1], (1, ["a", "z"], [])),
        ([(1, "a"), (1, ABORT), (0, "z")], [1], (1, ["z"], [])),
        ([(1, "a"), (1, ABORT), (1, "b"), (1, COMMIT)], [1], (1, ["b"], [])),
        ([(1, "a"), (1, COMMIT), (1, "b"), (1, ABORT), (1, "c"), (1, COMMIT)], [1], (1, ["a", "c"], [])),
        # The next marker says the same: without the lost one nobody sees anything else.
        ([(1, "a"), (1, COMMIT), (1, "b"), (1, COMMIT)], [1], (0, ["a", "b"], [])),
        # The next transaction is open, then it is known to be.
        ([(1, "a"), (1, COMMIT), (1, "b")], [1], (1, ["a"], [1])),
        ([(1, "a"), (1, ABORT), (1, "b")], [1], (1, [], [1])),
        # A transaction that goes on behind the hole.
        ([(1, "a"), (0, "x"), (1, "b"), (1, ABORT), (0, "z")], [1], (0, ["z"], [])),
        ([(1, "a"), (0, "x"), (1, "b"), (0, "z")], [1], (0, [], [1])),
        # Its first batch is lost.
        ([(1, "a"), (1, "b"), (1, ABORT), (0, "z")], [0], (0, ["z"], [])),
        ([(1, "a"), (1, "b"), (1, ABORT), (0, "z")], [0, 2], (1, ["z"], [])),
        # Two holes; the end was in one of them.
        ([(1, "a"), (1, COMMIT), (1, "b"), (0, "x"), (1, "c"), (1, ABORT), (0, "z")], [1, 3], (1, ["a", "z"], [])),
        ([(1, "a"), (0, "x"), (1, "b"), (1, COMMIT), (1, "c"), (1, ABORT), (0, "z")], [1, 3], (1, ["a", "b", "z"], [])),
        ([(1, "a"), (1, COMMIT), (0, "x"), (1, "b"), (1, ABORT), (0, "z")], [1, 4], (2, ["a", "x", "z"], [])),
        # Others are open over the hole, and end behind it.
        ([(1, "a"), (2, "b"), (3, "c"), (2, COMMIT), (1, ABORT), (3, COMMIT)], [3], (1, ["b", "c"], [])),
        ([(1, "a"), (2, "b"), (3, "c"), (2, ABORT), (1, COMMIT), (3, ABORT)], [3], (1, ["a"], [])),
        # Holes with room for one end each: whose producer goes on first is put first.
        ([(1, "a"), (1, COMMIT), (2, "b"), (2, COMMIT), (0, "z")], [1, 3], (2, ["a", "b", "z"], [])),
        ([(1, "a"), (1, COMMIT), (2, "b"), (2, COMMIT), (1, "c"), (1, ABORT), (2, "d"), (2, ABORT)], [1, 3],
         (2, ["a", "b"], [])),
        ([(1, "a"), (2, "b"), (2, COMMIT), (2, "c"), (1, COMMIT), (2, ABORT)], [2, 4], (2, ["a", "b"], [])),
        # All of a transaction is lost.
        ([(0, "x"), (1, "a"), (1, ABORT), (0, "z")], [1, 2], (0, ["x", "z"], [])),
        ([(1, "a"), (0, "x"), (1, ABORT), (2, "b"), (2, COMMIT)], [2, 4], (2, ["x", "b"], [])),
    ],
)  # fmt: skip
def test_transactions_end_as_they_did(tmp_path, story, damaged, expected, killed):
    async def test():
        await write(tmp_path, story, killed=killed)
        damage(tmp_path, *damaged)
        assert await repaired(tmp_path) == expected

    run(test())


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ends_are_lost_what_is_committed_stays_so(tmp_path, seed):
    random, story, lost, is_open = Random(seed), [], [], set()
    for number in range(random.randrange(4, 40)):
        producer_id = random.randrange(0, 5)
        ends = producer_id in is_open and random.random() < 0.5
        story.append((producer_id, random.choice([COMMIT, ABORT]) if ends else f"{number}"))
        if ends:
            is_open.discard(producer_id)
            if random.random() < 0.6:
                lost.append(number)
        elif producer_id:
            is_open.add(producer_id)

    async def test():
        await write(tmp_path, story)
        log = await open_log(tmp_path)
        seen = [record.value.decode() for record in await read_all(log.partitions[TP], committed_only=True)]
        await log.close()
        damage(tmp_path, *lost)
        _, left, still_open = await repaired(tmp_path)
        # Up to where the first one is open, which may be one whose last records nobody knows to be of the next.
        assert (left, set(still_open)) == (seen, is_open)

    run(test())


@pytest.mark.parametrize("flipped", [1, 2, 32])
def test_an_end_that_is_written_again_is_of_the_right_leader_epoch(tmp_path, flipped):
    """That of the batch before it was damaged, too."""

    async def test():
        log = await open_log(tmp_path)
        await (await log.create_partition(TP, TOPIC_ID, TopicConfig())).append(batch(b"0"))
        log.partitions[TP].raise_leader_epoch(2)
        await log.partitions[TP].append(sequenced(b"a", sequence=0, transactional=True))
        await log.partitions[TP].append_marker(1, 0, commit=False, coordinator_epoch=0)
        await log.partitions[TP].append(batch(b"z"))
        await log.close()
        damage(tmp_path, 2)
        file = tmp_path / str(TP) / file_name(0, LOG)
        data = bytearray(file.read_bytes())
        data[len(batch(b"0")) + 15] ^= flipped
        file.write_bytes(data)
        assert await repaired(tmp_path) == (1, ["0", "z"], [])

    run(test())


def test_where_only_the_checkpoint_knew_a_transaction_stays_open_and_that_is_told(tmp_path):
    async def test():
        await write(tmp_path, [(1, "a"), (1, COMMIT), (0, "z")])
        damage(tmp_path, 1)
        for name in ("checkpoint", *NAMES):
            (tmp_path / name).unlink()
        assert await repaired(tmp_path) == (0, [], [1])

    run(test())


def test_of_what_came_after_the_checkpoint_the_journal_has_the_ends(tmp_path):
    async def test():
        await write(tmp_path, [(1, "a")])
        log = await open_log(tmp_path)
        await log.partitions[TP].append_marker(1, 0, commit=False, coordinator_epoch=0)
        await log.partitions[TP].append(batch(b"z"))
        abandon(log)
        damage(tmp_path, 0, 1)
        assert await repaired(tmp_path) == (0, ["z"], [])

    run(test())
