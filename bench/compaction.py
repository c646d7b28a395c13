"""Compaction beside Apache Kafka's cleaner, on the same records, and what other clients notice of it.

    python -m bench.compaction [--records 10000000] [--keys 1000000] [--size 100] [--rounds 7]

A topic without compaction is filled by one librdkafka producer (keys from one seed, the same for both). Then it is
given `cleanup.policy=compact`, and from there the time counts until no file of the partition has changed for some
seconds, and it has shrunk. Both look for work every second instead of every 15 or 30; what Kafka's cleaner says of
its own time is kept in the raw output. The one compacts while the other is idle.

Before and meanwhile a producer sends to another topic at a rate, and a client of its own process asks for Metadata
every 5 ms (bench/probe.py): its longest wait is the event loop's longest block, seen from outside.
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.clients import produce_all, produce_at_rate
from bench.probe import probing
from bench.report import Report
from bench.servers import (
    DELETED_AT_ONCE,
    Server,
    both,
    create_topic,
    forget,
    options_of,
    set_topic,
    settle,
    table,
)
from bench.waits import Waits

OURS = {"MAINSTEM_LOG__HOUSEKEEPING_INTERVAL_MS": "1000"}
KAFKAS = {"log.cleaner.backoff.ms": "1000", **DELETED_AT_ONCE}


def keyed(keys: int, size: int) -> Callable[[int, int], list[dict[str, Any]]]:
    """Records of `size` bytes of key and value; each key is as likely, and a record is told by its number."""

    def values(first: int, count: int) -> list[dict[str, Any]]:
        draw = random.Random(first).randrange
        return [
            {"key": b"%010d" % draw(keys), "value": (b"%010d" % number).ljust(size - 10, b"x")}
            for number in range(first, first + count)
        ]

    return values


def partition_files(server: Server, topic: str) -> dict[Path, tuple[int, int]]:
    """Of its partition: size and time of change of each segment, and of what a compaction has begun."""
    found = {}
    for path in (server.data / f"{topic}-0").iterdir():
        if ".log" not in path.name or path.name.endswith(".deleted"):
            continue
        with suppress(FileNotFoundError):
            about = path.stat()
            found[path] = (about.st_size, about.st_mtime_ns)
    return found


def size_of(files: dict[Path, tuple[int, int]]) -> int:
    return sum(size for size, _ in files.values())


def children_mb(server: Server) -> float:
    """Resident memory of the processes that it has started."""
    found = 0
    for child in psutil.Process(server.process_id).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += child.memory_info().rss
    return found / 2**20


def wait_until_quiet(
    look: Callable[[], dict[Path, tuple[int, int]]], before: int, *, quiet: float, seconds: float, every: float = 0.05
) -> float:
    """Seconds until the last change, once the files are smaller than `before` bytes and did not change for `quiet`."""
    began = changed = time.perf_counter()
    last = look()
    while True:
        time.sleep(every)
        now, files = time.perf_counter(), look()
        if files != last:
            last, changed = files, now
        shrunk = size_of(files) < before and all(path.suffix == ".log" for path in files)
        if shrunk and now - changed > quiet:
            return changed - began
        assert now - began < seconds, f"no compaction ended in {seconds:.0f} s"


@contextmanager
def watched(server: Server, topic: str, rate: int, what: str, seconds: float = 3600) -> Iterator[None]:
    """Ask for Metadata and produce at a rate, while the block runs; the figures go to the server's."""
    over, begun, waits = threading.Event(), threading.Event(), list[float]()

    def send() -> None:
        waits.extend(
            produce_at_rate(
                server.bootstrap, topic, rate, 100, seconds=seconds, until=over, begun=begun, skip_seconds=0
            )
        )

    thread = threading.Thread(target=send)
    with probing(server) as probed:
        thread.start()
        assert begun.wait(60), "the producer beside it sent nothing"
        try:
            yield
        finally:
            over.set()
            thread.join()
    assert waits, "the producer beside it failed"
    server.add_all(Waits.of(waits).figures(f"produce at {rate:,}/s, {what}"))
    server.add(f"Metadata, {what}: p99 (ms)", probed[0].p99)
    server.add(f"Metadata, {what}: max (ms)", probed[0].highest)


def measure(server: Server, number: int, options: Any, report: Report) -> None:
    topic, beside = f"compacted-{number}", f"beside-{number}"
    create_topic(server, topic, settings={"segment.bytes": str(options.segment_bytes)})
    create_topic(server, beside)
    values = keyed(options.keys, options.size)
    produce_all(server.bootstrap, topic, options.records, options.size, values=values)
    settle()
    with watched(server, beside, options.rate, "nothing else"):
        time.sleep(options.alone_seconds)
    before = size_of(partition_files(server, topic))
    said = server.said.stat().st_size if server.said else 0
    beside_it = [0.0]

    def look() -> dict[Path, tuple[int, int]]:
        beside_it.append(children_mb(server))
        return partition_files(server, topic)

    with watched(server, beside, options.rate, "compaction"):
        set_topic(server, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        seconds = wait_until_quiet(look, before, quiet=options.quiet_seconds, seconds=options.most_seconds)
    after = size_of(partition_files(server, topic))
    server.add("compaction (s)", seconds)
    server.add("compaction (records/s)", options.records / seconds)
    server.add("files before (MB)", before / 1e6)
    server.add("files after (MB)", after / 1e6)
    server.add("memory, highest so far (MB)", server.memory_mb()[1])
    server.add("memory of its processes meanwhile, highest (MB)", max(beside_it))
    if server.said:
        lines = server.said.read_bytes()[said:].decode(errors="replace").splitlines()
        report.keep(f"{server.name}: what its cleaner said", "\n".join(line for line in lines if "lean" in line))
    report.say(f"round {number}, {server.name}: {seconds:.1f} s, {before / 1e6:,.0f} MB to {after / 1e6:,.0f} MB")
    forget(server, topic, beside)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a record's key and value, more than 20")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rate", type=int, default=1_000, help="records/s of the producer beside it")
    parser.add_argument("--segment-bytes", type=int, default=100 * 2**20, help="the last segment is not compacted")
    parser.add_argument("--alone-seconds", type=float, default=10, help="of the producer without compaction")
    parser.add_argument("--quiet-seconds", type=float, default=5, help="without a change it has ended")
    parser.add_argument("--most-seconds", type=float, default=900)
    options = parser.parse_args()
    report = Report("compaction", options.keep)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name,
        both(Path(name), options.heap_mb, ours=OURS, kafka=KAFKAS) as servers,
    ):
        for number in range(1, options.rounds + 1):
            for server in servers if number % 2 else servers[::-1]:
                measure(server, number, options, report)
        report.say(f"\n{table(servers)}\n")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
