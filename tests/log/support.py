"""Short ways to a log directory and to batches, for the log's tests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from mainstem.core import ManualClock, TopicPartition
from mainstem.log import Disk, LogConfig, LogDirectory, PartitionLog, ReadResult, TopicConfig
from mainstem.log.disk import SystemFile
from mainstem.records import Record, build_batch, decode_records, iter_headers

T = TypeVar("T")

TP = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=7)
# One thread each, so that a simulated disk sees the same calls in the same order every time.
CONFIG = LogConfig(read_threads=1, sync_threads=1)


def joined(found: ReadResult) -> bytes:
    """All batches that were read, one after the other."""
    return b"".join(found.pieces)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    keys: list[bytes | None] | None = None,
    timestamp: int = 1_700_000_000_000,
    **fields: Any,
) -> bytes:
    names = keys or [key] * len(values)
    records = [Record(0, timestamp, name, value) for name, value in zip(names, values, strict=True)]
    return build_batch(records, **fields)


def sequenced(
    *content: bytes, sequence: int, transactional: bool = False, epoch: int = 0, producer_id: int = 1
) -> bytes:
    """A batch of an idempotent producer."""
    return batch(
        *content, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


async def open_log(
    path: Path, *, disk: Disk | None = None, config: LogConfig = CONFIG, clock: ManualClock | None = None
) -> LogDirectory:
    return await LogDirectory.open(path, config, clock=clock or ManualClock(), disk=disk)


def skip_unless_told_of_the_page_cache(file: SystemFile) -> None:
    """Of a file that has something in it."""
    if file.cached_share(1, 0) is None:
        pytest.skip("this system does not tell what is in the page cache (cachestat is Linux 6.5's)")


def drop_from_page_cache(file: SystemFile, size: int) -> None:
    """All of a file that has been synced."""
    skip_unless_told_of_the_page_cache(file)
    os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if file.cached_share(size, 0) == 1:
        pytest.skip("this file system keeps in the page cache what it is told to drop")


async def with_partition(
    path: Path,
    test: Callable[[PartitionLog], Awaitable[T]],
    *,
    disk: Disk | None = None,
    config: LogConfig = CONFIG,
    topic: TopicConfig | None = None,
    clock: ManualClock | None = None,
) -> T:
    """Run `test` on a partition of a log directory, which is closed afterwards."""
    log = await open_log(path, disk=disk, config=config, clock=clock)
    try:
        if TP in log.partitions:
            partition = log.partitions[TP]
            partition.config = topic or TopicConfig()
        else:
            partition = await log.create_partition(TP, TOPIC_ID, topic or TopicConfig())
        return await test(partition)
    finally:
        await log.close()


async def read_all(partition: PartitionLog, *, start: int | None = None, committed_only: bool = False) -> list[Record]:
    """Every record that a consumer sees, without those of aborted transactions and control records."""
    records: list[Record] = []
    offset = partition.log_start_offset if start is None else start
    while True:
        result = await partition.read(offset, 1 << 20, committed_only=committed_only)
        whole = joined(result)
        if not whole:
            return records
        position = 0
        for header in iter_headers(whole):
            data = whole[position : position + header.size]
            position += header.size
            aborted = any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in result.aborted
            )
            if not header.is_control and not (header.is_transactional and aborted):
                records += [record for record in decode_records(data) if record.offset >= offset]
        offset = header.last_offset + 1


async def values(partition: PartitionLog, **how: Any) -> list[bytes | None]:
    return [record.value for record in await read_all(partition, **how)]


class CountedList(list[T]):
    """Counts how often one of its items is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self.looks += 1
            yield item


def deleted_files(directory: Path) -> int:
    """Files below `directory` that were deleted and keep their disk space, since this process has them open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(str(link.readlink()))
    return sum(path.startswith(f"{directory}/") and path.endswith(" (deleted)") for path in found)


def abandon(log: LogDirectory) -> None:
    """Let go of the directory as a dead process does: nothing is written."""
    log._stop.set()
    if log._housekeeping_timer is not None:
        log._housekeeping_timer.cancel()
    log._let_go()
