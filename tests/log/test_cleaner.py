"""Compaction in a process of its own: it does the same, and its end is nobody else's."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from mainstem.core import ManualClock
from mainstem.log import LogDirectory, PartitionLog, StorageError, TopicConfig, cleaner, housekeeping
from mainstem.records import Record, build_batch
from tests.log.support import TOPIC_ID, TP, batch, open_log, read_all, run
from tests.support.repository import ROOT

COMPACT = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, segment_bytes=200_000)
Test = Callable[[LogDirectory, PartitionLog], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def every_compaction_in_the_process(monkeypatch):
    monkeypatch.setattr(cleaner, "PROCESS_BYTES", 0)


def with_filled_log(path: Path, test: Test, *, closes: bool = False) -> None:
    async def filled() -> None:
        log = await open_log(path, clock=ManualClock())
        partition = await log.create_partition(TP, TOPIC_ID, COMPACT)
        for number in range(8):
            await append(partition, number)
        partition.roll()
        await log.checkpoint()
        await test(log, partition)
        if not closes:
            await log.close()

    run(filled())


async def append(partition: PartitionLog, number: int, *, count: int = 500) -> None:
    keys = [b"%d" % (n % 50) for n in range(number, number + count)]
    await partition.append(batch(*[b"v" * 100] * count, keys=keys, timestamp=partition.shared.clock.now_ms()))


def test_it_does_what_a_thread_does(tmp_path, monkeypatch):
    """Tombstones, transactions, compressed batches, batches that hold something else: byte by byte the same files."""

    async def in_one(path: Path) -> list[bytes]:
        clock = ManualClock()
        log = await open_log(path, clock=clock)
        partition = await log.create_partition(TP, TOPIC_ID, COMPACT)
        for round_ in range(3):
            for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
                names = [b"%d" % n for n in range(number, 200, round_ + 1)]
                values = [None if n % 7 == round_ else b"v" * n for n in range(len(names))]
                await partition.append(batch(*values, keys=names, timestamp=clock.now_ms(), compression=codec))
            headed = [Record(0, clock.now_ms(), b"headed", b"v", (("name", b"\xff"),)), Record(0, 1, b"long" * 99, b"")]
            await partition.append(build_batch(headed))
            fields = {"producer_id": 1, "producer_epoch": 0, "transactional": True, "base_sequence": 2 * round_}
            await partition.append(batch(b"1", b"2", keys=[b"1", b"t"], **fields))
            await partition.append_marker(1, 0, commit=round_ != 1, coordinator_epoch=0)
            partition.roll()
            clock.advance_ms(1_000)
            await log.housekeep()
            assert partition.cleaned_offset == partition.log_end_offset
        clock.advance_ms(TopicConfig().delete_retention_ms)
        await log.housekeep()
        records = await read_all(partition, committed_only=True)
        files = [path.read_bytes() for path in sorted(partition.directory.glob("*.log"))]
        indexes = [bytes(s.offset_index.data) + bytes(s.time_index.data) for s in partition.segments]
        await log.close()
        return [repr(records).encode(), *files, *indexes]

    one = run(in_one(tmp_path / "process"))
    monkeypatch.setattr(cleaner, "PROCESS_BYTES", 1 << 40)
    assert one == run(in_one(tmp_path / "thread"))


def test_a_compacted_log_opens_again_with_its_look_ups(tmp_path):
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        await log.housekeep()
        before = await read_all(partition)
        assert len(before) == 50
        await log.close()
        log = await open_log(tmp_path)
        partition = log.partitions[TP]
        assert await read_all(partition) == before
        assert (await partition.offset_for_timestamp(before[-1].timestamp)) is not None
        await log.close()

    with_filled_log(tmp_path, test, closes=True)


def test_the_process_is_there_while_there_is_something_to_do(tmp_path):
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        assert log._cleaner.process_id == 0
        assert await housekeeping.compact(partition, log._cleaner, most_keys=1_000)
        child = psutil.Process(log._cleaner.process_id)
        assert child.nice() > psutil.Process().nice()
        await log.housekeep()
        assert log._cleaner.process_id == 0
        assert not child.is_running()

    with_filled_log(tmp_path, test)


async def started(log: LogDirectory) -> psutil.Process:
    while not log._cleaner.process_id:
        await asyncio.sleep(0.001)
    return psutil.Process(log._cleaner.process_id)


def test_a_process_that_is_killed_costs_one_compaction(tmp_path):
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        async with asyncio.TaskGroup() as group:
            with structlog.testing.capture_logs() as logs:
                cleaning = group.create_task(log.housekeep())
                child = await started(log)
                child.suspend()
                (partition.directory / f"{0:020d}.log.cleaned").write_bytes(b"begun")
                child.kill()
                await cleaning
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("housekeeping_skipped", "warning")]
        assert "process ended (-9)" in logs[0]["error"]
        assert partition.error is None
        assert not list(partition.directory.glob("*.cleaned"))
        await log.housekeep()
        assert len(await read_all(partition)) == 50

    with_filled_log(tmp_path, test)


def test_the_log_is_closed_at_once(tmp_path):
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        async with asyncio.TaskGroup() as group:
            cleaning = group.create_task(log.housekeep())
            child = await started(log)
            child.suspend()  # it would take for ever
            log._housekeeping = cleaning
            await asyncio.wait_for(log.close(), 5)
        assert not child.is_running()
        assert not list(partition.directory.glob("*.cleaned"))

    with_filled_log(tmp_path, test, closes=True)


def killed_while_compacting(path: Path) -> None:
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(log.housekeep())
            print((await started(log)).pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    cleaner.PROCESS_BYTES = 0
    with_filled_log(path, test)


def test_it_dies_with_the_log(tmp_path):
    """Also where that is killed, in the middle of a compaction; the next start finds nothing of it."""
    code = f"import pathlib; from tests.log.test_cleaner import *; killed_while_compacting(pathlib.Path({str(tmp_path)!r}))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, timeout=60, check=False)
    assert process.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(process.stdout)).wait(10)

    async def again() -> None:
        log = await open_log(tmp_path)
        log.partitions[TP].config = COMPACT
        await log.housekeep()
        assert len(await read_all(log.partitions[TP])) == 50
        await log.close()

    run(again())


def test_damage_and_a_disk_that_refuses_come_back_as_such(tmp_path):
    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        blocked = partition.directory / f"{0:020d}.log.cleaned"
        blocked.mkdir()
        with pytest.raises(StorageError, match="directory"):
            await housekeeping.compact(partition, log._cleaner, most_keys=1_000)
        assert partition.error is None
        blocked.rmdir()
        path = partition.segments[0].path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(StorageError, match="bad CRC") as raised:
            await housekeeping.compact(partition, log._cleaner, most_keys=1_000)
        assert str(partition.error) == str(raised.value)
        assert "log repair" in (partition.error.hint or "")
        assert path.read_bytes() == data

    with_filled_log(tmp_path, test)


def test_a_partition_that_is_deleted_meanwhile(tmp_path):
    """Another takes its name, and what the process finds there is not what it was told of."""

    async def test(log: LogDirectory, partition: PartitionLog) -> None:
        async with asyncio.TaskGroup() as group:
            cleaning = group.create_task(housekeeping.compact(partition, log._cleaner, most_keys=1_000))
            child = await started(log)
            child.suspend()
            await log.delete_partition(TP)
            other = await log.create_partition(TP, type(TOPIC_ID)(int=8), COMPACT)
            await append(other, 0, count=3)
            child.resume()
            assert not await cleaning
        assert not list(other.directory.glob("*.cleaned"))
        assert len(await read_all(other)) == 3
        assert other.error is None

    with_filled_log(tmp_path, test)
