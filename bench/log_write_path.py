"""The log's write path: one fdatasync per dirty segment, or one journal?

A small program, apart from the log it helped to design. Every way pays what the real one must: batches are checked
(CRC, producer sequence), offsets assigned on the event loop, writes and syncs happen in a thread, one round is in
flight, and an append is answered when a sync covers it (high watermark = synced offset).

    python bench/log_write_path.py [--directory DIR] [--seconds 1.5] [--repeat 3] [--output FILE]

Ways:
    serial        write every dirty segment, then fdatasync one after the other
    pool-N        the same, fdatasync in N threads
    range         sync_file_range(WRITE) starts the write-back of every segment first, then fdatasync one by one
    syncfs        write every dirty segment, then one syncfs of the file system
    journal       append the round to one journal, one fdatasync; segments are written to the page cache; when the
                  journal has 64 MB, another one goes on and the segments are synced in the background
    journal-reuse the same, over a journal file that was written before (no block is allocated, its size stays)
"""

import argparse
import asyncio
import ctypes
import json
import os
import shutil
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crc32c import crc32c

from mainstem.log import producers as producer_state
from mainstem.log.producers import Producer
from mainstem.records import Record, build_batch, decode_header
from mainstem.records.batch import PREFIX

LIBC = ctypes.CDLL(None, use_errno=True)
SYNC_FILE_RANGE_WRITE = 2
JOURNAL_BYTES = 64 << 20


class Segment:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.size = self.next_offset = self.high_watermark = 0
        self.producer: Producer | None = None
        self.queue: list[tuple[bytes | memoryview, ...]] = []
        self.queued_from = 0
        self.waiting: list[tuple[int, asyncio.Future[int]]] = []


Pieces = list[bytes | memoryview]
Write = tuple[Segment, int, Pieces]  # what is written to a segment, and from which position


class Way(ABC):
    """How a round reaches the disk. `sync_delay` is added to every sync: other people's disks."""

    def __init__(self, directory: Path, sync_delay: float) -> None:
        self.directory, self.delay = directory, sync_delay
        self.syncs = 0

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)
        self.syncs += 1
        if self.delay:
            time.sleep(self.delay)

    def write_segments(self, round_: list[Write]) -> None:
        for segment, position, pieces in round_:
            os.pwritev(segment.fd, pieces, position)

    @abstractmethod
    def run(self, round_: list[Write]) -> None: ...

    def close(self) -> None:
        return


class Serial(Way):
    def run(self, round_: list[Write]) -> None:
        self.write_segments(round_)
        for segment, _, _ in round_:
            self.sync(segment.fd)


class Pool(Way):
    def __init__(self, directory: Path, sync_delay: float, threads: int) -> None:
        super().__init__(directory, sync_delay)
        self.pool = ThreadPoolExecutor(threads)

    def run(self, round_: list[Write]) -> None:
        self.write_segments(round_)
        list(self.pool.map(lambda entry: self.sync(entry[0].fd), round_))

    def close(self) -> None:
        self.pool.shutdown()


class Range(Way):
    def run(self, round_: list[Write]) -> None:
        self.write_segments(round_)
        for segment, position, pieces in round_:
            size = ctypes.c_int64(sum(map(len, pieces)))
            LIBC.sync_file_range(segment.fd, ctypes.c_int64(position), size, SYNC_FILE_RANGE_WRITE)
        for segment, _, _ in round_:
            self.sync(segment.fd)


class Syncfs(Way):
    def run(self, round_: list[Write]) -> None:
        self.write_segments(round_)
        if LIBC.syncfs(round_[0][0].fd):
            raise OSError(ctypes.get_errno(), "syncfs")
        self.syncs += 1
        if self.delay:
            time.sleep(self.delay)


