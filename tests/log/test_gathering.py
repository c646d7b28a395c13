"""A round that gathers waits for a millisecond: what may happen meanwhile, and what is promised all the same."""

import asyncio
import errno
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mainstem.core import TopicPartition
from mainstem.log import LogConfig, StorageError, TopicConfig, checkpoint, housekeeping
from tests.log.simulated_disk import SimulatedDisk, adversary
from tests.log.support import TOPIC_ID, TP, abandon, batch, open_log, run, values
from tests.support.properties import examples

CONFIG = LogConfig(read_threads=1, sync_threads=1, journal_bytes=20_000)


@pytest.fixture
def long_gathering(monkeypatch):
    monkeypatch.setattr("mainstem.log.writer._LONGEST_GATHERING", 0.2)


class SlowDisk(SimulatedDisk):
    """The syncs of segments wait until they may go on."""

    def __init__(self, root):
        super().__init__(root)
        self.may_sync = threading.Event()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        if path.suffix == ".log":
            sync = file.sync
            file.sync = lambda: self.may_sync.wait(60) and sync()
        return file


async def gathering(log):
    """An append for which the next round waits in vain, while that gathers for others."""
    partition = log.partitions[TP]
    pair = [partition.append(batch(b"%d" % n + b"v" * 10_000)) for n in (1, 2)]
    await asyncio.sleep(0)  # their round is planned,
    await asyncio.sleep(0)  # and begins
    third = partition.append(batch(b"3"))
    await asyncio.gather(*pair)
    assert log._writer._gathering is not None
    return third


async def found(path, disk):
    log = await open_log(path, disk=disk)
    try:
        return [value[:1] for value in await values(log.partitions[TP])]
    finally:
        await log.close()


def test_no_checkpoint_is_taken_once_the_disk_has_failed(tmp_path, long_gathering):
    """The sync of a checkpoint failed while a round gathered. That round took the next checkpoint, for which no sync
    was left to fail: it said that all was on the disk, and the journal, which had it, did not count any more.
    """
    disk = SlowDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk, config=CONFIG)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"0"))
        taken = asyncio.ensure_future(log.checkpoint())
        while not log._checkpoints.running:
            await asyncio.sleep(0)
        third = await gathering(log)
        assert log._writer._journal.size >= CONFIG.journal_bytes
        disk.refuse("sync", errno.EIO, ".log")
        disk.may_sync.set()
        for refused in (third, taken):
            with pytest.raises(StorageError, match="offline"):
                await refused
        await asyncio.sleep(0.3)
        await log.close()

    run(test())
    assert run(found(tmp_path, disk.after_power_cut(lambda most: 0))) == [b"0", b"1", b"2"]


def test_what_was_queued_when_the_log_is_closed_is_written(tmp_path, long_gathering):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        await log.create_partition(TP, TOPIC_ID, TopicConfig())
        third = await gathering(log)
        await log.close()
        assert (await third).base_offset == 2

    run(test())
    assert run(found(tmp_path, disk.after_power_cut(lambda most: 0))) == [b"1", b"2", b"3"]


def test_nobody_waits_for_a_round_of_a_log_whose_disk_has_failed(tmp_path, long_gathering):
    disk = SimulatedDisk(tmp_path)

    async def test():
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        third = await gathering(log)
        deleted = asyncio.ensure_future(housekeeping.delete_records(partition, 1))
        taken = asyncio.ensure_future(log.checkpoint())
        await asyncio.sleep(0)
        rounds = log._writer.rounds
        log.fail(OSError(errno.EIO, "of a checkpoint"))
        for refused in (third, deleted, taken):
            with pytest.raises(StorageError, match="offline"):
                await refused
        await asyncio.wait_for(log._writer.idle(), 0.1)
        await log.close()
        assert log._writer.rounds == rounds

    run(test())
    assert run(found(tmp_path, disk.after_power_cut(lambda most: 0))) == [b"1", b"2"]


def test_a_log_that_is_closed_waits_for_the_round_that_the_end_of_a_checkpoint_begins(tmp_path):
    """The last checkpoint was taken while that round was under way: whose checkpoint then came last, with a journal
    that two threads had changed, and "cannot schedule new futures after shutdown".
    """
    disk = SlowDisk(tmp_path)

    async def test():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        log = await open_log(tmp_path, disk=disk)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        await partition.append(batch(b"0"))
        first = asyncio.ensure_future(log.checkpoint())
        while not log._checkpoints.running:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(log.checkpoint())
        await partition.append(batch(b"1"))
        closed = asyncio.ensure_future(log.close())
        await asyncio.sleep(0.01)
        disk.may_sync.set()
        await asyncio.gather(first, second, closed)
        await asyncio.sleep(0.01)
        assert errors == []

    run(test())
    after = disk.after_power_cut(lambda most: 0)
    assert checkpoint.load(after, tmp_path).clean
    assert run(found(tmp_path, after)) == [b"0", b"1"]


