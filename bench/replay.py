"""A cold topic read from its beginning by a log with little memory, while a producer runs.

    python -m bench.replay [--memory-mb 512] [--times 4] [--rate 1000] [--rounds 7]

The topic is `--times` as large as the memory that the log may use. It is written, the log is stopped, and started
again with the limit: by `systemd-run --scope`, where that works, whose limit counts the page cache too; else by
RLIMIT_DATA (`ulimit -d`: heap, anonymous maps and stacks; `ulimit -v` would count address space that threads reserve
and never touch). That one does not count the page cache, so before each reading the pages of all segments are dropped
from it (posix_fadvise DONTNEED; each is read once, so none is of use again), and the share that stayed is told.

In each round: the disk's own rate, the same files read one after the other with 1 MB per call; the producer alone;
the producer while the topic is read by plain Fetch requests of 10 MB, whose answers nothing decodes: what the log can;
then while a librdkafka consumer with its defaults reads it, which asks for 1 MB at a time and makes objects of the
records: what a client sees. Last, that consumer from the page cache: what is its own limit.
Readers are a process of their own: the producer must not wait for Python's lock.
"""

import multiprocessing
import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.clients import consume_all, fetch_all, produce_all, produce_at_rate
from bench.report import Report
from bench.servers import (
    MEMORY_IS_TAKEN_BACK_SECONDS,
    create_topic,
    mainstem_command,
    mainstem_server,
    options_of,
    table,
)
from bench.waits import Waits


def has_scopes() -> list[str] | None:
    """The beginning of a command line that limits memory with the page cache; None where systemd gives none."""
    command = ["systemd-run", "--scope", "--quiet", *(["--user"] if os.getuid() else [])]
    try:
        works = subprocess.run([*command, "true"], check=False, capture_output=True, timeout=20).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return command if works else None


def limited(scope: list[str] | None, memory_mb: int) -> list[str]:
    """What comes before a command to limit its memory."""
    if scope is not None:
        return [*scope, "-p", f"MemoryMax={memory_mb}M", "-p", "MemorySwapMax=0"]
    return ["prlimit", f"--data={memory_mb * 2**20}"]


def drop_pages(paths: list[Path]) -> None:
    """From the page cache: what is dirty is written first, else it would stay. On return nobody is held up by it."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    time.sleep(MEMORY_IS_TAKEN_BACK_SECONDS)


def cached_share(paths: list[Path]) -> float:
    """Of their bytes, what the page cache has; nan without fincore (util-linux)."""
    if shutil.which("fincore") is None:
        return float("nan")
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, paths)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sum(map(int, said.split())) / sum(path.stat().st_size for path in paths)


def read_rate(paths: list[Path]) -> float:
    """Bytes per second, one file after the other."""
    buffer, total, began = bytearray(1 << 20), 0, time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := file.readinto(buffer):
                total += count
    return total / (time.perf_counter() - began)


def fetched(bootstrap: str, size: int) -> tuple[int, float]:
    """Bytes and seconds, by Fetch requests alone."""
    return fetch_all(bootstrap, "cold", size, at_once=10 * 2**20)


def consumed(bootstrap: str, count: int) -> tuple[int, float]:
    """Bytes and seconds of all records, by librdkafka."""
    records, size, seconds = consume_all(bootstrap, "cold")
    assert records == count, f"{records} of {count} records were read"
    return size, seconds


def main() -> None:
    parser = options_of(__doc__, kafka=False)
    parser.add_argument("--memory-mb", type=int, default=512, help="what the log may use")
    parser.add_argument("--times", type=float, default=4, help="the topic's size, in such memories")
    parser.add_argument("--size", type=int, default=10_000, help="bytes of the topic's records")
    parser.add_argument("--rate", type=int, default=1_000, help="records/s of 1 KB of the producer")
    parser.add_argument("--alone-seconds", type=float, default=15, help="of the producer without a reader")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    report = Report("replay", options.keep)
    scope = has_scopes()
    how = "systemd's scope, page cache included" if scope else "RLIMIT_DATA; pages dropped before each reading"
    megabytes = options.memory_mb * options.times
    report.say(f"the log may use {options.memory_mb} MB ({how}); the topic has {megabytes:,.0f} MB")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name:
        directory = Path(name)
        with mainstem_server(directory) as (server, _):
            create_topic(server, "cold")
            create_topic(server, "warm")
            count = int(megabytes * 2**20 / options.size)
            rate = produce_all(server.bootstrap, "cold", count, options.size)
            report.say(f"written at {rate * options.size / 1e6:,.0f} MB/s")
        paths = sorted(server.data.rglob("cold-0/*.log"))

        def command(data: Path, port: int) -> list[str]:
            return [*limited(scope, options.memory_mb), *mainstem_command(data, port)]

        with (
            mainstem_server(directory, command=command) as (server, _),
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart,
        ):
            apart.submit(os.getpid).result()  # its start is over before anything is measured
            if scope is None:
                allowed = resource.prlimit(server.process_id, resource.RLIMIT_DATA)[0]
                assert allowed == options.memory_mb * 2**20, f"the limit is {allowed}"

            def alone_or_not(what: str, over: threading.Event | None, seconds: float) -> None:
                waits = produce_at_rate(
                    server.bootstrap, "warm", options.rate, 1_000, seconds=seconds, until=over, skip_seconds=0
                )
                server.add_all(Waits.of(waits).figures(f"produce at {options.rate:,}/s, {what}"))

            readers: dict[str, Callable[[], tuple[int, float]]] = {
                "Fetch": lambda: apart.submit(fetched, server.bootstrap, count * options.size).result(),
                "librdkafka": lambda: apart.submit(consumed, server.bootstrap, count).result(),
            }
            for number in range(1, options.rounds + 1):
                drop_pages(paths)
                disk = read_rate(paths)
                server.add("the disk, read in sequence (MB/s)", disk / 1e6)
                alone_or_not("alone", None, options.alone_seconds)
                for who, read in readers.items():
                    drop_pages(paths)
                    stayed, over = cached_share(paths), threading.Event()
                    thread = threading.Thread(target=alone_or_not, args=(f"{who}'s replay", over, 3600))
                    thread.start()
                    try:
                        size, seconds = read()
                    finally:
                        over.set()
                        thread.join()
                    server.add(f"{who}: replay (MB/s)", size / seconds / 1e6)
                    server.add(f"{who}: replay, of the disk's rate", size / seconds / disk)
                    server.add(f"{who}: in the page cache before (%)", stayed * 100)
                    report.say(f"round {number}: disk {disk / 1e6:,.0f} MB/s, {who} {size / seconds / 1e6:,.0f} MB/s")
                size, seconds = readers["librdkafka"]()
                server.add("librdkafka: from the page cache (MB/s)", size / seconds / 1e6)
            server.add("memory, highest (MB)", server.memory_mb()[1])
        report.say(f"\n{table([server])}\n")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