class Journal(Way):
    def __init__(self, directory: Path, sync_delay: float, reuse: bool) -> None:
        super().__init__(directory, sync_delay)
        self.fds = [os.open(directory / f"journal{i}", os.O_RDWR | os.O_CREAT, 0o644) for i in range(2)]
        if reuse:
            for fd in self.fds:
                for at in range(0, JOURNAL_BYTES + (8 << 20), 1 << 20):
                    os.pwrite(fd, b"\0" * (1 << 20), at)
                os.fsync(fd)
        self.reuse, self.current, self.position = reuse, 0, 0
        self.dirty: set[Segment] = set()
        self.background = ThreadPoolExecutor(1)
        self.pool = ThreadPoolExecutor(8)
        self.checkpoint: Future[None] | None = None

    def run(self, round_: list[Write]) -> None:
        frame: list[bytes | memoryview] = [b""]
        for segment, position, pieces in round_:
            frame.append(b"%24d%24d" % (id(segment), position))
            frame.extend(pieces)
        crc = 0
        for piece in frame:
            crc = crc32c(piece, crc)
        frame[0] = b"%12d%12d" % (crc, sum(map(len, frame)))
        for start in range(0, len(frame), 1024):
            part = frame[start : start + 1024]
            self.position += os.pwritev(self.fds[self.current], part, self.position)
        self.sync(self.fds[self.current])
        self.write_segments(round_)
        self.dirty.update(entry[0] for entry in round_)
        if self.position > JOURNAL_BYTES and (self.checkpoint is None or self.checkpoint.done()):
            dirty, self.dirty = self.dirty, set()
            self.checkpoint = self.background.submit(self.sync_segments, dirty)
            self.current, self.position = 1 - self.current, 0
            if not self.reuse:
                os.ftruncate(self.fds[self.current], 0)

    def sync_segments(self, dirty: set[Segment]) -> None:
        list(self.pool.map(lambda segment: self.sync(segment.fd), dirty))

    def close(self) -> None:
        self.background.shutdown()
        self.pool.shutdown()


WAYS: dict[str, Callable[[Path, float], Way]] = {
    "serial": Serial,
    "pool-4": lambda d, s: Pool(d, s, 4),
    "pool-8": lambda d, s: Pool(d, s, 8),
    "pool-16": lambda d, s: Pool(d, s, 16),
    "range": Range,
    "syncfs": Syncfs,
    "journal": lambda d, s: Journal(d, s, reuse=False),
    "journal-reuse": lambda d, s: Journal(d, s, reuse=True),
}


class Log:
    """Appends on the loop, rounds in one thread."""

    def __init__(self, way: Way) -> None:
        self.way, self.loop = way, asyncio.get_running_loop()
        self.thread = ThreadPoolExecutor(1)
        self.dirty: list[Segment] = []
        self.busy = False
        self.rounds: list[float] = []

    def append(self, segment: Segment, batch: bytes) -> "asyncio.Future[int]":
        header = decode_header(batch)
        if producer_state.find_duplicate(segment.producer, header) is None:
            now_ms = int(time.time() * 1000)
            segment.producer = producer_state.after_batch(
                segment.producer, header, segment.next_offset, now_ms, "bench"
            )
        prefix = PREFIX.pack(segment.next_offset, header.size - 12, 0)
        if not segment.queue:
            self.dirty.append(segment)
            segment.queued_from = segment.size
        segment.queue.append((prefix, memoryview(batch)[16:]))
        segment.size += header.size
        segment.next_offset += header.count
        future = self.loop.create_future()
        segment.waiting.append((segment.next_offset, future))
        if not self.busy:
            self.busy = True
            self.loop.call_soon(self.start_round)
        return future

    def start_round(self) -> None:
        dirty, self.dirty = self.dirty, []
        round_ = []
        for segment in dirty:
            pieces = [piece for pair in segment.queue for piece in pair]
            segment.queue = []
            round_.append((segment, segment.queued_from, pieces, segment.next_offset))
        started = time.perf_counter()
        done = self.loop.run_in_executor(self.thread, self.way.run, [entry[:3] for entry in round_])
        done.add_done_callback(lambda future: self.end_round(round_, started, future))

    def end_round(
        self, round_: list[tuple[Segment, int, Pieces, int]], started: float, future: asyncio.Future[None]
    ) -> None:
        future.result()
        self.rounds.append(time.perf_counter() - started)
        for segment, _, _, end in round_:
            segment.high_watermark = end
            waiting, segment.waiting = segment.waiting, []
            for next_offset, waiter in waiting:
                if next_offset <= end:
                    waiter.set_result(next_offset)
                else:
                    segment.waiting.append((next_offset, waiter))
        if self.dirty:
            self.start_round()
        else:
            self.busy = False


