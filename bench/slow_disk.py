"""The log on a disk whose syncs take 3 ms more, beside the same without: thousands of dirty partitions, and compaction.

    python -m bench.slow_disk [--partitions 2000] [--sync-ms 3] [--seconds 20] [--rounds 7]

Two logs in turn: as it is, and started by bench/slow_log.py. Two librdkafka producers send to all partitions as fast
as they go, so each round has most of them dirty; then one sends at a rate, a record to each in turn, and its waits
are counted. Both once alone, and once while topics are compacted, one after the other for as long as it takes.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.clients import produce_all, produce_at_rate
from bench.compaction import OURS, keyed, partition_files, size_of
from bench.report import Report
from bench.servers import Server, create_topic, delete_topic, mainstem_server, options_of, set_topic, table
from bench.slow_log import command_of
from bench.waits import Waits

_WIDE = "wide"
"""One topic for all rounds: ext4 takes 0.65 ms for each file that is made within minutes of thousands of deletions."""


class Load(msgspec.Struct, frozen=True):
    """What is sent to a log in each measurement."""

    partitions: int
    records: int
    rate: int
    seconds: float


@contextmanager
def compacting(server: Server, topics: list[str]) -> Iterator[list[str]]:
    """Give one topic after the other its compaction; the list has those that were done while the block ran."""
    over, done = threading.Event(), list[str]()

    def compact() -> None:
        for topic in topics:
            before = size_of(partition_files(server, topic))
            set_topic(server, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
            while size_of(partition_files(server, topic)) >= before:
                if over.wait(0.05):
                    return
            done.append(topic)

    thread = threading.Thread(target=compact)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def measure(server: Server, load: Load, what: str) -> None:
    rate = produce_all(
        server.bootstrap, _WIDE, load.records, 100, handles=2, partitions=load.partitions, everywhere=True
    )
    server.add(f"{load.partitions:,} partitions, {what}: produce (records/s)", rate)
    waits = produce_at_rate(
        server.bootstrap, _WIDE, load.rate, 100, seconds=load.seconds, partitions=load.partitions, skip_seconds=0.5
    )
    server.add_all(Waits.of(waits).figures(f"at {load.rate:,}/s, {what}"))


def measure_all(server: Server, number: int, load: Load, records: int, report: Report) -> None:
    topics = [f"compacted-{number}-{one}" for one in range(20)]
    measure(server, load, "alone")
    for topic in topics:
        create_topic(server, topic, settings={"segment.bytes": str(2**20)})
        produce_all(server.bootstrap, topic, records, 100, values=keyed(max(records // 10, 1), 100))
    began = time.perf_counter()
    with compacting(server, topics) as done:
        measure(server, load, "compaction")
    seconds = time.perf_counter() - began
    server.add("topics compacted meanwhile", len(done))
    if len(done) == len(topics):
        report.say(f"{server.name}: all {len(topics)} topics were compacted before the {seconds:.0f} s were over")
    for topic in topics:
        delete_topic(server, topic)
    report.say(f"round {number}, {server.name}: " + ", ".join(f"{v[-1]:,.1f}" for v in server.measured.values()))


def main() -> None:
    parser = options_of(__doc__, kafka=False)
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--sync-ms", type=float, default=3)
    parser.add_argument("--records", type=int, default=2_000_000, help="as fast as it goes")
    parser.add_argument("--compacted-records", type=int, default=500_000, help="of each of the 20 topics compacted")
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=20, help="at the rate")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    report = Report("slow_disk", options.keep)
    load = Load(options.partitions, options.records, options.rate, options.seconds)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name, ExitStack() as stack:
        servers = []
        for kind in ("slow", "as it is"):
            directory = Path(name, kind.replace(" ", "-"))
            directory.mkdir()
            command = {} if kind == "as it is" else {"command": command_of(options.sync_ms)}
            server, _ = stack.enter_context(mainstem_server(directory, settings=OURS, **command))
            server.name = kind if kind == "as it is" else f"syncs +{options.sync_ms:g} ms"
            create_topic(server, _WIDE, options.partitions)
            servers.append(server)
        for number in range(1, options.rounds + 1):
            for server in servers if number % 2 else servers[::-1]:
                measure_all(server, number, load, options.compacted_records, report)
        for server in servers:
            server.add("memory, highest (MB)", server.memory_mb()[1])
        report.say(f"\n{table(servers, [server.name for server in servers])}\n")
    print(f"raw output: {report.path}")


if __name__ == "__main__":
    main()