def test_after_a_kill_the_round_that_was_under_way_tells_nobody(tmp_path):
    """It went on to a checkpoint: "cannot schedule new futures after shutdown", once in thousands of histories."""
    disk = SlowDisk(tmp_path)

    async def test():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        log = await open_log(tmp_path, disk=disk, config=CONFIG)
        partition = await log.create_partition(TP, TOPIC_ID, TopicConfig())
        answer = partition.append(batch(b"v" * CONFIG.journal_bytes))
        await asyncio.sleep(0)
        checkpointed = asyncio.ensure_future(log.checkpoint())
        await asyncio.sleep(0)  # the round with the checkpoint is in the writer's thread
        abandon(log)
        await asyncio.sleep(0.01)
        assert not answer.done()
        checkpointed.cancel()
        assert errors == []

    run(test())


# -- whatever comes together -------------------------------------------------------------------------------------------

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
TOPICS = [TopicConfig(), TopicConfig(segment_bytes=600), TopicConfig(flush_messages=3)]
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 400)),
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 400)),
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 400)),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.sampled_from([0.0002, 0.0008, 0.003])),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("full"), st.sampled_from([".log", "journal", "checkpoint.new"])),
    st.tuples(st.just("no descriptor"), st.sampled_from([".log", "orders-"])),
)
ends = st.sampled_from(["close", "kill", "power cut", "sync fails: .log", "sync fails: journal", "write fails: .log"])


@settings(max_examples=examples(60))
@given(st.lists(steps, min_size=5, max_size=60), ends, st.integers(0, 2**32))
def test_what_is_acknowledged_while_rounds_gather_is_there(steps, end, seed):
    """Appends, deletions and checkpoints beside a disk that is full now and then, ended in any way in the middle."""
    path = Path(tempfile.mkdtemp(prefix="gathering-"))
    try:
        asyncio.run(_play(path, steps, end, seed))
    finally:
        shutil.rmtree(path)


async def _play(path, steps, end, seed):
    disk = SimulatedDisk(path)
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    log = await open_log(path, disk=disk, config=CONFIG)
    for number, (topic_partition, topic) in enumerate(zip(PARTITIONS, TOPICS, strict=True)):
        await log.create_partition(topic_partition, UUID(int=number + 1), topic)
    partitions = [log.partitions[each] for each in PARTITIONS]
    appends, others = [], []
    for number, (step, *arguments) in enumerate(steps):
        with suppress(StorageError):  # it is offline for want of room, perhaps
            if step == "append":
                place, size = arguments
                value = b"%d " % number + b"v" * size
                appends.append((place, value, partitions[place].append(batch(value))))
            elif step == "turns":
                for _ in range(*arguments):
                    await asyncio.sleep(0)
            elif step == "wait":
                await asyncio.sleep(*arguments)
            elif step == "checkpoint":
                others.append(asyncio.ensure_future(log.checkpoint()))
            elif step == "delete":
                partition = partitions[arguments[0]]
                others.append(asyncio.ensure_future(housekeeping.delete_records(partition, partition.log_start_offset)))
            elif step == "full":
                disk.refuse("write", errno.ENOSPC, *arguments)
            else:
                disk.refuse("create" if arguments == [".log"] else "sync_directory", errno.EMFILE, *arguments)
    if end == "close":
        await asyncio.wait_for(log.close(), 30)
    elif ":" in end:
        call, _, where = end.partition(" fails: ")
        disk.refuse(call, errno.EIO, where)
        others.append(asyncio.ensure_future(log.checkpoint()))
        with suppress(StorageError):
            appends.append((0, b"last", partitions[0].append(batch(b"last"))))
        await asyncio.wait([*(answer for _, _, answer in appends), *others], timeout=5)
        await asyncio.wait_for(log.close(), 30)
    if end in ("kill", "power cut"):
        abandon(log)
        for waiting in (*(answer for _, _, answer in appends), *others):
            waiting.cancel()
    # A log that was closed, or whose disk has failed, lets nobody wait.
    outcomes = await asyncio.wait_for(asyncio.gather(*(a for _, _, a in appends), *others, return_exceptions=True), 5)
    assert {type(each) for each in outcomes if isinstance(each, Exception)} <= {StorageError}
    assert errors == []
    after = disk.after_kill() if end == "kill" else disk.after_power_cut(adversary(seed))
    await _check(path, after, appends, power_cut=end != "kill")


async def _check(path, disk, appends, *, power_cut):
    log = await open_log(path, disk=disk)
    for place, topic_partition in enumerate(PARTITIONS):
        there = await values(log.partitions[topic_partition])
        sent = [(value, answer) for at, value, answer in appends if at == place]
        assert len(set(there)) == len(there)
        assert there == [value for value, _ in sent if value in there], "in another order"
        for value, answer in sent:
            acknowledged = not answer.cancelled() and answer.exception() is None
            if acknowledged and (TOPICS[place].flush_messages == 1 or not power_cut):
                assert there[answer.result().base_offset] == value
            if not acknowledged and not answer.cancelled() and "nothing was appended" in str(answer.exception()):
                assert value not in there
    await log.close()