def batches(record_bytes: int) -> "list[bytes]":
    """A producer's batches: sequences 0, 1, 2, ... wrap at 4096, where the program starts a new epoch."""
    record = Record(0, int(time.time() * 1000), b"key", os.urandom(record_bytes - 61 - 20))
    return [build_batch([record], producer_id=1, producer_epoch=0, base_sequence=i) for i in range(4096)]


async def measure(
    way_name: str, directory: Path, partitions: int, record_bytes: int, depth: int, delay: float, seconds: float
) -> dict[str, Any]:
    way = WAYS[way_name](directory, delay)
    log = Log(way)
    segments = [Segment(directory / f"{i:05d}.log") for i in range(partitions)]
    made = batches(record_bytes)
    count = 0
    deadline = time.perf_counter() + seconds

    async def produce(segment: Segment) -> None:
        nonlocal count
        flying: list[asyncio.Future[int]] = []
        number = 0
        while time.perf_counter() < deadline or number < 2:
            if number % 4096 == 0:
                await asyncio.gather(*flying)
                segment.producer, flying = None, []
            flying.append(log.append(segment, made[number % 4096]))
            number += 1
            if len(flying) >= depth:
                await flying.pop(0)
            count += 1
        await asyncio.gather(*flying)

    started = time.perf_counter()
    await asyncio.gather(*(produce(segment) for segment in segments))
    elapsed = time.perf_counter() - started
    way.close()
    log.thread.shutdown()
    for segment in segments:
        assert segment.high_watermark == segment.next_offset
        os.close(segment.fd)
    rounds = sorted(log.rounds)
    return {
        "way": way_name,
        "partitions": partitions,
        "batch_bytes": len(made[0]),
        "in_flight": depth,
        "sync_delay_ms": delay * 1000,
        "round_ms_median": statistics.median(rounds) * 1000,
        "round_ms_p99": rounds[int(len(rounds) * 0.99)] * 1000,
        "appends_per_s": count / elapsed,
        "mb_per_s": count * len(made[0]) / elapsed / 1e6,
        "rounds": len(rounds),
    }


CASES = [  # partitions, bytes per batch, in flight per partition
    (1, 16_384, 1),
    (20, 16_384, 1),
    (2_000, 1_024, 1),
    (4, 262_144, 8),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=".", help="on the file system to measure")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", help="JSON lines, one per run")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--partitions", type=int, help="only the cases with this many")
    options = parser.parse_args()
    output = open(options.output, "w") if options.output else None  # noqa: SIM115 - open to the end of the run
    print(
        f"{'partitions':>10} {'batch':>7} {'sync':>6}  {'way':<14} {'round ms':>9} {'p99 ms':>9} {'appends/s':>10} {'MB/s':>7}"
    )
    for partitions, size, depth in CASES:
        if options.partitions not in (None, partitions):
            continue
        for delay in (0.0, 0.003):
            for way in options.ways.split(","):
                runs = []
                for _ in range(options.repeat):
                    directory = Path(tempfile.mkdtemp(prefix="write-path-", dir=options.directory))
                    try:
                        runs.append(
                            asyncio.run(measure(way, directory, partitions, size, depth, delay, options.seconds))
                        )
                    finally:
                        shutil.rmtree(directory)
                    if output:
                        print(json.dumps(runs[-1]), file=output, flush=True)
                middle = sorted(runs, key=lambda run: run["appends_per_s"])[len(runs) // 2]
                print(
                    f"{partitions:>10} {size:>7} {'+3 ms' if delay else 'as is':>6}  {way:<14} {middle['round_ms_median']:>9.2f}"
                    f" {middle['round_ms_p99']:>9.2f} {middle['appends_per_s']:>10.0f} {middle['mb_per_s']:>7.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
