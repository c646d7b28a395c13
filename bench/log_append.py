"""The log's own cost: appends, rounds, reads, a start. One process, no network.

python -m bench.log_append [--directory DIR] [--partitions 2000] [--seconds 3]
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from uuid import UUID

from bench.slow_log import SlowDisk
from mainstem.core import SystemClock, TopicPartition
from mainstem.log import LogConfig, LogDirectory, PartitionLog, SystemDisk, TopicConfig
from mainstem.records import Record, build_batch, iter_spans


def batch(size: int) -> bytes:
    return build_batch([Record(0, int(time.time() * 1000), b"k", b"v" * (size - 80))])


async def appends(log: LogDirectory, partitions: list[PartitionLog], size: int, in_flight: int, seconds: float) -> None:
    data = batch(size)
    count, calls = 0, 0.0
    waits: list[float] = []
    deadline = time.perf_counter() + seconds

    async def produce(partition: PartitionLog) -> None:
        nonlocal count, calls
        flying = []
        while time.perf_counter() < deadline or not waits:
            started, cpu = time.perf_counter(), time.thread_time()
            flying.append((started, partition.append(data)))
            calls += time.thread_time() - cpu
            count += 1
            if len(flying) >= in_flight:
                started, future = flying.pop(0)
                await future
                waits.append(time.perf_counter() - started)
        for _, future in flying:
            await future

    started, rounds = time.perf_counter(), log._writer.rounds
    await asyncio.gather(*(produce(partition) for partition in partitions))
    elapsed, rounds = time.perf_counter() - started, log._writer.rounds - rounds
    waits.sort()
    print(
        f"append {len(partitions):>5} partitions, {size:>7} B, {in_flight} in flight: {count / elapsed:>8.0f}/s"
        f" {count * size / elapsed / 1e6:>6.0f} MB/s, append() {calls / count * 1e6:>5.1f} us of CPU,"
        f" wait median {statistics.median(waits) * 1e3:>6.2f} ms p99 {waits[int(len(waits) * 0.99)] * 1e3:>6.2f} ms,"
        f" {count / max(rounds, 1):.1f} appends per round",
        flush=True,
    )


async def read(partition: PartitionLog) -> None:
    started, offset, size, calls = time.perf_counter(), partition.log_start_offset, 0, 0
    while offset < partition.high_watermark:
        result = await partition.read(offset, 1 << 20)
        size += result.size
        calls += 1
        for piece in result.pieces:
            for span in iter_spans(piece):
                offset = span.last_offset + 1
    elapsed = time.perf_counter() - started
    print(f"read   {size / 1e6:.0f} MB in {calls} calls: {size / elapsed / 1e6:.0f} MB/s", flush=True)


async def main(directory: Path, count: int, seconds: float) -> None:
    for name, disk in (("as it is", SystemDisk()), ("+3 ms", SlowDisk())):
        path = Path(tempfile.mkdtemp(prefix="log-append-", dir=directory))
        try:
            print(f"-- sync {name}")
            log = await LogDirectory.open(path, LogConfig(), clock=SystemClock(), disk=disk)
            started = time.perf_counter()
            topics = [TopicPartition("bench", n) for n in range(count)]
            partitions = await asyncio.gather(*(log.create_partition(tp, UUID(int=1), TopicConfig()) for tp in topics))
            print(f"create {count:,} partitions: {time.perf_counter() - started:.2f} s")
            await appends(log, partitions[:1], 16_384, 1, seconds)
            await appends(log, partitions[:1], 16_384, 8, seconds)
            await appends(log, partitions[1:21], 16_384, 1, seconds)
            await appends(log, partitions[:4], 262_144, 4, seconds)
            await appends(log, partitions, 1_024, 1, seconds)
            await read(partitions[0])
            started = time.perf_counter()
            await log.close()
            print(f"close: {time.perf_counter() - started:.2f} s")
            started = time.perf_counter()
            log = await LogDirectory.open(path, LogConfig(), clock=SystemClock())
            print(f"start after it: {time.perf_counter() - started:.2f} s")
            await log.close()
        finally:
            shutil.rmtree(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(), help="on the file system to measure")
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    options = parser.parse_args()
    asyncio.run(main(options.directory, options.partitions, options.seconds))
